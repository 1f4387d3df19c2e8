//! Account and container databases: the only crate that knows SQL.
//!
//! The files are OpenStack Swift's own SQLite databases, at its paths and in its schema, so that
//! either project's daemons open the other's. The write path differs: updates are queued per
//! database and committed many at a time (group commit), each acknowledged only when its
//! transaction, or its entry in the pending file, is on disk. Readers have connections of their
//! own, and see pending rows merged.
//!
//! Layer 1: synchronous, on its own threads, a few per device with bounded queues. No tokio;
//! answers come through `futures_channel::oneshot`, so callers may await them anywhere. Depends on
//! `cairn-types`, `cairn-formats` and `cairn-device`.

pub mod account;
mod audit;
pub mod broker;
mod config;
mod connection;
pub mod container;
pub mod content_type;
mod create;
mod db;
mod device;
mod drive;
mod error;
mod files;
mod handle;
mod held;
pub mod inspect;
mod key;
pub mod listing;
pub mod metadata;
mod migrate;
mod page_cache;
mod pending;
mod pool;
mod rank;
pub mod replication;
mod schema;
mod sharding;
mod sync;
pub mod sync_store;
mod turns;
mod waiters;

pub use account::{AccountBroker, AccountInfo, ContainerRow, ContainerStats};
pub use broker::{Broker, Reclaimed};
pub use config::{Clock, IndexConfig, ReadFromDisk};
pub use container::{
    ContainerBroker, ContainerInfo, Cut, DbState, FoundRange, ObjectRow, PolicyStats, RangeQuery,
    RowsQuery, ShardRange,
};
pub use drive::{DriveCheck, Reserve};
pub use error::IndexError;
pub use handle::{AccountDb, ContainerDb, IndexDb};
pub use key::{DbKey, DbKind};
pub use listing::{ContainerEntry, ListCursor, ListEntry, ListPage, ListQuery, ObjectEntry};
pub use metadata::{Metadata, MetadataLimits, MetadataRefused};
#[cfg(any(test, fuzzing))]
pub use pending::fuzzing;
pub use pool::{IndexPool, TakesRows};
pub use replication::exchange::Received;
pub use replication::{
    ContainerFacts, PolicyClaim, RemoteInfo, RemotePolicy, ReplicationInfo, RowError, Rows,
};
pub use schema::NewDb;
pub use sync::{ContainerRecord, ObjectRecord, SyncPoint};
pub use waiters::Wait;

/// Result of most functions here.
pub type Result<T> = std::result::Result<T, IndexError>;
