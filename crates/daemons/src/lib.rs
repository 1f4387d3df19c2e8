//! Background work on what is stored: each daemon walks in bounded steps, at a pace, and tells
//! how far it is. Today: [`ObjectUpdater`], which delivers container updates that failed, and
//! [`ContainerUpdater`], which tells accounts what their containers hold.
//!
//! Daemons touch disks through `cairn-disk` and databases through `cairn-index`, on the devices'
//! own threads, and other servers through `cairn-peer`. They run inside a server's process and
//! end when its `stop` says so.

mod calls;
pub mod container_updater;
pub mod object_updater;
mod pace;
pub mod recon_cache;
mod rounds;
#[cfg(test)]
mod testing;

pub use container_updater::{ContainerUpdater, ContainerUpdaterConfig, NotesWrites, Written};
pub use object_updater::{ObjectUpdater, SweepStats, UpdaterConfig};
pub use recon_cache::ReconCache;
