//! What was done with a file lately.
//!
//! Read whole and found to match its checksum: hot objects are not hashed again on every read.
//! Read at all: a large object that is read again stays in the page cache.
//!
//! A file is known by device, inode, size, modification and change time: any write to it, also
//! of its attributes, moves the change time and so asks for a new check. Rot on the disk under
//! an unchanged file is found at the next check after the interval, and by the auditor.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::Stat;

const SHARDS: usize = 16;

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

/// When something was last done with each of so many files, or parts of them.
pub(crate) struct Recent<K> {
    shards: [Mutex<HashMap<K, Instant>>; SHARDS],
    hasher: RandomState,
    /// Of one shard; a full shard starts anew.
    shard_entries: usize,
}

impl<K: Copy + Eq + Hash> Recent<K> {
    /// At most so many are remembered.
    pub(crate) fn new(entries: usize) -> Self {
        Recent {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            shard_entries: entries / SHARDS,
        }
    }

    pub(crate) fn is_fresh(&self, key: &K, interval: Duration) -> bool {
        let at = self.shard(key).get(key).copied();
        at.is_some_and(|at| at.elapsed() < interval)
    }

    pub(crate) fn insert(&self, key: K) {
        let mut shard = self.shard(&key);
        if shard.len() >= self.shard_entries && !shard.contains_key(&key) {
            shard.clear();
        }
        shard.insert(key, Instant::now());
    }

    fn shard(&self, key: &K) -> MutexGuard<'_, HashMap<K, Instant>> {
        let shard = self.hasher.hash_one(key) as usize % SHARDS;
        let shard = self.shards[shard].lock();
        shard.unwrap_or_else(PoisonError::into_inner)
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
        let cache = Recent::new(SHARDS);
        let hour = Duration::from_secs(3600);
        assert!(!cache.is_fresh(&stat(), hour));
        cache.insert(stat());
        assert!(cache.is_fresh(&stat(), hour));
        assert!(!cache.is_fresh(&stat(), Duration::ZERO));
        std::fs::write(file.path(), "x").unwrap();
        assert!(!cache.is_fresh(&stat(), hour));
    }

    #[test]
    fn memory_is_bounded() {
        let recent = Recent::new(SHARDS);
        for number in 0..1000 {
            recent.insert(number);
            assert!(recent.is_fresh(&number, Duration::from_secs(3600)));
        }
        let held: usize = recent.shards.iter().map(|s| s.lock().unwrap().len()).sum();
        assert!(held <= SHARDS);
    }
}
