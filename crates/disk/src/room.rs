//! The reserve of each device: space kept back for operations that free space or must not be lost:
//! tombstones, rows, checkpoints of databases, invalidations.
//!
//! ```text
//! <device>/.cairn-reserve/space        blocks set aside, a hundredth of the file system, 1 to 32 MiB
//! <device>/.cairn-reserve/inode-NN     empty files: inodes set aside
//! ```
//!
//! A full file system refuses even the tombstone that would free space. The files are then given up
//! ([`spend`]), and the refused operation retries. Until they have been made again ([`keep`]),
//! which requires twice their size of free space, writes that only add data are refused.
//!
//! The files are the only state: all processes that serve the device share them, and none holds
//! them open.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

const FOLDER: &str = ".cairn-reserve";
const SPACE_FILE: &str = ".cairn-reserve/space";
const RESERVED_INODES: u64 = 32;
const SPACE_MIN_BYTES: u64 = 1 << 20;
const SPACE_MAX_BYTES: u64 = 32 << 20;

/// State of a device's reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// The reserve exists.
    Kept,
    /// It does not, and there is too little free space to make it: accept only operations that free
    /// space or must not be lost.
    Scarce,
    /// This file system cannot reserve space.
    Unsupported,
}

/// State of the reserve as last seen by this process.
#[derive(Default)]
pub(crate) struct DeviceRoom {
    /// Whether this process spent it, and has not found it restored.
    pub(crate) is_spent: AtomicBool,
    pub(crate) is_unsupported: AtomicBool,
}

impl DeviceRoom {
    pub(crate) fn note(&self, kept: Room) {
        let is_spent = kept == Room::Scarce;
        self.is_spent.store(is_spent, Ordering::Relaxed);
        let is_unsupported = kept == Room::Unsupported;
        self.is_unsupported.store(is_unsupported, Ordering::Relaxed);
    }
}

/// Makes the reserve if it is missing or spent.
///
/// # Errors
/// The directory cannot be opened, or a file of the reserve not made; not for a full file system.
pub fn keep(device: &Path) -> io::Result<Room> {
    Ok(keep_in(open(device)?.as_fd())?)
}

/// As [`keep`], for a device in use, identified by device and inode of its directory. `None` if
/// there is nothing to do, or the directory is another. An empty directory is skipped: nothing
/// there can run full, and it may be the mount point of an unmounted device.
pub(crate) fn restore(device: &Path, identity: (u64, u64)) -> io::Result<Option<Room>> {
    let open = open(device)?;
    let stat = rustix::fs::fstat(&open)?;
    if (stat.st_dev, stat.st_ino) != identity || is_whole(open.as_fd()) {
        return Ok(None);
    }
    if std::fs::read_dir(device)?.next().is_none() {
        return Ok(None);
    }
    Ok(Some(keep_in(open.as_fd())?))
}

/// Spends the reserve. To be called when a device has no space left for an operation that may use
/// it, which is then retried whatever is returned: another process may have spent it just before.
/// True if it existed.
///
/// # Errors
/// The directory cannot be opened.
pub fn spend(device: &Path) -> io::Result<bool> {
    Ok(spend_in(open(device)?.as_fd()))
}

fn open(device: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, device, flags, Mode::empty())
}

/// As [`keep`], for an open device.
pub(crate) fn keep_in(device: BorrowedFd<'_>) -> Result<Room, Errno> {
    if is_whole(device) {
        return Ok(Room::Kept);
    }
    let stat = statvfs(device)?;
    let total = stat.f_frsize.saturating_mul(stat.f_blocks);
    let size = (total / 100).clamp(SPACE_MIN_BYTES, SPACE_MAX_BYTES);
    let has_blocks = stat.f_frsize.saturating_mul(stat.f_bavail) >= 2 * size;
    // Zero: the file system allocates inodes dynamically.
    let has_inodes = stat.f_files == 0 || stat.f_favail >= 2 * RESERVED_INODES;
    if !has_blocks || !has_inodes {
        return Ok(Room::Scarce);
    }
    match set_aside(device, size) {
        Ok(()) => {
            tracing::debug!(size, "room set aside on a device");
            Ok(Room::Kept)
        }
        Err(Errno::NOSPC | Errno::DQUOT) => {
            spend_in(device);
            Ok(Room::Scarce)
        }
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
            spend_in(device);
            Ok(Room::Unsupported)
        }
        Err(errno) => Err(errno),
    }
}

/// As [`spend`], for an open device.
pub(crate) fn spend_in(device: BorrowedFd<'_>) -> bool {
    let was_whole = is_whole(device);
    for number in 0..RESERVED_INODES {
        let _ = rustix::fs::unlinkat(device, inode(number), AtFlags::empty());
    }
    // Truncated, not removed: that needs no space on any file system.
    let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC;
    drop(rustix::fs::openat(device, SPACE_FILE, flags, Mode::empty()));
    if was_whole {
        tracing::warn!(
            "a device's file system is full: the room set aside is given up for deletions and rows, \
             and uploads are refused until there is space again"
        );
    }
    was_whole
}

/// Whether the reserve is complete: the space file is made last, and its size set only with all its
/// blocks.
fn is_whole(device: BorrowedFd<'_>) -> bool {
    let stat = rustix::fs::statat(device, SPACE_FILE, AtFlags::SYMLINK_NOFOLLOW);
    stat.is_ok_and(|stat| stat.st_size > 0 && stat.st_blocks * 512 >= stat.st_size)
}

fn set_aside(device: BorrowedFd<'_>, size: u64) -> Result<(), Errno> {
    match rustix::fs::mkdirat(device, FOLDER, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let create = |name: &str| rustix::fs::openat(device, name, flags, Mode::from_raw_mode(0o600));
    for number in 0..RESERVED_INODES {
        create(&inode(number))?;
    }
    let space = create(SPACE_FILE)?;
    loop {
        match rustix::fs::fallocate(&space, FallocateFlags::empty(), 0, size) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

fn inode(number: u64) -> String {
    format!("{FOLDER}/inode-{number:02}")
}

fn statvfs(device: BorrowedFd<'_>) -> Result<rustix::fs::StatVfs, Errno> {
    // Also permitted for an `O_PATH` descriptor.
    rustix::fs::fstatvfs(device)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn set_aside_given_up_and_set_aside_again() {
        let device = tempfile::tempdir().unwrap();
        let files = || {
            std::fs::read_dir(device.path().join(FOLDER))
                .unwrap()
                .count()
        };
        let size = || {
            std::fs::metadata(device.path().join(SPACE_FILE))
                .unwrap()
                .len()
        };
        assert!(!spend(device.path()).unwrap());
        match keep(device.path()).unwrap() {
            Room::Kept => {}
            other => return println!("skipped: {other:?} in the temporary directory"),
        }
        assert!((SPACE_MIN_BYTES..=SPACE_MAX_BYTES).contains(&size()));
        assert_eq!(files() as u64, RESERVED_INODES + 1);
        assert!(spend(device.path()).unwrap());
        assert_eq!((files(), size()), (1, 0));
        assert!(!spend(device.path()).unwrap(), "given up twice");
        assert_eq!(keep(device.path()).unwrap(), Room::Kept);
        assert_eq!(files() as u64, RESERVED_INODES + 1);
    }

    #[test]
    fn a_device_that_is_not_there_has_none() {
        let missing = Path::new("/nonexistent/device");
        assert!(keep(missing).is_err() && spend(missing).is_err());
    }
}
