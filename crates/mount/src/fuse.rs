//! FUSE interface: converts the kernel's requests to calls of the file system, each in a task of
//! its own, and their results to replies.

mod ahead;
mod calls;
mod convert;
mod errno;
mod pages;
mod replies;
mod tasks;

use std::ffi::OsStr;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use bytes::Bytes;
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, Notifier, OpenFlags,
    PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::OFlags;
use tokio::runtime::Handle;

use crate::attributes::Kind;
use crate::error::FsError;
use crate::store::Store;
use crate::vfs::{Changes, DirectoryEntry, Vfs, XattrMode, is_offered};
pub(crate) use ahead::widen;
use convert::{file_attr, file_type, open_flags, open_mode, owner, text, time};
use errno::told;
use pages::{drop_pages, forget_attributes};
use replies::{attr, data, empty, entry, space, xattr};

const GENERATION: Generation = Generation(0);
const WRITE_MAX_BYTES: u32 = 1 << 20;

/// Implements `fuser`'s file system trait.
pub(crate) struct Fuse<S> {
    vfs: Arc<Vfs<S>>,
    runtime: Handle,
    notifier: Arc<OnceLock<Notifier>>,
}

impl<S: Store> Fuse<S> {
    pub(crate) fn new(vfs: Arc<Vfs<S>>, runtime: Handle) -> Fuse<S> {
        Fuse {
            vfs,
            runtime,
            notifier: Arc::default(),
        }
    }

    /// Channel for notifications to the kernel, set once the session exists.
    pub(crate) fn notifier(&self) -> Arc<OnceLock<Notifier>> {
        self.notifier.clone()
    }
}

impl<S: Store> Filesystem for Fuse<S> {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        for capability in [
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_AUTO_INVAL_DATA,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        ] {
            // An older kernel lacks the capability.
            let _ = config.add_capabilities(capability);
        }
        let _ = config.set_max_write(WRITE_MAX_BYTES);
        let _ = config.set_max_readahead(WRITE_MAX_BYTES);
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (name, ttl) = (text(name), self.vfs.fresh());
        self.call(
            |vfs| async move { vfs.lookup(parent.0, &name?).await },
            entry(reply, ttl),
        );
    }

    fn forget(&self, _request: &Request, ino: INodeNo, count: u64) {
        self.vfs.forget(ino.0, count);
    }

    fn getattr(&self, _r: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let ttl = self.vfs.fresh();
        let call = |vfs: Arc<Vfs<S>>| async move { vfs.getattr(ino.0).await };
        self.call(call, attr(reply, ttl));
    }

    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changes = Changes {
            mode,
            uid,
            gid,
            size,
            atime: atime.map(time),
            mtime: mtime.map(time),
        };
        let ttl = self.vfs.fresh();
        let call = |vfs: Arc<Vfs<S>>| async move { vfs.setattr(ino.0, changes).await };
        self.call(call, attr(reply, ttl));
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        let call = |vfs: Arc<Vfs<S>>| async move { vfs.readlink(ino.0).await };
        self.call(call, move |result| match result {
            Ok(target) => reply.data(target.as_bytes()),
            Err(errno) => reply.error(errno),
        });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let (name, ttl, owner) = (text(name), self.vfs.fresh(), owner(request, mode, umask));
        let kind = match Kind::of_mode(mode) {
            Some(Kind::Directory | Kind::Symlink) | None => Err(FsError::Invalid("a type of node")),
            Some(kind) => Ok(kind),
        };
        let call =
            |vfs: Arc<Vfs<S>>| async move { vfs.mknod(parent.0, &name?, kind?, owner, rdev).await };
        self.call(call, entry(reply, ttl));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let (name, ttl, owner) = (text(name), self.vfs.fresh(), owner(request, mode, umask));
        let call = |vfs: Arc<Vfs<S>>| async move { vfs.mkdir(parent.0, &name?, owner).await };
        self.call(call, entry(reply, ttl));
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = text(name);
        let call = |vfs: Arc<Vfs<S>>| async move { vfs.unlink(parent.0, &name?).await };
        self.call(call, empty(reply));
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = text(name);
        let call = |vfs: Arc<Vfs<S>>| async move { vfs.rmdir(parent.0, &name?).await };
        self.call(call, empty(reply));
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let (name, target, ttl) = (text(name), text(target.as_os_str()), self.vfs.fresh());
        let owner = owner(request, 0o777, 0);
        let call =
            |vfs: Arc<Vfs<S>>| async move { vfs.symlink(parent.0, &name?, &target?, owner).await };
        self.call(call, entry(reply, ttl));
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let names = text(name).and_then(|name| Ok((name, text(new_name)?)));
        let call = |vfs: Arc<Vfs<S>>| async move {
            let (name, new_name) = names?;
            let keeps_target = flags.contains(RenameFlags::RENAME_NOREPLACE);
            if !RenameFlags::RENAME_NOREPLACE.contains(flags) {
                return Err(FsError::Invalid("names are not exchanged"));
            }
            vfs.rename((parent.0, &name), (new_parent.0, &new_name), keeps_target)
                .await
        };
        self.call(call, empty(reply));
    }

    fn link(
        &self,
        _request: &Request,
        ino: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let (name, ttl) = (text(new_name), self.vfs.fresh());
        let call = |vfs: Arc<Vfs<S>>| async move { vfs.link(ino.0, new_parent.0, &name?).await };
        self.call(call, entry(reply, ttl));
    }

    fn open(&self, _request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (mode, notifier) = (open_mode(flags), self.notifier.clone());
        let call = |vfs: Arc<Vfs<S>>| async move { vfs.open(ino.0, mode).await };
        self.call(call, move |result| match result {
            Ok((handle, keeps_pages)) => {
                // The kernel's cached size may be that of the version before, and would end reads
                // too early.
                forget_attributes(&notifier, ino);
                reply.opened(FileHandle(handle), open_flags(mode, keeps_pages));
            }
            Err(errno) => reply.error(errno),
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (name, ttl, owner) = (text(name), self.vfs.fresh(), owner(request, mode, umask));
        let open = open_mode(OpenFlags(flags));
        let is_exclusive = flags & OFlags::EXCL.bits() as i32 != 0;
        let call = |vfs: Arc<Vfs<S>>| async move {
            vfs.create(parent.0, &name?, owner, open, is_exclusive)
                .await
        };
        self.call(call, move |result| match result {
            Ok((attr, handle)) => {
                let (handle, flags) = (FileHandle(handle), open_flags(open, false));
                reply.created(&ttl, &file_attr(&attr), GENERATION, handle, flags);
            }
            Err(errno) => reply.error(errno),
        });
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        // The kernel names the program that reads past its cache.
        let is_direct = lock_owner.is_some();
        let call = |vfs: Arc<Vfs<S>>| async move {
            match is_direct {
                true => vfs.read(fh.0, offset, size).await,
                false => vfs.read_pages(fh.0, offset, size).await,
            }
        };
        self.call(call, data(reply));
    }

    fn write(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let data = Bytes::copy_from_slice(data);
        let size = data.len() as u32;
        // Pages of a mapping have explicit offsets, whatever the handle's mode.
        let is_placed = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let drops_set_id = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let notifier = self.notifier.clone();
        let call = |vfs: Arc<Vfs<S>>| async move {
            if drops_set_id && vfs.drop_set_id(fh.0)? {
                forget_attributes(&notifier, ino);
            }
            if let Some(overwrite) = vfs.write(fh.0, offset, data, is_placed).await? {
                drop_pages(notifier, ino, overwrite).await;
            }
            Ok(())
        };
        self.call(call, move |result| match result {
            Ok(()) => reply.written(size),
            Err(errno) => reply.error(errno),
        });
    }

    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.call(|vfs| async move { vfs.flush(fh.0).await }, empty(reply));
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.call(|vfs| async move { vfs.release(fh.0).await }, empty(reply));
    }

    fn fsync(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.call(|vfs| async move { vfs.sync(fh.0).await }, empty(reply));
    }

    fn opendir(&self, _request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let call = |vfs: Arc<Vfs<S>>| async move { vfs.opendir(ino.0).await };
        self.call(call, move |result| match result {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(errno) => reply.error(errno),
        });
    }

    fn readdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let call = |vfs: Arc<Vfs<S>>| async move { vfs.readdir(ino.0, fh.0, offset).await };
        self.call(call, move |result| match result {
            Ok(entries) => {
                for (i, DirectoryEntry { name, ino, kind }) in entries.iter().enumerate() {
                    let next = offset + i as u64 + 1;
                    if reply.add(INodeNo(*ino), next, file_type(*kind), name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(errno) => reply.error(errno),
        });
    }

    fn readdirplus(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let (vfs, ttl, mut next) = (self.vfs.clone(), self.vfs.fresh(), offset);
        self.run(async move {
            let mut is_full = false;
            while !is_full {
                let entries = match vfs.readdir_plus(ino.0, fh.0, next).await {
                    Ok(entries) if entries.is_empty() => break,
                    Ok(entries) => entries,
                    // The entries before go to the kernel; its next call gets the error.
                    Err(_) if next > offset => break,
                    Err(error) => return reply.error(told(&error)),
                };
                for (after, name, attr) in &entries {
                    let ino = INodeNo(attr.ino);
                    is_full = reply.add(ino, *after, name, &ttl, &file_attr(attr), GENERATION);
                    if is_full {
                        break;
                    }
                    next = *after;
                    // The kernel holds an additional reference.
                    if name != "." && name != ".." {
                        vfs.told_entry(attr.ino);
                    }
                }
            }
            reply.ok();
        });
    }

    fn releasedir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.vfs.releasedir(fh.0);
        reply.ok();
    }

    /// Nothing to do: names are on the store when the call that creates them returns.
    fn fsyncdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        self.call(|vfs| async move { vfs.usage().await }, space(reply));
    }

    /// Programs use this to check whether a file is a terminal.
    fn ioctl(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _data: &[u8],
        _size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    /// The kernel then treats files as always ready, and does not ask again.
    fn poll(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _notifier: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn setxattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let (name, value) = (text(name), value.to_vec());
        let mode = match flags {
            1 => XattrMode::Create,
            2 => XattrMode::Replace,
            _ => XattrMode::Any,
        };
        let call =
            |vfs: Arc<Vfs<S>>| async move { vfs.setxattr(ino.0, &name?, &value, mode).await };
        self.call(call, empty(reply));
    }

    fn getxattr(&self, _r: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let name = text(name);
        if name.as_ref().is_ok_and(|name| !is_offered(name)) {
            reply.error(Errno::EOPNOTSUPP);
            return;
        }
        let call = |vfs: Arc<Vfs<S>>| async move { vfs.getxattr(ino.0, &name?).await };
        self.call(call, xattr(reply, size));
    }

    fn listxattr(&self, _request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let call = |vfs: Arc<Vfs<S>>| async move { vfs.listxattr(ino.0).await };
        self.call(call, xattr(reply, size));
    }

    fn removexattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = text(name);
        let call = |vfs: Arc<Vfs<S>>| async move { vfs.removexattr(ino.0, &name?).await };
        self.call(call, empty(reply));
    }

    /// The kernel checks permissions by the attributes (`default_permissions`).
    fn access(&self, _request: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fallocate(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        use rustix::fs::FallocateFlags as Flags;
        let mode = Flags::from_bits_retain(mode as u32);
        let keeps_size = mode.contains(Flags::KEEP_SIZE);
        let call = |vfs: Arc<Vfs<S>>| async move {
            match mode.difference(Flags::KEEP_SIZE) {
                Flags::PUNCH_HOLE | Flags::ZERO_RANGE => {
                    vfs.zero(fh.0, offset, length, keeps_size).await
                }
                // Space is not reserved; the file may be extended.
                rest if rest.is_empty() && keeps_size => Ok(()),
                rest if rest.is_empty() => vfs.allocate(fh.0, offset.saturating_add(length)).await,
                _ => Err(FsError::NotOffered("this kind of fallocate")),
            }
        };
        self.call(call, empty(reply));
    }

    /// The kernel then treats a file as one without holes.
    fn lseek(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _offset: i64,
        _whence: i32,
        reply: ReplyLseek,
    ) {
        reply.error(Errno::ENOSYS);
    }

    /// The kernel then copies by reading and writing.
    fn copy_file_range(
        &self,
        _request: &Request,
        _ino_in: INodeNo,
        _fh_in: FileHandle,
        _offset_in: u64,
        _ino_out: INodeNo,
        _fh_out: FileHandle,
        _offset_out: u64,
        _length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::ENOSYS);
    }
}
