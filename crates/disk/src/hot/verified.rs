//! Set-associative cache of the checksums of verified content, by file.
//!
//! An MD5 is the main cost of reading a hot object. If a file's content was verified by its ETag
//! within `etag_recheck_interval`, during the upload or a read, the cache has the CRC-32 of those
//! bytes, and later reads are verified by that: it costs a tenth, and still detects rot and
//! misdirected reads. Every whole read has one of the two checks.
//!
//! A mismatch only means that the bytes differ from those verified: the entry is dropped, and the
//! MD5 decides.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::time::{Duration, Instant};

use cairn_types::heuristic::Heuristic;
use parking_lot::{Mutex, MutexGuard};

use super::FileIdentity;

/// Entries per bucket.
const WAYS: usize = 4;

#[derive(Clone, Copy, Default)]
struct Entry {
    /// Hash of the file's identity.
    file: u64,
    checksum: u32,
    /// Time of the verification, in seconds since the cache's start plus one. 0 is an empty entry.
    checked: u32,
}

pub(crate) struct Verified {
    buckets: Box<[Mutex<[Entry; WAYS]>]>,
    started: Instant,
}

impl Verified {
    /// Creates a cache of this capacity.
    pub(crate) fn new(entries: usize) -> Self {
        let count = entries.div_ceil(WAYS).max(1);
        Verified {
            buckets: (0..count).map(|_| Mutex::default()).collect(),
            started: Instant::now(),
        }
    }

    /// The CRC-32 of content verified within `interval`, in whole seconds.
    pub(crate) fn checksum(&self, file: &FileIdentity, interval: Duration) -> Option<u32> {
        if Heuristic::VerifiedContent.is_off() {
            return None;
        }
        let file = hash(file);
        let now = self.second();
        let is_fresh = |entry: &&Entry| {
            let age = u64::from(now.saturating_sub(entry.checked));
            entry.checked > 0 && entry.file == file && age < interval.as_secs()
        };
        let bucket = self.bucket(file);
        bucket.iter().find(is_fresh).map(|entry| entry.checksum)
    }

    /// Records the CRC-32 of content verified just now.
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
            *bucket.lock() = Default::default();
        }
    }

    fn bucket(&self, file: u64) -> MutexGuard<'_, [Entry; WAYS]> {
        self.buckets[file as usize % self.buckets.len()].lock()
    }

    fn second(&self) -> u32 {
        let seconds = self.started.elapsed().as_secs().saturating_add(1);
        u32::try_from(seconds).unwrap_or(u32::MAX)
    }
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
