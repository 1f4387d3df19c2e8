//! One device's runtime: threads, bounded queues, and the syncs that make work durable.
//!
//! * A [`Lane`] is a bounded queue with workers of its own; a second queue behind it is for background
//!   work, which gets the share of the device that clients leave ([`Share`]).
//! * A [`JobLane`] runs closures. A [`CommitLane`] takes all durable operations that wait, runs each to
//!   its next sync, syncs once for all of them, and goes on with each ([`Operation`], [`Step`]).
//! * A [`SyncSet`] names everything that a sync must cover: files, directories, logs, databases. Sets of
//!   one batch are merged, and a thing that several operations wrote is synced once.
//! * [`GroupSync`] makes the syncs of a whole file system one, where that is quicker.
//! * A [`Ledger`] says which rows of databases a log of objects owes.
//! * A [`Gate`] keeps readers and commits of one file apart.
//!
//! Threads work through a lane by turns, and so does a simulator ([`Machine`]), one step of one worker
//! at a time, on its own clock: both run the code that decides, and differ in how they wait.
//!
//! Synchronous; no async runtime. Below `disk` and `index`, which both submit their work here.

mod gate;
mod lane;
mod locks;
#[cfg(all(test, feature = "shuttle"))]
mod orders;
mod owed;
mod share;
mod syncs;
mod worker;

pub use gate::{Committing, Gate, Reading};
pub use lane::{
    Advanced, Afterwards, CommitLane, Completion, FailureReporter, Handed, Host, Job, JobLane,
    Lane, LaneConfig, OpenDevice, Operation, Progress, Refused, Run, Step, Work,
};
pub use owed::{Debt, Ledger, Owed};
pub use share::{BackgroundShare, Class, Kind, Share};
pub use syncs::{
    FileSystem, GroupSync, Machine, SyncSet, SyncedFile, Syncs, Trust, fsync, open_directory,
    sync_all, wall_clock,
};
pub use worker::{AtOnce, Employer, Next, Worker};
