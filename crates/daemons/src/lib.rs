//! Background work on what is stored: each daemon walks in bounded steps, at a pace, and tells
//! how far it is.
//!
//! | daemon | conf section | what it does |
//! | --- | --- | --- |
//! | [`ObjectReplicator`] | `object-replicator` | makes replicas of objects alike, moves handoffs home |
//! | [`ObjectReconstructor`] | `object-reconstructor` | rebuilds lost fragments, moves handoffs home |
//! | [`ObjectAuditor`] | `object-auditor` | reads objects, quarantines what does not match |
//! | [`ObjectUpdater`] | `object-updater` | delivers container updates that failed |
//! | [`ObjectExpirer`] | `object-expirer` | deletes objects whose time has come |
//! | [`ContainerReconciler`] | `container-reconciler` | moves objects to their container's policy |
//! | [`ContainerSharder`] | `container-sharder` | cuts large containers into shards |
//! | [`ContainerSync`] | `container-sync` | sends containers' changes to other clusters |
//! | [`ContainerUpdater`] | `container-updater` | tells accounts what their containers hold |
//! | [`DbReplicator`] | `account-`, `container-replicator` | makes replicas of databases alike |
//! | [`DbAuditor`] | `account-`, `container-auditor` | checks databases |
//! | [`AccountReaper`] | `account-reaper` | empties deleted accounts |
//!
//! Each is made of its configuration, read from the section, and of parts handed in; `run` goes
//! on until told to stop, `once` (`sweep`) is one pass. Facts for monitoring go to files that
//! [`ReconCache`] writes.
//!
//! Daemons touch disks through `cairn-disk` and databases through `cairn-index`, on the devices'
//! own threads, and other servers through `cairn-peer`. They run inside a server's process, or as
//! programs of their own.

pub mod account_reaper;
mod calls;
pub mod container_deleter;
pub mod container_reconciler;
pub mod container_sharder;
pub mod container_sync;
pub mod container_updater;
pub mod db_auditor;
pub mod db_replicator;
pub mod internal_client;
mod local;
mod log_limit;
pub mod object_auditor;
pub mod object_expirer;
pub mod object_reconstructor;
pub mod object_replicator;
pub mod object_updater;
mod pace;
mod progress;
pub mod recon_cache;
pub mod rekey;
mod rounds;
mod ssync;
#[cfg(test)]
mod testing;
mod turns;

pub use account_reaper::{AccountReaper, AccountReaperConfig, ReaperStats};
pub use container_reconciler::{ContainerReconciler, ContainerReconcilerConfig, ReconcilerParts};
pub use container_sharder::{
    ContainerSharder, ContainerSharderConfig, SharderError, SharderParts, SharderStats,
    hash_container_name,
};
pub use container_sync::{ContainerSync, ContainerSyncConfig, SyncParts, SyncStats};
pub use container_updater::{ContainerUpdater, ContainerUpdaterConfig, NotesWrites, Written};
pub use db_auditor::{DbAuditor, DbAuditorConfig};
pub use db_replicator::{DbReplicator, DbReplicatorConfig, OnlyThese, WholeDatabases};
pub use internal_client::{InternalClient, InternalClientError};
pub use local::OwnAddress;
pub use object_auditor::{
    AuditOnly, AuditStats, AuditorConfig, AuditorParts, DarkData, DarkDataAction, DarkDataConfig,
    ObjectAuditor,
};
pub use object_expirer::{ExpirerParts, ExpirerStats, ObjectExpirer, ObjectExpirerConfig};
pub use object_reconstructor::{ObjectReconstructor, ReconstructionStats, ReconstructorConfig};
pub use object_replicator::{
    ObjectReplicator, Only, ReplicationStats, ReplicatorConfig, ReplicatorParts,
};
pub use object_updater::{ObjectUpdater, SweepStats, UpdaterConfig};
pub use progress::Progress;
pub use recon_cache::ReconCache;
