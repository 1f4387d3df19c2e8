//! Engine with Swift's layout: a directory per object, a file per state, metadata in extended
//! attributes. The layout is in `layout.rs`.

mod look;
mod metadata;
mod open;
pub(crate) use look::{read_range, read_with};
pub(crate) mod quarantine;
pub mod suffix_hashes;
mod write;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cairn_types::{HashPath, ObjectHash, PolicyIndex, PolicySet, Timestamp};
use rustix::fs::AtFlags;
use rustix::io::Errno;

use crate::device_pool::Disk;
use crate::device_pool::steps::Step;
use crate::engine::{
    Durability, ObjectEngine, ObjectKey, ObjectWriter, OpenObject, OpenOptions, Seen, Suspect,
};
use crate::error::{DiskError, LIST};
use crate::hot::KnownObjects;
use crate::layout::{
    FileEntry, FragmentChoice, OnDiskFiles, choose_files, choose_fragments, hash_dir,
};
use crate::staged_file::{open_dir, remove_dir, remove_file};
use crate::{Metadata, overflow};
use quarantine::{HashDir, QuarantineExtent};

/// Options of the engine, by Swift's names.
#[derive(Clone, Debug, PartialEq)]
pub struct DiskFileConfig {
    /// Age at which tombstones and stray metadata are removed.
    pub reclaim_age: Duration,
    /// Minimum age of a non-durable fragment's file before it is removed, whatever its timestamp.
    pub commit_window: Duration,
    /// Size limit in bytes of objects that stay in the page cache after a read; larger ones stay if
    /// they are read again within minutes. With 0 none stay.
    pub keep_cache_size: u64,
    /// Percentage of whole reads that verify the content (`etag_validate_pct`).
    pub etag_validate_pct: f64,
    /// Interval in which verified content is not hashed again, as long as its file is unchanged.
    pub etag_recheck_interval: Duration,
    /// Bytes after which an upload's data is flushed (`mb_per_sync`).
    pub bytes_per_sync: u64,
    /// Minimum size in bytes of uploads that bypass the page cache, as do those of unknown size; 0
    /// disables.
    pub direct_io_from: u64,
}

impl Default for DiskFileConfig {
    fn default() -> Self {
        DiskFileConfig {
            reclaim_age: Duration::from_secs(7 * 24 * 3600),
            commit_window: Duration::from_secs(60),
            keep_cache_size: 5_242_880,
            etag_validate_pct: 100.0,
            etag_recheck_interval: Duration::from_secs(300),
            bytes_per_sync: 512 << 20,
            direct_io_from: 256 << 10,
        }
    }
}

/// Engine with Swift's layout. Cheap to clone.
#[derive(Clone, Debug)]
pub struct DiskFileEngine {
    hash_path: Arc<HashPath>,
    config: Arc<DiskFileConfig>,
    /// Number of unique fragments of each erasure-coded policy.
    fragments: Arc<BTreeMap<PolicyIndex, u32>>,
    known: Arc<KnownObjects>,
}

impl DiskFileEngine {
    pub fn new(hash_path: HashPath, policies: &PolicySet, config: DiskFileConfig) -> Self {
        let fragments = policies.iter().filter_map(|policy| {
            let unique = policy.erasure()?.unique();
            Some((policy.index, u32::try_from(unique).unwrap_or(u32::MAX)))
        });
        DiskFileEngine {
            hash_path: Arc::new(hash_path),
            config: Arc::new(config),
            fragments: Arc::new(fragments.collect()),
            known: Arc::new(KnownObjects::new()),
        }
    }

    /// Number of unique fragments of an erasure-coded policy.
    pub(crate) fn unique_fragments(&self, policy: PolicyIndex) -> Option<u32> {
        self.fragments.get(&policy).copied()
    }

    /// Chooses the valid files of a hash directory for this policy.
    pub(crate) fn choose(
        &self,
        policy: PolicyIndex,
        entries: Vec<FileEntry>,
        choice: &FragmentChoice,
    ) -> OnDiskFiles {
        match self.unique_fragments(policy) {
            Some(unique) => choose_fragments(entries, unique, choice),
            None => choose_files(entries),
        }
    }

    pub fn config(&self) -> &DiskFileConfig {
        &self.config
    }

    /// The same engine for an auditor: verifies all content it reads, and leaves none in the page
    /// cache.
    pub(crate) fn verifying_all(&self) -> Self {
        let config = DiskFileConfig {
            keep_cache_size: 0,
            etag_validate_pct: 100.0,
            etag_recheck_interval: Duration::ZERO,
            ..(*self.config).clone()
        };
        DiskFileEngine {
            hash_path: self.hash_path.clone(),
            config: Arc::new(config),
            fragments: self.fragments.clone(),
            known: self.known.clone(),
        }
    }

    /// Opens the object of a hash directory, for auditors. Quarantines one whose name does not hash
    /// to that directory.
    pub(crate) fn open_hash(
        &self,
        disk: &Disk,
        policy: PolicyIndex,
        partition: u32,
        hash: ObjectHash,
        options: &OpenOptions,
    ) -> Result<(ObjectKey, OpenObject), DiskError> {
        self.open_any(disk, policy, partition, hash, options)
    }

    /// Removes obsolete files of a hash directory, and the directory if it becomes empty. Returns
    /// the valid files.
    pub(crate) fn clean_up(
        &self,
        disk: &Disk,
        policy: PolicyIndex,
        partition: u32,
        hash: ObjectHash,
    ) -> Result<OnDiskFiles, DiskError> {
        self.clean_up_and_choose(disk, policy, partition, hash, &FragmentChoice::default())
    }

    /// As [`DiskFileEngine::clean_up`], choosing the valid files for a wanted fragment.
    pub(crate) fn clean_up_and_choose(
        &self,
        disk: &Disk,
        policy: PolicyIndex,
        partition: u32,
        hash: ObjectHash,
        choice: &FragmentChoice,
    ) -> Result<OnDiskFiles, DiskError> {
        let dir = hash_dir(policy, partition, hash);
        let fd = match open_dir(disk, &dir) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(OnDiskFiles::default()),
            Err(errno) if is_broken_dir(errno) => {
                let place = HashDir {
                    policy,
                    partition,
                    hash,
                };
                place.quarantine(disk, "not a readable directory", || {
                    Ok(match open_dir(disk, &dir) {
                        Err(errno) if is_broken_dir(errno) => QuarantineExtent::Whole,
                        _ => QuarantineExtent::Nothing,
                    })
                })?;
                return Ok(OnDiskFiles::default());
            }
            Err(errno) => return Err(DiskError::from_errno("open", dir, errno)),
        };
        self.clean_up_in(disk, policy, &dir, fd.as_fd(), choice)
    }

    /// As [`DiskFileEngine::clean_up`], for an open hash directory that was not listed yet.
    fn clean_up_in(
        &self,
        disk: &Disk,
        policy: PolicyIndex,
        dir: &str,
        fd: BorrowedFd<'_>,
        choice: &FragmentChoice,
    ) -> Result<OnDiskFiles, DiskError> {
        let list = open::list_entries(fd);
        let list = list.map_err(|errno| DiskError::from_errno(LIST, dir, errno))?;
        let mut files = self.choose(policy, list.entries, choice);
        let reclaim = |time: Timestamp| {
            overflow::is_older_than(disk.now(), time.secs() as i64, self.config.reclaim_age)
        };
        if files
            .tombstone
            .as_ref()
            .is_some_and(|ts| reclaim(ts.timestamp))
        {
            files.obsolete.extend(files.tombstone.take());
        }
        let (old, young) = std::mem::take(&mut files.reclaimable)
            .into_iter()
            .partition(|entry: &FileEntry| {
                reclaim(entry.timestamp) && !self.may_be_committed(disk, fd, entry)
            });
        files.reclaimable = young;
        files.obsolete.extend::<Vec<_>>(old);
        let owners: Vec<&FileEntry> = [&files.data, &files.meta, &files.content_type]
            .into_iter()
            .flatten()
            .chain(&files.reclaimable)
            .chain(files.fragments.sets.iter().flat_map(|set| &set.entries))
            .collect();
        let (orphans, kept) = std::mem::take(&mut files.overflow)
            .into_iter()
            .partition(|file: &FileEntry| overflow::is_orphan(disk, fd, file, &owners));
        files.overflow = kept;
        files.obsolete.extend::<Vec<_>>(orphans);
        for entry in &files.obsolete {
            remove_file(fd, &entry.name).map_err(|errno| {
                DiskError::from_errno("unlink", format!("{dir}/{}", entry.name), errno)
            })?;
        }
        if list.count == files.obsolete.len() {
            remove_dir(disk, dir);
        }
        let obsolete = &files.obsolete;
        files.fragments.sets.retain_mut(|set| {
            set.entries.retain(|entry| !obsolete.contains(entry));
            !set.entries.is_empty()
        });
        Ok(files)
    }

    /// Whether a non-durable fragment is so recent that its writer may still commit it, whatever
    /// its timestamp.
    fn may_be_committed(&self, disk: &Disk, dir: BorrowedFd<'_>, entry: &FileEntry) -> bool {
        let window = self.config.commit_window;
        if entry.is_durable() || window.is_zero() {
            return false;
        }
        let stat = rustix::fs::statat(dir, &*entry.name, AtFlags::SYMLINK_NOFOLLOW);
        stat.is_ok_and(|stat| !overflow::is_older_than(disk.now(), stat.st_mtime, window))
    }

    fn clean_up_after(&self, disk: &Disk, key: &ObjectKey, fd: BorrowedFd<'_>) {
        let dir = hash_dir(key.policy, key.partition, key.hash);
        let choice = FragmentChoice::default();
        disk.state.touched.mark(&key.hash);
        if let Err(error) = self.clean_up_in(disk, key.policy, &dir, fd, &choice) {
            let object = &*key.name;
            tracing::warn!(device = disk.name(), object, %error, "obsolete files not removed");
        }
    }
}

/// An object's directory opened a moment ago, which held only the data file. The directory stream
/// is at its end; do not list it again.
#[derive(Debug)]
struct SeenDir {
    dir: OwnedFd,
    data: String,
}

/// Whether the error means that a directory is damaged or not a directory.
fn is_broken_dir(errno: Errno) -> bool {
    // EUCLEAN, "structure needs cleaning", is 117 on Linux.
    matches!(errno, Errno::NOTDIR | Errno::NODATA | Errno::UCLEAN)
}

impl ObjectEngine for DiskFileEngine {
    fn open(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        options: &OpenOptions,
    ) -> Result<OpenObject, DiskError> {
        self.open_object(disk, key, options)
    }

    fn open_cached(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        options: &OpenOptions,
    ) -> Option<Result<OpenObject, DiskError>> {
        self.open_object_cached(disk, key, options)
    }

    fn create(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        size: Option<u64>,
        hash: bool,
    ) -> Result<Box<dyn ObjectWriter>, DiskError> {
        self.create_data(disk, key, size, hash)
    }

    fn put_small(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        body: Bytes,
        metadata: Metadata,
        durability: Durability,
    ) -> Result<Step<()>, DiskError> {
        self.put_small_steps(disk, key, body, metadata, durability)
    }

    fn make_durable(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        timestamp: Timestamp,
        fragment: u32,
    ) -> Result<Step<()>, DiskError> {
        self.durable_steps(disk, key, timestamp, fragment)
    }

    fn write_metadata(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        metadata: Metadata,
    ) -> Result<Step<()>, DiskError> {
        self.meta_file_steps(disk, key, metadata)
    }

    fn delete(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        timestamp: Timestamp,
        seen: Option<Seen>,
    ) -> Result<Step<()>, DiskError> {
        self.tombstone_steps(disk, key, timestamp, seen.and_then(Seen::into))
    }

    fn quarantine(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        suspect: &Suspect,
        reason: &str,
    ) -> Result<bool, DiskError> {
        let place = HashDir::of(key);
        place.quarantine(disk, reason, || place.with_suspect(disk, suspect))
    }
}

#[cfg(test)]
mod tests;
