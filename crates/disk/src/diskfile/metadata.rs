//! Metadata of an object: read from its files, put together from the PUT and the POSTs, and checked.

use std::os::fd::{AsFd, BorrowedFd};

use cairn_types::Timestamp;
use rustix::io::Errno;

use super::look::open_file;
use super::open::Failed;
use crate::engine::{FragmentInfo, InfoError, ObjectInfo, OpenOptions};
use crate::error::DiskError;
use crate::layout::{FileEntry, OnDiskFiles};
use crate::machine::wall_clock;
use crate::metadata::Metadata;
use crate::overflow::{self, OverflowError};
use crate::xattr::{self, XattrError};

/// A stub whose overflow file is missing may wait so long for rsync to bring it.
const OVERFLOW_GRACE: std::time::Duration = std::time::Duration::from_secs(600);

/// A file's metadata, with its overflow.
pub(super) fn read_metadata(
    dir: BorrowedFd<'_>,
    fd: BorrowedFd<'_>,
    entry: &FileEntry,
) -> Result<Metadata, Failed> {
    let metadata = xattr::read_metadata(fd).map_err(|error| match error {
        XattrError::Unsupported => Failed::Final(DiskError::XattrNotSupported),
        XattrError::Io(errno) => io_error("getxattr", errno),
        error => Failed::Broken(format!("{}: {error}", entry.name)),
    })?;
    match overflow::complete(dir, entry.timestamp, metadata) {
        Ok(metadata) => Ok(metadata),
        Err(OverflowError::Damaged(reason)) => Err(Failed::Broken(reason)),
        Err(OverflowError::Missing) => {
            let changed = rustix::fs::fstat(fd).map_or(0, |stat| stat.st_ctime);
            if overflow::is_older_than(wall_clock(), changed, OVERFLOW_GRACE) {
                Err(Failed::Broken(
                    "the metadata's overflow file is missing".into(),
                ))
            } else {
                Err(Failed::Changed)
            }
        }
    }
}

/// Bad sectors make an object broken, unless they can be read later; other trouble may pass.
pub(super) fn io_error(action: &'static str, errno: Errno) -> Failed {
    match errno {
        Errno::AGAIN => Failed::NotCached,
        Errno::IO => Failed::Unreadable(format!("{action}: {errno}"), None),
        Errno::UCLEAN => Failed::Broken(format!("{action}: {errno}")),
        errno => DiskError::from_errno(action, "an object", errno).into(),
    }
}

/// Puts together what the PUT and the POSTs said.
pub(super) fn merge(
    dir: BorrowedFd<'_>,
    files: &OnDiskFiles,
    datafile: Metadata,
    data_timestamp: Timestamp,
) -> Result<ObjectInfo, Failed> {
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

/// Expiry, and the size that the metadata promises.
pub(super) fn check_metadata(
    info: ObjectInfo,
    file_size: u64,
    options: &OpenOptions,
) -> Result<ObjectInfo, Failed> {
    info.check(file_size, options).map_err(|error| match error {
        InfoError::Expired(info) => DiskError::Expired(info).into(),
        InfoError::Broken(reason) => Failed::Broken(reason),
    })
}
