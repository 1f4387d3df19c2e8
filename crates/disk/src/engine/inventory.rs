//! The objects of a device, in the terms by which replicas compare themselves: partitions, suffixes,
//! hashes of suffixes (REPLICATE), offers and wants (SSYNC, `cairn_formats::ssync`).

use std::sync::Arc;

use cairn_formats::ssync::{Held, Offer};
use cairn_types::{ObjectHash, PolicyIndex, Timestamp};

use super::key::{ObjectId, ObjectKey, PartitionKey};
use super::object::OpenObject;
use super::suffix_hash::Hashed;
use crate::device_pool::Disk;
use crate::error::DiskError;
use crate::layout::FragmentChoice;

/// An object as it is sent to another replica.
pub enum Sendable {
    Object(ObjectKey, Box<OpenObject>),
    /// `/account/container/object`, and when it was deleted.
    Tombstone(Arc<str>, Timestamp),
    /// Gone meanwhile, or found broken and moved away.
    Nothing,
}

/// Objects of a device as replicators see them.
pub trait Inventory {
    /// The partitions of a policy, in order. A policy's first use of a device may make room for it.
    fn partitions(&self, disk: &Disk, policy: PolicyIndex) -> Result<Vec<u32>, DiskError>;

    /// The objects of a partition with anything left of them, tombstones too, in the order of their
    /// suffixes.
    fn objects(&self, disk: &Disk, at: PartitionKey) -> Result<Vec<ObjectHash>, DiskError>;

    /// The suffix hashes of a partition, in Swift's format: equal for equal objects, whatever the
    /// engine. Those of `recalculate` are not taken from a cache. `look`: suffixes are looked for
    /// of which no note says that there is something in them. May remove what is obsolete.
    fn suffix_hashes(
        &self,
        disk: &Disk,
        at: PartitionKey,
        recalculate: &[String],
        look: bool,
    ) -> Result<Hashed, DiskError>;

    /// Notes durably that suffixes have changed, so that the next [`Inventory::suffix_hashes`]
    /// makes their hashes anew.
    fn invalidate(
        &self,
        disk: &Disk,
        at: PartitionKey,
        suffixes: &[String],
    ) -> Result<(), DiskError>;

    /// Offers of a suffix to another replica; in an erasure-coded policy, of which fragments.
    /// May remove what is obsolete.
    fn offers(
        &self,
        disk: &Disk,
        at: PartitionKey,
        suffix: &str,
        fragment: &FragmentChoice,
    ) -> Result<Vec<Offer>, DiskError>;

    /// The state here of an object that another replica offers; `None`: nothing that counts. The
    /// object is opened, so that a broken one is found, and asked for. `fragment`: in an
    /// erasure-coded policy, which one this server is to have; one that is here and not durable,
    /// but is where it comes from, becomes durable.
    fn held(
        &self,
        disk: &Disk,
        at: PartitionKey,
        offer: &Offer,
        fragment: Option<u32>,
    ) -> Result<Option<Held>, DiskError>;

    /// Opens what is to be sent. `inline_limit`: objects up to this size are read along, and
    /// checked.
    fn open_to_send(
        &self,
        disk: &Disk,
        object: ObjectId,
        inline_limit: u64,
        fragment: FragmentChoice,
    ) -> Result<Sendable, DiskError>;
}
