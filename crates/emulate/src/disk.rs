//! An emulated disk: a sparse file served by [`engine`] through a file system in user space, a loop
//! device with direct I/O on that, a real file system on the loop device, mounted.

mod engine;
mod fuse;

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fuser::BackgroundSession;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use self::engine::Engine;
use crate::host::{self, ProgramError};
use crate::model::Medium;

pub use engine::DiskCounts;

/// Reads that tell how long the way through this host is.
const CALIBRATION_READS: usize = 400;
const BLOCK: usize = 4096;

/// The file system on a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileSystem {
    #[default]
    Ext4,
    Xfs,
}

impl FileSystem {
    fn name(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Xfs => "xfs",
        }
    }
}

/// A disk to be made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DiskSpec {
    pub name: String,
    /// Its parts go below this folder.
    pub folder: PathBuf,
    /// `None`: no file system, the loop device alone.
    pub mount_point: Option<PathBuf>,
    pub file_system: FileSystem,
    pub size: u64,
    /// In this host's time.
    pub medium: Medium,
    pub seed: u64,
}

#[derive(Debug, Error)]
pub enum DiskError {
    #[error("disk {name}: {what}: {source}")]
    Io {
        name: String,
        what: String,
        source: io::Error,
    },
    #[error("disk {name}: {source}")]
    Program { name: String, source: ProgramError },
}

/// A disk that is there; gone when dropped.
pub struct Disk {
    spec: DiskSpec,
    engine: Arc<Engine>,
    thread: Option<JoinHandle<()>>,
    session: Option<BackgroundSession>,
    served_at: PathBuf,
    loop_device: Option<String>,
    overhead: Duration,
}

impl Disk {
    /// Makes it; it takes no time until [`Disk::calibrate`] was called.
    pub fn create(spec: DiskSpec) -> Result<Disk, DiskError> {
        let io = |what: &str, source| DiskError::Io {
            name: spec.name.clone(),
            what: what.to_owned(),
            source,
        };
        let program = |source| DiskError::Program {
            name: spec.name.clone(),
            source,
        };
        let served_at = spec.folder.join(format!("{}.served", spec.name));
        std::fs::create_dir_all(&served_at).map_err(|e| io("making its folder", e))?;
        let path = spec.folder.join(format!("{}.content", spec.name));
        let content = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .map_err(|e| io("making its content", e))?;
        content.set_len(spec.size).map_err(|e| io("its size", e))?;
        if spec.mount_point.is_some() {
            make_file_system(spec.file_system, &path).map_err(program)?;
        }
        let started = Engine::start(content, &spec.medium, spec.seed);
        let (engine, thread) = started.map_err(|e| io("starting it", e))?;
        let session = fuse::mount(engine.clone(), &served_at, &crate::names::tag());
        let mut disk = Disk {
            engine,
            thread: Some(thread),
            session: Some(session.map_err(|e| io("serving it by FUSE", e))?),
            served_at,
            loop_device: None,
            overhead: Duration::ZERO,
            spec: spec.clone(),
        };
        let file = disk.served_at.join(fuse::NAME);
        let arguments = [
            "--find",
            "--show",
            "--direct-io=on",
            &file.to_string_lossy(),
        ];
        let device = host::run("losetup", &arguments).map_err(program)?;
        disk.loop_device = Some(device.trim().to_owned());
        if let Some(at) = &disk.spec.mount_point {
            std::fs::create_dir_all(at).map_err(|e| io("making its mount point", e))?;
            let arguments = [
                "-t",
                disk.spec.file_system.name(),
                "-o",
                "noatime",
                device.trim(),
                &at.to_string_lossy(),
            ];
            host::run("mount", &arguments).map_err(program)?;
        }
        Ok(disk)
    }

    /// Measures the way of a request through this host (FUSE and loop device), which becomes part
    /// of each answer's time. From now on the disk takes its time.
    pub fn calibrate(&mut self) -> Result<Duration, DiskError> {
        let device = self.loop_device.clone().unwrap_or_default();
        let overhead = read_time(Path::new(&device)).map_err(|source| DiskError::Io {
            name: self.spec.name.clone(),
            what: format!("reading {device}"),
            source,
        })?;
        self.overhead = overhead;
        self.engine.set_overhead(overhead);
        self.engine.set_free(false);
        Ok(overhead)
    }

    pub fn name(&self) -> &str {
        &self.spec.name
    }

    pub fn loop_device(&self) -> &str {
        self.loop_device.as_deref().unwrap_or_default()
    }

    pub fn overhead(&self) -> Duration {
        self.overhead
    }

    pub fn counts(&self) -> DiskCounts {
        self.engine.counts()
    }

    /// From now on it takes no time.
    pub fn set_free(&self) {
        self.engine.set_free(true);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.engine.set_free(true);
        if let Some(at) = &self.spec.mount_point {
            unmount(at);
        }
        if let Some(device) = &self.loop_device {
            let _ = host::run("losetup", &["-d", device]);
        }
        // Not the session's own way: that waits for the file to be closed, which the loop device
        // does when the last user of the file system has.
        let _ = host::run("umount", &["--lazy", &self.served_at.to_string_lossy()]);
        self.engine.end();
        if let Some(session) = self.session.take() {
            drop(session);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(self.spec.folder.join(format!("{}.content", self.spec.name)));
    }
}

fn make_file_system(file_system: FileSystem, on: &Path) -> Result<String, ProgramError> {
    let on = on.to_string_lossy();
    // Nothing is left to be initialised later.
    let now = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
    match file_system {
        FileSystem::Ext4 => host::run(
            "mkfs.ext4",
            &["-q", "-F", "-b", "4096", "-i", "16384", "-E", now, &on],
        ),
        FileSystem::Xfs => host::run("mkfs.xfs", &["-q", "-f", "-K", &on]),
    }
}

/// At once where nobody uses it; else out of sight now, and gone with its last user.
fn unmount(at: &Path) {
    let at = at.to_string_lossy();
    for _ in 0..20 {
        match host::run("umount", &[&at]) {
            Err(error) if error.words.contains("busy") => {
                std::thread::sleep(Duration::from_millis(50));
            }
            _ => return,
        }
    }
    let _ = host::run("umount", &["--lazy", &at]);
}

/// The median time of a direct read of one block.
fn read_time(device: &Path) -> io::Result<Duration> {
    let mut reader = DirectReader::open(device)?;
    let mut times = Vec::new();
    for number in 0..CALIBRATION_READS as u64 {
        let began = Instant::now();
        reader.read(number * BLOCK as u64, 1)?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// Reads a device past the page cache.
pub struct DirectReader {
    file: File,
    buffer: Vec<u8>,
}

impl DirectReader {
    /// Blocks of a read at most.
    pub const BLOCKS_MAX: usize = 256;

    pub fn open(device: &Path) -> io::Result<DirectReader> {
        let mut options = File::options();
        options
            .read(true)
            .custom_flags(OFlags::DIRECT.bits() as i32);
        Ok(DirectReader {
            file: options.open(device)?,
            buffer: vec![0; (DirectReader::BLOCKS_MAX + 1) * BLOCK],
        })
    }

    /// Reads whole blocks of 4 KiB.
    pub fn read(&mut self, offset: u64, blocks: usize) -> io::Result<()> {
        // Direct I/O wants memory that begins at a block.
        let from = self.buffer.as_ptr().align_offset(BLOCK);
        let blocks = blocks.clamp(1, DirectReader::BLOCKS_MAX);
        let into = &mut self.buffer[from..from + blocks * BLOCK];
        self.file.seek(SeekFrom::Start(offset))?;
        self.file.read_exact(into)
    }
}
