//! Rows that are acknowledged by an entry in the pending file and merged later, many at a time
//! (`pending/log.rs`).
//!
//! Only rows that closely follow others go there. Who reads the database has them merged first,
//! so that nobody sees it without them; who changes anything else has the log cleared first, so
//! that it never holds a row from before a deletion or a reclaim. A log that is left with entries
//! (the process was killed) is merged when the database is opened.

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::Instant;

use cairn_types::Timestamp;
use rusqlite::Connection;

use crate::config::IndexConfig;
use crate::db::{Db, Opened, Update};
use crate::deferred::{self, Commit};
use crate::pending::{self, Log};
use crate::{ObjectRow, Result};

/// Rows that come so soon after others are logged. 10 microseconds each.
const BUSY_TICKS: u64 = 10_000;

/// The log of an open database.
#[derive(Default)]
pub(crate) struct Logged {
    log: Option<Log>,
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
        mut updates: Vec<Box<dyn Update>>,
    ) -> Option<Vec<Box<dyn Update>>> {
        let is_rows = |update: &mut Box<dyn Update>| update.object_rows().is_some();
        if !opened.schema.known_triggers || !updates.iter_mut().all(is_rows) {
            return Some(updates);
        }
        let mut logged = self.logged();
        if !logged.is_for_rows(config.now()) {
            return Some(updates);
        }
        let rows = updates.iter_mut().filter_map(|update| update.object_rows());
        let text = pending::entries(rows.flat_map(|rows| rows.iter()));
        match self.append(config, conn, opened, &mut logged, &text) {
            Ok(true) => {}
            Ok(false) => return Some(updates),
            Err(error) => {
                tracing::warn!(path = %opened.file.display(), %error, "a row was not logged");
                if logged.log.take().is_some_and(|log| !log.is_empty()) {
                    // What it has is merged when the database is opened anew: at once.
                    self.open_anew();
                }
                return Some(updates);
            }
        }
        let log = logged.log.as_mut()?;
        for update in &mut updates {
            if let Some(rows) = update.object_rows() {
                log.add_rows(std::mem::take(rows));
            }
        }
        self.is_behind.store(true, Ordering::Release);
        deferred::push(Commit {
            file: opened.file.as_path().into(),
            log: log.to_sync(),
            sync: config.commit_sync.clone(),
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
        if has_room != Some(true) {
            self.settle(config, conn, opened, logged)?;
        }
        let log = match &mut logged.log {
            Some(log) => log,
            None => logged.log.insert(Log::open(&opened.file, config)?),
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
            pending::merge_pending(broker, &opened.file, Some(&self.gate), ours)?;
        } else if logged.log.as_ref().is_some_and(|log| !log.is_empty()) {
            self.merge_logged(config, conn, opened, logged)?;
            deferred::sync_now(config, &opened.file, &opened.log_is_named)?;
        }
        if let Some(log) = &mut logged.log {
            log.clear(config)?;
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
        self.merge_logged(config, conn, opened, &mut self.logged())
    }

    fn merge_logged(
        &self,
        config: &IndexConfig,
        conn: &Connection,
        opened: &Opened,
        logged: &mut Logged,
    ) -> Result<()> {
        let rows: Vec<ObjectRow> = logged.log.as_mut().map(Log::take_rows).unwrap_or_default();
        if !rows.is_empty() {
            let broker = self.broker(config, conn, opened.schema, false);
            pending::merge_rows(broker, rows)?;
        }
        self.is_behind.store(false, Ordering::Release);
        Ok(())
    }

    /// Since when the log has entries; none, too, while somebody writes to it.
    pub(crate) fn logged_since(&self) -> Option<Instant> {
        let logged = self.logged.try_lock().ok()?;
        logged.log.as_ref()?.since()
    }

    pub(crate) fn has_log(&self) -> bool {
        self.logged().log.is_some()
    }

    /// Merges what is logged. With `close` it leaves no log behind: the database is one file again.
    pub(crate) fn merge_log(&self, config: &IndexConfig, close: bool) -> Result<()> {
        let mut writer = self.writer()?;
        if !self.has_log() {
            return Ok(());
        }
        let opened = self.open(config, &mut writer)?;
        if let Some(conn) = writer.as_ref() {
            let settled = self.settle_log(config, conn, &opened);
            if settled.is_err() {
                self.forget(&mut writer);
            }
            settled?;
        }
        let log = close.then(|| self.logged().log.take()).flatten();
        log.map_or(Ok(()), Log::close)
    }
}
