//! The hashes by which replicas compare a partition: one MD5 per suffix directory, over the
//! names of the files that count in it.
//!
//! ```text
//! <partition>/hashes.pkl       a pickled dictionary: suffix -> MD5 or None (to be hashed),
//!                              'valid' -> bool, 'updated' -> seconds; of an erasure-coded
//!                              policy, suffix -> {index of a fragment, or None: MD5}
//! <partition>/hashes.invalid   suffixes changed since, one a line
//! ```
//!
//! Every change of an object appends its suffix to `hashes.invalid`, under the partition's lock
//! and before the change is made visible, so that neither a crash nor a replicator at work can
//! miss it; it is on disk before the change is acknowledged, for after a power cut a replicator
//! that was not told would not look. Readers consolidate the two files.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
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
use crate::staged_file::{Reserve, StagedFile, fsync, just_link, open_dir, remove_dir};
use crate::steps::durable;

const HASHES: &str = "hashes.pkl";
const INVALID: &str = "hashes.invalid";
/// A `hashes.pkl` has at most 4,096 suffixes; anything far larger is not one.
const FILE_MAX: u64 = 16 << 20;

/// The hashes of one partition.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SuffixHashes {
    /// False: unreadable or not there; every suffix has to be looked for.
    pub valid: bool,
    /// When they were last written, in seconds; -1 where the file does not say.
    pub updated: f64,
    /// `None`: changed since it was hashed.
    pub suffixes: BTreeMap<String, Option<SuffixHash>>,
}

pub(crate) fn is_suffix(text: &str) -> bool {
    text.len() == 3
        && text
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// Takes the partition's lock and notes that `suffix` changes. Keep the lock until it has. The note
/// is in the file returned, where there is one, and not yet on disk.
pub(crate) fn invalidating<'a>(
    disk: &'a Disk,
    partition_dir: &str,
    suffix: &str,
) -> Result<(PartitionLock<'a>, Option<OwnedFd>), DiskError> {
    let lock = PartitionLock::acquire(disk, partition_dir)?;
    let noted = append_invalid(disk, partition_dir, &[suffix])?;
    Ok((lock, noted))
}

/// As [`invalidating`] for many suffixes, with the notes on disk. Whatever is then moved or
/// removed, no power cut leaves a `hashes.pkl` that tells of it as it was.
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

/// Notes on disk that suffixes change, with one sync. Under the partition's lock only.
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
    durable(disk, 1, || fsync(disk, noted.as_fd()))?;
    if is_new {
        let dir = open_dir(disk, partition_dir)
            .map_err(|errno| DiskError::from_errno("open", partition_dir, errno))?;
        durable(disk, 1, || fsync(disk, dir.as_fd()))?;
    }
    Ok(())
}

/// Notes that a suffix has to be hashed again.
pub(crate) fn invalidate(disk: &Disk, partition_dir: &str, suffix: &str) -> Result<(), DiskError> {
    disk.with_room(|| invalidating(disk, partition_dir, suffix).map(drop))
}

/// As [`invalidate`] for many suffixes, with the notes on disk.
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
        // The partition was handed off and removed: there is nothing left to hash.
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
        // The rest was for a block that is not to be had: a torn line (`Changed`).
        _ => Err(DiskError::NoSpace),
    }
}

/// What `hashes.pkl` says, and nothing else.
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
    // Replicators need it to move things away.
    disk.with_room(|| {
        let mut staged = StagedFile::create(disk, partition_dir, Reserve::Ignore)?;
        staged.write(std::slice::from_ref(&content))?;
        staged.publish(partition_dir, HASHES, just_link)?;
        Ok(())
    })
}

/// The suffix hashes of a partition, those that changed and those of
/// `recalculate` hashed anew. `look`: for suffixes that `hashes.pkl` does not know, too. Cleans
/// up on its way, as Swift does.
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
        let changed = Changed::parse(&invalid);
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

/// What `hashes.pkl` says of suffixes that nobody has noted as changed.
pub(crate) fn settled_hashes(
    disk: &Disk,
    policy: PolicyIndex,
    partition: u32,
) -> Result<BTreeMap<String, SuffixHash>, DiskError> {
    let (mut hashes, invalid) = read_both(disk, &partition_dir(policy, partition))?;
    let changed = Changed::parse(&invalid);
    if changed.is_torn {
        return Ok(BTreeMap::new());
    }
    for suffix in changed.suffixes {
        hashes.suffixes.remove(&suffix);
    }
    let hashes = hashes.suffixes.into_iter();
    Ok(hashes.filter_map(|(s, hash)| Some((s, hash?))).collect())
}

/// Notes a suffix that is not as it was hashed. A power cut may keep a new file's name and lose the
/// note of it: until something else changes there, replicators would take the suffix for what it was.
/// True: it was noted.
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

/// `hashes.pkl`, and what `hashes.invalid` says beside it.
fn read_both(disk: &Disk, dir: &str) -> Result<(SuffixHashes, Vec<u8>), DiskError> {
    let _lock = PartitionLock::acquire(disk, dir)?;
    let invalid = read_small_file(disk, &format!("{dir}/{INVALID}"));
    Ok((read_hashes(disk, dir), invalid.unwrap_or_default()))
}

/// Writes what was hashed since `original` and `invalid` were read; false where somebody else has
/// written meanwhile. What has changed meanwhile is to be hashed again.
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
    let changed = Changed::parse(since);
    kept.valid &= !changed.is_torn;
    for suffix in changed.suffixes {
        kept.suffixes.insert(suffix, None);
    }
    if kept.valid != original.valid || kept.suffixes != original.suffixes {
        write_hashes(disk, dir, &mut kept)?;
    }
    if !now_invalid.is_empty() {
        empty_invalid(disk, path)?;
    }
    Ok(true)
}

/// What `hashes.invalid` says.
struct Changed {
    suffixes: Vec<String>,
    /// A line is not a suffix. A power cut or a full disk left the beginning of one, and the next was
    /// written behind it: nobody knows which they were, and every suffix has to be hashed again.
    is_torn: bool,
}

impl Changed {
    fn parse(invalid: &[u8]) -> Self {
        let text = String::from_utf8_lossy(invalid);
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let (suffixes, torn): (Vec<_>, Vec<_>) = lines.partition(|line| is_suffix(line));
        Changed {
            suffixes: suffixes.into_iter().map(str::to_owned).collect(),
            is_torn: !torn.is_empty(),
        }
    }
}

/// What it said is in `hashes.pkl`, durably.
fn empty_invalid(disk: &Disk, path: String) -> Result<(), DiskError> {
    let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC;
    rustix::fs::openat(disk.fd(), &*path, flags, Mode::empty())
        .map_err(|errno| DiskError::from_errno("truncate", path, errno))?;
    Ok(())
}

/// The hash of one suffix directory; `None` where there is nothing in it.
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

/// The names in a directory. `NotExist` where it is none.
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

/// A whole file under the device; `None` where it cannot be read.
pub(crate) fn read_small_file(disk: &Disk, path: &str) -> Option<Vec<u8>> {
    use std::io::Read;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(disk.fd(), path, flags, Mode::empty()).ok()?;
    let mut bytes = Vec::new();
    let file = std::fs::File::from(fd);
    file.take(FILE_MAX).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}
