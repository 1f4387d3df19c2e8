//! Emulated hardware for clusters on one host: disks with a service-time model ([`disk`]), a
//! network with round-trip times and rates ([`network`]), CPU and memory limits ([`cgroup`]). A
//! child process ([`world`]) owns all of it, so that it runs at real-time priority and removes
//! everything when its parent ends, for whatever reason.
//!
//! Each reply has a due time, and its lateness is measured ([`lateness`]): measurements with late
//! hardware are invalid. Times are nanoseconds of this host; time dilation is applied to the
//! parameters of a model ([`model::Medium::dilated`]).
//!
//! May depend on `advise`, whose model of a disk it carries out, and `types`; independent of object stores.

pub mod cgroup;
pub mod check;
pub mod disk;
pub mod host;
pub mod lateness;
mod names;
pub mod network;
pub mod sweep;
pub mod world;

pub use cairn_advise::hardware as model;
