//! Devices that are file systems of their own (in memory), so that one can be pulled: what is
//! left then is its empty mount point, which a server with `mount_check` must not write to.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::workspace::run_quiet;

/// Room on each; fewer bytes than a run writes on all.
const SIZE: &str = "size=1g";

/// A device in its slot.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    pub(super) name: String,
    pub(super) path: PathBuf,
}

impl Disk {
    /// A new, empty one, mounted.
    pub(super) fn plug_in(&self) -> Result<()> {
        std::fs::create_dir_all(&self.path)?;
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", SIZE, "cairn"]);
        run_quiet(command.arg(&self.path)).map(|_| ())
    }

    /// Pulled while it is in use: whoever has files of it open keeps them, nobody opens others.
    pub(super) fn pull(&self) -> Result<()> {
        let mut command = Command::new("umount");
        run_quiet(command.arg("--lazy").arg(&self.path)).map(|_| ())
    }
}

/// Why there can be no disks here: objects have extended attributes, which file systems in memory
/// have since Linux 6.6.
pub(super) fn missing() -> Option<String> {
    let folder = tempfile::tempdir().ok()?;
    let trial = Disk {
        name: "trial".to_owned(),
        path: folder.path().join("trial"),
    };
    if let Err(error) = trial.plug_in() {
        let words = format!("{error:#}").replace('\n', " ");
        return Some(format!("no file systems can be mounted here: {words}"));
    }
    let none = rustix::fs::XattrFlags::empty();
    let set = rustix::fs::setxattr(&trial.path, "user.trial", b"1", none);
    unmount_below(folder.path());
    let error = set.err()?;
    Some(format!(
        "tmpfs has no extended attributes here (Linux 6.6 has): {error}"
    ))
}

/// Unmounts all that is mounted below a folder.
pub(super) fn unmount_below(dir: &Path) {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    for path in mounts.lines().filter_map(|line| line.split(' ').nth(1)) {
        if Path::new(path).starts_with(dir) {
            let _ = Command::new("umount").args(["--lazy", path]).output();
        }
    }
}
