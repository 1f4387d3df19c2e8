//! A new file system for each store, so that earlier writes and deletions have no influence (ext4
//! without a journal, for example, skips every inode freed in the last minutes when it allocates
//! one).

use std::os::unix::fs::MetadataExt;
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
    /// Its size, if that was asked for.
    bytes: Option<u64>,
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
        Disk::sized(path, image, kind, None)
    }

    /// Creates `path` on a new file system of so many bytes in the file `image`; without a number as
    /// [`Disk::at`].
    pub(crate) fn sized(
        path: &Path,
        image: &Path,
        kind: FileSystem,
        bytes: Option<u64>,
    ) -> Result<Disk> {
        std::fs::create_dir_all(path)?;
        let mut disk = Disk {
            path: path.to_owned(),
            kind,
            bytes,
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
        let half = room.f_bavail * room.f_frsize / 2;
        let size = self.bytes.unwrap_or(half.min(64 << 30));
        let is_enough = half > 4 << 30 && size <= half;
        ensure!(is_enough, "too little room in {}", dir.display());
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

/// Reads and writes of a block device so far, by the kernel's count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Traffic {
    pub(crate) reads: u64,
    pub(crate) read_bytes: u64,
    pub(crate) writes: u64,
    pub(crate) written_bytes: u64,
}

impl Traffic {
    /// That of the device below a path, whoever caused it.
    pub(crate) fn below(path: &Path) -> Result<Traffic> {
        let device = std::fs::metadata(path)?.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let file = format!("/sys/dev/block/{major}:{minor}/stat");
        let text = std::fs::read_to_string(&file).with_context(|| format!("reading {file}"))?;
        Traffic::parse(&text).with_context(|| format!("{file}: {text}"))
    }

    fn parse(text: &str) -> Option<Traffic> {
        let fields = text
            .split_whitespace()
            .map(|field| field.parse::<u64>().ok());
        let fields: Vec<u64> = fields.collect::<Option<_>>()?;
        // Sectors are of 512 bytes, whatever the device's are.
        Some(Traffic {
            reads: *fields.first()?,
            read_bytes: *fields.get(2)? * 512,
            writes: *fields.get(4)?,
            written_bytes: *fields.get(6)? * 512,
        })
    }

    /// Difference to `before`.
    pub(crate) fn since(self, before: Traffic) -> Traffic {
        Traffic {
            reads: self.reads - before.reads,
            read_bytes: self.read_bytes - before.read_bytes,
            writes: self.writes - before.writes,
            written_bytes: self.written_bytes - before.written_bytes,
        }
    }
}

/// Has the kernel forget what it has read; needs root.
pub(crate) fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3").context("dropping caches needs root")
}

fn run(command: &mut Command) -> Result<()> {
    workspace::run_quiet(command).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_is_read_as_the_kernel_counts_it() {
        let text = "  10  1  80  5  20  2  400  7  0  6  12  0 0 0 0 0 0\n";
        let traffic = Traffic::parse(text).unwrap_or_default();
        assert_eq!((traffic.reads, traffic.read_bytes), (10, 80 * 512));
        assert_eq!((traffic.writes, traffic.written_bytes), (20, 400 * 512));
        assert_eq!(traffic.since(traffic), Traffic::default());
        assert_eq!(Traffic::parse("1 2 x"), None);
    }
}
