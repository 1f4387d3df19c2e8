//! Hard links: which names led to which file, and when. What is written to a file is in each name that
//! leads to it at that moment.

use std::collections::BTreeMap;

use super::model::{Model, Node, Version};
use super::names::{Intent, moved};
use super::{SLACK, World};
use crate::store::{MemoryStore, is_home};

/// A name that led to a file with several names.
struct Lead {
    home: String,
    /// The moments at which it did.
    from: u64,
    until: u64,
}

/// All names that ever were hard links.
#[derive(Default)]
pub(super) struct Leads(BTreeMap<String, Vec<Lead>>);

impl Leads {
    fn of(&self, name: &str) -> &[Lead] {
        self.0.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    /// Has a name led to a file at any time?
    pub(super) fn has(&self, name: &str, home: &str) -> bool {
        self.of(name).iter().any(|lead| lead.home == home)
    }

    fn home(&self, name: &str) -> Option<&str> {
        let last = self.of(name).last().filter(|lead| lead.until == u64::MAX);
        last.map(|lead| lead.home.as_str())
    }

    /// The names that lead to a file now.
    fn names(&self, home: &str) -> Vec<String> {
        let names = self.0.keys().filter(|name| self.home(name) == Some(home));
        names.cloned().collect()
    }

    /// Is a node written under this name, or at the place to which one of its names has led?
    pub(super) fn is_of(&self, node: &Node, name: &str) -> bool {
        let mut paths = node.paths.iter();
        paths.any(|path| path == name || self.has(path, name))
    }

    /// The names under which a node is written.
    pub(super) fn places<'a>(&'a self, node: &'a Node) -> Vec<&'a str> {
        let paths = node.paths.iter().map(String::as_str);
        let leads = node.paths.iter().flat_map(|path| self.of(path));
        let mut places: Vec<&str> = paths.chain(leads.map(|lead| lead.home.as_str())).collect();
        places.sort_unstable();
        places.dedup();
        places
    }
}

impl Model {
    /// Looks at where a name leads after a write; returns whether it led elsewhere before.
    pub(super) fn lead(&mut self, name: &str, now: u64, store: &MemoryStore) -> bool {
        let home = store.home(name);
        if self.leads.home(name) == home.as_deref() {
            return false;
        }
        let leads = self.leads.0.entry(name.to_owned()).or_default();
        if let Some(last) = leads.last_mut() {
            last.until = last.until.min(now);
        }
        leads.extend(home.map(|home| Lead {
            home,
            from: now,
            until: u64::MAX,
        }));
        true
    }

    /// A file with several names was written: each has what was written.
    pub(super) fn follow(&mut self, home: &str, store: &MemoryStore) {
        let now = self.now();
        for name in self.leads.names(home) {
            let (Some(number), Ok(content)) = (store.version(&name), store.whole(&name)) else {
                continue;
            };
            let versions = self.versions.entry(name).or_default();
            let last = versions.last_mut().filter(|last| last.until == u64::MAX);
            if last.as_ref().is_some_and(|last| last.number == number) {
                continue;
            }
            if let Some(last) = last {
                last.until = now;
            }
            versions.push(Version {
                number,
                content,
                from: now,
                until: u64::MAX,
            });
        }
    }

    /// May a name be made to lead to a file? That is of a call that gives a name to what led there.
    pub(super) fn may_lead(&self, name: &str, home: &str) -> bool {
        self.intents().any(|(_, intent)| match intent {
            Intent::Link { node, from, to } => {
                let node = self.nodes.get(node);
                let is_moved = || node.is_some_and(|node| self.leads.is_of(node, home));
                to == name && (self.leads.has(from, home) || is_moved())
            }
            Intent::Rename { from, to } => {
                let before = moved(name, to, from);
                before.is_some_and(|before| self.leads.has(&before, home))
            }
            Intent::Remove(_) | Intent::Empty(_) => false,
        })
    }

    /// Has the new name of a rename led where the old one leads?
    pub(super) fn has_lead_along(&self, name: &str, new: &str) -> bool {
        let last = self.leads.of(name).last();
        last.is_some_and(|last| self.leads.has(new, &last.home))
    }

    /// A file goes with its last name only.
    pub(super) fn is_without_names(&self, home: &str) -> bool {
        is_home(home) && self.leads.names(home).is_empty()
    }

    /// Did two names lead to one file at any moment since then? A rename of the one to the other then may
    /// have done nothing.
    pub(super) fn have_been_one(&self, one: &str, two: &str, since: u64) -> bool {
        let since = since.saturating_sub(SLACK);
        self.leads.of(one).iter().any(|one| {
            self.leads.of(two).iter().any(|two| {
                let until = one.until.min(two.until);
                one.home == two.home && one.from.max(two.from) < until && until >= since
            })
        })
    }

    /// The nodes of a mount that a name's removal may take the last name: also those that have another one.
    pub(super) fn may_remove(&mut self, mount: usize, name: &str) {
        let home = self.leads.home(name).map(str::to_owned);
        for (id, node) in &mut self.nodes {
            let is_it = node.paths.iter().any(|path| path == name);
            let has_it = home
                .as_ref()
                .is_some_and(|home| self.leads.is_of(node, home));
            node.is_removed |= id.0 == mount && (is_it || has_it);
        }
    }
}

impl World {
    /// After the last sweep each name is counted, and nothing else.
    pub(super) fn check_counts(&self) {
        let names = self.store.names();
        for home in names.iter().filter(|name| is_home(name)) {
            let leads = |name: &&String| self.store.home(name).as_ref() == Some(home);
            let there = names.iter().filter(leads).count();
            let table = self.store.whole(&format!("{home}/names"));
            let counted = table.map(|table| table.split(|byte| *byte == b'\n').count() - 1);
            if counted.as_ref().ok() != Some(&there) {
                let text = format!("{home} has {there} names, and {counted:?} are counted");
                self.model.lock().blame(text);
            }
        }
    }
}
