//! Which files were read whole and found to match their checksum lately, so that hot objects
//! are not hashed again on every read.
//!
//! A file is known by device, inode, size, modification and change time: any write to it, also
//! of its attributes, moves the change time and so asks for a new check. Rot on the disk under
//! an unchanged file is found at the next check after the interval, and by the auditor.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::Stat;

const SHARDS: usize = 16;
/// Entries of one shard; a full shard starts anew.
const SHARD_ENTRIES: usize = 8192;

/// One content of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileIdentity {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileIdentity {
    pub(crate) fn of(stat: &Stat) -> Self {
        FileIdentity {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: stat.st_size as u64,
            modified: (stat.st_mtime, stat.st_mtime_nsec as i64),
            changed: (stat.st_ctime, stat.st_ctime_nsec as i64),
        }
    }

    pub(crate) fn inode(&self) -> u64 {
        self.inode
    }

    /// Seconds since 1970.
    pub(crate) fn last_change(&self) -> i64 {
        self.changed.0.max(self.modified.0)
    }
}

pub(crate) struct VerifiedCache {
    shards: [Mutex<HashMap<FileIdentity, Instant>>; SHARDS],
}

impl VerifiedCache {
    pub(crate) fn new() -> Self {
        VerifiedCache {
            shards: std::array::from_fn(|_| Mutex::default()),
        }
    }

    pub(crate) fn is_fresh(&self, file: &FileIdentity, interval: Duration) -> bool {
        let shard = self.shard(file).lock();
        let shard = shard.unwrap_or_else(PoisonError::into_inner);
        shard.get(file).is_some_and(|at| at.elapsed() < interval)
    }

    pub(crate) fn insert(&self, file: FileIdentity) {
        let shard = self.shard(&file).lock();
        let mut shard = shard.unwrap_or_else(PoisonError::into_inner);
        if shard.len() >= SHARD_ENTRIES {
            shard.clear();
        }
        shard.insert(file, Instant::now());
    }

    fn shard(&self, file: &FileIdentity) -> &Mutex<HashMap<FileIdentity, Instant>> {
        &self.shards[file.inode as usize % SHARDS]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_changed_file_is_another() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let stat = || FileIdentity::of(&rustix::fs::stat(file.path()).unwrap());
        let cache = VerifiedCache::new();
        let hour = Duration::from_secs(3600);
        assert!(!cache.is_fresh(&stat(), hour));
        cache.insert(stat());
        assert!(cache.is_fresh(&stat(), hour));
        assert!(!cache.is_fresh(&stat(), Duration::ZERO));
        std::fs::write(file.path(), "x").unwrap();
        assert!(!cache.is_fresh(&stat(), hour));
    }
}
