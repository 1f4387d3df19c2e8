//! Names below a device: directories opened, made and removed; files linked, renamed and moved.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use cairn_device::SyncSet;
use cairn_types::plant::Plant;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::device_pool::Disk;
use crate::error::DiskError;
use crate::file_ops::unique;

/// Opens a directory under the device, creating it and its parents if missing.
pub(crate) fn make_dirs(disk: &Disk, dir: &str) -> Result<OwnedFd, DiskError> {
    loop {
        match open_dir(disk, dir) {
            Ok(fd) => return Ok(fd),
            Err(Errno::NOENT) => drop(make_missing(disk, dir)?),
            Err(errno) => return Err(DiskError::from_errno("open", dir, errno)),
        }
    }
}

/// As [`make_dirs`], for files with durable names. Also returns whether it created the directory.
pub(super) fn make_noted(disk: &Disk, dir: &str) -> Result<(OwnedFd, bool), DiskError> {
    match open_dir(disk, dir) {
        Ok(fd) => Ok((fd, false)),
        Err(Errno::NOENT) => make_missing_noted(disk, dir),
        Err(errno) => Err(DiskError::from_errno("open", dir, errno)),
    }
}

/// As [`make_noted`], for a directory found missing just before.
pub(super) fn make_missing_noted(disk: &Disk, dir: &str) -> Result<(OwnedFd, bool), DiskError> {
    loop {
        disk.state.made_dirs.note(dir);
        let made = make_missing(disk, dir)?;
        match open_dir(disk, dir) {
            Ok(fd) => return Ok((fd, made)),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(DiskError::from_errno("open", dir, errno)),
        }
    }
}

pub(crate) fn open_dir(disk: &Disk, dir: &str) -> Result<OwnedFd, Errno> {
    cairn_device::open_directory(disk.fd(), dir)
}

/// Flags for opening directories. Recording access times would cost a write.
pub(crate) const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NOATIME);

/// Creates a directory and its parents; false if another thread or process was first.
fn make_missing(disk: &Disk, dir: &str) -> Result<bool, DiskError> {
    let mode = Mode::from_raw_mode(0o700);
    match rustix::fs::mkdirat(disk.fd(), dir, mode) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(Errno::NOENT) => match dir.rsplit_once('/') {
            Some((parent, _)) => {
                make_missing(disk, parent)?;
                make_missing(disk, dir)
            }
            None => Err(DiskError::from_errno("mkdir", dir, Errno::NOENT)),
        },
        Err(errno) => Err(DiskError::from_errno("mkdir", dir, errno)),
    }
}

/// Adds the names in `dir` to a sync set; if that of `dir` may be new, also all names above it.
pub(super) fn add_dirs(
    disk: &Disk,
    set: &mut SyncSet,
    dir_fd: Arc<OwnedFd>,
    dir: &str,
    is_new: bool,
) {
    if Plant::UnsyncedName.is_on() {
        return;
    }
    set.add_directory(dir_fd);
    if !is_new {
        return;
    }
    // Another process may have created directories above it without syncing them: a writer just
    // now, or a replicator or a lock long ago.
    let mut parent = dir;
    while let Some((above, _)) = parent.rsplit_once('/') {
        set.add_directory_at(disk.root(), above);
        parent = above;
    }
    set.add_directory_at(disk.root(), "");
}

/// A renamed file; durable after the sync of [`Renamed::to_sync`].
pub(crate) struct Renamed {
    dir: Arc<OwnedFd>,
    to_sync: SyncSet,
}

impl Renamed {
    pub(crate) fn dir(&self) -> Arc<OwnedFd> {
        self.dir.clone()
    }

    pub(crate) fn to_sync(&self) -> SyncSet {
        self.to_sync.clone()
    }
}

/// Renames a durable file within a directory. `noted` must be durable together with the name.
pub(crate) fn rename_in(
    disk: &Disk,
    dir: OwnedFd,
    noted: Option<OwnedFd>,
    from: &str,
    to: &str,
) -> Result<Renamed, Errno> {
    rustix::fs::renameat(&dir, from, &dir, to)?;
    let dir = Arc::new(dir);
    let mut to_sync = disk.sync_set();
    if let Some(noted) = noted {
        to_sync.add_log(Arc::new(noted));
    }
    to_sync.add_directory(dir.clone());
    Ok(Renamed { dir, to_sync })
}

/// Removes an empty directory; false if it is not empty.
pub(crate) fn remove_dir(disk: &Disk, dir: &str) -> bool {
    rustix::fs::unlinkat(disk.fd(), dir, AtFlags::REMOVEDIR).is_ok()
}

/// Result of linking a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Linked {
    Made,
    /// It already has that name, or is gone.
    Nothing,
    /// Another file has that name.
    Other,
}

/// Links a file into another directory, which is created. Not durable: see [`crate::relink::sync`].
pub(crate) fn link_file(
    disk: &Disk,
    from_dir: &str,
    to_dir: &str,
    name: &str,
) -> Result<Linked, DiskError> {
    make_dirs(disk, to_dir)?;
    let (from, to) = (format!("{from_dir}/{name}"), format!("{to_dir}/{name}"));
    let file_of = |path: &str| {
        let stat = rustix::fs::statat(disk.fd(), path, AtFlags::SYMLINK_NOFOLLOW);
        stat.map(|stat| (stat.st_dev, stat.st_ino))
    };
    match rustix::fs::linkat(disk.fd(), &*from, disk.fd(), &*to, AtFlags::empty()) {
        Ok(()) => Ok(Linked::Made),
        Err(Errno::EXIST) => match (file_of(&from), file_of(&to)) {
            (Err(Errno::NOENT), _) => Ok(Linked::Nothing),
            (Ok(old), Ok(new)) if old == new => Ok(Linked::Nothing),
            _ => Ok(Linked::Other),
        },
        Err(Errno::NOENT) if file_of(&from) == Err(Errno::NOENT) => Ok(Linked::Nothing),
        Err(errno) => Err(DiskError::from_errno("link", from, errno)),
    }
}

/// Moves a directory or file under the device to a free name; made unique if it is taken. Not
/// durable: what is moved is broken, and still is after a crash.
pub(crate) fn move_aside(disk: &Disk, from: &str, to: &str) -> Result<String, DiskError> {
    if let Some((parent, _)) = to.rsplit_once('/') {
        make_dirs(disk, parent)?;
    }
    let mut target = to.to_owned();
    loop {
        match rustix::fs::renameat(disk.fd(), from, disk.fd(), &*target) {
            Ok(()) => return Ok(target),
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR | Errno::ISDIR) if target == to => {
                target = format!("{to}-{}", unique());
            }
            Err(errno) => return Err(DiskError::from_errno("rename", from, errno)),
        }
    }
}
