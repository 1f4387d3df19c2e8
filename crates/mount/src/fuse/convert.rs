//! Conversions between the kernel's types and the mount's own.

use std::ffi::OsStr;

use fuser::{FileAttr, FileType, FopenFlags, INodeNo, OpenAccMode, OpenFlags, Request, TimeOrNow};
use rustix::fs::OFlags;

use crate::attributes::Kind;
use crate::error::{FsError, FsResult};
use crate::time::Time;
use crate::vfs::{Attr, OpenMode, Owner};

pub(super) fn text(name: &OsStr) -> FsResult<String> {
    name.to_str().map(str::to_owned).ok_or(FsError::NotUtf8)
}

pub(super) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
    }
}

pub(super) fn file_attr(attr: &Attr) -> FileAttr {
    let attributes = &attr.attributes;
    FileAttr {
        ino: INodeNo(attr.ino),
        size: attr.size,
        blocks: attr.size.div_ceil(512),
        atime: attributes.atime.unwrap_or(attributes.mtime).into(),
        mtime: attributes.mtime.into(),
        ctime: attr.ctime.into(),
        crtime: attr.ctime.into(),
        kind: file_type(attributes.kind),
        perm: attributes.mode as u16,
        nlink: attr.nlink,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: attributes.rdev,
        blksize: 128 << 10,
        flags: 0,
    }
}

pub(super) fn open_mode(flags: OpenFlags) -> OpenMode {
    let has = |flag: OFlags| flags.0 & flag.bits() as i32 != 0;
    OpenMode {
        is_writer: flags.acc_mode() != OpenAccMode::O_RDONLY,
        is_append: has(OFlags::APPEND),
        truncates: has(OFlags::TRUNC),
    }
}

/// Handles for writing bypass the kernel's page cache, which would split records at page
/// boundaries.
pub(super) fn open_flags(mode: OpenMode, keeps_pages: bool) -> FopenFlags {
    match (mode.is_writer, keeps_pages) {
        (true, _) => FopenFlags::FOPEN_DIRECT_IO,
        (false, true) => FopenFlags::FOPEN_KEEP_CACHE,
        (false, false) => FopenFlags::empty(),
    }
}

pub(super) fn owner(request: &Request, mode: u32, umask: u32) -> Owner {
    Owner {
        uid: request.uid(),
        gid: request.gid(),
        mode: mode & !umask & 0o7777,
    }
}

pub(super) fn time(time: TimeOrNow) -> Time {
    match time {
        TimeOrNow::SpecificTime(time) => time.into(),
        TimeOrNow::Now => Time::now(),
    }
}
