//! Lock of a partition directory (`flock` of `<partition>/.lock`), which Swift's replicator and
//! servers hold around changes to `hashes.pkl` and `hashes.invalid`.

use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::device_pool::Disk;
use crate::error::DiskError;
use crate::staged_file::make_dirs;

/// Swift's timeout for this lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_INTERVAL: Duration = Duration::from_millis(2);

/// Guard of the lock.
pub(crate) struct PartitionLock<'a> {
    _file: OwnedFd,
    /// Serialises our own threads, so that they do not poll each other's lock.
    _threads: MutexGuard<'a, ()>,
}

impl<'a> PartitionLock<'a> {
    /// Acquires the lock; creates a missing partition directory.
    pub(crate) fn acquire(disk: &'a Disk, partition_dir: &str) -> Result<Self, DiskError> {
        let threads = disk.partition_mutex(partition_dir);
        let path = format!("{partition_dir}/.lock");
        let mut file = open_lock(disk, partition_dir, &path)?;
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // The partition was removed while we waited: this lock is void.
                Ok(()) if is_unlinked(&file) => file = open_lock(disk, partition_dir, &path)?,
                Ok(()) => break,
                Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => {
                    thread::sleep(RETRY_INTERVAL);
                }
                Err(errno) => return Err(DiskError::from_errno("lock", path, errno)),
            }
        }
        Ok(PartitionLock {
            _file: file,
            _threads: threads,
        })
    }
}

fn is_unlinked(file: &OwnedFd) -> bool {
    rustix::fs::fstat(file).is_ok_and(|stat| stat.st_nlink == 0)
}

fn open_lock(disk: &Disk, partition_dir: &str, path: &str) -> Result<OwnedFd, DiskError> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
    let open = || rustix::fs::openat(disk.fd(), path, flags, Mode::from_raw_mode(0o600));
    match open() {
        Err(Errno::NOENT) => {
            make_dirs(disk, partition_dir)?;
            open()
        }
        other => other,
    }
    .map_err(|errno| DiskError::from_errno("open", path, errno))
}
