//! Caretaker thread: closes idle devices, readmits failed ones, and restores reserves.
//!
//! An open directory prevents the unmount of its file system. It is closed after a few idle
//! seconds, and at once if the device was unmounted lazily, which completes only then. It is never
//! closed while an operation uses it: writes are synced by descriptors opened before them.
//!
//! A failed device takes writes again once everything this process had open of it was closed, it
//! was seen unmounted and mounted again, and it passes a check. For a device that is no mount, an
//! operator requests that by touching a file on it: the check then runs once no operation from
//! before the failure remains, and another attempt needs another touch.
//!
//! A spent reserve (`room.rs`) is made again.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use cairn_types::blocks::Block;
use parking_lot::Mutex;
use rustix::fs::{Advice, Mode, OFlags};
use rustix::io::Errno;

use super::{DeviceState, Devices, Disk};
use crate::file_ops::{fsync, remove_file, unique};
use crate::hot::FileIdentity;
use crate::room;

/// Maximum interval of the caretaker's rounds.
const ROUND_INTERVAL_MAX: Duration = Duration::from_secs(1);
const ROUND_INTERVAL_MIN: Duration = Duration::from_millis(10);
/// Rounds between checks of the reserve.
const ROUNDS_PER_RESERVE_CHECK: u64 = 10;
const CHECK_FILE: &str = ".cairn-check";
const CHECK_BYTES: usize = 64 << 10;
/// File on a device that its operator touches to request readmission.
const READMIT_FILE: &str = ".readmit";

/// Progress of a failed device towards readmission.
pub(super) struct Readmission {
    /// Whether it was seen unmounted, with nothing of it open here.
    pub(super) was_unmounted: AtomicBool,
    request: Mutex<ReadmitRequest>,
}

/// The operator's request to readmit a failed device.
struct ReadmitRequest {
    /// Identity of the touched file when last seen.
    seen: Option<FileIdentity>,
    /// Whether a request is pending: it is served once no directory opened earlier is in use.
    is_pending: bool,
}

impl Readmission {
    pub(super) fn of(device: &Path) -> Readmission {
        let request = ReadmitRequest {
            seen: readmit_file_identity(device),
            is_pending: false,
        };
        Readmission {
            was_unmounted: AtomicBool::new(false),
            request: Mutex::new(request),
        }
    }
}

fn readmit_file_identity(device: &Path) -> Option<FileIdentity> {
    let stat = rustix::fs::stat(device.join(READMIT_FILE)).ok()?;
    Some(FileIdentity::of(&stat))
}

/// Starts the thread; it exits when the devices are dropped.
pub(super) fn start(devices: &Arc<Devices>) {
    let interval = (devices.config.idle_close / 2).clamp(ROUND_INTERVAL_MIN, ROUND_INTERVAL_MAX);
    let devices = Arc::downgrade(devices);
    let thread = thread::Builder::new().name("disk-idle".into());
    let spawned = thread.spawn(move || {
        for look in 1_u64.. {
            thread::sleep(interval);
            let Some(devices) = devices.upgrade() else {
                return;
            };
            let known = devices.known();
            for device in &known {
                device.state.run_round(devices.config.idle_close);
            }
            if look.is_multiple_of(ROUNDS_PER_RESERVE_CHECK) {
                known
                    .iter()
                    .for_each(|device| device.state.restore_reserve());
            }
        }
    });
    if let Err(error) = spawned {
        tracing::error!(%error, "no thread to close idle devices");
    }
}

impl DeviceState {
    /// Closes the device if idle, and readmits a failed one that was mounted again or whose
    /// operator requested it.
    fn run_round(self: &Arc<Self>, idle: Duration) {
        let is_there = self.identity().is_ok();
        let is_closed = self.close_unused(match is_there {
            true => idle,
            false => Duration::ZERO,
        });
        let is_failed = self.poisoned.load(Ordering::Acquire);
        let was_unmounted = &self.readmission.was_unmounted;
        if !is_there {
            if is_failed && is_closed {
                was_unmounted.store(true, Ordering::Release);
            }
            return;
        }
        // Polled for healthy devices, too: only a touch after the failure counts.
        let is_requested = self.is_requested(is_failed);
        if is_failed && (was_unmounted.load(Ordering::Acquire) || is_requested) {
            self.readmit();
            was_unmounted.store(false, Ordering::Release);
        }
    }

    /// Reserves room again on a device that others fill: by replicators, after it was wiped.
    fn restore_reserve(&self) {
        let is_failed = self.poisoned.load(Ordering::Acquire);
        if is_failed || self.room.is_unsupported.load(Ordering::Relaxed) {
            return;
        }
        let Ok(identity) = self.identity() else {
            return;
        };
        match room::restore(&self.path, identity) {
            Ok(kept) => kept.into_iter().for_each(|kept| self.room.note(kept)),
            Err(error) => tracing::debug!(device = %self.name, %error, "no room set aside"),
        }
    }

    /// Whether the operator requested readmission, and no directory opened earlier is in use.
    fn is_requested(&self, is_failed: bool) -> bool {
        let mut request = self.readmission.request.lock();
        let now = readmit_file_identity(&self.path);
        if now != request.seen {
            let is_pending = is_failed && now.is_some();
            request.seen = now;
            request.is_pending = is_pending;
            if is_pending {
                self.retire();
            }
        }
        request.is_pending && self.is_former_closed() && std::mem::take(&mut request.is_pending)
    }

    fn readmit(self: &Arc<Self>) {
        let device = &*self.name;
        let checked = self.disk().map_err(io::Error::other);
        match checked.and_then(|disk| check(&disk)) {
            Ok(()) => {
                self.verified.forget_all();
                self.unreadable.forget_all();
                self.poisoned.store(false, Ordering::Release);
                tracing::warn!(
                    device,
                    "a device that had failed was tried again and passed a check: it takes writes"
                );
            }
            Err(error) => tracing::error!(
                device, %error,
                "a device that had failed was tried again and failed a check: it takes no writes"
            ),
        }
    }
}

/// Writes and syncs a file, drops it from the page cache, and reads it back.
fn check(disk: &Disk) -> io::Result<()> {
    let file = open_check_file(disk, OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY)?;
    let mut written = unique().into_bytes();
    written.resize(CHECK_BYTES, b'.');
    file.write_all_at(&written, 0)?;
    fsync(disk.machine(), file.as_fd())?;
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
    drop(file);
    if read_back(disk)? != written {
        return Err(io::Error::other("what is read is not what was written"));
    }
    remove_file(disk.fd(), CHECK_FILE)?;
    fsync(disk.machine(), disk.fd())
}

/// Content of the check's file on the device. Read past the page cache, of which the kernel may keep
/// what it was advised to drop; a file system without `O_DIRECT` is read as usual.
fn read_back(disk: &Disk) -> io::Result<Vec<u8>> {
    // Direct reads need aligned memory.
    let mut block = Block::take()?;
    let read = &mut block.spare()[..CHECK_BYTES];
    let direct = open_check_file(disk, OFlags::RDONLY | OFlags::DIRECT);
    match direct.and_then(|file| file.read_exact_at(read, 0)) {
        // Refused by the opening, or by the read.
        Err(error) if is_unsupported(&error) => {
            open_check_file(disk, OFlags::RDONLY)?.read_exact_at(read, 0)?;
        }
        outcome => outcome?,
    }
    Ok(read.to_vec())
}

fn is_unsupported(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::INVAL | Errno::OPNOTSUPP))
}

fn open_check_file(disk: &Disk, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o600);
    let file = rustix::fs::openat(disk.fd(), CHECK_FILE, flags, mode)?;
    Ok(File::from(file))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::device_pool::DevicesConfig;

    /// Runs `test` on a device below a folder, after writing the check's file there.
    fn with_check_file(root: &Path, test: impl FnOnce(&Disk, &[u8])) {
        std::fs::create_dir(root.join("sda1")).unwrap();
        let mut config = DevicesConfig::new(root);
        config.mount_check = false;
        let devices = Devices::new(config);
        let disk = devices.get("sda1").unwrap().disk().unwrap();
        let written = vec![b'x'; CHECK_BYTES];
        let file = open_check_file(&disk, OFlags::CREATE | OFlags::WRONLY).unwrap();
        file.write_all_at(&written, 0).unwrap();
        file.sync_all().unwrap();
        test(&disk, &written);
    }

    /// Bytes that this thread made storage read.
    fn bytes_read() -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/io").unwrap();
        let mut lines = text.lines();
        let count = lines.find_map(|line| line.strip_prefix("read_bytes: "));
        count.unwrap().parse().unwrap()
    }

    #[test]
    fn the_check_reads_the_device_though_the_page_cache_has_its_file() {
        let root = tempfile::tempdir().unwrap();
        with_check_file(root.path(), |disk, written| {
            if open_check_file(disk, OFlags::RDONLY | OFlags::DIRECT).is_err() {
                println!("skipped: no O_DIRECT in the temporary directory");
                return;
            }
            let before = bytes_read();
            assert_eq!(read_back(disk).unwrap(), written);
            assert!(bytes_read() - before >= CHECK_BYTES as u64);
        });
    }

    #[test]
    fn a_file_system_without_direct_reads_is_read_as_usual() {
        assert!(is_unsupported(&Errno::INVAL.into()));
        assert!(is_unsupported(&Errno::OPNOTSUPP.into()));
        assert!(!is_unsupported(&Errno::IO.into()));
        let Ok(root) = tempfile::tempdir_in("/dev/shm") else {
            println!("skipped: no file system at /dev/shm");
            return;
        };
        with_check_file(root.path(), |disk, written| {
            assert_eq!(read_back(disk).unwrap(), written);
        });
    }
}
