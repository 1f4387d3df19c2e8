//! Handover: removal of objects after other nodes, where they belong, have received them.
//!
//! An object written after its content was sent must not be removed: the state at the time of
//! removal is compared with that when sending began.

use std::any::Any;
use std::collections::{BTreeMap, HashSet};

use cairn_types::{ObjectHash, Timestamp};

use super::key::{ObjectId, PartitionKey};
use crate::device_pool::Disk;
use crate::error::DiskError;

/// Opaque state of an object at one moment, compared by value: any change of the object changes it.
/// Its content is private to the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectState(Box<[u8]>);

impl ObjectState {
    pub fn new(state: impl Into<Box<[u8]>>) -> Self {
        ObjectState(state.into())
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The objects of a partition at one moment, by suffix and hash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents(BTreeMap<(String, ObjectHash), ObjectState>);

impl Contents {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Suffixes with objects, in order.
    pub fn suffixes(&self) -> Vec<String> {
        let mut suffixes: Vec<String> = self.0.keys().map(|(suffix, _)| suffix.clone()).collect();
        suffixes.dedup();
        suffixes
    }

    /// Objects in the order of their suffixes: all, or those of `only`, except those of `keep`.
    pub fn chosen<'a>(
        &'a self,
        only: Option<&'a HashSet<ObjectHash>>,
        keep: &'a HashSet<ObjectHash>,
    ) -> impl Iterator<Item = (&'a str, ObjectHash, &'a ObjectState)> {
        let is_chosen = move |hash: &ObjectHash| {
            only.is_none_or(|only| only.contains(hash)) && !keep.contains(hash)
        };
        self.0
            .iter()
            .filter(move |((_, hash), _)| is_chosen(hash))
            .map(|((suffix, hash), state)| (suffix.as_str(), *hash, state))
    }
}

impl FromIterator<(ObjectHash, ObjectState)> for Contents {
    fn from_iter<I: IntoIterator<Item = (ObjectHash, ObjectState)>>(objects: I) -> Self {
        let objects = objects.into_iter();
        let objects = objects.map(|(hash, state)| ((hash.suffix(), hash), state));
        Contents(objects.collect())
    }
}

/// Part of an object that was sent to its primary, and may be removed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reverted {
    pub hash: ObjectHash,
    /// Timestamp of the fragment or the tombstone.
    pub data: Timestamp,
    /// Timestamp of the metadata sent with it.
    pub meta: Timestamp,
    pub is_durable: bool,
}

/// Fragments, or tombstones, of a partition that have been handed over.
#[derive(Clone, Debug)]
pub struct Purge {
    pub reverted: Vec<Reverted>,
    /// Index of the fragments; `None` for tombstones alone.
    pub index: Option<u32>,
    /// Whether none of the partition's fragments belongs here, so that metadata is removed with the
    /// last one.
    pub is_handoff: bool,
}

/// Lock on a partition or a device, released on drop.
#[derive(Debug)]
pub struct ReplicationLock {
    _held: Box<dyn Any + Send>,
}

impl ReplicationLock {
    /// Wraps a guard that releases the lock on drop.
    pub fn new(held: impl Any + Send) -> Self {
        ReplicationLock {
            _held: Box::new(held),
        }
    }
}

/// Removal of partitions and objects from a device.
///
/// Errors are a device's: `Device` where it takes no work now, `Io`, `NoSpace` or `ReadOnly` where
/// its file system refuses. The errors named at a call come beside them.
/// A partition that another process keeps locked is `Io`.
pub trait Handover {
    /// Locks a partition against concurrent replication by another server or a handover. `None` if
    /// it is locked.
    ///
    /// # Errors
    /// As every call of this trait, but none for a partition that is locked.
    fn try_lock_partition(
        &self,
        disk: &Disk,
        at: PartitionKey,
    ) -> Result<Option<ReplicationLock>, DiskError>;

    /// The current objects of a partition.
    ///
    /// # Errors
    /// As every call of this trait.
    fn contents(&self, disk: &Disk, at: PartitionKey) -> Result<Contents, DiskError>;

    /// Removes unchanged objects of a partition: all, or those of `only`, except those of `keep`.
    /// Returns the number removed.
    ///
    /// # Errors
    /// As every call of this trait; some objects may have been removed.
    fn remove(
        &self,
        disk: &Disk,
        at: PartitionKey,
        contents: &Contents,
        only: Option<&HashSet<ObjectHash>>,
        keep: &HashSet<ObjectHash>,
    ) -> Result<usize, DiskError>;

    /// Removes a partition without objects; false if it has some.
    ///
    /// # Errors
    /// As every call of this trait.
    fn remove_partition(&self, disk: &Disk, at: PartitionKey) -> Result<bool, DiskError>;

    /// Removes fragments, or tombstones, that have been handed over. A non-durable fragment stays
    /// while it may be committed.
    ///
    /// # Errors
    /// As every call of this trait; some of it may have been removed.
    fn purge(&self, disk: &Disk, at: PartitionKey, purge: &Purge) -> Result<(), DiskError>;

    /// State of one object, for [`Handover::remove_unchanged`] and
    /// [`Handover::quarantine_unchanged`].
    ///
    /// # Errors
    /// As every call of this trait.
    fn state(&self, disk: &Disk, object: ObjectId) -> Result<ObjectState, DiskError>;

    /// Removes an object; false if its state has changed.
    ///
    /// # Errors
    /// As every call of this trait; the object may be gone, or a part of it.
    fn remove_unchanged(
        &self,
        disk: &Disk,
        object: ObjectId,
        state: &ObjectState,
    ) -> Result<bool, DiskError>;

    /// Removes what the engine itself writes of an object in this policy; false if its state has
    /// changed, or something else stays.
    ///
    /// # Errors
    /// As [`Handover::remove_unchanged`].
    fn remove_own(
        &self,
        disk: &Disk,
        object: ObjectId,
        state: &ObjectState,
    ) -> Result<bool, DiskError> {
        self.remove_unchanged(disk, object, state)
    }

    /// Quarantines an object; false if its state has changed.
    ///
    /// # Errors
    /// As every call of this trait; the object may be in quarantine all the same.
    fn quarantine_unchanged(
        &self,
        disk: &Disk,
        object: ObjectId,
        state: &ObjectState,
        reason: &str,
    ) -> Result<bool, DiskError>;
}
