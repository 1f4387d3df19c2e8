//! The medium of a real device.
//!
//! Its descriptors are open while somebody is at work there, and closed when nobody was for a while, so
//! that the file system can be unmounted; files are opened again by their names. The index that belongs
//! to them stays in memory meanwhile. So a folder that is opened again must be what it was when it was
//! closed: the same folder, of which no other process has had the lock.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{MappedRwLockReadGuard, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustix::fs::{AtFlags, CWD, FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::{Medium, MediumFile, Space};
use crate::format::BLOCK;

const LOCK: &str = ".lock";
/// Bytes of the mark that a process leaves in the lock's file.
const MARK_LEN: usize = 32;

type Identity = (u64, u64);

/// A folder, made where it is missing.
pub struct Folder(Arc<Shared>);

struct Shared {
    path: PathBuf,
    /// Durable writes return at once: for throw-away clusters (`unsafe_no_fsync`).
    is_unsafe: bool,
    identity: Identity,
    /// Locked by each operation for its own time. So nothing is closed under one.
    state: RwLock<State>,
    /// No operation begins any more.
    is_gone: AtomicBool,
    files: Mutex<Vec<Weak<File>>>,
}

struct State {
    open: Option<Open>,
    lock: Lock,
}

/// The folder's own descriptors.
struct Open {
    dir: OwnedFd,
    lock: Option<OwnedFd>,
}

/// Digits that a process leaves in the lock's file.
pub type Mark = [u8; MARK_LEN];

/// A sign that a process waits for the lock: a shared lock of the folder itself, which ends with the process.
pub struct Wanted {
    _dir: OwnedFd,
}

/// Exclusion of other processes.
#[derive(Clone, Copy)]
enum Lock {
    /// Not asked for.
    None,
    /// Held while the folder is open. In between, the mark tells whether another process had it.
    Marked(Mark),
    /// Held. There is no room for a mark: it is not let go of.
    Unmarked,
}

fn gone() -> io::Error {
    io::Error::other("these volumes were closed: they are opened anew when they are asked for")
}

fn identity_of(file: impl AsFd) -> io::Result<Identity> {
    let stat = rustix::fs::fstat(file)?;
    Ok((stat.st_dev, stat.st_ino))
}

fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
}

impl Folder {
    /// `path`: its parent is there. Syncs the parent where the folder is new.
    ///
    /// # Errors
    /// The folder cannot be made or opened, or its parent not synced.
    pub fn open(path: &Path, is_unsafe: bool) -> io::Result<Self> {
        match rustix::fs::mkdirat(CWD, path, Mode::from_raw_mode(0o700)) {
            Ok(()) => {
                let parent = open_dir(path.parent().unwrap_or(Path::new("/")))?;
                rustix::fs::fsync(parent)?;
            }
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        let dir = open_dir(path)?;
        Ok(Folder(Arc::new(Shared {
            path: path.to_owned(),
            is_unsafe,
            identity: identity_of(&dir)?,
            state: RwLock::new(State {
                open: Some(Open { dir, lock: None }),
                lock: Lock::None,
            }),
            is_gone: AtomicBool::new(false),
            files: Mutex::default(),
        })))
    }

    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Excludes other processes from here on. `random`: 128 bits by which the lock's holder is known.
    ///
    /// # Errors
    /// Another process has the lock, the folder was closed, or the lock's file cannot be opened.
    pub fn lock(&self, random: [u64; 2]) -> io::Result<()> {
        let mut state = self.0.state.write();
        let open = state.open.as_mut().ok_or_else(gone)?;
        let file = lock(&open.dir)?;
        let text = format!("{:016x}{:016x}", random[0], random[1]);
        let mut mark = [0; MARK_LEN];
        mark.copy_from_slice(text.as_bytes());
        let marked = write_all(&file, 0, &mark);
        open.lock = Some(file);
        state.lock = match marked {
            Ok(()) => Lock::Marked(mark),
            Err(error) => {
                tracing::debug!(path = %self.0.path.display(), %error, "volumes stay open");
                Lock::Unmarked
            }
        };
        Ok(())
    }

    /// Refuses a folder that a process has locked, and keeps others from locking it.
    ///
    /// # Errors
    /// A process has the lock, the folder was closed, or the lock's file cannot be opened.
    pub fn lock_shared(&self) -> io::Result<()> {
        let mut state = self.0.state.write();
        let open = state.open.as_mut().ok_or_else(gone)?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = match rustix::fs::openat(&open.dir, LOCK, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => open.lock = Some(file),
            Err(Errno::WOULDBLOCK) => {
                return Err(io::Error::new(
                    io::ErrorKind::ResourceBusy,
                    "a process serves these volumes: end it, or try again when the device is idle",
                ));
            }
            Err(errno) => return Err(errno.into()),
        }
        Ok(())
    }

    /// Leaves a sign for the process that has the lock. `None`: it cannot be left now.
    pub fn want(&self) -> Option<Wanted> {
        let dir = open_dir(&self.0.path).ok()?;
        rustix::fs::flock(&dir, FlockOperation::NonBlockingLockShared).ok()?;
        Some(Wanted { _dir: dir })
    }

    /// Whether a process waits for the lock, or another user of this folder in this one.
    pub fn is_wanted(&self) -> bool {
        let state = self.0.state.read();
        match &state.open {
            Some(open) => is_wanted(&open.dir),
            None => open_dir(&self.0.path).is_ok_and(|dir| is_wanted(&dir)),
        }
    }

    /// The mark of the last holder of the lock.
    pub fn mark(&self) -> Option<Mark> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let path = self.0.path.join(LOCK);
        let file = rustix::fs::openat(CWD, path, flags, Mode::empty()).ok()?;
        let mut mark = [0; MARK_LEN];
        let count = rustix::io::pread(&file, &mut mark, 0).ok()?;
        (count == MARK_LEN).then_some(mark)
    }

    /// Whether descriptors of it are open.
    pub fn is_open(&self) -> bool {
        self.0.state.read().open.is_some()
    }

    /// Whether it has to be opened anew, with all that was known of it.
    pub fn is_gone(&self) -> bool {
        self.0.is_gone.load(Ordering::Acquire)
    }

    /// Sees to it that it is open, and is what it was.
    ///
    /// # Errors
    /// It was retired or used by another process, is locked by one, or cannot be opened.
    pub fn wake(&self) -> io::Result<()> {
        self.0.enter().map(drop)
    }

    /// Closes its descriptors, which the next operation opens again. False where one is under way, or
    /// something that was written has not been synced.
    pub fn rest(&self) -> bool {
        self.close(|state, files| {
            let is_unsynced = |file: &Arc<File>| file.is_unsynced.load(Ordering::Acquire);
            matches!(state.lock, Lock::Marked(_)) && !files.iter().any(is_unsynced)
        })
    }

    /// Lets no further operation begin, and closes all descriptors; false where one is under way.
    pub fn retire(&self) -> bool {
        self.0.is_gone.store(true, Ordering::Release);
        self.close(|_, _| true)
    }

    fn close(&self, may_close: impl FnOnce(&State, &[Arc<File>]) -> bool) -> bool {
        let Some(mut state) = self.0.state.try_write() else {
            return false;
        };
        if state.open.is_none() {
            return true;
        }
        let files: Vec<_> = self
            .0
            .files
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        if !may_close(&state, &files) {
            return false;
        }
        let open = state.open.take();
        if let Some(lock) = open.as_ref().and_then(|open| open.lock.as_ref()) {
            let _ = rustix::fs::flock(lock, FlockOperation::Unlock);
        }
        let closed: Vec<_> = files.iter().map(|file| file.fds.write().take()).collect();
        // The last descriptor completes a lazy unmount, which takes time: not under the lock.
        drop(state);
        drop((open, closed));
        true
    }
}

type Entered<'a> = MappedRwLockReadGuard<'a, Open>;

impl Shared {
    /// Begins an operation: the folder stays open until the guard is dropped.
    fn enter(&self) -> io::Result<Entered<'_>> {
        if self.is_gone.load(Ordering::Acquire) {
            return Err(gone());
        }
        if let Some(open) = opened_of(self.state.read()) {
            return Ok(open);
        }
        let mut state = self.state.write();
        if state.open.is_none() {
            state.open = Some(self.open_again(&state.lock)?);
        }
        opened_of(RwLockWriteGuard::downgrade(state)).ok_or_else(gone)
    }

    fn open_again(&self, lock_of: &Lock) -> io::Result<Open> {
        if self.is_gone.load(Ordering::Acquire) {
            return Err(gone());
        }
        let dir = open_dir(&self.path)?;
        let Lock::Marked(mark) = lock_of else {
            return Err(gone());
        };
        let lock = lock(&dir)?;
        let mut found = [0; MARK_LEN];
        let count = rustix::io::pread(&lock, &mut found, 0)?;
        if identity_of(&dir)? != self.identity || count < MARK_LEN || found != *mark {
            // Another process has written to it meanwhile, or it is another one.
            self.is_gone.store(true, Ordering::Release);
            return Err(gone());
        }
        Ok(Open {
            dir,
            lock: Some(lock),
        })
    }
}

fn opened_of(state: RwLockReadGuard<'_, State>) -> Option<Entered<'_>> {
    RwLockReadGuard::try_map(state, |state| state.open.as_ref()).ok()
}

/// A second process must not append to the same volumes.
fn lock(dir: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(dir, LOCK, flags, Mode::from_raw_mode(0o600))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            "another process serves these volumes: run the daemons of this policy in the object \
             server's process",
        )),
        Err(errno) => Err(errno.into()),
    }
}

fn is_wanted(dir: &OwnedFd) -> bool {
    match rustix::fs::flock(dir, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            let _ = rustix::fs::flock(dir, FlockOperation::Unlock);
            false
        }
        Err(errno) => errno == Errno::WOULDBLOCK,
    }
}

fn open_file(dir: &OwnedFd, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mode = Mode::from_raw_mode(0o600);
    Ok(rustix::fs::openat(dir, name, flags, mode)?)
}

impl Shared {
    fn opened(
        self: &Arc<Self>,
        dir: &OwnedFd,
        name: &str,
        file: OwnedFd,
    ) -> io::Result<Arc<dyn MediumFile>> {
        let file = Arc::new(File {
            shared: self.clone(),
            name: name.to_owned(),
            identity: identity_of(&file)?,
            fds: RwLock::new(Some(Fds::of(dir, name, file))),
            is_unsynced: AtomicBool::new(false),
        });
        let mut files = self.files.lock();
        if files.len() == files.capacity() {
            files.retain(|file| file.strong_count() > 0);
        }
        files.push(Arc::downgrade(&file));
        Ok(file)
    }
}

impl Medium for Folder {
    fn list(&self) -> io::Result<Vec<String>> {
        let open = self.0.enter()?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&open.dir)? {
            let entry = entry?;
            let name = entry.file_name().to_str().ok();
            let name = name.filter(|name| !name.starts_with('.'));
            names.extend(name.map(str::to_owned));
        }
        Ok(names)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn MediumFile>> {
        let open = self.0.enter()?;
        let file = open_file(&open.dir, name, OFlags::empty())?;
        self.0.opened(&open.dir, name, file)
    }

    fn create(&self, name: &str, size: u64) -> io::Result<Arc<dyn MediumFile>> {
        let open = self.0.enter()?;
        let file = open_file(&open.dir, name, OFlags::CREATE | OFlags::TRUNC)?;
        if size > 0 {
            match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size) {
                Ok(()) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => rustix::fs::ftruncate(&file, size)?,
                Err(errno) => {
                    drop(file);
                    let _ = rustix::fs::unlinkat(&open.dir, name, AtFlags::empty());
                    return Err(errno.into());
                }
            }
        }
        self.0.opened(&open.dir, name, file)
    }

    fn create_new(&self, name: &str) -> io::Result<Arc<dyn MediumFile>> {
        let open = self.0.enter()?;
        let file = open_file(&open.dir, name, OFlags::CREATE | OFlags::EXCL)?;
        self.0.opened(&open.dir, name, file)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let open = self.0.enter()?;
        match rustix::fs::unlinkat(&open.dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn rename(&self, name: &str, to: &str) -> io::Result<()> {
        let open = self.0.enter()?;
        Ok(rustix::fs::renameat(&open.dir, name, &open.dir, to)?)
    }

    fn link(&self, name: &str, to: &str) -> io::Result<()> {
        let open = self.0.enter()?;
        match rustix::fs::linkat(&open.dir, name, &open.dir, to, AtFlags::empty()) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn sync_dir(&self) -> io::Result<()> {
        let open = self.0.enter()?;
        match self.0.is_unsafe {
            true => Ok(()),
            false => Ok(rustix::fs::fsync(&open.dir)?),
        }
    }

    fn sync_files(&self) -> io::Result<()> {
        let open = self.0.enter()?;
        match self.0.is_unsafe {
            true => Ok(()),
            false => Ok(rustix::fs::syncfs(&open.dir)?),
        }
    }

    fn space(&self) -> io::Result<Space> {
        let open = self.0.enter()?;
        let stat = rustix::fs::fstatvfs(&open.dir)?;
        Ok(Space {
            free: stat.f_frsize.saturating_mul(stat.f_bavail),
            total: stat.f_frsize.saturating_mul(stat.f_blocks),
        })
    }
}

struct File {
    shared: Arc<Shared>,
    name: String,
    identity: Identity,
    /// Open while the folder is.
    fds: RwLock<Option<Fds>>,
    /// Something was written that no sync has made durable. Its failure is told to the descriptors that
    /// are open.
    is_unsynced: AtomicBool,
}

struct Fds {
    file: OwnedFd,
    /// The same file, opened so that writes go past the page cache and return when they are durable.
    direct: Option<OwnedFd>,
}

impl Fds {
    fn of(dir: &OwnedFd, name: &str, file: OwnedFd) -> Self {
        let direct = open_file(dir, name, OFlags::DIRECT | OFlags::DSYNC);
        Fds {
            file,
            // A file system without O_DIRECT has plain writes and syncs.
            direct: direct.ok(),
        }
    }
}

impl File {
    /// Runs an operation on the file's descriptors.
    fn with<T>(&self, operation: impl FnOnce(&Fds) -> io::Result<T>) -> io::Result<T> {
        let open = self.shared.enter()?;
        // While the folder is open nobody takes them away.
        let is_open = self.fds.read().is_some();
        if !is_open {
            let mut fds = self.fds.write();
            if fds.is_none() {
                *fds = Some(self.open_again(&open.dir)?);
            }
        }
        operation(self.fds.read().as_ref().ok_or_else(gone)?)
    }

    fn open_again(&self, dir: &OwnedFd) -> io::Result<Fds> {
        match open_file(dir, &self.name, OFlags::empty()) {
            Ok(file) if identity_of(&file)? == self.identity => Ok(Fds::of(dir, &self.name, file)),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            // Somebody has changed the folder.
            Ok(_) | Err(_) => {
                self.shared.is_gone.store(true, Ordering::Release);
                Err(gone())
            }
        }
    }
}

fn write_all(file: &OwnedFd, mut offset: u64, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(file, bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                offset += count as u64;
                bytes = &bytes[count..];
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

impl MediumFile for File {
    fn size(&self) -> io::Result<u64> {
        self.with(|fds| Ok(rustix::fs::fstat(&fds.file)?.st_size as u64))
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.with(|fds| {
            let mut done = 0;
            while done < into.len() {
                match rustix::io::pread(&fds.file, &mut into[done..], offset + done as u64) {
                    Ok(0) => break,
                    Ok(count) => done += count,
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            Ok(done)
        })
    }

    fn read_cached(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.with(|fds| {
            let mut into = [io::IoSliceMut::new(into)];
            let flags = ReadWriteFlags::NOWAIT;
            Ok(rustix::io::preadv2(&fds.file, &mut into, offset, flags)?)
        })
    }

    fn forget(&self, offset: u64, len: u64) {
        // The kernel keeps pages that are only touched in part.
        let block = BLOCK as u64;
        let from = offset / block * block;
        let len = std::num::NonZero::new((offset + len).next_multiple_of(block) - from);
        let _ = self.with(|fds| {
            let advice = rustix::fs::Advice::DontNeed;
            Ok(rustix::fs::fadvise(&fds.file, from, len, advice)?)
        });
    }

    fn write_durably(&self, offset: u64, blocks: &[u8]) -> io::Result<()> {
        debug_assert!(offset.is_multiple_of(BLOCK as u64) && blocks.len().is_multiple_of(BLOCK));
        self.with(|fds| match self.shared.is_unsafe {
            true => write_all(&fds.file, offset, blocks),
            false => fds.write_durably(offset, blocks),
        })
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.with(|fds| {
            self.is_unsynced.store(true, Ordering::Release);
            write_all(&fds.file, offset, bytes)
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.with(|fds| {
            if !self.shared.is_unsafe {
                rustix::fs::fsync(&fds.file)?;
            }
            self.is_unsynced.store(false, Ordering::Release);
            Ok(())
        })
    }
}

impl Fds {
    fn write_durably(&self, offset: u64, blocks: &[u8]) -> io::Result<()> {
        if let Some(direct) = self.direct.as_ref().filter(|_| is_aligned(blocks)) {
            match write_all(direct, offset, blocks) {
                // The file system takes the flag and not the write.
                Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {}
                other => return other,
            }
        }
        write_all(&self.file, offset, blocks)?;
        if let Err(errno) = rustix::fs::fdatasync(self.file.as_fd()) {
            // The kernel takes the lost pages for clean: whoever reads them has to read the disk.
            let _ = rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed);
            return Err(errno.into());
        }
        Ok(())
    }
}

fn is_aligned(bytes: &[u8]) -> bool {
    bytes.as_ptr().addr().is_multiple_of(BLOCK)
}
