//! Calls on hard links: making one, and removing or moving a name of a file that has several; the
//! form on the store is that of `links.rs`.

use std::sync::Arc;

use super::tree::{Node, parent_of};
use super::{Attr, Found, Vfs};
use crate::attributes::Kind;
use crate::error::{FsError, FsResult};
use crate::links::{HardLink, NAMES_MAX};
use crate::store::{Expect, Store, StoreError, Why, insist};
use crate::time::{Instant, Time};

/// Maximum versions of a file that a first hard link copies while other mounts write it.
const COPIES_MAX: u32 = 20;

/// A name that is about to be removed or replaced.
pub(super) enum Leaving {
    /// A file's only name.
    Only(Arc<Node>),
    /// One of several.
    Link(Arc<Node>, HardLink),
    /// Another host has put another object in its place.
    Unknown,
}

impl<S: Store> Vfs<S> {
    /// Number of names of a file that was found by a hard link.
    pub(super) async fn links_of(&self, found: &FsResult<Found>) -> FsResult<Option<u32>> {
        let Ok(Found::Object(stat)) = found else {
            return Ok(None);
        };
        let Some(home) = &stat.home else {
            return Ok(None);
        };
        match self.committer.count_names(home).await {
            Ok(count) => Ok(Some(u32::try_from(count).unwrap_or(u32::MAX).max(1))),
            // It is being removed.
            Err(error) if error.why == Why::NotFound => Ok(Some(1)),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives a file another name.
    pub(crate) async fn link(&self, ino: u64, parent: u64, name: &str) -> FsResult<Attr> {
        self.writable()?;
        if !self.store.has_links() {
            return Err(FsError::NotPermitted(
                "the store has no symlinks, and so no hard links",
            ));
        }
        let path = self.new_path_in(parent, name)?;
        let _names = self.namespace.read().await;
        let node = self.node(ino)?;
        let kind = node.state.lock().attributes.kind;
        if kind == Kind::Directory {
            return Err(FsError::NotPermitted("a directory has one name"));
        }
        self.expect_nothing(&path).await?;
        let _turn = node.mutation.lock().await;
        self.commit_locked(&node).await?;
        let link = loop {
            let own = self.path(ino)?;
            if let Some(link) = HardLink::to(&own) {
                self.enter(&node, &link).await?;
                break link;
            }
            if let Some(link) = self.first_link(&own, &node, kind).await? {
                break link;
            }
        };
        if let Err(error) = self.put_link(&path, &link, kind, Expect::Nothing).await {
            self.leave(&node, &link).await;
            return Err(error);
        }
        {
            let mut tree = self.tree.lock();
            tree.link(&path, &node, Instant::now() + self.options.fresh);
            tree.looked_up(ino);
            let mut state = node.state.lock();
            state.changed_here = Some(Instant::now());
            state.ctime = Time::now();
        }
        self.touch(parent_of(&path));
        Ok(Self::attr(&node))
    }

    /// Enters a further name of a file.
    async fn enter(&self, node: &Node, link: &HardLink) -> FsResult<()> {
        let count = match self.committer.enter_name(link).await {
            Ok(count) => count,
            // Another mount has removed the last name.
            Err(error) if error.why == Why::NotFound => return Err(FsError::NotFound),
            Err(error) => return Err(error.into()),
        };
        if count > NAMES_MAX {
            self.leave(node, link).await;
            return Err(FsError::TooManyLinks);
        }
        node.state.lock().links = u32::try_from(count).unwrap_or(u32::MAX);
        Ok(())
    }

    /// Removes an entry whose name is not there.
    async fn leave(&self, node: &Node, link: &HardLink) {
        if let Some(count) = self.leave_entry(link).await {
            node.state.lock().links = u32::try_from(count).unwrap_or(u32::MAX).max(1);
        }
    }

    /// Removes an entry; returns the number of those left. One that stays only costs space, until a
    /// sweep.
    pub(super) async fn leave_entry(&self, link: &HardLink) -> Option<usize> {
        let left = self.committer.leave_name(link).await;
        let told = left.inspect_err(|error| {
            tracing::warn!(home = link.home(), %error, "a hard link that is not there is counted");
        });
        told.ok()
    }

    /// Makes a further name lead where `link` does.
    pub(super) async fn copy_link(&self, name: &str, link: &HardLink, kind: Kind) -> FsResult<()> {
        let new = link.another();
        self.committer.enter_name(&new).await?;
        let put = self.put_link(name, &new, kind, Expect::Anything).await;
        if put.is_err() {
            self.leave_entry(&new).await;
        }
        put
    }

    /// Moves a file's object to where several names can lead, and makes its name lead there; returns
    /// the entry of a second name, or `None` if another mount has done it. In between the file is under
    /// its name as before.
    async fn first_link(
        &self,
        own: &str,
        node: &Arc<Node>,
        kind: Kind,
    ) -> FsResult<Option<HardLink>> {
        let first = HardLink::of_new_file();
        let (second, home) = (first.another(), first.home());
        let mut shared = Vec::new();
        for _ in 0..COPIES_MAX {
            if let Some(version) = self.copy_version(own, &home, node, &mut shared).await? {
                self.committer.make_names([&first, &second]).await?;
                let expect = Expect::Version(&version);
                match self.put_link(own, &first, kind, expect).await {
                    Ok(()) => {
                        self.committer.unshare(shared).await;
                        self.tree.lock().rehome(node, own, &home);
                        let mut state = node.state.lock();
                        state.links = 2;
                        state.changed_here = Some(Instant::now());
                        return Ok(Some(second));
                    }
                    Err(FsError::Exists) => {}
                    Err(error) => return Err(error),
                }
            }
            // Another mount has written it meanwhile, or given it another name.
            self.seen_again(own, node).await?;
            if self.path(node.ino)? != own {
                self.committer.remove_home(&home).await?;
                self.committer.unshare(shared).await;
                return Ok(None);
            }
        }
        Err(FsError::Contended)
    }

    /// Makes a name lead to a file; [`FsError::Exists`] if the condition does not hold. The entry says
    /// whether a request whose answer was lost took place.
    pub(super) async fn put_link(
        &self,
        name: &str,
        link: &HardLink,
        kind: Kind,
        expect: Expect<'_>,
    ) -> FsResult<()> {
        let (content_type, home) = (link.content_type(kind), link.home());
        let put = || self.store.put_link(name, &content_type, &home, expect);
        match insist(put).await {
            Ok(_) => Ok(()),
            Err(error) if error.why == Why::Changed || error.is_in_doubt => {
                match self.link_at(name).await {
                    Ok(Some(there)) if there == *link => Ok(()),
                    Ok(_) | Err(_) if error.why == Why::Changed => Err(FsError::Exists),
                    Ok(_) | Err(_) => Err(error.into()),
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The hard link under a name, if it is one.
    pub(super) async fn link_at(&self, name: &str) -> Result<Option<HardLink>, StoreError> {
        match self.store.head_link(name).await {
            Ok(stat) => Ok(HardLink::of_content_type(&stat.headers.content_type)),
            Err(error) if error.why == Why::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Prepares the removal or replacement of a name. The caller holds the node's `mutation`.
    pub(super) async fn leaving(&self, path: &str, node: &Arc<Node>) -> FsResult<Leaving> {
        let home = self.tree.lock().home(path);
        let Some(home) = home else {
            self.detach_content(path, node).await?;
            return Ok(Leaving::Only(node.clone()));
        };
        match self.link_at(path).await? {
            Some(link) if link.home() == home => Ok(Leaving::Link(node.clone(), link)),
            Some(_) | None => Ok(Leaving::Unknown),
        }
    }

    /// Records that a name has been removed or replaced on the store; the file goes with its last name.
    pub(super) async fn left(&self, path: &str, leaving: Leaving) {
        if let Leaving::Only(node) = &leaving {
            self.unlinked(path, node);
            return;
        }
        {
            let mut tree = self.tree.lock();
            tree.detach_path(path);
            tree.removed(path);
        }
        self.touch(parent_of(path));
        let Leaving::Link(node, link) = leaving else {
            return;
        };
        let home = link.home();
        let removed = async {
            let left = self.committer.leave_name(&link).await?;
            if left == 0 {
                self.detach_content(&home, &node).await?;
                self.committer.remove_home(&home).await?;
            }
            Ok::<usize, FsError>(left)
        };
        match removed.await {
            Ok(0) => self.unlinked(&home, &node),
            Ok(left) => {
                let mut state = node.state.lock();
                state.links = u32::try_from(left).unwrap_or(u32::MAX);
                state.changed_here = Some(Instant::now());
                state.ctime = Time::now();
            }
            Err(error) => {
                tracing::warn!(home, %error, "a hard link that was removed is still counted");
            }
        }
    }

    /// Moves one of several names of a file. The new name has an entry of its own: another host may
    /// remove the old one, with its entry, at the same time.
    pub(super) async fn rename_link(
        &self,
        from: &str,
        to: &str,
        node: &Arc<Node>,
        target: Option<Arc<Node>>,
    ) -> FsResult<()> {
        let replaced = match &target {
            Some(target) => Some(self.leaving(to, target).await?),
            None => None,
        };
        let old = self.link_at(from).await?.ok_or(FsError::Stale)?;
        let kind = node.state.lock().attributes.kind;
        self.copy_link(to, &old, kind).await?;
        if let Some(replaced) = replaced {
            self.left(to, replaced).await;
        }
        let delete = || self.store.delete(from, Expect::Anything);
        insist(delete).await?;
        self.leave(node, &old).await;
        self.renamed(from, to, node);
        Ok(())
    }
}
