//! The writes that were acknowledged of each object, and may therefore not be lost.

use std::collections::BTreeMap;
use std::time::Duration;

use cairn_disk::layout::FragmentChoice;
use cairn_pebbles::hashes::Age;
use cairn_pebbles::object::{Entry, EntryKind, Rules};
use cairn_pebbles::place::Place;
use cairn_types::{ObjectHash, Timestamp};

/// A write that an object had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    Add(Entry),
    Remove(Timestamp, Option<u16>),
}

/// Writes in their order, and whether each was acknowledged.
#[derive(Clone, Debug, Default)]
pub(crate) struct Object {
    writes: Vec<(Write, bool)>,
    /// All that was ever written, acknowledged or not: damage may bring any of it back.
    ever: Vec<Entry>,
    /// A fault hit it: it may be gone or older, but nothing else, until it is written anew.
    pub(crate) is_hit: bool,
}

pub(crate) type Key = (u32, ObjectHash);

pub(crate) struct Model {
    pub(crate) rules: Rules,
    pub(crate) reclaim_age: Duration,
    pub(crate) objects: BTreeMap<Key, Object>,
}

/// An entry without its place.
type Id = (EntryKind, Timestamp, Option<Timestamp>);

fn ids(rules: Rules, entries: &[Entry], age: Age) -> Vec<Id> {
    let (files, named) = rules.choose(entries, &FragmentChoice::default());
    // Tombstones and strays may go with age, at any time.
    let is_stray = |entry: &Entry| {
        let mut names = named.iter().filter(|(_, of)| of.is_same(entry));
        names.any(|(name, _)| files.reclaimable.iter().any(|file| file.name == *name))
    };
    let lone = |entry: &Entry| {
        let of_it = |e: &&Entry| e.fragment().is_some() && e.timestamp == entry.timestamp;
        entry.kind == EntryKind::Durable && entries.iter().find(of_it).is_none_or(is_stray)
    };
    let counts = |entry: &&Entry| {
        let can_go = entry.kind == EntryKind::Tombstone || is_stray(entry) || lone(entry);
        !(can_go && age.is_over(entry.timestamp))
    };
    let counted = entries.iter().filter(counts);
    let mut ids: Vec<Id> = counted
        .map(|e| (e.kind, e.timestamp, e.content_type))
        .collect();
    ids.sort();
    ids
}

impl Model {
    pub(crate) fn note(&mut self, key: Key, write: Write, is_certain: bool) {
        let object = self.objects.entry(key).or_default();
        if let Write::Add(entry) = write {
            // Whatever damage there was, it is older than this, and can end it no more.
            let is_whole = matches!(entry.kind, EntryKind::Data | EntryKind::Tombstone);
            let is_newest = object.ever.iter().all(|e| e.timestamp < entry.timestamp);
            if is_certain && is_whole && is_newest && self.rules.unique_fragments.is_none() {
                object.is_hit = false;
                object.writes.clear();
            }
            object.ever.push(entry);
        }
        object.writes.push((write, is_certain));
    }

    fn fold(&self, writes: &[Write]) -> Vec<Entry> {
        let mut entries = Vec::new();
        for write in writes {
            match write {
                Write::Add(entry) => {
                    self.rules.apply(&mut entries, *entry);
                }
                Write::Remove(up_to, fragment) => {
                    self.rules.remove(&mut entries, *up_to, *fragment);
                }
            }
        }
        entries
    }

    /// Holds an object against its writes. From then on it is what it is.
    pub(crate) fn check(
        &mut self,
        key: Key,
        actual: &[Entry],
        now: Timestamp,
    ) -> Result<(), String> {
        let age = Age {
            now,
            reclaim_age: self.reclaim_age,
        };
        let Some(object) = self.objects.get(&key) else {
            return match actual.is_empty() {
                true => Ok(()),
                false => Err(format!("{actual:?} was never written")),
            };
        };
        let uncertain = object
            .writes
            .iter()
            .filter(|(_, is_certain)| !is_certain)
            .count();
        let found = ids(self.rules, actual, age);
        let is_possible = |subset: u32| {
            let mut number = 0;
            let chosen = object.writes.iter().filter(|(_, is_certain)| {
                *is_certain || {
                    number += 1;
                    subset & (1 << (number - 1)) != 0
                }
            });
            let chosen: Vec<Write> = chosen.map(|(write, _)| *write).collect();
            ids(self.rules, &self.fold(&chosen), age) == found
        };
        let all = 1u32 << uncertain.min(12);
        if !object.is_hit && !(0..all).any(is_possible) {
            let writes = object.writes.iter().map(|(write, is_certain)| match write {
                Write::Add(e) => format!("{:?}@{} {is_certain}", e.kind, e.timestamp.secs()),
                Write::Remove(to, f) => format!("remove@{}#{f:?} {is_certain}", to.secs()),
            });
            let writes: Vec<_> = writes.collect();
            return Err(format!("there is {found:?}, after {writes:?}"));
        }
        if object.is_hit {
            for (kind, timestamp, content_type) in found {
                let is_it = |e: &Entry| {
                    let kind = matches!(
                        (e.kind, kind),
                        (EntryKind::Fragment { .. }, EntryKind::Fragment { .. })
                    ) || e.kind == kind;
                    kind && (e.timestamp, e.content_type) == (timestamp, content_type)
                };
                if !object.ever.iter().any(is_it) {
                    return Err(format!("{kind:?} of {timestamp} was never written"));
                }
            }
            return Ok(());
        }
        if uncertain > 0 {
            // Every write stays known, so that older ones are recognised; what is there is certain.
            let settled: Vec<_> = actual.iter().map(|e| (Write::Add(*e), true)).collect();
            if let Some(object) = self.objects.get_mut(&key) {
                object.writes = settled;
            }
        }
        Ok(())
    }
}

pub(crate) fn nowhere() -> Place {
    Place {
        slot: 0,
        offset: 0,
        len: 0,
    }
}
