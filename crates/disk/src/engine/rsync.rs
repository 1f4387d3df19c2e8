//! The capability of being copied by the program `rsync`: of engines whose objects are files in a
//! layout that other nodes have as well.

use std::path::PathBuf;
use std::time::Duration;

use super::key::{ObjectId, PartitionKey};
use crate::device_pool::{Device, Disk};
use crate::error::DiskError;

/// Arguments for rsync, and the removal of its leftovers.
pub trait Rsync: Send + Sync {
    /// The folders that are sent of these suffixes, as far as they are there.
    fn sources(&self, device: &Device, at: PartitionKey, suffixes: &[String]) -> Vec<PathBuf>;

    /// The folder that they go to, below the other node's device.
    fn target(&self, at: PartitionKey) -> String;

    /// Removes what runs of rsync that were cut off have left beside an object, where it is older
    /// than `age`.
    fn remove_temporary(
        &self,
        disk: &Disk,
        object: ObjectId,
        age: Duration,
    ) -> Result<(), DiskError>;
}
