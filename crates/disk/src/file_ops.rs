//! Operations on single files by descriptor, below all that knows a device: [`crate::staged_file`], which
//! makes objects durable, and the check of a device that has failed.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::AtFlags;
use rustix::io::Errno;

use crate::machine::Machine;

/// A text unique on this host.
pub(crate) fn unique() -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanos = now.map_or(0, |d| d.as_nanos() as u64);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    format!("{:x}{nanos:016x}{count:x}", std::process::id())
}

/// Syncs a file by its descriptor; on a simulated machine, by that.
pub(crate) fn fsync(machine: Option<&dyn Machine>, fd: BorrowedFd<'_>) -> std::io::Result<()> {
    if let Some(machine) = machine {
        return machine.sync(fd);
    }
    cairn_device::fsync(fd)
}

/// Removes a file, which may be missing. The removal need not survive a crash: an obsolete file is
/// found and removed again.
pub(crate) fn remove_file(dir: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}
