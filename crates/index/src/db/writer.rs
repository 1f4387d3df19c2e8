//! The writer of a database: one of two types, by who else may have its file open.
//!
//! What both can do is called here. What only one can do (merging half a log beside writers,
//! taking turns at the file) is a method of its type alone.

use std::path::Path;
use std::time::Instant;

use rusqlite::Connection;

use super::exclusive::ExclusiveWriter;
use super::group_commit::Commit;
use super::shared::SharedWriter;
use super::transaction::Update;
use super::{Db, Opened, Writing};
use crate::broker::Broker;
use crate::config::IndexConfig;
use crate::held::Held;
use crate::turns::ReadTurn;
use crate::{DbKey, Result, connection};

/// A batch of updates.
pub(super) type Updates = Vec<Box<dyn Update>>;

/// An update with the result of its part of the transaction.
pub(super) type Applied = (Box<dyn Update>, Result<()>);

pub(crate) enum Writer {
    /// Other processes may read and write the file at any time, as Swift's programs do.
    Shared(SharedWriter),
    /// This process alone has the file open.
    Exclusive(ExclusiveWriter),
}

impl Writer {
    pub(super) fn new(config: &IndexConfig) -> Self {
        match config.exclusive {
            true => Writer::Exclusive(ExclusiveWriter::new()),
            false => Writer::Shared(SharedWriter::new()),
        }
    }

    /// Opens the write connection.
    pub(super) fn open(
        &self,
        file: &Path,
        config: &IndexConfig,
        held: &Held,
    ) -> Result<Connection> {
        match self {
            Writer::Shared(_) => connection::open_shared(file, config),
            Writer::Exclusive(_) => connection::open_exclusive_held(file, config, held),
        }
    }

    /// Merges the pending file that was left beside a database being opened.
    pub(super) fn merge_left(&self, broker: Broker<'_>, file: &Path, held: &Held) -> Result<()> {
        match self {
            Writer::Shared(writer) => writer.merge_left(broker, file),
            Writer::Exclusive(writer) => writer.merge_left(broker, file, held),
        }
    }

    /// Whether the file is still the one that was opened.
    pub(super) fn is_in_place(
        &self,
        key: &DbKey,
        config: &IndexConfig,
        opened: &Opened,
    ) -> Result<bool> {
        match self {
            Writer::Shared(writer) => writer.is_in_place(key, config, opened),
            Writer::Exclusive(writer) => writer.is_in_place(opened),
        }
    }

    /// Makes durable what a failed sync left open, before the database is opened again.
    pub(super) fn settle_distrust(&self, dir: &Path) -> Result<()> {
        match self {
            Writer::Shared(writer) => writer.settle_distrust(dir),
            Writer::Exclusive(_) => Ok(()),
        }
    }

    /// Waits for a reader's turn, where readers and commits take turns.
    pub(super) fn read_turn(&self) -> Option<ReadTurn> {
        match self {
            Writer::Shared(writer) => Some(writer.turns.read()),
            Writer::Exclusive(_) => None,
        }
    }

    /// Whether there are pending rows that readers do not see.
    pub(super) fn is_behind(&self, opened: &Opened) -> Result<bool> {
        match self {
            Writer::Shared(writer) => writer.is_behind(opened),
            Writer::Exclusive(writer) => Ok(writer.is_behind()),
        }
    }

    /// Notes that pending rows were not merged on opening.
    pub(super) fn note_unmerged(&self) {
        match self {
            // Every reader looks for them in the pending file.
            Writer::Shared(_) => {}
            Writer::Exclusive(writer) => writer.note_unmerged(),
        }
    }

    /// Commits a transaction of updates.
    pub(super) fn commit(&self, conn: &Connection) -> Result<()> {
        match self {
            Writer::Shared(writer) => writer.commit(conn),
            Writer::Exclusive(writer) => writer.commit(conn),
        }
    }

    /// Completes the updates of a committed transaction, or registers them for its sync.
    pub(super) fn complete(
        &self,
        opened: &Opened,
        applied: impl Iterator<Item = Applied>,
        commits: &mut Vec<Commit>,
    ) {
        match self {
            Writer::Shared(writer) => writer.complete(applied),
            Writer::Exclusive(writer) => commits.push(writer.to_sync(opened, applied.collect())),
        }
    }

    /// Logs the updates, completed after the log's sync; or returns them for a transaction.
    pub(super) fn log_rows(
        &self,
        writing: Writing<'_>,
        updates: Updates,
        commits: &mut Vec<Commit>,
    ) -> Option<Updates> {
        match self {
            Writer::Shared(writer) => writer.log_rows(writing, updates, commits),
            Writer::Exclusive(writer) => writer.log_rows(writing, updates, commits),
        }
    }

    /// As [`Writer::log_rows`], without the write lock: while another thread merges.
    pub(super) fn log_beside(
        &self,
        db: &Db,
        config: &IndexConfig,
        updates: Updates,
        commits: &mut Vec<Commit>,
    ) -> Option<Updates> {
        match self {
            Writer::Shared(_) => Some(updates),
            Writer::Exclusive(writer) => match db.still_open(config) {
                Ok(Some(opened)) => writer.log_beside(config, &opened, updates, commits),
                // Reported by holders of the write lock.
                _ => Some(updates),
            },
        }
    }

    /// Merges all pending rows durably, and clears the log.
    pub(super) fn settle(&self, writing: Writing<'_>) -> Result<()> {
        match self {
            Writer::Shared(writer) => writer.settle(writing),
            Writer::Exclusive(writer) => writer.settle(writing),
        }
    }

    /// Merges pending rows for readers.
    pub(super) fn show(&self, writing: Writing<'_>) -> Result<()> {
        match self {
            Writer::Shared(writer) => writer.settle(writing),
            Writer::Exclusive(writer) => writer.show(writing),
        }
    }

    /// Drops the log's state; its entries stay in the file.
    pub(super) fn forget_log(&self) {
        match self {
            Writer::Shared(writer) => writer.forget_log(),
            Writer::Exclusive(writer) => writer.forget_log(),
        }
    }

    /// Drops the log, all of whose entries are merged: the database is one file again.
    pub(super) fn close_log(&self) -> Result<()> {
        match self {
            Writer::Shared(writer) => {
                writer.forget_log();
                Ok(())
            }
            Writer::Exclusive(writer) => writer.close_log(),
        }
    }

    pub(super) fn has_log(&self) -> bool {
        match self {
            Writer::Shared(writer) => writer.has_log(),
            Writer::Exclusive(writer) => writer.has_log(),
        }
    }

    /// Time of the log's oldest entry; none also while a writer has the log locked.
    pub(super) fn logged_since(&self) -> Option<Instant> {
        match self {
            Writer::Shared(writer) => writer.logged_since(),
            Writer::Exclusive(writer) => writer.logged_since(),
        }
    }

    /// Stores in a new file the journal mode that it is opened with later.
    pub(crate) fn set_stored_mode(&self, conn: &Connection) -> Result<()> {
        match self {
            Writer::Shared(_) => Ok(()),
            Writer::Exclusive(_) => connection::set_stored_wal_mode(conn),
        }
    }

    /// Empties SQLite's log, which would be taken for that of another file put in place of this
    /// one. False if a reader still uses it.
    pub(crate) fn empty_log(&self, conn: &Connection, config: &IndexConfig) -> Result<bool> {
        match self {
            // There is no such log beside a shared database.
            Writer::Shared(_) => Ok(true),
            Writer::Exclusive(_) => connection::empty_log(conn, config),
        }
    }
}
