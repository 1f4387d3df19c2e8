//! Durable folders and files around a database: the parent of every new folder is synced before
//! anything in it is acknowledged.
//!
//! Never open a database's own file here: closing any descriptor of it would drop SQLite's locks on
//! it for the whole process.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;

use crate::rank::{Rank, Ranked, Standing};
use crate::{DbKey, IndexError, Result};

/// Mode of files with keys, rows or names: for their owner, the user of all servers and daemons of
/// a disk.
pub(crate) const PRIVATE_FILE_MODE: u32 = 0o600;
const PRIVATE_FOLDER_MODE: u32 = 0o700;

/// Device and inode number: distinguishes a database from another put in its place.
pub(crate) type Identity = (u64, u64);

/// The database's file and its identity. Of several (`<hash>_<epoch>.db` of a sharded container)
/// the last by name counts.
pub(crate) fn find_db_file(key: &DbKey, devices: &Path) -> Result<Option<(PathBuf, Identity)>> {
    let dir = key.dir(devices);
    let Some(path) = db_files(&dir, &key.hash.hex())?.pop() else {
        return Ok(None);
    };
    Ok(identity(&path)?.map(|identity| (path, identity)))
}

/// All files of a database in the order of their epochs.
pub(crate) fn db_files(dir: &Path, hash: &str) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if is_missing(&error) => return Ok(Vec::new()),
        Err(error) => return Err(IndexError::io(dir, error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| IndexError::io(dir, error))?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let stem = name.strip_suffix(".db");
        if stem.and_then(|stem| stem.split('_').next()) == Some(hash) {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names.into_iter().map(|name| dir.join(name)).collect())
}

pub(crate) fn identity(path: &Path) -> Result<Option<Identity>> {
    match fs::metadata(path) {
        Ok(meta) => Ok(Some((meta.dev(), meta.ino()))),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(IndexError::io(path, error)),
    }
}

pub(crate) fn is_missing_db(error: &IndexError) -> bool {
    matches!(error, IndexError::Io { source, .. } if is_missing(source))
}

pub(crate) fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Serialises the creation of folders: a caller that finds a folder may assume that its name
/// was synced.
static MAKING_FOLDERS: Ranked<()> = Ranked::new(Rank::NewFolders, ());

/// Creates `dir` and its missing parents, and syncs the folders that hold them. `root` must exist:
/// an unmounted device must not be filled.
pub(crate) fn make_folders(root: &Path, dir: &Path) -> Result<()> {
    let _alone = MAKING_FOLDERS.lock();
    let mut missing = Vec::new();
    let mut at = dir;
    while at != root && !at.is_dir() {
        missing.push(at);
        at = at.parent().unwrap_or(root);
    }
    for folder in missing.into_iter().rev() {
        match DirBuilder::new().mode(PRIVATE_FOLDER_MODE).create(folder) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(IndexError::io(folder, error)),
        }
        // Removes a folder whose name may not be durable, so that the next caller creates and syncs
        // it again.
        sync_folder(folder.parent().unwrap_or(root)).inspect_err(|_| {
            let _ = fs::remove_dir(folder);
        })?;
    }
    Ok(())
}

/// Attempts to make a folder that others remove.
const FOLDER_ATTEMPTS: usize = 16;

/// As [`make_folders`], and locks the folder: from then on it stays. Before that a replicator may remove it
/// or a parent, as it does with folders that it finds empty.
pub(crate) fn make_locked_folder(root: &Path, dir: &Path, timeout: Duration) -> Result<FolderLock> {
    let mut attempts = 0;
    loop {
        let locked = make_folders(root, dir).and_then(|()| lock_folder(dir, timeout));
        attempts += 1;
        match locked {
            Err(error) if is_missing_db(&error) && attempts < FOLDER_ATTEMPTS && root.is_dir() => {}
            locked => return locked,
        }
    }
}

/// Creates a folder and its missing parents; not durable.
pub(crate) fn make_private_folders(dir: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(PRIVATE_FOLDER_MODE)
        .create(dir)
}

pub(crate) fn sync_folder(dir: &Path) -> Result<()> {
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(|error| IndexError::io(dir, error))
}

/// Renames atomically to a name that must be free; false if it is taken.
pub(crate) fn rename_to_free(from: &Path, to: &Path) -> Result<bool> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        // In two steps on file systems without RENAME_NOREPLACE.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            if to.exists() {
                return Ok(false);
            }
            fs::rename(from, to).map_err(|error| IndexError::io(to, error))?;
            Ok(true)
        }
        Err(error) => Err(IndexError::io(to, error.into())),
    }
}

/// Removes others' permissions from a file made by an older release, another program or a
/// replicator.
pub(crate) fn make_private(path: &Path) {
    let is_open = fs::metadata(path).is_ok_and(|meta| meta.mode() & 0o077 != 0);
    if is_open
        && let Err(error) = fs::set_permissions(path, Permissions::from_mode(PRIVATE_FILE_MODE))
    {
        // The file belongs to another user.
        tracing::debug!(path = %path.display(), %error, "others may read a database");
    }
}

/// Swift's lock on a folder: an exclusive `flock` of its `.lock` file, released on drop.
pub(crate) struct FolderLock {
    // Unlocked first.
    _file: File,
    _standing: Standing,
}

pub(crate) fn lock_folder(dir: &Path, timeout: Duration) -> Result<FolderLock> {
    let standing = Standing::enter(Rank::Folder);
    let path = dir.join(".lock");
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(PRIVATE_FILE_MODE)
        .open(&path)
        .map_err(|error| IndexError::io(&path, error))?;
    let deadline = Instant::now() + timeout;
    let mut pause = Duration::from_millis(1);
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                return Ok(FolderLock {
                    _file: file,
                    _standing: standing,
                });
            }
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(error) => return Err(IndexError::io(&path, error.into())),
        }
        if Instant::now() >= deadline {
            return Err(IndexError::Locked { path });
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// Moves a database's folder to `<device>/quarantined/<kind>s/<hash>`, or to `<hash>-<random>` if
/// that is taken. Returns the new path.
pub(crate) fn quarantine(key: &DbKey, devices: &Path, random: u128) -> Result<PathBuf> {
    let dir = key.dir(devices);
    let device = devices.join(&*key.device);
    let parent = device.join("quarantined").join(key.kind.datadir());
    make_private_folders(&parent).map_err(|error| IndexError::io(&parent, error))?;
    let hash = key.hash.hex();
    let to = parent.join(&hash);
    match fs::rename(&dir, &to) {
        Ok(()) => Ok(to),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty
            ) =>
        {
            let to = parent.join(format!("{hash}-{random:032x}"));
            fs::rename(&dir, &to).map_err(|error| IndexError::io(&dir, error))?;
            Ok(to)
        }
        Err(error) => Err(IndexError::io(&dir, error)),
    }
}

/// Removes a database's folder, and suffix and partition folders that become empty.
pub(crate) fn remove_db_folder(key: &DbKey, devices: &Path) -> Result<()> {
    let dir = key.dir(devices);
    match fs::remove_dir_all(&dir) {
        Ok(()) => {}
        Err(error) if is_missing(&error) => return Ok(()),
        Err(error) => return Err(IndexError::io(&dir, error)),
    }
    for parent in dir.ancestors().skip(1).take(2) {
        // Fails for a folder that another database has just moved into.
        if fs::remove_dir(parent).is_err() {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use super::*;

    #[test]
    fn a_folder_is_made_beside_somebody_who_removes_empty_ones() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("accounts/11/079/hash");
        let (is_over, passes) = (AtomicBool::new(false), AtomicU64::new(0));
        let remove_empty = || {
            while !is_over.load(Ordering::Relaxed) {
                let mut removed = dir.ancestors().take(3).map(fs::remove_dir);
                if removed.any(|removed| removed.is_ok()) {
                    passes.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(3));
                }
            }
        };
        let made = thread::scope(|scope| {
            scope.spawn(remove_empty);
            let begun = Instant::now();
            let mut made = Ok(());
            while made.is_ok()
                && passes.load(Ordering::Relaxed) < 50
                && begun.elapsed() < Duration::from_secs(20)
            {
                made = make_locked_folder(root.path(), &dir, Duration::from_secs(5)).map(|_| {
                    // As nobody else would: it is empty once more.
                    fs::remove_file(dir.join(".lock")).unwrap();
                });
            }
            is_over.store(true, Ordering::Relaxed);
            made
        });
        assert!(made.is_ok(), "{made:?}");
        // A device that is not mounted is not made.
        let away = root.path().join("away");
        let made = make_locked_folder(&away, &away.join("a/b"), Duration::from_secs(1));
        assert!(made.is_err() && !away.exists());
    }
}
