//! Rows that are acknowledged by an entry in the pending file and merged later, many at a time
//! (`pending/log.rs`).
//!
//! Only rows that closely follow others go there. Who reads the database has them merged first,
//! so that nobody sees it without them; who changes anything else has the log cleared first, so
//! that it never holds a row from before a deletion or a reclaim. A log that is left with entries
//! (the process was killed) is merged when the database is opened.
//!
//! Merging only adds rows: while it is done to an exclusive database, others may be logged beside
//! it, without the right to write.

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

/// Rows that come so soon after others are logged. 10 microseconds each.
const BUSY_TICKS: u64 = 10_000;

/// The log of an open database.
#[derive(Default)]
pub(crate) struct Logged {
    log: Option<Log>,
    /// Who has the right to write is merging rows, and does nothing else: others may be logged.
    is_merging: bool,
    /// A half of the log has become full, and nobody merges it yet.
    is_to_be_merged: bool,
    /// When rows came last.
    last_rows: Option<Timestamp>,
}

impl Logged {
    /// Do rows that come now go to the log?
    fn is_for_rows(&mut self, now: Timestamp) -> bool {
        let last = self.last_rows.replace(now);
        let is_busy = last.is_some_and(|last| {
            let since = now.ticks().checked_sub(last.ticks());
            since.is_some_and(|ticks| ticks < BUSY_TICKS)
        });
        is_busy || self.log.as_ref().is_some_and(|log| !log.is_empty())
    }
}

type Updates = Vec<Box<dyn Update>>;

/// As long as it lives, rows may be logged by those who have no right to write.
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

    /// The log belongs to what is open: its entries stay in the file.
    pub(crate) fn forget_log(&self) {
        self.logged().log = None;
        self.is_behind.store(false, Ordering::Release);
    }

    /// Logs the updates, to be answered once that is synced; or gives them back, to be made one
    /// transaction. The caller holds the right to write.
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
                    // What it has is merged when the database is opened anew: at once.
                    self.open_anew();
                }
                Some(updates)
            }
        }
    }

    /// As [`Db::log_rows`], for a caller without the right to write: beside a merge.
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
        // What fails here is seen, and told, by those who may write.
        if !log.has_room(text.len()) || !log.append(&text).unwrap_or(false) {
            return Some(updates);
        }
        logged.last_rows = Some(config.now());
        self.commit_logged(opened, &mut logged, updates, commits)
    }

    /// The updates are entries of the log now: those who wait for them hear of its sync.
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

    /// False: that is too much for a log, or another process writes there all the time.
    fn append(
        &self,
        config: &IndexConfig,
        conn: &Connection,
        opened: &Opened,
        logged: &mut Logged,
        text: &str,
    ) -> Result<bool> {
        let has_room = logged.log.as_ref().map(|log| log.has_room(text.len()));
        if has_room == Some(false) && logged.log.as_mut().is_some_and(Log::turn) {
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

    /// Merges all that is pending, on disk, and clears the log.
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

    /// Shows readers the rows of an exclusive database's log. What is on disk of them is the log.
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

    /// What was taken from the log is merged.
    fn set_shown(&self) {
        let logged = self.logged();
        let has_rows = logged.log.as_ref().is_some_and(Log::has_rows);
        self.is_behind.store(has_rows, Ordering::Release);
    }

    /// Is a half of the log to be merged? Says so once.
    pub(crate) fn is_half_full(&self) -> bool {
        std::mem::take(&mut self.logged().is_to_be_merged)
    }

    /// Merges the half of an exclusive database's log that is full, on disk, and clears it.
    pub(crate) fn merge_half(&self, config: &IndexConfig) -> Result<()> {
        let mut writer = self.row_writer();
        if !self.has_log() {
            return Ok(());
        }
        let opened = self.open(config, &mut writer)?;
        self.or_forget(&mut writer, |conn| self.merge_full(config, conn, &opened))
    }

    /// Where the work fails, a panic among that, the database is opened anew by whoever comes next,
    /// and what the file of the log has is merged then.
    pub(crate) fn or_forget(
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

    /// Since when the log has entries; none, too, while somebody writes to it.
    pub(crate) fn logged_since(&self) -> Option<Instant> {
        let logged = self.logged.try_lock().ok()?;
        logged.log.as_ref()?.since()
    }

    pub(crate) fn has_log(&self) -> bool {
        self.logged().log.is_some()
    }

    /// Merges the log. What cannot be merged stays in the file of it until the database is opened again.
    pub(crate) fn or_say(&self, merge: impl FnOnce() -> Result<()>) {
        if let Err(error) = merge() {
            tracing::error!(hash = %self.key.hash.hex(), %error, "a log of rows is not merged");
        }
    }

    /// Merges what is logged. With `close` it leaves no log behind: the database is one file again.
    pub(crate) fn merge_log(&self, config: &IndexConfig, close: bool) -> Result<()> {
        let mut writer = self.writer()?;
        if !self.has_log() {
            return Ok(());
        }
        let opened = self.open(config, &mut writer)?;
        self.or_forget(&mut writer, |conn| self.settle_log(config, conn, &opened))?;
        let log = close.then(|| self.logged().log.take()).flatten();
        log.map_or(Ok(()), Log::close)
    }
}

fn are_rows(updates: &mut Updates) -> bool {
    let mut updates = updates.iter_mut();
    updates.all(|update| update.object_rows().is_some())
}

/// What the log says of them.
fn entries(updates: &mut Updates) -> String {
    let rows = updates.iter_mut().filter_map(|update| update.object_rows());
    pending::entries(rows.flat_map(|rows| rows.iter()))
}
