//! The checksums of content that was held against its ETag a while ago: a set-associative cache, by
//! file.
//!
//! An MD5 is what a read of a hot object costs most. A file whose content was hashed within
//! `etag_recheck_interval`, on its way in or at a read, has the CRC-32 of those bytes here, and later
//! reads are held against that: it costs a tenth, and what rots on the disk meanwhile, or is read
//! wrong, is still seen. Nothing is read whole without either check.
//!
//! A mismatch says that these bytes are not those that were hashed, and only that: the entry goes, and
//! the MD5 decides.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::recent::FileIdentity;

/// Entries of one bucket.
const WAYS: usize = 4;

#[derive(Clone, Copy, Default)]
struct Entry {
    /// The file's identity, hashed.
    file: u64,
    checksum: u32,
    /// Seconds from the cache's start to the check, and one. 0: no entry.
    checked: u32,
}

pub(crate) struct Verified {
    buckets: Box<[Mutex<[Entry; WAYS]>]>,
    started: Instant,
}

impl Verified {
    /// At most so many files are remembered.
    pub(crate) fn new(entries: usize) -> Self {
        let count = entries.div_ceil(WAYS).max(1);
        Verified {
            buckets: (0..count).map(|_| Mutex::default()).collect(),
            started: Instant::now(),
        }
    }

    /// The CRC-32 of the content, where it was hashed within `interval`, in whole seconds.
    pub(crate) fn checksum(&self, file: &FileIdentity, interval: Duration) -> Option<u32> {
        let file = hash(file);
        let now = self.second();
        let is_fresh = |entry: &&Entry| {
            let age = u64::from(now.saturating_sub(entry.checked));
            entry.checked > 0 && entry.file == file && age < interval.as_secs()
        };
        let bucket = self.bucket(file);
        bucket.iter().find(is_fresh).map(|entry| entry.checksum)
    }

    /// Content was hashed, just now, and has this CRC-32.
    pub(crate) fn insert(&self, file: &FileIdentity, checksum: u32) {
        let file = hash(file);
        let mut bucket = self.bucket(file);
        let known = bucket.iter().position(|entry| entry.file == file);
        let oldest = || (0..WAYS).min_by_key(|at| bucket[*at].checked);
        if let Some(at) = known.or_else(oldest) {
            bucket[at] = Entry {
                file,
                checksum,
                checked: self.second(),
            };
        }
    }

    pub(crate) fn forget(&self, file: &FileIdentity) {
        let file = hash(file);
        for entry in self.bucket(file).iter_mut().filter(|e| e.file == file) {
            *entry = Entry::default();
        }
    }

    pub(crate) fn forget_all(&self) {
        for bucket in &self.buckets {
            *lock(bucket) = Default::default();
        }
    }

    fn bucket(&self, file: u64) -> MutexGuard<'_, [Entry; WAYS]> {
        lock(&self.buckets[file as usize % self.buckets.len()])
    }

    fn second(&self) -> u32 {
        let seconds = self.started.elapsed().as_secs().saturating_add(1);
        u32::try_from(seconds).unwrap_or(u32::MAX)
    }
}

fn lock(bucket: &Mutex<[Entry; WAYS]>) -> MutexGuard<'_, [Entry; WAYS]> {
    bucket.lock().unwrap_or_else(PoisonError::into_inner)
}

fn hash(file: &FileIdentity) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(file)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_changed_file_is_another() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let stat = || FileIdentity::of(&rustix::fs::stat(file.path()).unwrap());
        let verified = Verified::new(100);
        assert_eq!(verified.checksum(&stat(), HOUR), None);
        verified.insert(&stat(), 7);
        assert_eq!(verified.checksum(&stat(), HOUR), Some(7));
        assert_eq!(verified.checksum(&stat(), Duration::ZERO), None);
        verified.insert(&stat(), 8);
        assert_eq!(verified.checksum(&stat(), HOUR), Some(8));
        verified.forget(&stat());
        assert_eq!(verified.checksum(&stat(), HOUR), None);
        verified.insert(&stat(), 7);
        std::fs::write(file.path(), "x").unwrap();
        assert_eq!(verified.checksum(&stat(), HOUR), None);
    }

    #[test]
    fn a_full_bucket_forgets_one() {
        let files: Vec<_> = (0..9)
            .map(|_| tempfile::NamedTempFile::new().unwrap())
            .collect();
        let identity =
            |number: usize| FileIdentity::of(&rustix::fs::stat(files[number].path()).unwrap());
        let verified = Verified::new(WAYS);
        for number in 0..9 {
            verified.insert(&identity(number), number as u32);
            let known = (0..9).filter_map(|n| Some((n, verified.checksum(&identity(n), HOUR)?)));
            let known: Vec<_> = known.collect();
            assert_eq!(known.len(), WAYS.min(number + 1));
            assert!(known.iter().all(|(n, checksum)| *n as u32 == *checksum));
            assert!(known.contains(&(number, number as u32)));
        }
    }
}
