//! The files that volumes and checkpoints are in: a seam, so that the simulator can cut the power
//! between any two calls, tear writes, lose them and put them elsewhere.

use std::io;
use std::sync::Arc;

mod files;
pub use files::{Folder, Mark, Wanted};

/// One folder of one file system. Errors are the file system's: `NotFound` for a name that is not
/// there, `StorageFull`, and `EIO` and the like for a device that fails.
pub trait Medium: Send + Sync {
    /// The names in it.
    ///
    /// # Errors
    /// As every call of a medium.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Opens a file that is there.
    ///
    /// # Errors
    /// `NotFound` where it is not.
    fn open(&self, name: &str) -> io::Result<Arc<dyn MediumFile>>;

    /// Makes a file of `size` bytes whose blocks are reserved, or empties one that is there. Its
    /// name is durable after [`Medium::sync_dir`].
    ///
    /// # Errors
    /// `StorageFull` where there is no room for the blocks.
    fn create(&self, name: &str, size: u64) -> io::Result<Arc<dyn MediumFile>>;

    /// Makes an empty file of a name that nothing has: `AlreadyExists` where something has it.
    ///
    /// # Errors
    /// `AlreadyExists`, or as every call of a medium.
    fn create_new(&self, name: &str) -> io::Result<Arc<dyn MediumFile>>;

    /// Durable after [`Medium::sync_dir`].
    ///
    /// # Errors
    /// `NotFound` where it is not there.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Gives a file a name that nothing has. Durable after [`Medium::sync_dir`].
    ///
    /// # Errors
    /// `AlreadyExists` where something has the name.
    fn rename(&self, name: &str, to: &str) -> io::Result<()>;

    /// Gives a file a second name, which it may have already. Durable after [`Medium::sync_dir`].
    ///
    /// # Errors
    /// As every call of a medium.
    fn link(&self, name: &str, to: &str) -> io::Result<()>;

    /// Makes names durable.
    ///
    /// # Errors
    /// The sync failed: what it was to keep may be lost.
    fn sync_dir(&self) -> io::Result<()>;

    /// Makes all names durable, and all that was written to files.
    ///
    /// # Errors
    /// A sync failed: what it was to keep may be lost.
    fn sync_files(&self) -> io::Result<()>;

    /// Bytes free and bytes in all.
    ///
    /// # Errors
    /// As every call of a medium.
    fn space(&self) -> io::Result<Space>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    pub free: u64,
    pub total: u64,
}

/// An open file of a medium; errors as of [`Medium`].
pub trait MediumFile: Send + Sync {
    /// Its length in bytes.
    ///
    /// # Errors
    /// As every call of a medium.
    fn size(&self) -> io::Result<u64>;

    /// Reads as much as there is at `offset`, up to the whole of `into`.
    ///
    /// # Errors
    /// A sector that cannot be read, or as every call of a medium.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// As `read_at`, of what lies in memory, without waiting; or an error.
    ///
    /// # Errors
    /// `WouldBlock` where it has to be read from the disk, or as [`MediumFile::read_at`].
    fn read_cached(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Sees to it that a range is read from the disk next.
    fn forget(&self, _offset: u64, _len: u64) {}

    /// Writes whole blocks at a block's offset; they are durable when it returns. A failure leaves
    /// any part of them written.
    ///
    /// # Errors
    /// The write or its sync failed: none of it counts as durable.
    fn write_durably(&self, offset: u64, blocks: &[u8]) -> io::Result<()>;

    /// Writes what is durable after [`MediumFile::sync`].
    ///
    /// # Errors
    /// As every call of a medium.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes what was written durable.
    ///
    /// # Errors
    /// The sync failed: what it was to keep may be lost.
    fn sync(&self) -> io::Result<()>;
}
