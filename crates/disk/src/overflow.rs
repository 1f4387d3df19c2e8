//! Metadata larger than a file's extended attributes. ext4 gives an inode about 4 KB of them in
//! all; Swift's limits allow more, and Swift itself answers 507 there.
//!
//! The whole pickle then goes into a file of its own beside the one it belongs to,
//!
//! ```text
//! <timestamp of the file>_<h>.overflow     h: 16 hex digits, the first bit set, the others
//!                                          from the start of the pickle's MD5
//! ```
//!
//! and the attributes hold a *stub*: an ordinary metadata dictionary with what any reader needs
//! (name, size, ETag, times, content type) and `X-Backend-Cairn-Overflow: <md5> <length>`. Swift
//! reads a stub as an object with little metadata: its auditor and replicator find nothing
//! wrong, and rsync carries both files.
//!
//! Why that name: to Swift it is a timestamp with an unknown extension. Swift neither warns of
//! such a file nor counts it in suffix hashes, and it removes it with whatever becomes older
//! than it. The offset makes it newer than the file it belongs to and older than any later one,
//! so it goes when an object is overwritten or deleted, and not before. It takes its name from
//! its content: two files of one time never share it by mistake, and a copy is known to be whole.
//!
//! Crash safety: the overflow file is published, durably, before the file with the stub. A crash
//! between the two leaves an overflow file that nothing refers to; it is removed when it is an
//! hour old and its directory is cleaned up.

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

/// A pickle larger than this is refused, here as there.
const PICKLE_MAX: usize = 1 << 20;
/// A file that nothing refers to may still belong to a writer that is about to publish.
const ORPHAN_AGE: Duration = Duration::from_secs(3600);
/// What a stub keeps, in the order in which it is given up again where even that is too much.
const STUB: [&str; 14] = [
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

/// Writes `metadata` to a staged file, with an overflow file where it has to be.
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
        Err(XattrError::TooLarge) if pickle.len() <= PICKLE_MAX => {}
        Err(error) => return Err(write_error(error)),
    }
    let md5 = xattr::md5(&pickle);
    let length = pickle.len();
    let mut overflow = StagedFile::create(disk, &policy.dir("tmp"), Reserve::Keep { size: None })?;
    overflow.write(&[Bytes::from(pickle)])?;
    overflow.publish(hash_dir, &file_name(timestamp, &md5), just_link)?;

    let note = format!("{} {length}", xattr::hex(&md5));
    for kept in (STUB.len() - 1..=STUB.len()).rev() {
        let mut stub: Metadata = STUB[..kept]
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

/// Why a stub's other half cannot be had.
#[derive(Debug)]
pub(crate) enum OverflowError {
    /// Not there: on its way with rsync, or lost.
    Missing,
    Damaged(String),
}

/// What a file's attributes say, completed from the overflow file where they are a stub.
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
        .filter(|(_, length)| *length <= PICKLE_MAX)
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
    // One byte more than expected tells that there is more.
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

/// Is this overflow file, chosen by nobody as obsolete, left over from a crash? `owners`: the
/// files that count in its directory.
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
    is_older_than(disk.now(), stat.st_ctime, ORPHAN_AGE)
}

/// Has a moment, both in seconds since the epoch, been so long ago?
pub(crate) fn is_older_than(now: i64, seconds: i64, age: Duration) -> bool {
    now.saturating_sub(seconds) > age.as_secs() as i64
}
