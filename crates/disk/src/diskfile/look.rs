//! Opening and reading an object's files: from the disk, or only from memory.

use std::os::fd::{BorrowedFd, OwnedFd};

use bytes::Bytes;
use cairn_types::blocks::{self, Block};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::{Errno, IoSliceMut, ReadWriteFlags};

use super::is_broken_dir;
use super::open::OpenError;
use crate::device_pool::Disk;
use crate::error::DiskError;
use crate::layout::FileEntry;
use crate::staged_file::{DIRECTORY, open_dir};

/// Source of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    OnDisk,
    /// Fails with `OpenError::NotCached` for anything not in memory.
    InMemory,
}

const FILE: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NOATIME);

impl Lookup {
    pub(super) fn open_dir(self, disk: &Disk, dir: &str) -> Result<OwnedFd, Errno> {
        match self {
            Lookup::OnDisk => open_dir(disk, dir),
            Lookup::InMemory => open_cached(disk, disk.fd(), dir, DIRECTORY),
        }
    }

    pub(super) fn open_file(
        self,
        disk: &Disk,
        dir: BorrowedFd<'_>,
        entry: &FileEntry,
    ) -> Result<OwnedFd, OpenError> {
        match self {
            Lookup::OnDisk => open_file(dir, entry),
            Lookup::InMemory => {
                open_cached(disk, dir, &entry.name, FILE).map_err(|errno| not_opened(entry, errno))
            }
        }
    }

    /// Reads the first `len` bytes, fewer at the end of the file.
    pub(super) fn read(self, disk: &Disk, fd: BorrowedFd<'_>, len: usize) -> Result<Bytes, Errno> {
        match self {
            Lookup::OnDisk => read_range(fd, 0, len),
            Lookup::InMemory => {
                let read = read_with(len, |into| {
                    let buffers = &mut [IoSliceMut::new(into)];
                    rustix::io::preadv2(fd, buffers, 0, ReadWriteFlags::NOWAIT)
                });
                // A partial result: the rest is not cached.
                let read = read.and_then(|bytes| match bytes.len() == len {
                    true => Ok(bytes),
                    false => Err(Errno::AGAIN),
                });
                disable_if_unsupported(disk, read)
            }
        }
    }
}

fn open_cached(
    disk: &Disk,
    dir: BorrowedFd<'_>,
    path: &str,
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let opened = openat2(dir, path, flags, Mode::empty(), ResolveFlags::CACHED);
    disable_if_unsupported(disk, opened)
}

/// Disables inline reads if the kernel, the file system or a seccomp filter does not support the
/// flags.
fn disable_if_unsupported<T>(disk: &Disk, result: Result<T, Errno>) -> Result<T, Errno> {
    result.map_err(|errno| match errno {
        Errno::NOSYS | Errno::INVAL | Errno::OPNOTSUPP | Errno::PERM => {
            disk.state.touched.disable();
            Errno::AGAIN
        }
        errno => errno,
    })
}

pub(super) fn open_file(dir: BorrowedFd<'_>, entry: &FileEntry) -> Result<OwnedFd, OpenError> {
    let open = |flags| rustix::fs::openat(dir, &*entry.name, flags, Mode::empty());
    let opened = match open(FILE) {
        // `O_NOATIME` is permitted to a file's owner only.
        Err(Errno::PERM) => open(FILE - OFlags::NOATIME),
        other => other,
    };
    opened.map_err(|errno| not_opened(entry, errno))
}

fn not_opened(entry: &FileEntry, errno: Errno) -> OpenError {
    match errno {
        Errno::NOENT => OpenError::Changed,
        Errno::AGAIN => OpenError::NotCached,
        errno if is_broken_dir(errno) => OpenError::Broken(format!("not to be opened: {errno}")),
        errno => DiskError::from_errno("open", &*entry.name, errno).into(),
    }
}

/// Minimum size in bytes of reads that use a whole block.
const BLOCK_READ_MIN_BYTES: usize = 32 << 10;

/// Reads `len` bytes, fewer at the end of the file.
pub(crate) fn read_range(fd: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Bytes, Errno> {
    read_with(len, |into| read_full(fd, offset, into))
}

/// Allocates a buffer of `len` bytes, truncated to the count that `read` returns.
pub(crate) fn read_with(
    len: usize,
    read: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
) -> Result<Bytes, Errno> {
    if !(BLOCK_READ_MIN_BYTES..=blocks::SIZE).contains(&len) {
        let mut bytes = vec![0; len];
        let count = read(&mut bytes)?;
        bytes.truncate(count);
        return Ok(Bytes::from(bytes));
    }
    let mut block = Block::take_to_read().map_err(|_| Errno::NOMEM)?;
    let count = read(&mut block.spare()[..len])?;
    block.advance(count);
    Ok(block.into_bytes())
}

/// Fills the buffer; returns the bytes read, fewer at the end of the file.
fn read_full(fd: BorrowedFd<'_>, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
    let mut count = 0;
    while count < into.len() {
        match rustix::io::pread(fd, &mut into[count..], offset + count as u64) {
            Ok(0) => break,
            Ok(n) => count += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(count)
}
