//! Devices that are file systems of their own (in memory), so that one can be pulled: its empty
//! mount point is left, to which a server with `mount_check` must not write.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use cairn_testkit::workspace::run_quiet;

/// Size of each; a run writes less than this on all.
const SIZE: &str = "size=1g";

/// A device in its slot.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    pub(super) name: String,
    pub(super) path: PathBuf,
}

impl Disk {
    /// Mounts a new, empty file system.
    pub(super) fn plug_in(&self) -> Result<()> {
        std::fs::create_dir_all(&self.path)?;
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", SIZE, "cairn"]);
        run_quiet(command.arg(&self.path)).map(|_| ())
    }

    /// Pulls it while in use: open files stay usable, no others can be opened.
    pub(super) fn pull(&self) -> Result<()> {
        let mut command = Command::new("umount");
        run_quiet(command.arg("--lazy").arg(&self.path)).map(|_| ())
    }
}

/// Reason why disks are not possible here: objects need extended attributes, which tmpfs has since
/// Linux 6.6.
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

/// Unmounts everything mounted below a folder.
pub(super) fn unmount_below(dir: &Path) {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    for path in mounts.lines().filter_map(|line| line.split(' ').nth(1)) {
        if Path::new(path).starts_with(dir) {
            let _ = Command::new("umount").args(["--lazy", path]).output();
        }
    }
}
