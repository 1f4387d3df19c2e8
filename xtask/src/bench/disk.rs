//! A file system of its own for each store: fresh, so that what was written and deleted before the
//! run has no part in it (ext4 without a journal, for one, steps over every inode freed in the last
//! minutes when it looks for a new one).

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use crate::workspace;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FileSystem {
    /// The workspace's own
    Workspace,
    /// A fresh one for each store, in a file on the workspace's: for root
    Ext4,
    /// As ext4
    Xfs,
}

/// A folder on the file system asked for; unmounted when dropped.
pub(crate) struct Disk {
    path: PathBuf,
    kind: FileSystem,
    /// The device that a file is made to look like.
    device: Option<String>,
}

impl Disk {
    /// Makes `dir/name`, on a fresh file system of at most half the room there is in `dir`.
    pub(crate) fn fresh(dir: &Path, name: &str, kind: FileSystem) -> Result<Disk> {
        Disk::at(&dir.join(name), &dir.join(format!("{name}.img")), kind)
    }

    /// Makes `path`, on a fresh file system in the file `image`, of at most half the room there is
    /// where that is.
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

    /// Another disk in the place of this one, empty, in the file `image`; servers may go on. On the
    /// workspace's own file system the folder is emptied instead.
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
        // Direct: what is written is not copied into the page cache a second time.
        let mut losetup = Command::new("losetup");
        losetup.args(["--find", "--show", "--direct-io=on"]);
        let device = workspace::run_quiet(losetup.arg(image)).context(
            "a fresh file system needs root and loop devices; or --file-system workspace",
        )?;
        let device = device.trim().to_owned();
        // Known from now on, the disk is let go of on every way out.
        self.device = Some(device.clone());
        let mut mount = Command::new("mount");
        run(mount.args(["-o", "noatime", &device]).arg(&self.path))
    }

    fn unmount(&mut self) {
        if let Some(device) = self.device.take() {
            // Lazily: a store that was killed, or goes on, may not have let go yet.
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
