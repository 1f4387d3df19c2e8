//! The load generator: drives a target according to a plan, from one process.
//!
//! A stage runs on threads that share as little as possible: each has its own statistics, collected
//! once a second and merged exactly, within a process and over drivers alike. `controller` decides
//! which stage runs when, and keeps the results.

mod draw;
mod pace;
mod pool;
mod recorder;
mod stage;
#[cfg(test)]
mod truth;
mod worker;

pub use draw::Share;
pub use pool::Pools;
pub use recorder::merge;
pub use stage::{Control, Driver, Event, Snapshot, cores, now};

/// Number of operations that each operation of a special work has to perform; [`u64::MAX`]: until
/// its pool is empty.
pub(crate) fn special_totals(work: &crate::plan::Work) -> Vec<u64> {
    draw::Drawer::special_total(work)
}
