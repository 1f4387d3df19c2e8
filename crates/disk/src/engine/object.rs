//! Objects of an engine as requests see them.

use std::any::Any;
use std::sync::Arc;

use bytes::Bytes;
use cairn_types::{ObjectHash, PolicyIndex, Timestamp};

use super::content::Content;
use super::info::ObjectInfo;
use crate::device_pool::Disk;
use crate::error::DiskError;
use crate::layout::FragmentChoice;
use crate::metadata::Metadata;
use crate::steps::Step;

/// A partition of a storage policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartitionKey {
    pub policy: PolicyIndex,
    pub partition: u32,
}

impl PartitionKey {
    pub fn new(policy: PolicyIndex, partition: u32) -> Self {
        PartitionKey { policy, partition }
    }

    pub fn object(self, hash: ObjectHash) -> ObjectId {
        ObjectId { at: self, hash }
    }
}

/// An object by the hash of its name, as inventories list it: its name is with its metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    pub at: PartitionKey,
    pub hash: ObjectHash,
}

/// An object by its name, and where it belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectKey {
    pub policy: PolicyIndex,
    pub partition: u32,
    pub hash: ObjectHash,
    /// `/account/container/object`.
    pub name: Arc<str>,
}

impl ObjectKey {
    pub fn id(&self) -> ObjectId {
        PartitionKey::new(self.policy, self.partition).object(self.hash)
    }
}

/// How to open an object.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The moment against which `X-Delete-At` is held.
    pub now: Timestamp,
    /// Open it even when it has expired.
    pub open_expired: bool,
    /// Objects up to this size are read along, and checked.
    pub inline_limit: u64,
    /// Of an erasure-coded policy.
    pub fragment: FragmentChoice,
}

impl OpenOptions {
    /// Metadata only.
    pub fn metadata(now: Timestamp) -> Self {
        OpenOptions {
            now,
            open_expired: false,
            inline_limit: 0,
            fragment: FragmentChoice::default(),
        }
    }
}

/// From when on a fragment of an erasure-coded object counts. Objects of other policies always do
/// once they are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Once it is on disk.
    AtOnce,
    /// When [`ObjectEngine::make_durable`] says.
    Later,
}

/// An object opened for reading: what is read through it stays what it was, whatever happens
/// to its name.
#[derive(Debug)]
pub struct OpenObject {
    pub info: ObjectInfo,
    pub content: Content,
    /// Content that is read whole is held against its ETag; not where `etag_validate_pct` spares it.
    pub is_checked: bool,
    /// For [`ObjectEngine::delete`] in the same piece of work, where only metadata was asked for.
    pub seen: Option<Seen>,
}

/// What an engine knows of an object that it has just opened, for its own use in the same piece of
/// work.
#[derive(Debug)]
pub struct Seen(Box<dyn Any + Send>);

impl Seen {
    pub fn new(seen: impl Any + Send) -> Self {
        Seen(Box::new(seen))
    }

    /// `None`: another engine's.
    pub fn into<T: Any>(self) -> Option<T> {
        self.0.downcast().ok().map(|seen| *seen)
    }
}

/// Content that was found broken, by what it is known again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspect {
    /// The engine's own location of it, which nothing else has while it is open: device and inode of
    /// a file, volume and offset of a record.
    At { place: u64, number: u64 },
    /// The content, or the fragment of this index, of one time.
    Data {
        timestamp: Timestamp,
        fragment: Option<u32>,
    },
}

/// An upload under way. Dropped without a commit, it is gone.
pub trait ObjectWriter: Send {
    /// Appends.
    fn write(&mut self, chunks: &[Bytes]) -> Result<(), DiskError>;

    fn written(&self) -> u64;

    /// The MD5 of what was written, where the writer was asked to hash.
    fn md5(&mut self) -> Option<[u8; 16]>;

    /// Makes the object durable and visible, and removes what it replaces. `metadata` needs
    /// `X-Timestamp`, `Content-Length`, `ETag`, and in an erasure-coded policy
    /// `X-Object-Sysmeta-Ec-Frag-Index`; the name is added.
    fn commit(
        self: Box<Self>,
        metadata: Metadata,
        durability: Durability,
    ) -> Result<Step<()>, DiskError>;
}

/// What requests ask of an engine. A write is acknowledged when its [`Step`] has ended: it is durable
/// then.
pub trait ObjectEngine: Send + Sync {
    fn open(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        options: &OpenOptions,
    ) -> Result<OpenObject, DiskError>;

    /// As `open`, but of what lies in memory only, in no time: `None` where that is not the case,
    /// or where there is more to do than to read.
    fn open_cached(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        options: &OpenOptions,
    ) -> Option<Result<OpenObject, DiskError>>;

    /// Begins an upload of `size` bytes, where that is known. `hash`: compute the MD5 on the way.
    fn create(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        size: Option<u64>,
        hash: bool,
    ) -> Result<Box<dyn ObjectWriter>, DiskError>;

    /// A whole upload at once.
    fn put_small(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        body: Bytes,
        metadata: Metadata,
        durability: Durability,
    ) -> Result<Step<()>, DiskError>;

    /// Makes a fragment count that is on disk. Nothing to do in other policies than erasure-coded
    /// ones.
    fn make_durable(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        timestamp: Timestamp,
        fragment: u32,
    ) -> Result<Step<()>, DiskError>;

    /// A POST's metadata, beside the content. Needs `X-Timestamp`; a `Content-Type` needs its
    /// `Content-Type-Timestamp`.
    fn write_metadata(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        metadata: Metadata,
    ) -> Result<Step<()>, DiskError>;

    /// Leaves a tombstone in the object's place. `seen`: of one that is older.
    fn delete(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        timestamp: Timestamp,
        seen: Option<Seen>,
    ) -> Result<Step<()>, DiskError>;

    /// Moves a broken object out of the way, for replication to bring a good one. False: it is not
    /// there any more.
    fn quarantine(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        suspect: &Suspect,
        reason: &str,
    ) -> Result<bool, DiskError>;
}
