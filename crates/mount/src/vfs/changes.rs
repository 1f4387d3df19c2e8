//! Changes by other hosts, as the store's change feed tells them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::tree::Node;
use super::{Stale, Vfs};
use crate::attributes::Kind;
use crate::error::{FsError, FsResult};
use crate::store::{Changed, News, SEGMENTS, Store, is_home};
use crate::time::Instant;

/// Is this the name of an object that no file system shows?
fn is_inner(name: &str) -> bool {
    let below = name.strip_prefix(SEGMENTS);
    below.is_some_and(|below| below.starts_with('/')) && !is_home(name)
}

impl<S: Store> Vfs<S> {
    pub(crate) fn store(&self) -> &S {
        &self.store
    }

    /// The node of a path, from the store. A look that the change feed has overtaken is repeated: the
    /// kernel keeps for a while what it is told.
    pub(super) async fn look_undoubted(&self, path: &str) -> FsResult<Arc<Node>> {
        let asked = Instant::now();
        let node = self.look_again(path).await?;
        let is_doubted = node.state.lock().doubted.is_some_and(|at| at >= asked);
        match is_doubted {
            true => self.look_again(path).await,
            false => Ok(node),
        }
    }

    /// Takes up what the store tells of changes; returns what the kernel should ask for again.
    pub(crate) fn take_up(&self, news: &News) -> Vec<Stale> {
        if news.is_reset {
            self.misses.lock().forget_all();
            return self.tree.lock().doubt_all();
        }
        let mut all = Vec::new();
        // The last change of each name.
        let by_path = |change| (Changed::path(change), change);
        let changed: BTreeMap<&str, &Changed> = news.changed.iter().map(by_path).collect();
        for (path, change) in changed {
            if path.is_empty() || is_inner(path) {
                continue;
            }
            let stale = self.tree.lock().changed(path, change);
            if !stale.is_empty() && change.etag.is_some() {
                self.misses.lock().made(path);
            }
            for one in stale {
                if !all.contains(&one) || all.len() >= FEW {
                    all.push(one);
                }
            }
        }
        all
    }

    /// Leaves out names of directories that are there still. A row may come late, as that of a removal before
    /// the directory was made anew, and the kernel lets go of a name that it is told of even where it is
    /// some process's working directory, which has no path then.
    pub(crate) async fn confirmed(&self, stale: Vec<Stale>) -> Vec<Stale> {
        let mut confirmed = Vec::with_capacity(stale.len());
        // The kernel asks by itself, within a second, for those that are not asked for here.
        let mut questions = ASKED_MAX;
        for one in stale {
            let Some((path, ino)) = self.directory_of(&one) else {
                confirmed.push(one);
                continue;
            };
            if questions == 0 {
                continue;
            }
            questions -= 1;
            match self.look_undoubted(&path).await {
                Ok(node) if node.ino == ino => {}
                Ok(_) | Err(FsError::NotFound) => confirmed.push(one),
                // A store that does not answer is not waited for again and again.
                Err(_) => questions = 0,
            }
        }
        confirmed
    }

    /// The path and node of a name, if that is a directory.
    fn directory_of(&self, stale: &Stale) -> Option<(String, u64)> {
        let Stale::Name { parent, name } = stale else {
            return None;
        };
        let path = self.path_in(*parent, name).ok()?;
        let node = self.tree.lock().at(&path)?;
        let is_directory = node.state.lock().attributes.kind == Kind::Directory;
        is_directory.then_some((path, node.ino))
    }
}

/// Directories that the store is asked for, of those that changes of one answer of the feed name.
const ASKED_MAX: usize = 64;
/// Number of items up to which doubles are looked for.
const FEW: usize = 64;
