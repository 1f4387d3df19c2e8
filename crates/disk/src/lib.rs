//! One disk: its threads, the seam to the engines that store objects on it ([`engine`]), and the
//! first engine, Swift's object layout on a file system ([`DiskFileEngine`]).
//!
//! Everything here is synchronous and runs on a device's own worker threads; callers pass one
//! closure per operation ([`Device::read`], [`Device::write`]) and await its result. There is no
//! async runtime in this crate. [`staged_file`] alone calls fsync, link and rename.
//!
//! Layer 1: may depend on `types`, `formats` and `device` only.

pub mod async_pending;
mod audit;
pub mod barred;
pub mod container_row;
pub mod device_pool;
mod diskfile;
pub mod engine;
pub mod error;
mod file_content;
mod file_ops;
mod hot;
pub mod inspect;
pub mod layout;
pub mod machine;
mod made_dirs;
pub mod metadata;
mod object_info;
mod overflow;
mod partition_lock;
pub mod reader;
mod relink;
pub mod replication;
pub mod room;
mod seam;
pub mod staged_file;
mod unreadable;
mod xattr;

pub use device_pool::{
    BackgroundShare, Device, Devices, DevicesConfig, Disk, FallocateReserve, steps,
};
pub use diskfile::{DiskFileConfig, DiskFileEngine, suffix_hashes};
pub use engine::{
    Durability, Engine, Engines, FragmentInfo, ObjectEngine, ObjectId, ObjectInfo, ObjectKey,
    ObjectWriter, OpenObject, OpenOptions, PartitionKey, Suspect,
};
pub use error::{DeviceError, DiskError};
pub use layout::{FragmentChoice, FragmentPreference};
pub use metadata::Metadata;
pub use reader::ObjectReader;
pub use unreadable::Unreadable;

/// Rows that engines owe to containers: see [`cairn_device::Ledger`].
pub mod owed {
    pub use cairn_device::{Debt, Ledger, Owed};
}
