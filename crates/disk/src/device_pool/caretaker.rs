//! Looks after devices that nobody uses, and after those that failed.
//!
//! An open directory keeps its file system from being unmounted. It is closed after a few idle
//! seconds; at once where the device was unmounted lazily, which only then comes to its end. It is
//! never closed while an operation holds it: what was written is synced by what was open before.
//!
//! A device that failed takes writes again when all this process had open of it was closed, it was
//! seen unmounted and mounted again, and passes a check. So it does where an operator says so by
//! touching a file on it, for devices that are no mounts: nothing that was under way when it failed
//! is under way any more then, and the next word needs another touch.
//!
//! Where room is no longer set aside (`room.rs`), it is made again.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{Advice, Mode, OFlags};

use super::{DeviceState, Devices, Disk};
use crate::recent::FileIdentity;
use crate::room;
use crate::staged_file::{fsync, remove_file, unique};

/// Between two looks, at most.
const LOOK: Duration = Duration::from_secs(1);
const LOOK_MIN: Duration = Duration::from_millis(10);
/// Looks from one at the room set aside to the next.
const LOOKS_FOR_ROOM: u64 = 10;
const CHECK_FILE: &str = ".cairn-check";
const CHECK_BYTES: usize = 64 << 10;
/// File of a device that its operator touches to have it tried again.
const WORD: &str = ".readmit";

/// The way of a failed device back into service.
pub(super) struct Readmission {
    /// It was unmounted since, and nothing of it was open here.
    pub(super) was_away: AtomicBool,
    word: Mutex<Word>,
}

/// The operator's word that a failed device is to be tried again.
struct Word {
    /// The touched file, as it was seen last.
    seen: Option<FileIdentity>,
    /// It was given: once nobody holds a directory that was open before the device is tried.
    is_given: bool,
}

impl Readmission {
    pub(super) fn of(device: &Path) -> Readmission {
        let word = Word {
            seen: word_of(device),
            is_given: false,
        };
        Readmission {
            was_away: AtomicBool::new(false),
            word: Mutex::new(word),
        }
    }
}

fn word_of(device: &Path) -> Option<FileIdentity> {
    let stat = rustix::fs::stat(device.join(WORD)).ok()?;
    Some(FileIdentity::of(&stat))
}

/// Starts the thread; it ends when the devices are dropped.
pub(super) fn start(devices: &Arc<Devices>) {
    let interval = (devices.config.idle_close / 2).clamp(LOOK_MIN, LOOK);
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
                device.state.look_after(devices.config.idle_close);
            }
            if look.is_multiple_of(LOOKS_FOR_ROOM) {
                known.iter().for_each(|device| device.state.keep_room());
            }
        }
    });
    if let Err(error) = spawned {
        tracing::error!(%error, "no thread to close idle devices");
    }
}

impl DeviceState {
    /// Closes what has been idle that long, and readmits a failed device that was mounted anew, or is
    /// to be tried again.
    fn look_after(self: &Arc<Self>, idle: Duration) {
        let is_there = self.identity().is_ok();
        let is_closed = self.close_unused(match is_there {
            true => idle,
            false => Duration::ZERO,
        });
        let is_failed = self.poisoned.load(Ordering::Acquire);
        let was_away = &self.readmission.was_away;
        if !is_there {
            if is_failed && is_closed {
                was_away.store(true, Ordering::Release);
            }
            return;
        }
        // Asked of those that are well, too: a word counts that was given since.
        let is_told = self.is_told(is_failed);
        if is_failed && (was_away.load(Ordering::Acquire) || is_told) {
            self.readmit();
            was_away.store(false, Ordering::Release);
        }
    }

    /// Sets room aside again on a device that is filled by others: by replicators, after it was wiped.
    fn keep_room(&self) {
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

    /// Whether an operator has had the device tried again, and nobody holds what was open before.
    fn is_told(&self, is_failed: bool) -> bool {
        let mut word = self.readmission.word.lock();
        let now = word_of(&self.path);
        if now != word.seen {
            let is_given = is_failed && now.is_some();
            word.seen = now;
            word.is_given = is_given;
            if is_given {
                self.retire();
            }
        }
        word.is_given && self.is_left() && std::mem::take(&mut word.is_given)
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

/// Something is written, synced, dropped from the page cache, and read again as if by another.
fn check(disk: &Disk) -> io::Result<()> {
    let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = |flags| rustix::fs::openat(disk.fd(), CHECK_FILE, flags, Mode::from_raw_mode(0o600));
    let making = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY;
    let file = File::from(open(flags | making)?);
    let mut written = unique().into_bytes();
    written.resize(CHECK_BYTES, b'.');
    file.write_all_at(&written, 0)?;
    fsync(disk, file.as_fd())?;
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
    drop(file);
    let file = File::from(open(flags | OFlags::RDONLY)?);
    let mut read = vec![0; CHECK_BYTES];
    file.read_exact_at(&mut read, 0)?;
    if read != written {
        return Err(io::Error::other("what is read is not what was written"));
    }
    remove_file(disk.fd(), CHECK_FILE)?;
    fsync(disk, disk.fd())
}
