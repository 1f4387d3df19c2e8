//! The index: every record that counts, in memory, by partition and object.
//!
//! A partition has a B-tree of objects in the order of their suffixes, and within a suffix of their
//! hashes, the order in which Swift hashes a suffix and lists it. An object of which one record
//! counts, an upload or a tombstone, is a slot of 16 bytes beside its 16 of hash: with the tree's own
//! room 38 to 53 bytes. Everything else (POSTs, fragments, times with an offset) is a list in a side
//! tree.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_types::{ObjectHash, Timestamp};
use parking_lot::RwLock;

use crate::object::{Entry, EntryKind, Rules, is_simple};
use crate::place::{PLACE_BITS, Place};

/// Locks of the index.
const SHARDS: usize = 64;
const SUFFIX_BITS: u32 = 12;

/// A hash in the order of suffixes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key(u128);

impl Key {
    fn of(hash: ObjectHash) -> Self {
        Key(u128::from_be_bytes(hash.0).rotate_right(SUFFIX_BITS))
    }

    fn hash(self) -> ObjectHash {
        ObjectHash(self.0.rotate_left(SUFFIX_BITS).to_be_bytes())
    }

    /// The first key of a suffix.
    fn first_of(suffix: u16) -> Self {
        Key(u128::from(suffix) << (128 - SUFFIX_BITS))
    }

    fn suffix(self) -> u16 {
        (self.0 >> (128 - SUFFIX_BITS)) as u16
    }
}

/// An upload or tombstone whose time has no offset. In the upper bits of `place` are flags.
#[derive(Clone, Copy)]
struct Slot {
    place: u64,
    ticks: u64,
}

const TOMBSTONE: u64 = 1 << PLACE_BITS;
const LASTING: u64 = 1 << (PLACE_BITS + 1);

impl Slot {
    fn of(entry: &Entry) -> Self {
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        Slot {
            place: entry.place.pack()
                | flag(entry.kind == EntryKind::Tombstone, TOMBSTONE)
                | flag(entry.is_lasting, LASTING),
            ticks: entry.timestamp.ticks(),
        }
    }

    fn entry(self) -> Entry {
        Entry {
            kind: match self.place & TOMBSTONE {
                0 => EntryKind::Data,
                _ => EntryKind::Tombstone,
            },
            timestamp: Timestamp::from_ticks(self.ticks),
            content_type: None,
            external: None,
            is_lasting: self.place & LASTING != 0,
            place: Place::unpack(self.place),
        }
    }
}

#[derive(Default)]
struct Partition {
    slots: BTreeMap<Key, Slot>,
    lists: BTreeMap<Key, Box<[Entry]>>,
}

impl Partition {
    fn get(&self, key: Key) -> Vec<Entry> {
        if let Some(slot) = self.slots.get(&key) {
            return vec![slot.entry()];
        }
        self.lists.get(&key).map_or_else(Vec::new, |l| l.to_vec())
    }

    fn set(&mut self, key: Key, entries: Vec<Entry>) {
        match entries[..] {
            [one] if is_simple(&entries) => {
                self.slots.insert(key, Slot::of(&one));
                self.lists.remove(&key);
            }
            _ => {
                self.slots.remove(&key);
                match entries.is_empty() {
                    true => self.lists.remove(&key),
                    false => self.lists.insert(key, entries.into()),
                };
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.lists.is_empty()
    }

    fn len(&self) -> usize {
        self.slots.len() + self.lists.len()
    }

    /// Objects from one key to before another, in order.
    fn range(&self, from: Key, to: Option<Key>) -> Vec<(ObjectHash, Vec<Entry>)> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let bounds = (Included(from), to.map_or(Unbounded, Excluded));
        let mut slots = self.slots.range(bounds).peekable();
        let mut lists = self.lists.range(bounds).peekable();
        let mut objects = Vec::new();
        loop {
            let slot_first = match (slots.peek(), lists.peek()) {
                (Some((slot, _)), Some((list, _))) => slot < list,
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (None, None) => return objects,
            };
            objects.extend(match slot_first {
                true => slots
                    .next()
                    .map(|(key, slot)| (key.hash(), vec![slot.entry()])),
                false => lists.next().map(|(key, list)| (key.hash(), list.to_vec())),
            });
        }
    }
}

/// The index in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    pub objects: u64,
    /// Estimated from the trees' shapes.
    pub memory_bytes: u64,
}

/// All objects of a device and policy.
pub struct Index {
    rules: Rules,
    shards: Box<[RwLock<BTreeMap<u32, Partition>>]>,
    objects: AtomicU64,
    listed: AtomicU64,
}

impl Index {
    pub fn new(rules: Rules) -> Self {
        Index {
            rules,
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            objects: AtomicU64::new(0),
            listed: AtomicU64::new(0),
        }
    }

    pub fn rules(&self) -> Rules {
        self.rules
    }

    fn shard(&self, partition: u32) -> &RwLock<BTreeMap<u32, Partition>> {
        &self.shards[partition as usize % SHARDS]
    }

    /// The records of an object that count; none: it is not there.
    pub fn get(&self, partition: u32, hash: ObjectHash) -> Vec<Entry> {
        let shard = self.shard(partition).read();
        let partition = shard.get(&partition);
        partition.map_or_else(Vec::new, |p| p.get(Key::of(hash)))
    }

    /// Changes an object's entries, and gives what `change` gives.
    pub fn update<T>(
        &self,
        partition: u32,
        hash: ObjectHash,
        change: impl FnOnce(&mut Vec<Entry>) -> T,
    ) -> T {
        let key = Key::of(hash);
        let mut shard = self.shard(partition).write();
        let objects = shard.entry(partition).or_default();
        let (len, lists) = (objects.len(), objects.lists.len());
        let mut entries = objects.get(key);
        let result = change(&mut entries);
        objects.set(key, entries);
        count(&self.objects, len, objects.len());
        count(&self.listed, lists, objects.lists.len());
        if objects.is_empty() {
            shard.remove(&partition);
        }
        result
    }

    /// Fills in a partition from a checkpoint: objects in the order of the index.
    pub(crate) fn load(&self, partition: u32, objects: Vec<(ObjectHash, Vec<Entry>)>) {
        let mut loaded = Partition::default();
        let (lists, slots): (Vec<_>, Vec<_>) = objects
            .into_iter()
            .filter(|(_, entries)| !entries.is_empty())
            .partition(|(_, entries)| entries.len() > 1 || !is_simple(entries));
        let slots = slots.into_iter();
        // Built in order, nodes are full.
        loaded.slots = slots.map(|(h, e)| (Key::of(h), Slot::of(&e[0]))).collect();
        let lists = lists.into_iter();
        loaded.lists = lists.map(|(h, e)| (Key::of(h), e.into())).collect();
        count(&self.objects, 0, loaded.len());
        count(&self.listed, 0, loaded.lists.len());
        self.shard(partition).write().insert(partition, loaded);
    }

    /// The partitions in which something is, in order.
    pub fn partitions(&self) -> Vec<u32> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.read().keys());
        }
        all.sort_unstable();
        all
    }

    /// All objects of a partition, in order.
    pub fn objects(&self, partition: u32) -> Vec<(ObjectHash, Vec<Entry>)> {
        let shard = self.shard(partition).read();
        let partition = shard.get(&partition);
        partition.map_or_else(Vec::new, |p| p.range(Key(0), None))
    }

    /// Those of a suffix.
    pub fn suffix_objects(&self, partition: u32, suffix: u16) -> Vec<(ObjectHash, Vec<Entry>)> {
        let shard = self.shard(partition).read();
        let to = (suffix + 1 < 1 << SUFFIX_BITS).then(|| Key::first_of(suffix + 1));
        let partition = shard.get(&partition);
        partition.map_or_else(Vec::new, |p| p.range(Key::first_of(suffix), to))
    }

    pub fn size(&self) -> Size {
        let objects = self.objects.load(Ordering::Relaxed);
        let listed = self.listed.load(Ordering::Relaxed);
        // Leaves of 11 are seven or eight parts full after inserts in no order; a list has its own
        // allocation, two entries as a rule.
        let memory_bytes = (objects - listed.min(objects)) * 53 + listed * 190;
        Size {
            objects,
            memory_bytes,
        }
    }
}

fn count(counter: &AtomicU64, before: usize, after: usize) {
    match after >= before {
        true => counter.fetch_add((after - before) as u64, Ordering::Relaxed),
        false => counter.fetch_sub((before - after) as u64, Ordering::Relaxed),
    };
}

/// The number that a suffix's three digits are.
pub fn suffix_of(hash: ObjectHash) -> u16 {
    Key::of(hash).suffix()
}

#[cfg(test)]
mod tests;
