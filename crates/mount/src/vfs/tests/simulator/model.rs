//! The states that are allowed: each version of a file is the one before with what one mount wrote put
//! over it, as often as the promises say; and what was acknowledged is in a version.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::store::MemoryStore;

/// A change of a file that its mount has accepted.
#[derive(Clone, Debug)]
pub(super) struct Op {
    pub(super) change: Change,
    /// Its place among all changes of the node.
    number: u64,
    /// It was in a version, and is not acknowledged.
    is_stored: bool,
    /// The call has not ended, or has failed.
    is_maybe: bool,
    /// The moment at which it was acknowledged.
    acknowledged: Option<u64>,
}

#[derive(Clone, Debug)]
pub(super) enum Change {
    Write { offset: usize, bytes: Bytes },
    Append { bytes: Bytes },
    Resize { size: usize },
}

/// A version of an object.
#[derive(Clone, Debug)]
pub(super) struct Version {
    etag: String,
    pub(super) content: Bytes,
    /// The moments at which it was there.
    pub(super) from: u64,
    pub(super) until: u64,
}

/// A file as one mount has it.
#[derive(Default)]
struct Node {
    /// All names that it had.
    paths: Vec<String>,
    ops: Vec<Op>,
    count: u64,
}

impl Node {
    /// The changes that are not acknowledged, or were not at a moment.
    fn pending(&self, at: Option<u64>) -> Vec<&Op> {
        let is_pending = |op: &&Op| match (op.acknowledged, at) {
            (None, _) => true,
            (Some(acknowledged), Some(at)) => acknowledged >= at,
            (Some(_), None) => false,
        };
        self.ops.iter().filter(is_pending).collect()
    }
}

/// A node's mount and number.
pub(super) type Id = (usize, u64);

#[derive(Default)]
pub(super) struct Model {
    moment: u64,
    pub(super) versions: BTreeMap<String, Vec<Version>>,
    nodes: BTreeMap<Id, Node>,
    /// The first thing that must not have happened.
    pub(super) wrong: Option<String>,
    pub(super) checks: u64,
}

/// Puts one change over a file.
fn apply(change: &Change, content: &mut Vec<u8>) {
    match change {
        Change::Write { offset, bytes } => {
            let end = offset + bytes.len();
            content.resize(content.len().max(end), 0);
            content[*offset..end].copy_from_slice(bytes);
        }
        Change::Append { bytes } => content.extend_from_slice(bytes),
        Change::Resize { size } => content.resize(*size, 0),
    }
}

/// The changes that were in a version already, and are not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    None,
    /// All that are no appends.
    Placed,
    All,
}

/// Is `content` what changes make of `base`?
fn makes(base: Vec<u8>, ops: &[&Op], again: Again, content: &[u8]) -> bool {
    let Some((op, rest)) = ops.split_first() else {
        return base == content;
    };
    let is_append = matches!(op.change, Change::Append { .. });
    let is_left_out = match again {
        Again::None => op.is_stored,
        Again::Placed => op.is_stored && is_append,
        Again::All => false,
    };
    if is_left_out {
        return makes(base, rest, again, content);
    }
    if op.is_maybe && makes(base.clone(), rest, again, content) {
        return true;
    }
    if let Change::Resize { size } = op.change {
        // A file was extended by this, if it was shorter then.
        let mut longer = base.clone();
        longer.resize(base.len().max(size), 0);
        if longer.len() != size && makes(longer, rest, again, content) {
            return true;
        }
    }
    let mut changed = base;
    apply(&op.change, &mut changed);
    makes(changed, rest, again, content)
}

/// Is `content` the next version? Changes that were stored already may be made again, but no append.
fn is_next(base: &[u8], ops: &[&Op], content: &[u8]) -> bool {
    let has_stored = ops.iter().any(|op| op.is_stored);
    makes(base.to_vec(), ops, Again::None, content)
        || has_stored && makes(base.to_vec(), ops, Again::Placed, content)
}

/// Is `content` a version as a mount shows it? The version may be one before changes that are
/// stored.
fn is_shown(base: &[u8], ops: &[&Op], content: &[u8]) -> bool {
    let has_stored = ops.iter().any(|op| op.is_stored);
    is_next(base, ops, content) || has_stored && makes(base.to_vec(), ops, Again::All, content)
}

/// The bytes in a report: runs of equal records are shortened.
pub(super) fn shown(content: &[u8]) -> String {
    let text = String::from_utf8_lossy(content).replace('\0', "_");
    format!("{} bytes {text}", content.len())
}

impl Model {
    /// The present moment, before all that comes.
    pub(super) fn now(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    pub(super) fn blame(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }

    /// A mount's node has a name.
    pub(super) fn named(&mut self, id: Id, path: &str) {
        let node = self.nodes.entry(id).or_default();
        if !node.paths.iter().any(|known| known == path) {
            node.paths.push(path.to_owned());
        }
    }

    /// A mount has accepted a change; returns its number.
    pub(super) fn accept(&mut self, id: Id, change: Change, is_maybe: bool) -> u64 {
        let node = self.nodes.entry(id).or_default();
        node.count += 1;
        node.ops.push(Op {
            change,
            number: node.count,
            is_stored: false,
            is_maybe,
            acknowledged: None,
        });
        node.count
    }

    /// A call that changes a file has ended well.
    pub(super) fn made(&mut self, id: Id, number: u64) {
        if let Some(node) = self.nodes.get_mut(&id)
            && let Some(op) = node.ops.iter_mut().find(|op| op.number == number)
        {
            op.is_maybe = false;
        }
    }

    /// The number of the node's last change.
    pub(super) fn mark(&self, id: Id) -> u64 {
        self.nodes.get(&id).map_or(0, |node| node.count)
    }

    /// Everything up to `mark` was acknowledged: it must be in a version.
    pub(super) fn acknowledged(&mut self, id: Id, mark: u64) {
        self.checks += 1;
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        let due = node.ops.iter_mut();
        let due = due.filter(|op| op.number <= mark && op.acknowledged.is_none());
        let mut lost = None;
        for op in due {
            op.acknowledged = Some(self.moment);
            if !op.is_stored && !op.is_maybe {
                lost = Some(op.clone());
            }
        }
        if let Some(op) = lost {
            self.blame(format!(
                "{id:?}: it was acknowledged and not stored: {op:?}"
            ));
        }
    }

    /// Everything of a mount was acknowledged.
    pub(super) fn all_acknowledged(&mut self, mount: usize) {
        let ids: Vec<Id> = self.nodes.keys().copied().collect();
        for id in ids.into_iter().filter(|id| id.0 == mount) {
            self.acknowledged(id, self.mark(id));
        }
    }

    /// Looks at an object after a write of `mount`; the request was the only one since the last look.
    pub(super) fn observe(&mut self, mount: usize, name: &str, store: &MemoryStore) {
        let now = self.now();
        let (before, is_known) = {
            let versions = self.versions.entry(name.to_owned()).or_default();
            let last = versions.last_mut().filter(|last| last.until == u64::MAX);
            let etag = store.etag(name);
            let is_known = last.as_ref().map(|last| &last.etag) == etag.as_ref();
            let before = last.map(|last| {
                if !is_known {
                    last.until = now;
                }
                last.content.clone()
            });
            (before, is_known)
        };
        let Some(etag) = store.etag(name).filter(|_| !is_known) else {
            return;
        };
        self.checks += 1;
        let content = match store.whole(name) {
            Ok(content) => content,
            Err(error) => return self.blame(format!("{name} cannot be read: {error}")),
        };
        if !self.explain(mount, name, before.as_deref(), &content) {
            let before = before.as_deref().map(shown);
            let ops: Vec<&Op> = self.ops_of(mount, name).collect();
            let after = shown(&content);
            let text = format!("{name} by {mount}:\n{before:?}\n{ops:?}\n{after}");
            self.blame(text);
        }
        let version = Version {
            etag,
            content,
            from: now,
            until: u64::MAX,
        };
        let versions = self.versions.entry(name.to_owned()).or_default();
        versions.push(version);
    }

    fn ops_of(&self, mount: usize, name: &str) -> impl Iterator<Item = &Op> {
        let nodes = self.nodes.iter().filter(move |(id, _)| id.0 == mount);
        let named = nodes.filter(move |(_, node)| node.paths.iter().any(|path| path == name));
        named.flat_map(|(_, node)| node.pending(None))
    }

    /// Is a version the one before with a node's changes? Those are stored then.
    fn explain(&mut self, mount: usize, name: &str, before: Option<&[u8]>, after: &[u8]) -> bool {
        let base = before.unwrap_or_default();
        let nodes = self.nodes.iter_mut().filter(|(id, _)| id.0 == mount);
        for (_, node) in nodes.filter(|(_, node)| node.paths.iter().any(|path| path == name)) {
            let ops = node.pending(None);
            if is_next(base, &ops, after) {
                node.ops.iter_mut().for_each(|op| op.is_stored = true);
                return true;
            }
        }
        // New and empty, or flattened.
        base == after
    }

    /// Is what a mount has read from `begun` on a version that was there since `since`, when it opened
    /// the file, with its own changes?
    pub(super) fn read(&mut self, id: Id, since: u64, begun: u64, content: &[u8]) {
        self.checks += 1;
        let until = self.now();
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        let ops = node.pending(Some(begun));
        let is_clean = ops.is_empty();
        let mut seen = 0;
        for path in &node.paths {
            let versions = self.versions.get(path).map(Vec::as_slice);
            for version in versions.unwrap_or_default() {
                let was_there = version.until > since && version.from < until;
                if is_clean && !was_there {
                    continue;
                }
                seen += 1;
                let mut upto = (0..=ops.len()).rev();
                if upto.any(|n| is_shown(&version.content, &ops[..n], content)) {
                    return;
                }
            }
        }
        if seen == 0 && content.is_empty() {
            return;
        }
        let text = format!(
            "{id:?} of {:?} reads none of {seen} versions since {since}:\n{}\n{ops:?}",
            node.paths,
            shown(content),
        );
        self.blame(text);
    }

    /// Every object can be read, and no reference is broken.
    pub(super) fn readable(&mut self, store: &MemoryStore) {
        let names: Vec<String> = store.names();
        for name in names.iter().filter(|name| !name.starts_with(".segments/")) {
            if let Err(error) = store.whole(name) {
                self.blame(format!("{name} cannot be read any more: {error}"));
            }
        }
    }
}
