//! Background work on what is stored: each daemon walks in bounded steps, at a pace, and tells
//! how far it is. Today: [`ObjectUpdater`], which delivers container updates that failed.
//!
//! Daemons touch disks through `cairn-disk` on the devices' own threads and other servers through
//! `cairn-peer`. They run inside a server's process and end when its `stop` says so.

pub mod object_updater;
mod pace;

pub use object_updater::{ObjectUpdater, SweepStats, UpdaterConfig};
