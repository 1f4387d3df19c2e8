//! Group commit: all updates of a database that wait become one transaction, or entries of its log,
//! which is synced together with those of other databases; then their waiters are notified.
//!
//! Updates queue ([`Queue`]). A [`Drain`], which is an operation of the device's write lane, takes all
//! that wait, writes them ([`Db::drain`]), asks the lane for the sync of its [`Commit`]s, and
//! completes them. Updates queued meanwhile belong to the next drain: a database has one at a time.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cairn_device::{Advanced, Operation, SyncSet};
use cairn_types::heuristic::Heuristic;
use cairn_types::plant::Plant;

use super::writer::Updates;
use super::{Db, Lease, Update, Writer};
use crate::config::IndexConfig;
use crate::device::{Databases, Device};
use crate::held::{CommitLog, Held, SyncMode};
use crate::{DriveCheck, IndexError, Result, drive};

/// Maximum wait of a batch for more updates: a fraction of a sync's time.
const GATHER_MAX: Duration = Duration::from_micros(100);

#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) updates: VecDeque<Box<dyn Update>>,
    /// Whether a thread has been scheduled to drain it.
    pub(crate) draining: bool,
    /// Sizes of the last two batches.
    last: [usize; 2],
    /// Number of updates that a thread waits for.
    awaited: Option<usize>,
}

impl Queue {
    /// Takes the updates of the next transaction.
    pub(super) fn take(&mut self, most: usize) -> Vec<Box<dyn Update>> {
        let count = self.updates.len().min(most.max(1));
        self.last = [self.last[1], count];
        self.updates.drain(..count).collect()
    }

    pub(crate) fn is_gathered(&self) -> bool {
        self.awaited
            .is_some_and(|count| self.updates.len() >= count)
    }
}

impl Db {
    /// Waits briefly for as many updates as recent batches had. Their clients were notified
    /// together and return at about the same time: a sync that started with the first would make
    /// the others wait for two.
    pub(crate) fn gather(&self) {
        if Heuristic::GatherUpdates.is_off() {
            return;
        }
        let mut queue = self.queue.lock();
        let count = queue.last.iter().sum::<usize>() / 2;
        if queue.updates.len() < count {
            queue.awaited = Some(count);
            queue.wait_while_for(&self.gathered, |queue| !queue.is_gathered(), GATHER_MAX);
            queue.awaited = None;
        }
    }

    /// Fails all queued updates: no thread can apply them.
    pub(crate) fn refuse_all(&self, error: impl Fn() -> IndexError) {
        let refused = {
            let mut queue = self.queue.lock();
            queue.draining = false;
            std::mem::take(&mut queue.updates)
        };
        for update in refused {
            update.finish(Err(error()));
        }
    }

    /// Whether updates are queued. If not, the next to queue one schedules a thread.
    pub(crate) fn has_more(&self) -> bool {
        let mut queue = self.queue.lock();
        queue.draining = !queue.updates.is_empty();
        queue.draining
    }

    /// Makes one transaction of the queued updates; returns the commits that still need a sync.
    pub(crate) fn drain(&self, config: &IndexConfig) -> Vec<Commit> {
        let mut commits = Vec::new();
        let batch = self.queue.lock().take(config.batch_max);
        let write = AssertUnwindSafe(|| self.write(config, batch, &mut commits));
        if catch_unwind(write).is_err() {
            // Waiters see a closed channel; the transaction ended with its connection.
            tracing::error!(hash = %self.key.hash.hex(), "an update panicked");
            self.forget(&mut self.connection.lock());
        }
        commits
    }

    fn write(&self, config: &IndexConfig, batch: Updates, commits: &mut Vec<Commit>) {
        let mut batch = self.filter_by_device(config, batch);
        self.ensure_room(config);
        let mut lock = match self.connection.try_lock() {
            Some(lock) => lock,
            None => match self.writer.log_beside(self, config, batch, commits) {
                None => return,
                Some(left) => {
                    batch = left;
                    self.connection.lock()
                }
            },
        };
        let mut batch = VecDeque::from(batch);
        while !batch.is_empty() {
            let opened = match self.open(config, &mut lock) {
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
            let Some(conn) = lock.as_ref() else { return };
            let writing = self.writing(config, conn, &opened);
            let updates = batch.drain(..).collect();
            let Some(updates) = self.writer.log_rows(writing, updates, commits) else {
                return;
            };
            let failed = match self.writer.settle(writing) {
                Ok(()) => self.transact(writing, updates, commits),
                Err(error) => Some(self.fail_rolled_back(writing, error, updates)),
            };
            let is_undone = conn.is_autocommit();
            match failed {
                Some(error) if error.spoils_connection() || !is_undone => {
                    self.forget_after(&error, &mut lock);
                }
                None if !is_undone => self.forget(&mut lock),
                _ => {}
            }
        }
    }

    /// Filters updates by the condition of their device; the others fail.
    fn filter_by_device(&self, config: &IndexConfig, batch: Updates) -> Updates {
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

    fn ensure_room(&self, config: &IndexConfig) {
        let device = config.devices.join(&*self.key.device);
        drive::ensure_room(&device, |device| (config.make_room)(device));
    }
}

/// A committed transaction that is not durable yet.
pub(crate) struct Commit {
    pub(crate) file: Arc<Path>,
    pub(crate) held: Arc<Held>,
    pub(crate) log: CommitLog,
    pub(crate) waiting: Vec<(Box<dyn Update>, Result<()>)>,
}

impl Commit {
    /// The sync set that must be durable before waiters are notified.
    fn set(&self) -> SyncSet {
        let held = &self.held;
        match &self.log {
            _ if Plant::UnsyncedCommit.is_on() => SyncSet::on(&held.file_system),
            CommitLog::Wal(is_named) => held.wal_set(is_named),
            CommitLog::Pending(..) if Plant::UnsyncedPending.is_on() => {
                SyncSet::on(&held.file_system)
            }
            CommitLog::Pending(file, is_named) => {
                let is_new = !is_named.load(Ordering::Acquire);
                let mut set = held.set_of(file, is_new);
                if is_new {
                    set.add_database(held.folder.clone(), true);
                }
                set
            }
        }
    }
}

/// The union of the commits' sync sets; `None` if nothing needs a sync.
pub(crate) fn set_of(commits: &[Commit]) -> Option<SyncSet> {
    let mut sets = commits.iter().map(Commit::set);
    let mut set = sets.next()?;
    sets.for_each(|more| set.merge(more));
    Some(set)
}

/// Marks all databases as failed before any waiter is notified, which may retry at once.
pub(crate) fn fail_all(commits: &[Commit], error: &io::Error) {
    commits.iter().for_each(|commit| commit.held.fail(error));
}

/// Notifies all waiters of the sync's result.
pub(crate) fn complete_all(commits: Vec<Commit>, synced: std::result::Result<(), &io::Error>) {
    for commit in commits {
        let failed = |error: &io::Error| match error.raw_os_error() {
            Some(number) => IndexError::io(&commit.file, io::Error::from_raw_os_error(number)),
            None => IndexError::io(
                &commit.file,
                io::Error::new(error.kind(), error.to_string()),
            ),
        };
        let outcome = match (synced, commit.held.believed()) {
            (Err(error), _) => Err(failed(error)),
            (_, Err(error)) => Err(failed(&error)),
            _ => {
                let (CommitLog::Wal(is_named) | CommitLog::Pending(_, is_named)) = &commit.log;
                is_named.store(true, Ordering::Release);
                Ok(())
            }
        };
        for (update, applied) in commit.waiting {
            update.finish(outcome.clone().and(applied));
        }
    }
}

/// Syncs commits of an exclusive database at once.
pub(crate) fn sync_now(held: &Held, mode: SyncMode, is_named: &AtomicBool) -> io::Result<()> {
    if Plant::PendingTooSoon.is_on() {
        return Ok(());
    }
    held.sync(&held.wal_set(is_named), mode)?;
    is_named.store(true, Ordering::Release);
    Ok(())
}

/// The pool that opened a database, as its drains need it.
pub(crate) trait Owner: Send + Sync {
    fn config(&self) -> &IndexConfig;
    /// Drops the entry of a database that does not exist.
    fn forget(&self, db: &Lease);
    /// Tells those who wait for changes of a database that updates have ended.
    fn updated(&self, db: &Lease);
    /// The error of work that `what` does not take.
    fn refused(&self, what: &str) -> IndexError;
}

/// One database's drain, an operation of the write lane.
pub(crate) struct Drain {
    owner: Arc<dyn Owner>,
    device: Arc<Device>,
    db: Lease,
    /// Its commits, while they wait for their sync.
    commits: Option<Vec<Commit>>,
    has_ended: bool,
}

impl Drain {
    pub(crate) fn new(owner: Arc<dyn Owner>, device: Arc<Device>, db: Lease) -> Box<Self> {
        Box::new(Drain {
            owner,
            device,
            db,
            commits: None,
            has_ended: false,
        })
    }

    /// Schedules a drain of the updates queued meanwhile, perhaps on another thread.
    fn schedule_next(&mut self) {
        self.has_ended = true;
        let (owner, device, db) = (&self.owner, &self.device, &self.db);
        if db.has_more() {
            let next = Drain::new(owner.clone(), device.clone(), db.clone());
            device.write.push_rest(next);
        } else if !db.is_open() {
            owner.forget(db);
        }
    }
}

/// Merges the full half of the log of an exclusive database.
fn merge_half(db: &Db, config: &IndexConfig) {
    if let Writer::Exclusive(writer) = &db.writer {
        db.or_log_error(|| writer.merge_half(db, config));
    }
}

impl Operation<Databases> for Drain {
    fn advance(&mut self, (): &(), is_alone: bool) -> Advanced {
        if let Some(commits) = self.commits.take() {
            self.schedule_next();
            complete_all(commits, Ok(()));
            self.owner.updated(&self.db);
            return Advanced::Ended(None);
        }
        let config = self.owner.config();
        if is_alone && !config.is_simulated() {
            self.db.gather();
        }
        let commits = self.db.drain(config);
        if let Writer::Exclusive(writer) = &self.db.writer
            && writer.is_half_full()
        {
            let (owner, db) = (self.owner.clone(), self.db.clone());
            let merge = move || merge_half(&db, owner.config());
            self.device.merge.push_rest(Box::new(merge));
        }
        match set_of(&commits) {
            Some(set) => {
                self.commits = Some(commits);
                Advanced::Sync(set)
            }
            None => {
                self.schedule_next();
                self.owner.updated(&self.db);
                Advanced::Ended(None)
            }
        }
    }

    fn sync_failed(&mut self, (): &(), error: &io::Error) {
        fail_all(self.commits.as_deref().unwrap_or_default(), error);
    }

    fn fail(&mut self, (): &(), error: &io::Error) {
        let commits = self.commits.take().unwrap_or_default();
        self.schedule_next();
        complete_all(commits, Err(error));
        self.owner.updated(&self.db);
    }

    fn refuse(&mut self, error: &Infallible) {
        match *error {}
    }
}

impl Drop for Drain {
    /// Fails the waiters if the drain did not end (a panic, or no thread).
    fn drop(&mut self) {
        if !self.has_ended {
            self.db.refuse_all(|| self.owner.refused("a write thread"));
        }
    }
}
