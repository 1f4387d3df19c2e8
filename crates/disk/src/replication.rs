//! Replication on Swift's layout, except suffix hashes: listing partitions and their objects, locks
//! that keep two servers from handing a partition to each other, and the removal of a partition
//! that was handed over.
//!
//! Swift removes such a partition whole, including an object written to it after its content was
//! sent. Here only the files present when sending began are removed, under the writers' lock, and a
//! directory with any change stays.

use std::os::fd::AsFd;
use std::time::Duration;

use cairn_formats::ssync::{Held, Offer};
use cairn_types::plant::Plant;
use cairn_types::{ObjectHash, PolicyIndex, Timestamp};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::device_pool::Disk;
use crate::diskfile::DiskFileEngine;
use crate::diskfile::suffix_hashes::{invalidate, invalidating_durably, is_suffix, list};
use crate::engine::{
    Contents, ObjectEngine, ObjectId, ObjectKey, ObjectState, OpenOptions, PartitionKey, Purge,
    ReplicationLock, Reverted, Sendable,
};
use crate::error::DiskError;
use crate::layout::{FileEntry, FileKind, FragmentChoice, OnDiskFiles, hash_dir, partition_dir};
use crate::overflow::is_older_than;
use crate::partition_lock::PartitionLock;
use crate::staged_file::{make_dirs, open_dir, remove_dir, remove_file};

/// Partitions of a policy on this disk, in order. Creates the policy's directory, into which rsync
/// writes, and removes files in place of partitions.
pub(crate) fn list_partitions(disk: &Disk, policy: PolicyIndex) -> Result<Vec<u32>, DiskError> {
    let objects = policy.dir("objects");
    make_dirs(disk, &objects)?;
    let mut partitions = Vec::new();
    for name in list(disk, &objects)? {
        let is_number = name.bytes().all(|b| b.is_ascii_digit());
        let Some(partition) = name.parse().ok().filter(|_| is_number) else {
            continue;
        };
        if is_file(disk, &format!("{objects}/{name}")) {
            tracing::warn!(
                device = disk.name(),
                name,
                "a file in a partition's place: removed"
            );
            let fd = open_dir(disk, &objects);
            let fd = fd.map_err(|errno| DiskError::from_errno("open", &*objects, errno))?;
            remove_file(fd.as_fd(), &name)
                .map_err(|errno| DiskError::from_errno("unlink", name, errno))?;
            continue;
        }
        partitions.push(partition);
    }
    partitions.sort_unstable();
    Ok(partitions)
}

fn is_file(disk: &Disk, path: &str) -> bool {
    rustix::fs::statat(disk.fd(), path, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
}

/// Suffixes of a partition, in order.
pub(crate) fn list_suffixes(
    disk: &Disk,
    policy: PolicyIndex,
    partition: u32,
) -> Result<Vec<String>, DiskError> {
    let mut suffixes = match list(disk, &partition_dir(policy, partition)) {
        Err(DiskError::NotExist) => Vec::new(),
        other => other?,
    };
    suffixes.retain(|name| is_suffix(name));
    suffixes.sort();
    Ok(suffixes)
}

/// Objects of a suffix, in order.
pub(crate) fn list_hashes(
    disk: &Disk,
    policy: PolicyIndex,
    partition: u32,
    suffix: &str,
) -> Result<Vec<ObjectHash>, DiskError> {
    let dir = format!("{}/{suffix}", partition_dir(policy, partition));
    let names = match list(disk, &dir) {
        Err(DiskError::NotExist) => Vec::new(),
        other => other?,
    };
    let mut hashes: Vec<ObjectHash> = names
        .iter()
        .filter_map(|name| ObjectHash::from_hex(name))
        .collect();
    hashes.sort();
    Ok(hashes)
}

/// Offers of a suffix to another replica; in an erasure-coded policy, for the fragment. Cleans up;
/// an empty suffix is invalidated.
pub(crate) fn list_offers(
    disk: &Disk,
    engine: &DiskFileEngine,
    policy: PolicyIndex,
    partition: u32,
    suffix: &str,
    fragment: &FragmentChoice,
) -> Result<Vec<Offer>, DiskError> {
    let mut offers = Vec::new();
    let mut found_files = false;
    for hash in list_hashes(disk, policy, partition, suffix)? {
        let files = engine.clean_up_and_choose(disk, policy, partition, hash, fragment)?;
        found_files |= files.data.is_some()
            || !files.fragments.sets.is_empty()
            || files.tombstone.is_some()
            || !files.reclaimable.is_empty()
            || !files.overflow.is_empty();
        offers.extend(offer(hash, &files));
    }
    if !found_files {
        invalidate(disk, &partition_dir(policy, partition), suffix)?;
    }
    Ok(offers)
}

fn offer(hash: ObjectHash, files: &OnDiskFiles) -> Option<Offer> {
    let tombstone = files.tombstone.as_ref();
    let tombstone = tombstone.filter(|_| !Plant::TombstonesUnsent.is_on());
    let data = files.data.as_ref().or(tombstone)?.timestamp;
    let meta = files.meta.as_ref().map_or(data, |entry| entry.timestamp);
    let content_type = files.content_type.as_ref();
    let content_type = content_type.and_then(|entry| entry.content_type_timestamp);
    Some(Offer {
        hash,
        data,
        meta,
        content_type: content_type.unwrap_or(data),
        is_durable: files.data.as_ref().is_none_or(FileEntry::is_durable),
    })
}

/// Local state of an object offered by another replica; `None` if it has no valid version. Opens
/// the object, so that a broken one is detected and requested.
pub(crate) fn held(
    disk: &Disk,
    engine: &DiskFileEngine,
    policy: PolicyIndex,
    partition: u32,
    hash: ObjectHash,
) -> Result<Option<Held>, DiskError> {
    held_of(
        disk,
        engine,
        policy,
        partition,
        hash,
        FragmentChoice::default(),
    )
}

fn held_of(
    disk: &Disk,
    engine: &DiskFileEngine,
    policy: PolicyIndex,
    partition: u32,
    hash: ObjectHash,
    fragment: FragmentChoice,
) -> Result<Option<Held>, DiskError> {
    let mut options = OpenOptions::metadata(Timestamp::ZERO);
    options.open_expired = true;
    options.fragment = fragment;
    match engine.open_hash(disk, policy, partition, hash, &options) {
        Ok((_, open)) => Ok(Some(Held {
            data: open.info.data_timestamp,
            meta: Some(open.info.timestamp()),
            content_type: Some(open.info.content_type_timestamp()),
        })),
        Err(DiskError::Deleted { timestamp }) => Ok(Some(Held {
            data: timestamp,
            meta: None,
            content_type: None,
        })),
        Err(DiskError::NotExist | DiskError::Quarantined(_) | DiskError::StateChanged) => Ok(None),
        Err(error) => Err(error),
    }
}

/// As [`held`], for the fragment `index` of an erasure-coded policy. A local non-durable fragment
/// that is durable at the sender becomes durable.
pub(crate) fn held_fragment(
    disk: &Disk,
    engine: &DiskFileEngine,
    policy: PolicyIndex,
    partition: u32,
    offer: &Offer,
    index: Option<u32>,
) -> Result<Option<Held>, DiskError> {
    engine.clean_up(disk, policy, partition, offer.hash)?;
    let choice = FragmentChoice::of_index(index);
    let look = || held_of(disk, engine, policy, partition, offer.hash, choice.clone());
    let held = look()?;
    let files = engine.look(disk, policy, partition, offer.hash, &choice)?;
    let Some(index) = index.filter(|index| files.fragments.has(offer.data, *index)) else {
        return Ok(held);
    };
    if files.fragments.durable.is_some_and(|at| at >= offer.data) {
        return Ok(held);
    }
    if !offer.is_durable {
        // Ours is as good as theirs, whatever older version is valid.
        let held = held.unwrap_or(Held {
            data: offer.data,
            meta: None,
            content_type: None,
        });
        return Ok(Some(Held {
            data: offer.data,
            ..held
        }));
    }
    let key = ObjectKey {
        policy,
        partition,
        hash: offer.hash,
        name: "".into(),
    };
    let durable = engine.make_durable(disk, &key, offer.data, index);
    match durable.and_then(|step| step.finish(disk)) {
        Ok(()) => look(),
        // It is requested instead.
        Err(error) => {
            let (device, hash) = (disk.name(), offer.hash.hex());
            tracing::error!(device, hash, index, %error, "fragment not made durable");
            Ok(held)
        }
    }
}

/// Opens an object for sending. Objects of up to `inline_limit` bytes are read and verified.
pub(crate) fn open_to_send(
    disk: &Disk,
    engine: &DiskFileEngine,
    policy: PolicyIndex,
    partition: u32,
    hash: ObjectHash,
    inline_limit: u64,
    fragment: FragmentChoice,
) -> Result<Sendable, DiskError> {
    let options = OpenOptions {
        now: Timestamp::ZERO,
        open_expired: true,
        inline_limit,
        fragment,
    };
    match engine.open_hash(disk, policy, partition, hash, &options) {
        Ok((key, open)) => Ok(Sendable::Object(key, Box::new(open))),
        Err(DiskError::Deleted { timestamp }) => {
            let name = engine.tombstone_name(disk, policy, partition, hash)?;
            Ok(name.map_or(Sendable::Nothing, |name| {
                Sendable::Tombstone(name, timestamp)
            }))
        }
        Err(DiskError::NotExist | DiskError::Quarantined(_)) => Ok(Sendable::Nothing),
        Err(error) => Err(error),
    }
}

/// Maximum objects changed under one lock, with one sync of their suffixes' notes.
pub(crate) const OBJECTS_PER_LOCK_MAX: usize = 64;

/// The objects of a partition, each with the names of its files.
pub(crate) fn contents(
    disk: &Disk,
    policy: PolicyIndex,
    partition: u32,
) -> Result<Contents, DiskError> {
    let mut contents = Vec::new();
    for suffix in list_suffixes(disk, policy, partition)? {
        for hash in list_hashes(disk, policy, partition, &suffix)? {
            let names = names_of(disk, &hash_dir(policy, partition, hash))?;
            contents.push((hash, state_of(&names)));
        }
    }
    Ok(contents.into_iter().collect())
}

/// State of an object: its file names in order, NUL-terminated.
pub(crate) fn state_of(names: &[String]) -> ObjectState {
    let ended = names.iter().flat_map(|name| [name.as_bytes(), b"\0"]);
    ObjectState::new(ended.collect::<Vec<_>>().concat())
}

/// Removes unchanged objects of a partition; returns their number.
pub(crate) fn remove_contents(
    disk: &Disk,
    policy: PolicyIndex,
    partition: u32,
    chosen: &[(&str, ObjectHash, &ObjectState)],
) -> Result<usize, DiskError> {
    let dir = partition_dir(policy, partition);
    let mut removed = 0;
    for together in chosen.chunks(OBJECTS_PER_LOCK_MAX) {
        let mut suffixes: Vec<&str> = together.iter().map(|(suffix, ..)| *suffix).collect();
        suffixes.dedup();
        let _lock = invalidating_durably(disk, &dir, &suffixes)?;
        for (suffix, hash, state) in together {
            if remove_files(disk, &hash_dir(policy, partition, *hash), state, |_| true)? {
                removed += 1;
                remove_dir(disk, &format!("{dir}/{suffix}"));
            }
        }
    }
    Ok(removed)
}

/// Removes fragments, or tombstones, that have been handed over, and object directories that become
/// empty.
pub(crate) fn purge(
    disk: &Disk,
    engine: &DiskFileEngine,
    policy: PolicyIndex,
    partition: u32,
    purge: &Purge,
) -> Result<(), DiskError> {
    let dir = partition_dir(policy, partition);
    for together in purge.reverted.chunks(OBJECTS_PER_LOCK_MAX) {
        for one in together {
            engine.clean_up(disk, policy, partition, one.hash)?;
        }
        let suffixes: Vec<String> = together.iter().map(|one| one.hash.suffix()).collect();
        let _lock = invalidating_durably(disk, &dir, &suffixes)?;
        for (one, suffix) in together.iter().zip(&suffixes) {
            let object = hash_dir(policy, partition, one.hash);
            purge_one(disk, engine, &object, one, purge)?;
            remove_dir(disk, &format!("{dir}/{suffix}"));
        }
    }
    Ok(())
}

fn purge_one(
    disk: &Disk,
    engine: &DiskFileEngine,
    dir: &str,
    reverted: &Reverted,
    purge: &Purge,
) -> Result<(), DiskError> {
    let fd = match open_dir(disk, dir) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(DiskError::from_errno("open", dir, errno)),
    };
    let names = names_of(disk, dir)?;
    let entries: Vec<FileEntry> = names.iter().filter_map(|n| FileEntry::parse(n)).collect();
    let mut data = entries.iter().filter(|e| e.fragment_index().is_some());
    let is_last = match (data.next(), data.next()) {
        (None, _) => true,
        (Some(only), None) => only.timestamp == reverted.data,
        _ => false,
    };
    let window = engine.config().commit_window;
    let (index, is_handoff) = (purge.index, purge.is_handoff);
    let goes = |entry: &FileEntry| match entry.kind {
        FileKind::Tombstone => entry.timestamp == reverted.data,
        FileKind::Meta => is_handoff && is_last && entry.timestamp == reverted.meta,
        FileKind::Fragment { index: own, .. } => {
            let is_it = Some(own) == index && entry.timestamp == reverted.data;
            let is_settled = || {
                let stat = rustix::fs::statat(&fd, &*entry.name, AtFlags::SYMLINK_NOFOLLOW);
                window.is_zero()
                    || stat.is_ok_and(|stat| is_older_than(disk.now(), stat.st_mtime, window))
            };
            is_it && (reverted.is_durable || entry.is_durable() || is_settled())
        }
        _ => false,
    };
    for entry in entries.iter().filter(|entry| goes(entry)) {
        remove_file(fd.as_fd(), &entry.name).map_err(|errno| {
            DiskError::from_errno("unlink", format!("{dir}/{}", entry.name), errno)
        })?;
    }
    remove_dir(disk, dir);
    Ok(())
}

pub(crate) fn names_of(disk: &Disk, dir: &str) -> Result<Vec<String>, DiskError> {
    let mut names = match list(disk, dir) {
        Err(DiskError::NotExist) => Vec::new(),
        other => other?,
    };
    names.sort();
    Ok(names)
}

/// Removes an object's directory if it has exactly these files. Names are created under the
/// partition's lock, so none can appear between the check and the removal. The suffix is
/// invalidated: others must not assume that we have this object.
pub(crate) fn remove_unchanged(
    disk: &Disk,
    object: ObjectId,
    state: &ObjectState,
) -> Result<bool, DiskError> {
    remove_object(disk, object, state, |_| true)
}

/// As [`remove_unchanged`], of the files that the policy has, of `unique` different fragments if it
/// is an erasure-coded one; with others the directory stays.
pub(crate) fn remove_own(
    disk: &Disk,
    unique: Option<u32>,
    object: ObjectId,
    state: &ObjectState,
) -> Result<bool, DiskError> {
    remove_object(disk, object, state, |kind| is_own(kind, unique))
}

fn remove_object(
    disk: &Disk,
    object: ObjectId,
    state: &ObjectState,
    goes: impl Fn(FileKind) -> bool,
) -> Result<bool, DiskError> {
    let PartitionKey { policy, partition } = object.at;
    let partition_dir = partition_dir(policy, partition);
    let _lock = invalidating_durably(disk, &partition_dir, &[object.hash.suffix()])?;
    remove_files(disk, &hash_dir(policy, partition, object.hash), state, goes)
}

fn is_own(kind: FileKind, unique: Option<u32>) -> bool {
    match kind {
        FileKind::Meta | FileKind::Tombstone | FileKind::Overflow => true,
        FileKind::Data => unique.is_none(),
        FileKind::Durable => unique.is_some(),
        FileKind::Fragment { index, .. } => unique.is_some_and(|unique| index < unique),
        FileKind::Other => false,
    }
}

/// Order of removal. What is left when it is cut short is a version that was there, or nothing:
/// content is not without its overflow, and metadata not without its content.
fn removal_rank(kind: FileKind) -> u8 {
    match kind {
        FileKind::Meta => 0,
        FileKind::Data | FileKind::Fragment { .. } => 1,
        FileKind::Tombstone => 2,
        FileKind::Durable | FileKind::Overflow => 3,
        FileKind::Other => 4,
    }
}

/// Removes those of an object's files that go, and their directory if it is empty then; false if
/// the files are not these, or some stay.
fn remove_files(
    disk: &Disk,
    dir: &str,
    state: &ObjectState,
    goes: impl Fn(FileKind) -> bool,
) -> Result<bool, DiskError> {
    let names = names_of(disk, dir)?;
    if state_of(&names) != *state {
        return Ok(false);
    }
    let fd = match open_dir(disk, dir) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(true),
        Err(errno) => return Err(DiskError::from_errno("open", dir, errno)),
    };
    let mut going: Vec<(u8, Timestamp, String)> = Vec::new();
    for name in names {
        let (kind, timestamp) = FileEntry::parse(&name)
            .map_or((FileKind::Other, Timestamp::ZERO), |entry| {
                (entry.kind, entry.timestamp)
            });
        if goes(kind) {
            going.push((removal_rank(kind), timestamp, name));
        }
    }
    // The older first, so that no older version counts again.
    going.sort();
    for (_, _, name) in &going {
        remove_file(fd.as_fd(), name)
            .map_err(|errno| DiskError::from_errno("unlink", format!("{dir}/{name}"), errno))?;
    }
    Ok(remove_dir(disk, dir))
}

/// Removes a partition without objects; false if it has some.
pub(crate) fn remove_partition(
    disk: &Disk,
    policy: PolicyIndex,
    partition: u32,
) -> Result<bool, DiskError> {
    let dir = partition_dir(policy, partition);
    let fd = match open_dir(disk, &dir) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(true),
        Err(errno) => return Err(DiskError::from_errno("open", dir, errno)),
    };
    let _lock = PartitionLock::acquire(disk, &dir)?;
    for suffix in list_suffixes(disk, policy, partition)? {
        if !remove_dir(disk, &format!("{dir}/{suffix}")) {
            return Ok(false);
        }
    }
    // The rest are hashes and locks: hashes are removed before the notes that invalidate them.
    let mut names = list(disk, &dir)?;
    names.sort_by(|one, other| other.cmp(one));
    for name in names {
        let is_ours = name.starts_with("hashes.") || name.starts_with(".lock");
        if is_ours {
            let removed = remove_file(fd.as_fd(), &name);
            removed.map_err(|errno| DiskError::from_errno("unlink", name, errno))?;
        }
    }
    Ok(remove_dir(disk, &dir))
}

/// Removes old temporary files from a policy's `tmp`.
pub(crate) fn remove_old_temporary(
    disk: &Disk,
    policy: PolicyIndex,
    age: Duration,
) -> Result<(), DiskError> {
    let dir = policy.dir("tmp");
    let Ok(fd) = open_dir(disk, &dir) else {
        return Ok(());
    };
    for name in names_of(disk, &dir)? {
        let stat = rustix::fs::statat(&fd, &*name, AtFlags::SYMLINK_NOFOLLOW);
        if stat.is_ok_and(|stat| is_older_than(disk.now(), stat.st_mtime, age)) {
            remove_file(fd.as_fd(), &name)
                .map_err(|errno| DiskError::from_errno("unlink", name, errno))?;
        }
    }
    Ok(())
}

/// Locks a partition against concurrent replication or handover: a `flock` shared with Swift's
/// object servers and replicators. `None` if it is locked. Creates the partition's directory.
pub(crate) fn try_lock_partition(
    disk: &Disk,
    policy: PolicyIndex,
    partition: u32,
) -> Result<Option<ReplicationLock>, DiskError> {
    let dir = partition_dir(policy, partition);
    make_dirs(disk, &dir)?;
    try_lock(disk, &format!("{dir}/.lock-replication"))
}

/// Acquires one of a device's `limit` locks for incoming replication, whatever the engine: `flock`s
/// shared with Swift's object servers.
///
/// # Errors
/// `NoSpace`, `ReadOnly` or `Io` if a lock's file cannot be opened or locked, not if it is held.
pub fn try_lock_device(disk: &Disk, limit: usize) -> Result<Option<ReplicationLock>, DiskError> {
    for number in 0..limit {
        let path = match number {
            0 => ".lock".to_owned(),
            number => format!(".lock-{number}"),
        };
        if let Some(lock) = try_lock(disk, &path)? {
            return Ok(Some(lock));
        }
    }
    Ok(None)
}

fn try_lock(disk: &Disk, path: &str) -> Result<Option<ReplicationLock>, DiskError> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
    let file = rustix::fs::openat(disk.fd(), path, flags, Mode::from_raw_mode(0o600))
        .map_err(|errno| DiskError::from_errno("open", path, errno))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(ReplicationLock::new(file))),
        Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(None),
        Err(errno) => Err(DiskError::from_errno("lock", path, errno)),
    }
}

#[cfg(test)]
mod tests;
