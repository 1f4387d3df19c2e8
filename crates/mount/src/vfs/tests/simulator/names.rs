//! Names: which calls may make and remove them, and when they were there.

use super::model::{Id, Model, Version};

/// A call that changes names, until it has ended well. One that has failed or whose mount has crashed
/// may go on: its last requests are on their way, or another mount finishes it.
#[derive(Clone, Debug)]
pub(super) enum Intent {
    Remove(String),
    /// The file, or everything below the directory.
    Rename {
        from: String,
        to: String,
    },
    /// A file gets another name, also if a rename has moved it from where it was looked up.
    Link {
        node: Id,
        from: String,
        to: String,
    },
    /// A file that is made, or emptied.
    Empty(String),
}

/// The name that a rename gives to `name`.
pub(super) fn moved(name: &str, from: &str, to: &str) -> Option<String> {
    let rest = name.strip_prefix(from)?;
    (rest.is_empty() || rest.starts_with('/')).then(|| format!("{to}{rest}"))
}

fn is_above(above: &str, name: &str) -> bool {
    let rest = name.strip_prefix(above);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Model {
    /// A call begins; returns its number.
    pub(super) fn begin(&mut self, mount: usize, intent: Intent) -> usize {
        if let Intent::Link { from, to, .. } = &intent {
            for (id, node) in &mut self.nodes {
                if id.0 == mount && node.paths.contains(from) && !node.paths.contains(to) {
                    node.paths.push(to.clone());
                }
            }
        }
        if let Intent::Rename { from, to } = &intent {
            self.may_remove(mount, to);
            for (id, node) in &mut self.nodes {
                if id.0 != mount {
                    continue;
                }
                let new = node.paths.iter().filter_map(|path| moved(path, from, to));
                let new: Vec<String> = new.collect();
                for path in new {
                    if !node.paths.contains(&path) {
                        node.paths.push(path);
                    }
                }
            }
        }
        if let Intent::Remove(name) = &intent {
            self.may_remove(mount, name);
        }
        self.intents.push(Some((mount, intent)));
        self.intents.len() - 1
    }

    /// A call has ended well.
    pub(super) fn done(&mut self, intent: usize) {
        if let Some((mount, Intent::Remove(name) | Intent::Rename { from: name, .. })) =
            self.intents[intent].take()
        {
            let now = self.now();
            self.removals.push((mount, name, now));
        }
    }

    pub(super) fn intents(&self) -> impl Iterator<Item = &(usize, Intent)> {
        self.intents.iter().flatten()
    }

    pub(super) fn may_empty(&self, mount: usize, name: &str) -> bool {
        let is_it = |other: &str| other == name || self.leads.has(other, name);
        self.intents().any(|(other, intent)| {
            *other == mount && matches!(intent, Intent::Empty(name) if is_it(name))
        })
    }

    /// May a version go from its name? Those that renames remove have to be under the new name, or to have
    /// been.
    pub(super) fn may_go(&self, mount: usize, name: &str, version: &Version) -> bool {
        // A mount takes one of two empty objects for the copy of the other.
        let is_empty = version.content.is_empty();
        let is_same =
            |copy: &Version| copy.number == version.number || is_empty && copy.content.is_empty();
        self.intents().any(|(other, intent)| match intent {
            Intent::Remove(removed) => *other == mount && removed == name,
            Intent::Rename { from, to } => {
                let Some(new) = moved(name, from, to) else {
                    return false;
                };
                let copied = self.versions.get(&new);
                copied.is_some_and(|copies| copies.iter().any(is_same))
                    || self.has_lead_along(name, &new)
            }
            Intent::Empty(_) | Intent::Link { .. } => false,
        })
    }

    /// May a copy replace what a name has?
    pub(super) fn may_be_replaced(&self, name: &str) -> bool {
        self.intents()
            .any(|(_, intent)| matches!(intent, Intent::Rename { to, .. } if is_above(to, name)))
    }

    /// Has a name, or one above or below it, come or gone since then?
    pub(super) fn has_churned(&self, name: &str, since: u64) -> bool {
        let mut events = self.events.iter().rev();
        events.any(|(at, event)| *at >= since && (is_above(event, name) || is_above(name, event)))
    }

    /// Was an object there at any moment since then?
    pub(super) fn has_existed(&self, name: &str, since: u64) -> bool {
        let versions = self.versions.get(name).map(Vec::as_slice);
        versions
            .unwrap_or_default()
            .iter()
            .any(|version| version.until >= since)
    }

    /// Was a name free at any moment since then?
    pub(super) fn has_been_absent(&self, name: &str, since: u64) -> bool {
        let versions = self.versions.get(name).map(Vec::as_slice);
        let mut at = since;
        for version in versions.unwrap_or_default() {
            if version.until < at {
                continue;
            }
            if version.from > at {
                return true;
            }
            at = version.until;
        }
        at != u64::MAX
    }

    /// Has a mount removed a name since then, or is it about to?
    pub(super) fn has_removed(&self, mount: usize, name: &str, since: u64) -> bool {
        let mut removals = self.removals.iter().rev();
        let has_ended =
            removals.any(|(by, gone, at)| *by == mount && is_above(gone, name) && *at >= since);
        has_ended
            || self.intents().any(|(other, intent)| match intent {
                Intent::Remove(gone) | Intent::Rename { from: gone, .. } => {
                    *other == mount && is_above(gone, name)
                }
                Intent::Empty(_) | Intent::Link { .. } => false,
            })
    }

    /// Has a mount a file of its own under a name, which may not be on the store?
    pub(super) fn has_local(&self, mount: usize, name: &str, since: u64) -> bool {
        self.nodes.iter().any(|(id, node)| {
            let is_it = id.0 == mount && node.paths.iter().any(|path| path == name);
            is_it && (node.local_until >= since || node.has_pending())
        })
    }
}
