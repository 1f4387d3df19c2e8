//! Suffix hashes, by which replicas compare a partition: one MD5 per suffix directory, over the
//! names of its valid files.
//!
//! ```text
//! <partition>/hashes.pkl       a pickled dictionary: suffix -> MD5 or None (to be hashed),
//!                              'valid' -> bool, 'updated' -> seconds; of an erasure-coded
//!                              policy, suffix -> {index of a fragment, or None: MD5}
//! <partition>/hashes.invalid   suffixes changed since, one a line
//! ```
//!
//! Every change of an object appends its suffix to `hashes.invalid`, under the partition's lock and
//! before the change becomes visible, so that neither a crash nor a running replicator can miss it.
//! The line is durable before the change is acknowledged: after a power cut a replicator would
//! otherwise not look there. Readers consolidate the two files.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use cairn_device::OpenDevice;
use cairn_formats::pickle::{self, Value};
use cairn_types::{ObjectHash, PolicyIndex};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::device_pool::Disk;
use crate::diskfile::DiskFileEngine;
use crate::engine::{Hashed, SuffixHash, SuffixHasher};
use crate::error::{DiskError, LIST};
use crate::layout::partition_dir;
use crate::partition_lock::PartitionLock;
use crate::staged_file::{Reserve, StagedFile, just_link, open_dir, remove_dir};

const HASHES: &str = "hashes.pkl";
const INVALID: &str = "hashes.invalid";
/// Maximum size of a `hashes.pkl`, which has at most 4,096 suffixes.
const FILE_MAX_BYTES: u64 = 16 << 20;

/// The hashes of one partition.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SuffixHashes {
    /// False if unreadable or missing: all suffixes must be searched for.
    pub valid: bool,
    /// Time of the last write, in seconds; -1 if the file lacks it.
    pub updated: f64,
    /// `None` if changed since it was hashed.
    pub suffixes: BTreeMap<String, Option<SuffixHash>>,
}

pub(crate) fn is_suffix(text: &str) -> bool {
    text.len() == 3
        && text
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// Acquires the partition's lock and invalidates `suffix`. Keep the lock until the change is made.
/// The returned file, if any, has the note, not durable yet.
pub(crate) fn invalidating<'a>(
    disk: &'a Disk,
    partition_dir: &str,
    suffix: &str,
) -> Result<(PartitionLock<'a>, Option<OwnedFd>), DiskError> {
    let lock = PartitionLock::acquire(disk, partition_dir)?;
    let noted = append_invalid(disk, partition_dir, &[suffix])?;
    Ok((lock, noted))
}

/// As [`invalidating`] for many suffixes, durably: after a power cut no `hashes.pkl` describes the
/// state before the move or removal that follows.
pub(crate) fn invalidating_durably<'a, S: AsRef<str>>(
    disk: &'a Disk,
    partition_dir: &str,
    suffixes: &[S],
) -> Result<PartitionLock<'a>, DiskError> {
    disk.with_room(|| {
        let lock = PartitionLock::acquire(disk, partition_dir)?;
        note_durably(disk, partition_dir, suffixes)?;
        Ok(lock)
    })
}

/// Invalidates suffixes durably, with one sync. Requires the partition's lock.
pub(crate) fn note_durably<S: AsRef<str>>(
    disk: &Disk,
    partition_dir: &str,
    suffixes: &[S],
) -> Result<(), DiskError> {
    if suffixes.is_empty() {
        return Ok(());
    }
    let path = format!("{partition_dir}/{INVALID}");
    let is_new = rustix::fs::statat(disk.fd(), &*path, AtFlags::empty()).is_err();
    let Some(noted) = append_invalid(disk, partition_dir, suffixes)? else {
        return Ok(());
    };
    let mut set = disk.sync_set();
    set.add_log(Arc::new(noted));
    if is_new {
        set.add_directory_at(disk.root(), partition_dir);
    }
    disk.sync(&set)
}

/// Invalidates a suffix.
pub(crate) fn invalidate(disk: &Disk, partition_dir: &str, suffix: &str) -> Result<(), DiskError> {
    disk.with_room(|| invalidating(disk, partition_dir, suffix).map(drop))
}

/// As [`invalidate`] for many suffixes, durably.
pub(crate) fn invalidate_durably(
    disk: &Disk,
    partition_dir: &str,
    suffixes: &[String],
) -> Result<(), DiskError> {
    invalidating_durably(disk, partition_dir, suffixes).map(drop)
}

fn append_invalid(
    disk: &Disk,
    partition_dir: &str,
    suffixes: &[impl AsRef<str>],
) -> Result<Option<OwnedFd>, DiskError> {
    let path = format!("{partition_dir}/{INVALID}");
    let error = |errno| DiskError::from_errno("append", &*path, errno);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o600);
    let file = match rustix::fs::openat(disk.fd(), &*path, flags, mode) {
        Ok(file) => file,
        // The partition was handed off and removed: nothing to hash.
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(error(errno)),
    };
    let mut lines = Vec::with_capacity(4 * suffixes.len());
    for suffix in suffixes {
        lines.extend_from_slice(suffix.as_ref().as_bytes().get(..3).unwrap_or(b"???"));
        lines.push(b'\n');
    }
    match rustix::io::write(&file, &lines).map_err(error)? {
        count if count == lines.len() => Ok(Some(file)),
        // No block for the rest: a torn line (`Invalidated`).
        _ => Err(DiskError::NoSpace),
    }
}

/// The content of `hashes.pkl` alone.
pub fn read_hashes(disk: &Disk, partition_dir: &str) -> SuffixHashes {
    let file = read_small_file(disk, &format!("{partition_dir}/{HASHES}"));
    let value = file.and_then(|bytes| pickle::loads(&bytes).ok());
    value.and_then(|v| from_value(&v)).unwrap_or_default()
}

fn from_value(value: &Value) -> Option<SuffixHashes> {
    let mut hashes = SuffixHashes {
        valid: true,
        updated: -1.0,
        suffixes: BTreeMap::new(),
    };
    for (key, value) in value.as_dict()? {
        match key.as_str()? {
            "valid" => hashes.valid = value.as_int()? != 0,
            "updated" => hashes.updated = value.as_float()?,
            suffix if is_suffix(suffix) => {
                let hash = SuffixHash::from_value(value);
                hashes.suffixes.insert(suffix.to_owned(), hash);
            }
            _ => return None,
        }
    }
    Some(hashes)
}

fn to_value(hashes: &SuffixHashes) -> Value {
    let mut pairs: Vec<(Value, Value)> = hashes
        .suffixes
        .iter()
        .map(|(suffix, hash)| {
            let hash = hash.as_ref().map_or(Value::None, SuffixHash::to_value);
            (Value::str(suffix), hash)
        })
        .collect();
    pairs.push((Value::str("valid"), Value::Bool(hashes.valid)));
    pairs.push((Value::str("updated"), Value::Float(hashes.updated)));
    Value::Dict(pairs)
}

/// Writes `hashes.pkl`, with the time.
fn write_hashes(
    disk: &Disk,
    partition_dir: &str,
    hashes: &mut SuffixHashes,
) -> Result<(), DiskError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    hashes.updated = now.map_or(0.0, |d| d.as_secs_f64());
    let content = Bytes::from(pickle::dumps(&to_value(hashes)));
    // Replicators need it to move objects away.
    disk.with_room(|| {
        let mut staged = StagedFile::create(disk, partition_dir, Reserve::Ignore)?;
        staged.write(std::slice::from_ref(&content))?;
        staged.publish(partition_dir, HASHES, just_link)?;
        Ok(())
    })
}

/// Suffix hashes of a partition; invalidated ones and those of `recalculate` are recomputed. With
/// `look`, also searches for suffixes missing from `hashes.pkl`. Cleans up, as Swift does.
pub(crate) fn get_hashes(
    disk: &Disk,
    engine: &DiskFileEngine,
    policy: PolicyIndex,
    partition: u32,
    recalculate: &[String],
    look: bool,
) -> Result<Hashed, DiskError> {
    let dir = partition_dir(policy, partition);
    if open_dir(disk, &dir).is_err() {
        return Ok(Hashed::default());
    }
    let mut hashed = 0;
    loop {
        let (original, invalid) = read_both(disk, &dir)?;
        let changed = Invalidated::parse(&invalid);
        let mut hashes = original.clone();
        if !original.valid || changed.is_torn {
            hashes = SuffixHashes {
                valid: true,
                ..SuffixHashes::default()
            };
        }
        if look || !original.valid || changed.is_torn {
            for name in list(disk, &dir)?.into_iter().filter(|n| is_suffix(n)) {
                hashes.suffixes.entry(name).or_insert(None);
            }
        }
        let asked = recalculate.iter().filter(|s| is_suffix(s));
        for suffix in asked.chain(&changed.suffixes) {
            hashes.suffixes.insert(suffix.clone(), None);
        }
        let pending: Vec<String> = hashes
            .suffixes
            .iter()
            .filter(|(_, hash)| hash.as_ref().is_none_or(SuffixHash::is_empty))
            .map(|(suffix, _)| suffix.clone())
            .collect();
        for suffix in pending {
            hashed += 1;
            match hash_suffix(disk, engine, policy, partition, &suffix) {
                Ok(Some(hash)) => hashes.suffixes.insert(suffix, Some(hash)),
                Ok(None) => hashes.suffixes.remove(&suffix),
                Err(error) => {
                    tracing::warn!(device = disk.name(), dir, suffix, %error, "suffix not hashed");
                    continue;
                }
            };
        }
        let is_new = hashes.valid != original.valid || hashes.suffixes != original.suffixes;
        if (is_new || !invalid.is_empty()) && !keep(disk, &dir, &original, &invalid, &hashes)? {
            continue;
        }
        let known = hashes.suffixes.into_iter();
        return Ok(Hashed {
            hashes: known.filter_map(|(s, hash)| Some((s, hash?))).collect(),
            hashed,
        });
    }
}

/// Hashes in `hashes.pkl` that are not invalidated.
pub(crate) fn settled_hashes(
    disk: &Disk,
    policy: PolicyIndex,
    partition: u32,
) -> Result<BTreeMap<String, SuffixHash>, DiskError> {
    let (mut hashes, invalid) = read_both(disk, &partition_dir(policy, partition))?;
    let changed = Invalidated::parse(&invalid);
    if changed.is_torn {
        return Ok(BTreeMap::new());
    }
    for suffix in changed.suffixes {
        hashes.suffixes.remove(&suffix);
    }
    let hashes = hashes.suffixes.into_iter();
    Ok(hashes.filter_map(|(s, hash)| Some((s, hash?))).collect())
}

/// Rehashes a suffix, and invalidates a stored hash that differs. A power cut may keep a new file's
/// name but lose its note: until another change there, replicators would take the suffix as
/// unchanged. True if invalidated.
pub(crate) fn check_suffix(
    disk: &Disk,
    engine: &DiskFileEngine,
    policy: PolicyIndex,
    partition: u32,
    suffix: &str,
    settled: &SuffixHash,
) -> Result<bool, DiskError> {
    let is = hash_suffix(disk, engine, policy, partition, suffix)?;
    let has_changed = is.as_ref() != Some(settled);
    if has_changed {
        invalidate(disk, &partition_dir(policy, partition), suffix)?;
    }
    Ok(has_changed)
}

/// `hashes.pkl` and `hashes.invalid`, read under one lock.
fn read_both(disk: &Disk, dir: &str) -> Result<(SuffixHashes, Vec<u8>), DiskError> {
    let _lock = PartitionLock::acquire(disk, dir)?;
    let invalid = read_small_file(disk, &format!("{dir}/{INVALID}"));
    Ok((read_hashes(disk, dir), invalid.unwrap_or_default()))
}

/// Stores hashes computed from `original` and `invalid`; false if another process has written
/// since. Suffixes invalidated since then stay invalid.
fn keep(
    disk: &Disk,
    dir: &str,
    original: &SuffixHashes,
    invalid: &[u8],
    hashes: &SuffixHashes,
) -> Result<bool, DiskError> {
    let _lock = PartitionLock::acquire(disk, dir)?;
    let path = format!("{dir}/{INVALID}");
    let now_invalid = read_small_file(disk, &path).unwrap_or_default();
    let since = now_invalid.strip_prefix(invalid);
    let Some(since) = since.filter(|_| read_hashes(disk, dir) == *original) else {
        return Ok(false);
    };
    let mut kept = hashes.clone();
    let changed = Invalidated::parse(since);
    kept.valid &= !changed.is_torn;
    for suffix in changed.suffixes {
        kept.suffixes.insert(suffix, None);
    }
    if kept.valid != original.valid || kept.suffixes != original.suffixes {
        write_hashes(disk, dir, &mut kept)?;
    }
    if !now_invalid.is_empty() {
        truncate_invalid(disk, path)?;
    }
    Ok(true)
}

/// Content of `hashes.invalid`.
struct Invalidated {
    suffixes: Vec<String>,
    /// Whether a line is not a suffix: a power cut or a full disk left the start of one, with the
    /// next appended to it. The suffixes are unknown, and all must be rehashed.
    is_torn: bool,
}

impl Invalidated {
    fn parse(invalid: &[u8]) -> Self {
        let text = String::from_utf8_lossy(invalid);
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let (suffixes, torn): (Vec<_>, Vec<_>) = lines.partition(|line| is_suffix(line));
        Invalidated {
            suffixes: suffixes.into_iter().map(str::to_owned).collect(),
            is_torn: !torn.is_empty(),
        }
    }
}

/// Truncates `hashes.invalid` after its content was stored durably in `hashes.pkl`.
fn truncate_invalid(disk: &Disk, path: String) -> Result<(), DiskError> {
    let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC;
    rustix::fs::openat(disk.fd(), &*path, flags, Mode::empty())
        .map_err(|errno| DiskError::from_errno("truncate", path, errno))?;
    Ok(())
}

/// Computes the hash of one suffix directory; `None` if it is empty.
fn hash_suffix(
    disk: &Disk,
    engine: &DiskFileEngine,
    policy: PolicyIndex,
    partition: u32,
    suffix: &str,
) -> Result<Option<SuffixHash>, DiskError> {
    let dir = format!("{}/{suffix}", partition_dir(policy, partition));
    let mut names = match list(disk, &dir) {
        Ok(names) => names,
        Err(DiskError::NotExist) => return Ok(None),
        Err(error) => return Err(error),
    };
    names.sort();
    let mut hasher = SuffixHasher::new();
    for name in names {
        let Some(hash) = ObjectHash::from_hex(&name) else {
            continue;
        };
        let files = engine.clean_up(disk, policy, partition, hash)?;
        hasher.add_object(&files);
    }
    if remove_dir(disk, &dir) {
        return Ok(None);
    }
    Ok(Some(
        hasher.finish(engine.unique_fragments(policy).is_some()),
    ))
}

/// Names in a directory; `NotExist` if there is none.
pub(crate) fn list(disk: &Disk, dir: &str) -> Result<Vec<String>, DiskError> {
    let error = |errno| match errno {
        Errno::NOENT | Errno::NOTDIR => DiskError::NotExist,
        errno => DiskError::from_errno(LIST, dir, errno),
    };
    let fd = open_dir(disk, dir).map_err(error)?;
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(fd.as_fd()).map_err(error)? {
        let entry = entry.map_err(error)?;
        if let Ok(name) = entry.file_name().to_str()
            && name != "."
            && name != ".."
        {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// Reads a whole file under the device; `None` if it cannot be read.
pub(crate) fn read_small_file(disk: &Disk, path: &str) -> Option<Vec<u8>> {
    use std::io::Read;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(disk.fd(), path, flags, Mode::empty()).ok()?;
    let mut bytes = Vec::new();
    let file = std::fs::File::from(fd);
    file.take(FILE_MAX_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_line_of_a_note_is_a_suffix_or_torn(bytes in proptest::collection::vec(prop_oneof![
            Just(b'\n'), Just(b' '), b'0'..=b'9', b'a'..=b'g', any::<u8>(),
        ], 0..60)) {
            let noted = Invalidated::parse(&bytes);
            prop_assert!(noted.suffixes.iter().all(|suffix| is_suffix(suffix)));
            let text = String::from_utf8_lossy(&bytes);
            let lines = text.lines().filter(|line| !line.trim().is_empty()).count();
            prop_assert!(noted.is_torn == (noted.suffixes.len() < lines));
        }
    }
}
