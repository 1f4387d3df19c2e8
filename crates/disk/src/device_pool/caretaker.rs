//! Looks after devices that nobody uses, and after those that failed.
//!
//! An open directory keeps its file system from being unmounted. It is closed after a few idle
//! seconds; at once where the device was unmounted lazily, which only then comes to its end. It is
//! never closed while an operation holds it: what was written is synced by what was open before.
//!
//! A device that failed takes writes again when all this process had open of it was closed, it was
//! seen unmounted and mounted again, and passes a check.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use rustix::fs::{Advice, Mode, OFlags};

use super::{DeviceState, Devices, Disk};
use crate::staged_file::{fsync, remove_file, unique};

/// Between two looks, at most.
const LOOK: Duration = Duration::from_secs(1);
const LOOK_MIN: Duration = Duration::from_millis(10);
const CHECK_FILE: &str = ".cairn-check";
const CHECK_BYTES: usize = 64 << 10;

/// Starts the thread; it ends when the devices are dropped.
pub(super) fn start(devices: &Arc<Devices>) {
    let interval = (devices.config.idle_close / 2).clamp(LOOK_MIN, LOOK);
    let devices = Arc::downgrade(devices);
    let thread = thread::Builder::new().name("disk-idle".into());
    let spawned = thread.spawn(move || {
        loop {
            thread::sleep(interval);
            let Some(devices) = devices.upgrade() else {
                return;
            };
            for device in devices.known() {
                device.state.look_after(devices.config.idle_close);
            }
        }
    });
    if let Err(error) = spawned {
        tracing::error!(%error, "no thread to close idle devices");
    }
}

impl DeviceState {
    /// Closes what has been idle that long, and readmits a failed device that was mounted anew.
    fn look_after(self: &Arc<Self>, idle: Duration) {
        let is_there = self.identity().is_ok();
        let is_closed = self.close_unused(match is_there {
            true => idle,
            false => Duration::ZERO,
        });
        if !self.poisoned.load(Ordering::Acquire) {
            return;
        }
        if !is_there {
            if is_closed {
                self.was_away.store(true, Ordering::Release);
            }
        } else if self.was_away.load(Ordering::Acquire) {
            self.readmit();
            self.was_away.store(false, Ordering::Release);
        }
    }

    fn readmit(self: &Arc<Self>) {
        let device = &*self.name;
        let checked = self.disk().map_err(io::Error::other);
        match checked.and_then(|disk| check(&disk)) {
            Ok(()) => {
                self.poisoned.store(false, Ordering::Release);
                tracing::warn!(
                    device,
                    "a device that had failed is mounted again and passed a check: it takes writes"
                );
            }
            Err(error) => tracing::error!(
                device, %error,
                "a device that had failed is mounted again, but failed a check: it takes no writes"
            ),
        }
    }
}

/// Something is written, synced, dropped from the page cache, and read again.
fn check(disk: &Disk) -> io::Result<()> {
    let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o600);
    let file = File::from(rustix::fs::openat(disk.fd(), CHECK_FILE, flags, mode)?);
    let mut written = unique().into_bytes();
    written.resize(CHECK_BYTES, b'.');
    file.write_all_at(&written, 0)?;
    fsync(disk, file.as_fd())?;
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
    let mut read = vec![0; CHECK_BYTES];
    file.read_exact_at(&mut read, 0)?;
    if read != written {
        return Err(io::Error::other("what is read is not what was written"));
    }
    remove_file(disk.fd(), CHECK_FILE)?;
    fsync(disk, disk.fd())
}
