//! Descriptors by which an open database is synced, and whether it is still trusted.
//!
//! The kernel reports a write error once to each open file description, and not to those opened
//! after it was reported. Pages that could not be written are marked clean: reads return them until
//! they are evicted, and the next sync succeeds. A commit behind such a hole is lost in a power
//! cut, whatever its own sync returned.
//!
//! So files are opened for their syncs before the first write, each is synced by one thread at a
//! time, and the first failed sync revokes trust in all open state of the database. `Db::open` then
//! reads SQLite's log from the disk, not from the page cache, before anyone sees the database
//! again: what the log's checksums still cover is valid.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use cairn_device::{FileSystem, SyncSet, SyncedFile, Trust};

use crate::config::IndexConfig;
use crate::{IndexError, Result};

/// How a sync is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncMode {
    /// In a group with others: someone waits for it.
    Grouped,
    /// By itself, so that no one who waits for a group waits for this.
    Alone,
}

/// The log that a sync must cover.
pub(crate) enum CommitLog {
    /// SQLite's log, beside the file; the flag says whether its name is durable.
    Wal(Arc<AtomicBool>),
    /// The pending file; the flag says whether its size and its name are durable.
    Pending(Arc<SyncedFile>, Arc<AtomicBool>),
}

/// The descriptors of an open database, opened before the first write to it.
pub(crate) struct Held {
    file: Box<Path>,
    pub(crate) file_system: Arc<FileSystem>,
    pub(crate) trust: Arc<Trust>,
    pub(crate) folder: Arc<SyncedFile>,
    /// SQLite's log, for an exclusive database.
    wal: OnceLock<Arc<SyncedFile>>,
    /// Number of readers with connections of their own.
    readers: AtomicUsize,
}

/// Guard of a reader with a connection of its own.
pub(crate) struct Reading(Arc<Held>);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.readers.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Held {
    /// Opens the descriptors of the database at `file`.
    pub(crate) fn begin(file: &Path, config: &IndexConfig) -> Result<Arc<Self>> {
        let dir = file.parent().unwrap_or(file);
        let trust = Arc::new(Trust::new(file));
        let held = File::open(dir).and_then(|folder| {
            Ok(Held {
                file: file.into(),
                file_system: FileSystem::of(folder.as_fd(), &config.syncs())?,
                folder: Arc::new(SyncedFile::new(folder, &trust)),
                trust,
                wal: OnceLock::new(),
                readers: AtomicUsize::new(0),
            })
        });
        held.map(Arc::new)
            .map_err(|error| IndexError::io(dir, error))
    }

    /// Opens SQLite's log. To be called after SQLite has created it, and before the first write.
    pub(crate) fn hold_wal(&self) -> Result<()> {
        let path = wal_path(&self.file);
        let file = File::open(&path).map_err(|error| IndexError::io(&path, error))?;
        // Set once, by the thread that opened the database.
        let _ = self.wal.set(self.synced(file));
        Ok(())
    }

    /// Wraps a file of the database for syncs by this descriptor.
    pub(crate) fn synced(&self, file: File) -> Arc<SyncedFile> {
        Arc::new(SyncedFile::new(file, &self.trust))
    }

    /// Sync set of one of the database's files, with its metadata if `is_whole`.
    pub(crate) fn set_of(&self, file: &Arc<SyncedFile>, is_whole: bool) -> SyncSet {
        let mut set = SyncSet::on(&self.file_system);
        set.add_database(file.clone(), is_whole);
        set
    }

    /// Sync set of SQLite's log, and of its name until that is durable.
    pub(crate) fn wal_set(&self, is_named: &AtomicBool) -> SyncSet {
        let mut set = SyncSet::on(&self.file_system);
        if let Some(wal) = self.wal.get() {
            set.add_database(wal.clone(), false);
        }
        if !is_named.load(Ordering::Acquire) {
            set.add_database(self.folder.clone(), true);
        }
        set
    }

    /// Syncs now.
    pub(crate) fn sync(&self, set: &SyncSet, mode: SyncMode) -> io::Result<()> {
        let synced = match mode {
            SyncMode::Alone => self.file_system.sync_unawaited(set),
            SyncMode::Grouped => self.file_system.sync(set),
        };
        synced.inspect_err(|error| self.fail(error))?;
        self.believed()
    }

    pub(crate) fn fail(&self, error: &io::Error) {
        self.trust.fail(error);
    }

    /// Revokes trust after an error of SQLite, which may come from one of its syncs.
    pub(crate) fn distrust(&self) {
        self.trust.end();
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.trust.has_failed()
    }

    pub(crate) fn believed(&self) -> io::Result<()> {
        self.trust.believed()
    }

    pub(crate) fn reading(self: &Arc<Self>) -> Reading {
        self.readers.fetch_add(1, Ordering::AcqRel);
        Reading(Arc::clone(self))
    }

    pub(crate) fn is_read(&self) -> bool {
        self.readers.load(Ordering::Acquire) > 0
    }
}

pub(crate) fn wal_path(file: &Path) -> Box<Path> {
    let mut path = file.as_os_str().to_owned();
    path.push("-wal");
    Path::new(&path).into()
}
