//! Removals of names that are safe beside other hosts: one that renames the file at the same moment, or
//! makes a hard link to it, keeps its segments. They go with a name only if it had the version that is
//! known here until the moment at which it went.

use std::sync::Arc;

use super::Vfs;
use super::tree::{Node, parent_of};
use crate::error::{FsError, FsResult};
use crate::links::HardLink;
use crate::segments::Mark;
use crate::store::{EMPTY_ETAG, Expect, Store, StoreError, Why, insist, is_home};
use crate::time::{Instant, Time};

/// Maximum versions of a file that are looked at while other mounts write it.
const LOOKS_MAX: u32 = 20;

/// A name that is about to be removed or replaced.
pub(super) enum Leaving {
    /// A file's only name.
    Only {
        node: Arc<Node>,
        /// The version whose segments go with it, if it has some.
        version: Option<String>,
        /// Marks on them, while another object takes the name.
        marks: Vec<Mark>,
    },
    /// One of several.
    Link(Arc<Node>, HardLink),
    /// Another host has put another object in its place.
    Unknown,
}

/// Bugs that the simulator has to find.
mod plant {
    #[cfg(test)]
    use crate::simulated::{Plant, has};

    #[cfg(test)]
    pub(super) fn counts_late() -> bool {
        has(Plant::CountsLate)
    }

    #[cfg(test)]
    pub(super) fn takes_along() -> bool {
        has(Plant::TakesAlong)
    }

    #[cfg(not(test))]
    pub(super) const fn counts_late() -> bool {
        false
    }

    #[cfg(not(test))]
    pub(super) const fn takes_along() -> bool {
        false
    }
}

/// The object that a name had when it was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Removed {
    /// The version that was expected.
    Known,
    /// None: another host was first, and may have given the object another name.
    Gone,
    /// Another one, which is still there.
    Other,
}

impl<S: Store> Vfs<S> {
    /// Removes a name that is no directory's, whoever has written it last: that is the meaning of unlink.
    pub(super) async fn remove(&self, path: &str, mut node: Arc<Node>) -> FsResult<()> {
        for _ in 0..LOOKS_MAX {
            let turn = node.mutation.lock().await;
            let leaving = self.leaving(path, &node).await?;
            let removed = match &leaving {
                Leaving::Only {
                    version: Some(version),
                    ..
                } => self.remove_version(path, version).await?,
                Leaving::Link(_, link) => self.remove_link(path, link).await?,
                Leaving::Only { .. } | Leaving::Unknown => self.remove_any(path).await?,
            };
            let now = match removed {
                Removed::Known => {
                    self.left(path, leaving).await;
                    return Ok(());
                }
                Removed::Gone => None,
                Removed::Other => self.overtaken(path, &node).await?,
            };
            drop(turn);
            match now {
                Some(now) => node = now,
                None => {
                    node.state.lock().leaves_segments = true;
                    self.unlinked(path, &node);
                    return Ok(());
                }
            }
        }
        Err(FsError::Contended)
    }

    async fn remove_link(&self, path: &str, link: &HardLink) -> FsResult<Removed> {
        if plant::counts_late() {
            self.leave_entry(link).await;
        }
        self.remove_any(path).await
    }

    async fn remove_any(&self, path: &str) -> FsResult<Removed> {
        let delete = || self.store.delete(path, Expect::Anything);
        insist(delete).await?;
        Ok(Removed::Known)
    }

    /// Removes an object if it is of this version.
    pub(super) async fn remove_version(&self, path: &str, etag: &str) -> FsResult<Removed> {
        if plant::takes_along() {
            return self.remove_any(path).await;
        }
        if !self.store.decides() || etag == EMPTY_ETAG {
            match self.compare(path, etag).await? {
                Removed::Known => {}
                other => return Ok(other),
            }
        }
        let delete = || self.store.delete(path, Expect::Version(etag));
        match insist(delete).await {
            Ok(true) => Ok(Removed::Known),
            Ok(false) => Ok(Removed::Gone),
            Err(error) if error.why == Why::Changed => match self.compare(path, etag).await? {
                Removed::Gone => Ok(Removed::Gone),
                _ => Ok(Removed::Other),
            },
            Err(error) => Err(error.into()),
        }
    }

    /// The object that a name has now, as it would be removed.
    async fn compare(&self, path: &str, etag: &str) -> FsResult<Removed> {
        match self.store.head_newest(path).await {
            Ok(stat) if stat.home.is_none() && stat.etag == etag => Ok(Removed::Known),
            Ok(_) => Ok(Removed::Other),
            Err(error) if error.why == Why::NotFound => Ok(Removed::Gone),
            Err(error) => Err(error.into()),
        }
    }

    /// Has another host made a name a hard link? In some stores links have the ETag of an empty object, so
    /// that the condition of a write does not tell.
    pub(super) async fn is_link_now(&self, path: &str, etag: Option<&str>) -> FsResult<bool> {
        if etag != Some(EMPTY_ETAG) || !self.store.has_links() || is_home(path) {
            return Ok(false);
        }
        match self.store.head_newest(path).await {
            Ok(stat) => Ok(stat.home.is_some()),
            Err(error) if error.why == Why::NotFound => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes over what another host has made of a name; returns the node that has it now, or `None` if
    /// it is gone. The caller holds the node's `mutation`.
    async fn overtaken(&self, path: &str, node: &Arc<Node>) -> FsResult<Option<Arc<Node>>> {
        if !node.state.lock().is_local() {
            return match self.look_again(path).await {
                Ok(now) => Ok(Some(now)),
                Err(FsError::NotFound) => Ok(None),
                Err(error) => Err(error),
            };
        }
        let message = format!("{path} was written elsewhere too");
        let error = StoreError::new(Why::Changed, message);
        match self.catch_up(node, path, error).await {
            Ok(()) => {}
            // It is as it was.
            Err(FsError::Store(error)) if error.why == Why::Changed => {}
            Err(FsError::Stale) => return Ok(None),
            Err(error) => return Err(error),
        }
        let is_there = node.state.lock().etag.is_some();
        Ok(is_there.then(|| node.clone()))
    }

    /// Prepares the removal of a name. The caller holds the node's `mutation`.
    async fn leaving(&self, path: &str, node: &Arc<Node>) -> FsResult<Leaving> {
        let home = self.tree.lock().home(path);
        let Some(home) = home else {
            return Ok(Leaving::Only {
                version: self.detach_content(path, node).await?,
                node: node.clone(),
                marks: Vec::new(),
            });
        };
        match self.link_at(path).await? {
            Some(link) if link.home() == home => Ok(Leaving::Link(node.clone(), link)),
            Some(_) | None => Ok(Leaving::Unknown),
        }
    }

    /// Prepares the replacement of a name by a copy, which no condition guards: segments are marked until
    /// it has taken place, and stay if another mount that gives them another name has replaced the mark.
    /// The caller holds the node's `mutation`.
    pub(super) async fn replacing(&self, path: &str, node: &Arc<Node>) -> FsResult<Leaving> {
        for _ in 0..LOOKS_MAX {
            let mut leaving = self.leaving(path, node).await?;
            let Leaving::Only {
                version: Some(version),
                marks,
                ..
            } = &mut leaving
            else {
                return Ok(leaving);
            };
            let segments = node.state.lock().content.base().segments();
            if plant::takes_along() {
                return Ok(leaving);
            }
            *marks = self.committer.share(&segments, &[]).await?;
            let there = self.compare(path, version).await;
            if matches!(there, Ok(Removed::Known)) {
                return Ok(leaving);
            }
            self.stays(leaving).await;
            let now = match there? {
                Removed::Gone => None,
                _ => self.overtaken(path, node).await?,
            };
            if !now.is_some_and(|now| Arc::ptr_eq(&now, node)) {
                return Ok(Leaving::Unknown);
            }
        }
        Err(FsError::Contended)
    }

    /// Records that a name is not replaced after all.
    pub(super) async fn stays(&self, leaving: Leaving) {
        if let Leaving::Only { marks, .. } = leaving {
            self.committer.unshare(marks).await;
        }
    }

    /// Records that a name has been removed or replaced on the store; the file goes with its last name.
    pub(super) async fn left(&self, path: &str, leaving: Leaving) {
        if let Leaving::Only { node, marks, .. } = leaving {
            self.committer.unshare(marks).await;
            self.unlinked(path, &node);
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
        match self.leave_file(&home, &node, &link).await {
            Ok(0) => {
                self.tree.lock().detach_links(node.ino);
                self.unlinked(&home, &node);
            }
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

    /// Removes a name's entry, and the file with the last one; returns the number of those left.
    async fn leave_file(&self, home: &str, node: &Arc<Node>, link: &HardLink) -> FsResult<usize> {
        let left = self.committer.leave_name(link).await?;
        if left > 0 {
            return Ok(left);
        }
        for _ in 0..LOOKS_MAX {
            let removed = match self.detach_content(home, node).await? {
                Some(version) => self.remove_version(home, &version).await?,
                None => Removed::Known,
            };
            match removed {
                Removed::Known => break,
                Removed::Gone => {
                    node.state.lock().leaves_segments = true;
                    break;
                }
                // Another host has written it.
                Removed::Other => _ = self.overtaken(home, node).await?,
            }
        }
        self.committer.remove_home(home).await?;
        Ok(0)
    }

    /// Deletes a name if it is still this link; returns false if another host has put something else
    /// there.
    pub(super) async fn delete_if_still(&self, name: &str, link: &HardLink) -> FsResult<bool> {
        for _ in 0..LOOKS_MAX {
            let stat = match self.store.head_link(name).await {
                Ok(stat) => stat,
                Err(error) if error.why == Why::NotFound => return Ok(true),
                Err(error) => return Err(error.into()),
            };
            if HardLink::of_content_type(&stat.headers.content_type).as_ref() != Some(link) {
                return Ok(false);
            }
            let delete = || self.store.delete(name, Expect::Version(&stat.etag));
            match insist(delete).await {
                Ok(_) => return Ok(true),
                Err(error) if error.why == Why::Changed => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(FsError::Contended)
    }
}
