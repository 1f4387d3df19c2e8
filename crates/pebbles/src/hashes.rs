//! Suffix hashes, in Swift's form, from the index alone.

use std::collections::BTreeMap;
use std::time::Duration;

use cairn_disk::engine::{Counted, SuffixHash, SuffixHasher};
use cairn_disk::layout::{FragmentChoice, OnDiskFiles};
use cairn_types::Timestamp;

use crate::index::{Index, Part, suffix_of};
use crate::object::{Entry, EntryKind, Rules, is_simple};

/// The age at which tombstones and strays count no longer.
#[derive(Clone, Copy, Debug)]
pub struct Age {
    pub now: Timestamp,
    pub reclaim_age: Duration,
}

impl Age {
    pub fn is_over(self, timestamp: Timestamp) -> bool {
        let age = self.now.secs().saturating_sub(timestamp.secs());
        age > self.reclaim_age.as_secs()
    }
}

/// An object's files as Swift would have them after it has cleaned up; `None`: it would have none.
pub fn files_of(
    rules: Rules,
    entries: &[Entry],
    choice: &FragmentChoice,
    age: Age,
) -> Option<(OnDiskFiles, Vec<(String, Entry)>)> {
    let (mut files, named) = rules.choose(entries, choice);
    if files
        .tombstone
        .as_ref()
        .is_some_and(|ts| age.is_over(ts.timestamp))
    {
        files.tombstone = None;
    }
    files
        .reclaimable
        .retain(|file| !age.is_over(file.timestamp));
    let is_there = files.data.is_some()
        || files.tombstone.is_some()
        || !files.reclaimable.is_empty()
        || !files.fragments.sets.is_empty();
    is_there.then_some((files, named))
}

/// The hashes of a partition's suffixes.
pub fn of_partition(index: &Index, part: Part, age: Age) -> BTreeMap<String, SuffixHash> {
    let rules = index.rules();
    let is_coded = rules.unique_fragments.is_some();
    let mut hashes = BTreeMap::new();
    let mut current: Option<(u16, SuffixHasher)> = None;
    let mut end = |ended: Option<(u16, SuffixHasher)>| {
        if let Some((suffix, hashers)) = ended {
            hashes.insert(format!("{suffix:03x}"), hashers.finish(is_coded));
        }
    };
    for (hash, entries) in index.objects(part) {
        let suffix = suffix_of(hash);
        let add = |to: &mut SuffixHasher| add_object(to, rules, &entries, age);
        match &mut current {
            Some((of, hashers)) if *of == suffix => {
                add(hashers);
            }
            _ => {
                let mut hashers = SuffixHasher::new();
                if add(&mut hashers) {
                    end(current.replace((suffix, hashers)));
                }
            }
        }
    }
    end(current);
    hashes
}

/// False: nothing of it counts, not even that it is there.
fn add_object(hashers: &mut SuffixHasher, rules: Rules, entries: &[Entry], age: Age) -> bool {
    if let [only] = entries
        && is_simple(entries)
        && rules.unique_fragments.is_none()
    {
        let (what, counts) = match only.kind {
            EntryKind::Tombstone => (Counted::Tombstone, !age.is_over(only.timestamp)),
            _ => (Counted::Data, true),
        };
        if counts {
            hashers.add(what, only.timestamp);
        }
        return counts;
    }
    let choice = FragmentChoice::default();
    match files_of(rules, entries, &choice, age) {
        Some((files, _)) => {
            hashers.add_object(&files);
            true
        }
        None => false,
    }
}

/// The suffixes in which something counts, with their objects.
pub fn suffixes(index: &Index, part: Part) -> Vec<String> {
    let objects = index.objects(part);
    let mut suffixes: Vec<u16> = objects.iter().map(|(hash, _)| suffix_of(*hash)).collect();
    suffixes.dedup();
    suffixes
        .into_iter()
        .map(|suffix| format!("{suffix:03x}"))
        .collect()
}

/// The number of a suffix's three digits.
pub fn suffix_number(suffix: &str) -> Option<u16> {
    let number = u16::from_str_radix(suffix, 16).ok()?;
    (suffix.len() == 3).then_some(number)
}
