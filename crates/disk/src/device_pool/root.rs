//! The open directory of a device, kept open for a while after clients' work; its file system
//! cannot be unmounted meanwhile.
//!
//! Reads and long writes of background work keep it open only for their own duration: an auditor
//! visits one device after the other all day, and none could ever be unmounted. Background commits
//! keep it open as clients do, because the latency estimates of syncs (`cairn_device::GroupSync`)
//! are lost with it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use cairn_device::FileSystem;
use parking_lot::MutexGuard;
use rustix::fs::{Mode, OFlags, Stat};

use super::{DeviceState, Disk};
use crate::error::DeviceError;

/// The directory opened last.
#[derive(Default)]
pub(super) struct Root {
    open: Weak<OpenRoot>,
    /// Directories opened earlier that may still be in use.
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
    /// Makes the next user open the directory anew. The returned reference must be dropped without
    /// the lock.
    fn detach(&mut self) -> Option<Kept> {
        self.former.push(std::mem::take(&mut self.open));
        self.former.retain(|root| root.strong_count() > 0);
        self.kept.take()
    }

    /// Whether no directory opened earlier is in use.
    fn is_former_closed(&mut self) -> bool {
        self.former.retain(|root| root.strong_count() > 0);
        self.former.is_empty()
    }
}

/// An open directory and the syncs of its file system, reference-counted.
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

    /// The disk, checked to be mounted, open only while in use.
    pub(super) fn disk_while_used(self: &Arc<Self>) -> Result<Disk, DeviceError> {
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
        self.root.lock()
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
        if let Some(gone) = root.detach() {
            close_in_background(&self.name, gone);
        }
        root.open = Arc::downgrade(&open);
        root.identity = identity;
        Ok(open)
    }

    /// Closes the directory if it is idle. True if neither it nor one opened earlier is in use.
    pub(super) fn close_unused(&self, idle: Duration) -> bool {
        let mut root = self.root();
        let is_kept = root.kept.as_ref();
        if root.open.strong_count() > usize::from(is_kept.is_some())
            || is_kept.is_some_and(|kept| kept.used.elapsed() < idle)
        {
            // New references are made under this lock, or from existing ones.
            return false;
        }
        let closed = root.kept.take();
        let is_former_closed = root.is_former_closed();
        // Closing the last descriptor completes a lazy unmount: not under the lock.
        drop(root);
        drop(closed);
        is_former_closed
    }

    /// Makes the next user open the directory anew.
    pub(super) fn retire(&self) {
        // As above: not closed under the lock.
        let kept = self.root().detach();
        drop(kept);
    }

    /// Whether no retired directory is in use, nor one from before the device was mounted again.
    pub(super) fn is_former_closed(&self) -> bool {
        self.root().is_former_closed()
    }

    /// Device and inode of the directory.
    ///
    /// # Errors
    /// The device is not mounted.
    pub(super) fn identity(&self) -> Result<(u64, u64), DeviceError> {
        match rustix::fs::stat(&self.path) {
            Ok(stat) if !self.config.mount_check || self.is_mounted(&stat) => {
                Ok((stat.st_dev, stat.st_ino))
            }
            _ => Err(DeviceError::Unmounted(self.name.clone())),
        }
    }

    /// Whether the directory is on another file system than its parent. Inside containers this may
    /// not be visible; an operator then creates a file `.ismount` there.
    fn is_mounted(&self, stat: &Stat) -> bool {
        let Ok(parent) = rustix::fs::stat(&self.config.root) else {
            return false;
        };
        parent.st_dev != stat.st_dev
            || parent.st_ino == stat.st_ino
            || self.path.join(".ismount").is_file()
    }
}

/// Closes a directory that is no longer the device's, on a thread of its own: the last descriptor
/// completes a lazy unmount, which takes time.
fn close_in_background(name: &str, kept: Kept) {
    let thread = thread::Builder::new().name(format!("gone-{name}"));
    // Without a thread it is closed where it is dropped.
    let _ = thread.spawn(move || drop(kept));
}
