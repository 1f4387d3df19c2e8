//! Operation of the write lane that drains a database's queue: one transaction, synced together
//! with those of other databases; then waiters are notified.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use cairn_device::{Advanced, Operation};

use super::Inner;
use crate::config::IndexConfig;
use crate::db::commit::{self, Commit};
use crate::db::{Db, Lease, Writer};
use crate::device::{Databases, Device};

/// One database's drain. Updates queued before its commit's sync belong to the next drain: a
/// database has one at a time.
pub(crate) struct Drain {
    inner: Arc<Inner>,
    device: Arc<Device>,
    db: Lease,
    /// Its commits, while they wait for their sync.
    commits: Option<Vec<Commit>>,
    has_ended: bool,
}

impl Drain {
    pub(crate) fn new(inner: Arc<Inner>, device: Arc<Device>, db: Lease) -> Box<Self> {
        Box::new(Drain {
            inner,
            device,
            db,
            commits: None,
            has_ended: false,
        })
    }

    /// Schedules a drain of the updates queued meanwhile, perhaps on another thread.
    fn schedule_next(&mut self) {
        self.has_ended = true;
        let (inner, device, db) = (&self.inner, &self.device, &self.db);
        if db.has_more() {
            let next = Drain::new(inner.clone(), device.clone(), db.clone());
            device.write.push_rest(next);
        } else if !db.is_open() {
            inner.forget(db);
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
            commit::complete_all(commits, Ok(()));
            return Advanced::Ended(None);
        }
        let config = &self.inner.config;
        if is_alone && !config.is_simulated() {
            self.db.gather();
        }
        let commits = self.db.drain(config);
        if let Writer::Exclusive(writer) = &self.db.writer
            && writer.is_half_full()
        {
            let (inner, db) = (self.inner.clone(), self.db.clone());
            let merge = move || merge_half(&db, &inner.config);
            self.device.merge.push_rest(Box::new(merge));
        }
        match commit::set_of(&commits) {
            Some(set) => {
                self.commits = Some(commits);
                Advanced::Sync(set)
            }
            None => {
                self.schedule_next();
                Advanced::Ended(None)
            }
        }
    }

    fn sync_failed(&mut self, (): &(), error: &io::Error) {
        commit::fail_all(self.commits.as_deref().unwrap_or_default(), error);
    }

    fn fail(&mut self, (): &(), error: &io::Error) {
        let commits = self.commits.take().unwrap_or_default();
        self.schedule_next();
        commit::complete_all(commits, Err(error));
    }

    fn refuse(&mut self, error: &Infallible) {
        match *error {}
    }
}

impl Drop for Drain {
    /// Fails the waiters if the drain did not end (a panic, or no thread).
    fn drop(&mut self) {
        if !self.has_ended {
            self.db.refuse_all(|| self.inner.refused("a write thread"));
        }
    }
}
