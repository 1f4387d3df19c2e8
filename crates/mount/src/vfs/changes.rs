//! Changes by other hosts, as the store's change feed tells them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::tree::Node;
use super::{Stale, Vfs};
use crate::error::FsResult;
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
}

/// Number of items up to which doubles are looked for.
const FEW: usize = 64;
