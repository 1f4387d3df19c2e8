//! Changes by other hosts, as the store's change feed tells them.

use std::collections::BTreeMap;

use super::{Stale, Vfs};

use crate::store::{Changed, News, SEGMENTS, Store, is_home};

/// Is this the name of an object that no file system shows?
fn is_inner(name: &str) -> bool {
    let below = name.strip_prefix(SEGMENTS);
    below.is_some_and(|below| below.starts_with('/')) && !is_home(name)
}

impl<S: Store> Vfs<S> {
    pub(crate) fn store(&self) -> &S {
        &self.store
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
                self.misses.lock().forget(path);
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
