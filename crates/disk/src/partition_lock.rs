//! The lock of a partition directory (`<partition>/.lock`, flock), which Swift's replicator and
//! servers take around changes to `hashes.pkl` and `hashes.invalid`.

use std::os::fd::OwnedFd;
use std::sync::MutexGuard;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::device_pool::Disk;
use crate::error::DiskError;
use crate::staged_file::make_dirs;

/// Swift's own patience with this lock.
const TIMEOUT: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_millis(2);

/// Held until dropped.
pub(crate) struct PartitionLock<'a> {
    _file: OwnedFd,
    /// Our own threads queue up here and do not poll each other's lock.
    _threads: MutexGuard<'a, ()>,
}

impl<'a> PartitionLock<'a> {
    /// Makes the partition's directory where it is missing.
    pub(crate) fn acquire(disk: &'a Disk, partition_dir: &str) -> Result<Self, DiskError> {
        let threads = disk.partition_mutex(partition_dir);
        let path = format!("{partition_dir}/.lock");
        let mut file = open_lock(disk, partition_dir, &path)?;
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // The partition was removed while we waited: this lock locks nothing any more.
                Ok(()) if is_unlinked(&file) => file = open_lock(disk, partition_dir, &path)?,
                Ok(()) => break,
                Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => {
                    thread::sleep(RETRY);
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
