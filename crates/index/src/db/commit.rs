//! Commits that wait for their sync. A write thread commits transactions of all queued databases,
//! syncs once for all, and then notifies the waiters.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_device::SyncSet;
use cairn_types::plant::Plant;

use super::Update;
use crate::held::{CommitLog, Held, SyncWeight};
use crate::{IndexError, Result};

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
            CommitLog::Wal(is_named) => held.wal_set(is_named, SyncWeight::Of(2)),
            CommitLog::Pending(..) if Plant::UnsyncedPending.is_on() => {
                SyncSet::on(&held.file_system)
            }
            CommitLog::Pending(file, is_named) => {
                let is_new = !is_named.load(Ordering::Acquire);
                let mut set = held.set_of(file, is_new, SyncWeight::Of(1));
                if is_new {
                    set.add_database(held.folder.clone(), true, 1);
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
pub(crate) fn sync_now(held: &Held, weight: SyncWeight, is_named: &AtomicBool) -> io::Result<()> {
    if Plant::PendingTooSoon.is_on() {
        return Ok(());
    }
    held.sync(&held.wal_set(is_named, weight), weight)?;
    is_named.store(true, Ordering::Release);
    Ok(())
}
