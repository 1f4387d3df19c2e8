//! Closes that do not wait for the store (`--close=async`): the file's writes go to the journal, and to
//! the store a second later. A mount that begins with entries in its journal puts their writes over
//! the versions on the store.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::RwLockWriteGuard;

use super::Vfs;
use super::commits::CONCURRENT_COMMITS_MAX;
use super::tree::{Node, State, below};
use crate::attributes::{Attributes, Kind, Xattrs};
use crate::content::{Content, Layout};
use crate::error::{FsError, FsResult};
use crate::history;
use crate::journal::{Entry, Journal, Reading, Record};
use crate::store::{SEGMENTS, Stat, Store, Why};
use crate::time::Time;

const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Entries of a journal that a mount has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Replayed {
    /// Files whose writes go to the store now.
    pub(crate) files: usize,
    /// Entries whose writes were on the store.
    pub(crate) stored: usize,
    /// Entries of closes that had not ended.
    pub(crate) incomplete: usize,
    /// Entries that stay in the journal, as the log says.
    pub(crate) left: usize,
}

/// The use of an entry.
enum Use {
    Restored,
    Stored,
    Incomplete,
    /// Why its writes cannot be made.
    Left(&'static str),
}

impl<S: Store> Vfs<S> {
    /// Makes closes wait for a journal instead of the store.
    pub(crate) fn with_journal(mut self, journal: Journal) -> Vfs<S> {
        self.journal = Some(Arc::new(journal));
        self
    }

    /// Makes what was written to a file durable, as a close promises.
    pub(super) async fn commit_close(&self, node: &Arc<Node>) -> FsResult<()> {
        match self.keep(node).await {
            true => Ok(()),
            false => self.commit_with_others(node).await,
        }
    }

    /// Puts a file's writes into the journal. Returns false if there is none, or if the file has to
    /// be committed instead.
    async fn keep(&self, node: &Arc<Node>) -> bool {
        let Some(journal) = &self.journal else {
            return false;
        };
        let _names = self.namespace.read().await;
        let _turn = node.mutation.lock().await;
        if node.state.lock().is_kept {
            return true;
        }
        let Some(record) = self.record(node).filter(|_| !journal.is_full()) else {
            return false;
        };
        let (kept, ino) = (journal.clone(), node.ino);
        let written = tokio::task::spawn_blocking(move || kept.write(ino, &record));
        match written.await.map_err(std::io::Error::other) {
            Ok(Ok(())) => {
                node.state.lock().is_kept = true;
                true
            }
            Ok(Err(error)) | Err(error) => {
                tracing::warn!(%error, "the journal cannot be written: closes wait for the store");
                false
            }
        }
    }

    /// The record of a file for the journal. A commit in doubt may be on the store, and a file of several
    /// names may change its name: such files are committed.
    fn record(&self, node: &Node) -> Option<Record> {
        let path = self.tree.lock().path(node.ino)?;
        let token = self.committer.token();
        let state = node.state.lock();
        let can_be = state.is_dirty()
            && state.is_loaded
            && !state.is_unlinked
            && state.attempts.is_empty()
            && !path.starts_with(&below(SEGMENTS));
        let saved = state.content.saved().filter(|_| can_be)?;
        // More is written to the disk again at each close: the store gets it in segments.
        let bytes = saved.written.iter().map(|(_, length, _)| length);
        if bytes.sum::<u64>() > self.options.limits.whole_bytes {
            return None;
        }
        let mut headers = state.headers.clone();
        state.attributes.put_into(&mut headers, &state.xattrs);
        Some(Record {
            path,
            token,
            etag: state.etag.clone(),
            headers,
            has_new_attributes: state.has_new_attributes,
            saved,
        })
    }

    /// A file's writes are on the store, or are not needed any more.
    pub(super) fn forget_close(&self, node: &Node) {
        if let Some(journal) = &self.journal {
            node.state.lock().is_kept = false;
            journal.done(node.ino);
        }
    }

    /// Waits until entries that are not needed any more have gone: a name that was removed or moved must
    /// not come back by them. Returns false if they cannot be removed.
    pub(crate) async fn settle_closes(&self) -> bool {
        let Some(journal) = self.journal.clone() else {
            return true;
        };
        let removed = tokio::task::spawn_blocking(move || journal.remove_done()).await;
        match removed.map_err(std::io::Error::other) {
            Ok(Ok(())) => true,
            Ok(Err(error)) | Err(error) => {
                tracing::warn!(%error, "entries of the journal cannot be removed");
                false
            }
        }
    }

    /// The lock of all names, while no closed file below a directory is only in the journal: its entry
    /// has the old name.
    pub(super) async fn without_closes_below(
        &self,
        directory: &str,
    ) -> FsResult<RwLockWriteGuard<'_, ()>> {
        loop {
            let names = self.namespace.write().await;
            let waiting = self.closes_below(directory);
            if waiting.is_empty() {
                return Ok(names);
            }
            drop(names);
            for node in waiting {
                self.commit(&node).await?;
            }
            self.settle_closes().await;
        }
    }

    fn closes_below(&self, directory: &str) -> Vec<Arc<Node>> {
        let Some(journal) = &self.journal else {
            return Vec::new();
        };
        let (pending, prefix) = (journal.pending(), below(directory));
        let tree = self.tree.lock();
        let is_below = |ino: &u64| {
            tree.path(*ino)
                .is_some_and(|path| path.starts_with(&prefix))
        };
        let inside = pending.into_iter().filter(is_below);
        inside.filter_map(|ino| tree.node(ino)).collect()
    }

    /// Writes closed files to the store. Runs until it is dropped.
    pub(crate) async fn send_closed(&self) {
        let Some(journal) = &self.journal else {
            return;
        };
        loop {
            let due = journal.due().await;
            let commits = futures_util::stream::iter(due).map(|ino| self.send(journal, ino));
            let commits = commits.buffer_unordered(CONCURRENT_COMMITS_MAX);
            commits.collect::<()>().await;
            if !self.settle_closes().await {
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }

    async fn send(&self, journal: &Journal, ino: u64) {
        let Some(node) = self.tree.lock().node(ino) else {
            return journal.done(ino);
        };
        match self.commit(&node).await {
            Ok(()) => {
                let _turn = node.mutation.lock().await;
                // It may have been closed again meanwhile.
                if !node.state.lock().is_dirty() {
                    self.forget_close(&node);
                }
            }
            Err(FsError::Stale) => {
                let _turn = node.mutation.lock().await;
                tracing::warn!("a closed file was removed elsewhere before it was stored");
                self.forget_close(&node);
            }
            Err(error) => {
                let tries = journal.again(ino);
                let path = self.path(ino).unwrap_or_default();
                tracing::warn!(path, %error, tries, "a closed file is in the journal, not on the store");
            }
        }
    }

    /// Puts the writes of a journal's entries over the versions on the store; the first commits follow
    /// at once, as [`Vfs::send_closed`] runs.
    pub(crate) async fn replay(&self, numbers: &[u64]) -> FsResult<Replayed> {
        let mut replayed = Replayed::default();
        let Some(journal) = self.journal.clone() else {
            return Ok(replayed);
        };
        for number in journal.latest(numbers).map_err(unreadable)? {
            let file = journal.path(number).display().to_string();
            let used = match journal.read(number).map_err(unreadable)? {
                Reading::Whole(entry) => self.restore(&journal, number, &entry).await?,
                Reading::Incomplete => Use::Incomplete,
                Reading::Damaged => Use::Left("it is damaged"),
            };
            match used {
                Use::Restored => replayed.files += 1,
                Use::Stored => {
                    replayed.stored += 1;
                    journal.forget(number);
                }
                Use::Incomplete => {
                    replayed.incomplete += 1;
                    journal.forget(number);
                }
                Use::Left(why) => {
                    replayed.left += 1;
                    tracing::error!(file, why, "an entry of the journal stays there");
                }
            }
        }
        self.settle_closes().await;
        Ok(replayed)
    }

    async fn restore(&self, journal: &Journal, number: u64, entry: &Entry) -> FsResult<Use> {
        let path = &entry.head.path;
        let stat = match self.store.head_newest(path).await {
            Ok(stat) => Some(stat),
            Err(error) if error.why == Why::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        if let Some(stat) = &stat {
            if history::reaches(&stat.headers, &entry.head.token) {
                return Ok(Use::Stored);
            }
            if stat.home.is_some() {
                return Ok(Use::Left("the name is a hard link now"));
            }
            if Kind::of_content_type(&stat.headers.content_type) != Kind::File {
                return Ok(Use::Left("the name is no file any more"));
            }
        } else if !entry.is_whole() {
            return Ok(Use::Left("the file that it changes was removed"));
        }
        let node = self.restored(entry, stat).await?;
        journal.adopt(node.ino, number);
        // Under this mount's name, so that its commit is known again.
        if !self.keep(&node).await || self.budget.used() > self.options.unwritten_bytes {
            self.commit(&node).await?;
        }
        Ok(Use::Restored)
    }

    /// The node of an entry's file, with its writes.
    async fn restored(&self, entry: &Entry, stat: Option<Stat>) -> FsResult<Arc<Node>> {
        let (path, headers) = (&entry.head.path, &entry.head.headers);
        let attributes = Attributes::of_headers(headers, Time::now(), self.options.defaults);
        let mtime = attributes.mtime;
        let is_new = stat.is_none() || entry.head.etag.is_none();
        let (mut state, layout) = match stat {
            Some(stat) => {
                let layout = self.layout(path, &stat.etag, stat.form, stat.bytes);
                let layout = layout.await?;
                (self.state_of(stat), layout)
            }
            None => {
                let mut state = State::new(attributes.clone());
                state.headers = headers.clone();
                (state, Layout::default())
            }
        };
        if entry.head.has_new_attributes || is_new {
            state.attributes = attributes;
            state.xattrs = Xattrs::of_headers(headers);
            state.has_new_attributes = true;
        }
        state.has_xattrs = !state.xattrs.0.is_empty();
        state.attributes.mtime = mtime;
        state.content = Content::of_saved(entry.saved(&self.budget), layout);
        state.is_loaded = true;
        Ok(self.tree.lock().add(path, state))
    }
}

fn unreadable(error: std::io::Error) -> FsError {
    FsError::Journal(error.to_string())
}
