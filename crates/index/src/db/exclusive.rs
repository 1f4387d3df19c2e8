//! Writer of a database that this process alone has open, and its pending file as a log of rows.
//!
//! The database is in SQLite's WAL mode, and commits are synced by their committer, many at once. Rows
//! may be logged without the write lock while another thread merges: merging only adds rows.
//!
//! Appending an entry to the log and syncing it costs a fraction of a transaction; hundreds of rows
//! are then merged by one. The file is preallocated with colons, which are padding, and written in
//! place: its size does not change, so a sync writes the entries alone and no file-system metadata.
//! Merged entries become colons again, synced before others take their place: a torn write then leaves
//! an entry cut short by colons, never a mix of two. The file has two halves: while a full one is
//! merged, entries go to the other.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use cairn_device::{Debt, SyncedFile};
use rusqlite::Connection;

use super::backed::Backed;
use super::group_commit::{self, Commit};
use super::logged::{self, Logged};
use super::transaction::run;
use super::writer::{Applied, Updates};
use super::{Db, Opened, Writing};
use crate::broker::Broker;
use crate::config::IndexConfig;
use crate::held::{CommitLog, Held, SyncMode};
use crate::pending::{self, RowLog};
use crate::rank::{Rank, Ranked};
use crate::{IndexError, ObjectRow, Result, files};

/// Minimum write size of a disk, in bytes: acknowledged entries are not rewritten with later ones.
const SECTOR_BYTES: usize = 512;
const FILL_BYTE: u8 = b':';

pub(crate) struct ExclusiveWriter {
    /// Whether the log has rows that readers do not see yet.
    is_behind: AtomicBool,
    logged: Ranked<Halves>,
    /// Rows that are not in the log.
    pub(crate) backed: Backed,
}

/// The log with its two halves.
#[derive(Default)]
struct Halves {
    rows: Logged<ExclusiveLog>,
    /// Whether the holder of the write lock only merges rows, so that others may log.
    is_merging: bool,
    /// Whether a half is full and no merge is scheduled.
    is_to_be_merged: bool,
}

/// Guard of a merge, during which rows may be logged without the write lock.
struct Merging<'w>(&'w ExclusiveWriter);

impl Drop for Merging<'_> {
    fn drop(&mut self) {
        self.0.logged.lock().is_merging = false;
    }
}

impl ExclusiveWriter {
    pub(super) fn new() -> Self {
        ExclusiveWriter {
            is_behind: AtomicBool::new(false),
            logged: Ranked::new(Rank::Log, Halves::default()),
            backed: Backed::new(),
        }
    }

    /// Only this process makes files of later epochs, and closes the database for that.
    pub(super) fn is_in_place(&self, opened: &Opened) -> Result<bool> {
        Ok(files::identity(&opened.file)? == Some(opened.identity))
    }

    pub(super) fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::Acquire) || self.backed.is_behind()
    }

    pub(super) fn note_unmerged(&self) {
        self.is_behind.store(true, Ordering::Release);
    }

    pub(super) fn merge_left(&self, broker: Broker<'_>, file: &Path, held: &Held) -> Result<()> {
        pending::merge_left(broker, file, || {
            // Rows must be durable in the database before they are removed from the pending file.
            let is_named = AtomicBool::new(false);
            group_commit::sync_now(held, SyncMode::Grouped, &is_named)
                .map_err(|error| IndexError::io(file, error))
        })
    }

    pub(super) fn commit(&self, conn: &Connection) -> Result<()> {
        run(conn, "COMMIT")
    }

    /// The commit, which is not durable before its sync.
    pub(super) fn to_sync(&self, opened: &Opened, waiting: Vec<Applied>) -> Commit {
        Commit {
            file: opened.file.as_path().into(),
            held: opened.held.clone(),
            log: CommitLog::Wal(opened.log_is_named.clone()),
            waiting,
        }
    }

    pub(super) fn log_rows(
        &self,
        writing: Writing<'_>,
        mut updates: Updates,
        commits: &mut Vec<Commit>,
    ) -> Option<Updates> {
        if !logged::are_for_log(writing.opened, &mut updates) {
            return Some(updates);
        }
        let mut halves = self.logged.lock();
        let Halves {
            rows,
            is_to_be_merged,
            ..
        } = &mut *halves;
        let append = |logged: &mut _, text: &str| {
            let appended = self.append(writing, logged, is_to_be_merged, text);
            appended.inspect(|is_logged| self.note_logged(*is_logged))
        };
        rows.log_rows(writing, updates, commits, append)
    }

    /// Logs without the write lock, while its holder merges; or returns the updates.
    pub(super) fn log_beside(
        &self,
        config: &IndexConfig,
        opened: &Opened,
        mut updates: Updates,
        commits: &mut Vec<Commit>,
    ) -> Option<Updates> {
        if !logged::are_for_log(opened, &mut updates) {
            return Some(updates);
        }
        let mut halves = self.logged.lock();
        let is_merging = halves.is_merging;
        let Some(log) = halves.rows.log.as_mut().filter(|_| is_merging) else {
            return Some(updates);
        };
        let text = logged::entries(&mut updates);
        // An error recurs for, and is reported by, holders of the write lock.
        if !log.has_room(text.len()) || log.append(&text).is_err() {
            return Some(updates);
        }
        self.note_logged(true);
        halves.rows.note_rows(config.now());
        halves.rows.commit(opened, updates, commits)
    }

    fn note_logged(&self, is_logged: bool) {
        if is_logged {
            self.is_behind.store(true, Ordering::Release);
        }
    }

    /// Appends entries. False if they exceed the log.
    fn append(
        &self,
        writing: Writing<'_>,
        logged: &mut Logged<ExclusiveLog>,
        is_to_be_merged: &mut bool,
        text: &str,
    ) -> Result<bool> {
        let has_room = logged.log.as_ref().map(|log| log.has_room(text.len()));
        if has_room == Some(false) && logged.log.as_mut().is_some_and(ExclusiveLog::switch_half) {
            *is_to_be_merged = true;
        } else if has_room != Some(true) {
            self.settle_rows(writing, logged)?;
        }
        let log = logged.opened(writing)?;
        if !log.has_room(text.len()) {
            return Ok(false);
        }
        log.append(text).map(|()| true)
    }

    pub(super) fn settle(&self, writing: Writing<'_>) -> Result<()> {
        self.settle_rows(writing, &mut self.logged.lock().rows)
    }

    fn settle_rows(&self, writing: Writing<'_>, logged: &mut Logged<ExclusiveLog>) -> Result<()> {
        let log = logged.log.as_mut().filter(|log| !log.is_empty());
        if log.is_some() || !self.backed.is_empty() {
            let (rows, mut debts) = self.backed.take_all();
            let logged = log.map(ExclusiveLog::take_rows).unwrap_or_default();
            merge(writing, logged, rows)?;
            debts.append(&mut self.backed.take_shown());
            sync_merged(writing.opened, SyncMode::Grouped)?;
            debts.into_iter().for_each(Debt::settle);
        }
        if let Some(log) = &mut logged.log {
            log.clear()?;
        }
        self.is_behind.store(false, Ordering::Release);
        Ok(())
    }

    /// Merges the log's rows for readers; not synced, the log is the durable copy.
    pub(super) fn show(&self, writing: Writing<'_>) -> Result<()> {
        let (merging, rows) = {
            let mut halves = self.logged.lock();
            let rows = halves.rows.log.as_mut().map(ExclusiveLog::take_rows);
            halves.is_merging = true;
            (Merging(self), rows.unwrap_or_default())
        };
        let (backed, debts) = self.backed.take_all();
        merge(writing, rows, backed)?;
        self.backed.note_shown(debts);
        self.set_shown();
        drop(merging);
        Ok(())
    }

    /// Notes that the rows taken from the log are merged.
    fn set_shown(&self) {
        let halves = self.logged.lock();
        let log = halves.rows.log.as_ref();
        let has_rows = log.is_some_and(ExclusiveLog::has_rows);
        self.is_behind.store(has_rows, Ordering::Release);
    }

    /// Whether a half must be merged; true once per half.
    pub(crate) fn is_half_full(&self) -> bool {
        std::mem::take(&mut self.logged.lock().is_to_be_merged)
    }

    /// Merges the full half of the log of `db`, of which this is the writer, durably, and clears it.
    pub(crate) fn merge_half(&self, db: &Db, config: &IndexConfig) -> Result<()> {
        let mut lock = db.connection.lock();
        if !self.has_log() {
            return Ok(());
        }
        let opened = db.open(config, &mut lock)?;
        db.or_close(&mut lock, |conn| {
            self.merge_full(db.writing(config, conn, &opened))
        })
    }

    fn merge_full(&self, writing: Writing<'_>) -> Result<()> {
        let (merging, rows, merged) = {
            let mut halves = self.logged.lock();
            let full = halves.rows.log.as_mut().and_then(ExclusiveLog::take_full);
            let Some((rows, merged)) = full else {
                return Ok(());
            };
            halves.is_merging = true;
            (Merging(self), rows, merged)
        };
        let (backed, mut debts) = self.backed.take_all();
        merge(writing, rows, backed)?;
        self.set_shown();
        debts.append(&mut self.backed.take_shown());
        sync_merged(writing.opened, SyncMode::Alone)?;
        debts.into_iter().for_each(Debt::settle);
        merged.clear(SyncMode::Alone)?;
        if let Some(log) = &mut self.logged.lock().rows.log {
            log.full_is_clear();
        }
        drop(merging);
        Ok(())
    }

    /// Merges the rows of `db`, of which this is the writer, that are not in its log, durably.
    pub(crate) fn merge_backed(&self, db: &Db, config: &IndexConfig) -> Result<()> {
        let mut lock = db.connection.lock();
        if self.backed.is_empty() {
            return Ok(());
        }
        let opened = db.open(config, &mut lock)?;
        db.or_close(&mut lock, |conn| {
            self.merge_memory(db.writing(config, conn, &opened))
        })
    }

    fn merge_memory(&self, writing: Writing<'_>) -> Result<()> {
        let merging = {
            self.logged.lock().is_merging = true;
            Merging(self)
        };
        let (rows, mut debts) = self.backed.take_all();
        merge(writing, Vec::new(), rows)?;
        debts.append(&mut self.backed.take_shown());
        sync_merged(writing.opened, SyncMode::Alone)?;
        debts.into_iter().for_each(Debt::settle);
        drop(merging);
        Ok(())
    }

    pub(super) fn forget_log(&self) {
        self.backed.forget_shown();
        self.logged.lock().rows.log = None;
        self.is_behind.store(false, Ordering::Release);
    }

    /// Leaves an empty file, as Swift does.
    pub(super) fn close_log(&self) -> Result<()> {
        let log = self.logged.lock().rows.log.take();
        log.map_or(Ok(()), ExclusiveLog::close)
    }

    pub(super) fn has_log(&self) -> bool {
        self.logged.lock().rows.log.is_some() || !self.backed.is_empty()
    }

    pub(super) fn logged_since(&self) -> Option<Instant> {
        self.logged.try_lock()?.rows.since()
    }
}

/// Merges rows of the log, and rows that came beside it.
fn merge(writing: Writing<'_>, mut rows: Vec<ObjectRow>, backed: Vec<ObjectRow>) -> Result<()> {
    rows.extend(backed);
    if rows.is_empty() {
        return Ok(());
    }
    pending::merge_rows(writing.broker(), rows)
}

/// Makes merged rows durable in the database.
fn sync_merged(opened: &Opened, mode: SyncMode) -> Result<()> {
    group_commit::sync_now(&opened.held, mode, &opened.log_is_named)
        .map_err(|error| IndexError::io(&opened.file, error))
}

/// The pending file of one open database.
struct ExclusiveLog {
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
struct Merged {
    file: Arc<LogFile>,
    start: usize,
    used: usize,
}

impl ExclusiveLog {
    /// Switches to the other half, if it is free; the current one is then to be merged.
    fn switch_half(&mut self) -> bool {
        if self.full.is_some() || self.half.used == 0 {
            return false;
        }
        let other = Half::at(self.bytes_max - self.half.start);
        self.full = Some(std::mem::replace(&mut self.half, other));
        true
    }

    /// Writes entries without a sync.
    fn append(&mut self, text: &str) -> Result<()> {
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
    fn has_rows(&self) -> bool {
        let mut halves = self.full.iter().chain([&self.half]);
        halves.any(|half| !half.rows.is_empty())
    }

    /// Takes the rows that readers do not see yet; the caller makes them visible.
    fn take_rows(&mut self) -> Vec<ObjectRow> {
        let full = self.full.as_mut().map(|full| &mut full.rows);
        let mut rows = full.map(std::mem::take).unwrap_or_default();
        rows.append(&mut self.half.rows);
        rows
    }

    /// Takes the full half's rows that readers do not see yet, and the extent to clear once they
    /// are merged.
    fn take_full(&mut self) -> Option<(Vec<ObjectRow>, Merged)> {
        let full = self.full.as_mut()?;
        Some((std::mem::take(&mut full.rows), full.merged(&self.file)))
    }

    /// Marks the full half as cleared.
    fn full_is_clear(&mut self) {
        let all_taken = self.full.as_ref().is_none_or(|full| full.rows.is_empty());
        assert!(
            all_taken,
            "a half is cleared with rows that nobody has taken"
        );
        self.full = None;
    }

    /// Clears the log; all entries are merged and durable.
    fn clear(&mut self) -> Result<()> {
        assert!(
            !self.has_rows(),
            "a log is cleared with rows that nobody has taken"
        );
        if let Some((_, merged)) = self.take_full() {
            merged.clear(SyncMode::Grouped)?;
            self.full = None;
        }
        if self.half.used > 0 {
            self.half.merged(&self.file).clear(SyncMode::Grouped)?;
        }
        self.half = Half::at(0);
        Ok(())
    }

    /// Leaves an empty file, as Swift does.
    fn close(self) -> Result<()> {
        let cut = self.file.file.file.set_len(0);
        cut.map_err(|error| IndexError::io(&self.file.path, error))
    }
}

impl RowLog for ExclusiveLog {
    fn open(db_file: &Path, config: &IndexConfig, held: &Arc<Held>) -> Result<Self> {
        let (path, file) = pending::open_file(db_file)?;
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
    fn clear(&self, mode: SyncMode) -> Result<()> {
        let LogFile { path, file, held } = &*self.file;
        self.file.fill(self.start, self.used)?;
        let synced = held.sync(&held.set_of(file, false), mode);
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
