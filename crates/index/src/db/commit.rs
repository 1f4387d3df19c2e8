//! Transactions that are committed and not yet on disk. A write thread makes those of all databases that
//! wait for it, then syncs once for all of them, and only then tells those who wait.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_device::{SyncSet, SyncedFile};
use cairn_types::plant::Plant;

use super::Update;
use crate::held::{Held, SyncWeight};
use crate::{IndexError, Result};

/// A transaction that is committed, but not yet on disk.
pub(crate) struct Commit {
    pub(crate) file: Arc<Path>,
    pub(crate) held: Arc<Held>,
    pub(crate) log: CommitLog,
    pub(crate) waiting: Vec<(Box<dyn Update>, Result<()>)>,
}

/// The log that a sync must reach.
pub(crate) enum CommitLog {
    /// SQLite's own, beside the file; whether its name in its folder is on disk, too.
    Wal(Arc<AtomicBool>),
    /// The pending file; whether its size, and its name in its folder, are on disk, too.
    Pending(Arc<SyncedFile>, Arc<AtomicBool>),
}

impl Commit {
    /// Everything that must be on disk before anybody is told.
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

/// Everything that must be on disk before anybody is told of these. `None`: nothing.
pub(crate) fn set_of(commits: &[Commit]) -> Option<SyncSet> {
    let mut sets = commits.iter().map(Commit::set);
    let mut set = sets.next()?;
    sets.for_each(|more| set.merge(more));
    Some(set)
}

/// The sync of these has failed: before the first hears of it, who may try again at once.
pub(crate) fn fail_all(commits: &[Commit], error: &io::Error) {
    commits.iter().for_each(|commit| commit.held.fail(error));
}

/// Tells everyone what came of the sync.
pub(crate) fn tell_all(commits: Vec<Commit>, synced: std::result::Result<(), &io::Error>) {
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

/// Syncs what has been committed to an exclusive database at once.
pub(crate) fn sync_now(held: &Held, weight: SyncWeight, is_named: &AtomicBool) -> io::Result<()> {
    if Plant::PendingTooSoon.is_on() {
        return Ok(());
    }
    held.sync(&held.wal_set(is_named, weight), weight)?;
    is_named.store(true, Ordering::Release);
    Ok(())
}
