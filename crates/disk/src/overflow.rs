//! Overflow files: metadata larger than a file's extended attributes. ext4 gives an inode about 4
//! KB of these in total; Swift's limits allow more, and Swift itself answers 507 there.
//!
//! The whole pickle then goes into a file beside the one it belongs to,
//!
//! ```text
//! <timestamp of the file>_<h>.overflow     h: 16 hex digits, the first bit set, the others
//!                                          from the start of the pickle's MD5
//! ```
//!
//! and the attributes hold a *stub*: an ordinary metadata dictionary with what any reader needs
//! (name, size, ETag, times, content type) and `X-Backend-Cairn-Overflow: <md5> <length>`. Swift
//! reads a stub as an object with little metadata: its auditor and replicator accept it, and rsync
//! copies both files.
//!
//! The name: to Swift it is a timestamp with an unknown extension. Swift neither warns of such a
//! file nor includes it in suffix hashes, and removes it once it is older than the valid version.
//! The offset makes it newer than the file it belongs to and older than any later one, so it is
//! removed when, and only when, an object is overwritten or deleted. Its name depends on its
//! content: two files with one timestamp never share it by mistake, and a copy can be verified.
//!
//! Crash safety: the overflow file is published, durably, before the file with the stub. A crash
//! between the two leaves an unreferenced overflow file; it is removed when its directory is
//! cleaned up an hour later.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use bytes::Bytes;
use cairn_types::{PolicyIndex, Timestamp};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::device_pool::Disk;
use crate::error::DiskError;
use crate::layout::FileEntry;
use crate::metadata::{Metadata, OVERFLOW};
use crate::staged_file::{Reserve, StagedFile, just_link};
use crate::xattr::{self, XattrError};

/// Maximum size of a pickle, as in Swift.
const PICKLE_MAX_BYTES: usize = 1 << 20;
/// Minimum age of an unreferenced file: its writer may be about to publish.
const ORPHAN_AGE_MIN: Duration = Duration::from_secs(3600);
/// Items of a stub, in the order in which they are dropped if even the stub is too large.
const STUB_ITEMS: [&str; 14] = [
    "name",
    "X-Timestamp",
    "Content-Length",
    "ETag",
    "X-Delete-At",
    "X-Object-Sysmeta-Ec-Frag-Index",
    "X-Object-Sysmeta-Ec-Etag",
    "X-Object-Sysmeta-Ec-Content-Length",
    "X-Object-Sysmeta-Ec-Scheme",
    "X-Object-Sysmeta-Ec-Segment-Size",
    "Content-Type-Timestamp",
    "X-Static-Large-Object",
    "deleted",
    "Content-Type",
];

/// Writes `metadata` to a staged file, with an overflow file if necessary.
pub(crate) fn write_metadata(
    disk: &Disk,
    policy: PolicyIndex,
    hash_dir: &str,
    staged: &StagedFile,
    timestamp: Timestamp,
    metadata: &Metadata,
) -> Result<(), DiskError> {
    let pickle = metadata.to_pickle();
    match xattr::write_pickle(staged.as_fd(), &pickle) {
        Ok(()) => return Ok(()),
        Err(XattrError::TooLarge) if pickle.len() <= PICKLE_MAX_BYTES => {}
        Err(error) => return Err(write_error(error)),
    }
    let md5 = xattr::md5(&pickle);
    let length = pickle.len();
    let mut overflow = StagedFile::create(disk, &policy.dir("tmp"), Reserve::Keep { size: None })?;
    overflow.write(&[Bytes::from(pickle)])?;
    overflow.publish(hash_dir, &file_name(timestamp, &md5), just_link)?;

    let note = format!("{} {length}", xattr::hex(&md5));
    for kept in (STUB_ITEMS.len() - 1..=STUB_ITEMS.len()).rev() {
        let mut stub: Metadata = STUB_ITEMS[..kept]
            .iter()
            .filter_map(|name| metadata.get(name).map(|value| (*name, value.to_vec())))
            .collect();
        stub.set(OVERFLOW, note.as_bytes());
        match xattr::write_metadata(staged.as_fd(), &stub) {
            Err(XattrError::TooLarge) => {}
            Ok(()) => return Ok(()),
            Err(error) => return Err(write_error(error)),
        }
    }
    Err(DiskError::NoSpace)
}

fn write_error(error: XattrError) -> DiskError {
    match error {
        XattrError::Unsupported => DiskError::XattrNotSupported,
        XattrError::Io(errno) => DiskError::from_errno("setxattr", "a new file", errno),
        _ => DiskError::NoSpace,
    }
}

fn file_name(timestamp: Timestamp, md5: &[u8; 16]) -> String {
    let mut offset = [0; 8];
    offset.copy_from_slice(&md5[..8]);
    let offset = u64::from_be_bytes(offset) | 1 << 63;
    format!("{}.overflow", timestamp.with_offset(offset).internal())
}

/// Reasons why a stub's overflow file cannot be read.
#[derive(Debug)]
pub(crate) enum OverflowError {
    /// Missing: not yet copied by rsync, or lost.
    Missing,
    Damaged(String),
}

/// Completes a file's metadata from the overflow file if it is a stub.
pub(crate) fn complete(
    dir: BorrowedFd<'_>,
    timestamp: Timestamp,
    stub: Metadata,
) -> Result<Metadata, OverflowError> {
    let Some(note) = stub.get_str(OVERFLOW) else {
        return Ok(stub);
    };
    let damaged = |what: &str| OverflowError::Damaged(format!("metadata overflow: {what}"));
    let (md5, length) = note
        .split_once(' ')
        .and_then(|(md5, length)| {
            let md5 = cairn_types::ObjectHash::from_hex(md5)?.0;
            Some((md5, length.parse::<usize>().ok()?))
        })
        .filter(|(_, length)| *length <= PICKLE_MAX_BYTES)
        .ok_or_else(|| damaged("malformed note"))?;
    let pickle = read_file(dir, &file_name(timestamp, &md5), length)?;
    if pickle.len() != length || xattr::md5(&pickle) != md5 {
        return Err(damaged("checksum mismatch"));
    }
    let metadata = Metadata::from_pickle(&pickle).map_err(|e| damaged(&e.to_string()))?;
    if metadata.get("name") != stub.get("name") {
        return Err(damaged("it is another object's"));
    }
    Ok(metadata)
}

fn read_file(dir: BorrowedFd<'_>, name: &str, length: usize) -> Result<Vec<u8>, OverflowError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fd = rustix::fs::openat(dir, name, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::NOENT => OverflowError::Missing,
        errno => OverflowError::Damaged(format!("metadata overflow: {errno}")),
    })?;
    // One byte more than expected detects a longer file.
    let mut bytes = vec![0; length + 1];
    let mut at = 0;
    while at < bytes.len() {
        match rustix::io::pread(&fd, &mut bytes[at..], at as u64) {
            Ok(0) => break,
            Ok(n) => at += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(OverflowError::Damaged(errno.to_string())),
        }
    }
    bytes.truncate(at);
    Ok(bytes)
}

/// Whether an overflow file not chosen as obsolete is a leftover of a crash. `owners` are the valid
/// files of its directory.
pub(crate) fn is_orphan(
    disk: &Disk,
    dir: BorrowedFd<'_>,
    file: &FileEntry,
    owners: &[&FileEntry],
) -> bool {
    let ticks = file.timestamp.ticks();
    if owners.iter().any(|owner| owner.timestamp.ticks() == ticks) {
        return false;
    }
    let Ok(stat) = rustix::fs::statat(dir, &*file.name, AtFlags::SYMLINK_NOFOLLOW) else {
        return false;
    };
    is_older_than(disk.now(), stat.st_ctime, ORPHAN_AGE_MIN)
}

/// Whether a time in seconds since the epoch is at least `age` before `now`.
pub(crate) fn is_older_than(now: i64, seconds: i64, age: Duration) -> bool {
    now.saturating_sub(seconds) > age.as_secs() as i64
}
