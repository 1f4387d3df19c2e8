//! The auditor's part of the seam: checkpoints of a walk over a device, auditing one object, and
//! comparing suffix hashes with the objects.

use std::collections::BTreeMap;

use cairn_types::PolicyIndex;

use super::key::{ObjectId, ObjectKey, PartitionKey};
use super::object::OpenObject;
use super::suffix_hash::SuffixHash;
use crate::device_pool::Disk;
use crate::error::DiskError;
use crate::object_info::OpenOptions;

/// Result of auditing an object.
pub enum Audited {
    /// Valid so far: its metadata, and its content if that was requested and is small.
    Object(ObjectKey, Box<OpenObject>),
    /// Broken and quarantined, with the reason.
    Quarantined(String),
    /// Deleted, expired or gone.
    Nothing,
}

/// Auditing a device's objects.
///
/// Errors are a device's: `Device` where it takes no work now, `Io`, `NoSpace` or `ReadOnly` where
/// its file system refuses. The errors named at a call come beside them.
/// A partition that another process keeps locked is `Io`.
pub trait Audit {
    /// Partitions left for the walk of this name (`ALL`, `ZBF`): those in its checkpoint, or all.
    ///
    /// # Errors
    /// As every call of this trait.
    fn partitions_to_audit(
        &self,
        disk: &Disk,
        policy: PolicyIndex,
        walk: &str,
    ) -> Result<Vec<u32>, DiskError>;

    /// Writes the checkpoint of partitions left; with none the walk is complete.
    ///
    /// # Errors
    /// As every call of this trait.
    fn note_audited(
        &self,
        disk: &Disk,
        policy: PolicyIndex,
        walk: &str,
        left: &[u32],
    ) -> Result<(), DiskError>;

    /// Opens an object according to `options`; a broken one has been quarantined. A tombstone older
    /// than the reclaim age is removed, or scheduled to be.
    ///
    /// # Errors
    /// `Unreadable` or `Io` where the disk does not say yet whether the object is broken.
    fn audit(
        &self,
        disk: &Disk,
        object: ObjectId,
        options: &OpenOptions,
    ) -> Result<Audited, DiskError>;

    /// Stored suffix hashes of a partition, except those invalidated. `None` for an engine without
    /// stored hashes.
    ///
    /// # Errors
    /// As every call of this trait.
    fn settled_hashes(
        &self,
        disk: &Disk,
        at: PartitionKey,
    ) -> Result<BTreeMap<String, SuffixHash>, DiskError>;

    /// Recomputes a suffix hash, and invalidates the stored one if it differs. True if invalidated.
    ///
    /// # Errors
    /// As every call of this trait.
    fn check_suffix(
        &self,
        disk: &Disk,
        at: PartitionKey,
        suffix: &str,
        settled: &SuffixHash,
    ) -> Result<bool, DiskError>;
}
