//! Commits whose sync is still to come. A write thread makes the transactions of all databases that
//! wait for it, then syncs once for all of them, and only then tells those who wait.

use std::cell::{Cell, RefCell};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_types::plant::Plant;

use crate::config::{CommitSync, IndexConfig, SyncWeight};
use crate::db::Update;
use crate::held::{Held, SyncedFile};
use crate::{IndexError, Result};

/// A transaction that is committed, but not yet on disk.
pub(crate) struct Commit {
    pub(crate) file: Arc<Path>,
    pub(crate) held: Arc<Held>,
    pub(crate) log: CommitLog,
    pub(crate) sync: CommitSync,
    pub(crate) waiting: Vec<(Box<dyn Update>, Result<()>)>,
}

/// What a sync must reach.
pub(crate) enum CommitLog {
    /// SQLite's own, beside the file; whether its name in its folder is on disk, too.
    Wal(Arc<AtomicBool>),
    /// The pending file; whether its size, and its name in its folder, are on disk, too.
    Pending(Arc<SyncedFile>, Arc<AtomicBool>),
}

type Then = Box<dyn FnOnce()>;

thread_local! {
    static COMMITS: RefCell<Vec<Commit>> = const { RefCell::new(Vec::new()) };
    static THEN: RefCell<Vec<Then>> = const { RefCell::new(Vec::new()) };
    static IS_ALONE: Cell<bool> = const { Cell::new(false) };
}

/// Says whether the job that comes is this thread's only one before the next [`flush`], with
/// others that may bring more meanwhile.
pub(crate) fn set_alone(is_alone: bool) {
    IS_ALONE.set(is_alone);
}

pub(crate) fn is_alone() -> bool {
    IS_ALONE.get()
}

/// Tells those who wait for a commit at this thread's next [`flush`].
pub(crate) fn push(commit: Commit) {
    COMMITS.with_borrow_mut(|commits| commits.push(commit));
}

/// Done after this thread's next [`flush`].
pub(crate) fn then(f: Then) {
    THEN.with_borrow_mut(|all| all.push(f));
}

/// Syncs what this thread has committed, and tells everyone.
pub(crate) fn flush() {
    let commits = COMMITS.take();
    let synced = commits
        .first()
        .map_or(Ok(()), |first| sync(first, &commits));
    // Another thread may go on meanwhile.
    THEN.take().into_iter().for_each(|then| then());
    tell_all(commits, &synced);
}

fn tell_all(commits: Vec<Commit>, synced: &io::Result<()>) {
    if let Err(error) = synced {
        // Before the first hears of it, who may try again at once.
        commits.iter().for_each(|commit| commit.held.fail(error));
    }
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

fn sync(first: &Commit, commits: &[Commit]) -> io::Result<()> {
    let is_pending = |commit: &Commit| matches!(commit.log, CommitLog::Pending(..));
    if Plant::UnsyncedCommit.is_on()
        || (Plant::UnsyncedPending.is_on() && commits.iter().all(is_pending))
    {
        return Ok(());
    }
    let own = || commits.iter().try_for_each(sync_alone);
    let weight = SyncWeight::Of(commits.iter().map(Commit::weight).sum());
    let on = match &first.log {
        CommitLog::Pending(log, _) => log,
        CommitLog::Wal(_) => &first.held.folder,
    };
    (first.sync)(&on.file, weight, &own)
}

impl Commit {
    /// How many syncs of entries alone it is like.
    fn weight(&self) -> usize {
        match &self.log {
            CommitLog::Wal(_) => 2,
            CommitLog::Pending(..) => 1,
        }
    }
}

fn sync_alone(commit: &Commit) -> io::Result<()> {
    let held = &commit.held;
    match &commit.log {
        CommitLog::Wal(is_named) => held.sync_wal(is_named),
        CommitLog::Pending(file, is_named) if is_named.load(Ordering::Acquire) => {
            file.sync(held, false)
        }
        CommitLog::Pending(file, _) => {
            file.sync(held, true)?;
            held.folder.sync(held, true)
        }
    }
}

/// Syncs what has been committed to an exclusive database at once.
pub(crate) fn sync_now(
    config: &IndexConfig,
    held: &Held,
    weight: SyncWeight,
    is_named: &AtomicBool,
) -> io::Result<()> {
    if Plant::PendingTooSoon.is_on() {
        return Ok(());
    }
    let own = || held.sync_wal(is_named);
    held.sync(&config.commit_sync, &held.folder.file, weight, &own)?;
    is_named.store(true, Ordering::Release);
    Ok(())
}
