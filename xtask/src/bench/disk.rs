//! A new file system for each store, so that earlier writes and deletions have no influence (ext4
//! without a journal, for example, skips every inode freed in the last minutes when it allocates
//! one).

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use cairn_testkit::workspace;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FileSystem {
    /// The workspace's own
    Workspace,
    /// A fresh one for each store, in a file on the workspace's: for root
    Ext4,
    /// As ext4
    Xfs,
}

/// A folder on the requested file system; unmounted when dropped.
pub(crate) struct Disk {
    path: PathBuf,
    kind: FileSystem,
    /// The loop device of the image file.
    device: Option<String>,
}

impl Disk {
    /// Creates `dir/name` on a new file system of at most half the free space in `dir`.
    pub(crate) fn fresh(dir: &Path, name: &str, kind: FileSystem) -> Result<Disk> {
        Disk::at(&dir.join(name), &dir.join(format!("{name}.img")), kind)
    }

    /// Creates `path` on a new file system in the file `image`, of at most half the free space
    /// there.
    pub(crate) fn at(path: &Path, image: &Path, kind: FileSystem) -> Result<Disk> {
        std::fs::create_dir_all(path)?;
        let mut disk = Disk {
            path: path.to_owned(),
            kind,
            device: None,
        };
        disk.mount(image)?;
        Ok(disk)
    }

    /// Replaces this disk by another, empty one in the file `image`; servers may keep running. On
    /// the workspace's own file system the folder is emptied instead.
    pub(crate) fn replace(&mut self, image: &Path) -> Result<()> {
        self.unmount();
        if self.kind == FileSystem::Workspace {
            std::fs::remove_dir_all(&self.path)?;
            std::fs::create_dir(&self.path)?;
        }
        self.mount(image)
    }

    fn mount(&mut self, image: &Path) -> Result<()> {
        let (program, package, options): (&str, &str, &[&str]) = match self.kind {
            FileSystem::Workspace => return Ok(()),
            FileSystem::Ext4 => ("mkfs.ext4", "e2fsprogs", &["-q", "-F"]),
            FileSystem::Xfs => ("mkfs.xfs", "xfsprogs", &["-q", "-f"]),
        };
        workspace::install(program, package);
        let dir = image.parent().context("an image at the root")?;
        let room = rustix::fs::statvfs(dir)?;
        let size = (room.f_bavail * room.f_frsize / 2).min(64 << 30);
        ensure!(size > 4 << 30, "too little room in {}", dir.display());
        std::fs::File::create(image)?.set_len(size)?;
        run(Command::new(program).args(options).arg(image))?;
        // With direct I/O, so that writes are not cached twice.
        let mut losetup = Command::new("losetup");
        losetup.args(["--find", "--show", "--direct-io=on"]);
        let device = workspace::run_quiet(losetup.arg(image)).context(
            "a fresh file system needs root and loop devices; or --file-system workspace",
        )?;
        let device = device.trim().to_owned();
        // Recorded now, so that the disk is released on every error.
        self.device = Some(device.clone());
        let mut mount = Command::new("mount");
        run(mount.args(["-o", "noatime", &device]).arg(&self.path))
    }

    fn unmount(&mut self) {
        if let Some(device) = self.device.take() {
            // Lazily: a store that was killed, or keeps running, may still use it.
            let _ = run(Command::new("umount").arg("--lazy").arg(&self.path));
            let _ = run(Command::new("losetup").args(["--detach", &device]));
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.unmount();
    }
}

fn run(command: &mut Command) -> Result<()> {
    workspace::run_quiet(command).map(drop)
}
