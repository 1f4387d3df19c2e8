//! Writer of a database that other processes, such as Swift's daemons, use too.
//!
//! SQLite syncs each commit itself. Threads of this process take turns at the file, as SQLite's
//! locks would leave it to chance who gets it next. Rows are logged under the folder's lock, as
//! Swift's servers do it, and any file may be replaced at any time.

use std::path::Path;
use std::time::Instant;

use rusqlite::Connection;

use super::group_commit::Commit;
use super::logged::{self, Logged};
use super::transaction::run;
use super::writer::{Applied, Updates};
use super::{Opened, Writing};
use crate::broker::Broker;
use crate::config::IndexConfig;
use crate::pending::{self, RowLog, SharedLog};
use crate::rank::{Rank, Ranked};
use crate::turns::Turns;
use crate::{DbKey, Result, files};

pub(crate) struct SharedWriter {
    /// Mutual exclusion of this process's readers and commits.
    pub(super) turns: Turns,
    logged: Ranked<Logged<SharedLog>>,
}

impl SharedWriter {
    pub(super) fn new() -> Self {
        SharedWriter {
            turns: Turns::default(),
            logged: Ranked::new(Rank::Log, Logged::default()),
        }
    }

    /// Another process may have made the file of a later epoch beside it.
    pub(super) fn is_in_place(
        &self,
        key: &DbKey,
        config: &IndexConfig,
        opened: &Opened,
    ) -> Result<bool> {
        let found = files::find_db_file(key, &config.devices)?;
        Ok(
            found
                .is_some_and(|(file, identity)| identity == opened.identity && file == opened.file),
        )
    }

    /// Syncs the folder: the removal of a journal, and with it a commit, may not be durable.
    pub(super) fn settle_distrust(&self, dir: &Path) -> Result<()> {
        match files::sync_folder(dir) {
            Err(error) if !files::is_missing_db(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Any process may have written pending rows.
    pub(super) fn is_behind(&self, opened: &Opened) -> Result<bool> {
        pending::is_pending(&opened.file)
    }

    pub(super) fn merge_left(&self, broker: Broker<'_>, file: &Path) -> Result<()> {
        // SQLite has synced the merged rows.
        pending::merge_left(broker, file, || Ok(()))
    }

    pub(super) fn commit(&self, conn: &Connection) -> Result<()> {
        self.turns.commit(|| run(conn, "COMMIT"))
    }

    /// Completes the updates: SQLite has synced the commit.
    pub(super) fn complete(&self, applied: impl Iterator<Item = Applied>) {
        applied.for_each(|(update, outcome)| update.finish(outcome));
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
        let append = |logged: &mut _, text: &str| self.append(writing, logged, text);
        let mut logged = self.logged.lock();
        logged.log_rows(writing, updates, commits, append)
    }

    /// Appends entries. False if they exceed the log, or another process keeps writing there.
    fn append(
        &self,
        writing: Writing<'_>,
        logged: &mut Logged<SharedLog>,
        text: &str,
    ) -> Result<bool> {
        let has_room = |log: &SharedLog| log.has_room(text.len());
        if !logged.log.as_ref().is_some_and(has_room) {
            self.merge_pending(writing, logged)?;
        }
        let log = logged.opened(writing)?;
        if !log.has_room(text.len()) {
            return Ok(false);
        }
        if log.append(text)? {
            return Ok(true);
        }
        self.merge_pending(writing, logged)?;
        match &mut logged.log {
            Some(log) => log.append(text),
            None => Ok(false),
        }
    }

    pub(super) fn settle(&self, writing: Writing<'_>) -> Result<()> {
        self.merge_pending(writing, &mut self.logged.lock())
    }

    /// Merges the rows of all processes in the pending file, and truncates it.
    fn merge_pending(&self, writing: Writing<'_>, logged: &mut Logged<SharedLog>) -> Result<()> {
        let ours = logged.log.as_ref().map(SharedLog::ours);
        let (broker, file) = (writing.broker(), &writing.opened.file);
        pending::merge_pending(broker, file, &self.turns, ours)?;
        if let Some(log) = &mut logged.log {
            log.clear();
        }
        Ok(())
    }

    pub(super) fn forget_log(&self) {
        self.logged.lock().log = None;
    }

    pub(super) fn has_log(&self) -> bool {
        self.logged.lock().log.is_some()
    }

    pub(super) fn logged_since(&self) -> Option<Instant> {
        self.logged.try_lock()?.since()
    }
}
