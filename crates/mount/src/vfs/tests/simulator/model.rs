//! The states that are allowed: each version of a file is the one before with what one mount wrote put
//! over it, as often as the promises say; and what was acknowledged is in a version.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use bytes::Bytes;

use super::links::Leads;
use super::names::Intent;
use super::ops::{Change, Op, is_next, is_shown};
use crate::simulated;
use crate::store::MemoryStore;

/// A version of an object.
#[derive(Clone, Debug)]
pub(super) struct Version {
    pub(super) number: u64,
    pub(super) content: Bytes,
    /// The moments at which it was there.
    pub(super) from: u64,
    pub(super) until: u64,
}

/// A file as one mount has it.
#[derive(Default)]
pub(super) struct Node {
    /// All names that it had.
    pub(super) paths: Vec<String>,
    ops: Vec<Op>,
    count: u64,
    /// A moment before its name was looked up.
    since: u64,
    /// It may have been removed here: what is written goes with it.
    pub(super) is_removed: bool,
    /// The end of the time in which it is here and need not be on the store.
    pub(super) local_until: u64,
}

impl Node {
    pub(super) fn has_pending(&self) -> bool {
        self.ops.iter().any(|op| op.acknowledged.is_none())
    }

    /// The changes that are not acknowledged, or were not at a moment. Those of a file without a name are
    /// here only.
    fn pending(&self, at: Option<u64>) -> Vec<&Op> {
        let is_pending = |op: &&Op| match (op.acknowledged, at) {
            (None, _) => true,
            (Some(acknowledged), Some(at)) => {
                acknowledged >= at || self.is_removed && !op.is_stored
            }
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
    pub(super) leads: Leads,
    pub(super) nodes: BTreeMap<Id, Node>,
    pub(super) intents: Vec<Option<(usize, Intent)>>,
    /// Names that came or went.
    pub(super) events: Vec<(u64, String)>,
    /// Names that mounts have removed.
    pub(super) removals: Vec<(usize, String, u64)>,
    /// The first thing that must not have happened.
    pub(super) wrong: Option<String>,
    pub(super) checks: u64,
    /// Everything that happens.
    pub(super) log: Vec<String>,
}

/// Is `content` a version with some changes that follow each other?
fn shows(base: &[u8], ops: &[&Op], content: &[u8]) -> bool {
    let ends = (0..=ops.len()).rev();
    let mut ranges = ends.flat_map(|end| (0..=end).map(move |start| start..end));
    ranges.any(|range| is_shown(base, &ops[range], content))
}

/// The bytes in a report: runs of equal records are shortened.
pub(super) fn shown(content: &[u8]) -> String {
    let text = String::from_utf8_lossy(content).replace('\0', "_");
    format!("{} bytes {text}", content.len())
}

impl Model {
    /// The present moment in nanoseconds, before all that comes.
    pub(super) fn now(&mut self) -> u64 {
        let time = simulated::elapsed().unwrap_or_default();
        self.moment = (self.moment + 1).max(time.as_nanos() as u64);
        self.moment
    }

    pub(super) fn blame(&mut self, what: String) {
        self.log.push(format!("wrong: {what}"));
        self.wrong.get_or_insert(what);
    }

    /// A mount's node has a name, which was looked up at some moment after `since`.
    pub(super) fn named(&mut self, id: Id, path: &str, since: u64) {
        let fresh = || Node {
            since,
            ..Node::default()
        };
        let node = self.nodes.entry(id).or_insert_with(fresh);
        if !node.paths.iter().any(|known| known == path) {
            node.paths.push(path.to_owned());
        }
    }

    /// A mount has made a file, which may not be on the store before its first sync.
    pub(super) fn is_local(&mut self, id: Id) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.local_until = u64::MAX;
        }
    }

    /// A mount has accepted a change; returns its number.
    pub(super) fn accept(&mut self, id: Id, change: Change, is_maybe: bool) -> u64 {
        let since = self.now();
        let node = self.nodes.entry(id).or_default();
        node.count += 1;
        node.ops.push(Op {
            change,
            number: node.count,
            since,
            is_stored: false,
            is_running: is_maybe,
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
            (op.is_maybe, op.is_running) = (false, false);
        }
    }

    /// A change that is not in a version, and that the file does not wait to store either: it had by
    /// another mount what was asked for, and nothing is put over what comes after.
    pub(super) fn had(&mut self, id: Id, number: u64) {
        if let Some(node) = self.nodes.get_mut(&id)
            && let Some(op) = node.ops.iter_mut().find(|op| op.number == number)
        {
            op.is_maybe |= !op.is_stored;
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
        let places = self.leads.places(node).into_iter();
        let versions: Vec<&Version> = places
            .filter_map(|place| self.versions.get(place))
            .flatten()
            .collect();
        node.local_until = node.local_until.min(self.moment);
        let due = node.ops.iter_mut();
        let due = due.filter(|op| op.number <= mark && op.acknowledged.is_none() && !op.is_running);
        let mut lost = None;
        for op in due {
            op.acknowledged = Some(self.moment);
            let mut shown = versions.iter().filter(|version| version.until >= op.since);
            let mut is_idle =
                || shown.any(|version| is_next(&version.content, &[op], &version.content));
            if !op.is_stored && !op.is_maybe && !node.is_removed && !is_idle() {
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

    /// Looks at an object after a write of `mount`, or a copy of `source`; the request was the only one
    /// since the last look.
    pub(super) fn observe(
        &mut self,
        mount: usize,
        name: &str,
        source: Option<&str>,
        store: &MemoryStore,
    ) {
        let now = self.now();
        let number = store.version(name);
        let is_led = self.lead(name, now, store);
        let versions = self.versions.entry(name.to_owned()).or_default();
        let last = versions.last_mut().filter(|last| last.until == u64::MAX);
        if last.as_ref().map(|last| last.number) == number {
            return;
        }
        let before = last.map(|last| {
            last.until = now;
            last.clone()
        });
        self.checks += 1;
        if source.is_some() || number.is_none() || is_led {
            self.taken_away(name);
        }
        if before.is_some() != number.is_some() || is_led {
            self.events.push((now, name.to_owned()));
        }
        let Some(number) = number else {
            if let Some(gone) = before
                && !self.may_go(mount, name, &gone)
                && !self.is_without_names(name)
            {
                let text = format!("{mount} removes a version of {name} that nobody removed: ");
                self.blame(text + &shown(&gone.content));
            }
            return;
        };
        let content = match store.whole(name) {
            Ok(content) => content,
            Err(error) => return self.blame(format!("{name} cannot be read: {error}")),
        };
        let before = before.as_ref().map(|before| &before.content[..]);
        let may_replace =
            before.is_none_or(|before| before == content) || self.may_be_replaced(name);
        let is_explained = match (source, store.home(name)) {
            (Some(_), _) => may_replace || self.is_without_names(name),
            // A first link leads to a copy, and of two empty objects each may have been copied.
            (None, Some(home)) => {
                before == Some(&content[..]) || may_replace && self.may_lead(name, &home)
            }
            (None, None) => self.explain(mount, name, before, &content),
        };
        if !is_explained {
            let before = before.map(shown);
            let ops: Vec<&Op> = self.ops_of(mount, name).collect();
            let after = shown(&content);
            let text = format!("{name} by {mount}:\n{before:?}\n{ops:?}\n{after}");
            self.blame(text);
        }
        let ops: Vec<&Op> = self.ops_of(mount, name).collect();
        let line = format!("{name} has {} bytes now {ops:?}", content.len());
        self.log.push(line);
        let version = Version {
            number,
            content,
            from: now,
            until: u64::MAX,
        };
        self.versions
            .entry(name.to_owned())
            .or_default()
            .push(version);
    }

    /// A file has gone, or another one has taken its name: what was stored and not acknowledged may be
    /// stored anew.
    fn taken_away(&mut self, name: &str) {
        let nodes = self.nodes.values_mut();
        for node in nodes.filter(|node| self.leads.is_of(node, name)) {
            for op in node.ops.iter_mut().filter(|op| op.is_stored) {
                (op.is_stored, op.is_maybe) = (false, true);
            }
        }
    }

    fn ops_of(&self, mount: usize, name: &str) -> impl Iterator<Item = &Op> {
        let nodes = self.nodes.iter().filter(move |(id, _)| id.0 == mount);
        let named = nodes.filter(move |(_, node)| self.leads.is_of(node, name));
        named.flat_map(|(_, node)| node.pending(None))
    }

    /// Is a version the one before with a node's changes? Those are stored then.
    fn explain(&mut self, mount: usize, name: &str, before: Option<&[u8]>, after: &[u8]) -> bool {
        // A file removed elsewhere is there again with its last writes.
        let gone = self.versions.get(name).map(Vec::as_slice);
        let gone = gone.unwrap_or_default().iter().rev();
        let gone = gone.map(|version| &version.content[..]);
        let bases: Vec<&[u8]> = match before {
            Some(before) => vec![before],
            None => std::iter::once(&[][..]).chain(gone).collect(),
        };
        let nodes = self.nodes.iter_mut().filter(|(id, _)| id.0 == mount);
        let nodes = nodes.map(|(_, node)| node);
        let mut nodes: Vec<&mut Node> = nodes.filter(|node| self.leads.is_of(node, name)).collect();
        // A version without changes may be of any node.
        let certain = |op: &&&Op| !op.is_stored && !op.is_maybe;
        nodes.sort_by_key(|node| Reverse(node.pending(None).iter().filter(certain).count()));
        for node in nodes {
            let ops = node.pending(None);
            if bases.iter().any(|base| is_next(base, &ops, after)) {
                let stored = node.ops.iter_mut();
                stored.for_each(|op| op.is_stored = true);
                return true;
            }
        }
        match before {
            // Flattened, or with other attributes.
            Some(before) if before == after => true,
            _ => after.is_empty() && (before.is_none() || self.may_empty(mount, name)),
        }
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
        let is_clean = ops.is_empty() && node.local_until < begun;
        let mut seen = 0;
        for place in self.leads.places(node) {
            let versions = self.versions.get(place).map(Vec::as_slice);
            for version in versions.unwrap_or_default() {
                let was_there = version.until > since && version.from < until;
                if is_clean && !was_there {
                    continue;
                }
                seen += 1;
                if shows(&version.content, &ops, content) {
                    return;
                }
            }
        }
        // It may not be on the store yet.
        if (seen == 0 || !is_clean) && shows(&[], &ops, content) {
            return;
        }
        let places = self.leads.places(node).into_iter();
        let versions = places.filter_map(|place| self.versions.get(place));
        let versions = versions.flatten().filter(|version| version.until > since);
        let versions: Vec<String> = versions
            .map(|version| {
                format!(
                    "{} to {}: {}",
                    version.from,
                    version.until,
                    shown(&version.content)
                )
            })
            .collect();
        let text = format!(
            "{id:?} of {:?} reads from {begun} on none of {seen} versions since {since}:\n{}\n{ops:?}\n{}",
            node.paths,
            shown(content),
            versions.join("\n"),
        );
        self.blame(text);
    }

    /// Have a node's names come or gone since it has them?
    pub(super) fn has_moved(&self, id: Id) -> bool {
        let node = self.nodes.get(&id);
        node.is_some_and(|node| {
            let mut places = self.leads.places(node).into_iter();
            places.any(|place| self.has_churned(place, node.since))
        })
    }

    /// A call that resizes a file has failed: whether it did so is open, and for all before it.
    pub(super) fn is_open(&mut self, id: Id, number: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            for op in &mut node.ops {
                (op.is_maybe, op.is_stored) = (true, false);
                op.is_running &= op.number != number;
            }
        }
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
