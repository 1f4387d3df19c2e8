//! The lab: measures object stores and file systems. A workload file of any supported format is
//! read into a [`plan::Plan`], executed against a target, and leaves a folder that [`record`]
//! describes; reports, comparisons and the console read that folder.
//!
//! It accesses a store only over the network or a mounted path, and never depends on a crate of
//! servers. May depend on `formats` and `rados` of this workspace, and on nothing else of it.

pub mod ceiling;
pub mod cli;
pub mod compare;
pub mod controller;
pub mod drained;
pub mod drive;
pub mod estimate;
pub mod fail_if;
pub mod footprint;
pub mod import;
pub mod latencies;
pub mod omission;
pub mod open;
pub mod plan;
pub mod plot;
pub mod record;
pub mod rename;
pub mod report;
pub mod resources;
pub mod results;
pub mod resume;
pub mod rng;
pub mod selector;
pub mod target;
pub mod workload;
