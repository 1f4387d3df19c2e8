//! Background work on what is stored: each daemon walks in bounded steps, at a pace, and tells
//! how far it is: [`ObjectUpdater`] delivers container updates that failed, [`ContainerUpdater`]
//! tells accounts what their containers hold, [`DbReplicator`] and [`DbAuditor`] keep accounts'
//! and containers' databases alike and sound, [`AccountReaper`] empties deleted accounts.
//!
//! Daemons touch disks through `cairn-disk` and databases through `cairn-index`, on the devices'
//! own threads, and other servers through `cairn-peer`. They run inside a server's process and
//! end when its `stop` says so.

pub mod account_reaper;
mod calls;
pub mod container_updater;
pub mod db_auditor;
pub mod db_replicator;
mod local;
pub mod object_updater;
mod pace;
pub mod recon_cache;
mod rounds;
#[cfg(test)]
mod testing;

pub use account_reaper::{AccountReaper, AccountReaperConfig, ReaperStats};
pub use container_updater::{ContainerUpdater, ContainerUpdaterConfig, NotesWrites, Written};
pub use db_auditor::{AuditStats, DbAuditor, DbAuditorConfig};
pub use db_replicator::{
    DbReplicator, DbReplicatorConfig, OnlyThese, ReplicationStats, WholeDatabases,
};
pub use local::OwnAddress;
pub use object_updater::{ObjectUpdater, SweepStats, UpdaterConfig};
pub use recon_cache::ReconCache;
