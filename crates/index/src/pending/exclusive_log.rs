//! The pending file of an exclusive database as a log of rows. Appending an entry and syncing it
//! costs a fraction of a transaction; hundreds of rows are then merged by one.
//!
//! The file is preallocated with colons, which are padding, and written in place: its size does not
//! change, so a sync writes the entries alone and no file-system metadata. Merged entries become
//! colons again, synced before others take their place: a torn write then leaves an entry cut short
//! by colons, never a mix of two. The file has two halves: while a full one is merged, entries go
//! to the other.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use cairn_device::SyncedFile;

use crate::config::IndexConfig;
use crate::held::{CommitLog, Held, SyncWeight};
use crate::pending::RowLog;
use crate::{IndexError, ObjectRow, Result};

/// Minimum write size of a disk, in bytes: acknowledged entries are not rewritten with later ones.
const SECTOR_BYTES: usize = 512;
const FILL_BYTE: u8 = b':';
/// Cost of syncing a whole half, in syncs of an entry.
const FILL_WEIGHT: SyncWeight = SyncWeight::Of(4);

/// The pending file of one open database.
pub(crate) struct ExclusiveLog {
    file: Arc<LogFile>,
    /// Whether its size and its name are durable.
    is_named: Arc<AtomicBool>,
    /// Capacity of a half.
    bytes_max: usize,
    /// The half that takes entries.
    half: Half,
    /// The full half, until it is merged.
    full: Option<Half>,
}

struct LogFile {
    path: PathBuf,
    file: Arc<SyncedFile>,
    held: Arc<Held>,
}

struct Half {
    /// Offset in the file.
    start: usize,
    used: usize,
    /// Rows of the entries that readers do not see yet.
    rows: Vec<ObjectRow>,
    /// Time of the first entry.
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

/// Extent of merged entries.
pub(crate) struct Merged {
    file: Arc<LogFile>,
    start: usize,
    used: usize,
}

impl ExclusiveLog {
    /// Switches to the other half, if it is free; the current one is then to be merged.
    pub(crate) fn switch_half(&mut self) -> bool {
        if self.full.is_some() || self.half.used == 0 {
            return false;
        }
        let other = Half::at(self.bytes_max - self.half.start);
        self.full = Some(std::mem::replace(&mut self.half, other));
        true
    }

    /// Writes entries without a sync.
    pub(crate) fn append(&mut self, text: &str) -> Result<()> {
        if self.half.used == 0 {
            self.half.since = Instant::now();
        }
        let at = self.half.start + self.half.used;
        let written = self.file.write_at(text.as_bytes(), at);
        // A partial write must not be mixed with other entries.
        written.inspect_err(|_| self.half.used = self.bytes_max)?;
        let end = self.half.used + text.len();
        self.half.used = end.next_multiple_of(SECTOR_BYTES);
        Ok(())
    }

    /// Whether there are rows that readers do not see yet.
    pub(crate) fn has_rows(&self) -> bool {
        let mut halves = self.full.iter().chain([&self.half]);
        halves.any(|half| !half.rows.is_empty())
    }

    /// Takes the rows that readers do not see yet; the caller makes them visible.
    pub(crate) fn take_rows(&mut self) -> Vec<ObjectRow> {
        let full = self.full.as_mut().map(|full| &mut full.rows);
        let mut rows = full.map(std::mem::take).unwrap_or_default();
        rows.append(&mut self.half.rows);
        rows
    }

    /// Takes the full half's rows that readers do not see yet, and the extent to clear once they
    /// are merged.
    pub(crate) fn take_full(&mut self) -> Option<(Vec<ObjectRow>, Merged)> {
        let full = self.full.as_mut()?;
        Some((std::mem::take(&mut full.rows), full.merged(&self.file)))
    }

    /// Marks the full half as cleared.
    pub(crate) fn full_is_clear(&mut self) {
        let all_taken = self.full.as_ref().is_none_or(|full| full.rows.is_empty());
        assert!(
            all_taken,
            "a half is cleared with rows that nobody has taken"
        );
        self.full = None;
    }

    /// Clears the log; all entries are merged and durable.
    pub(crate) fn clear(&mut self) -> Result<()> {
        assert!(
            !self.has_rows(),
            "a log is cleared with rows that nobody has taken"
        );
        if let Some((_, merged)) = self.take_full() {
            merged.clear(FILL_WEIGHT)?;
            self.full = None;
        }
        if self.half.used > 0 {
            self.half.merged(&self.file).clear(FILL_WEIGHT)?;
        }
        self.half = Half::at(0);
        Ok(())
    }

    /// Leaves an empty file, as Swift does.
    pub(crate) fn close(self) -> Result<()> {
        let cut = self.file.file.file.set_len(0);
        cut.map_err(|error| IndexError::io(&self.file.path, error))
    }
}

impl RowLog for ExclusiveLog {
    fn open(db_file: &Path, config: &IndexConfig, held: &Arc<Held>) -> Result<Self> {
        let (path, file) = super::open_file(db_file)?;
        let file = LogFile {
            path,
            file: held.synced(file),
            held: Arc::clone(held),
        };
        let bytes_max = config.pending_bytes.next_multiple_of(SECTOR_BYTES);
        file.fill(0, 2 * bytes_max)?;
        Ok(ExclusiveLog {
            file: Arc::new(file),
            is_named: Arc::default(),
            bytes_max,
            half: Half::at(0),
            full: None,
        })
    }

    fn to_sync(&self) -> CommitLog {
        CommitLog::Pending(Arc::clone(&self.file.file), Arc::clone(&self.is_named))
    }

    fn is_empty(&self) -> bool {
        self.half.used == 0 && self.full.is_none()
    }

    fn since(&self) -> Option<Instant> {
        let half = self.full.as_ref().unwrap_or(&self.half);
        (!self.is_empty()).then_some(half.since)
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.half.used + bytes < self.bytes_max
    }

    fn add_rows(&mut self, rows: Vec<ObjectRow>) {
        self.half.rows.extend(rows);
    }
}

impl Merged {
    /// Overwrites the entries with colons; their rows are durable in the database.
    pub(crate) fn clear(&self, weight: SyncWeight) -> Result<()> {
        let LogFile { path, file, held } = &*self.file;
        self.file.fill(self.start, self.used)?;
        let synced = held.sync(&held.set_of(file, false, weight), weight);
        synced.map_err(|error| IndexError::io(path, error))
    }
}

impl LogFile {
    fn fill(&self, start: usize, bytes: usize) -> Result<()> {
        self.write_at(&vec![FILL_BYTE; bytes], start)
    }

    fn write_at(&self, bytes: &[u8], at: usize) -> Result<()> {
        let written = self.file.file.write_all_at(bytes, at as u64);
        written.map_err(|error| IndexError::io(&self.path, error))
    }
}
