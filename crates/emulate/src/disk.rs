//! An emulated disk: a sparse file served by [`engine`] through FUSE, a loop device with direct I/O
//! on it, and a real file system mounted from the loop device.

mod engine;
mod fuse;

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
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

/// Number of reads that measure the host's own overhead.
const CALIBRATION_READS: usize = 400;
const BLOCK: usize = 4096;
/// Latency of reads beyond which the kernel throttles write-back, of a block device; 0: never.
const WRITE_THROTTLE: &str = "queue/wbt_lat_usec";

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

/// Specification of a disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DiskSpec {
    pub name: String,
    /// Folder of its files and mount points.
    pub folder: PathBuf,
    /// Mount point; `None`: no file system, only the loop device.
    pub mount_point: Option<PathBuf>,
    pub file_system: FileSystem,
    pub size: u64,
    /// Service-time model in this host's time.
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

/// An existing disk, removed when dropped.
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
    /// Creates the disk; its service times are zero until [`Disk::calibrate`] is called.
    ///
    /// # Errors
    /// `Io` if its files, threads or FUSE cannot be set up; `Program` if mkfs, losetup or mount
    /// fails.
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
        throttle_writes(device.trim(), false).map_err(|e| io("its writes' throttling", e))?;
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

    /// Measures the overhead of a request on this host (FUSE and loop device), which becomes part
    /// of each service time, and enables the service times.
    ///
    /// # Errors
    /// `Io` if the loop device cannot be read.
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

    /// Turns the service times off, so that requests take no emulated time, or on.
    pub fn set_free(&self, is_free: bool) {
        self.engine.set_free(is_free);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.engine.set_free(true);
        if let Some(at) = &self.spec.mount_point {
            unmount(at);
        }
        if let Some(device) = &self.loop_device {
            let _ = throttle_writes(device, true);
            let _ = host::run("losetup", &["-d", device]);
        }
        // Not through the FUSE session: its unmount waits for the backing file to be closed, which
        // the loop device does only when the last user of the file system has gone.
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

/// Switches the kernel's throttling of write-back on a block device off, or back to its default. The
/// throttle admits fewer writes at a time, down to one, while no read is answered within 2 ms of this
/// host: a disk whose times are dilated is always that slow, so its writes would wait beside reads
/// as those of the disk that it stands for do not. Kernels without the throttle have no such file, or
/// refuse the value.
fn throttle_writes(device: &str, throttles: bool) -> io::Result<()> {
    let name = device.trim_start_matches("/dev/");
    let path = Path::new("/sys/block").join(name).join(WRITE_THROTTLE);
    let value = match throttles {
        true => "-1",
        false => "0",
    };
    match std::fs::write(path, value) {
        Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput) => {
            Err(error)
        }
        _ => Ok(()),
    }
}

fn make_file_system(file_system: FileSystem, on: &Path) -> Result<String, ProgramError> {
    let on = on.to_string_lossy();
    // Initialise everything now: nothing is left for the file system's lazy initialisation.
    let now = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
    match file_system {
        FileSystem::Ext4 => host::run(
            "mkfs.ext4",
            &["-q", "-F", "-b", "4096", "-i", "16384", "-E", now, &on],
        ),
        FileSystem::Xfs => host::run("mkfs.xfs", &["-q", "-f", "-K", &on]),
    }
}

/// Unmounts at once if nobody uses the file system; otherwise detaches it now (a lazy unmount), and
/// the kernel removes it with its last user.
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

/// Median time of a direct read of one block.
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

/// Reads a device by direct I/O, without the page cache.
pub struct DirectReader {
    file: File,
    buffer: Vec<u8>,
}

impl DirectReader {
    /// Maximum number of blocks of a read.
    pub const BLOCKS_MAX: usize = 256;

    /// Opens a device.
    ///
    /// # Errors
    /// The device cannot be opened, or not for direct I/O.
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
    ///
    /// # Errors
    /// The blocks are beyond the device's end, or cannot be read.
    pub fn read(&mut self, offset: u64, blocks: usize) -> io::Result<()> {
        // Direct I/O needs memory aligned to a block.
        let from = self.buffer.as_ptr().align_offset(BLOCK);
        let blocks = blocks.clamp(1, DirectReader::BLOCKS_MAX);
        let into = &mut self.buffer[from..from + blocks * BLOCK];
        self.file.seek(SeekFrom::Start(offset))?;
        self.file.read_exact(into)
    }
}
