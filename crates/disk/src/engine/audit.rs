//! The auditors' part of the seam: how far a walk over a device is, one object looked at, and
//! suffix hashes held against what they are of.

use std::collections::BTreeMap;

use cairn_types::PolicyIndex;

use super::info::OpenOptions;
use super::key::{ObjectId, ObjectKey, PartitionKey};
use super::object::OpenObject;
use super::suffix_hash::SuffixHash;
use crate::device_pool::Disk;
use crate::error::DiskError;

/// An object that was looked at.
pub enum Audited {
    /// Sound so far: its metadata, and its content where it was asked for and is small.
    Object(ObjectKey, Box<OpenObject>),
    /// It was broken, and why.
    Quarantined(String),
    /// Deleted, expired or gone.
    Nothing,
}

/// Objects of a device as auditors see them.
pub trait Audit {
    /// The partitions that a walk of this name (`ALL`, `ZBF`) still has to do: those a former one
    /// left, or all.
    fn partitions_to_audit(
        &self,
        disk: &Disk,
        policy: PolicyIndex,
        walk: &str,
    ) -> Result<Vec<u32>, DiskError>;

    /// Notes which partitions are left of a walk; none: it is done.
    fn note_audited(
        &self,
        disk: &Disk,
        policy: PolicyIndex,
        walk: &str,
        left: &[u32],
    ) -> Result<(), DiskError>;

    /// Opens an object as `options` say. One that is broken has been moved to quarantine. A
    /// tombstone that is old enough is removed, or noted to be.
    fn audit(
        &self,
        disk: &Disk,
        object: ObjectId,
        options: &OpenOptions,
    ) -> Result<Audited, DiskError>;

    /// The suffix hashes that are kept of a partition, without those noted as out of date. None of an
    /// engine that keeps no hashes.
    fn settled_hashes(
        &self,
        disk: &Disk,
        at: PartitionKey,
    ) -> Result<BTreeMap<String, SuffixHash>, DiskError>;

    /// Holds a kept hash against its suffix, and notes that it is out of date where it is. True: it
    /// was noted.
    fn check_suffix(
        &self,
        disk: &Disk,
        at: PartitionKey,
        suffix: &str,
        settled: &SuffixHash,
    ) -> Result<bool, DiskError>;
}
