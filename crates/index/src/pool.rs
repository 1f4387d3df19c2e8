//! The pool of open databases: assigns them to their devices' threads, and closes idle ones.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cairn_device::{Class, Debt, Job, Refused};
use cairn_types::HashPath;
use futures_channel::oneshot;
use parking_lot::Condvar;

use crate::broker::Broker;
use crate::config::IndexConfig;
use crate::db::{Db, Drain, Lease, Owner, Update, Writer};
use crate::device::{Device, SingleJob};
use crate::handle::{AccountDb, ContainerDb, IndexDb};
use crate::rank::{Rank, Ranked};
use crate::waiters::{Wait, Waiters};
use crate::{DbKey, DbKind, DriveCheck, IndexError, ObjectRow, Result, files};

/// Maximum age of log entries of a busy database, as a multiple of `idle_close`.
const MERGE_AFTER_IDLE_CLOSES: u32 = 6;

/// All account and container databases of a node.
pub struct IndexPool {
    inner: Arc<Inner>,
    janitor: Ranked<Option<JoinHandle<()>>>,
    stop: Arc<Stop>,
}

/// Signal that ends the janitor, the thread that closes idle databases.
struct Stop {
    is_set: Ranked<bool>,
    changed: Condvar,
}

pub(crate) struct Inner {
    pub(crate) config: IndexConfig,
    devices: Ranked<HashMap<Arc<str>, Arc<Device>>>,
    open: Ranked<HashMap<DbKey, Arc<Db>>>,
    closed: AtomicBool,
    waiters: Arc<Waiters>,
}

impl IndexPool {
    pub fn new(config: IndexConfig) -> Arc<Self> {
        let inner = Arc::new(Inner {
            config,
            devices: Ranked::new(Rank::Devices, HashMap::new()),
            open: Ranked::new(Rank::Databases, HashMap::new()),
            closed: AtomicBool::new(false),
            waiters: Waiters::new(),
        });
        let stop = Arc::new(Stop {
            is_set: Ranked::new(Rank::Janitor, false),
            changed: Condvar::new(),
        });
        let janitor = (!inner.config.is_simulated()).then(|| {
            let (inner, stop) = (Arc::downgrade(&inner), Arc::clone(&stop));
            thread::Builder::new()
                .name("index-idle".into())
                .spawn(move || close_idle_until_stopped(&inner, &stop))
                .inspect_err(|error| {
                    tracing::error!(%error, "no thread to close idle databases");
                })
        });
        Arc::new(IndexPool {
            inner,
            janitor: Ranked::new(Rank::Janitor, janitor.and_then(io::Result::ok)),
            stop,
        })
    }

    pub fn devices(&self) -> &Path {
        &self.inner.config.devices
    }

    pub fn config(&self) -> &IndexConfig {
        &self.inner.config
    }

    /// Handle of a container's database, which may not exist.
    pub fn container(
        self: &Arc<Self>,
        hash_path: &HashPath,
        device: &str,
        partition: &str,
        account: &str,
        container: &str,
    ) -> ContainerDb {
        let hash = hash_path.hash(account, Some(container), None);
        let key = DbKey::new(device, partition, DbKind::Container, hash);
        ContainerDb::new(Arc::clone(self), key)
    }

    /// Handle of an account's database, which may not exist.
    pub fn account(
        self: &Arc<Self>,
        hash_path: &HashPath,
        device: &str,
        partition: &str,
        account: &str,
    ) -> AccountDb {
        let hash = hash_path.hash(account, None, None);
        let key = DbKey::new(device, partition, DbKind::Account, hash);
        AccountDb::new(Arc::clone(self), key)
    }

    pub fn container_by_key(self: &Arc<Self>, key: DbKey) -> ContainerDb {
        ContainerDb::new(Arc::clone(self), key)
    }

    pub fn account_by_key(self: &Arc<Self>, key: DbKey) -> AccountDb {
        AccountDb::new(Arc::clone(self), key)
    }

    pub fn db_by_key(self: &Arc<Self>, key: DbKey) -> IndexDb {
        IndexDb::new(Arc::clone(self), key)
    }

    /// Runs `f` on a read thread of the device.
    pub(crate) fn submit_read<T: Send + 'static>(
        &self,
        key: &DbKey,
        check: DriveCheck,
        f: impl FnOnce(Broker<'_>) -> Result<T> + Send + 'static,
    ) -> Result<oneshot::Receiver<Result<T>>> {
        self.submit_job(key, check, move |inner, db| {
            let result = db.read(&inner.config, f);
            if matches!(result, Err(IndexError::NotFound { .. })) {
                inner.forget(db);
            }
            result
        })
    }

    /// Checks on a read thread whether the database exists.
    pub(crate) fn submit_exists(
        &self,
        key: &DbKey,
        check: DriveCheck,
    ) -> Result<oneshot::Receiver<Result<bool>>> {
        self.submit_job(key, check, |inner, db| {
            let exists = db.exists(&inner.config)?;
            if !exists {
                inner.forget(db);
            }
            Ok(exists)
        })
    }

    /// Runs work on a database that is neither a read nor an update, on a read thread.
    pub(crate) fn submit_shared<T: Send + 'static>(
        &self,
        key: &DbKey,
        check: DriveCheck,
        f: impl FnOnce(&IndexConfig, &Db) -> Result<T> + Send + 'static,
    ) -> Result<oneshot::Receiver<Result<T>>> {
        self.submit_job(key, check, move |inner, db| f(&inner.config, db))
    }

    /// As `submit_shared`, on a write thread.
    pub(crate) fn submit_exclusive<T: Send + 'static>(
        &self,
        key: &DbKey,
        check: DriveCheck,
        f: impl FnOnce(&IndexConfig, &Db) -> Result<T> + Send + 'static,
    ) -> Result<oneshot::Receiver<Result<T>>> {
        let lane = Arc::clone(&self.inner.device(key)?.write);
        let push = |job| lane.push(Class::Client, SingleJob::new(job));
        self.submit_to(lane.name(), push, key, check, move |inner, db| {
            let result = f(&inner.config, db);
            if !db.is_open() {
                inner.forget(db);
            }
            inner.waiters.wake(&db.key);
            result
        })
    }

    fn submit_job<T: Send + 'static>(
        &self,
        key: &DbKey,
        check: DriveCheck,
        f: impl FnOnce(&Inner, &Lease) -> Result<T> + Send + 'static,
    ) -> Result<oneshot::Receiver<Result<T>>> {
        let lane = Arc::clone(&self.inner.device(key)?.read);
        let push = |job| lane.push(Class::Client, job);
        self.submit_to(lane.name(), push, key, check, f)
    }

    fn submit_to<T: Send + 'static>(
        &self,
        lane: &str,
        push: impl FnOnce(Job) -> std::result::Result<(), Refused>,
        key: &DbKey,
        check: DriveCheck,
        f: impl FnOnce(&Inner, &Lease) -> Result<T> + Send + 'static,
    ) -> Result<oneshot::Receiver<Result<T>>> {
        let db = self.inner.lease(key)?;
        let inner = Arc::clone(&self.inner);
        let (reply, receiver) = oneshot::channel();
        let job: Job = Box::new(move || {
            if reply.is_canceled() {
                return;
            }
            let checked = check.check(&inner.config.devices.join(&*db.key.device));
            if let Err(IndexError::NotMounted { .. }) = &checked {
                db.mark_idle(&inner.config);
            }
            let result = checked.and_then(|()| f(&inner, &db));
            drop(db);
            // The caller may be gone.
            let _ = reply.send(result);
        });
        match push(job) {
            Ok(()) => Ok(receiver),
            Err(_) => Err(self.inner.refused(lane)),
        }
    }

    /// Queues an update of one database, and schedules a drain.
    pub(crate) fn submit_update(&self, key: &DbKey, update: Box<dyn Update>) -> Result<()> {
        let device = self.inner.device(key)?;
        let db = self.inner.lease(key)?;
        {
            let mut queue = db.queue.lock();
            if queue.updates.len() >= self.inner.config.updates_max {
                return Err(self.inner.refused(&format!("database {}", key.hash.hex())));
            }
            queue.updates.push_back(update);
            if queue.is_gathered() {
                db.gathered.notify_one();
            }
            if std::mem::replace(&mut queue.draining, true) {
                return Ok(());
            }
        }
        // A refused drain fails the queued updates.
        let owner: Arc<dyn Owner> = self.inner.clone();
        let drain = Drain::new(owner, Arc::clone(&device), db);
        let _ = device.write.push(Class::Client, drain);
        Ok(())
    }

    /// Closes a database that is not in use, its log merged into the file. True if it is closed:
    /// its file may then be copied or moved. Blocks.
    pub fn close_db(&self, key: &DbKey) -> bool {
        let db = self.inner.open.lock().get(key).map(Lease::of);
        if let Some(db) = db {
            self.inner.merge_log(&db, true);
        }
        let mut open = self.inner.open.lock();
        let busy = open
            .get(key)
            .is_some_and(|db| db.is_leased() || db.has_log());
        if busy {
            return false;
        }
        let db = open.remove(key);
        drop(open);
        drop(db);
        true
    }

    /// Removes a database, its folder, and parents that become empty. False if it is in use.
    ///
    /// # Errors
    /// `Io` or `DriveFailed` if the folder cannot be removed; part of it may be gone.
    pub fn remove_db(&self, key: &DbKey) -> Result<bool> {
        if !self.close_db(key) {
            return Ok(false);
        }
        let removed = files::remove_db_folder(key, self.devices());
        self.inner.waiters.wake(key);
        removed.map(|()| true)
    }

    /// Writes a consistent copy of a database to a new file at `to`, concurrently with readers and
    /// writers. Blocks; not for an event loop's thread.
    ///
    /// # Errors
    /// `NotFound` without the database, `Sqlite` if a file at `to` has content, `Closed` after
    /// [`IndexPool::close_all`]; else those of opening and reading the database: see
    /// [`ContainerDb`].
    pub fn copy_db(&self, key: &DbKey, to: PathBuf) -> Result<()> {
        let db = self.inner.lease(key)?;
        db.copy_to(&self.inner.config, &to)
    }

    /// Whether jobs wait for this device's threads; background work should then wait, too.
    pub fn is_busy(&self, device: &str) -> bool {
        let devices = self.inner.devices.lock();
        let lanes = devices.get(device);
        lanes.is_some_and(|device| device.read.waiting() + device.write.waiting() > 0)
    }

    /// Begins to wait for the next update of a database.
    pub(crate) fn wait(&self, key: &DbKey) -> Wait {
        self.inner.waiters.wait(key)
    }

    /// Number of open databases.
    pub fn open_count(&self) -> usize {
        self.inner.open.lock().len()
    }

    /// Finishes queued work, refuses more, and closes every database into a single file. Blocks.
    pub fn close_all(&self) {
        self.inner.closed.store(true, Ordering::SeqCst);
        self.inner.waiters.wake_all();
        *self.stop.is_set.lock() = true;
        self.stop.changed.notify_all();
        let janitor = self.janitor.lock().take();
        if let Some(janitor) = janitor {
            // The janitor only waits and schedules; a panic there has been reported.
            let _ = janitor.join();
        }
        let devices: Vec<_> = self.inner.devices.lock().drain().collect();
        for (_, device) in devices {
            device.close();
        }
        let open = std::mem::take(&mut *self.inner.open.lock());
        // In key order, so that a simulator's seed repeats itself.
        for (_, db) in open.into_iter().collect::<BTreeMap<_, _>>() {
            self.inner.merge_log(&db, true);
        }
    }
}

/// Databases that take rows by a call.
pub trait TakesRows: Send + Sync {
    /// Keeps an object's row in memory until it is merged with others, which readers see from then on. The
    /// log of the object's device owes it until it is durable here. Never waits.
    ///
    /// # Errors
    /// It is given back, to be sent as a request: the database is not open, is not of this process alone, or
    /// has too many rows, or too many databases are open.
    #[allow(clippy::result_large_err, reason = "given back as it came")]
    fn take_row(
        &self,
        key: &DbKey,
        row: ObjectRow,
        debt: Debt,
    ) -> std::result::Result<(), (ObjectRow, Debt)>;
}

impl TakesRows for IndexPool {
    fn take_row(
        &self,
        key: &DbKey,
        row: ObjectRow,
        debt: Debt,
    ) -> std::result::Result<(), (ObjectRow, Debt)> {
        let inner = &self.inner;
        let is_closed = inner.closed.load(Ordering::SeqCst) || inner.config.is_simulated();
        let open = match is_closed {
            true => None,
            false => inner.lease_open(key),
        };
        let Some(db) = open.filter(|db| db.takes_rows()) else {
            return Err((row, debt));
        };
        let Writer::Exclusive(writer) = &db.writer else {
            return Err((row, debt));
        };
        db.mark_used();
        let (taken, is_to_be_merged) = writer.backed.take(row, debt);
        if is_to_be_merged {
            inner.merge_backed(db);
        }
        if taken.is_ok() {
            inner.waiters.wake(key);
        }
        taken
    }
}

impl Drop for IndexPool {
    fn drop(&mut self) {
        self.close_all();
    }
}

impl Owner for Inner {
    fn config(&self) -> &IndexConfig {
        &self.config
    }

    fn forget(&self, db: &Lease) {
        let mut open = self.open.lock();
        if db.is_sole() && db.queue.lock().updates.is_empty() {
            open.remove(&db.key);
        }
    }

    fn updated(&self, db: &Lease) {
        self.waiters.wake(&db.key);
    }

    fn refused(&self, what: &str) -> IndexError {
        if self.closed.load(Ordering::SeqCst) {
            IndexError::Closed
        } else {
            IndexError::Busy { what: what.into() }
        }
    }
}

impl Inner {
    fn device(&self, key: &DbKey) -> Result<Arc<Device>> {
        let mut devices = self.devices.lock();
        if self.closed.load(Ordering::SeqCst) {
            return Err(IndexError::Closed);
        }
        if let Some(device) = devices.get(&key.device) {
            return Ok(Arc::clone(device));
        }
        let device = Arc::new(Device::new(&key.device, &self.config));
        devices.insert(Arc::clone(&key.device), Arc::clone(&device));
        Ok(device)
    }

    /// Opens or finds the database and leases it. Above the limit, the least recently used one is
    /// closed.
    fn lease(&self, key: &DbKey) -> Result<Lease> {
        let (db, surplus) = {
            let mut open = self.open.lock();
            if self.closed.load(Ordering::SeqCst) {
                return Err(IndexError::Closed);
            }
            let db = open
                .entry(key.clone())
                .or_insert_with(|| Arc::new(Db::new(key.clone(), &self.config)));
            let db = Lease::of(db);
            db.mark_used();
            let mut surplus = None;
            if open.len() > self.config.open_max {
                let unused = open
                    .values()
                    .filter(|db| !db.is_leased() && !db.owes_rows());
                let oldest = unused.min_by_key(|db| db.last_use());
                let oldest = oldest.map(|db| db.key.clone());
                surplus = oldest.and_then(|key| open.remove(&key));
            }
            (db, surplus)
        };
        if let Some(surplus) = surplus {
            self.close_on_its_device(surplus);
        }
        Ok(db)
    }

    /// Leases a database that is open; none where too many are: one that owes rows is not closed for others.
    fn lease_open(&self, key: &DbKey) -> Option<Lease> {
        let open = self.open.lock();
        let is_crowded = open.len() > self.config.open_max;
        open.get(key).filter(|_| !is_crowded).map(Lease::of)
    }

    /// Closes on the device's threads, as closing syncs.
    fn close_on_its_device(&self, db: Arc<Db>) {
        match self.device(&db.key) {
            Ok(device) => device
                .write
                .push_rest(SingleJob::new(Box::new(move || drop(db)))),
            Err(_) => drop(db),
        }
    }

    /// Schedules a merge of rows that are in memory alone.
    fn merge_backed(self: &Arc<Self>, db: Lease) {
        let Ok(device) = self.device(&db.key) else {
            return;
        };
        let inner = Arc::clone(self);
        device.merge.push_rest(Box::new(move || {
            if let Writer::Exclusive(writer) = &db.writer {
                db.or_log_error(|| writer.merge_backed(&db, &inner.config));
            }
        }));
    }

    fn merge_log(&self, db: &Db, close: bool) {
        db.or_log_error(|| db.merge_log(&self.config, close));
    }

    /// Schedules merges of old logs, and closing of idle databases' logs. A database is closed only
    /// after its log: otherwise a new opener could write to the log meanwhile.
    fn merge_old_logs(self: &Arc<Self>) {
        let open: Vec<_> = self.open.lock().values().map(Lease::of).collect();
        for db in open {
            let is_idle = db.is_idle(self.config.idle_close);
            let is_old = |since: Instant| {
                since.elapsed() >= self.config.idle_close * MERGE_AFTER_IDLE_CLOSES
            };
            let is_due = match is_idle {
                true => db.has_log(),
                false => db.logged_since().is_some_and(is_old),
            };
            if !is_due {
                if db.has_old_rows() {
                    self.merge_backed(db);
                }
                continue;
            }
            let Ok(device) = self.device(&db.key) else {
                return;
            };
            let inner = Arc::clone(self);
            let job = Box::new(move || inner.merge_log(&db, is_idle));
            device.write.push_rest(SingleJob::new(job));
        }
    }

    fn close_idle(&self) {
        let idle: Vec<Arc<Db>> = {
            let mut open = self.open.lock();
            let is_idle = |db: &Arc<Db>| {
                !db.is_leased() && db.is_idle(self.config.idle_close) && !db.has_log()
            };
            let keys: Vec<DbKey> = open
                .values()
                .filter(|db| is_idle(db))
                .map(|db| db.key.clone())
                .collect();
            keys.iter().filter_map(|key| open.remove(key)).collect()
        };
        for db in idle {
            self.close_on_its_device(db);
        }
    }
}

fn close_idle_until_stopped(inner: &Weak<Inner>, stop: &Stop) {
    let mut stopped = stop.is_set.lock();
    while !*stopped {
        let pause = match inner.upgrade() {
            Some(inner) => (inner.config.idle_close / 4)
                .clamp(Duration::from_millis(10), Duration::from_secs(1)),
            None => return,
        };
        stopped.wait_for(&stop.changed, pause);
        if let Some(inner) = inner.upgrade().filter(|_| !*stopped) {
            inner.merge_old_logs();
            inner.close_idle();
        }
    }
}
