//! Metadata of an object: read from its files, put together from the PUT and the POSTs, and checked.

use std::os::fd::{AsFd, BorrowedFd};

use cairn_types::metadata::is_sys_meta;
use cairn_types::{ServerKind, Timestamp};
use rustix::io::Errno;

use super::look::open_file;
use super::open::Failed;
use crate::engine::{FragmentInfo, ObjectInfo, OpenOptions};
use crate::error::DiskError;
use crate::layout::{FileEntry, OnDiskFiles};
use crate::machine::wall_clock;
use crate::metadata::{Metadata, NAME};
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
    let mut info = ObjectInfo {
        metadata: datafile,
        datafile_metadata: None,
        metafile_metadata: None,
        data_timestamp,
        size: 0,
        fragments: fragment_info(files),
    };
    let Some(meta) = &files.meta else {
        return Ok(info);
    };
    let fd = open_file(dir, meta)?;
    let mut metafile = read_metadata(dir, fd.as_fd(), meta)?;
    if let Some(other) = files.content_type.as_ref().filter(|e| *e != meta) {
        let fd = open_file(dir, other)?;
        let newer = read_metadata(dir, fd.as_fd(), other)?;
        merge_content_type(&mut metafile, &newer, data_timestamp);
    }
    let datafile = std::mem::take(&mut info.metadata);
    let mut merged = metafile.clone();
    for (name, value) in datafile.iter().filter(|(name, _)| is_of_put(name)) {
        merged.set(name, value);
    }
    let content_type_timestamp = metafile.timestamp("Content-Type-Timestamp");
    if let Some(content_type) = datafile.get("Content-Type")
        && content_type_timestamp.is_none_or(|time| data_timestamp > time)
    {
        merged.set("Content-Type", content_type);
        merged.remove("Content-Type-Timestamp");
    }
    metafile.remove(NAME);
    info.metadata = merged;
    info.datafile_metadata = Some(datafile);
    info.metafile_metadata = Some(metafile);
    Ok(info)
}

fn fragment_info(files: &OnDiskFiles) -> Option<Box<FragmentInfo>> {
    let index = files.data.as_ref()?.fragment_index()?;
    let sets = files.fragments.sets.iter();
    Some(Box::new(FragmentInfo {
        index,
        durable: files.fragments.durable,
        deleted: files.fragments.deleted,
        found: sets
            .map(|set| (set.timestamp, set.indices().collect()))
            .collect(),
    }))
}

/// A second `.meta` file has the newer content type.
fn merge_content_type(metafile: &mut Metadata, newer: &Metadata, data_timestamp: Timestamp) {
    let time = |m: &Metadata| m.timestamp("Content-Type-Timestamp");
    let (Some(content_type), Some(newer_time)) = (newer.get("Content-Type"), time(newer)) else {
        return;
    };
    if time(metafile).is_none_or(|t| newer_time > t) && newer_time > data_timestamp {
        metafile.set("Content-Type", content_type);
        metafile.set("Content-Type-Timestamp", newer_time.internal());
    }
}

/// Metadata that only a PUT sets.
fn is_of_put(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    matches!(
        lower.as_str(),
        "content-length" | "deleted" | "etag" | "x-static-large-object"
    ) || is_sys_meta(ServerKind::Object, &lower)
}

/// Expiry, and the size that the metadata promises.
pub(super) fn check_metadata(
    mut info: ObjectInfo,
    file_size: u64,
    options: &OpenOptions,
) -> Result<ObjectInfo, Failed> {
    let number = |name: &str, metadata: &Metadata| -> Result<Option<i64>, Failed> {
        let Some(text) = metadata.get(name) else {
            return Ok(None);
        };
        let number = std::str::from_utf8(text).ok();
        let number = number.and_then(|t| t.trim().parse().ok());
        number.map(Some).ok_or_else(|| {
            let text = String::from_utf8_lossy(text).into_owned();
            Failed::Broken(format!("bad metadata {name} value {text}"))
        })
    };
    let delete_at = number("X-Delete-At", &info.metadata)?;
    let size = number("Content-Length", &info.metadata)?;
    info.size = file_size;
    if let Some(delete_at) = delete_at.filter(|_| !options.open_expired) {
        let is_due =
            u64::try_from(delete_at).map_or(true, |at| Timestamp::from_secs(at) <= options.now);
        if is_due {
            return Err(DiskError::Expired(Box::new(info)).into());
        }
    }
    match size {
        None => Err(Failed::Broken("no content-length in the metadata".into())),
        Some(size) if u64::try_from(size) == Ok(file_size) => Ok(info),
        Some(size) => Err(Failed::Broken(format!(
            "metadata content-length {size} does not match actual object size {file_size}"
        ))),
    }
}
