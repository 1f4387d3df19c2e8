//! Durable files: the only file of the workspace that syncs, links and renames objects
//! (`cairn_device` merges many syncs into one).
//!
//! A new file is written without a name (`O_TMPFILE`), usually in its target directory, or under a
//! name in `<device>/tmp[-N]`; fsynced with its extended attributes; linked into its hash
//! directory; and that directory is fsynced, and, where a directory was created, by any writer
//! (`made_dirs.rs`), so is every directory above it, up to the device's. Only then may the write be
//! acknowledged. A crash before the link leaves only space to reclaim; after the link it leaves a
//! whole file, as its content was durable before its name. Tombstones have no content but their
//! name, and are synced once, after the link.
//!
//! Not here: choosing names, deciding what is obsolete.

mod names;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use cairn_device::{OpenDevice, SyncSet};
use cairn_types::plant::Plant;
use rustix::fs::{Advice, AtFlags, CWD, FallocateFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::device_pool::steps::Step;
use crate::device_pool::{Disk, FallocateReserve};
use crate::error::DiskError;
use crate::file_content::FileContent;
use crate::file_ops::unique;
use crate::hot::FileIdentity;
use crate::made_dirs::Making;
use names::{add_dirs, make_missing_noted, make_noted};

pub(crate) use crate::file_ops::remove_file;
pub(crate) use names::{
    DIRECTORY, Linked, Renamed, link_file, make_dirs, move_aside, open_dir, remove_dir, rename_in,
};

/// Minimum size in bytes of uploads whose space is preallocated; smaller ones gain nothing.
const FALLOCATE_MIN_BYTES: u64 = 1 << 20;
/// Attempts to create a directory that is removed concurrently.
const PUBLISH_ATTEMPTS_MAX: usize = 5;

/// A file without its final name; dropped unpublished, it is discarded.
pub struct StagedFile {
    disk: Disk,
    fd: Arc<OwnedFd>,
    /// Temporary name under the device, if it has one.
    temporary: Option<String>,
    /// The directory that was created for it.
    made_dir: Option<String>,
    /// The target directory, if open.
    dir: Option<OwnedFd>,
    content: FileContent,
    drop_cache: bool,
    co_synced: CoSynced,
    /// Whether it may not use the reserve (`room.rs`).
    only_adds: bool,
}

/// A file that must be durable together with the name.
#[derive(Clone, Default)]
pub(crate) struct CoSynced(Arc<OnceLock<Arc<OwnedFd>>>);

impl CoSynced {
    pub(crate) fn sync(&self, file: Option<OwnedFd>) {
        if let Some(file) = file {
            // Set by the first attempt to link; if the directory was removed and the link made
            // again, that file is gone as well.
            let _ = self.0.set(Arc::new(file));
        }
    }

    /// Added as a log: others append to the same file.
    fn add_to(&self, set: &mut SyncSet) {
        if let Some(file) = self.0.get() {
            set.add_log(file.clone());
        }
    }
}

/// Wrapper around the link: calls the function it is given, and may hold a lock meanwhile.
pub trait LinkWrapper:
    Fn(&Disk, &mut dyn FnMut() -> Result<(), Errno>) -> Result<Result<(), Errno>, DiskError>
    + Send
    + 'static
{
}

impl<F> LinkWrapper for F where
    F: Fn(&Disk, &mut dyn FnMut() -> Result<(), Errno>) -> Result<Result<(), Errno>, DiskError>
        + Send
        + 'static
{
}

/// Makes the link without a wrapper.
///
/// # Errors
/// The inner error is that of the link; there is no outer one.
pub fn just_link(
    _: &Disk,
    link: &mut dyn FnMut() -> Result<(), Errno>,
) -> Result<Result<(), Errno>, DiskError> {
    Ok(link())
}

/// Check of a new file against the free space to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// Refused if less than the reserve would remain; `size` if known.
    Keep { size: Option<u64> },
    /// Always allowed, for tombstones, which free space.
    Ignore,
}

impl StagedFile {
    /// Creates a file; `tmp_dir` is under the device, and created if missing.
    ///
    /// # Errors
    /// `NoSpace` if the disk is full or would keep less than the reserve; `ReadOnly` or `Io`.
    pub fn create(disk: &Disk, tmp_dir: &str, reserve: Reserve) -> Result<Self, DiskError> {
        Self::create_for(disk, tmp_dir, None, reserve)
    }

    /// Creates a file for the target directory `dir`, which is created if missing.
    ///
    /// File systems allocate a new file near the directory it is opened in. Files opened in a
    /// single directory would cluster in one part of the disk: ext4 without a journal examines
    /// every inode there that was freed in the last minutes, one by one, for each file.
    pub(crate) fn create_in(
        disk: &Disk,
        tmp_dir: &str,
        dir: &str,
        reserve: Reserve,
    ) -> Result<Self, DiskError> {
        Self::create_for(disk, tmp_dir, Some(dir), reserve)
    }

    fn create_for(
        disk: &Disk,
        tmp_dir: &str,
        dir: Option<&str>,
        reserve: Reserve,
    ) -> Result<Self, DiskError> {
        let opened = match open_unnamed(disk, tmp_dir, dir)? {
            Some(opened) => opened,
            None => open_named(disk, tmp_dir)?,
        };
        let mut staged = StagedFile::of(disk, opened.fd, opened.temporary);
        staged.made_dir = opened.made_dir;
        staged.dir = opened.dir;
        staged.may_write(0)?;
        if let Reserve::Keep { size } = reserve {
            staged.only_adds = true;
            staged.reserve(size.unwrap_or(0))?;
        }
        Ok(staged)
    }

    /// Creates a file that is named at once in this directory. `None` if the directory is gone, or
    /// unnamed files are unsupported.
    pub(crate) fn create_in_open(disk: &Disk, dir: OwnedFd) -> Result<Option<Self>, DiskError> {
        if !disk.state.use_tmpfile.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let Ok(fd) = rustix::fs::openat(&dir, ".", UNNAMED, Mode::from_raw_mode(0o600)) else {
            return Ok(None);
        };
        let mut staged = StagedFile::of(disk, fd, None);
        staged.dir = Some(dir);
        staged.may_write(0)?;
        Ok(Some(staged))
    }

    fn of(disk: &Disk, fd: OwnedFd, temporary: Option<String>) -> Self {
        let fd = Arc::new(fd);
        StagedFile {
            disk: disk.clone(),
            content: FileContent::new(fd.clone()),
            fd,
            temporary,
            made_dir: None,
            dir: None,
            drop_cache: false,
            co_synced: CoSynced::default(),
            only_adds: false,
        }
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The file to be synced with the name; to be set while the link is made.
    pub(crate) fn co_synced(&self) -> CoSynced {
        self.co_synced.clone()
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.content.length()
    }

    /// Bypasses the page cache; to be called before the first write.
    pub fn write_directly(&mut self) {
        self.content.write_directly(&self.disk);
    }

    fn reserve(&self, size: u64) -> Result<(), DiskError> {
        let config = self.disk.config();
        if !self.disk.keeps_room()? {
            return Err(DiskError::NoSpace);
        }
        let stat = rustix::fs::fstatvfs(&self.fd)
            .map_err(|e| DiskError::from_errno("statvfs", self.disk.name(), e))?;
        let free = stat
            .f_frsize
            .saturating_mul(stat.f_bavail)
            .saturating_sub(size);
        let is_short = match config.fallocate_reserve {
            FallocateReserve::Bytes(0) => false,
            FallocateReserve::Bytes(bytes) => free <= bytes,
            FallocateReserve::Percent(percent) => {
                let total = stat.f_frsize.saturating_mul(stat.f_blocks).max(1);
                percent > 0.0 && free as f64 / total as f64 * 100.0 <= percent
            }
        };
        if is_short {
            return Err(DiskError::NoSpace);
        }
        if size >= FALLOCATE_MIN_BYTES && !config.disable_fallocate {
            match rustix::fs::fallocate(&self.fd, FallocateFlags::KEEP_SIZE, 0, size) {
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
                Err(errno) => return Err(self.error("fallocate", errno)),
            }
        }
        Ok(())
    }

    /// Appends.
    ///
    /// # Errors
    /// `NoSpace` on a full disk, and after the reserve was spent for a file that only adds data;
    /// else `ReadOnly` or `Io`.
    pub fn write(&mut self, chunks: &[Bytes]) -> Result<(), DiskError> {
        // A long upload would use up space freed by spending the reserve.
        if self.only_adds && self.disk.has_spent_room() {
            return Err(DiskError::NoSpace);
        }
        self.may_write(chunks.iter().map(|chunk| chunk.len() as u64).sum())?;
        let written = self.content.append(chunks);
        written.map_err(|errno| self.error("write", errno))
    }

    /// Makes content, size and extended attributes durable (not by fdatasync, which may omit
    /// attributes).
    ///
    /// # Errors
    /// `Io` if the sync fails, or the device takes no more writes. The failure poisons the device.
    pub fn sync(&self) -> Result<(), DiskError> {
        self.disk.sync(&self.content_set())
    }

    fn content_set(&self) -> SyncSet {
        let mut set = self.disk.sync_set();
        if !Plant::UnsyncedContent.is_on() {
            set.add_file(self.fd.clone());
        }
        set
    }

    /// Drops the file's durable pages from the page cache.
    pub fn drop_cache(&self) {
        let _ = rustix::fs::fadvise(&self.fd, 0, None, Advice::DontNeed);
    }

    /// Does so when the file is published.
    pub fn drop_cache_when_synced(&mut self) {
        self.drop_cache = true;
    }

    /// Links the file to its name, replacing an existing file, and makes the name durable. `around`
    /// is called once the directory exists and must call the function it is given, which makes the
    /// link; it may hold a lock meanwhile.
    ///
    /// # Errors
    /// `NoSpace`, `ReadOnly` or `Io` if content, directory or link cannot be written or synced;
    /// those of `around`.
    pub fn publish(
        self,
        dir: &str,
        name: &str,
        around: impl LinkWrapper,
    ) -> Result<Published, DiskError> {
        let disk = self.disk.clone();
        self.publish_steps(dir, name, around)?.finish(&disk)
    }

    /// As [`StagedFile::publish`], in steps: content durable, then the name, then the name durable.
    ///
    /// # Errors
    /// `NoSpace`, `ReadOnly` or `Io` if the rest of the content cannot be written. The steps have
    /// those of [`StagedFile::publish`].
    pub fn publish_steps(
        mut self,
        dir: &str,
        name: &str,
        around: impl LinkWrapper,
    ) -> Result<Step<Published>, DiskError> {
        let finished = self.content.finish();
        finished.map_err(|errno| self.error("write", errno))?;
        let (dir, name) = (dir.to_owned(), name.to_owned());
        let set = self.content_set();
        Ok(Step::sync(set, move |disk| {
            if self.drop_cache {
                self.drop_cache();
            }
            let co_synced = self.co_synced();
            let linked = self.link_into(disk, &dir, &name, around)?;
            let mut set = disk.sync_set();
            co_synced.add_to(&mut set);
            Ok(linked.synced(disk, set))
        }))
    }

    /// As [`StagedFile::publish_steps`], with one sync for content and name. A power cut before it
    /// may leave the name without the content: only for files whose loss is harmless then.
    pub(crate) fn publish_in_one_step(
        mut self,
        dir: &str,
        name: &str,
        around: impl LinkWrapper,
    ) -> Result<Step<Published>, DiskError> {
        let finished = self.content.finish();
        finished.map_err(|errno| self.error("write", errno))?;
        let disk = self.disk.clone();
        let co_synced = self.co_synced();
        let mut set = disk.sync_set();
        set.add_file(self.fd.clone());
        let linked = self.link_into(&disk, dir, name, around)?;
        co_synced.add_to(&mut set);
        Ok(linked.synced(&disk, set))
    }

    /// Links into the directory, created if missing.
    fn link_into(
        mut self,
        disk: &Disk,
        dir: &str,
        name: &str,
        around: impl LinkWrapper,
    ) -> Result<Linking, DiskError> {
        let mut made_dir = self.made_dir.is_some();
        for attempt in 1.. {
            let (dir_fd, made_now) = match self.dir.take() {
                Some(open) => (open, false),
                None => make_noted(disk, dir)?,
            };
            made_dir |= made_now;
            let mut link = || match is_at(disk, dir, dir_fd.as_fd()) {
                true => self.link(dir_fd.as_fd(), name),
                false => Err(Errno::NOENT),
            };
            match around(disk, &mut link)? {
                Ok(()) => {
                    self.made_dir = None;
                    let making = disk.state.made_dirs.named_in(dir);
                    let is_new_dir = made_dir && making.is_some_and(|making| making.is_first);
                    let identity = rustix::fs::fstat(&self.fd).ok();
                    return Ok(Linking {
                        published: Published {
                            dir: Arc::new(dir_fd),
                            is_new_dir,
                            identity: identity.map(|s| FileIdentity::of(&s)),
                        },
                        dir: dir.into(),
                        making: making.filter(|_| made_dir || !Plant::OthersFolders.is_on()),
                    });
                }
                // The directory was removed while empty, or quarantined with a broken object.
                Err(Errno::NOENT) if attempt < PUBLISH_ATTEMPTS_MAX => {}
                Err(errno) => {
                    return Err(DiskError::from_errno(
                        "link",
                        format!("{dir}/{name}"),
                        errno,
                    ));
                }
            }
        }
        unreachable!("the loop returns");
    }

    fn link(&mut self, dir: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
        if let Some(temporary) = &self.temporary {
            rustix::fs::renameat(self.disk.fd(), temporary, dir, name)?;
            self.temporary = None;
            return Ok(());
        }
        let link = |to_dir: BorrowedFd<'_>, to: &str| link_open(self.fd.as_fd(), to_dir, to);
        match link(dir, name) {
            // A retry with the same object and timestamp: replaced atomically.
            Err(Errno::EXIST) => {
                let co_synced = format!(".{name}.{}", unique());
                link(dir, &co_synced)?;
                rustix::fs::renameat(dir, &*co_synced, dir, name).inspect_err(|_| {
                    let _ = rustix::fs::unlinkat(dir, &*co_synced, AtFlags::empty());
                })
            }
            other => other,
        }
    }

    fn may_write(&self, bytes: u64) -> Result<(), DiskError> {
        let Some(machine) = self.disk.machine() else {
            return Ok(());
        };
        machine.write(bytes).map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            self.error("write", errno)
        })
    }

    fn error(&self, action: &'static str, errno: Errno) -> DiskError {
        DiskError::from_errno(action, self.disk.name(), errno)
    }
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = rustix::fs::unlinkat(self.disk.fd(), temporary, AtFlags::empty());
        }
        if let Some(dir) = &self.made_dir {
            let made_dirs = &self.disk.state.made_dirs;
            made_dirs.remove_unused(dir, || remove_dir(&self.disk, dir));
        }
    }
}

/// Result of a publication.
pub struct Published {
    pub dir: Arc<OwnedFd>,
    /// Whether the directory was created for it and has no other file: nothing there can be
    /// obsolete.
    pub is_new_dir: bool,
    /// Identity of the file when it got its name.
    pub(crate) identity: Option<FileIdentity>,
}

/// A file whose name is not durable yet.
struct Linking {
    published: Published,
    dir: Arc<str>,
    /// Set if the directory's own name may not be durable.
    making: Option<Making>,
}

impl Linking {
    /// The sync that completes the publication, together with `set`.
    fn synced(self, disk: &Disk, mut set: SyncSet) -> Step<Published> {
        let is_new = self.making.is_some();
        add_dirs(
            disk,
            &mut set,
            self.published.dir.clone(),
            &self.dir,
            is_new,
        );
        Step::sync(set, move |disk| {
            if let Some(making) = self.making {
                disk.state.made_dirs.is_durable(&self.dir, making);
            }
            Ok(Step::Done(self.published))
        })
    }
}

/// Whether a directory opened earlier still has its name.
fn is_at(disk: &Disk, dir: &str, open: BorrowedFd<'_>) -> bool {
    // `statx` without times: a query of times makes the next write update them, too.
    let flags = StatxFlags::TYPE | StatxFlags::INO;
    let by_name = rustix::fs::statx(disk.fd(), dir, AtFlags::SYMLINK_NOFOLLOW, flags);
    let by_fd = rustix::fs::statx(open, "", AtFlags::EMPTY_PATH, flags);
    match (by_name, by_fd) {
        (Ok(named), Ok(open)) => named.stx_ino == open.stx_ino,
        // An old kernel, or a seccomp filter.
        (Err(Errno::NOSYS | Errno::PERM), _) => true,
        _ => false,
    }
}

/// Links an open unnamed file: directly where permitted (`CAP_DAC_READ_SEARCH`, or from kernel 6.10
/// on), else through `/proc`.
fn link_open(fd: BorrowedFd<'_>, dir: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
    static LINKS_DIRECTLY: AtomicBool = AtomicBool::new(true);
    if LINKS_DIRECTLY.load(Ordering::Relaxed) {
        match rustix::fs::linkat(fd, "", dir, name, AtFlags::EMPTY_PATH) {
            // Not permitted; or the directory is gone, which the other way distinguishes.
            Err(Errno::NOENT | Errno::INVAL | Errno::PERM) => {}
            other => return other,
        }
    }
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let linked = rustix::fs::linkat(CWD, &*path, dir, name, AtFlags::SYMLINK_FOLLOW);
    if linked.is_ok() {
        LINKS_DIRECTLY.store(false, Ordering::Relaxed);
    }
    linked
}

const UNNAMED: OFlags = OFlags::TMPFILE.union(OFlags::WRONLY).union(OFlags::CLOEXEC);

struct Opened {
    fd: OwnedFd,
    temporary: Option<String>,
    made_dir: Option<String>,
    /// The target directory, if it was opened.
    dir: Option<OwnedFd>,
}

/// Opens an unnamed file; `None` if the file system does not support it.
fn open_unnamed(
    disk: &Disk,
    tmp_dir: &str,
    dir: Option<&str>,
) -> Result<Option<Opened>, DiskError> {
    if !disk.state.use_tmpfile.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let place = dir.unwrap_or(tmp_dir);
    let (mut made_dir, mut dir_fd) = (None, None);
    for attempt in 1.. {
        let opened = match &dir_fd {
            Some(dir) => rustix::fs::openat(dir, ".", UNNAMED, Mode::from_raw_mode(0o600)),
            None => rustix::fs::openat(disk.fd(), place, UNNAMED, Mode::from_raw_mode(0o600)),
        };
        match opened {
            Ok(fd) => {
                return Ok(Some(Opened {
                    fd,
                    temporary: None,
                    made_dir,
                    dir: dir_fd,
                }));
            }
            // It may be removed while empty.
            Err(Errno::NOENT) if attempt < PUBLISH_ATTEMPTS_MAX => match dir {
                Some(dir) => {
                    let (fd, made_now) = make_missing_noted(disk, dir)?;
                    dir_fd = Some(fd);
                    if made_now {
                        made_dir = Some(dir.to_owned());
                    }
                }
                None => drop(make_dirs(disk, tmp_dir)?),
            },
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                tracing::debug!(
                    device = disk.name(),
                    "no O_TMPFILE here; named files instead"
                );
                disk.state.use_tmpfile.store(false, Ordering::Relaxed);
                break;
            }
            Err(errno) => return Err(DiskError::from_errno("open", place, errno)),
        }
    }
    Ok(None)
}

fn open_named(disk: &Disk, tmp_dir: &str) -> Result<Opened, DiskError> {
    make_dirs(disk, tmp_dir)?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    loop {
        let name = format!("{tmp_dir}/tmp{}", unique());
        match rustix::fs::openat(disk.fd(), &*name, flags, Mode::from_raw_mode(0o600)) {
            Ok(fd) => {
                return Ok(Opened {
                    fd,
                    temporary: Some(name),
                    made_dir: None,
                    dir: None,
                });
            }
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(DiskError::from_errno("create", name, errno)),
        }
    }
}

#[cfg(test)]
mod tests;
