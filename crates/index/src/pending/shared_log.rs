//! The pending file of a shared database as a log of rows: entries are appended under the folder's
//! lock, as by Swift's servers, which may append at the same time.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use cairn_device::SyncedFile;

use crate::config::IndexConfig;
use crate::held::{CommitLog, Held};
use crate::pending::RowLog;
use crate::{IndexError, ObjectRow, Result, files};

/// The capacity is a multiple of this, in bytes.
const BYTES_STEP: usize = 512;

/// The pending file of one open database, and what this process wrote there.
pub(crate) struct SharedLog {
    path: PathBuf,
    file: Arc<SyncedFile>,
    /// Whether its size and its name are durable.
    is_named: Arc<AtomicBool>,
    bytes_max: usize,
    /// All bytes written by us, to detect those of others.
    written: Vec<u8>,
    /// The rows of these.
    rows: Vec<ObjectRow>,
    /// Time of the first entry.
    since: Instant,
}

impl SharedLog {
    /// Writes entries without a sync. False if other processes wrote there; pending entries must be
    /// merged first.
    pub(crate) fn append(&mut self, text: &str) -> Result<bool> {
        if self.written.is_empty() {
            self.since = Instant::now();
        }
        let path = &self.path;
        let _lock = files::lock_folder(path.parent().unwrap_or(path), super::LOCK_TIMEOUT)?;
        let meta = self.file.file.metadata();
        let meta = meta.map_err(|error| IndexError::io(path, error))?;
        let end = self.written.len() as u64;
        if meta.nlink() == 0 || meta.len() != end {
            return Ok(false);
        }
        let written = self.file.file.write_all_at(text.as_bytes(), end);
        written.map_err(|error| IndexError::io(path, error))?;
        self.written.extend(text.as_bytes());
        Ok(true)
    }

    /// The bytes written by this process, and their rows.
    pub(crate) fn ours(&self) -> (&[u8], &[ObjectRow]) {
        (&self.written, &self.rows)
    }

    /// Clears the log: the file was merged and truncated.
    pub(crate) fn clear(&mut self) {
        self.written.clear();
        self.rows.clear();
    }
}

impl RowLog for SharedLog {
    fn open(db_file: &Path, config: &IndexConfig, held: &Arc<Held>) -> Result<Self> {
        let (path, file) = super::open_file(db_file)?;
        Ok(SharedLog {
            path,
            file: held.synced(file),
            is_named: Arc::default(),
            bytes_max: config.pending_bytes.next_multiple_of(BYTES_STEP),
            written: Vec::new(),
            rows: Vec::new(),
            since: Instant::now(),
        })
    }

    fn to_sync(&self) -> CommitLog {
        CommitLog::Pending(Arc::clone(&self.file), Arc::clone(&self.is_named))
    }

    fn is_empty(&self) -> bool {
        self.written.is_empty()
    }

    fn since(&self) -> Option<Instant> {
        (!self.is_empty()).then_some(self.since)
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.written.len() + bytes < self.bytes_max
    }

    fn add_rows(&mut self, rows: Vec<ObjectRow>) {
        self.rows.extend(rows);
    }
}
