//! The content of an open object: bytes at hand, or a place to read them from.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;

use super::key::Suspect;
use crate::recent::FileIdentity;

/// The bytes of an open object.
#[derive(Clone, Debug)]
pub enum Content {
    /// Not asked for: metadata only.
    None,
    /// All of them, checked where [`super::OpenObject::is_checked`].
    Inline(Bytes),
    /// To be read by [`crate::ObjectReader`].
    Stored(StoredContent),
}

/// Whether content is left in the kernel's page cache by those who read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageCache {
    Stays,
    /// Not by the first who reads it.
    StaysIfReadAgain,
    Leaves,
}

/// Checksum that content which is read whole is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// The ETag.
    Md5,
    /// The CRC-32 of content that was held against the ETag a while ago (`verified.rs`).
    Like(u32),
    Nothing,
}

/// The place that content is read from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    File {
        file: Arc<OwnedFd>,
        /// Offset in the file at which it begins.
        offset: u64,
    },
    Memory(Bytes),
}

/// Content that an engine holds: a file, a range of a file that other objects share, or memory. It
/// stays what it was, whatever happens to the object's name.
#[derive(Clone, Debug)]
pub struct StoredContent {
    pub(crate) source: Source,
    pub(crate) size: u64,
    /// Names the content for quarantine, should it turn out to be broken.
    pub(crate) suspect: Suspect,
    /// Identity of a file that is one object's: reads and checks are remembered by it.
    pub(crate) identity: Option<FileIdentity>,
    pub(crate) check: Check,
    pub(crate) page_cache: PageCache,
    /// Content that fails its check is given to its end all the same.
    pub(crate) gives_unsound: bool,
}

impl StoredContent {
    /// A range of a file that other objects share. `is_checked`: read whole, it is held against its
    /// ETag.
    pub fn in_file(
        file: Arc<OwnedFd>,
        offset: u64,
        size: u64,
        suspect: Suspect,
        is_checked: bool,
    ) -> Self {
        Self::shared(Source::File { file, offset }, size, suspect, is_checked)
    }

    /// Content in memory. `is_checked`: as of [`StoredContent::in_file`].
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

    /// For readers that check the content themselves: what does not match its ETag is read to its
    /// end once, and quarantined.
    pub fn given_unsound(mut self) -> Self {
        self.gives_unsound = true;
        self
    }
}
