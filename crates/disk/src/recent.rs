//! When a file was read last: a large object that is read again stays in the page cache.
//!
//! A file is known by device, inode, size, modification and change time: any write to it, also
//! of its attributes, moves the change time and so makes it another one.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cairn_types::plant;
use rustix::fs::Stat;

/// Places that a key may have.
const WAYS: usize = 4;
/// Of a place, for the second; the rest are the key's print.
const SECOND_BITS: u32 = 24;
const SECONDS: u64 = (1 << SECOND_BITS) - 1;

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
        // The simulator's rot is a write, and would move the change time, as a disk's does not.
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

/// When something was last done with each of so many files, or parts of them: eight bytes for
/// each. A key is known by forty bits of its hash, and goes for four newer ones of the same place.
pub(crate) struct Recent<K> {
    places: Box<[[AtomicU64; WAYS]]>,
    started: Instant,
    key: PhantomData<fn(K)>,
}

impl<K: Hash> Recent<K> {
    /// At most so many are remembered.
    pub(crate) fn new(entries: usize) -> Self {
        let place = |_| std::array::from_fn(|_| AtomicU64::new(0));
        Recent {
            places: (0..entries.div_ceil(WAYS).max(1)).map(place).collect(),
            started: Instant::now(),
            key: PhantomData,
        }
    }

    /// Whether it was done within `interval`, in whole seconds.
    pub(crate) fn is_fresh(&self, key: &K, interval: Duration) -> bool {
        let (place, print) = self.place(key);
        let noted = place.iter().map(|entry| entry.load(Ordering::Relaxed));
        let mut noted = noted.filter(|entry| entry & !SECONDS == print);
        noted.any(|entry| self.age(entry) < interval.as_secs())
    }

    pub(crate) fn insert(&self, key: &K) {
        let (place, print) = self.place(key);
        let age = |entry: &&AtomicU64| match entry.load(Ordering::Relaxed) {
            entry if entry & !SECONDS == print => u64::MAX,
            0 => u64::MAX - 1,
            entry => self.age(entry),
        };
        if let Some(oldest) = place.iter().max_by_key(age) {
            oldest.store(print | self.second(), Ordering::Relaxed);
        }
    }

    fn place(&self, key: &K) -> (&[AtomicU64; WAYS], u64) {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(key);
        // A print of nought would look like an empty entry.
        let print = (hash | 1 << SECOND_BITS) & !SECONDS;
        (&self.places[hash as usize % self.places.len()], print)
    }

    fn second(&self) -> u64 {
        self.started.elapsed().as_secs() & SECONDS
    }

    fn age(&self, entry: u64) -> u64 {
        self.second().wrapping_sub(entry) & SECONDS
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_was_long_ago_is_not_fresh() {
        let recent = Recent::new(100);
        assert!(!recent.is_fresh(&1, Duration::from_secs(3600)));
        recent.insert(&1);
        assert!(recent.is_fresh(&1, Duration::from_secs(3600)));
        assert!(!recent.is_fresh(&1, Duration::ZERO));
    }

    #[test]
    fn a_full_place_forgets_one() {
        let recent = Recent::new(WAYS);
        let hour = Duration::from_secs(3600);
        let fresh = |recent: &Recent<u32>| (0..9).filter(|n| recent.is_fresh(n, hour)).count();
        for number in 0..9 {
            recent.insert(&number);
            recent.insert(&number);
            assert!(recent.is_fresh(&number, hour));
            assert_eq!(WAYS.min(number as usize + 1), fresh(&recent));
        }
    }
}
