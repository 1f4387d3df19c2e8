//! Opening and reading files of an object: from the disk, or only as far as they lie in memory.

use std::os::fd::{BorrowedFd, OwnedFd};

use bytes::Bytes;
use cairn_types::blocks::{self, Block};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::{Errno, IoSliceMut, ReadWriteFlags};

use super::is_broken_dir;
use super::open::Failed;
use crate::device_pool::Disk;
use crate::error::DiskError;
use crate::layout::FileEntry;
use crate::staged_file::{DIRECTORY, open_dir};

/// Where to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    OnDisk,
    /// What is not in memory is `Failed::NotCached`.
    InMemory,
}

const FILE: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NOATIME);

impl Look {
    pub(super) fn open_dir(self, disk: &Disk, dir: &str) -> Result<OwnedFd, Errno> {
        match self {
            Look::OnDisk => open_dir(disk, dir),
            Look::InMemory => open_cached(disk, disk.fd(), dir, DIRECTORY),
        }
    }

    pub(super) fn open_file(
        self,
        disk: &Disk,
        dir: BorrowedFd<'_>,
        entry: &FileEntry,
    ) -> Result<OwnedFd, Failed> {
        match self {
            Look::OnDisk => open_file(dir, entry),
            Look::InMemory => {
                open_cached(disk, dir, &entry.name, FILE).map_err(|errno| not_opened(entry, errno))
            }
        }
    }

    /// The first `len` bytes, fewer where the file ends before.
    pub(super) fn read(self, disk: &Disk, fd: BorrowedFd<'_>, len: usize) -> Result<Bytes, Errno> {
        match self {
            Look::OnDisk => read_range(fd, 0, len),
            Look::InMemory => {
                let read = read_with(len, |into| {
                    let buffers = &mut [IoSliceMut::new(into)];
                    rustix::io::preadv2(fd, buffers, 0, ReadWriteFlags::NOWAIT)
                });
                // Part of it would have to be waited for.
                let read = read.and_then(|bytes| match bytes.len() == len {
                    true => Ok(bytes),
                    false => Err(Errno::AGAIN),
                });
                give_up_where_unknown(disk, read)
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
    give_up_where_unknown(disk, opened)
}

/// An old kernel, a file system or a filter of system calls that does not know the question:
/// nobody need ask again.
fn give_up_where_unknown<T>(disk: &Disk, result: Result<T, Errno>) -> Result<T, Errno> {
    result.map_err(|errno| match errno {
        Errno::NOSYS | Errno::INVAL | Errno::OPNOTSUPP | Errno::PERM => {
            disk.state.touched.give_up();
            Errno::AGAIN
        }
        errno => errno,
    })
}

pub(super) fn open_file(dir: BorrowedFd<'_>, entry: &FileEntry) -> Result<OwnedFd, Failed> {
    let open = |flags| rustix::fs::openat(dir, &*entry.name, flags, Mode::empty());
    let opened = match open(FILE) {
        // Only a file's owner may leave its access time alone.
        Err(Errno::PERM) => open(FILE - OFlags::NOATIME),
        other => other,
    };
    opened.map_err(|errno| not_opened(entry, errno))
}

fn not_opened(entry: &FileEntry, errno: Errno) -> Failed {
    match errno {
        Errno::NOENT => Failed::Changed,
        Errno::AGAIN => Failed::NotCached,
        errno if is_broken_dir(errno) => Failed::Broken(format!("not to be opened: {errno}")),
        errno => DiskError::from_errno("open", &*entry.name, errno).into(),
    }
}

/// Reads shorter than this are not worth a whole block.
const SMALL_READ: usize = 32 << 10;

/// Reads `len` bytes, fewer at the file's end.
pub(crate) fn read_range(fd: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Bytes, Errno> {
    read_with(len, |into| read_full(fd, offset, into))
}

/// A buffer of `len` bytes with as much in it as `read` says.
pub(crate) fn read_with(
    len: usize,
    read: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
) -> Result<Bytes, Errno> {
    if !(SMALL_READ..=blocks::SIZE).contains(&len) {
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

/// Fills the buffer; tells how much of it, where the file ends before.
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
