//! Writer of a database that this process alone has open.
//!
//! It is in SQLite's WAL mode, and commits are synced by their committer, many at once. Rows may be
//! logged without the write lock while another thread merges: merging only adds rows.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rusqlite::Connection;

use super::commit::{self, Commit};
use super::logged::{self, Logged};
use super::transaction::run;
use super::writer::{Applied, Updates};
use super::{Db, Opened, Writing};
use crate::broker::Broker;
use crate::config::IndexConfig;
use crate::held::{CommitLog, Held, SyncWeight};
use crate::pending::{self, ExclusiveLog, RowLog};
use crate::rank::{Rank, Ranked};
use crate::{IndexError, ObjectRow, Result, files};

pub(crate) struct ExclusiveWriter {
    /// Whether the log has rows that readers do not see yet.
    is_behind: AtomicBool,
    logged: Ranked<Halves>,
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
        }
    }

    /// Only this process makes files of later epochs, and closes the database for that.
    pub(super) fn is_in_place(&self, opened: &Opened) -> Result<bool> {
        Ok(files::identity(&opened.file)? == Some(opened.identity))
    }

    pub(super) fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::Acquire)
    }

    pub(super) fn note_unmerged(&self) {
        self.is_behind.store(true, Ordering::Release);
    }

    pub(super) fn merge_left(&self, broker: Broker<'_>, file: &Path, held: &Held) -> Result<()> {
        pending::merge_left(broker, file, || {
            // Rows must be durable in the database before they are removed from the pending file.
            let is_named = AtomicBool::new(false);
            commit::sync_now(held, SyncWeight::ROWS, &is_named)
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
        if let Some(log) = logged.log.as_mut().filter(|log| !log.is_empty()) {
            merge(writing, log.take_rows())?;
            sync_merged(writing.opened, SyncWeight::ROWS)?;
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
        merge(writing, rows)?;
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
        merge(writing, rows)?;
        self.set_shown();
        sync_merged(writing.opened, SyncWeight::Unawaited)?;
        merged.clear(SyncWeight::Unawaited)?;
        if let Some(log) = &mut self.logged.lock().rows.log {
            log.full_is_clear();
        }
        drop(merging);
        Ok(())
    }

    pub(super) fn forget_log(&self) {
        self.logged.lock().rows.log = None;
        self.is_behind.store(false, Ordering::Release);
    }

    /// Leaves an empty file, as Swift does.
    pub(super) fn close_log(&self) -> Result<()> {
        let log = self.logged.lock().rows.log.take();
        log.map_or(Ok(()), ExclusiveLog::close)
    }

    pub(super) fn has_log(&self) -> bool {
        self.logged.lock().rows.log.is_some()
    }

    pub(super) fn logged_since(&self) -> Option<Instant> {
        self.logged.try_lock()?.rows.since()
    }
}

fn merge(writing: Writing<'_>, rows: Vec<ObjectRow>) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    pending::merge_rows(writing.broker(), rows)
}

/// Makes merged rows durable in the database.
fn sync_merged(opened: &Opened, weight: SyncWeight) -> Result<()> {
    commit::sync_now(&opened.held, weight, &opened.log_is_named)
        .map_err(|error| IndexError::io(&opened.file, error))
}
