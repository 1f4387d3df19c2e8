//! Forgetting in the inode table: nodes that only listings added, and what is out of date because
//! another host has changed an object.

use super::{LISTING_LAG, Node, SWEEP_NODES, Slot, Tree, parent_of};
use crate::attributes::Kind;
use crate::store::Changed;
use crate::time::Instant;

/// An item that the kernel should ask for again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stale {
    /// The attributes of a node.
    Node(u64),
    /// A name in a directory.
    Name { parent: u64, name: String },
}

/// Ends the validity of a node's state, and of answers that are under way. False if the state
/// is newer than the store's.
fn doubt(node: &Node, now: Instant) -> bool {
    let mut state = node.state.lock();
    if state.is_local() {
        return false;
    }
    state.fresh_until = now;
    state.doubted = Some(now);
    true
}

/// Is this the version that is known?
fn is_known(node: &Node, change: &Changed) -> bool {
    let state = node.state.lock();
    match &change.etag {
        None => state.etag.is_none(),
        // A change of the attributes alone leaves the ETag.
        Some(etag) => {
            state.etag.as_ref() == Some(etag) && state.headers.content_type == change.content_type
        }
    }
}

impl Tree {
    /// Evicts nodes that only listings added.
    pub(crate) fn sweep(&mut self) {
        if self.slots.len() < self.swept + SWEEP_NODES {
            return;
        }
        let now = Instant::now();
        let is_old = |slot: &&Slot| slot.lookups == 0 && slot.node.state.lock().fresh_until < now;
        let old: Vec<u64> = self
            .slots
            .values()
            .filter(is_old)
            .map(|s| s.node.ino)
            .collect();
        for ino in old {
            self.drop_unused(ino);
        }
        self.listed.sweep(now);
        self.removed.retain(|_, at| at.elapsed() < LISTING_LAG);
        self.swept = self.slots.len();
    }

    /// Takes up a change of an object that the store tells of. What it makes out of date is not valid
    /// from now on, and returned. Own changes come back, too: they make nothing out of date.
    pub(crate) fn changed(&mut self, path: &str, change: &Changed) -> Vec<Stale> {
        let (now, is_there) = (Instant::now(), change.etag.is_some());
        if is_there {
            self.absent.remove(path);
        }
        let mut stale = Vec::new();
        match self.at(path) {
            None if is_there => self.appeared(path, &mut stale),
            None => {}
            Some(node) if self.home(path).is_some() => {
                if let Some(slot) = self.slots.get_mut(&node.ino) {
                    slot.links.insert(path.to_owned(), now);
                }
                stale.extend(self.name(path));
            }
            Some(node) if is_known(&node, change) => return stale,
            Some(node) if doubt(&node, now) => {
                stale.push(Stale::Node(node.ino));
                stale.extend(self.name(path).filter(|_| !is_there));
            }
            // Newer than the store's.
            Some(_) => {}
        }
        if !is_there {
            self.disappeared(path, now, &mut stale);
        }
        stale
    }

    /// Forgets listings that lack a name, and those that lack directories which exist by it alone.
    fn appeared(&mut self, path: &str, stale: &mut Vec<Stale>) {
        let mut path = path;
        loop {
            let directory = parent_of(path);
            self.listed.forget(directory);
            if let Some(node) = self.at(directory) {
                stale.push(Stale::Node(node.ino));
                return;
            }
            path = directory;
        }
    }

    /// Doubts the directories that may have existed by a name alone.
    fn disappeared(&self, path: &str, now: Instant, stale: &mut Vec<Stale>) {
        let mut path = parent_of(path);
        while !path.is_empty() {
            let node = self.at(path).filter(|node| {
                let state = node.state.lock();
                state.etag.is_none() && state.attributes.kind == Kind::Directory
            });
            if node.is_some_and(|node| doubt(&node, now)) {
                stale.extend(self.name(path));
            }
            path = parent_of(path);
        }
    }

    fn name(&self, path: &str) -> Option<Stale> {
        let parent = self.at(parent_of(path))?.ino;
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        Some(Stale::Name { parent, name })
    }

    /// Nothing that is known of the store is valid any more.
    pub(crate) fn doubt_all(&mut self) -> Vec<Stale> {
        let now = Instant::now();
        self.listed.forget_all();
        self.absent.clear();
        for slot in self.slots.values_mut() {
            slot.links.values_mut().for_each(|until| *until = now);
        }
        let paths: Vec<(String, u64)> = self
            .by_path
            .iter()
            .map(|(path, ino)| (path.clone(), *ino))
            .collect();
        let mut stale = Vec::new();
        for (path, ino) in paths {
            let Some(slot) = self.slots.get(&ino) else {
                continue;
            };
            if doubt(&slot.node, now) && slot.lookups > 0 {
                stale.push(Stale::Node(ino));
                stale.extend(self.name(&path).filter(|_| !path.is_empty()));
            }
        }
        stale
    }
}
