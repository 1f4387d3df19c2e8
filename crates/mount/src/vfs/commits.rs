//! Commits of files: local writes become the next version on the store, based on the current one.
//!
//! A commit replaces exactly the version it is based on. If another mount was first, its version
//! becomes the base, and the commit is repeated. If the response was lost, the file's commit
//! history tells whether the commit took place.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;

use super::Vfs;
use super::gathering::Waiting;
use super::tree::{Attempt, Node, State};
use crate::cache::Version;
use crate::chance;
use crate::commit::{Target, is_index};
use crate::content::Layout;
use crate::error::{FsError, FsResult};
use crate::extents::Extents;
use crate::history;
use crate::store::{
    EMPTY_ETAG, Expect, Form, Headers, Segment, Stat, Store, StoreError, Why, asks_for_a_look,
    file_id, is_home,
};
use crate::time::Instant;
use crate::turns::Turn;

/// Maximum number of lost swaps of a commit. Each was won by another mount, so with fewer mounts
/// than this all succeed.
const SWAPS_MAX: u32 = 200;
/// Maximum attempts of a commit whose outcome stays unknown.
const DOUBTS_MAX: u32 = 4;
/// Number of lost swaps, or outdated reads, after which there is a random pause before the next
/// attempt, so that the writers do not retry together.
const SWAPS_WITHOUT_PAUSE: u32 = 2;
const PAUSE: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// Maximum number of attempts recorded per file while the store acknowledges none.
const ATTEMPTS_MAX: usize = 64;
/// Files committed concurrently in the background and at the end: if the store is unreachable, each
/// waits for its timeout.
pub(super) const CONCURRENT_COMMITS_MAX: usize = 8;

/// Maximum wait for flattening at the end: the file is complete without it.
const END_TIMEOUT: Duration = Duration::from_secs(3);

/// A version that was stored.
struct Written {
    etag: String,
    layout: Layout,
    headers: Headers,
    needed: HashSet<Arc<Segment>>,
}

pub(super) async fn pause(lost: u32) {
    if lost > SWAPS_WITHOUT_PAUSE {
        let most = (PAUSE * (lost - SWAPS_WITHOUT_PAUSE)).min(PAUSE_MAX);
        tokio::time::sleep(most.mul_f64(chance::part())).await;
    }
}

/// The segments of a file whose name is gone that may be removed with the name, or belong to another one
/// now: those of its version, and of what may have been one.
fn foreign(state: &State) -> HashSet<Arc<Segment>> {
    let mut segments: HashSet<Arc<Segment>> = state.content.base().segments().into_iter().collect();
    let doubtful = state.attempts.iter().filter(|attempt| attempt.is_in_doubt);
    segments.extend(doubtful.flat_map(|attempt| attempt.needed.iter().cloned()));
    segments.retain(|segment| file_id(&segment.name.name).is_some());
    segments
}

/// The nested manifests of lost attempts: no version refers to them, nor will one.
fn lost_indexes(state: &mut State) -> Vec<Arc<Segment>> {
    let lost = state.attempts.iter_mut().filter(|attempt| attempt.is_lost);
    let lost: Vec<Arc<Segment>> = lost
        .flat_map(|attempt| std::mem::take(&mut attempt.indexes))
        .collect();
    state.made.retain(|segment| !lost.contains(segment));
    lost
}

impl<S: Store> Vfs<S> {
    pub(super) async fn commit(&self, node: &Arc<Node>) -> FsResult<()> {
        let waiting = Waiting::new(node);
        self.commit_waiting(node, waiting).await
    }

    /// Makes a commit that may wait for other writers.
    pub(super) async fn commit_with_others(&self, node: &Arc<Node>) -> FsResult<()> {
        let waiting = self.gather(node).await;
        self.commit_waiting(node, waiting).await
    }

    async fn commit_waiting(&self, node: &Arc<Node>, waiting: Waiting) -> FsResult<()> {
        let _names = self.namespace.read().await;
        let _turn = node.mutation.lock().await;
        match waiting.end() {
            Some(result) => result,
            None => self.commit_locked(node).await,
        }
    }

    /// Writes a new version of a file if it has changed. The caller holds its `mutation`.
    pub(super) async fn commit_locked(&self, node: &Arc<Node>) -> FsResult<()> {
        let number = node.state.lock().merges.begin();
        let mut turn = None;
        let result = self.merge(node, &mut turn).await;
        if let Some(turn) = turn {
            self.committer.end_turn(turn).await;
        }
        node.state.lock().merges.ended(number, &result);
        result
    }

    async fn merge(&self, node: &Arc<Node>, turn: &mut Option<Turn>) -> FsResult<()> {
        let mut has_asked = false;
        for attempt in &mut node.state.lock().attempts {
            attempt.is_current = false;
        }
        let (mut lost, mut doubts) = (0, 0);
        while lost < SWAPS_MAX {
            let is_due = {
                let state = node.state.lock();
                state.is_dirty() && !state.is_unlinked
            };
            if !is_due {
                self.flatten_later(node);
                return Ok(());
            }
            pause(lost).await;
            // Another client has removed the file that is open here.
            let path = self.tree.lock().path(node.ino).ok_or(FsError::Stale)?;
            // A failed upload is repeated below, and fails again if necessary.
            let _ = self.await_uploads(node).await;
            if !has_asked && let Some(took) = self.needs_turn(node, lost > 0) {
                has_asked = true;
                *turn = self.committer.take_turn(&path, took).await;
            }
            let begun = Instant::now();
            let error = match self.try_commit(node, &path).await {
                Err(FsError::Store(error)) if asks_for_a_look(&error) => error,
                Err(FsError::Store(error)) if error.why == Why::Full => {
                    self.remove_segments(self.committer.superseded.take_all());
                    return Err(error.into());
                }
                Err(error) => return Err(error),
                Ok(()) => {
                    {
                        let merges = &mut node.state.lock().merges;
                        merges.took = begun.elapsed();
                        merges.is_contended = lost > 0;
                    }
                    self.flatten_later(node);
                    return Ok(());
                }
            };
            doubts += u32::from(error.is_in_doubt);
            if doubts >= DOUBTS_MAX {
                return Err(error.into());
            }
            lost += 1;
            if error.why == Why::Refused {
                self.committer.forget_zeros();
            }
            self.catch_up(node, &path, error).await?;
        }
        Err(FsError::Contended)
    }

    async fn try_commit(&self, node: &Arc<Node>, path: &str) -> FsResult<()> {
        let token = self.committer.token();
        let (mut content, mut headers, own, etag, file_id, gone) = {
            let mut state = node.state.lock();
            let mut headers = state.headers.clone();
            state.attributes.put_into(&mut headers, &state.xattrs);
            let file_id = state.file_id().to_owned();
            let own = self.own_version(path, &state);
            let (content, etag) = (state.content.clone(), state.etag.clone());
            let gone = match etag {
                Some(_) => HashSet::new(),
                None => foreign(&state),
            };
            (content, headers, own, etag, file_id, gone)
        };
        // A dynamic large object becomes a file with content of its own.
        headers.kept.remove("x-object-manifest");
        history::add(&mut headers, &token);
        let target = Target {
            name: path,
            own,
            file_id: &file_id,
            headers: &headers,
            expect: etag.as_deref().map_or(Expect::Nothing, Expect::Version),
            gone,
        };
        let mut made = Vec::new();
        let (end, shrunk) = (content.size(), content.shrunk());
        let prepared = self
            .committer
            .prepare(&target, &mut content, &mut made)
            .await;
        let prepared = {
            let mut state = node.state.lock();
            let indexes = made.iter().filter(|segment| is_index(segment));
            let indexes = indexes.cloned().collect();
            state.made.append(&mut made);
            // Uploaded segments are kept in any case, so they need not be uploaded again.
            state.content = content;
            let prepared = prepared?;
            let written = state.content.written().clone();
            if state.attempts.len() >= ATTEMPTS_MAX {
                state.attempts.remove(0);
            }
            state.attempts.push(Attempt {
                token,
                end,
                needed: prepared.needed.clone(),
                written,
                shrunk,
                indexes,
                is_lost: false,
                is_in_doubt: false,
                is_current: true,
                is_taken_back: false,
            });
            prepared
        };
        let swapped = match self.is_link_instead(node, path, etag.as_deref()).await? {
            true => {
                let message = format!("{path} is a hard link now");
                Err(StoreError::new(Why::Changed, message))
            }
            false => self.committer.swap(&target, &prepared).await,
        };
        if let Err(error) = &swapped
            && let Some(attempt) = node.state.lock().attempts.last_mut()
        {
            attempt.is_in_doubt = error.is_in_doubt;
            attempt.is_lost = error.why == Why::Changed && !error.is_in_doubt;
        }
        let etag = swapped?;
        self.written(
            node,
            Written {
                etag,
                layout: prepared.layout,
                headers,
                needed: prepared.needed,
            },
        );
        Ok(())
    }

    /// Updates a node whose content has been stored.
    fn written(&self, node: &Node, written: Written) {
        let mut state = node.state.lock();
        // Those of a version whose name was gone are the business of who took it away.
        let mut unused = match state.etag {
            Some(_) => state.content.base().segments(),
            None => Vec::new(),
        };
        unused.append(&mut state.made);
        unused.retain(|segment| !written.needed.contains(segment));
        state.form = match written.layout.is_plain {
            true => Form::Plain,
            false => Form::Manifest,
        };
        state.bytes = written.layout.bytes;
        state.content.committed(written.layout);
        state.is_loaded = true;
        state.has_new_attributes = false;
        state.headers = written.headers;
        state.etag = Some(written.etag);
        state.unsent = 0;
        state.attempts.clear();
        state.changed_here = Some(Instant::now());
        state.fresh_until = Instant::now() + self.options.fresh;
        drop(state);
        self.forget_close(node);
        self.remove_segments(self.committer.superseded.add(unused));
    }

    /// Examines the store after a failed commit: it may have taken place, or another version may
    /// have been first, which then becomes the base. The caller holds the node's `mutation`.
    pub(super) async fn catch_up(
        &self,
        node: &Arc<Node>,
        path: &str,
        error: StoreError,
    ) -> FsResult<()> {
        let expected = node.state.lock().etag.clone();
        let asked = Instant::now();
        let stat = match self.store.head_newest(path).await {
            Ok(stat) => stat,
            // The last of several names was removed: another object there would have none.
            Err(look) if look.why == Why::NotFound && is_home(path) => return Err(FsError::Stale),
            Err(look) if look.why == Why::NotFound => {
                self.give_up_doubts(node).await?;
                // Removed: the old version's object can no longer be read, but its segments can. If
                // no version was expected, nothing has changed.
                node.state.lock().etag = None;
                let is_as_expected = expected.is_none() && !error.is_in_doubt;
                return if is_as_expected {
                    Err(error.into())
                } else {
                    Ok(())
                };
            }
            // The first error is more informative than that of examining.
            Err(_) => return Err(error.into()),
        };
        // Another host has made the name a hard link: the next commit is of the object it leads to.
        let is_moved = stat.home.is_some();
        if let Some(home) = &stat.home {
            let until = asked + self.options.fresh;
            self.tree.lock().rehome(node, path, home, until);
        }
        let layout = self.layout(path, &stat.etag, stat.form, stat.bytes);
        let layout = match layout.await {
            Ok(layout) => layout,
            // Other writers are active: the next swap will be lost, and examined.
            Err(error) if error.why == Why::Changed => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let is_ours = |attempt: &Attempt| history::has(&stat.headers, &attempt.token);
        let is_ours = node.state.lock().attempts.iter().any(is_ours);
        if !is_ours {
            self.give_up_doubts(node).await?;
        }
        let (needed, is_new) = {
            let mut state = node.state.lock();
            let attempts = state.attempts.iter().rev();
            let mut found = attempts.filter(|attempt| history::has(&stat.headers, &attempt.token));
            match found.next().cloned() {
                Some(attempt) if attempt.is_current => (Some(attempt.needed), true),
                // Its change was taken back: it is as if another mount had made it.
                Some(attempt) if attempt.is_taken_back => {
                    state.attempts.clear();
                    (None, true)
                }
                Some(Attempt {
                    end,
                    shrunk,
                    needed,
                    written,
                    ..
                }) => {
                    state.content.overtaken(end, shrunk, &needed, &written);
                    // It has replaced the version that all other attempts expected.
                    state.attempts.clear();
                    (None, true)
                }
                None => {
                    let lost = lost_indexes(&mut state);
                    self.remove_segments(lost);
                    for attempt in &mut state.attempts {
                        attempt.is_in_doubt = false;
                        attempt.written = Extents::default();
                    }
                    let is_other = expected.as_ref() != Some(&stat.etag);
                    // All empty versions look alike.
                    let may_be = error.why == Why::Changed && stat.etag == EMPTY_ETAG;
                    (None, is_moved || is_other || may_be)
                }
            }
        };
        match needed {
            Some(needed) => {
                let (etag, headers) = (stat.etag, stat.headers);
                let written = Written {
                    etag,
                    layout,
                    headers,
                    needed,
                };
                self.written(node, written);
            }
            None if !is_new && !error.is_in_doubt => return Err(error.into()),
            None => self.rebase(node, path, stat, layout, &error),
        }
        Ok(())
    }

    /// Leaves the segments of attempts in doubt to the sweep, where their versions are not under the name
    /// that they were written to: one may have been there, and another host may have given it another.
    async fn give_up_doubts(&self, node: &Node) -> FsResult<()> {
        let segments: Vec<Arc<Segment>> = {
            let state = node.state.lock();
            let doubtful = state.attempts.iter().filter(|attempt| attempt.is_in_doubt);
            doubtful
                .flat_map(|attempt| attempt.needed.iter().cloned())
                .collect()
        };
        // The marks stay.
        self.committer.share(&segments, &[]).await?;
        Ok(())
    }

    /// Has another host made the name a hard link, which the condition of a commit does not tell? A
    /// version that was seen just now is believed.
    async fn is_link_instead(&self, node: &Node, path: &str, etag: Option<&str>) -> FsResult<bool> {
        let is_believed = node.state.lock().fresh_until > Instant::now();
        Ok(!is_believed && self.is_link_now(path, etag).await?)
    }

    /// Finds out whether commits in doubt have taken place. The caller holds the node's `mutation`.
    pub(super) async fn settle_doubts(&self, node: &Arc<Node>) -> FsResult<()> {
        for lost in 0..SWAPS_MAX {
            let is_in_doubt = {
                let mut state = node.state.lock();
                let attempts = state.attempts.iter_mut();
                attempts.for_each(|attempt| attempt.is_current = false);
                let is_stored = state.etag.is_some() && !state.is_unlinked;
                is_stored && state.attempts.iter().any(|attempt| attempt.is_in_doubt)
            };
            if !is_in_doubt {
                return Ok(());
            }
            pause(lost).await;
            let path = self.tree.lock().path(node.ino).ok_or(FsError::Stale)?;
            let error = StoreError {
                is_in_doubt: true,
                ..StoreError::new(Why::Unavailable, format!("{path} may have been written"))
            };
            self.catch_up(node, &path, error).await?;
        }
        Err(FsError::Contended)
    }

    /// Makes another version the base of the local writes.
    fn rebase(&self, node: &Node, path: &str, stat: Stat, layout: Layout, error: &StoreError) {
        let mut state = node.state.lock();
        let is_first = !std::mem::replace(&mut state.was_warned, true);
        if is_first && !self.store.decides() {
            tracing::warn!(path, %error, "a file was written elsewhere too: both writes are merged");
        }
        let other = self.state_of(stat);
        if !state.has_new_attributes {
            let mtime = state.attributes.mtime;
            state.attributes = other.attributes;
            state.attributes.mtime = mtime;
            (state.xattrs, state.has_xattrs) = (other.xattrs, other.has_xattrs);
        }
        state.headers = other.headers;
        state.etag = other.etag;
        state.form = other.form;
        state.bytes = other.bytes;
        state.content.rebase(layout);
    }

    /// Makes the version on the store the base of the local writes: `own`, the one before, can no longer
    /// be read.
    pub(super) async fn follow(
        &self,
        node: &Arc<Node>,
        own: &Version,
        error: StoreError,
    ) -> FsResult<()> {
        let _turn = node.mutation.lock().await;
        // Another reader was first: the version on the store is the base already.
        if self.is_elsewhere(node, own) {
            return Ok(());
        }
        for attempt in &mut node.state.lock().attempts {
            attempt.is_current = false;
        }
        if !node.state.lock().is_local() {
            return Ok(());
        }
        match self.catch_up(node, &own.name.name, error).await {
            Ok(()) if node.state.lock().etag.is_none() => Err(FsError::Stale),
            result => result,
        }
    }

    /// Removes segments in the background.
    pub(super) fn remove_segments(&self, segments: Vec<Arc<Segment>>) {
        if segments.is_empty() {
            return;
        }
        let committer = self.committer.clone();
        let mut background = self.background.lock();
        while background.try_join_next().is_some() {}
        background.spawn(async move { committer.remove(segments).await });
    }

    /// Commits everything; returns the number of files that failed. `progress` gets the number of
    /// remaining files.
    pub(crate) async fn commit_all(&self, progress: impl Fn(usize)) -> usize {
        let dirty = self.tree.lock().dirty();
        let commits = futures_util::stream::iter(dirty.iter()).map(|node| async move {
            let committed = self.commit(node).await;
            if let Err(error) = &committed {
                let path = self.path(node.ino).unwrap_or_default();
                tracing::error!(path, %error, "a file could not be written to the store");
            }
            committed.is_ok()
        });
        let mut commits = commits.buffer_unordered(CONCURRENT_COMMITS_MAX);
        let (mut left, mut failed) = (dirty.len(), 0);
        while let Some(is_done) = commits.next().await {
            left -= 1;
            failed += usize::from(!is_done);
            progress(left);
        }
        self.remove_segments(self.committer.superseded.take_all());
        let background = std::mem::take(&mut *self.background.lock());
        background.join_all().await;
        self.committer.end();
        let flattening = std::mem::take(&mut *self.flattening.lock());
        let _ = tokio::time::timeout(END_TIMEOUT, flattening.join_all()).await;
        failed
    }
}
