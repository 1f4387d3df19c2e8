//! Write-ahead logging of rows: acknowledged by an entry in the pending file and merged later in
//! batches (`pending/shared_log.rs`, `exclusive.rs`).
//!
//! Only rows in quick succession are logged. Readers have the log merged first, so that they see
//! all rows; any other change has the log cleared first, so that it never holds rows from before a
//! deletion or a reclaim. A log with entries left by a killed process is merged when the database
//! is opened.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_types::Timestamp;
use cairn_types::dilation::dilated;
use cairn_types::heuristic::Heuristic;
use rusqlite::Connection;

use super::group_commit::Commit;
use super::writer::{Updates, Writer};
use super::{Db, Opened, Writing};
use crate::config::IndexConfig;
use crate::pending::{self, RowLog};
use crate::{IndexError, Result};

/// Rows within this interval of the previous ones are logged.
const BUSY_INTERVAL: Duration = Duration::from_millis(100);

/// Ticks of 10 microseconds.
fn busy_ticks() -> u64 {
    (dilated(BUSY_INTERVAL).as_micros() / 10) as u64
}

/// State of an open database's log.
pub(super) struct Logged<L> {
    pub(super) log: Option<L>,
    /// Time of the last rows.
    last_rows: Option<Timestamp>,
}

impl<L> Default for Logged<L> {
    fn default() -> Self {
        Logged {
            log: None,
            last_rows: None,
        }
    }
}

impl<L: RowLog> Logged<L> {
    /// The log, opened by its first rows.
    pub(super) fn opened(&mut self, writing: Writing<'_>) -> Result<&mut L> {
        let log = match self.log.take() {
            Some(log) => log,
            None => {
                let opened = writing.opened;
                L::open(&opened.file, writing.config, &opened.held)?
            }
        };
        Ok(self.log.insert(log))
    }

    /// Whether rows that arrive now are logged.
    fn is_for_rows(&mut self, now: Timestamp) -> bool {
        let last = self.last_rows.replace(now);
        let is_busy = !Heuristic::RowLog.is_off()
            && last.is_some_and(|last| {
                let since = now.ticks().checked_sub(last.ticks());
                since.is_some_and(|ticks| ticks < busy_ticks())
            });
        is_busy || self.log.as_ref().is_some_and(|log| !log.is_empty())
    }

    pub(super) fn note_rows(&mut self, now: Timestamp) {
        self.last_rows = Some(now);
    }

    /// Logs the updates by `append`, which is given their entries and is false if they do not fit;
    /// or returns them for a transaction. They are completed after the log's sync.
    pub(super) fn log_rows(
        &mut self,
        writing: Writing<'_>,
        mut updates: Updates,
        commits: &mut Vec<Commit>,
        append: impl FnOnce(&mut Self, &str) -> Result<bool>,
    ) -> Option<Updates> {
        if !self.is_for_rows(writing.config.now()) {
            return Some(updates);
        }
        let text = entries(&mut updates);
        match append(self, &text) {
            Ok(true) => self.commit(writing.opened, updates, commits),
            Ok(false) => Some(updates),
            Err(error) => {
                let path = writing.opened.file.display();
                tracing::warn!(path = %path, %error, "a row was not logged");
                if self.log.take().is_some_and(|log| !log.is_empty()) {
                    // Reopening the database merges the log's rows at once.
                    writing.db.mark_for_reopen();
                }
                Some(updates)
            }
        }
    }

    /// Registers logged updates for the log's sync.
    pub(super) fn commit(
        &mut self,
        opened: &Opened,
        mut updates: Updates,
        commits: &mut Vec<Commit>,
    ) -> Option<Updates> {
        let log = self.log.as_mut()?;
        for update in &mut updates {
            if let Some(rows) = update.object_rows() {
                log.add_rows(std::mem::take(rows));
            }
        }
        commits.push(Commit {
            file: opened.file.as_path().into(),
            held: Arc::clone(&opened.held),
            log: log.to_sync(),
            waiting: updates.into_iter().map(|update| (update, Ok(()))).collect(),
        });
        None
    }

    pub(super) fn since(&self) -> Option<Instant> {
        self.log.as_ref()?.since()
    }
}

impl Db {
    /// Merges all pending rows durably, and clears the log.
    pub(super) fn settle_log(
        &self,
        config: &IndexConfig,
        conn: &Connection,
        opened: &Opened,
    ) -> Result<()> {
        self.writer.settle(self.writing(config, conn, opened))
    }

    /// Runs `work`; after an error or a panic the database is closed, and its next user merges the
    /// log's file.
    pub(super) fn or_close(
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

    /// Time of the log's oldest entry; none also while a writer has the log locked.
    pub(crate) fn logged_since(&self) -> Option<Instant> {
        self.writer.logged_since()
    }

    pub(crate) fn has_log(&self) -> bool {
        self.writer.has_log()
    }

    /// Merges the log, and reports an error. Rows that could not be merged stay in the file until
    /// the database is opened again.
    pub(crate) fn or_log_error(&self, merge: impl FnOnce() -> Result<()>) {
        if let Err(error) = merge() {
            tracing::error!(hash = %self.key.hash.hex(), %error, "a log of rows is not merged");
            if let Writer::Exclusive(writer) = &self.writer {
                let is_gone = matches!(error, IndexError::NotFound { .. });
                writer.backed.give_up(is_gone);
            }
        }
    }

    /// Merges logged rows. With `close` it removes the log: the database is one file again.
    pub(crate) fn merge_log(&self, config: &IndexConfig, close: bool) -> Result<()> {
        let mut lock = self.write_lock()?;
        if !self.has_log() {
            return Ok(());
        }
        let opened = self.open(config, &mut lock)?;
        self.or_close(&mut lock, |conn| self.settle_log(config, conn, &opened))?;
        match close {
            true => self.writer.close_log(),
            false => Ok(()),
        }
    }
}

/// Whether these updates may be logged: they only add object rows, and the database is one whose
/// rows can be merged together.
pub(super) fn are_for_log(opened: &Opened, updates: &mut Updates) -> bool {
    let mut updates = updates.iter_mut();
    opened.schema.known_triggers && updates.all(|update| update.object_rows().is_some())
}

/// The log entries of these updates.
pub(super) fn entries(updates: &mut Updates) -> String {
    let rows = updates.iter_mut().filter_map(|update| update.object_rows());
    pending::entries(rows.flat_map(|rows| rows.iter()))
}
