//! Inventory of a device's objects for replication: partitions, suffixes, suffix hashes
//! (REPLICATE), offers and wants (SSYNC, `cairn_formats::ssync`).

use std::sync::Arc;

use cairn_formats::ssync::{Held, Offer};
use cairn_types::{ObjectHash, PolicyIndex, Timestamp};

use super::key::{ObjectId, ObjectKey, PartitionKey};
use super::object::OpenObject;
use super::suffix_hash::Hashed;
use crate::device_pool::Disk;
use crate::error::DiskError;
use crate::layout::FragmentChoice;

/// An object prepared for sending to another replica.
pub enum Sendable {
    Object(ObjectKey, Box<OpenObject>),
    /// `/account/container/object`, and the time of the deletion.
    Tombstone(Arc<str>, Timestamp),
    /// Gone meanwhile, or found broken and quarantined.
    Nothing,
}

/// The replicator's view of a device's objects.
///
/// Errors are a device's: `Device` where it takes no work now, `Io`, `NoSpace` or `ReadOnly` where
/// its file system refuses. The errors named at a call come beside them.
/// A partition that another process keeps locked is `Io`.
pub trait Inventory {
    /// Partitions of a policy, in order. May create the policy's directories.
    ///
    /// # Errors
    /// As every call of this trait.
    fn partitions(&self, disk: &Disk, policy: PolicyIndex) -> Result<Vec<u32>, DiskError>;

    /// Objects of a partition, including tombstones, in the order of their suffixes.
    ///
    /// # Errors
    /// As every call of this trait.
    fn objects(&self, disk: &Disk, at: PartitionKey) -> Result<Vec<ObjectHash>, DiskError>;

    /// Suffix hashes of a partition in Swift's format: equal for equal objects, whatever the
    /// engine. Those of `recalculate` bypass the cache. With `look`, suffixes missing from the
    /// cache are searched for. May remove obsolete files.
    ///
    /// # Errors
    /// As every call of this trait, and `NotExist` for a partition that is removed meanwhile. A
    /// suffix that cannot be hashed is no error, and left out.
    fn suffix_hashes(
        &self,
        disk: &Disk,
        at: PartitionKey,
        recalculate: &[String],
        look: bool,
    ) -> Result<Hashed, DiskError>;

    /// Invalidates suffixes durably, so that the next [`Inventory::suffix_hashes`] rehashes them.
    ///
    /// # Errors
    /// As every call of this trait; then the next hashes may be old ones.
    fn invalidate(
        &self,
        disk: &Disk,
        at: PartitionKey,
        suffixes: &[String],
    ) -> Result<(), DiskError>;

    /// Offers of a suffix for another replica; in an erasure-coded policy, for the fragment. May
    /// remove obsolete files.
    ///
    /// # Errors
    /// As every call of this trait.
    fn offers(
        &self,
        disk: &Disk,
        at: PartitionKey,
        suffix: &str,
        fragment: &FragmentChoice,
    ) -> Result<Vec<Offer>, DiskError>;

    /// Local state of an object offered by another replica; `None` if it has no valid version.
    /// Opens the object, so that a broken one is detected and requested. `fragment` is this
    /// server's index in an erasure-coded policy: a local non-durable fragment that is durable at
    /// the sender becomes durable.
    ///
    /// # Errors
    /// `Unreadable` for a disk's first error. A broken object is none: it is quarantined, and not
    /// held.
    fn held(
        &self,
        disk: &Disk,
        at: PartitionKey,
        offer: &Offer,
        fragment: Option<u32>,
    ) -> Result<Option<Held>, DiskError>;

    /// Opens an object for sending. Objects of up to `inline_limit` bytes are read and verified.
    ///
    /// # Errors
    /// `Unreadable` for a disk's first error, `StateChanged` to try again. After `Device` no other
    /// object of the device can be sent.
    fn open_to_send(
        &self,
        disk: &Disk,
        object: ObjectId,
        inline_limit: u64,
        fragment: FragmentChoice,
    ) -> Result<Sendable, DiskError>;
}
