//! FUSE file system with an engine as its only file, on which the kernel can create a loop device.
//! Nothing is cached in between: each request reaches the engine, and a flush of the block device
//! is an `fsync` of the file.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem,
    FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags,
    ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, Session,
    TimeOrNow, WriteFlags,
};

use super::engine::{Engine, Reply};
use crate::model::{self, Op};

/// Name of the file.
pub(super) const NAME: &str = "disk";
const FILE: INodeNo = INodeNo(2);
/// Validity of the file's attributes, which never change.
const TTL: Duration = Duration::from_secs(3600);
/// Maximum concurrent requests of the kernel: requests waiting for the disk wait in its queue.
const REQUESTS_MAX: u16 = 256;
/// Maximum size of a kernel request.
const REQUEST_MAX_BYTES: u32 = 1 << 20;

/// Mounts the file system; unmounted when the session is dropped.
pub(super) fn mount(engine: Arc<Engine>, at: &Path, name: &str) -> io::Result<BackgroundSession> {
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName(name.to_owned())];
    // Requests do not block here, so a second thread would be idle.
    config.n_threads = Some(1);
    Session::new(OneFile { engine }, at, &config)?.spawn()
}

struct OneFile {
    engine: Arc<Engine>,
}

impl OneFile {
    fn attributes(&self, of: INodeNo) -> FileAttr {
        let is_file = of == FILE;
        let size = if is_file { self.engine.size() } else { 0 };
        FileAttr {
            ino: of,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if is_file {
                FileType::RegularFile
            } else {
                FileType::Directory
            },
            perm: if is_file { 0o600 } else { 0o700 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

fn request(op: Op, offset: u64, bytes: u64) -> model::Request {
    model::Request { op, offset, bytes }
}

impl Filesystem for OneFile {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // A kernel that supports fewer keeps its own limits.
        let _ = config.set_max_background(REQUESTS_MAX);
        let _ = config.set_congestion_threshold(REQUESTS_MAX);
        let _ = config.set_max_write(REQUEST_MAX_BYTES);
        // Without it the loop device's requests reach the disk one at a time.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        Ok(())
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name == NAME {
            true => reply.entry(&TTL, &self.attributes(FILE), Generation(0)),
            false => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, of: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attributes(of));
    }

    fn setattr(
        &self,
        _: &Request,
        of: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<std::time::SystemTime>,
        _: Option<FileHandle>,
        _crtime: Option<std::time::SystemTime>,
        _chgtime: Option<std::time::SystemTime>,
        _bkuptime: Option<std::time::SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.attr(&TTL, &self.attributes(of));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.engine.read(offset, size) {
            Ok(content) => {
                let request = request(Op::Read, offset, u64::from(size));
                self.engine.take(request, Reply::Data(reply, content));
            }
            Err(error) => reply.error(error.into()),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.engine.write(offset, data) {
            Ok(()) => {
                let request = request(Op::Write, offset, data.len() as u64);
                let reply = Reply::Written(reply, data.len() as u32);
                self.engine.take(request, reply);
            }
            Err(error) => reply.error(error.into()),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.engine
            .take(request(Op::Flush, 0, 0), Reply::Flushed(reply));
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // Closing the file is not a flush of the disk.
        reply.ok();
    }
}
