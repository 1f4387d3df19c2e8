//! Write-ahead logging of rows: acknowledged by an entry in the pending file and merged later in
//! batches (`pending/log.rs`).
//!
//! Only rows in quick succession are logged. Readers have the log merged first, so that they see
//! all rows; any other change has the log cleared first, so that it never holds rows from before a
//! deletion or a reclaim. A log with entries left by a killed process is merged when the database
//! is opened.
//!
//! Merging only adds rows: meanwhile, rows of an exclusive database may be logged without the write
//! lock.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

use cairn_types::Timestamp;
use rusqlite::Connection;

use crate::config::IndexConfig;
use crate::db::commit::{self, Commit};
use crate::db::{Db, Opened, Update};
use crate::held::SyncWeight;
use crate::pending::{self, Log};
use crate::{IndexError, ObjectRow, Result};

/// Rows within this interval of the previous ones are logged. Ticks are 10 microseconds.
const BUSY_INTERVAL_TICKS: u64 = 10_000;

/// State of an open database's log.
#[derive(Default)]
pub(crate) struct Logged {
    log: Option<Log>,
    /// Whether the holder of the write lock only merges rows, so that others may log.
    is_merging: bool,
    /// Whether a half is full and no merge is scheduled.
    is_to_be_merged: bool,
    /// Time of the last rows.
    last_rows: Option<Timestamp>,
}

impl Logged {
    /// Whether rows that arrive now are logged.
    fn is_for_rows(&mut self, now: Timestamp) -> bool {
        let last = self.last_rows.replace(now);
        let is_busy = last.is_some_and(|last| {
            let since = now.ticks().checked_sub(last.ticks());
            since.is_some_and(|ticks| ticks < BUSY_INTERVAL_TICKS)
        });
        is_busy || self.log.as_ref().is_some_and(|log| !log.is_empty())
    }
}

type Updates = Vec<Box<dyn Update>>;

/// Guard of a merge, during which rows may be logged without the write lock.
struct Merging<'d>(&'d Db);

impl Drop for Merging<'_> {
    fn drop(&mut self) {
        self.0.logged().is_merging = false;
    }
}

impl Db {
    fn logged(&self) -> MutexGuard<'_, Logged> {
        self.logged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops the log's state; its entries stay in the file.
    pub(crate) fn forget_log(&self) {
        self.logged().log = None;
        self.is_behind.store(false, Ordering::Release);
    }

    /// Logs the updates, completed after the log's sync; or returns them for a transaction. The
    /// caller holds the write lock.
    pub(crate) fn log_rows(
        &self,
        config: &IndexConfig,
        conn: &Connection,
        opened: &Opened,
        mut updates: Updates,
        commits: &mut Vec<Commit>,
    ) -> Option<Updates> {
        if !opened.schema.known_triggers || !are_rows(&mut updates) {
            return Some(updates);
        }
        let mut logged = self.logged();
        if !logged.is_for_rows(config.now()) {
            return Some(updates);
        }
        let text = entries(&mut updates);
        match self.append(config, conn, opened, &mut logged, &text) {
            Ok(true) => self.commit_logged(opened, &mut logged, updates, commits),
            Ok(false) => Some(updates),
            Err(error) => {
                tracing::warn!(path = %opened.file.display(), %error, "a row was not logged");
                if logged.log.take().is_some_and(|log| !log.is_empty()) {
                    // Reopening the database merges the log's rows at once.
                    self.mark_for_reopen();
                }
                Some(updates)
            }
        }
    }

    /// As [`Db::log_rows`], without the write lock: beside a merge.
    pub(crate) fn log_rows_beside(
        &self,
        config: &IndexConfig,
        opened: &Opened,
        mut updates: Updates,
        commits: &mut Vec<Commit>,
    ) -> Option<Updates> {
        if !config.exclusive || !opened.schema.known_triggers || !are_rows(&mut updates) {
            return Some(updates);
        }
        let mut logged = self.logged();
        let is_merging = logged.is_merging;
        let Some(log) = logged.log.as_mut().filter(|_| is_merging) else {
            return Some(updates);
        };
        let text = entries(&mut updates);
        // An error recurs for, and is reported by, holders of the write lock.
        if !log.has_room(text.len()) || !log.append(&text).unwrap_or(false) {
            return Some(updates);
        }
        logged.last_rows = Some(config.now());
        self.commit_logged(opened, &mut logged, updates, commits)
    }

    /// Registers logged updates for the log's sync.
    fn commit_logged(
        &self,
        opened: &Opened,
        logged: &mut Logged,
        mut updates: Updates,
        commits: &mut Vec<Commit>,
    ) -> Option<Updates> {
        let log = logged.log.as_mut()?;
        for update in &mut updates {
            if let Some(rows) = update.object_rows() {
                log.add_rows(std::mem::take(rows));
            }
        }
        self.is_behind.store(true, Ordering::Release);
        commits.push(Commit {
            file: opened.file.as_path().into(),
            held: Arc::clone(&opened.held),
            log: log.to_sync(),
            waiting: updates.into_iter().map(|update| (update, Ok(()))).collect(),
        });
        None
    }

    /// Appends entries. False if they exceed the log, or another process keeps writing there.
    fn append(
        &self,
        config: &IndexConfig,
        conn: &Connection,
        opened: &Opened,
        logged: &mut Logged,
        text: &str,
    ) -> Result<bool> {
        let has_room = logged.log.as_ref().map(|log| log.has_room(text.len()));
        if has_room == Some(false) && logged.log.as_mut().is_some_and(Log::switch_half) {
            logged.is_to_be_merged = true;
        } else if has_room != Some(true) {
            self.settle(config, conn, opened, logged)?;
        }
        let log = match &mut logged.log {
            Some(log) => log,
            None => logged
                .log
                .insert(Log::open(&opened.file, config, &opened.held)?),
        };
        if !log.has_room(text.len()) {
            return Ok(false);
        }
        if log.append(text)? {
            return Ok(true);
        }
        self.settle(config, conn, opened, logged)?;
        match &mut logged.log {
            Some(log) => log.append(text),
            None => Ok(false),
        }
    }

    /// Merges all pending rows durably, and clears the log.
    pub(crate) fn settle_log(
        &self,
        config: &IndexConfig,
        conn: &Connection,
        opened: &Opened,
    ) -> Result<()> {
        self.settle(config, conn, opened, &mut self.logged())
    }

    fn settle(
        &self,
        config: &IndexConfig,
        conn: &Connection,
        opened: &Opened,
        logged: &mut Logged,
    ) -> Result<()> {
        if !config.exclusive {
            let broker = self.broker(config, conn, opened.schema, false);
            let ours = logged.log.as_ref().map(Log::ours);
            pending::merge_pending(broker, &opened.file, &opened.held, &self.gate, ours)?;
        } else if let Some(log) = logged.log.as_mut().filter(|log| !log.is_empty()) {
            self.merge(config, conn, opened, log.take_rows())?;
            let (weight, is_named) = (SyncWeight::ROWS, &opened.log_is_named);
            commit::sync_now(&opened.held, weight, is_named)
                .map_err(|error| IndexError::io(&opened.file, error))?;
        }
        if let Some(log) = &mut logged.log {
            log.clear()?;
        }
        self.is_behind.store(false, Ordering::Release);
        Ok(())
    }

    /// Merges the rows of an exclusive database's log for readers; not synced, the log is the
    /// durable copy.
    pub(crate) fn show_logged(
        &self,
        config: &IndexConfig,
        conn: &Connection,
        opened: &Opened,
    ) -> Result<()> {
        let (merging, rows) = {
            let mut logged = self.logged();
            let rows = logged.log.as_mut().map(Log::take_rows);
            logged.is_merging = true;
            (Merging(self), rows.unwrap_or_default())
        };
        self.merge(config, conn, opened, rows)?;
        self.set_shown();
        drop(merging);
        Ok(())
    }

    /// Notes that the rows taken from the log are merged.
    fn set_shown(&self) {
        let logged = self.logged();
        let has_rows = logged.log.as_ref().is_some_and(Log::has_rows);
        self.is_behind.store(has_rows, Ordering::Release);
    }

    /// Whether a half must be merged; true once per half.
    pub(crate) fn is_half_full(&self) -> bool {
        std::mem::take(&mut self.logged().is_to_be_merged)
    }

    /// Merges the full half of an exclusive database's log durably, and clears it.
    pub(crate) fn merge_half(&self, config: &IndexConfig) -> Result<()> {
        let mut writer = self.row_writer();
        if !self.has_log() {
            return Ok(());
        }
        let opened = self.open(config, &mut writer)?;
        self.or_close(&mut writer, |conn| self.merge_full(config, conn, &opened))
    }

    /// Runs `work`; after an error or a panic the database is closed, and its next user merges the
    /// log's file.
    pub(crate) fn or_close(
        &self,
        writer: &mut Option<Connection>,
        work: impl FnOnce(&Connection) -> Result<()>,
    ) -> Result<()> {
        let Some(conn) = writer.as_ref() else {
            return Ok(());
        };
        let worked = catch_unwind(AssertUnwindSafe(|| work(conn))).unwrap_or_else(|_| {
            tracing::error!(hash = %self.key.hash.hex(), "a merge of rows panicked");
            Err(IndexError::Closed)
        });
        if let Err(error) = &worked {
            self.forget_after(error, writer);
        }
        worked
    }

    fn merge_full(&self, config: &IndexConfig, conn: &Connection, opened: &Opened) -> Result<()> {
        let (merging, rows, merged) = {
            let mut logged = self.logged();
            let full = logged.log.as_mut().and_then(Log::take_full);
            let Some((rows, merged)) = full else {
                return Ok(());
            };
            logged.is_merging = true;
            (Merging(self), rows, merged)
        };
        self.merge(config, conn, opened, rows)?;
        self.set_shown();
        let (weight, is_named) = (SyncWeight::Unawaited, &opened.log_is_named);
        commit::sync_now(&opened.held, weight, is_named)
            .map_err(|error| IndexError::io(&opened.file, error))?;
        merged.clear(SyncWeight::Unawaited)?;
        if let Some(log) = &mut self.logged().log {
            log.full_is_clear();
        }
        drop(merging);
        Ok(())
    }

    fn merge(
        &self,
        config: &IndexConfig,
        conn: &Connection,
        opened: &Opened,
        rows: Vec<ObjectRow>,
    ) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        pending::merge_rows(self.broker(config, conn, opened.schema, false), rows)
    }

    /// Time of the log's oldest entry; none also while a writer has the log locked.
    pub(crate) fn logged_since(&self) -> Option<Instant> {
        let logged = self.logged.try_lock().ok()?;
        logged.log.as_ref()?.since()
    }

    pub(crate) fn has_log(&self) -> bool {
        self.logged().log.is_some()
    }

    /// Merges the log, and reports an error. Rows that could not be merged stay in the file until
    /// the database is opened again.
    pub(crate) fn or_log_error(&self, merge: impl FnOnce() -> Result<()>) {
        if let Err(error) = merge() {
            tracing::error!(hash = %self.key.hash.hex(), %error, "a log of rows is not merged");
        }
    }

    /// Merges logged rows. With `close` it removes the log: the database is one file again.
    pub(crate) fn merge_log(&self, config: &IndexConfig, close: bool) -> Result<()> {
        let mut writer = self.writer()?;
        if !self.has_log() {
            return Ok(());
        }
        let opened = self.open(config, &mut writer)?;
        self.or_close(&mut writer, |conn| self.settle_log(config, conn, &opened))?;
        let log = close.then(|| self.logged().log.take()).flatten();
        log.map_or(Ok(()), Log::close)
    }
}

fn are_rows(updates: &mut Updates) -> bool {
    let mut updates = updates.iter_mut();
    updates.all(|update| update.object_rows().is_some())
}

/// The log entries of these updates.
fn entries(updates: &mut Updates) -> String {
    let rows = updates.iter_mut().filter_map(|update| update.object_rows());
    pending::entries(rows.flat_map(|rows| rows.iter()))
}
