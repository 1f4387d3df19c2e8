//! Objects of an engine as requests see them.

use std::any::Any;

use bytes::Bytes;
use cairn_types::Timestamp;

use super::content::Content;
use super::info::{ObjectInfo, OpenOptions};
use super::key::{ObjectKey, Suspect};
use crate::device_pool::Disk;
use crate::error::DiskError;
use crate::metadata::Metadata;
use crate::steps::Step;

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

/// An engine's note of an object that it has just opened, for its own use in the same piece of
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

/// Objects as requests read and write them. A write is acknowledged when its [`Step`] has ended: it is durable
/// then.
pub trait ObjectEngine: Send + Sync {
    fn open(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        options: &OpenOptions,
    ) -> Result<OpenObject, DiskError>;

    /// Like `open`, but of what lies in memory only, without waiting: `None` where that is not the case,
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
