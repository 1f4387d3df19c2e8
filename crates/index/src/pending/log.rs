//! What we write to a pending file. A container that gets row after row is told each by an
//! appended entry and its sync, which costs a fraction of a transaction; hundreds of rows are
//! then merged by one.
//!
//! * Of a shared database entries are appended, under the lock of the folder, as Swift's servers do.
//! * Of an exclusive one the file is made of colons, which stand for no entry, and written in
//!   place: its size does not change, so that a sync writes the entries alone and nothing of the
//!   file system's. Entries that are merged become colons again, and are synced, before others
//!   take their place: what a power cut leaves of a write is then an entry cut short by colons,
//!   never one mixed from two. It has two halves: while one, full, is merged, entries go to the
//!   other.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use cairn_device::SyncedFile;

use crate::config::IndexConfig;
use crate::db::commit::CommitLog;
use crate::held::{Held, SyncWeight};
use crate::{IndexError, ObjectRow, Result, files};

/// A disk's least write: what has been acknowledged is not written again with what follows.
const ALIGN: usize = 512;
const FILL: u8 = b':';
/// What the sync of a whole half costs, in syncs of an entry.
const FILL_WEIGHT: SyncWeight = SyncWeight::Of(4);

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
    file: Arc<LogFile>,
    /// Its size, and its name in the folder, are on disk.
    is_named: Arc<AtomicBool>,
    is_in_place: bool,
    /// Of a half, or of a shared database's file.
    bytes_max: usize,
    /// Where entries go.
    half: Half,
    /// The half that is full, until it has been merged.
    full: Option<Half>,
    /// Of a shared database: all that we wrote, to tell whether that is all there is.
    written: Vec<u8>,
}

struct LogFile {
    path: PathBuf,
    file: Arc<SyncedFile>,
    held: Arc<Held>,
}

struct Half {
    /// Its place in the file.
    start: usize,
    used: usize,
    /// What the entries stand for, as far as readers do not see it yet.
    rows: Vec<ObjectRow>,
    /// When the first entry was written.
    since: Instant,
}

impl Half {
    fn at(start: usize) -> Self {
        Half {
            start,
            used: 0,
            rows: Vec::new(),
            since: Instant::now(),
        }
    }

    fn merged(&self, file: &Arc<LogFile>) -> Merged {
        Merged {
            file: Arc::clone(file),
            start: self.start,
            used: self.used,
        }
    }
}

/// Entries that have been merged.
pub(crate) struct Merged {
    file: Arc<LogFile>,
    start: usize,
    used: usize,
}

impl Log {
    /// Opens the file; what is pending has been merged.
    pub(crate) fn open(db_file: &Path, config: &IndexConfig, held: &Arc<Held>) -> Result<Self> {
        let path = super::pending_path(db_file);
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(files::PRIVATE)
            .open(&path);
        let file = opened.map_err(|error| IndexError::io(&path, error))?;
        let file = LogFile {
            path,
            file: held.synced(file),
            held: Arc::clone(held),
        };
        let bytes_max = config.pending_bytes.next_multiple_of(ALIGN);
        if config.exclusive {
            file.fill(0, 2 * bytes_max)?;
        }
        Ok(Log {
            file: Arc::new(file),
            is_named: Arc::default(),
            is_in_place: config.exclusive,
            bytes_max,
            half: Half::at(0),
            full: None,
            written: Vec::new(),
        })
    }

    /// What a sync of its entries must reach.
    pub(crate) fn to_sync(&self) -> CommitLog {
        CommitLog::Pending(Arc::clone(&self.file.file), Arc::clone(&self.is_named))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.half.used == 0 && self.full.is_none()
    }

    /// Since when it has entries.
    pub(crate) fn since(&self) -> Option<Instant> {
        let half = self.full.as_ref().unwrap_or(&self.half);
        (!self.is_empty()).then_some(half.since)
    }

    /// Is there room for entries of so many bytes? An empty log has none for what is too long
    /// for any.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.half.used + bytes < self.bytes_max
    }

    /// Goes on in the other half, if there is one and it is free: what is in this one is to be
    /// merged meanwhile.
    pub(crate) fn turn(&mut self) -> bool {
        if !self.is_in_place || self.full.is_some() || self.half.used == 0 {
            return false;
        }
        let other = Half::at(self.bytes_max - self.half.start);
        self.full = Some(std::mem::replace(&mut self.half, other));
        true
    }

    /// Writes entries, not yet synced. False: others have written there meanwhile, and what is
    /// pending must be merged first.
    pub(crate) fn append(&mut self, text: &str) -> Result<bool> {
        if self.half.used == 0 {
            self.half.since = Instant::now();
        }
        let at = self.half.start + self.half.used;
        if self.is_in_place {
            let written = self.file.write_at(text.as_bytes(), at);
            // What is there of it now is not to be mixed with other entries.
            written.inspect_err(|_| self.half.used = self.bytes_max)?;
            let end = self.half.used + text.len();
            self.half.used = end.next_multiple_of(ALIGN);
            return Ok(true);
        }
        let path = &self.file.path;
        let _lock = files::lock_folder(path.parent().unwrap_or(path), super::PATIENCE)?;
        let meta = self.file.file.file.metadata();
        let meta = meta.map_err(|error| IndexError::io(path, error))?;
        if meta.nlink() == 0 || meta.len() != at as u64 {
            return Ok(false);
        }
        self.file.write_at(text.as_bytes(), at)?;
        self.written.extend(text.as_bytes());
        self.half.used += text.len();
        Ok(true)
    }

    /// What the entries just written stand for.
    pub(crate) fn add_rows(&mut self, rows: Vec<ObjectRow>) {
        self.half.rows.extend(rows);
    }

    /// Are there rows that readers do not see yet?
    pub(crate) fn has_rows(&self) -> bool {
        let mut halves = self.full.iter().chain([&self.half]);
        halves.any(|half| !half.rows.is_empty())
    }

    /// Rows that readers do not see yet; whoever takes them shows them.
    pub(crate) fn take_rows(&mut self) -> Vec<ObjectRow> {
        let full = self.full.as_mut().map(|full| &mut full.rows);
        let mut rows = full.map(std::mem::take).unwrap_or_default();
        rows.append(&mut self.half.rows);
        rows
    }

    /// Of the full half: the rows that readers do not see yet, and what is to be cleared when
    /// they are merged.
    pub(crate) fn take_full(&mut self) -> Option<(Vec<ObjectRow>, Merged)> {
        let full = self.full.as_mut()?;
        Some((std::mem::take(&mut full.rows), full.merged(&self.file)))
    }

    /// The full half has been cleared.
    pub(crate) fn full_is_clear(&mut self) {
        self.full = None;
    }

    /// Of a shared database: what this process wrote, and the rows it stands for.
    pub(crate) fn ours(&self) -> (&[u8], &[ObjectRow]) {
        (&self.written, &self.half.rows)
    }

    /// Everything in it has been merged and is on disk.
    pub(crate) fn clear(&mut self) -> Result<()> {
        if let Some((_, merged)) = self.take_full() {
            merged.clear(FILL_WEIGHT)?;
            self.full = None;
        }
        if self.is_in_place && self.half.used > 0 {
            self.half.merged(&self.file).clear(FILL_WEIGHT)?;
        }
        self.half = Half::at(0);
        self.written.clear();
        Ok(())
    }

    /// Leaves an empty file behind, as Swift does.
    pub(crate) fn close(self) -> Result<()> {
        if self.is_in_place {
            let cut = self.file.file.file.set_len(0);
            cut.map_err(|error| IndexError::io(&self.file.path, error))?;
        }
        Ok(())
    }
}

impl Merged {
    /// What they were merged into is on disk: they become colons.
    pub(crate) fn clear(&self, weight: SyncWeight) -> Result<()> {
        let LogFile { path, file, held } = &*self.file;
        self.file.fill(self.start, self.used)?;
        let synced = held.sync(&held.set_of(file, false, weight), weight);
        synced.map_err(|error| IndexError::io(path, error))
    }
}

impl LogFile {
    fn fill(&self, start: usize, bytes: usize) -> Result<()> {
        self.write_at(&vec![FILL; bytes], start)
    }

    fn write_at(&self, bytes: &[u8], at: usize) -> Result<()> {
        let written = self.file.file.write_all_at(bytes, at as u64);
        written.map_err(|error| IndexError::io(&self.path, error))
    }
}
