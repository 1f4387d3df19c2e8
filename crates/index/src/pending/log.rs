//! What we write to a pending file. A container that gets row after row is told each by an
//! appended entry and its sync, which costs a fraction of a transaction; hundreds of rows are
//! then merged by one.
//!
//! * Of a shared database entries are appended, under the lock of the folder, as Swift's servers do.
//! * Of an exclusive one the file is made of colons, which stand for no entry, and written in
//!   place: its size does not change, so that a sync writes the entries alone and nothing of the
//!   file system's. Entries that are merged become colons again, and are synced, before others
//!   take their place: what a power cut leaves of a write is then an entry cut short by colons,
//!   never one mixed from two.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use crate::config::IndexConfig;
use crate::deferred::CommitLog;
use crate::{IndexError, ObjectRow, Result, files};

/// Some 300 rows; half of what Swift's servers leave pending (`PENDING_CAP`).
const LOG_BYTES: usize = 64 << 10;
/// A disk's least write: what has been acknowledged is not written again with what follows.
const ALIGN: usize = 512;
const FILL: u8 = b':';
/// What the sync of a whole log costs, in syncs of an entry.
const FILL_WEIGHT: usize = 4;

/// The entries of rows.
pub(crate) fn entries<'r>(rows: impl IntoIterator<Item = &'r ObjectRow>) -> String {
    let mut text = String::with_capacity(4096);
    for row in rows {
        super::entry::write_object_row(row, &mut text);
    }
    text
}

/// The pending file of one open database.
pub(crate) struct Log {
    path: PathBuf,
    file: Arc<File>,
    /// Its size, and its name in the folder, are on disk.
    is_named: Arc<AtomicBool>,
    is_in_place: bool,
    /// Where the next entries go.
    at: usize,
    /// Of a shared database: all that we wrote, to tell whether that is all there is.
    written: Vec<u8>,
    /// What the entries stand for, as far as readers do not see it yet.
    rows: Vec<ObjectRow>,
    /// When the first entry was written.
    since: Instant,
}

impl Log {
    /// Opens the file; what is pending has been merged.
    pub(crate) fn open(db_file: &Path, config: &IndexConfig) -> Result<Self> {
        let path = super::pending_path(db_file);
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .open(&path);
        let file = opened.map_err(|error| IndexError::io(&path, error))?;
        let log = Log {
            path,
            file: Arc::new(file),
            is_named: Arc::default(),
            is_in_place: config.exclusive,
            at: 0,
            written: Vec::new(),
            rows: Vec::new(),
            since: Instant::now(),
        };
        if log.is_in_place {
            log.fill(LOG_BYTES)?;
        }
        Ok(log)
    }

    /// What a sync of its entries must reach.
    pub(crate) fn to_sync(&self) -> CommitLog {
        CommitLog::Pending(Arc::clone(&self.file), Arc::clone(&self.is_named))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.at == 0
    }

    /// Since when it has entries.
    pub(crate) fn since(&self) -> Option<Instant> {
        (!self.is_empty()).then_some(self.since)
    }

    /// Is there room for entries of so many bytes? An empty log has none for what is too long
    /// for any.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.at + bytes < LOG_BYTES
    }

    /// Writes entries, not yet synced. False: others have written there meanwhile, and what is
    /// pending must be merged first.
    pub(crate) fn append(&mut self, text: &str) -> Result<bool> {
        if self.is_empty() {
            self.since = Instant::now();
        }
        if self.is_in_place {
            self.write_at(text.as_bytes(), self.at)?;
            let end = self.at + text.len();
            self.at = end.next_multiple_of(ALIGN);
            return Ok(true);
        }
        let dir = self.path.parent().unwrap_or(&self.path);
        let _lock = files::lock_folder(dir, super::PATIENCE)?;
        let meta = self.file.metadata();
        let meta = meta.map_err(|error| IndexError::io(&self.path, error))?;
        if meta.nlink() == 0 || meta.len() != self.at as u64 {
            return Ok(false);
        }
        self.write_at(text.as_bytes(), self.at)?;
        self.written.extend(text.as_bytes());
        self.at += text.len();
        Ok(true)
    }

    /// What the entries just written stand for.
    pub(crate) fn add_rows(&mut self, rows: Vec<ObjectRow>) {
        self.rows.extend(rows);
    }

    /// Rows that readers do not see yet; from now on they do.
    pub(crate) fn take_rows(&mut self) -> Vec<ObjectRow> {
        std::mem::take(&mut self.rows)
    }

    /// Of a shared database: what this process wrote, and the rows it stands for.
    pub(crate) fn ours(&self) -> (&[u8], &[ObjectRow]) {
        (&self.written, &self.rows)
    }

    /// Everything in it has been merged and is on disk.
    pub(crate) fn clear(&mut self, config: &IndexConfig) -> Result<()> {
        if self.is_in_place && self.at > 0 {
            self.fill(self.at)?;
            self.sync_with(config, || self.file.sync_data())?;
        }
        self.at = 0;
        self.rows.clear();
        self.written.clear();
        Ok(())
    }

    /// Leaves an empty file behind, as Swift does.
    pub(crate) fn close(self) -> Result<()> {
        if self.is_in_place {
            let cut = self.file.set_len(0);
            cut.map_err(|error| IndexError::io(&self.path, error))?;
        }
        Ok(())
    }

    fn fill(&self, bytes: usize) -> Result<()> {
        self.write_at(&vec![FILL; bytes], 0)
    }

    fn write_at(&self, bytes: &[u8], at: usize) -> Result<()> {
        let written = self.file.write_all_at(bytes, at as u64);
        written.map_err(|error| IndexError::io(&self.path, error))
    }

    fn sync_with(&self, config: &IndexConfig, own: impl Fn() -> std::io::Result<()>) -> Result<()> {
        let synced = (config.commit_sync)(&self.file, FILL_WEIGHT, &own);
        synced.map_err(|error| IndexError::io(&self.path, error))
    }
}
