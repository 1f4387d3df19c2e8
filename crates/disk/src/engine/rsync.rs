//! Capability of replication by the program `rsync`, for engines whose objects are files in a
//! layout shared by other nodes.

use std::path::PathBuf;
use std::time::Duration;

use super::key::{ObjectId, PartitionKey};
use crate::device_pool::{Device, Disk};
use crate::error::DiskError;

/// Arguments for rsync, and the removal of its temporary files.
///
/// Errors are of the device and its file system.
pub trait Rsync: Send + Sync {
    /// Existing source folders of these suffixes.
    fn sources(&self, device: &Device, at: PartitionKey, suffixes: &[String]) -> Vec<PathBuf>;

    /// Target folder, below the other node's device.
    fn target(&self, at: PartitionKey) -> String;

    /// Removes temporary files of interrupted rsync runs beside an object that are older than
    /// `age`.
    ///
    /// # Errors
    /// `Io` or `ReadOnly` where the object's folder cannot be read or a file not removed; none
    /// where they are gone.
    fn remove_temporary(
        &self,
        disk: &Disk,
        object: ObjectId,
        age: Duration,
    ) -> Result<(), DiskError>;
}
