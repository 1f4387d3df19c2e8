//! Background daemons: each walks the stored data in bounded steps, at a limited rate, and reports
//! its progress.
//!
//! | daemon | conf section | task |
//! | --- | --- | --- |
//! | [`ObjectReplicator`] | `object-replicator` | brings replicas of objects in step, moves handoffs to primaries |
//! | [`ObjectReconstructor`] | `object-reconstructor` | rebuilds lost fragments, moves handoffs to primaries |
//! | [`ObjectAuditor`] | `object-auditor` | verifies objects, quarantines broken ones |
//! | [`ObjectUpdater`] | `object-updater` | delivers container updates that failed |
//! | [`ObjectExpirer`] | `object-expirer` | deletes expired objects |
//! | [`ContainerReconciler`] | `container-reconciler` | moves objects to their container's policy |
//! | [`ContainerSharder`] | `container-sharder` | splits large containers into shards |
//! | [`ContainerSync`] | `container-sync` | sends containers' changes to other clusters |
//! | [`ContainerUpdater`] | `container-updater` | reports containers' totals to accounts |
//! | [`DbReplicator`] | `account-`, `container-replicator` | brings replicas of databases in step |
//! | [`DbAuditor`] | `account-`, `container-auditor` | checks databases |
//! | [`AccountReaper`] | `account-reaper` | empties deleted accounts |
//!
//! Each is constructed from its configuration, read from the section, and its dependencies; `pass` is
//! one pass. Programs know them as [`Daemon`]s, which [`daemon::run`] repeats until they are stopped.
//! [`ReconCache`] writes data for monitoring to files.
//!
//! Daemons access disks through `cairn-disk` and databases through `cairn-index`, on the devices'
//! own threads, and other servers through `cairn-peer`. They run inside a server's process, or as
//! programs of their own.

pub mod account_reaper;
mod calls;
pub mod container_deleter;
pub mod container_reconciler;
pub mod container_sharder;
pub mod container_sync;
pub mod container_updater;
pub mod daemon;
pub mod db_auditor;
pub mod db_replicator;
pub mod internal_client;
mod local;
mod lockup;
mod log_limit;
pub mod object_auditor;
pub mod object_expirer;
mod object_pass;
pub mod object_reconstructor;
pub mod object_replicator;
pub mod object_updater;
mod pace;
mod progress;
mod rebuild;
pub mod recon_cache;
pub mod rekey;
mod session_permits;
mod ssync;
#[cfg(test)]
mod testing;

pub use account_reaper::{AccountReaper, AccountReaperConfig, ReaperStats};
pub use container_reconciler::{ContainerReconciler, ContainerReconcilerConfig, ReconcilerParts};
pub use container_sharder::{
    ContainerSharder, ContainerSharderConfig, SharderError, SharderParts, SharderStats,
    hash_container_name,
};
pub use container_sync::{ContainerSync, ContainerSyncConfig, SyncParts, SyncStats};
pub use container_updater::{
    ContainerUpdater, ContainerUpdaterConfig, NotesRows, NotesWrites, Written,
};
pub use daemon::{Daemon, DaemonKind, PassFilter};
pub use db_auditor::{DbAuditor, DbAuditorConfig};
pub use db_replicator::{DbReplicator, DbReplicatorConfig, WholeDatabases};
pub use internal_client::{InternalClient, InternalClientError};
pub use local::OwnAddress;
pub use object_auditor::{
    AuditStats, AuditorConfig, AuditorParts, DarkData, DarkDataAction, DarkDataConfig,
    ObjectAuditor,
};
pub use object_expirer::{ExpirerParts, ExpirerStats, ObjectExpirer, ObjectExpirerConfig};
pub use object_pass::{PassConfig, ReplicatorParts};
pub use object_reconstructor::{ObjectReconstructor, ReconstructionStats, ReconstructorConfig};
pub use object_replicator::{ObjectReplicator, ReplicationStats, ReplicatorConfig};
pub use object_updater::{ObjectUpdater, SweepStats, UpdaterConfig};
pub use progress::Progress;
pub use recon_cache::ReconCache;
