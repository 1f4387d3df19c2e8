//! Is the device there? Asked on its own threads before every operation: a device that is gone
//! must not be filled through its empty mount point, and one that hangs must not hang others.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::{IndexError, Result};

/// What a transaction may take: many rows, and a merge of the log.
const ROOM: u64 = 4 << 20;

/// What must hold for a device to be used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DriveCheck {
    /// A file system must be mounted there; without, a folder is enough.
    pub mount_check: bool,
    /// Space that must stay free.
    pub reserve: Option<Reserve>,
}

/// `fallocate_reserve`: bytes, or percent of the file system.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reserve {
    Bytes(u64),
    Percent(f64),
}

impl DriveCheck {
    pub(crate) fn check(self, device: &Path) -> Result<()> {
        let there = if self.mount_check {
            is_mount(device)
        } else {
            device.is_dir()
        };
        if !there {
            return Err(IndexError::NotMounted {
                path: device.into(),
            });
        }
        match self.reserve {
            Some(reserve) if !reserve.is_free(device)? => Err(IndexError::NoSpace {
                path: device.into(),
            }),
            _ => Ok(()),
        }
    }
}

impl Reserve {
    fn is_free(self, device: &Path) -> Result<bool> {
        let stat =
            rustix::fs::statvfs(device).map_err(|error| IndexError::io(device, error.into()))?;
        let free = stat.f_frsize.saturating_mul(stat.f_bavail);
        Ok(match self {
            Reserve::Bytes(bytes) => free >= bytes,
            Reserve::Percent(percent) => {
                let size = stat.f_frsize.saturating_mul(stat.f_blocks).max(1);
                free as f64 / size as f64 * 100.0 >= percent
            }
        })
    }
}

/// Has room made on a device that has next to none left.
pub(crate) fn ensure_room(device: &Path, make_room: impl Fn(&Path)) {
    if is_full(device) {
        make_room(device);
    }
}

/// Is there next to no space left where this is?
pub(crate) fn is_full(path: &Path) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|stat| {
        let free = stat.f_frsize.saturating_mul(stat.f_bavail);
        // Only file systems that make inodes beforehand have a number of them.
        free < ROOM || (stat.f_files > 0 && stat.f_favail == 0)
    })
}

/// Another file system than its parent's, or its root. A file `.ismount` says so too: inside
/// containers the numbers tell nothing.
fn is_mount(path: &Path) -> bool {
    let stub = || path.join(".ismount").is_file();
    let Ok(own) = fs::symlink_metadata(path) else {
        return false;
    };
    if own.is_symlink() {
        return stub();
    }
    match fs::symlink_metadata(path.join("..")) {
        Ok(parent) => own.dev() != parent.dev() || own.ino() == parent.ino() || stub(),
        Err(_) => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_must_hold() {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("sda");
        let folder = DriveCheck::default();
        let mount = DriveCheck {
            mount_check: true,
            reserve: None,
        };
        let full = DriveCheck {
            mount_check: false,
            reserve: Some(Reserve::Percent(100.1)),
        };
        let gone = |result| matches!(result, Err(IndexError::NotMounted { .. }));
        assert!(gone(folder.check(&device)));
        fs::create_dir(&device).unwrap();
        assert!(folder.check(&device).is_ok());
        assert!(gone(mount.check(&device)));
        assert!(mount.check(Path::new("/proc")).is_ok());
        fs::write(device.join(".ismount"), "").unwrap();
        assert!(mount.check(&device).is_ok());
        let no_space = full.check(&device);
        assert!(matches!(no_space, Err(IndexError::NoSpace { .. })));
    }
}
