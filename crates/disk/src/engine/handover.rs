//! Removal of objects that other nodes have got, because they belong there.
//!
//! An object written after its content was sent must not go with it: what is removed is compared
//! with what was there when sending began.

use std::any::Any;
use std::collections::{BTreeMap, HashSet};

use cairn_types::{ObjectHash, Timestamp};

use super::key::{ObjectId, PartitionKey};
use crate::device_pool::Disk;
use crate::error::DiskError;

/// All that an engine has of an object at one moment, as a value to be compared: after any change of
/// the object it is another. What is in it is the engine's own.
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

    /// How many objects.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The suffixes with something in them, in order.
    pub fn suffixes(&self) -> Vec<String> {
        let mut suffixes: Vec<String> = self.0.keys().map(|(suffix, _)| suffix.clone()).collect();
        suffixes.dedup();
        suffixes
    }

    /// The objects in the order of their suffixes: all, or those of `only`, without those of `keep`.
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

/// Part of an object that was sent to where it belongs, and may go from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reverted {
    pub hash: ObjectHash,
    /// Timestamp of the fragment or the tombstone.
    pub data: Timestamp,
    /// Timestamp of the metadata that went with it.
    pub meta: Timestamp,
    pub is_durable: bool,
}

/// Fragments, or tombstones, of a partition that have been handed over.
#[derive(Clone, Debug)]
pub struct Purge {
    pub reverted: Vec<Reverted>,
    /// Index of the fragments; `None`: tombstones alone.
    pub index: Option<u32>,
    /// None of the partition's fragments belongs here, so that metadata goes with the last one.
    pub is_handoff: bool,
}

/// A lock on a partition or a device, held until dropped.
#[derive(Debug)]
pub struct ReplicationLock {
    _held: Box<dyn Any + Send>,
}

impl ReplicationLock {
    /// `held`: what lets go when it is dropped.
    pub fn new(held: impl Any + Send) -> Self {
        ReplicationLock {
            _held: Box::new(held),
        }
    }
}

/// Partitions and objects that leave a device.
pub trait Handover {
    /// The lock of a partition that is being brought up to date by another server, or handed over
    /// to others. `None`: somebody has it.
    fn try_lock_partition(
        &self,
        disk: &Disk,
        at: PartitionKey,
    ) -> Result<Option<ReplicationLock>, DiskError>;

    /// The objects of a partition as they are now.
    fn contents(&self, disk: &Disk, at: PartitionKey) -> Result<Contents, DiskError>;

    /// Removes these objects of a partition where they are still as they were: all, or those of
    /// `only`, without those of `keep`. Returns how many it removed.
    fn remove(
        &self,
        disk: &Disk,
        at: PartitionKey,
        contents: &Contents,
        only: Option<&HashSet<ObjectHash>>,
        keep: &HashSet<ObjectHash>,
    ) -> Result<usize, DiskError>;

    /// Removes a partition in which no object is left; false where there is one.
    fn remove_partition(&self, disk: &Disk, at: PartitionKey) -> Result<bool, DiskError>;

    /// Removes fragments, or tombstones, that have been handed over. A fragment that is not durable
    /// stays while it may become so.
    fn purge(&self, disk: &Disk, at: PartitionKey, purge: &Purge) -> Result<(), DiskError>;

    /// The state of one object, for [`Handover::remove_unchanged`] and
    /// [`Handover::quarantine_unchanged`].
    fn state(&self, disk: &Disk, object: ObjectId) -> Result<ObjectState, DiskError>;

    /// Removes an object; false where it has changed since it had this state.
    fn remove_unchanged(
        &self,
        disk: &Disk,
        object: ObjectId,
        state: &ObjectState,
    ) -> Result<bool, DiskError>;

    /// Moves an object to quarantine; false where it has changed since it had this state.
    fn quarantine_unchanged(
        &self,
        disk: &Disk,
        object: ObjectId,
        state: &ObjectState,
        reason: &str,
    ) -> Result<bool, DiskError>;
}
