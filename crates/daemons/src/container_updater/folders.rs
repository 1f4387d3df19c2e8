//! Databases on a device that may have changed, by the times of their files, none of which is
//! opened. Blocking; each call lists a bounded part of the device.
//!
//! A commit changes the file itself or its log (`-wal`), Swift's servers append to `.pending`, and
//! a file installed by a replicator has a new change time, whatever its modification time.

use std::fs::{self, DirEntry};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use cairn_index::{DbKey, DbKind};
use cairn_types::ObjectHash;

/// Devices: all folders under the devices' folder.
pub(super) fn devices(root: &Path) -> io::Result<Vec<String>> {
    names(root, |_| true)
}

/// Partitions of a device that hold containers.
pub(super) fn partitions(root: &Path, device: &str) -> io::Result<Vec<String>> {
    names(&containers(root, device), |name| {
        name.bytes().all(|byte| byte.is_ascii_digit())
    })
}

pub(super) fn suffixes(root: &Path, device: &str, partition: &str) -> io::Result<Vec<String>> {
    names(&containers(root, device).join(partition), |name| {
        name.len() == 3 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// Databases under these suffixes changed at `since` or later; without it, all.
pub(super) fn changed(
    root: &Path,
    device: &str,
    partition: &str,
    suffixes: &[String],
    since: Option<SystemTime>,
) -> io::Result<Vec<DbKey>> {
    let since = since.map(|time| time.duration_since(UNIX_EPOCH).unwrap_or_default());
    let since = since.map(|time| (time.as_secs() as i64, i64::from(time.subsec_nanos())));
    let partition_folder = containers(root, device).join(partition);
    let mut found = Vec::new();
    for suffix in suffixes {
        let folder = partition_folder.join(suffix);
        for name in names(&folder, |_| true)? {
            let Some(hash) = ObjectHash::from_hex(&name).filter(|hash| hash.hex() == name) else {
                continue;
            };
            if is_changed(&folder.join(&name), since)? {
                found.push(DbKey::new(device, partition, DbKind::Container, hash));
            }
        }
    }
    Ok(found)
}

fn containers(root: &Path, device: &str) -> PathBuf {
    root.join(device).join(DbKind::Container.datadir())
}

/// Whether a database changed; `since` is in seconds and nanoseconds.
fn is_changed(folder: &Path, since: Option<(i64, i64)>) -> io::Result<bool> {
    for entry in entries(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        // Not the log's index, which changes with reads.
        if !(name.ends_with(".db") || name.ends_with("-wal") || name.ends_with(".pending")) {
            continue;
        }
        let Some(since) = since else { return Ok(true) };
        match entry.metadata() {
            Ok(meta) => {
                let modified = (meta.mtime(), meta.mtime_nsec());
                let changed = (meta.ctime(), meta.ctime_nsec());
                if modified.max(changed) >= since {
                    return Ok(true);
                }
            }
            // A log just merged: its database has changed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// Entries of a folder; none if it is missing.
fn entries(folder: &Path) -> io::Result<impl Iterator<Item = io::Result<DirEntry>>> {
    match fs::read_dir(folder) {
        Ok(entries) => Ok(Some(entries).into_iter().flatten()),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(None.into_iter().flatten())
        }
        Err(error) => Err(error),
    }
}

fn names(folder: &Path, wanted: impl Fn(&str) -> bool) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in entries(folder)? {
        if let Ok(name) = entry?.file_name().into_string()
            && wanted(&name)
        {
            names.push(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn told_by_their_times() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let hash = "0123456789abcdef0123456789abcabc";
        let place = root.join("sda/containers/7/abc").join(hash);
        fs::create_dir_all(&place).unwrap();
        fs::create_dir_all(root.join("sda/containers/tmp")).unwrap();
        fs::create_dir_all(root.join("sda/containers/7/abc/not-a-hash")).unwrap();
        fs::write(place.join(".lock"), "").unwrap();
        assert_eq!(devices(root).unwrap(), ["sda"]);
        assert_eq!(partitions(root, "sda").unwrap(), ["7"]);
        assert_eq!(partitions(root, "sdb").unwrap(), [""; 0]);
        let suffixes = suffixes(root, "sda", "7").unwrap();
        assert_eq!(suffixes, ["abc"]);
        let look = |since| changed(root, "sda", "7", &suffixes, since).unwrap().len();
        assert_eq!(look(None), 0);

        fs::write(place.join(format!("{hash}.db")), "").unwrap();
        let hour = Duration::from_secs(3600);
        let (ago, ahead) = (SystemTime::now() - hour, SystemTime::now() + hour);
        assert_eq!((look(None), look(Some(ago)), look(Some(ahead))), (1, 1, 0));
        let log = fs::File::create(place.join(format!("{hash}.db-wal"))).unwrap();
        log.set_modified(ahead + hour).unwrap();
        assert_eq!(look(Some(ahead)), 1);
    }
}
