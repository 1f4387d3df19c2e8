//! Emulated hardware for clusters on one host: disks with a service-time model ([`disk`]), a network
//! with round-trip times and rates ([`network`]), limits of
//! CPU and memory ([`cgroup`]). A child process ([`world`]) owns all of it, so that it runs at
//! real-time priority and takes everything away when its parent ends, however that ends.
//!
//! Each answer has a time at which it is due. How late answers are is counted ([`lateness`]): a
//! measurement whose hardware was late is no measurement. Times are nanoseconds of this host; time
//! dilation is in the numbers a model is given ([`model::Medium::dilated`]).
//!
//! May depend on `types`; knows nothing of object stores.

pub mod cgroup;
pub mod check;
pub mod disk;
pub mod host;
pub mod lateness;
pub mod model;
mod names;
pub mod network;
pub mod sweep;
pub mod world;
