//! The machine under a device: its threads, clocks and syncs. A server's is this computer; the cluster
//! simulator has its own, so that a crash loses what was not synced and a seed repeats itself, and so
//! have tests of failures.

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::group::{self, GroupSync};
use crate::worker::Employer;

/// A simulated machine. Each method stands for what this computer would do, and does it by default.
pub trait Machine: Debug + Send + Sync {
    /// Runs workers in place of threads.
    fn employer(&self) -> Option<&dyn Employer> {
        None
    }

    /// This moment, by the clock that durations are measured by.
    fn instant(&self) -> Instant {
        Instant::now()
    }

    /// Seconds since the epoch.
    fn now(&self) -> i64 {
        wall_clock()
    }

    /// Asked before so many bytes are written; an error is that of the write.
    ///
    /// # Errors
    /// That of the write.
    fn write(&self, _bytes: u64) -> io::Result<()> {
        Ok(())
    }

    /// `fsync` of a file or directory.
    ///
    /// # Errors
    /// Data may be lost.
    fn sync(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        group::fsync(file)
    }

    /// `fdatasync` of a file.
    ///
    /// # Errors
    /// Data may be lost.
    fn sync_content(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.sync(file)
    }

    /// The group syncs of its file system; without them each set is synced by itself.
    fn group(&self) -> Option<Arc<GroupSync>> {
        None
    }
}

/// This moment, on a machine.
pub(crate) fn instant(machine: Option<&Arc<dyn Machine>>) -> Instant {
    machine.map_or_else(Instant::now, |machine| machine.instant())
}

/// Seconds since the epoch by this computer's clock.
pub fn wall_clock() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |d| d.as_secs() as i64)
}
