//! Set-associative cache of recent events by key, for instance the last read of a file: a large
//! object that is read again stays in the page cache.
//!
//! A file's key is device, inode, size, modification and change time: any write to it or to its
//! attributes changes the last.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cairn_types::plant;
use rustix::fs::Stat;

/// Entries per bucket.
const WAYS: usize = 4;
/// Bits of an entry for its time in seconds; the rest are the key's fingerprint.
const TIME_BITS: u32 = 24;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;

/// Identity of one content of one file.
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
        // The simulator's rot is a write and would change the change time, unlike a disk's.
        let changed = match plant::ARE_COMPILED {
            true => (0, 0),
            false => (stat.st_ctime, stat.st_ctime_nsec as i64),
        };
        FileIdentity {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: stat.st_size as u64,
            modified: (stat.st_mtime, stat.st_mtime_nsec as i64),
            changed,
        }
    }

    pub(crate) fn device(&self) -> u64 {
        self.device
    }

    pub(crate) fn inode(&self) -> u64 {
        self.inode
    }

    /// Seconds since 1970.
    pub(crate) fn last_change(&self) -> i64 {
        self.changed.0.max(self.modified.0)
    }
}

/// Times of the last event per key, in a bounded cache of eight bytes per entry. A key is
/// represented by a 40-bit fingerprint of its hash, and evicted by four newer ones in its bucket.
pub(crate) struct EventTimes<K> {
    buckets: Box<[[AtomicU64; WAYS]]>,
    started: Instant,
    key: PhantomData<fn(K)>,
}

impl<K: Hash> EventTimes<K> {
    /// Creates a cache of this capacity.
    pub(crate) fn new(entries: usize) -> Self {
        let bucket = |_| std::array::from_fn(|_| AtomicU64::new(0));
        EventTimes {
            buckets: (0..entries.div_ceil(WAYS).max(1)).map(bucket).collect(),
            started: Instant::now(),
            key: PhantomData,
        }
    }

    /// Whether the last event was within `interval`, in whole seconds.
    pub(crate) fn is_fresh(&self, key: &K, interval: Duration) -> bool {
        let (bucket, fingerprint) = self.bucket(key);
        let noted = bucket.iter().map(|entry| entry.load(Ordering::Relaxed));
        let mut noted = noted.filter(|entry| entry & !TIME_MASK == fingerprint);
        noted.any(|entry| self.age(entry) < interval.as_secs())
    }

    pub(crate) fn insert(&self, key: &K) {
        let (bucket, fingerprint) = self.bucket(key);
        let age = |entry: &&AtomicU64| match entry.load(Ordering::Relaxed) {
            entry if entry & !TIME_MASK == fingerprint => u64::MAX,
            0 => u64::MAX - 1,
            entry => self.age(entry),
        };
        if let Some(oldest) = bucket.iter().max_by_key(age) {
            oldest.store(fingerprint | self.second(), Ordering::Relaxed);
        }
    }

    fn bucket(&self, key: &K) -> (&[AtomicU64; WAYS], u64) {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(key);
        // A fingerprint of zero would look like an empty entry.
        let fingerprint = (hash | 1 << TIME_BITS) & !TIME_MASK;
        (
            &self.buckets[hash as usize % self.buckets.len()],
            fingerprint,
        )
    }

    fn second(&self) -> u64 {
        self.started.elapsed().as_secs() & TIME_MASK
    }

    fn age(&self, entry: u64) -> u64 {
        self.second().wrapping_sub(entry) & TIME_MASK
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_was_long_ago_is_not_fresh() {
        let recent = EventTimes::new(100);
        assert!(!recent.is_fresh(&1, Duration::from_secs(3600)));
        recent.insert(&1);
        assert!(recent.is_fresh(&1, Duration::from_secs(3600)));
        assert!(!recent.is_fresh(&1, Duration::ZERO));
    }

    #[test]
    fn a_full_place_forgets_one() {
        let recent = EventTimes::new(WAYS);
        let hour = Duration::from_secs(3600);
        let fresh = |recent: &EventTimes<u32>| (0..9).filter(|n| recent.is_fresh(n, hour)).count();
        for number in 0..9 {
            recent.insert(&number);
            recent.insert(&number);
            assert!(recent.is_fresh(&number, hour));
            assert_eq!(WAYS.min(number as usize + 1), fresh(&recent));
        }
    }
}
