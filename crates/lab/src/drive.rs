//! The engine: drives a target as a plan says, from one process.
//!
//! A stage runs on threads that share nothing but what they must: each has its own statistics,
//! emptied once a second and merged exactly, here and over drivers alike. `controller` decides
//! which stage runs when, and keeps what comes of it.

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

/// How many operations each of a special work's has to do; [`u64::MAX`]: until its pool is empty.
pub(crate) fn special_totals(work: &crate::plan::Work) -> Vec<u64> {
    draw::Drawer::special_total(work)
}
