//! The descriptors an open database is synced by, and whether it may still be believed.
//!
//! The kernel reports a write error once to each open file description, and not to one opened after
//! somebody was told. The pages it could not write count as clean from then on: they are read as if
//! they were on disk, until their memory is needed, and the next sync succeeds. A commit behind such
//! a hole is lost in a power cut, whatever its own sync said.
//!
//! So files are opened for their syncs before anything is written to them, each is synced by one
//! thread at a time, and the first sync that fails ends the belief in all that is open of the
//! database. `Db::open` then reads SQLite's log from the disk, not from the page cache, before
//! anybody gets to see the database again: what the log's checksums still vouch for is what there
//! is.

use std::any::Any;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cairn_types::plant::Plant;
use rustix::fs::{Advice, Mode, OFlags};
use rustix::io::Errno;

use crate::config::{CommitSync, IndexConfig, SyncFile, SyncWeight};
use crate::{IndexError, Result};

/// A file that is synced by one descriptor.
pub(crate) struct SyncedFile {
    pub(crate) file: File,
    /// Of two who sync at once only one is told of an error.
    turn: Mutex<()>,
}

impl SyncedFile {
    pub(crate) fn new(file: File) -> Self {
        SyncedFile {
            file,
            turn: Mutex::default(),
        }
    }

    /// Syncs its content; `all`: and everything that is known of it.
    pub(crate) fn sync(&self, held: &Held, all: bool) -> io::Result<()> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        held.believed()?;
        (held.sync_file)(&self.file, all).inspect_err(|error| held.fail(error))
    }
}

/// What is held of an open database from before the first write to it.
pub(crate) struct Held {
    file: Box<Path>,
    pub(crate) folder: SyncedFile,
    /// SQLite's own log: of an exclusive database.
    wal: OnceLock<SyncedFile>,
    has_failed: AtomicBool,
    sync_file: SyncFile,
    readers: Arc<()>,
    _syncs: Arc<dyn Any + Send + Sync>,
}

/// Somebody reads a database by a connection of its own.
pub(crate) struct Reading {
    _one: Arc<()>,
}

impl Held {
    /// For the database at `file`.
    pub(crate) fn begin(file: &Path, config: &IndexConfig) -> Result<Arc<Self>> {
        let dir = file.parent().unwrap_or(file);
        let held = File::open(dir).and_then(|folder| {
            Ok(Held {
                file: file.into(),
                _syncs: (config.hold_syncs)(&folder)?,
                folder: SyncedFile::new(folder),
                wal: OnceLock::new(),
                has_failed: AtomicBool::new(false),
                sync_file: config.sync_file.clone(),
                readers: Arc::default(),
            })
        });
        held.map(Arc::new)
            .map_err(|error| IndexError::io(dir, error))
    }

    /// To be called when SQLite has opened its log, and before it writes there.
    pub(crate) fn hold_wal(&self) -> Result<()> {
        let path = wal_path(&self.file);
        let file = File::open(&path).map_err(|error| IndexError::io(&path, error))?;
        // Held once: by who opened the database.
        let _ = self.wal.set(SyncedFile::new(file));
        Ok(())
    }

    /// Syncs SQLite's log, and, once, its name.
    pub(crate) fn sync_wal(&self, is_named: &AtomicBool) -> io::Result<()> {
        if let Some(wal) = self.wal.get() {
            wal.sync(self, false)?;
        }
        if !is_named.load(Ordering::Acquire) {
            self.folder.sync(self, true)?;
        }
        Ok(())
    }

    /// Syncs by `own`, or together with others.
    pub(crate) fn sync(
        &self,
        sync: &CommitSync,
        on: &File,
        weight: SyncWeight,
        own: &dyn Fn() -> io::Result<()>,
    ) -> io::Result<()> {
        sync(on, weight, own).inspect_err(|error| self.fail(error))?;
        self.believed()
    }

    pub(crate) fn fail(&self, error: &io::Error) {
        if !self.has_failed.swap(true, Ordering::AcqRel) {
            tracing::error!(
                path = %self.file.display(), %error,
                "a sync failed: nothing of the database is believed before it is read from the disk"
            );
        }
    }

    /// As after a sync that failed: for errors of SQLite, which syncs, too.
    pub(crate) fn distrust(&self) {
        self.has_failed.store(true, Ordering::Release);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire) && !Plant::FailedSyncBelieved.is_on()
    }

    pub(crate) fn believed(&self) -> io::Result<()> {
        match self.has_failed() {
            true => Err(Errno::IO.into()),
            false => Ok(()),
        }
    }

    pub(crate) fn reading(&self) -> Reading {
        Reading {
            _one: Arc::clone(&self.readers),
        }
    }

    pub(crate) fn is_read(&self) -> bool {
        Arc::strong_count(&self.readers) > 1
    }
}

pub(crate) fn wal_path(file: &Path) -> Box<Path> {
    let mut path = file.as_os_str().to_owned();
    path.push("-wal");
    Path::new(&path).into()
}

/// Has whoever reads this file next get what is on the disk. Its dirty pages are written, as only
/// clean ones can be dropped; and as the kernel may keep one that is in use just then, what is read
/// afterwards is held against the disk, where the file system has reads past the page cache.
pub(crate) fn read_from_disk(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    file.sync_all()?;
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    let direct = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(direct) => File::from(direct),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    match is_same(&file, &direct) {
        Ok(true) => Ok(()),
        Ok(false) => Err(io::Error::other(
            "the page cache keeps what is not on the disk",
        )),
        // The flag is taken, and the read refused.
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(()),
        Err(error) => Err(error),
    }
}

fn is_same(cached: &File, direct: &File) -> io::Result<bool> {
    use cairn_types::blocks::{ALIGN, Block};
    use std::os::unix::fs::FileExt;

    let mut at = 0;
    loop {
        let (mut on_disk, mut read) = (Block::take()?, Block::take()?);
        let count = direct.read_at(on_disk.spare(), at)?;
        let read = &mut read.spare()[..count];
        cached.read_exact_at(read, at)?;
        if on_disk.spare()[..count] != *read {
            return Ok(false);
        }
        // What is left of the file after its last whole page.
        if !count.is_multiple_of(ALIGN) || count == 0 {
            return Ok(true);
        }
        at += count as u64;
    }
}
