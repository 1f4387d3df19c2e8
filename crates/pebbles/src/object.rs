//! The state of one object: the records that count, and how one more changes it.
//!
//! The rules are those for the files of a hash directory, and for all but the simplest objects the
//! same code decides (`cairn_disk::layout`): each entry stands for the file that Swift would have.

use cairn_disk::layout::{
    FileEntry, FileKind, FragmentChoice, OnDiskFiles, choose_files, choose_fragments, data_name,
    fragment_name, meta_name, tombstone_name,
};
use cairn_types::Timestamp;

use crate::place::Place;

/// The meaning of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EntryKind {
    Data,
    Fragment {
        index: u16,
        /// It counted at once: its own record says so.
        is_durable: bool,
    },
    Meta,
    Tombstone,
    /// Makes fragments of its time durable.
    Durable,
}

/// A record that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub kind: EntryKind,
    pub timestamp: Timestamp,
    /// The time of a POST's content type, where it says one.
    pub content_type: Option<Timestamp>,
    /// The number of the file that has the content.
    pub external: Option<u64>,
    /// Its metadata says no time at which it expires: it may be replaced unread.
    pub is_lasting: bool,
    pub place: Place,
}

impl Entry {
    /// Whether two records stand for the same file.
    pub fn is_same(&self, other: &Entry) -> bool {
        let kind = match (self.kind, other.kind) {
            (EntryKind::Fragment { index, .. }, EntryKind::Fragment { index: of, .. }) => {
                index == of
            }
            (one, other) => one == other,
        };
        kind && self.timestamp == other.timestamp && self.content_type == other.content_type
    }

    pub fn fragment(&self) -> Option<u16> {
        match self.kind {
            EntryKind::Fragment { index, .. } => Some(index),
            _ => None,
        }
    }

    fn is_durable_fragment(&self) -> bool {
        matches!(
            self.kind,
            EntryKind::Fragment {
                is_durable: true,
                ..
            }
        )
    }

    pub fn is_content(&self) -> bool {
        matches!(self.kind, EntryKind::Data | EntryKind::Fragment { .. })
    }

    fn file(&self, is_durable: bool) -> FileEntry {
        let timestamp = self.timestamp;
        let (name, kind) = match self.kind {
            EntryKind::Data => (data_name(timestamp), FileKind::Data),
            EntryKind::Fragment { index, .. } => {
                let index = index.into();
                let name = fragment_name(timestamp, index, is_durable);
                (name, FileKind::Fragment { index, is_durable })
            }
            EntryKind::Meta => (meta_name(timestamp, self.content_type), FileKind::Meta),
            EntryKind::Tombstone => (tombstone_name(timestamp), FileKind::Tombstone),
            EntryKind::Durable => (format!("{timestamp}.durable"), FileKind::Durable),
        };
        FileEntry {
            name,
            kind,
            timestamp,
            content_type_timestamp: self.content_type,
        }
    }
}

/// The policy's part in which records count: how many different fragments an object has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// `None`: replication.
    pub unique_fragments: Option<u32>,
}

impl Rules {
    /// Which of these count, as files; and for each of the files the entry it stands for.
    pub fn choose(
        self,
        entries: &[Entry],
        choice: &FragmentChoice,
    ) -> (OnDiskFiles, Vec<(String, Entry)>) {
        let durable = entries.iter().filter(|e| e.kind == EntryKind::Durable);
        let durable: Vec<Timestamp> = durable.map(|e| e.timestamp).collect();
        let of = |entry: &Entry| {
            let is_durable = matches!(
                entry.kind,
                EntryKind::Fragment {
                    is_durable: true,
                    ..
                }
            ) || durable.contains(&entry.timestamp);
            entry.file(is_durable)
        };
        // Markers are said by the names of their fragments.
        let counted = entries.iter().filter(|e| e.kind != EntryKind::Durable);
        let files: Vec<(FileEntry, Entry)> = counted.map(|entry| (of(entry), *entry)).collect();
        let listed = files.iter().map(|(file, _)| file.clone());
        let chosen = match self.unique_fragments {
            Some(unique) => choose_fragments(listed, unique, choice),
            None => choose_files(listed),
        };
        let named = files.into_iter().map(|(file, entry)| (file.name, entry));
        (chosen, named.collect())
    }

    /// Adds an entry; gives the entries that count no longer, perhaps the new one itself.
    pub fn apply(self, entries: &mut Vec<Entry>, new: Entry) -> Vec<Entry> {
        let mut gone = Vec::new();
        if let Some(same) = entries.iter_mut().find(|entry| entry.is_same(&new)) {
            if same.is_durable_fragment() && !new.is_durable_fragment() {
                // The record that is left has to say it: the other one is gone one day.
                return vec![new];
            }
            let was = std::mem::replace(same, new);
            gone.extend((was.place != new.place).then_some(was));
        } else {
            entries.push(new);
        }
        let has_order = |e: &Entry| matches!(e.kind, EntryKind::Data | EntryKind::Tombstone);
        match entries.iter().all(has_order) {
            true => self.thin_simple(entries, &mut gone),
            false => self.thin(entries, &mut gone),
        }
        gone
    }

    /// Whether a record would count no longer the moment it was written.
    pub fn is_obsolete(self, entries: &[Entry], new: &Entry) -> bool {
        if entries.is_empty() {
            return false;
        }
        if let Some(same) = entries.iter().find(|entry| entry.is_same(new)) {
            return same.is_durable_fragment() && !new.is_durable_fragment();
        }
        let mut entries = entries.to_vec();
        let gone = self.apply(&mut entries, *new);
        gone.iter().any(|entry| entry.is_same(new))
    }

    /// Objects and tombstones without anything else: the newest is left.
    fn thin_simple(self, entries: &mut Vec<Entry>, gone: &mut Vec<Entry>) {
        // A tombstone ends an object of its own time.
        let order = |e: &Entry| (e.timestamp, e.kind == EntryKind::Tombstone);
        entries.sort_by_key(order);
        let last = entries.len().saturating_sub(1);
        gone.extend(entries.drain(..last));
    }

    fn thin(self, entries: &mut Vec<Entry>, gone: &mut Vec<Entry>) {
        let (chosen, named) = self.choose(entries, &FragmentChoice::default());
        for file in &chosen.obsolete {
            let mut of = named.iter().filter(|(name, _)| *name == file.name);
            let Some((_, entry)) = of.next() else {
                continue;
            };
            if let Some(at) = entries.iter().position(|e| e.is_same(entry)) {
                gone.push(entries.remove(at));
            }
        }
        // As the files of their time would: a marker that came before its fragments waits for them.
        let deleted = entries.iter().filter(|e| e.kind == EntryKind::Tombstone);
        let deleted = deleted.map(|e| e.timestamp).max();
        let durable = chosen.fragments.durable;
        let is_over = |e: &Entry| {
            let is_older = durable.is_some_and(|durable| e.timestamp < durable);
            e.kind == EntryKind::Durable
                && (is_older || deleted.is_some_and(|deleted| e.timestamp <= deleted))
        };
        gone.extend(entries.iter().filter(|e| is_over(e)));
        entries.retain(|e| !is_over(e));
    }

    /// Takes away all of an object up to a time, or of a fragment of it.
    pub fn remove(
        self,
        entries: &mut Vec<Entry>,
        up_to: Timestamp,
        fragment: Option<u16>,
    ) -> Vec<Entry> {
        let goes =
            |e: &Entry| e.timestamp <= up_to && (fragment.is_none() || e.fragment() == fragment);
        let mut gone: Vec<Entry> = entries.iter().filter(|e| goes(e)).copied().collect();
        entries.retain(|e| !goes(e));
        if fragment.is_some() {
            // A marker goes with the last fragment of its time.
            let has = |kept: &[Entry], time| {
                kept.iter()
                    .any(|e| e.fragment().is_some() && e.timestamp == time)
            };
            let kept = entries.clone();
            let is_over = |e: &Entry| {
                e.kind == EntryKind::Durable && e.timestamp <= up_to && !has(&kept, e.timestamp)
            };
            gone.extend(entries.iter().filter(|e| is_over(e)));
            entries.retain(|e| !is_over(e));
        }
        gone
    }
}

/// Whether nothing needs more than a slot of the index.
pub(crate) fn is_simple(entries: &[Entry]) -> bool {
    entries.iter().all(|e| {
        matches!(e.kind, EntryKind::Data | EntryKind::Tombstone)
            && e.timestamp.offset() == 0
            && e.external.is_none()
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(kind: EntryKind, seconds: u64) -> Entry {
        Entry {
            kind,
            timestamp: Timestamp::from_secs(seconds),
            content_type: None,
            external: None,
            is_lasting: false,
            place: Place {
                slot: 0,
                offset: 4096 + 64 * seconds,
                len: 64,
            },
        }
    }

    const REPLICATED: Rules = Rules {
        unique_fragments: None,
    };
    const CODED: Rules = Rules {
        unique_fragments: Some(6),
    };

    fn any_entry(rules: Rules) -> impl Strategy<Value = Entry> {
        (0usize..5, 1u64..6, 0u16..3, any::<bool>()).prop_map(move |(kind, at, index, flag)| {
            let kind = match (kind, rules.unique_fragments) {
                (0, None) => EntryKind::Data,
                (0 | 1, Some(_)) => EntryKind::Fragment {
                    index,
                    is_durable: flag,
                },
                (2, Some(_)) => EntryKind::Durable,
                (3, _) => EntryKind::Tombstone,
                (4, _) => EntryKind::Meta,
                _ => EntryKind::Data,
            };
            let mut new = entry(kind, at);
            if kind == EntryKind::Meta && flag {
                new.content_type = Some(Timestamp::from_secs(u64::from(index)));
            }
            new
        })
    }

    fn files(rules: Rules, entries: &[Entry]) -> Vec<String> {
        let (chosen, _) = rules.choose(entries, &FragmentChoice::default());
        let gone: Vec<_> = chosen.obsolete.iter().map(|f| f.name.clone()).collect();
        assert!(gone.is_empty(), "obsolete and kept: {gone:?}");
        let names = [
            &chosen.data,
            &chosen.meta,
            &chosen.tombstone,
            &chosen.content_type,
        ];
        names
            .into_iter()
            .flatten()
            .map(|f| f.name.clone())
            .collect()
    }

    proptest! {
        /// Objects and tombstones are decided by the shortcut as by the rules for files.
        #[test]
        fn the_shortcut_decides_like_the_rules(list in proptest::collection::vec(any_entry(REPLICATED), 1..8)) {
            let list: Vec<_> = list.into_iter().filter(|e| e.kind != EntryKind::Meta).collect();
            let mut quick = Vec::new();
            let mut slow: Vec<Entry> = Vec::new();
            for new in list {
                REPLICATED.apply(&mut quick, new);
                if !slow.iter().any(|e| e.is_same(&new)) {
                    slow.push(new);
                    REPLICATED.thin(&mut slow, &mut Vec::new());
                }
                let ids = |list: &[Entry]| list.iter().map(|e| (e.kind, e.timestamp)).collect::<Vec<_>>();
                prop_assert_eq!(ids(&quick), ids(&slow));
            }
        }

        /// The order in which records come does not matter.
        #[test]
        fn records_come_in_any_order(
            list in proptest::collection::vec(any_entry(REPLICATED), 1..7).prop_shuffle(),
        ) {
            let fold = |list: &[Entry]| {
                let mut entries = Vec::new();
                for new in list {
                    REPLICATED.apply(&mut entries, *new);
                }
                files(REPLICATED, &entries)
            };
            let mut sorted = list.clone();
            sorted.sort_by_key(|e| (e.timestamp, e.kind));
            let (one, other) = (fold(&list), fold(&sorted));
            // POSTs of one time with different content types: Swift keeps the better, in any order.
            prop_assert_eq!(one, other);
        }

        #[test]
        fn fragments_come_in_any_order(list in proptest::collection::vec(any_entry(CODED), 1..8)) {
            let mut entries = Vec::new();
            for new in &list {
                let known = entries.len();
                let is_obsolete = CODED.is_obsolete(&entries, new);
                let gone = CODED.apply(&mut entries, *new);
                prop_assert_eq!(is_obsolete, !entries.contains(new));
                prop_assert!(entries.len() + gone.len() >= known);
                files(CODED, &entries);
            }
        }
    }

    #[test]
    fn a_marker_makes_fragments_durable() {
        let fragment = |index, at| {
            entry(
                EntryKind::Fragment {
                    index,
                    is_durable: false,
                },
                at,
            )
        };
        let mut entries = Vec::new();
        for new in [fragment(1, 5), fragment(2, 6), entry(EntryKind::Durable, 5)] {
            CODED.apply(&mut entries, new);
        }
        assert_eq!(files(CODED, &entries), ["0000000005.00000#1#d.data"]);
        let gone = CODED.apply(&mut entries, entry(EntryKind::Durable, 6));
        assert_eq!(files(CODED, &entries), ["0000000006.00000#2#d.data"]);
        assert_eq!(gone.len(), 2, "the older fragment and its marker");
        let gone = CODED.apply(&mut entries, entry(EntryKind::Tombstone, 7));
        assert_eq!((gone.len(), entries.len()), (2, 1));
    }

    #[test]
    fn removal_takes_what_is_older() {
        let mut entries = Vec::new();
        for new in [entry(EntryKind::Data, 5), entry(EntryKind::Meta, 7)] {
            REPLICATED.apply(&mut entries, new);
        }
        let mut some = entries.clone();
        assert_eq!(
            REPLICATED
                .remove(&mut some, Timestamp::from_secs(5), None)
                .len(),
            1
        );
        assert_eq!(some.len(), 1);
        assert_eq!(
            REPLICATED
                .remove(&mut entries, Timestamp::from_secs(7), None)
                .len(),
            2
        );
    }
}
