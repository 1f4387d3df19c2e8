//! Check of a device before every operation, on the device's threads: an unmounted device must not
//! be filled through its empty mount point, and a hanging one must not block others.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::{IndexError, Result};

/// Free bytes below which a device counts as almost full: many rows and a checkpoint of the log fit.
const ROOM_MIN_BYTES: u64 = 4 << 20;

/// Conditions under which a device is used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DriveCheck {
    /// Requires a mounted file system; otherwise a folder suffices.
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

/// Calls `make_room` if the device is almost full.
pub(crate) fn ensure_room(device: &Path, make_room: impl Fn(&Path)) {
    if is_full(device) {
        make_room(device);
    }
}

/// Whether the file system has less than [`ROOM_MIN_BYTES`] or no inodes free.
pub(crate) fn is_full(path: &Path) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|stat| {
        let free = stat.f_frsize.saturating_mul(stat.f_bavail);
        // Only file systems with preallocated inodes report a number of them.
        free < ROOM_MIN_BYTES || (stat.f_files > 0 && stat.f_favail == 0)
    })
}

/// Whether the path is a mount point or the root. A file `.ismount` also counts, as device numbers
/// are no evidence inside containers.
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
