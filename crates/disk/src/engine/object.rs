//! The request's part of the seam: reading and writing objects.

use std::any::Any;
use std::sync::Arc;

use bytes::Bytes;
use cairn_device::Debt;
use cairn_types::Timestamp;

use super::Engine;
use super::content::Content;
use super::key::{ObjectKey, Suspect};
use crate::device_pool::Disk;
use crate::device_pool::steps::Step;
use crate::error::DiskError;
use crate::metadata::Metadata;
use crate::object_info::{ObjectInfo, OpenOptions};

/// Time from which a fragment of an erasure-coded object is valid. Objects of other policies are
/// valid once they are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Once it is on disk.
    AtOnce,
    /// After [`ObjectEngine::make_durable`].
    Later,
}

/// An object opened for reading, as a snapshot: later writes do not affect it.
#[derive(Debug)]
pub struct OpenObject {
    pub info: ObjectInfo,
    pub content: Content,
    /// Whether whole reads are verified by the ETag; `etag_validate_pct` exempts some.
    pub is_checked: bool,
    /// Note for [`ObjectEngine::delete`] in the same job, after an open for metadata only.
    pub seen: Option<Seen>,
}

/// An engine's opaque note about an object it has just opened, for reuse in the same job.
#[derive(Debug)]
pub struct Seen(Box<dyn Any + Send>);

impl Seen {
    pub fn new(seen: impl Any + Send) -> Self {
        Seen(Box::new(seen))
    }

    /// The note; `None` if another engine made it.
    pub fn into<T: Any>(self) -> Option<T> {
        self.0.downcast().ok().map(|seen| *seen)
    }
}

/// An object as an engine knows it without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    Absent,
    Deleted(Timestamp),
    /// There is content of this time, which never expires.
    Lasting(Timestamp),
}

/// An engine that holds what a write needs, and is to be dropped at once.
pub struct AtHand {
    pub engine: Arc<dyn Engine>,
    pub known: Known,
}

/// An upload in progress; dropped without a commit, it is discarded.
///
/// Errors are a device's: `Device` where it takes no work now, `Io`, `NoSpace` or `ReadOnly` where
/// its file system refuses. The errors named at a call come beside them.
pub trait ObjectWriter: Send {
    /// Appends.
    ///
    /// # Errors
    /// `NoSpace` where the device is full, or its reserve has been spent.
    fn write(&mut self, chunks: &[Bytes]) -> Result<(), DiskError>;

    fn written(&self) -> u64;

    /// MD5 of the written bytes, if the writer hashes.
    fn md5(&mut self) -> Option<[u8; 16]>;

    /// Makes the object durable and visible, and removes what it replaces. `metadata` requires
    /// `X-Timestamp`, `Content-Length`, `ETag`, and in an erasure-coded policy
    /// `X-Object-Sysmeta-Ec-Frag-Index`; the name is added.
    ///
    /// # Errors
    /// As [`ObjectWriter::write`], here or in the [`Step`]; `BadFragment` for a wrong index,
    /// `XattrNotSupported`, `Io` for missing metadata. A failure leaves the object as it was, or
    /// the new one without the promise that it is durable.
    fn commit(
        self: Box<Self>,
        metadata: Metadata,
        durability: Durability,
    ) -> Result<Step<()>, DiskError>;
}

/// Requests on objects. A write is durable, and may be acknowledged, when its [`Step`] has ended.
///
/// Errors are a device's: `Device` where it takes no work now, `Io`, `NoSpace` or `ReadOnly` where
/// its file system refuses. The errors named at a call come beside them.
pub trait ObjectEngine: Send + Sync {
    /// Opens an object, or its metadata alone.
    ///
    /// # Errors
    /// `NotExist`, `Deleted` or `Expired` without an object to read; `Quarantined` for a broken
    /// one, `Unreadable` for a disk's first error, `Collision` for another name, `StateChanged` to
    /// try again, `XattrNotSupported`.
    fn open(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        options: &OpenOptions,
    ) -> Result<OpenObject, DiskError>;

    /// Like `open`, but from memory only and without blocking; `None` if that is impossible, or if
    /// more than a read is needed.
    ///
    /// # Errors
    /// As [`ObjectEngine::open`]; an engine on a disk gives `None` for all but `NotExist` and
    /// `Deleted`.
    fn open_cached(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        options: &OpenOptions,
    ) -> Option<Result<OpenObject, DiskError>>;

    /// Whether `open_cached` never waits for a disk, since an index in memory says which objects there are:
    /// then it may be called for any object, not only for one that was used lately.
    fn has_index(&self) -> bool {
        false
    }

    /// Begins an upload of `size` bytes, if known. With `hash`, computes the MD5.
    ///
    /// # Errors
    /// `NoSpace` where `size` does not fit; an engine may notice at the commit only.
    fn create(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        size: Option<u64>,
        hash: bool,
    ) -> Result<Box<dyn ObjectWriter>, DiskError>;

    /// Whether writes are handed to a thread of the engine's own, so that asking
    /// [`ObjectEngine::at_hand`] may pay.
    fn hands_writes_over(&self) -> bool {
        false
    }

    /// This engine for a write that waits for nothing before it is handed to a thread of the engine's own, and
    /// the object as it is known: with what this gives, `put_small` of so many bytes, or `delete`, may be done
    /// on a thread that must not block. `None`: the write may have to wait, or the object is not known.
    fn at_hand(&self, _disk: &Disk, _key: &ObjectKey, _bytes: usize) -> Option<AtHand> {
        None
    }

    /// Bytes of the longest upload that costs least as a whole, by `put_small`, where it is in memory already. A
    /// longer one goes to the disk while more of it arrives.
    fn whole_max_bytes(&self) -> u64 {
        0
    }

    /// Performs a whole upload.
    ///
    /// # Errors
    /// As [`ObjectEngine::create`] and [`ObjectWriter::commit`].
    fn put_small(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        body: Bytes,
        metadata: Metadata,
        durability: Durability,
    ) -> Result<Step<()>, DiskError>;

    /// As [`ObjectEngine::put_small`]. An engine with a log keeps the object's row in its container, too,
    /// until the debt that it gives is settled: a row that is only in memory is made again from the log.
    ///
    /// # Errors
    /// As [`ObjectEngine::put_small`].
    fn put_small_owing(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        body: Bytes,
        metadata: Metadata,
    ) -> Result<Step<Option<Debt>>, DiskError> {
        let put = self.put_small(disk, key, body, metadata, Durability::AtOnce)?;
        Ok(put.map(|()| None))
    }

    /// Makes a stored fragment durable. A no-op in policies without erasure coding.
    ///
    /// # Errors
    /// Without such a fragment `NotExist`, here or in the [`Step`]; none where it is durable, or a
    /// version that replaces it is.
    fn make_durable(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        timestamp: Timestamp,
        fragment: u32,
    ) -> Result<Step<()>, DiskError>;

    /// Writes a POST's metadata beside the content. Requires `X-Timestamp`; a `Content-Type`
    /// requires its `Content-Type-Timestamp`.
    ///
    /// # Errors
    /// As [`ObjectWriter::commit`], without `BadFragment`.
    fn write_metadata(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        metadata: Metadata,
    ) -> Result<Step<()>, DiskError>;

    /// Replaces the object by a tombstone. `seen` is the note of an older version.
    ///
    /// # Errors
    /// As [`ObjectEngine::write_metadata`].
    fn delete(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        timestamp: Timestamp,
        seen: Option<Seen>,
    ) -> Result<Step<()>, DiskError>;

    /// As [`ObjectEngine::delete`], with the row's debt as that of [`ObjectEngine::put_small_owing`].
    ///
    /// # Errors
    /// As [`ObjectEngine::delete`].
    fn delete_owing(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        timestamp: Timestamp,
        seen: Option<Seen>,
    ) -> Result<Step<Option<Debt>>, DiskError> {
        Ok(self.delete(disk, key, timestamp, seen)?.map(|()| None))
    }

    /// Quarantines a broken object, so that replication restores it. False if it is gone.
    ///
    /// # Errors
    /// As every call of this trait.
    fn quarantine(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        suspect: &Suspect,
        reason: &str,
    ) -> Result<bool, DiskError>;
}
