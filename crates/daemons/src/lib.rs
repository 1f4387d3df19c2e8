//! Background work on what is stored: each daemon walks in bounded steps, at a pace, and tells
//! how far it is.
//!
//! | daemon | conf section | made by | one pass |
//! | --- | --- | --- | --- |
//! | [`ObjectReplicator`] | `object-replicator` | `ReplicatorConfig::read`, `new(config, ReplicatorParts)` | `once(&Only)` |
//! | [`ObjectAuditor`] | `object-auditor` | `AuditorConfig::read`, `new(config, AuditorParts)` | `once(&AuditOnly)` |
//! | [`ObjectUpdater`] | `object-updater` | `UpdaterConfig::read`, `new(config, …)` | `sweep()` |
//! | [`ContainerUpdater`] | `container-updater` | `ContainerUpdaterConfig::read`, `new(config, …)` | `sweep()` |
//!
//! All have `run(self: Arc<Self>, stop)`, which goes on until `stop` turns true. Facts for
//! monitoring go to files that [`ReconCache`] writes.
//!
//! Daemons touch disks through `cairn-disk` and databases through `cairn-index`, on the devices'
//! own threads, and other servers through `cairn-peer`. They run inside a server's process, or as
//! programs of their own.

mod calls;
pub mod container_updater;
pub mod object_auditor;
pub mod object_replicator;
pub mod object_updater;
mod pace;
pub mod recon_cache;
mod rounds;
#[cfg(test)]
mod testing;

pub use container_updater::{ContainerUpdater, ContainerUpdaterConfig, NotesWrites, Written};
pub use object_auditor::{AuditOnly, AuditStats, AuditorConfig, AuditorParts, ObjectAuditor};
pub use object_replicator::{
    ObjectReplicator, Only, ReplicationStats, ReplicatorConfig, ReplicatorParts,
};
pub use object_updater::{ObjectUpdater, SweepStats, UpdaterConfig};
pub use recon_cache::ReconCache;
