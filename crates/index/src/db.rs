//! One open database: its connections, and the queue of updates that become transactions.
//!
//! Group commit: one thread at a time takes all queued updates of a database and makes one
//! transaction of them; waiters are notified after the sync. The next batch collects meanwhile.
//! Readers use connections of their own and see the last commit.

pub(crate) mod commit;
mod lease;
mod queue;

use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cairn_device::{Committing, Gate};
use rusqlite::Connection;

use crate::broker::Broker;
use crate::config::IndexConfig;
use crate::container::batch;
use crate::files::{self, Identity};
use crate::held::{Held, Reading};
use crate::logged::Logged;
use crate::migrate::{Schema, migrate};
use crate::schema::NewDb;
use crate::{DbKey, DriveCheck, IndexError, ObjectRow, Result, connection, drive, pending};
use commit::{Commit, CommitLog};
pub(crate) use lease::Lease;
pub(crate) use queue::Queue;

/// Lock on writing, with the write connection.
pub(crate) type Writer<'a> = parking_lot::MutexGuard<'a, Option<Connection>>;

/// Timeout of a reader for the merge of pending rows; Swift's servers use 0.1 seconds.
const READER_MERGE_TIMEOUT: Duration = Duration::from_secs(1);

/// Attempts to open a database that other processes keep replacing.
const OPEN_ATTEMPTS_MAX: usize = 3;

/// Read connections kept per database; more are opened under concurrent reads.
const READERS_KEPT_MAX: usize = 2;

/// An update in the queue of a database.
pub(crate) trait Update: Send {
    /// Condition of the device that must hold.
    fn check(&self) -> DriveCheck;
    /// Parameters for creating a missing database; none if it must exist.
    fn new_db(&self) -> Option<&NewDb>;
    /// Object rows, if the update only adds such: those of one transaction are merged together.
    fn object_rows(&mut self) -> Option<&mut Vec<ObjectRow>> {
        None
    }
    /// Whether `apply` may fail after changes, and needs a savepoint.
    fn may_fail(&self) -> bool;
    fn apply(&mut self, broker: Broker<'_>) -> Result<()>;
    /// Called once with the result of the transaction, or of `apply`.
    fn finish(self: Box<Self>, outcome: Result<()>);
}

/// An open database. Lock order: the pool's table of open databases, `writer`, `logged`, `shared`,
/// `queue`, `last_used`. A gate's turn is requested while holding at most the first three.
pub(crate) struct Db {
    pub(crate) key: DbKey,
    leases: Arc<AtomicUsize>,
    pub(crate) last_used: Mutex<Instant>,
    pub(crate) queue: Mutex<Queue>,
    /// Signalled when the awaited updates are queued.
    pub(crate) gathered: Condvar,
    /// Held while a batch is written, and while the database is opened.
    writer: parking_lot::Mutex<Option<Connection>>,
    shared: Mutex<Shared>,
    /// Mutual exclusion of readers and commits, for shared databases.
    pub(crate) gate: Arc<Gate>,
    pub(crate) logged: Mutex<Logged>,
    /// Whether the log has rows that readers of an exclusive database do not see yet.
    pub(crate) is_behind: AtomicBool,
}

#[derive(Default)]
struct Shared {
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Db {
    /// Closes the write connection last: that checkpoints the log into the file, synced.
    fn drop(&mut self) {
        self.forget(&mut self.writer.lock());
    }
}

impl Db {
    pub(crate) fn new(key: DbKey) -> Self {
        Db {
            key,
            leases: Arc::default(),
            last_used: Mutex::new(Instant::now()),
            queue: Mutex::default(),
            gathered: Condvar::new(),
            writer: parking_lot::Mutex::default(),
            shared: Mutex::default(),
            gate: Arc::default(),
            logged: Mutex::default(),
            is_behind: AtomicBool::new(false),
        }
    }

    /// Acquires this process's write lock, with triggers enabled.
    pub(crate) fn writer(&self) -> Result<Writer<'_>> {
        let writer = self.writer.lock();
        if let Some(conn) = writer.as_ref() {
            batch::set_triggers(conn, true)?;
        }
        Ok(writer)
    }

    /// As [`Db::writer`], for callers that only merge rows.
    pub(crate) fn row_writer(&self) -> Writer<'_> {
        self.writer.lock()
    }

    /// Marks the database to be reopened by its next user.
    pub(crate) fn mark_for_reopen(&self) {
        lock(&self.shared).opened = None;
    }

    pub(crate) fn is_open(&self) -> bool {
        lock(&self.shared).opened.is_some()
    }

    /// Whether the database file exists; does not open it.
    pub(crate) fn exists(&self, config: &IndexConfig) -> Result<bool> {
        if self.still_open(config)?.is_some() {
            return Ok(true);
        }
        Ok(files::find_db_file(&self.key, &config.devices)?.is_some())
    }

    pub(crate) fn read<T>(
        &self,
        config: &IndexConfig,
        f: impl FnOnce(Broker<'_>) -> Result<T>,
    ) -> Result<T> {
        let (opened, _reading, kept) = self.begin_reading(config)?;
        let conn = match kept {
            Some(conn) => conn,
            None => connection::open_reader(&opened.file, config)
                .and_then(|conn| connection::set_log_stays(&conn, true).map(|()| conn))
                .map_err(|error| self.failed(config, &opened.file, error))?,
        };
        let reading = (!config.exclusive).then(|| self.gate.read());
        let result = f(self.broker(config, &conn, opened.schema, false));
        drop(reading);
        match result {
            Err(error) => {
                let error = error.at(&opened.file);
                let spoiled = error.spoils_connection();
                if !spoiled {
                    self.keep_reader(conn, &opened);
                }
                Err(self.failed(config, &opened.file, error))
            }
            Ok(value) => {
                self.keep_reader(conn, &opened);
                Ok(value)
            }
        }
    }

    /// Opens the database if necessary, and returns a kept read connection if there is one. After a
    /// failed sync it is not reopened while readers use it.
    fn begin_reading(&self, config: &IndexConfig) -> Result<(Opened, Reading, Option<Connection>)> {
        for _ in 0..OPEN_ATTEMPTS_MAX {
            let opened = self.open_to_read(config)?;
            let mut shared = lock(&self.shared);
            let is_open = |now: &Opened| Arc::ptr_eq(&now.held, &opened.held);
            if shared.opened.as_ref().is_some_and(is_open) && !opened.held.has_failed() {
                let (reading, kept) = (opened.held.reading(), shared.readers.pop());
                return Ok((opened, reading, kept));
            }
        }
        Err(IndexError::Busy {
            what: self.key.file(&config.devices).display().to_string(),
        })
    }

    fn open_to_read(&self, config: &IndexConfig) -> Result<Opened> {
        match self.still_open(config)? {
            Some(opened) if !self.is_behind(config, &opened)? => Ok(opened),
            Some(opened) => match self.writer.try_lock_for(READER_MERGE_TIMEOUT) {
                Some(mut writer) => self.open_shown(config, &mut writer),
                // The writer waits for the disk; the last commit can still be read.
                None => Ok(opened),
            },
            None => self.open_shown(config, &mut self.writer.lock()),
        }
    }

    /// Whether there are pending rows that readers do not see.
    fn is_behind(&self, config: &IndexConfig, opened: &Opened) -> Result<bool> {
        match config.exclusive {
            true => Ok(self.is_behind.load(Ordering::Acquire)),
            false => pending::is_pending(&opened.file),
        }
    }

    fn keep_reader(&self, conn: Connection, opened: &Opened) {
        let mut shared = lock(&self.shared);
        let is_open = |now: &Opened| Arc::ptr_eq(&now.held, &opened.held);
        if shared.opened.as_ref().is_some_and(is_open) && shared.readers.len() < READERS_KEPT_MAX {
            shared.readers.push(conn);
        } else {
            drop(shared);
            drop(conn);
        }
    }

    /// Makes one transaction of the queued updates; returns the commits that still need a sync.
    pub(crate) fn drain(&self, config: &IndexConfig) -> Vec<Commit> {
        let mut commits = Vec::new();
        let batch = lock(&self.queue).take(config.batch_max);
        let write = AssertUnwindSafe(|| self.write(config, batch, &mut commits));
        if catch_unwind(write).is_err() {
            // Waiters see a closed channel; the transaction ended with its connection.
            tracing::error!(hash = %self.key.hash.hex(), "an update panicked");
            self.forget(&mut self.writer.lock());
        }
        commits
    }

    fn write(&self, config: &IndexConfig, batch: Vec<Box<dyn Update>>, commits: &mut Vec<Commit>) {
        let mut batch = self.filter_by_device(config, batch);
        self.ensure_room(config);
        let mut writer = match self.writer.try_lock() {
            Some(writer) => writer,
            None => match self.log_beside(config, batch, commits) {
                None => return,
                Some(left) => {
                    batch = left;
                    self.writer.lock()
                }
            },
        };
        let mut batch = VecDeque::from(batch);
        while !batch.is_empty() {
            let opened = match self.open(config, &mut writer) {
                Ok(opened) => opened,
                Err(IndexError::NotFound { path }) => {
                    // Updates before the first that creates the database find none.
                    let Some(first) = batch.pop_front() else {
                        return;
                    };
                    match first.new_db().cloned() {
                        Some(new) => self.create(config, &new, first),
                        None => first.finish(Err(IndexError::NotFound { path })),
                    }
                    continue;
                }
                Err(error) => {
                    for update in batch {
                        update.finish(Err(error.clone()));
                    }
                    return;
                }
            };
            let Some(conn) = writer.as_ref() else { return };
            let updates = batch.drain(..).collect();
            let Some(updates) = self.log_rows(config, conn, &opened, updates, commits) else {
                return;
            };
            let failed = match self.settle_log(config, conn, &opened) {
                Ok(()) => self.transact(config, conn, &opened, updates, commits),
                Err(error) => Some(self.fail_rolled_back(config, &opened, error, updates)),
            };
            let is_undone = conn.is_autocommit();
            match failed {
                Some(error) if error.spoils_connection() || !is_undone => {
                    self.forget_after(&error, &mut writer);
                }
                None if !is_undone => self.forget(&mut writer),
                _ => {}
            }
        }
    }

    /// Marks the database to be closed next, even if it is in use again: its device is no longer
    /// mounted, and open files would keep the file system busy.
    pub(crate) fn mark_idle(&self, config: &IndexConfig) {
        if let Some(long_ago) = Instant::now().checked_sub(config.idle_close) {
            *lock(&self.last_used) = long_ago;
        }
    }

    /// Filters updates by the condition of their device; the others fail.
    fn filter_by_device(
        &self,
        config: &IndexConfig,
        batch: Vec<Box<dyn Update>>,
    ) -> Vec<Box<dyn Update>> {
        let device = config.devices.join(&*self.key.device);
        let mut ready = Vec::with_capacity(batch.len());
        // Consecutive updates usually have the same condition.
        let mut last: Option<(DriveCheck, Result<()>)> = None;
        for update in batch {
            let asked = update.check();
            let outcome = match &last {
                Some((check, outcome)) if *check == asked => outcome.clone(),
                _ => asked.check(&device),
            };
            last = Some((asked, outcome.clone()));
            match outcome {
                Ok(()) => ready.push(update),
                Err(error) => {
                    if matches!(error, IndexError::NotMounted { .. }) {
                        self.mark_idle(config);
                    }
                    update.finish(Err(error));
                }
            }
        }
        ready
    }

    /// Logs the updates while another thread merges, or returns them.
    fn log_beside(
        &self,
        config: &IndexConfig,
        batch: Vec<Box<dyn Update>>,
        commits: &mut Vec<Commit>,
    ) -> Option<Vec<Box<dyn Update>>> {
        match self.still_open(config) {
            Ok(Some(opened)) => self.log_rows_beside(config, &opened, batch, commits),
            // Reported by holders of the write lock.
            _ => Some(batch),
        }
    }

    /// Runs all updates in one transaction. Returns the error that rolled it back, if any.
    fn transact(
        &self,
        config: &IndexConfig,
        conn: &Connection,
        opened: &Opened,
        updates: Vec<Box<dyn Update>>,
        commits: &mut Vec<Commit>,
    ) -> Option<IndexError> {
        let broker = self.broker(config, conn, opened.schema, false);
        let mut outcomes = Vec::with_capacity(updates.len());
        let mut updates = updates;
        let result = run(conn, "BEGIN IMMEDIATE").and_then(|()| {
            apply_all(broker, &mut updates, &mut outcomes)?;
            let committing = (!config.exclusive).then(|| self.gate.commit());
            let committed = run(conn, "COMMIT");
            committing.into_iter().for_each(Committing::end);
            committed
        });
        if let Err(error) = result {
            if !conn.is_autocommit() {
                // SQLite may have rolled back already; one still in a transaction is dropped.
                let _ = run(conn, "ROLLBACK");
            }
            return Some(self.fail_rolled_back(config, opened, error, updates));
        }
        let outcomes = outcomes
            .into_iter()
            .map(|o| o.map_err(|e| e.at(&opened.file)));
        let waiting = updates.into_iter().zip(outcomes);
        if config.exclusive {
            commits.push(Commit {
                file: opened.file.as_path().into(),
                held: opened.held.clone(),
                log: CommitLog::Wal(opened.log_is_named.clone()),
                waiting: waiting.collect(),
            });
        } else {
            // SQLite has synced the commit.
            waiting.for_each(|(update, outcome)| update.finish(outcome));
        }
        None
    }

    /// Fails all updates of a rolled-back transaction.
    fn fail_rolled_back(
        &self,
        config: &IndexConfig,
        opened: &Opened,
        error: IndexError,
        updates: Vec<Box<dyn Update>>,
    ) -> IndexError {
        let error = self.failed(config, &opened.file, error.at(&opened.file));
        for update in updates {
            update.finish(Err(error.clone()));
        }
        error
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

    /// The open database if its file is still in place: another process may have removed or
    /// replaced it, or created the file of a later epoch.
    fn still_open(&self, config: &IndexConfig) -> Result<Option<Opened>> {
        let opened = lock(&self.shared).opened.clone();
        let Some(opened) = opened.filter(|opened| !opened.held.has_failed()) else {
            return Ok(None);
        };
        let same = match config.exclusive {
            true => files::identity(&opened.file)? == Some(opened.identity),
            false => files::find_db_file(&self.key, &config.devices)?
                .is_some_and(|(file, identity)| identity == opened.identity && file == opened.file),
        };
        Ok(same.then_some(opened))
    }

    /// Opens the database for writing if necessary: migrates it, and merges Swift's pending rows.
    pub(crate) fn open(
        &self,
        config: &IndexConfig,
        writer: &mut Option<Connection>,
    ) -> Result<Opened> {
        self.open_with(config, writer, true)
    }

    fn open_with(
        &self,
        config: &IndexConfig,
        writer: &mut Option<Connection>,
        merges: bool,
    ) -> Result<Opened> {
        match self.still_open(config)? {
            Some(opened) if writer.is_some() => return Ok(opened),
            _ => self.forget(writer),
        }
        self.settle_distrust(config)?;
        let dir = self.key.file(&config.devices);
        let found = files::find_db_file(&self.key, &config.devices)?;
        let (file, identity) = found.ok_or(IndexError::NotFound { path: dir })?;
        files::make_private(&file);
        let held = Held::begin(&file, config)?;
        let opened = connection::open_held(&file, config, &held).and_then(|conn| {
            let schema = migrate(&conn, self.key.kind, has_epoch(&file))?;
            let broker = self.broker(config, &conn, schema, false);
            if merges {
                pending::merge_left(broker, &file, &held)?;
            }
            Ok((conn, schema))
        });
        let (conn, schema) = opened.map_err(|error| self.failed(config, &file, error.at(&file)))?;
        let opened = Opened {
            file,
            identity,
            schema,
            log_is_named: Arc::default(),
            held: held.clone(),
        };
        *writer = Some(conn);
        let mut shared = lock(&self.shared);
        shared.opened = Some(opened.clone());
        shared.held = Some(held);
        shared.distrusted = None;
        Ok(opened)
    }

    /// Refuses a reopening after a failed sync while readers remain: connections of one process
    /// share cached state of the log, so it is read from the disk only when all are closed.
    fn settle_distrust(&self, config: &IndexConfig) -> Result<()> {
        let distrusted = lock(&self.shared).distrusted.clone();
        let Some(distrusted) = distrusted else {
            return Ok(());
        };
        if distrusted.is_read() {
            return Err(IndexError::DriveFailed {
                path: self.key.file(&config.devices),
                reason: "a sync failed, and the database is still being read as it was".into(),
            });
        }
        if !config.exclusive {
            // The removal of a journal, and with it a commit, may not be durable.
            match files::sync_folder(&self.key.dir(&config.devices)) {
                Err(error) if !files::is_missing_db(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Opens the database and merges all pending rows. Triggers are on.
    pub(crate) fn open_merged(
        &self,
        config: &IndexConfig,
        writer: &mut Option<Connection>,
    ) -> Result<Opened> {
        let opened = self.open(config, writer)?;
        if let Some(conn) = writer.as_ref() {
            let settled = self.settle_log(config, conn, &opened);
            if let Err(error) = settled.and_then(|()| batch::set_triggers(conn, true)) {
                self.forget_after(&error, writer);
                return Err(self.failed(config, &opened.file, error));
            }
        }
        Ok(opened)
    }

    /// Opens the database and shows pending rows to readers, as far as there is space to merge.
    fn open_shown(&self, config: &IndexConfig, writer: &mut Option<Connection>) -> Result<Opened> {
        match self.try_open_shown(config, writer) {
            Err(IndexError::NoSpace { .. }) => {}
            other => return other,
        }
        (config.make_room)(&config.devices.join(&*self.key.device));
        match self.try_open_shown(config, writer) {
            Err(IndexError::NoSpace { .. }) => self.open_unmerged(config, writer),
            other => other,
        }
    }

    /// Opens the database for readers alone; the next writer reopens it and merges pending rows.
    fn open_unmerged(
        &self,
        config: &IndexConfig,
        writer: &mut Option<Connection>,
    ) -> Result<Opened> {
        self.forget(writer);
        let opened = self.open_with(config, writer, false)?;
        // Keeps its log for the readers: a file that cannot grow cannot be merged into.
        drop(writer.take());
        self.is_behind.store(true, Ordering::Release);
        Ok(opened)
    }

    fn ensure_room(&self, config: &IndexConfig) {
        let device = config.devices.join(&*self.key.device);
        drive::ensure_room(&device, |device| (config.make_room)(device));
    }

    fn try_open_shown(
        &self,
        config: &IndexConfig,
        writer: &mut Option<Connection>,
    ) -> Result<Opened> {
        let opened = self.open(config, writer)?;
        let shown = self.or_close(writer, |conn| match config.exclusive {
            true => self.show_logged(config, conn, &opened),
            false => self.settle_log(config, conn, &opened),
        });
        match shown {
            Ok(()) => Ok(opened),
            Err(error) => Err(self.failed(config, &opened.file, error)),
        }
    }

    /// Closes the database; checkpoints its log unless a sync has failed.
    pub(crate) fn forget(&self, writer: &mut Option<Connection>) {
        let (readers, is_sound) = {
            let mut shared = lock(&self.shared);
            shared.opened = None;
            let held = shared.held.take();
            let is_sound = held.as_ref().is_none_or(|held| !held.has_failed());
            if !is_sound {
                shared.distrusted = held;
            }
            (std::mem::take(&mut shared.readers), is_sound)
        };
        drop(readers);
        self.forget_log();
        if let Some(conn) = writer.take() {
            connection::close(conn, is_sound);
        }
    }

    /// As [`Db::forget`], after an error: an I/O error may be that of a sync.
    pub(crate) fn forget_after(&self, error: &IndexError, writer: &mut Option<Connection>) {
        let held = lock(&self.shared).held.clone();
        if let Some(held) = held.filter(|_| error.spoils_connection()) {
            held.distrust();
        }
        self.forget(writer);
    }

    /// Quarantines a database after an error of damage; passes other errors through.
    fn failed(
        &self,
        config: &IndexConfig,
        file: &std::path::Path,
        error: IndexError,
    ) -> IndexError {
        let (path, reason) = match error.at(file) {
            IndexError::Corrupt { path, reason } => (path, reason),
            other => return other,
        };
        let readers = {
            let mut shared = lock(&self.shared);
            shared.opened = None;
            std::mem::take(&mut shared.readers)
        };
        drop(readers);
        match files::quarantine(&self.key, &config.devices, (config.random)()) {
            Ok(to) => {
                tracing::error!(
                    path = %path.display(), to = %to.display(), reason, "quarantined a database"
                );
                IndexError::Quarantined { path, to, reason }
            }
            Err(error) => {
                tracing::error!(
                    path = %path.display(), %error, reason, "could not quarantine a database"
                );
                IndexError::Corrupt { path, reason }
            }
        }
    }
}

/// Whether the name is `<hash>_<epoch>.db`, as sharding makes it.
fn has_epoch(file: &std::path::Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.contains('_')
}

pub(crate) fn run(conn: &Connection, sql: &str) -> Result<()> {
    conn.prepare_cached(sql)?.execute([])?;
    Ok(())
}

/// Applies updates in order; consecutive ones that only add object rows are merged together.
fn apply_all(
    broker: Broker<'_>,
    updates: &mut [Box<dyn Update>],
    outcomes: &mut Vec<Result<()>>,
) -> Result<()> {
    let mut rows = Vec::new();
    for update in updates {
        if broker.schema.known_triggers
            && let Some(more) = update.object_rows()
        {
            rows.append(more);
            outcomes.push(Ok(()));
            continue;
        }
        merge_rows(broker, std::mem::take(&mut rows))?;
        // The update may add and remove rows by SQL.
        batch::set_triggers(broker.conn, true)?;
        outcomes.push(apply_alone(broker.conn, broker, update.as_mut())?);
    }
    merge_rows(broker, rows)
}

fn merge_rows(broker: Broker<'_>, rows: Vec<ObjectRow>) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    batch::set_triggers(broker.conn, false)?;
    batch::merge(broker, rows)
}

/// Applies one update under a savepoint. The outer error rolls back the whole transaction, the
/// inner one only this update.
pub(crate) fn apply_alone(
    conn: &Connection,
    broker: Broker<'_>,
    update: &mut dyn Update,
) -> Result<Result<()>> {
    if !update.may_fail() {
        return update.apply(broker).map(Ok);
    }
    run(conn, "SAVEPOINT one")?;
    let outcome = update.apply(broker);
    match outcome {
        Ok(()) => {}
        Err(error) if error.spoils_connection() => return Err(error),
        Err(_) => run(conn, "ROLLBACK TO one")?,
    }
    run(conn, "RELEASE one")?;
    Ok(outcome)
}

pub(crate) fn sync_file(path: &std::path::Path) -> Result<()> {
    // No connection has it open: see the warning in `files`.
    OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|file| file.sync_all())
        .map_err(|error| IndexError::io(path, error))
}
