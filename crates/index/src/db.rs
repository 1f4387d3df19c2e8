//! One open database: its connections, and the queue of updates that become transactions.
//!
//! Updates of a database are taken from its queue by one thread at a time, as many as there are,
//! and made in one transaction; everyone who waits for one of them is told after the commit, that
//! is, after the sync. While that runs the next batch gathers. Readers use connections of their
//! own and see the last commit.

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

/// The right to write, and the connection to do it with.
pub(crate) type Writer<'a> = parking_lot::MutexGuard<'a, Option<Connection>>;

/// A reader waits so long for what is pending to be merged; Swift's servers give it 0.1 seconds.
const READER_PATIENCE: Duration = Duration::from_secs(1);

/// A database that others open and give up all the while is not waited for.
const OPEN_ATTEMPTS: usize = 3;

/// Read connections kept per database; more are opened when more read at once.
const READERS_KEPT: usize = 2;

/// An update that waits for its transaction.
pub(crate) trait Update: Send {
    /// What must hold for the device.
    fn check(&self) -> DriveCheck;
    /// Make the database if there is none.
    fn new_db(&self) -> Option<&NewDb>;
    /// Object rows, where that is all it adds: those of one transaction are merged together.
    fn object_rows(&mut self) -> Option<&mut Vec<ObjectRow>> {
        None
    }
    /// It may fail after changing something, and is then undone alone.
    fn may_fail(&self) -> bool;
    fn apply(&mut self, broker: Broker<'_>) -> Result<()>;
    /// Called once: with what came of the transaction, or of `apply`.
    fn finish(self: Box<Self>, outcome: Result<()>);
}

/// An open database. Who holds one of its locks takes none that is named before it: the pool's table of open
/// databases, `writer`, `logged`, `shared`, `queue`, `last_used`. A gate's turn is asked for with the first
/// three at most.
pub(crate) struct Db {
    pub(crate) key: DbKey,
    leases: Arc<AtomicUsize>,
    pub(crate) last_used: Mutex<Instant>,
    pub(crate) queue: Mutex<Queue>,
    /// Told when the queue is gathered.
    pub(crate) gathered: Condvar,
    /// Held while a batch is written, and while the database is opened.
    writer: parking_lot::Mutex<Option<Connection>>,
    shared: Mutex<Shared>,
    /// Where readers and commits keep each other out: in databases that are not exclusive.
    pub(crate) gate: Arc<Gate>,
    pub(crate) logged: Mutex<Logged>,
    /// The log has rows that readers of an exclusive database would not see.
    pub(crate) is_behind: AtomicBool,
}

#[derive(Default)]
struct Shared {
    opened: Option<Opened>,
    readers: Vec<Connection>,
    /// Of what the writer has open.
    held: Option<Arc<Held>>,
    /// What was open when a sync failed.
    distrusted: Option<Arc<Held>>,
}

#[derive(Clone)]
pub(crate) struct Opened {
    pub(crate) file: PathBuf,
    identity: Identity,
    pub(crate) schema: Schema,
    /// The name of SQLite's log in its folder is on disk, too.
    pub(crate) log_is_named: Arc<AtomicBool>,
    pub(crate) held: Arc<Held>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Db {
    /// The writer closes last: it merges the log into the file, synced.
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

    /// The right to write: nobody else in this process writes while it is held.
    pub(crate) fn writer(&self) -> Result<Writer<'_>> {
        let writer = self.writer.lock();
        if let Some(conn) = writer.as_ref() {
            batch::set_triggers(conn, true)?;
        }
        Ok(writer)
    }

    /// As [`Db::writer`], for who only merges rows.
    pub(crate) fn row_writer(&self) -> Writer<'_> {
        self.writer.lock()
    }

    /// The next who needs it opens it again.
    pub(crate) fn open_anew(&self) {
        lock(&self.shared).opened = None;
    }

    pub(crate) fn is_open(&self) -> bool {
        lock(&self.shared).opened.is_some()
    }

    /// Is there a file? Without opening it.
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

    /// Opens the database, unless it is, and gives a connection of one that has read it. It is not
    /// opened anew after a failed sync as long as somebody reads it.
    fn begin_reading(&self, config: &IndexConfig) -> Result<(Opened, Reading, Option<Connection>)> {
        for _ in 0..OPEN_ATTEMPTS {
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
            Some(opened) => match self.writer.try_lock_for(READER_PATIENCE) {
                Some(mut writer) => self.open_shown(config, &mut writer),
                // Whoever writes waits for the disk. What was there before can be told.
                None => Ok(opened),
            },
            None => self.open_shown(config, &mut self.writer.lock()),
        }
    }

    /// Is there anything pending that readers do not see?
    fn is_behind(&self, config: &IndexConfig, opened: &Opened) -> Result<bool> {
        match config.exclusive {
            true => Ok(self.is_behind.load(Ordering::Acquire)),
            false => pending::is_pending(&opened.file),
        }
    }

    fn keep_reader(&self, conn: Connection, opened: &Opened) {
        let mut shared = lock(&self.shared);
        let is_open = |now: &Opened| Arc::ptr_eq(&now.held, &opened.held);
        if shared.opened.as_ref().is_some_and(is_open) && shared.readers.len() < READERS_KEPT {
            shared.readers.push(conn);
        } else {
            drop(shared);
            drop(conn);
        }
    }

    /// Makes one transaction of what is queued; gives what is still to be synced.
    pub(crate) fn drain(&self, config: &IndexConfig) -> Vec<Commit> {
        let mut commits = Vec::new();
        let batch = lock(&self.queue).take(config.batch_max);
        let write = AssertUnwindSafe(|| self.write(config, batch, &mut commits));
        if catch_unwind(write).is_err() {
            // Whoever waited sees the channel closed; the transaction is gone with its connection.
            tracing::error!(hash = %self.key.hash.hex(), "an update panicked");
            self.forget(&mut self.writer.lock());
        }
        commits
    }

    fn write(&self, config: &IndexConfig, batch: Vec<Box<dyn Update>>, commits: &mut Vec<Commit>) {
        let mut batch = self.with_device(config, batch);
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
                    // Nobody before the first that makes the database finds one.
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
                Err(error) => Some(self.undone(config, &opened, error, updates)),
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

    /// Has the pool close it next, whoever goes on to ask for it: the device is not mounted any more,
    /// and what is open of it keeps its file system alive.
    pub(crate) fn let_go(&self, config: &IndexConfig) {
        if let Some(long_ago) = Instant::now().checked_sub(config.idle_close) {
            *lock(&self.last_used) = long_ago;
        }
    }

    /// Those whose device is as they ask; others are told.
    fn with_device(
        &self,
        config: &IndexConfig,
        batch: Vec<Box<dyn Update>>,
    ) -> Vec<Box<dyn Update>> {
        let device = config.devices.join(&*self.key.device);
        let mut ready = Vec::with_capacity(batch.len());
        // Neighbours mostly ask the same.
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
                        self.let_go(config);
                    }
                    update.finish(Err(error));
                }
            }
        }
        ready
    }

    /// Logs the updates while another thread merges; or gives them back.
    fn log_beside(
        &self,
        config: &IndexConfig,
        batch: Vec<Box<dyn Update>>,
        commits: &mut Vec<Commit>,
    ) -> Option<Vec<Box<dyn Update>>> {
        match self.still_open(config) {
            Ok(Some(opened)) => self.log_rows_beside(config, &opened, batch, commits),
            // Told by those who may write.
            _ => Some(batch),
        }
    }

    /// One transaction of all updates. Returns the error that undid it, if one did.
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
                // It may have been undone already; a connection still in a transaction is dropped.
                let _ = run(conn, "ROLLBACK");
            }
            return Some(self.undone(config, opened, error, updates));
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

    /// Tells everybody that nothing came of it.
    fn undone(
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

    /// What is open, if the file is still the one that was opened: another process may have
    /// removed or replaced it, or put the file of a later epoch beside it.
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

    /// Opens the database for writing, unless it is open: brings the tables up to date, and
    /// merges what Swift left pending.
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

    /// SQLite's connections of one process share what they know of the log: to read it from the
    /// disk, all of them have to be closed.
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
            // The removal of a journal is perhaps not on disk, and with it a commit.
            match files::sync_folder(&self.key.dir(&config.devices)) {
                Err(error) if !files::is_missing_db(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Opens it, and merges all that is pending. Triggers are on.
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

    /// Opens it, and lets readers see what is pending, as far as there is space to merge it.
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

    /// Opens it for readers alone: whoever writes opens it anew, and merges what is pending first.
    fn open_unmerged(
        &self,
        config: &IndexConfig,
        writer: &mut Option<Connection>,
    ) -> Result<Opened> {
        self.forget(writer);
        let opened = self.open_with(config, writer, false)?;
        // Its log stays for the readers: a file that cannot grow takes no merge.
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
        let shown = self.or_forget(writer, |conn| match config.exclusive {
            true => self.show_logged(config, conn, &opened),
            false => self.settle_log(config, conn, &opened),
        });
        match shown {
            Ok(()) => Ok(opened),
            Err(error) => Err(self.failed(config, &opened.file, error)),
        }
    }

    /// Closes the database, its log merged unless a sync has failed.
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

    /// As [`Db::forget`], after an error: one of the disk may have been one of a sync.
    pub(crate) fn forget_after(&self, error: &IndexError, writer: &mut Option<Connection>) {
        let held = lock(&self.shared).held.clone();
        if let Some(held) = held.filter(|_| error.spoils_connection()) {
            held.distrust();
        }
        self.forget(writer);
    }

    /// Moves a damaged database out of the way; other errors pass.
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

/// Sharding makes `<hash>_<epoch>.db`.
fn has_epoch(file: &std::path::Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.contains('_')
}

pub(crate) fn run(conn: &Connection, sql: &str) -> Result<()> {
    conn.prepare_cached(sql)?.execute([])?;
    Ok(())
}

/// Applies updates in their order; neighbours that only add object rows are one.
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
        // It may add and remove rows itself.
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

/// The outer error undoes the whole transaction, the inner one only this update.
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
