//! Renames: of a file by copying its manifest (or object) within the store and deleting the old
//! one, of a directory by doing so for all objects below it.

mod below;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};

use self::below::Known;
use super::Vfs;
use super::removals::{Leaving, Removed};
use super::tree::{Node, below, parent_of};
use crate::attributes::{Kind, Xattrs};
use crate::error::{FsError, FsResult};
use crate::history;
use crate::intents::BrokenIntent;
use crate::segments::Mark;
use crate::store::{Expect, Form, Stat, Store, Why, insist};
use crate::time::{Instant, Time};

/// Concurrent copies and deletions in a directory's rename.
const CONCURRENT_RENAMES_MAX: usize = 8;
/// Maximum versions of a file that a rename copies while other mounts write it.
const COPIES_MAX: u32 = 20;

pub(super) fn both_stay(name: &str, new: &str) {
    tracing::warn!(
        name,
        new,
        "both names were written during a rename: both stay"
    );
}

impl<S: Store> Vfs<S> {
    pub(crate) async fn rename(
        &self,
        (parent, name): (u64, &str),
        (new_parent, new_name): (u64, &str),
        keeps_target: bool,
    ) -> FsResult<()> {
        self.writable()?;
        let (from, to) = (
            self.path_in(parent, name)?,
            self.new_path_in(new_parent, new_name)?,
        );
        let node = self.find(&from).await?;
        let target = match self.find(&to).await {
            Ok(_) if keeps_target => return Err(FsError::Exists),
            Ok(target) => Some(target),
            Err(FsError::NotFound) => None,
            Err(error) => return Err(error),
        };
        if target
            .as_ref()
            .is_some_and(|target| Arc::ptr_eq(target, &node))
        {
            return Ok(());
        }
        let kind_of = |node: &Arc<Node>| node.state.lock().attributes.kind;
        let is_directory = kind_of(&node) == Kind::Directory;
        match target.as_ref().map(kind_of) {
            Some(Kind::Directory) if !is_directory => return Err(FsError::IsADirectory),
            Some(Kind::Directory) | None => {}
            Some(_) if is_directory => return Err(FsError::NotADirectory),
            Some(_) => {}
        }
        self.keep_directory(parent_of(&from)).await?;
        match is_directory {
            true => self.rename_directory(&from, &to, target).await?,
            false => self.rename_file(&from, &to, &node, target).await?,
        }
        self.settle_closes().await;
        self.touch(parent_of(&from));
        self.touch(parent_of(&to));
        Ok(())
    }

    /// Copies to the new name, then deletes the old one: in between both exist, and never none. If
    /// it ends in between, their segments stay marked as shared, and removing one name keeps them
    /// for the other.
    async fn rename_file(
        &self,
        from: &str,
        to: &str,
        node: &Arc<Node>,
        target: Option<Arc<Node>>,
    ) -> FsResult<()> {
        let _names = self.namespace.read().await;
        let _turn = node.mutation.lock().await;
        self.commit_locked(node).await?;
        self.settle_closes().await;
        let turned = target.clone();
        let _target_turn = match &turned {
            Some(target) => Some(target.mutation.lock().await),
            None => None,
        };
        let mut replaced = match &target {
            Some(target) => Some(self.replacing(to, target).await?),
            None => None,
        };
        let moved = self.move_file(from, to, node, &mut replaced).await;
        if let Some(replaced) = replaced {
            self.stays(replaced).await;
        }
        moved
    }

    async fn move_file(
        &self,
        from: &str,
        to: &str,
        node: &Arc<Node>,
        replaced: &mut Option<Leaving>,
    ) -> FsResult<()> {
        let mut shared = Vec::new();
        for _ in 0..COPIES_MAX {
            if self.tree.lock().home(from).is_some() {
                self.rename_link(from, to, node, replaced).await?;
                self.committer.unshare(shared).await;
                return Ok(());
            }
            if let Some(version) = self.copy_version(from, to, node, &mut shared).await? {
                if let Some(replaced) = replaced.take() {
                    self.left(to, replaced).await;
                    // The copy is there now, also if the old name cannot be removed.
                    self.tree.lock().present(to);
                }
                match self.remove_version(from, &version).await? {
                    Removed::Known => {
                        self.committer.unshare(shared).await;
                        self.renamed(from, to, node);
                        return Ok(());
                    }
                    // The marks stay: another host may have given it another name.
                    Removed::Gone => {
                        self.renamed(from, to, node);
                        return Ok(());
                    }
                    Removed::Other => {}
                }
            }
            // Another mount has written it meanwhile, and that version moves too; or has given it
            // another name.
            self.seen_again(from, node).await?;
        }
        Err(FsError::Contended)
    }

    /// Records that a name has moved on the store.
    pub(super) fn renamed(&self, from: &str, to: &str, node: &Node) {
        let mut tree = self.tree.lock();
        tree.rename(from, to);
        tree.removed(from);
        let mut state = node.state.lock();
        state.changed_here = Some(Instant::now());
        state.ctime = Time::now();
    }

    /// Copies the known version; returns its ETag, or `None` if another one is there.
    pub(super) async fn copy_version(
        &self,
        from: &str,
        to: &str,
        node: &Arc<Node>,
        shared: &mut Vec<Mark>,
    ) -> FsResult<Option<String>> {
        let is_file = node.state.lock().attributes.kind == Kind::File;
        let (segments, etag) = {
            let state = match is_file {
                true => self.loaded(node).await?,
                false => node.state.lock(),
            };
            (state.content.base().segments(), state.etag.clone())
        };
        let held: Vec<&Mark> = shared.iter().collect();
        let mut new = self.committer.share(&segments, &held).await?;
        shared.append(&mut new);
        let is_plain = node.state.lock().form == Form::Plain;
        let expected = match is_plain {
            true => etag.clone(),
            false => {
                let stat = self.store.head_newest(from).await?;
                if Some(&stat.etag) != etag.as_ref() {
                    return Ok(None);
                }
                stat.stored_etag
            }
        };
        match self.store.copy(from, to, expected.as_deref()).await {
            Ok(()) => Ok(Some(etag.unwrap_or_default())),
            Err(error) if error.why == Why::Changed => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes over the version that another mount has written.
    pub(super) async fn seen_again(&self, path: &str, node: &Arc<Node>) -> FsResult<()> {
        let now = self.look_again(path).await?;
        match Arc::ptr_eq(&now, node) {
            true => Ok(()),
            false => Err(FsError::Stale),
        }
    }

    /// Copies all objects below, then removes the old ones. If interrupted, everything is under one
    /// name or both, and the intent records it.
    async fn rename_directory(
        &self,
        from: &str,
        to: &str,
        target: Option<Arc<Node>>,
    ) -> FsResult<()> {
        let prefix = below(from);
        if to.starts_with(&prefix) {
            return Err(FsError::Invalid("a directory cannot be moved into itself"));
        }
        let _names = self.without_closes_below(from).await?;
        if target.is_some() && !self.is_empty(to).await? {
            return Err(FsError::NotEmpty);
        }
        let found = self.names_below(from).await?;
        // The store would refuse their copies, again and again when the intent is resumed.
        let moved = |name: &String| format!("{to}{}", &name[from.len()..]);
        if found.keys().any(|name| !self.store.fits(&moved(name))) {
            return Err(FsError::NameTooLong);
        }
        // A mount that finds the intent completes an interrupted rename.
        let intent = self.committer.intend(from, to).await?;
        let mut shared = self.share_below(&found).await?;
        let mut has_object = false;
        match self.store.copy(from, to, None).await {
            Ok(()) => has_object = true,
            Err(error) if error.why == Why::NotFound => {
                let node = self.find(from).await?;
                let mut headers = node.state.lock().headers.clone();
                let attributes = node.state.lock().attributes.clone();
                attributes.put_into(&mut headers, &Xattrs::default());
                self.store
                    .put(to, &headers, Vec::new(), Expect::Anything)
                    .await?;
            }
            Err(error) => return Err(error.into()),
        }
        let moves = found.keys().map(|name| (name.clone(), moved(name)));
        let moves: Vec<(String, String)> = moves.collect();
        self.copy_below(&found, moves, &mut shared).await?;
        if let Some(target) = &target {
            self.unlinked(to, target);
            // The copies are there now, also if the old names cannot be removed.
            self.tree.lock().present(to);
        }
        let deletions = found
            .iter()
            .map(|(name, known)| (name.clone(), known.clone()));
        let deletions: Vec<(String, Known)> = deletions.collect();
        let marks = &shared;
        let deletions = futures_util::stream::iter(deletions).map(|(name, known)| async move {
            let new = format!("{to}{}", &name[from.len()..]);
            let deleted = match &known.link {
                Some((link, _)) => self.delete_link(&name, link).await.map(|()| Removed::Known),
                None => {
                    let marks = marks.get(&name).map(Vec::as_slice).unwrap_or_default();
                    self.delete_moved(&name, &new, known, marks).await
                }
            };
            deleted.map(|removed| (removed == Removed::Gone).then_some(name))
        });
        let deletions = deletions.buffer_unordered(CONCURRENT_RENAMES_MAX);
        let gone: Vec<Option<String>> = deletions.try_collect().await?;
        // Their marks stay: another host may have given them other names.
        for name in gone.iter().flatten() {
            shared.remove(name);
        }
        if has_object {
            self.store.delete(from, Expect::Anything).await?;
        }
        self.unshare_below(shared).await;
        intent.done().await;
        let mut tree = self.tree.lock();
        tree.rename(from, to);
        found.keys().for_each(|name| tree.removed(name));
        tree.removed(from);
        if let Some(node) = tree.at(to) {
            let mut state = node.state.lock();
            state.changed_here = Some(Instant::now());
            state.fresh_until = Instant::now();
        }
        Ok(())
    }

    /// Copies all objects that were found, to the names in `moves`; the marks that this takes are added
    /// to `shared`.
    async fn copy_below(
        &self,
        found: &BTreeMap<String, Known>,
        moves: Vec<(String, String)>,
        shared: &mut BTreeMap<String, Vec<Mark>>,
    ) -> FsResult<()> {
        let before = &*shared;
        let copies = futures_util::stream::iter(moves).map(|(name, new)| async move {
            let known = found.get(&name).cloned().unwrap_or_default();
            let marks = before.get(&name).map(Vec::as_slice).unwrap_or_default();
            let copied = match &known.link {
                Some((link, kind)) => self.copy_link(&new, link, *kind).await.map(|()| Vec::new()),
                None => self.copy_known(&name, &new, &known, marks).await,
            };
            match copied {
                // The listing was out of date.
                Err(FsError::Store(error)) if error.why == Why::NotFound => Ok((name, Vec::new())),
                copied => copied.map(|marks| {
                    // A name that was removed there lately is not hidden any more.
                    self.tree.lock().present(&new);
                    (name, marks)
                }),
            }
        });
        let copies = copies.buffer_unordered(CONCURRENT_RENAMES_MAX);
        let copied: Vec<(String, Vec<Mark>)> = copies.try_collect().await?;
        for (name, marks) in copied {
            shared.entry(name).or_default().extend(marks);
        }
        Ok(())
    }

    /// Copies an object. A small one, as it was listed, has no segments: if another mount has written it
    /// since, it may have some; those of any version are marked before its copy. Returns their marks, beside
    /// `marks`.
    async fn copy_known(
        &self,
        name: &str,
        new: &str,
        known: &Known,
        marks: &[Mark],
    ) -> FsResult<Vec<Mark>> {
        if known.bytes <= self.options.limits.whole_bytes {
            match self.store.copy(name, new, Some(&known.etag)).await {
                Ok(()) => return Ok(Vec::new()),
                Err(error) if error.why == Why::Changed => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut shared = Vec::new();
        for _ in 0..COPIES_MAX {
            let stat = self.store.head_newest(name).await?;
            // A hard link moves when the old name is removed.
            if stat.home.is_some()
                || self
                    .copy_marked(name, new, &stat, marks, &mut shared)
                    .await?
            {
                return Ok(shared);
            }
        }
        Err(FsError::Contended)
    }

    /// Copies a version whose segments are marked before, beside `marks`; the new marks are added to
    /// `shared`. False if another version is there.
    async fn copy_marked(
        &self,
        name: &str,
        new: &str,
        stat: &Stat,
        marks: &[Mark],
        shared: &mut Vec<Mark>,
    ) -> FsResult<bool> {
        let is_other = |why| matches!(why, Why::Changed | Why::NotFound);
        let layout = self.layout(name, &stat.etag, stat.form, stat.bytes);
        let segments = match layout.await {
            Ok(layout) => layout.segments(),
            Err(error) if is_other(error.why) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let held: Vec<&Mark> = marks.iter().chain(&*shared).collect();
        let mut new_marks = self.committer.share(&segments, &held).await?;
        shared.append(&mut new_marks);
        let expected = stat.stored_etag.as_deref();
        match self.store.copy(name, new, expected).await {
            Ok(()) => Ok(true),
            Err(error) if is_other(error.why) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes an object that was copied to its new name. A version that another mount has written
    /// meanwhile is copied first, unless the new name has been written, too: then both stay.
    async fn delete_moved(
        &self,
        name: &str,
        new: &str,
        known: Known,
        marks: &[Mark],
    ) -> FsResult<Removed> {
        match self.remove_version(name, &known.etag).await? {
            Removed::Other => {}
            removed => return Ok(removed),
        }
        let (mut shared, mut copied) = (Vec::new(), vec![known.etag]);
        for _ in 0..COPIES_MAX {
            let stat = match self.store.head_newest(name).await {
                Ok(stat) => stat,
                Err(error) if error.why == Why::NotFound => return Ok(Removed::Gone),
                Err(error) => return Err(error.into()),
            };
            if stat.home.is_some() {
                self.move_new_link(name, new).await?;
                return Ok(Removed::Known);
            }
            match self.store.head_newest(new).await {
                Ok(there)
                    if !copied.contains(&there.etag)
                        && !history::follows(&stat.headers, &there.headers) =>
                {
                    both_stay(name, new);
                    return Ok(Removed::Other);
                }
                Ok(_) => {}
                Err(error) if error.why == Why::NotFound => {}
                Err(error) => return Err(error.into()),
            }
            if !self
                .copy_marked(name, new, &stat, marks, &mut shared)
                .await?
            {
                continue;
            }
            copied.push(stat.etag.clone());
            match self.remove_version(name, &stat.etag).await? {
                Removed::Known => {
                    self.committer.unshare(shared).await;
                    return Ok(Removed::Known);
                }
                Removed::Gone => return Ok(Removed::Gone),
                Removed::Other => {}
            }
        }
        Err(FsError::Contended)
    }

    /// Completes interrupted renames of directories whose intents were not refreshed for `after`. One
    /// that cannot be completed does not keep the others from it; the first failure is returned.
    pub(super) async fn resume_renames(&self, after: Duration) -> FsResult<()> {
        let mut result = Ok(());
        for intent in self.committer.broken_intents(after).await? {
            if let Err(error) = self.resume(&intent).await {
                tracing::warn!(
                    from = intent.from, to = intent.to, %error,
                    "a rename that broke off is not finished"
                );
                result = result.and(Err(error));
            }
        }
        result
    }

    async fn resume(&self, intent: &BrokenIntent) -> FsResult<()> {
        tracing::info!(
            from = intent.from,
            to = intent.to,
            "a rename that broke off is finished"
        );
        let _names = self.namespace.write().await;
        let found = self.names_below(&intent.from).await?;
        let mut shared = self.share_below(&found).await?;
        let own = (intent.from.clone(), Known::default());
        let moves = found.into_iter().chain([own]);
        let marks = &shared;
        let moves = futures_util::stream::iter(moves).map(|(name, known)| async move {
            let new = format!("{}{}", intent.to, &name[intent.from.len()..]);
            let moved = match &known.link {
                Some(link) => {
                    let moved = self.move_link_again(&name, &new, link, intent.begun);
                    moved.await.map(|()| Removed::Known)
                }
                None => {
                    let marks = marks.get(&name).map(Vec::as_slice).unwrap_or_default();
                    self.move_again(&name, &new, intent.begun, marks).await
                }
            };
            moved.map(|removed| {
                self.tree.lock().present(&new);
                (removed == Removed::Gone).then_some(name)
            })
        });
        let moves = moves.buffer_unordered(CONCURRENT_RENAMES_MAX);
        let gone: Vec<Option<String>> = moves.try_collect().await?;
        for name in gone.iter().flatten() {
            shared.remove(name);
        }
        self.unshare_below(shared).await;
        self.store.delete(&intent.name, Expect::Anything).await?;
        let mut tree = self.tree.lock();
        for directory in [&intent.from, &intent.to] {
            tree.listed.forget(directory);
        }
        Ok(())
    }

    /// Moves an object of an interrupted rename, which may have been copied already. An object
    /// written under the new name since then stays, and so does the old one.
    async fn move_again(
        &self,
        name: &str,
        new: &str,
        begun: Time,
        marks: &[Mark],
    ) -> FsResult<Removed> {
        let is_same = |one: &Stat, two: &Stat| one.etag == two.etag && one.bytes == two.bytes;
        let mut shared = Vec::new();
        for _ in 0..COPIES_MAX {
            let stat = match self.store.head_newest(name).await {
                Ok(stat) => stat,
                Err(error) if error.why == Why::NotFound => return Ok(Removed::Gone),
                Err(error) => return Err(error.into()),
            };
            if stat.home.is_some() {
                self.move_new_link(name, new).await?;
                return Ok(Removed::Known);
            }
            let there = match self.store.head_newest(new).await {
                Ok(there) => Some(there),
                Err(error) if error.why == Why::NotFound => None,
                Err(error) => return Err(error.into()),
            };
            let is_copied = match there {
                // Another host has made the copy a hard link, which it has listed.
                Some(there) if is_same(&there, &stat) && there.home.is_some() => true,
                Some(there) if is_same(&there, &stat) => self.list_again(new, &there).await?,
                Some(there) if there.changed > begun => {
                    both_stay(name, new);
                    return Ok(Removed::Other);
                }
                _ => {
                    self.copy_marked(name, new, &stat, marks, &mut shared)
                        .await?
                }
            };
            // Otherwise another mount was at it.
            if !is_copied {
                continue;
            }
            match self.remove_version(name, &stat.etag).await? {
                Removed::Known => {
                    self.committer.unshare(shared).await;
                    return Ok(Removed::Known);
                }
                Removed::Gone => return Ok(Removed::Gone),
                Removed::Other => {}
            }
        }
        Err(FsError::Contended)
    }

    /// Has the store insert an object's row into its listing again, by a POST of unchanged metadata on
    /// condition of its version; returns false if another version is there. A store that was killed
    /// during a copy may have the object without its row, and after the deletion of the old name no
    /// listing would show the file.
    async fn list_again(&self, name: &str, stat: &Stat) -> FsResult<bool> {
        let expect = Expect::Version(&stat.etag);
        let post = || self.store.post(name, &stat.headers, expect);
        match insist(post).await {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.why, Why::Changed | Why::NotFound) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
