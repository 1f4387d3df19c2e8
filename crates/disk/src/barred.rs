//! The file in the place of a policy's folder of files, where another engine keeps its objects.
//!
//! Programs that know of files only would otherwise make the folder, and put objects into it that
//! nobody reads: rsync of a neighbour's replicator, which then removes its own copies, or servers that
//! were started with another `diskfile_module`. With a file there they fail, and nothing is lost.

use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use cairn_types::PolicyIndex;

use crate::device_pool::Disk;
use crate::error::DiskError;

/// The state of the folder's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barred {
    Yes,
    /// The folder, with something in it that nobody looks at.
    HasFiles,
}

fn place(disk: &Disk, policy: PolicyIndex) -> PathBuf {
    disk.path().join(policy.dir("objects"))
}

fn failed(action: &'static str, path: &std::path::Path, source: std::io::Error) -> DiskError {
    DiskError::Io {
        action,
        path: path.display().to_string(),
        source,
    }
}

/// Puts the file there, with `words` for who finds it; an empty folder gives way to it. After a power
/// cut it may be missing, until this is called again.
///
/// # Errors
/// `Io`: the device fails, or is full.
pub fn bar(disk: &Disk, policy: PolicyIndex, words: &str) -> Result<Barred, DiskError> {
    let path = place(disk, policy);
    match std::fs::symlink_metadata(&path) {
        Ok(metadata) if !metadata.is_dir() => return Ok(Barred::Yes),
        Ok(_) => match std::fs::remove_dir(&path) {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
                return Ok(Barred::HasFiles);
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            removed => removed.map_err(|error| failed("remove", &path, error))?,
        },
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(failed("stat", &path, error)),
    }
    let mut private = std::fs::OpenOptions::new();
    private.write(true).create_new(true).mode(0o600);
    let made = private
        .open(&path)
        .and_then(|mut file| file.write_all(words.as_bytes()));
    match made {
        // Another program was quicker: what it made is looked at the next time.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(Barred::Yes),
        Err(error) => Err(failed("write", &path, error)),
        Ok(()) => Ok(Barred::Yes),
    }
}

/// Takes the file away, so that the policy can have files again.
///
/// # Errors
/// `Io`: the device fails.
pub fn unbar(disk: &Disk, policy: PolicyIndex) -> Result<(), DiskError> {
    let path = place(disk, policy);
    match std::fs::symlink_metadata(&path) {
        Ok(metadata) if metadata.is_file() => {
            std::fs::remove_file(&path).map_err(|error| failed("remove", &path, error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::device_pool::{Devices, DevicesConfig};

    const POLICY: PolicyIndex = PolicyIndex(1);

    fn disk() -> (tempfile::TempDir, Arc<Devices>, Disk) {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("d")).unwrap();
        let mut config = DevicesConfig::new(root.path());
        config.mount_check = false;
        let devices = Devices::new(config);
        let disk = devices.get("d").unwrap().disk().unwrap();
        (root, devices, disk)
    }

    #[test]
    fn a_file_bars_the_folder_until_it_is_taken_away() {
        let (root, _devices, disk) = disk();
        let path = root.path().join("d/objects-1");
        for _ in 0..2 {
            assert_eq!(bar(&disk, POLICY, "elsewhere\n").unwrap(), Barred::Yes);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "elsewhere\n");
        }
        assert!(std::fs::create_dir_all(path.join("7")).is_err());
        unbar(&disk, POLICY).unwrap();
        unbar(&disk, POLICY).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert_eq!(bar(&disk, POLICY, "elsewhere\n").unwrap(), Barred::Yes);
        assert!(path.is_file(), "an empty folder gives way");
    }

    #[test]
    fn files_stay() {
        let (root, _devices, disk) = disk();
        let object = root.path().join("d/objects-1/7");
        std::fs::create_dir_all(&object).unwrap();
        assert_eq!(bar(&disk, POLICY, "elsewhere\n").unwrap(), Barred::HasFiles);
        unbar(&disk, POLICY).unwrap();
        assert!(object.is_dir());
    }
}
