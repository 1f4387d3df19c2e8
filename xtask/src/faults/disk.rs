//! A disk of the store: a medium, a loop device on it, a file system on that, mounted at the
//! device's folder. Everything is removed when dropped, and [`sweep`] removes what a killed run has
//! left.

use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use fuser::BackgroundSession;
use rustix::fs::OFlags;

use super::fuse;
use super::layout;
use super::medium::{Fault, Medium, Op};
use cairn_testkit::workspace::{run_quiet, target};

/// Prefix of the runs' folders; [`sweep`] removes nothing else.
pub(super) const PREFIX: &str = "faults";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FileSystem {
    Ext4,
    Ext4NoJournal,
    Xfs,
}

impl FileSystem {
    pub(super) fn name(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Ext4NoJournal => "ext4 without journal",
            FileSystem::Xfs => "xfs",
        }
    }

    fn kind(self) -> &'static str {
        match self {
            FileSystem::Ext4 | FileSystem::Ext4NoJournal => "ext4",
            FileSystem::Xfs => "xfs",
        }
    }

    /// Creates the file system on the file, without deferred initialisation.
    fn make(self, on: &Path) -> Result<()> {
        let mut command = Command::new(format!("mkfs.{}", self.kind()));
        let now = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
        let ext4 = ["-q", "-F", "-b", "4096", "-i", "8192", "-E", now];
        match self {
            FileSystem::Ext4 => command.args(ext4),
            FileSystem::Ext4NoJournal => command.args(ext4).args(["-O", "^has_journal"]),
            FileSystem::Xfs => command.args(["-q", "-f", "-K"]),
        };
        run_quiet(command.arg(on)).map(|_| ())
    }
}

pub(super) struct Disk {
    pub(super) file_system: FileSystem,
    pub(super) medium: Arc<Medium>,
    /// Ranges with files and folders, without journal and tables.
    data: Vec<Range<u64>>,
    pub(super) mount_point: PathBuf,
    served_at: PathBuf,
    loop_device: Option<String>,
    session: Option<BackgroundSession>,
}

impl Disk {
    /// Creates a disk with an empty file system, mounted at `mount_point`; its files are in `dir`.
    pub(super) fn create(
        dir: &Path,
        mount_point: &Path,
        file_system: FileSystem,
        size: u64,
        seed: u64,
    ) -> Result<Disk> {
        let served_at = dir.join("served");
        std::fs::create_dir_all(&served_at)?;
        let medium = dir.join("medium");
        File::create(&medium)?.set_len(size)?;
        file_system.make(&medium)?;
        let data = layout::data(file_system, &medium, size)?;
        let medium = Arc::new(Medium::open(&medium, seed)?);
        let session = fuse::mount(medium.clone(), &served_at, "cairn-faults")
            .with_context(|| format!("mounting {}", served_at.display()))?;
        let mut disk = Disk {
            file_system,
            medium,
            data,
            mount_point: mount_point.to_owned(),
            served_at,
            loop_device: None,
            session: Some(session),
        };
        disk.attach()?;
        Ok(disk)
    }

    fn attach(&mut self) -> Result<()> {
        let mut command = Command::new("losetup");
        command.args(["--find", "--show", "--direct-io=on"]);
        let device = run_quiet(command.arg(self.served_at.join(fuse::NAME)))?;
        let device = device.trim().to_owned();
        self.loop_device = Some(device.clone());
        if self.file_system == FileSystem::Ext4NoJournal {
            // As at a server's start; exit code 1 means that errors were corrected.
            let checked = Command::new("e2fsck").args(["-y", &device]).output()?;
            anyhow::ensure!(
                checked.status.code().is_some_and(|code| code < 4),
                "e2fsck {device}: {}",
                String::from_utf8_lossy(&checked.stdout)
            );
        }
        self.mount()
    }

    /// Mounts it, after [`Disk::unmount`].
    pub(super) fn mount(&self) -> Result<()> {
        let device = self.loop_device.as_deref().context("it is not attached")?;
        let mut command = Command::new("mount");
        command.args(["-t", self.file_system.kind(), "-o", "noatime"]);
        run_quiet(command.arg(device).arg(&self.mount_point)).map(|_| ())
    }

    /// Unmounts it like an operator. Fails if it is in use, unless unmounted lazily.
    pub(super) fn unmount(&self, lazily: bool) -> Result<()> {
        let mut command = Command::new("umount");
        if lazily {
            command.arg("--lazy");
        }
        run_quiet(command.arg(&self.mount_point)).map(|_| ())
    }

    /// Has its file system been released, so that another can be created?
    pub(super) fn is_free(&self) -> Result<bool> {
        let device = self.loop_device.as_deref().context("it is not attached")?;
        let mut options = File::options();
        options.read(true).custom_flags(OFlags::EXCL.bits() as i32);
        match options.open(device) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::ResourceBusy => Ok(false),
            Err(error) => Err(error).with_context(|| format!("opening {device}")),
        }
    }

    fn detach(&mut self) {
        if self.loop_device.is_some() {
            unmount(&self.mount_point);
            self.wait_until_free();
        }
        if let Some(device) = self.loop_device.take() {
            let _ = Command::new("losetup").args(["-d", &device]).output();
        }
    }

    /// Waits until nobody has the file system mounted, half a minute at most: a mount namespace that
    /// another program made meanwhile has a copy of every mount.
    fn wait_until_free(&self) {
        for _ in 0..600 {
            match self.is_free() {
                Ok(false) => std::thread::sleep(Duration::from_millis(50)),
                Ok(true) | Err(_) => return,
            }
        }
    }

    /// Restores power after [`Medium::power_off`]: of the unflushed blocks, `kept_of_thousand` per
    /// thousand survived. The caller has ended all users of the disk.
    pub(super) fn power_on(&mut self, kept_of_thousand: u64) -> Result<()> {
        self.detach();
        self.medium.power_on(kept_of_thousand)?;
        self.attach()
    }

    /// All ranges of the disk with files and folders.
    pub(super) fn data(&self) -> Vec<Range<u64>> {
        self.data.clone()
    }

    /// Positions of these files' bytes, as far as allocated.
    pub(super) fn places(&self, files: &[PathBuf]) -> Vec<Range<u64>> {
        files.iter().flat_map(|f| layout::places(f)).collect()
    }

    /// Position of a byte of a file.
    pub(super) fn place(&self, file: &Path, offset: u64) -> Option<u64> {
        let mut before = 0;
        for range in layout::places(file) {
            let length = range.end - range.start;
            if offset < before + length {
                return Some(range.start + offset - before);
            }
            before += length;
        }
        None
    }

    pub(super) fn fail(&self, op: Op, ranges: Vec<Range<u64>>) {
        self.medium.fail(Fault::of(op, ranges));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Nothing on it is needed any more, so its writes need not complete.
        self.medium.power_off();
        self.detach();
        self.session.take();
        unmount(&self.served_at);
    }
}

/// Unmounts at once if unused; otherwise lazily after half a minute, with removal after its last
/// user. A killed store on a busy machine takes seconds to release its disks, and XFS does not
/// mount a file system while another one with its UUID is still alive.
fn unmount(at: &Path) {
    for _ in 0..600 {
        match Command::new("umount").arg(at).output() {
            Ok(output) if output.status.success() => return,
            Ok(output) if !String::from_utf8_lossy(&output.stderr).contains("busy") => return,
            _ => std::thread::sleep(Duration::from_millis(50)),
        }
    }
    let _ = Command::new("umount").arg("--lazy").arg(at).output();
}

/// Removes mounts, loop devices and folders that earlier runs of this command left, below
/// `target/xtask/faults-…` only.
pub(super) fn sweep() {
    let ours = target().join("xtask").join(format!("{PREFIX}-"));
    let Some(ours) = ours.to_str() else { return };
    let table = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let mounts: Vec<(&str, &str)> = table
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let at = words.nth(1)?;
            Some((words.next()?, at))
        })
        .filter(|(_, at)| at.starts_with(ours))
        .collect();
    let unmount_all = |is_fuse: bool| {
        for (_, at) in mounts
            .iter()
            .filter(|(k, _)| k.starts_with("fuse") == is_fuse)
        {
            let _ = Command::new("umount").args(["--lazy", at]).output();
        }
    };
    unmount_all(false);
    let mut list = Command::new("losetup");
    list.args(["--list", "--noheadings", "--output", "NAME,BACK-FILE"]);
    for line in run_quiet(&mut list).unwrap_or_default().lines() {
        if let Some((device, file)) = line.split_once(char::is_whitespace)
            && file.trim().starts_with(ours)
        {
            let _ = Command::new("losetup").args(["-d", device]).output();
        }
    }
    unmount_all(true);
}

/// Reason why such disks are not possible here.
pub(super) fn missing(file_system: FileSystem) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root".to_owned());
    }
    for device in ["/dev/fuse", "/dev/loop-control"] {
        if let Err(error) = File::options().read(true).write(true).open(device) {
            return Some(format!("{device}: {error}"));
        }
    }
    let (program, package) = match file_system {
        FileSystem::Xfs => ("mkfs.xfs", "xfsprogs"),
        _ => ("mkfs.ext4", "e2fsprogs"),
    };
    let has = cairn_testkit::workspace::install(program, package);
    (!has).then(|| format!("no {program} here, and {package} is not to be had"))
}
