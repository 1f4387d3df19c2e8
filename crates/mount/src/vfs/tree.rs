//! Inode table: nodes by number and by path, with the kernel's reference counts, and the state of
//! each. Independent of the store.

mod listings;
mod node;
mod stale;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use self::listings::Listings;
use crate::time::Instant;
pub(crate) use node::{Attempt, Node, State};
pub(crate) use stale::Stale;

pub(crate) const ROOT: u64 = 1;

/// Time during which a listing that lacks a local change counts as out of date.
pub(crate) const LISTING_LAG: Duration = Duration::from_secs(10);

struct Slot {
    node: Arc<Node>,
    lookups: u64,
    /// Path of its object; `None` once it is unlinked.
    path: Option<String>,
    /// Names that are hard links to it, and until when the store is believed that they are; the path is
    /// then that of the object to which they lead.
    links: BTreeMap<String, Instant>,
}

/// All nodes.
pub(crate) struct Tree {
    slots: HashMap<u64, Slot>,
    by_path: BTreeMap<String, u64>,
    serial: u64,
    pub(crate) listed: Listings,
    /// Names that this mount removed recently, which a listing may still show.
    removed: HashMap<String, Instant>,
    /// Names that the store was found not to have.
    absent: HashMap<String, Instant>,
    swept: usize,
}

/// Number of new nodes after which unused ones are evicted.
const SWEEP_NODES: usize = 10_000;

pub(crate) fn join(directory: &str, name: &str) -> String {
    match directory {
        "" => name.to_owned(),
        directory => format!("{directory}/{name}"),
    }
}

/// The parent directory of a path.
pub(crate) fn parent_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// The name prefix of everything below a directory.
pub(crate) fn below(directory: &str) -> String {
    match directory {
        "" => String::new(),
        directory => format!("{directory}/"),
    }
}

/// Is a node open, or changed here?
fn is_in_use(node: &Node) -> bool {
    let state = node.state.lock();
    state.opens > 0 || state.is_local()
}

/// Nodes in the order in which they came: equal runs of a simulation have them in the same order.
fn in_order<'a>(nodes: impl Iterator<Item = &'a Arc<Node>>) -> Vec<Arc<Node>> {
    let mut nodes: Vec<Arc<Node>> = nodes.cloned().collect();
    nodes.sort_by_key(|node| node.serial);
    nodes
}

impl Tree {
    pub(crate) fn new(root: State) -> Tree {
        let mut tree = Tree {
            slots: HashMap::new(),
            by_path: BTreeMap::new(),
            serial: 0,
            listed: Listings::default(),
            removed: HashMap::new(),
            absent: HashMap::new(),
            swept: 0,
        };
        tree.add("", root);
        tree
    }

    pub(crate) fn node(&self, ino: u64) -> Option<Arc<Node>> {
        self.slots.get(&ino).map(|slot| slot.node.clone())
    }

    pub(crate) fn path(&self, ino: u64) -> Option<String> {
        self.slots.get(&ino)?.path.clone()
    }

    pub(crate) fn at(&self, path: &str) -> Option<Arc<Node>> {
        self.node(*self.by_path.get(path)?)
    }

    /// Adds a node, replacing one at the same path.
    pub(crate) fn add(&mut self, path: &str, state: State) -> Arc<Node> {
        self.detach_path(path);
        let ino = self.new_number(path);
        self.serial += 1;
        let node = Arc::new(Node {
            ino,
            serial: self.serial,
            state: Mutex::new(state),
            mutation: tokio::sync::Mutex::new(()),
        });
        self.by_path.insert(path.to_owned(), ino);
        self.removed.remove(path);
        self.absent.remove(path);
        let slot = Slot {
            node: node.clone(),
            lookups: 0,
            path: Some(path.to_owned()),
            links: BTreeMap::new(),
        };
        self.slots.insert(ino, slot);
        node
    }

    /// The inode number of a new node: by its path, so that a file which the kernel has forgotten, or which
    /// another host shows, has the number that it had. If that one is taken (by a file that was renamed, or
    /// that is open without a name), the next one that is not.
    fn new_number(&self, path: &str) -> u64 {
        if path.is_empty() {
            return ROOT;
        }
        let digest = Sha256::digest(path);
        let start = digest[..8]
            .iter()
            .fold(0, |n, byte| n << 8 | u64::from(*byte));
        // Programs may take it for a signed number.
        let mut number = start >> 1;
        while number <= ROOT || self.slots.contains_key(&number) {
            number = (number + 1) & (u64::MAX >> 1);
        }
        number
    }

    /// The object to which a name leads that is known as a hard link.
    pub(crate) fn home(&self, path: &str) -> Option<String> {
        let slot = self.slots.get(self.by_path.get(path)?)?;
        slot.path.clone().filter(|home| home != path)
    }

    /// The node of a name that was found to lead to `home`, which is the name itself for an object of
    /// its own. `known` is the node that the name had before, if it is still the same file: open
    /// handles keep it when another host makes its first hard link.
    pub(crate) fn lead(
        &mut self,
        path: &str,
        home: &str,
        known: Option<&Arc<Node>>,
        state: State,
        until: Instant,
    ) -> Arc<Node> {
        if path == home {
            return self.add(path, state);
        }
        if let Some(node) = self.at(home) {
            // Handles of the node that had the name write on at the same place.
            if let Some(known) = known
                && self.path(known.ino).as_deref() == Some(path)
            {
                self.rehome(known, path, home, until);
                if is_in_use(known) && !is_in_use(&node) {
                    self.merge(node.ino, known, home);
                    return known.clone();
                }
            }
            self.link(path, &node, until);
            return node;
        }
        let node = match known {
            Some(node) if self.path(node.ino).as_deref() == Some(path) => {
                self.rehome(node, path, home, until);
                node.clone()
            }
            _ => self.add(home, state),
        };
        self.link(path, &node, until);
        node
    }

    /// Gives a node all names of another one that was found at the same place and is not in use.
    fn merge(&mut self, other: u64, node: &Arc<Node>, home: &str) {
        let Some(slot) = self.slots.get_mut(&other) else {
            return;
        };
        slot.path = None;
        let links = std::mem::take(&mut slot.links);
        self.by_path.insert(home.to_owned(), node.ino);
        for (name, until) in links {
            self.link(&name, node, until);
        }
        self.drop_unused(other);
    }

    /// Until when a name is believed to be a hard link; `None` for other names.
    pub(crate) fn linked_until(&self, path: &str) -> Option<Instant> {
        let slot = self.slots.get(self.by_path.get(path)?)?;
        slot.links.get(path).copied()
    }

    /// Makes a name a hard link of a node, in place of another node; it is believed until then.
    pub(crate) fn link(&mut self, path: &str, node: &Arc<Node>, until: Instant) {
        if self.by_path.get(path) != Some(&node.ino) {
            self.detach_path(path);
        }
        self.removed.remove(path);
        self.absent.remove(path);
        if let Some(slot) = self.slots.get_mut(&node.ino) {
            slot.links.insert(path.to_owned(), until);
            self.by_path.insert(path.to_owned(), node.ino);
        }
    }

    /// Records that a node's object is at `home` now, to which its name leads; it is believed until then.
    pub(crate) fn rehome(&mut self, node: &Arc<Node>, name: &str, home: &str, until: Instant) {
        if let Some(slot) = self.slots.get_mut(&node.ino) {
            slot.path = Some(home.to_owned());
            slot.links.insert(name.to_owned(), until);
            self.by_path.entry(home.to_owned()).or_insert(node.ino);
        }
    }

    /// Counts one more reference of the kernel.
    pub(crate) fn looked_up(&mut self, ino: u64) {
        if let Some(slot) = self.slots.get_mut(&ino) {
            slot.lookups += 1;
        }
    }

    pub(crate) fn forget(&mut self, ino: u64, count: u64) {
        if let Some(slot) = self.slots.get_mut(&ino) {
            slot.lookups = slot.lookups.saturating_sub(count);
            self.drop_unused(ino);
        }
    }

    /// Removes a node without references whose state is on the store.
    pub(crate) fn drop_unused(&mut self, ino: u64) {
        let Some(slot) = self.slots.get(&ino) else {
            return;
        };
        let is_used = {
            let state = slot.node.state.lock();
            let is_due = state.is_dirty() && !state.is_unlinked;
            slot.lookups > 0
                || state.opens > 0
                || is_due
                || state.changed_within(LISTING_LAG) && !state.is_unlinked
        };
        if is_used || ino == ROOT {
            return;
        }
        let Some(slot) = self.slots.remove(&ino) else {
            return;
        };
        for path in slot.path.into_iter().chain(slot.links.into_keys()) {
            if self.by_path.get(&path) == Some(&ino) {
                self.by_path.remove(&path);
            }
            // The listing that contained it is no longer complete here.
            self.listed.forget(parent_of(&path));
        }
    }

    /// Detaches a path from its node.
    pub(crate) fn detach_path(&mut self, path: &str) -> Option<Arc<Node>> {
        let ino = self.by_path.remove(path)?;
        let slot = self.slots.get_mut(&ino)?;
        if slot.links.remove(path).is_none() {
            slot.path = None;
        }
        let node = slot.node.clone();
        self.drop_unused(ino);
        Some(node)
    }

    /// Detaches all names that lead to a node: other hosts have removed those that are left here.
    pub(crate) fn detach_links(&mut self, ino: u64) {
        let slot = self.slots.get_mut(&ino);
        let links = slot.map(|slot| std::mem::take(&mut slot.links));
        for name in links.unwrap_or_default().into_keys() {
            if self.by_path.get(&name) == Some(&ino) {
                self.by_path.remove(&name);
            }
        }
    }

    /// Records that this mount removed a name from the store.
    pub(crate) fn removed(&mut self, path: &str) {
        let now = Instant::now();
        if self.removed.len() >= SWEEP_NODES {
            self.removed.retain(|_, at| at.elapsed() < LISTING_LAG);
        }
        self.removed.insert(path.to_owned(), now);
    }

    pub(crate) fn was_removed(&self, path: &str) -> bool {
        let at = self.removed.get(path);
        at.is_some_and(|at| at.elapsed() < LISTING_LAG)
    }

    /// Records that a name was not found, valid until `until` for its creation: the store is then
    /// asked to refuse it if it exists.
    pub(crate) fn absent(&mut self, path: &str, until: Instant) {
        if self.absent.len() >= SWEEP_NODES {
            let now = Instant::now();
            self.absent.retain(|_, until| *until > now);
        }
        self.absent.insert(path.to_owned(), until);
    }

    /// A name was made, by another mount or in place of one that was removed. So the directories that it
    /// is in are there, also those without an object.
    pub(crate) fn present(&mut self, path: &str) {
        let mut path = path;
        while !path.is_empty() {
            self.absent.remove(path);
            self.removed.remove(path);
            path = parent_of(path);
        }
    }

    pub(crate) fn was_absent(&self, path: &str) -> bool {
        let until = self.absent.get(path);
        until.is_some_and(|until| *until > Instant::now()) && !self.by_path.contains_key(path)
    }

    /// Paths of stored nodes below a directory that were recently changed here.
    pub(crate) fn changed_below(&self, directory: &str) -> Vec<String> {
        let prefix = below(directory);
        let inside = self.by_path.range(prefix.clone()..);
        let inside = inside.take_while(|(path, _)| path.starts_with(&prefix));
        let is_recent = |ino: &u64| {
            self.slots.get(ino).is_some_and(|slot| {
                let state = slot.node.state.lock();
                state.etag.is_some() && state.changed_within(LISTING_LAG)
            })
        };
        let recent = inside.filter(|(_, ino)| is_recent(ino));
        recent.map(|(path, _)| path.clone()).collect()
    }

    /// Moves a node and everything below it.
    pub(crate) fn rename(&mut self, from: &str, to: &str) {
        self.detach_path(to);
        let mut moved: Vec<(String, u64)> = Vec::new();
        moved.extend(self.by_path.get(from).map(|ino| (from.to_owned(), *ino)));
        let prefix = below(from);
        let inside = self.by_path.range(prefix.clone()..);
        let inside = inside.take_while(|(path, _)| path.starts_with(&prefix));
        moved.extend(inside.map(|(path, ino)| (path.clone(), *ino)));
        for (path, ino) in moved {
            self.by_path.remove(&path);
            let new = format!("{to}{}", &path[from.len()..]);
            self.removed.remove(&new);
            if let Some(slot) = self.slots.get_mut(&ino) {
                match slot.links.remove(&path) {
                    Some(until) => _ = slot.links.insert(new.clone(), until),
                    None => slot.path = Some(new.clone()),
                }
            }
            self.by_path.insert(new, ino);
        }
        self.listed.forget(from);
        self.listed.forget(to);
    }

    /// Names directly in a directory, with their nodes.
    pub(crate) fn children(&self, directory: &str) -> Vec<(String, Arc<Node>)> {
        let prefix = below(directory);
        let mut children = Vec::new();
        let mut from = Bound::Included(prefix.clone());
        while let Some((path, ino)) = self.by_path.range((from, Bound::Unbounded)).next() {
            let Some(name) = path.strip_prefix(&prefix) else {
                break;
            };
            if name.is_empty() {
                from = Bound::Excluded(path.clone());
                continue;
            }
            // Deeper names are skipped at once: '0' is the character after the slash.
            from = match name.split_once('/') {
                Some((child, _)) => Bound::Included(format!("{prefix}{child}0")),
                None => {
                    children.extend(self.node(*ino).map(|node| (name.to_owned(), node)));
                    Bound::Excluded(path.clone())
                }
            };
        }
        children
    }

    /// Nodes with content that is not on the store, including unlinked ones.
    pub(crate) fn written(&self) -> Vec<Arc<Node>> {
        let nodes = self.slots.values().map(|slot| &slot.node);
        let written = nodes.filter(|node| node.state.lock().content.is_dirty());
        in_order(written)
    }

    /// Ids of files whose segments are needed here, whether a name refers to them or not.
    pub(crate) fn held_files(&self) -> BTreeSet<String> {
        let held = self.slots.values().filter_map(|slot| {
            let state = slot.node.state.lock();
            let is_held = state.opens > 0 || state.is_dirty() || !state.made.is_empty();
            state.file_id.clone().filter(|_| is_held)
        });
        held.collect()
    }

    /// Nodes with a commit due.
    pub(crate) fn dirty(&self) -> Vec<Arc<Node>> {
        let nodes = self.slots.values().map(|slot| &slot.node);
        let is_due = |node: &&Arc<Node>| {
            let state = node.state.lock();
            state.is_dirty() && !state.is_unlinked
        };
        in_order(nodes.filter(is_due))
    }
}
