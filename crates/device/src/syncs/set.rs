//! The set of things that a sync must cover before anybody is told of success.
//!
//! Each operation names all that it wrote and that has to be on disk: files, the directories that have
//! their names, logs it appended to, databases. The sets of operations that share a sync are merged. A
//! thing that many of them named is synced once: a log by its inode, whoever of them opened it, a
//! directory by its name or descriptor, a database's file by its one descriptor.
//!
//! Files are synced by descriptors that were opened before they were written, for the kernel reports a
//! write error to such ones alone; of several of one inode by the first.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_types::plant::Plant;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use super::file_system::FileSystem;
use crate::locks::Mutex;

/// Everything that a sync must cover, on one file system.
#[derive(Clone)]
pub struct SyncSet {
    pub(crate) file_system: Arc<FileSystem>,
    things: Vec<Thing>,
}

type Call = Arc<dyn Fn() -> io::Result<()> + Send + Sync>;

#[derive(Clone)]
enum Thing {
    /// Content and attributes of a file that nobody else writes.
    File(Arc<OwnedFd>),
    /// A file that several operations append to. Without an inode it is nobody else's.
    Log {
        fd: Arc<OwnedFd>,
        inode: Option<Inode>,
    },
    /// The names in an open directory.
    Directory(Arc<OwnedFd>),
    /// The names in a directory below `root`, opened when it is synced.
    DirectoryAt {
        root: Arc<OwnedFd>,
        path: Box<str>,
    },
    /// A file of a database. `is_whole`: and everything that is known of it.
    Database {
        file: Arc<SyncedFile>,
        is_whole: bool,
    },
    Call(Call),
}

/// Device and inode.
type Inode = (u32, u32, u64);

impl SyncSet {
    /// An empty one.
    pub fn on(file_system: &Arc<FileSystem>) -> Self {
        SyncSet {
            file_system: file_system.clone(),
            things: Vec::new(),
        }
    }

    /// A file's content and attributes.
    pub fn add_file(&mut self, fd: Arc<OwnedFd>) {
        self.things.push(Thing::File(fd));
    }

    /// A file that others append to, too.
    pub fn add_log(&mut self, fd: Arc<OwnedFd>) {
        let inode = inode_of(fd.as_fd());
        self.add(Thing::Log { fd, inode });
    }

    /// The names in an open directory.
    pub fn add_directory(&mut self, fd: Arc<OwnedFd>) {
        self.add(Thing::Directory(fd));
    }

    /// The names in the directory `path` below `root`; those in `root` itself where it is empty.
    pub fn add_directory_at(&mut self, root: &Arc<OwnedFd>, path: &str) {
        let (root, path) = (root.clone(), path.into());
        self.add(Thing::DirectoryAt { root, path });
    }

    /// The content of a database's file, and with `is_whole` everything that is known of it.
    pub fn add_database(&mut self, file: Arc<SyncedFile>, is_whole: bool) {
        self.add(Thing::Database { file, is_whole });
    }

    /// Anything that has a function of its own to sync it.
    pub fn add_call(&mut self, call: impl Fn() -> io::Result<()> + Send + Sync + 'static) {
        self.things.push(Thing::Call(Arc::new(call)));
    }

    pub fn is_empty(&self) -> bool {
        self.things.is_empty()
    }

    /// Things in it.
    pub fn len(&self) -> usize {
        self.things.len()
    }

    /// Adds what is in another set of the same file system.
    pub fn merge(&mut self, other: SyncSet) {
        debug_assert!(self.is_mergeable(&other), "sets of two file systems");
        let has_directories = self.things.iter().any(Thing::is_directory);
        for thing in other.things {
            if Plant::SetLacksDirectory.is_on() && has_directories && thing.is_directory() {
                continue;
            }
            self.add(thing);
        }
    }

    pub(crate) fn is_mergeable(&self, other: &SyncSet) -> bool {
        FileSystem::is_same(&self.file_system, &other.file_system)
    }

    fn add(&mut self, thing: Thing) {
        match self.things.iter_mut().find(|known| known.is_same(&thing)) {
            Some(Thing::Database { is_whole, .. }) => {
                if let Thing::Database { is_whole: more, .. } = thing {
                    *is_whole |= more;
                }
            }
            Some(_) => {}
            None => self.things.push(thing),
        }
    }

    /// Syncs one of them.
    pub(crate) fn sync_thing(&self, at: usize) -> io::Result<()> {
        let file_system = &self.file_system;
        match &self.things[at] {
            Thing::File(fd) | Thing::Log { fd, .. } | Thing::Directory(fd) => {
                file_system.fsync(fd.as_fd())
            }
            Thing::DirectoryAt { root, path } if path.is_empty() => file_system.fsync(root.as_fd()),
            Thing::DirectoryAt { root, path } => match open_directory(root.as_fd(), path) {
                Ok(fd) => file_system.fsync(fd.as_fd()),
                // Out of descriptors, say. That is no failed sync: what is open leads to the whole
                // file system.
                Err(_) => file_system.sync_whole(root.as_fd()),
            },
            Thing::Database { file, is_whole, .. } => file.sync(file_system, *is_whole),
            Thing::Call(call) => call(),
        }
    }
}

impl Thing {
    fn is_directory(&self) -> bool {
        matches!(self, Thing::Directory(_) | Thing::DirectoryAt { .. })
    }

    /// Whether a sync of the one is a sync of the other.
    fn is_same(&self, other: &Thing) -> bool {
        match (self, other) {
            (Thing::File(one), Thing::File(other))
            | (Thing::Directory(one), Thing::Directory(other)) => Arc::ptr_eq(one, other),
            (Thing::Log { inode: one, .. }, Thing::Log { inode: other, .. }) => {
                one.is_some() && one == other
            }
            (
                Thing::DirectoryAt { root, path },
                Thing::DirectoryAt {
                    root: other_root,
                    path: other_path,
                },
            ) => Arc::ptr_eq(root, other_root) && path == other_path,
            (Thing::Database { file, .. }, Thing::Database { file: other, .. }) => {
                Arc::ptr_eq(file, other)
            }
            _ => false,
        }
    }
}

/// Asked without the file's times: the next write of a file that was asked for them gives it new
/// ones, and its sync then has an inode to write, too.
fn inode_of(fd: BorrowedFd<'_>) -> Option<Inode> {
    let flags = StatxFlags::TYPE | StatxFlags::INO;
    let stat = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, flags).ok()?;
    Some((stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino))
}

/// Opens a directory below another. To note when it was read would cost a write.
///
/// # Errors
/// That of opening it.
pub fn open_directory(root: BorrowedFd<'_>, path: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::openat(root, path, flags | OFlags::NOATIME, Mode::empty()) {
        // Only its owner may leave its access time alone.
        Err(Errno::PERM) => rustix::fs::openat(root, path, flags, Mode::empty()),
        other => other,
    }
}

/// The belief that files which were opened together are on the disk as they are read. The first sync
/// of one of them that fails ends it: the kernel has marked the lost pages clean.
#[derive(Debug)]
pub struct Trust {
    path: Box<Path>,
    has_failed: AtomicBool,
}

impl Trust {
    /// In the files of what is at `path`.
    pub fn new(path: &Path) -> Self {
        Trust {
            path: path.into(),
            has_failed: AtomicBool::new(false),
        }
    }

    /// A sync has failed.
    pub fn fail(&self, error: &io::Error) {
        if !self.has_failed.swap(true, Ordering::AcqRel) {
            tracing::error!(
                path = %self.path.display(), %error,
                "a sync failed: nothing of the database is believed before it is read from the disk"
            );
        }
    }

    /// As after a sync that failed, which somebody else has logged.
    pub fn end(&self) {
        self.has_failed.store(true, Ordering::Release);
    }

    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire) && !Plant::FailedSyncBelieved.is_on()
    }

    /// # Errors
    /// A sync has failed since the files were opened.
    pub fn believed(&self) -> io::Result<()> {
        match self.has_failed() {
            true => Err(Errno::IO.into()),
            false => Ok(()),
        }
    }
}

/// A file that is synced by one descriptor, opened before anything was written to it.
pub struct SyncedFile {
    pub file: File,
    trust: Arc<Trust>,
    /// Held while one syncs: of two who did so at once only one would be told of an error.
    turn: Mutex<()>,
}

impl SyncedFile {
    pub fn new(file: File, trust: &Arc<Trust>) -> Self {
        SyncedFile {
            file,
            trust: trust.clone(),
            turn: Mutex::new(()),
        }
    }

    fn sync(&self, file_system: &FileSystem, is_whole: bool) -> io::Result<()> {
        let _turn = self.turn.lock();
        self.trust.believed()?;
        let fd = self.file.as_fd();
        let synced = match is_whole {
            true => file_system.fsync(fd),
            false => file_system.fdatasync(fd),
        };
        synced.inspect_err(|error| self.trust.fail(error))
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;

    use super::*;
    use crate::syncs::Syncs;

    fn file_system(dir: &Path) -> Arc<FileSystem> {
        let fd = File::open(dir).unwrap();
        FileSystem::of(fd.as_fd(), &Syncs::default()).unwrap()
    }

    /// Ten operations of one partition: their files and directories, and one log.
    #[test]
    fn what_ten_operations_share_is_synced_once() {
        let dir = tempfile::tempdir().unwrap();
        let file_system = file_system(dir.path());
        let root: Arc<OwnedFd> = Arc::new(File::open(dir.path()).unwrap().into());
        let log = dir.path().join("log");
        let operation = || {
            let mut set = SyncSet::on(&file_system);
            set.add_file(Arc::new(tempfile::tempfile().unwrap().into()));
            let file = fs::OpenOptions::new()
                .create(true)
                .append(true)
                .open(&log)
                .unwrap();
            set.add_log(Arc::new(file.into()));
            set.add_directory(Arc::new(File::open(dir.path()).unwrap().into()));
            set.add_directory_at(&root, "a");
            set.add_directory_at(&root, "");
            set
        };
        let mut all = operation();
        (0..9).for_each(|_| all.merge(operation()));
        // A file and a directory of each, and the log, "a" and the root of all.
        assert_eq!(all.len(), 2 * 10 + 3);
        // Another file of that name is another.
        fs::remove_file(&log).unwrap();
        all.merge(operation());
        assert_eq!(all.len(), 2 * 11 + 4);
    }

    #[test]
    fn a_database_is_synced_whole_where_one_asks_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let file_system = file_system(dir.path());
        let trust = Arc::new(Trust::new(dir.path()));
        let file = Arc::new(SyncedFile::new(tempfile::tempfile().unwrap(), &trust));
        let mut set = SyncSet::on(&file_system);
        set.add_database(file.clone(), false);
        let mut other = SyncSet::on(&file_system);
        other.add_database(file, true);
        set.merge(other);
        let [Thing::Database { is_whole, .. }] = &set.things[..] else {
            panic!("synced twice");
        };
        assert!(*is_whole);
    }

    #[test]
    fn nothing_is_believed_after_a_failure() {
        let trust = Trust::new(Path::new("db"));
        trust.believed().unwrap();
        trust.fail(&Errno::IO.into());
        assert!(trust.has_failed());
        trust.believed().unwrap_err();
    }

    /// As where a process is out of descriptors.
    #[test]
    fn a_directory_that_cannot_be_opened_is_synced_with_the_file_system() {
        let dir = tempfile::tempdir().unwrap();
        let file_system = file_system(dir.path());
        let mut set = SyncSet::on(&file_system);
        let root = Arc::new(File::open(dir.path()).unwrap().into());
        set.add_directory_at(&root, "not there");
        file_system.sync(&set).unwrap();
    }
}
