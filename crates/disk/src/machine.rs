//! What may stand in for a device's threads, syncs, free space and clock: the cluster simulator's
//! own, so that a crash loses what was not synced and a seed replays exactly. Servers have none.

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{SystemTime, UNIX_EPOCH};

/// Work that a thread of the device would have done.
pub type Job = Box<dyn FnOnce() + Send>;

/// A simulated machine under a device.
pub trait Machine: Debug + Send + Sync {
    /// Takes a job, to be run later on the caller's own thread, or never.
    fn run(&self, job: Job);

    /// Stands for an fsync of a file or directory.
    fn sync(&self, file: BorrowedFd<'_>) -> io::Result<()>;

    /// Asked before so many bytes are written; an error is that of the write.
    fn write(&self, bytes: u64) -> io::Result<()>;

    /// Seconds since the epoch.
    fn now(&self) -> i64;
}

/// Seconds since the epoch by this computer's clock.
pub(crate) fn wall_clock() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |d| d.as_secs() as i64)
}
