//! A device's directory, opened. It stays open for a while after clients' work, and keeps its file
//! system from being unmounted for as long.
//!
//! Reads and long writes of background work have it open for their own time alone: an auditor works on
//! one device after the other all day, and would never leave one to be unmounted. Background commits
//! keep it open as clients do: what was learnt of syncs (`cairn_device::GroupSync`) goes with it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use cairn_device::FileSystem;
use rustix::fs::{Mode, OFlags, Stat};

use super::{DeviceState, Disk};
use crate::error::DeviceError;

/// The directory that was opened last.
#[derive(Default)]
pub(super) struct Root {
    open: Weak<OpenRoot>,
    /// Directories that were open before, and may still be held.
    former: Vec<Weak<OpenRoot>>,
    kept: Option<Kept>,
    identity: (u64, u64),
}

/// Keeps the directory open for a while after clients' work.
struct Kept {
    _open: Arc<OpenRoot>,
    used: Instant,
}

impl Root {
    /// The next that comes opens the directory anew. What kept it open is to be dropped without the lock.
    fn leave(&mut self) -> Option<Kept> {
        self.former.push(std::mem::take(&mut self.open));
        self.former.retain(|root| root.strong_count() > 0);
        self.kept.take()
    }

    /// Whether nobody holds what was open before.
    fn is_left(&mut self) -> bool {
        self.former.retain(|root| root.strong_count() > 0);
        self.former.is_empty()
    }
}

/// An open directory, and the syncs of its file system; closed when nobody holds it any more.
pub(super) struct OpenRoot {
    pub(super) fd: Arc<OwnedFd>,
    pub(super) file_system: Arc<FileSystem>,
}

impl DeviceState {
    /// The disk, checked to be mounted; it stays open for a while.
    pub(super) fn disk(self: &Arc<Self>) -> Result<Disk, DeviceError> {
        let identity = self.identity()?;
        let mut root = self.root();
        let open = self.open_root(&mut root, identity)?;
        root.kept = Some(Kept {
            _open: open.clone(),
            used: Instant::now(),
        });
        Ok(self.disk_of(open))
    }

    /// The disk, checked to be mounted, for as long as it is held.
    pub(super) fn disk_for_now(self: &Arc<Self>) -> Result<Disk, DeviceError> {
        let identity = self.identity()?;
        let open = self.open_root(&mut self.root(), identity)?;
        Ok(self.disk_of(open))
    }

    fn disk_of(self: &Arc<Self>, root: Arc<OpenRoot>) -> Disk {
        Disk {
            root,
            state: self.clone(),
        }
    }

    fn root(&self) -> MutexGuard<'_, Root> {
        self.root.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_root(
        &self,
        root: &mut Root,
        identity: (u64, u64),
    ) -> Result<Arc<OpenRoot>, DeviceError> {
        if root.identity == identity
            && let Some(open) = root.open.upgrade()
        {
            return Ok(open);
        }
        let unmounted = || DeviceError::Unmounted(self.name.clone());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&self.path, flags, Mode::empty()).map_err(|_| unmounted())?;
        let file_system = FileSystem::of(fd.as_fd(), &self.config.syncs());
        let open = Arc::new(OpenRoot {
            fd: Arc::new(fd),
            file_system: file_system.map_err(|_| unmounted())?,
        });
        if let Some(gone) = root.leave() {
            let_go(&self.name, gone);
        }
        root.open = Arc::downgrade(&open);
        root.identity = identity;
        Ok(open)
    }

    /// Closes a directory that was not used for that long. True: nobody has the device's directory open,
    /// nor one that was open before.
    pub(super) fn close_unused(&self, idle: Duration) -> bool {
        let mut root = self.root();
        let is_kept = root.kept.as_ref();
        if root.open.strong_count() > usize::from(is_kept.is_some())
            || is_kept.is_some_and(|kept| kept.used.elapsed() < idle)
        {
            // Others get it under this lock, or from somebody who has it.
            return false;
        }
        let closed = root.kept.take();
        let is_left = root.is_left();
        // The last one closed unmounts what was unmounted lazily: not under the lock.
        drop(root);
        drop(closed);
        is_left
    }

    /// Has whoever comes next open the directory anew.
    pub(super) fn retire(&self) {
        // As above: not closed under the lock.
        let kept = self.root().leave();
        drop(kept);
    }

    /// Whether nobody holds a directory that was retired, or was the device's before it was mounted anew.
    pub(super) fn is_left(&self) -> bool {
        self.root().is_left()
    }

    /// Which directory the device is now. An error: it is not mounted.
    pub(super) fn identity(&self) -> Result<(u64, u64), DeviceError> {
        match rustix::fs::stat(&self.path) {
            Ok(stat) if !self.config.mount_check || self.is_mounted(&stat) => {
                Ok((stat.st_dev, stat.st_ino))
            }
            _ => Err(DeviceError::Unmounted(self.name.clone())),
        }
    }

    /// A mount point is on another file system than its parent. In containers it may not look
    /// so; an operator then puts a file `.ismount` there.
    fn is_mounted(&self, stat: &Stat) -> bool {
        let Ok(parent) = rustix::fs::stat(&self.config.root) else {
            return false;
        };
        parent.st_dev != stat.st_dev
            || parent.st_ino == stat.st_ino
            || self.path.join(".ismount").is_file()
    }
}

/// Closes a directory that is the device's no more. It may be the last that is open of a file system that
/// was unmounted lazily, which then comes to its end here: that takes its time, and nobody is to wait.
fn let_go(name: &str, kept: Kept) {
    let thread = thread::Builder::new().name(format!("gone-{name}"));
    // Without a thread it is closed where it is dropped.
    let _ = thread.spawn(move || drop(kept));
}
