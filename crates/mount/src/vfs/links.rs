//! Calls on hard links: making one, and removing or moving a name of a file that has several; the
//! form on the store is that of `links.rs`.

use std::sync::Arc;

use super::removals::Leaving;
use super::renames::both_stay;
use super::tree::{Node, parent_of};
use super::{Attr, Found, Vfs};
use crate::attributes::Kind;
use crate::error::{FsError, FsResult};
use crate::links::{HardLink, NAMES_MAX};
use crate::store::{Expect, Stat, Store, StoreError, Why, insist};
use crate::time::{Instant, Time};

/// Maximum versions of a file that a first hard link copies while other mounts write it.
const COPIES_MAX: u32 = 20;

/// May what has failed have taken place?
fn is_in_doubt(error: &FsError) -> bool {
    matches!(error, FsError::Store(error) if error.is_in_doubt)
}

/// Is it a hard link to this object?
fn leads_to(stat: &Stat, home: &str) -> bool {
    HardLink::of_content_type(&stat.headers.content_type).is_some_and(|link| link.home() == home)
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
            if !is_in_doubt(&error) {
                self.leave(&node, &link).await;
            }
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
        if put.as_ref().is_err_and(|error| !is_in_doubt(error)) {
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
                let put = match self.is_link_now(own, Some(&version)).await? {
                    true => Err(FsError::Exists),
                    false => {
                        let expect = Expect::Version(&version);
                        self.put_link(own, &first, kind, expect).await
                    }
                };
                match put {
                    Ok(()) => {
                        self.committer.unshare(shared).await;
                        let until = Instant::now() + self.options.fresh;
                        self.tree.lock().rehome(node, own, &home, until);
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
    /// whether a request whose answer was lost took place; if that cannot be read, the error is in doubt.
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
                    Ok(_) if error.why == Why::Changed => Err(FsError::Exists),
                    looked => Err(FsError::Store(StoreError {
                        is_in_doubt: looked.is_err(),
                        ..error
                    })),
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

    /// Moves one of several names of a file. The new name has an entry of its own: another host may
    /// remove the old one, with its entry, at the same time.
    pub(super) async fn rename_link(
        &self,
        from: &str,
        to: &str,
        node: &Arc<Node>,
        replaced: &mut Option<Leaving>,
    ) -> FsResult<()> {
        let home = self.tree.lock().home(from);
        let old = self.link_at(from).await?;
        let Some(old) = old.filter(|old| home == Some(old.home())) else {
            return Err(FsError::Stale);
        };
        // Two names of one file stay what they are.
        if let Some(Leaving::Link(_, there)) = replaced
            && there.home() == old.home()
        {
            return Ok(());
        }
        let kind = node.state.lock().attributes.kind;
        self.copy_link(to, &old, kind).await?;
        if let Some(replaced) = replaced.take() {
            self.left(to, replaced).await;
            // The link is there now, also if the old name cannot be removed.
            self.tree.lock().present(to);
        }
        let is_gone = self.delete_if_still(from, &old).await?;
        self.leave(node, &old).await;
        self.renamed(from, to, node);
        if !is_gone {
            self.tree.lock().present(from);
        }
        Ok(())
    }

    /// Moves a hard link of an interrupted rename. What was written under the new name since then
    /// stays, and so does the old one.
    pub(super) async fn move_link_again(
        &self,
        name: &str,
        new: &str,
        (link, kind): &(HardLink, Kind),
        begun: Time,
    ) -> FsResult<()> {
        match self.store.head_link(new).await {
            Ok(there) if leads_to(&there, &link.home()) => {}
            Ok(there) if there.changed > begun => {
                both_stay(name, new);
                return Ok(());
            }
            Err(error) if error.why != Why::NotFound => return Err(error.into()),
            Ok(_) | Err(_) => self.copy_link(new, link, *kind).await?,
        }
        self.delete_link(name, link).await
    }

    /// Moves a name that another host has made a hard link since it was listed.
    pub(super) async fn move_new_link(&self, name: &str, new: &str) -> FsResult<()> {
        let stat = match self.store.head_link(name).await {
            Ok(stat) => stat,
            Err(error) if error.why == Why::NotFound => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let content_type = &stat.headers.content_type;
        let link = HardLink::of_content_type(content_type).ok_or(FsError::Contended)?;
        let kind = Kind::of_content_type(content_type);
        self.copy_link(new, &link, kind).await?;
        self.delete_link(name, &link).await
    }

    /// Removes a name whose file has got another one.
    pub(super) async fn delete_link(&self, name: &str, link: &HardLink) -> FsResult<()> {
        if !self.delete_if_still(name, link).await? {
            tracing::warn!(
                name,
                "another host has replaced a name during a rename: it stays"
            );
        }
        self.leave_entry(link).await;
        Ok(())
    }
}
