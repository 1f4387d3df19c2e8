//! One open database: its connections, and the queue of updates that become transactions.
//!
//! Group commit: one thread at a time takes all queued updates of a database and makes one
//! transaction of them; waiters are notified after the sync. The next batch collects meanwhile.
//! Readers use connections of their own and see the last commit.
//!
//! `group_commit.rs` is what every update goes through.
//!
//! What differs between databases that other programs use, too, and those of this process alone is
//! in the two types of [`Writer`]: `shared.rs` and `exclusive.rs`.
//!
//! # Lock order
//!
//! A thread that holds one of these requests only later ones; two of one line are never held
//! together. Debug builds assert it (`rank.rs`).
//!
//!  1. `Janitor`: whether the pool's janitor is to stop; the janitor holds it through its rounds.
//!  2. `Devices`: the pool's table of devices with their threads.
//!  3. `Databases`: the pool's table of open databases; leases are taken under it.
//!  4. `Connection`: a database's write lock with its write connection. Held while a batch is
//!     written, and while the database is opened, replaced or removed.
//!  5. `Log`: the log of rows. Whoever logs beside a merge holds it without the write lock.
//!  6. `Backed`: rows that are in memory alone.
//!  7. `Folder`: Swift's lock on a database's folder, which other processes take, too; it has a
//!     timeout.
//!  8. `Turn`: a turn at a shared database's file, as one of many readers or for a commit. A reader
//!     holds it while its closure runs: so that closure cannot use the pool.
//!  9. `State`: what is open of a database.
//! 10. `Queue`: updates that wait.
//! 11. `LastUse`: when a database was last used.
//! 12. `NewFolders`: creation of folders, in the whole process.
//! 13. `Waiters`: who waits for changes.
//!
//! SQLite's locks on a file belong to the eighth: a commit has them before its turn, a reader
//! within its own, and both give up after a timeout. Locks of `cairn-device` come last: it drops
//! and calls nothing of this crate with one held.

mod backed;
mod exclusive;
mod group_commit;
mod lease;
mod logged;
mod open;
mod read;
mod shared;
mod transaction;
mod writer;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};

use parking_lot::Condvar;
use rusqlite::Connection;

use crate::broker::Broker;
use crate::config::IndexConfig;
use crate::container::batch;
use crate::files::{self, Identity};
use crate::held::Held;
use crate::rank::{Rank, Ranked, RankedGuard};
use crate::schema::Schema;
use crate::{DbKey, Result};
pub(crate) use group_commit::{Drain, Owner, Queue};
pub(crate) use lease::Lease;
pub(crate) use transaction::{Update, apply_alone, run};
pub(crate) use writer::Writer;

/// The write lock of a database, with its write connection.
pub(crate) type WriteLock<'a> = RankedGuard<'a, Option<Connection>>;

/// An open database.
pub(crate) struct Db {
    pub(crate) key: DbKey,
    leases: Arc<AtomicUsize>,
    last_use: Ranked<Instant>,
    pub(crate) queue: Ranked<Queue>,
    /// Signalled when the awaited updates are queued.
    pub(crate) gathered: Condvar,
    connection: Ranked<Option<Connection>>,
    state: Ranked<State>,
    pub(crate) writer: Writer,
}

#[derive(Default)]
struct State {
    opened: Option<Opened>,
    readers: Vec<Connection>,
    /// Descriptors of the open files.
    held: Option<Arc<Held>>,
    /// Descriptors that were open when a sync failed.
    distrusted: Option<Arc<Held>>,
}

#[derive(Clone)]
pub(crate) struct Opened {
    pub(crate) file: PathBuf,
    identity: Identity,
    pub(crate) schema: Schema,
    /// Whether the name of SQLite's log is durable.
    pub(crate) log_is_named: Arc<AtomicBool>,
    pub(crate) held: Arc<Held>,
}

/// The write connection at work, lent by the holder of the write lock.
#[derive(Clone, Copy)]
pub(crate) struct Writing<'w> {
    db: &'w Db,
    config: &'w IndexConfig,
    conn: &'w Connection,
    opened: &'w Opened,
}

impl Writing<'_> {
    fn broker(&self) -> Broker<'_> {
        let schema = self.opened.schema;
        self.db.broker(self.config, self.conn, schema, false)
    }
}

impl Drop for Db {
    /// Closes the write connection last: that checkpoints the log into the file, synced.
    fn drop(&mut self) {
        self.forget(&mut self.connection.lock());
    }
}

impl Db {
    pub(crate) fn new(key: DbKey, config: &IndexConfig) -> Self {
        Db {
            key,
            leases: Arc::default(),
            last_use: Ranked::new(Rank::LastUse, Instant::now()),
            queue: Ranked::new(Rank::Queue, Queue::default()),
            gathered: Condvar::new(),
            connection: Ranked::new(Rank::Connection, None),
            state: Ranked::new(Rank::State, State::default()),
            writer: Writer::new(config),
        }
    }

    /// Acquires this process's write lock, with triggers enabled.
    pub(crate) fn write_lock(&self) -> Result<WriteLock<'_>> {
        let lock = self.connection.lock();
        if let Some(conn) = lock.as_ref() {
            batch::set_triggers(conn, true)?;
        }
        Ok(lock)
    }

    /// Marks the database to be reopened by its next user.
    fn mark_for_reopen(&self) {
        self.state.lock().opened = None;
    }

    /// Whether rows are in memory alone.
    pub(crate) fn owes_rows(&self) -> bool {
        matches!(&self.writer, Writer::Exclusive(writer) if !writer.backed.is_empty())
    }

    /// Whether such a row has waited for long; true once until they are merged.
    pub(crate) fn has_old_rows(&self) -> bool {
        matches!(&self.writer, Writer::Exclusive(writer) if writer.backed.is_old())
    }

    /// Whether object rows may wait in memory: the database is open, and one whose rows are merged together.
    pub(crate) fn takes_rows(&self) -> bool {
        let state = self.state.lock();
        let opened = state.opened.as_ref();
        opened.is_some_and(|opened| opened.schema.known_triggers && !opened.held.has_failed())
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state.lock().opened.is_some()
    }

    /// Whether the database file exists; does not open it.
    pub(crate) fn exists(&self, config: &IndexConfig) -> Result<bool> {
        if self.still_open(config)?.is_some() {
            return Ok(true);
        }
        Ok(files::find_db_file(&self.key, &config.devices)?.is_some())
    }

    /// Notes that the database is used now.
    pub(crate) fn mark_used(&self) {
        *self.last_use.lock() = Instant::now();
    }

    pub(crate) fn last_use(&self) -> Instant {
        *self.last_use.lock()
    }

    pub(crate) fn is_idle(&self, time: Duration) -> bool {
        self.last_use().elapsed() >= time
    }

    /// Marks the database to be closed next, even if it is in use again: its device is no longer
    /// mounted, and open files would keep the file system busy.
    pub(crate) fn mark_idle(&self, config: &IndexConfig) {
        if let Some(long_ago) = Instant::now().checked_sub(config.idle_close) {
            *self.last_use.lock() = long_ago;
        }
    }

    pub(crate) fn broker<'c>(
        &'c self,
        config: &'c IndexConfig,
        conn: &'c Connection,
        schema: Schema,
        created: bool,
    ) -> Broker<'c> {
        Broker {
            conn,
            schema,
            config,
            key: &self.key,
            created,
        }
    }
}
