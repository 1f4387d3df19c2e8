//! Metadata of an object: read from its files, merged from the PUT and the POSTs, and checked.

use std::os::fd::{AsFd, BorrowedFd};

use cairn_types::Timestamp;
use rustix::io::Errno;

use super::look::open_file;
use super::open::OpenError;
use crate::engine::{FragmentInfo, InfoError, ObjectInfo, OpenOptions};
use crate::error::DiskError;
use crate::layout::{FileEntry, OnDiskFiles};
use crate::machine::wall_clock;
use crate::metadata::Metadata;
use crate::overflow::{self, OverflowError};
use crate::xattr::{self, XattrError};

/// Grace period of a stub whose overflow file is missing: rsync may still bring it.
const OVERFLOW_GRACE: std::time::Duration = std::time::Duration::from_secs(600);

/// A file's metadata, including its overflow.
pub(super) fn read_metadata(
    dir: BorrowedFd<'_>,
    fd: BorrowedFd<'_>,
    entry: &FileEntry,
) -> Result<Metadata, OpenError> {
    let metadata = xattr::read_metadata(fd).map_err(|error| match error {
        XattrError::Unsupported => OpenError::Final(DiskError::XattrNotSupported),
        XattrError::Io(errno) => io_error("getxattr", errno),
        error => OpenError::Broken(format!("{}: {error}", entry.name)),
    })?;
    match overflow::complete(dir, entry.timestamp, metadata) {
        Ok(metadata) => Ok(metadata),
        Err(OverflowError::Damaged(reason)) => Err(OpenError::Broken(reason)),
        Err(OverflowError::Missing) => {
            let changed = rustix::fs::fstat(fd).map_or(0, |stat| stat.st_ctime);
            if overflow::is_older_than(wall_clock(), changed, OVERFLOW_GRACE) {
                Err(OpenError::Broken(
                    "the metadata's overflow file is missing".into(),
                ))
            } else {
                Err(OpenError::Changed)
            }
        }
    }
}

/// Classifies an I/O error: bad sectors break an object unless a later read succeeds; other errors
/// may be transient.
pub(super) fn io_error(action: &'static str, errno: Errno) -> OpenError {
    match errno {
        Errno::AGAIN => OpenError::NotCached,
        Errno::IO => OpenError::Unreadable(format!("{action}: {errno}"), None),
        Errno::UCLEAN => OpenError::Broken(format!("{action}: {errno}")),
        errno => DiskError::from_errno(action, "an object", errno).into(),
    }
}

/// Merges the metadata of the PUT and the POSTs.
pub(super) fn merge(
    dir: BorrowedFd<'_>,
    files: &OnDiskFiles,
    datafile: Metadata,
    data_timestamp: Timestamp,
) -> Result<ObjectInfo, OpenError> {
    let info = ObjectInfo::new(datafile, data_timestamp, FragmentInfo::of(files));
    let Some(meta) = &files.meta else {
        return Ok(info);
    };
    let fd = open_file(dir, meta)?;
    let metafile = read_metadata(dir, fd.as_fd(), meta)?;
    let other = files.content_type.as_ref().filter(|e| *e != meta);
    let newer = match other {
        Some(other) => {
            let fd = open_file(dir, other)?;
            Some(read_metadata(dir, fd.as_fd(), other)?)
        }
        None => None,
    };
    Ok(info.with_post(metafile, newer.as_ref()))
}

/// Checks expiry, and the size recorded in the metadata.
pub(super) fn check_metadata(
    info: ObjectInfo,
    file_size: u64,
    options: &OpenOptions,
) -> Result<ObjectInfo, OpenError> {
    info.check(file_size, options).map_err(|error| match error {
        InfoError::Expired(info) => DiskError::Expired(info).into(),
        InfoError::Broken(reason) => OpenError::Broken(reason),
    })
}
