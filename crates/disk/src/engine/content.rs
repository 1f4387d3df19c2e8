//! Content of an open object: bytes in memory, or a location to read from.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;

use super::key::Suspect;
use crate::hot::FileIdentity;

/// Content of an open object.
#[derive(Clone, Debug)]
pub enum Content {
    /// Not requested: metadata only.
    None,
    /// All bytes, verified if [`super::OpenObject::is_checked`].
    Inline(Bytes),
    /// To be read by [`crate::ObjectReader`].
    Stored(StoredContent),
}

/// Policy for content in the page cache after a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageCache {
    Stays,
    /// Dropped by the first reader, kept by later ones.
    StaysIfReadAgain,
    Leaves,
}

/// Checksum by which content that is read whole is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// The ETag.
    Md5,
    /// The CRC-32 of content that was verified by its ETag earlier (`hot/verified.rs`).
    Crc32(u32),
    Nothing,
}

/// Location of stored content.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    File {
        file: Arc<OwnedFd>,
        /// Offset of the content in the file, in bytes.
        offset: u64,
    },
    Memory(Bytes),
}

/// Content stored by an engine: a file, a range of a file shared with other objects, or memory. It
/// does not change, even if the object is replaced or removed.
#[derive(Clone, Debug)]
pub struct StoredContent {
    pub(crate) source: Source,
    pub(crate) size: u64,
    /// Identifies the content for a quarantine.
    pub(crate) suspect: Suspect,
    /// Identity of a file that holds one object: key of the caches of reads and checks.
    pub(crate) identity: Option<FileIdentity>,
    pub(crate) check: Check,
    pub(crate) page_cache: PageCache,
    /// Whether content that fails verification is still delivered to its end.
    pub(crate) gives_unsound: bool,
}

impl StoredContent {
    /// A range of a file shared with other objects. With `is_checked`, whole reads are verified by
    /// the ETag.
    pub fn in_file(
        file: Arc<OwnedFd>,
        offset: u64,
        size: u64,
        suspect: Suspect,
        is_checked: bool,
    ) -> Self {
        Self::shared(Source::File { file, offset }, size, suspect, is_checked)
    }

    /// Content in memory. `is_checked` is as in [`StoredContent::in_file`].
    pub fn in_memory(bytes: Bytes, suspect: Suspect, is_checked: bool) -> Self {
        let size = bytes.len() as u64;
        Self::shared(Source::Memory(bytes), size, suspect, is_checked)
    }

    fn shared(source: Source, size: u64, suspect: Suspect, is_checked: bool) -> Self {
        StoredContent {
            source,
            size,
            suspect,
            identity: None,
            check: match is_checked {
                true => Check::Md5,
                false => Check::Nothing,
            },
            page_cache: PageCache::Stays,
            gives_unsound: false,
        }
    }

    /// For readers that verify the content themselves: content that does not match its ETag is
    /// delivered to its end once, and quarantined.
    pub fn given_unsound(mut self) -> Self {
        self.gives_unsound = true;
        self
    }
}
