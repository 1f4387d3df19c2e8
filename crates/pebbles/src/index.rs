//! The index: every record that counts, in memory, by group and object.
//!
//! A group is of the objects whose hashes begin with the same bits, so that the index does not depend on how
//! many partitions the ring has: one of them is a part of a group, or some of them together, and it is asked
//! for with the ring's part power. When that grows, nothing here changes, and nothing on disk.
//!
//! A group has a B-tree of objects in the order of their suffixes, and within a suffix of their
//! hashes, the order in which Swift hashes a suffix and lists it. An object of which one record
//! counts, an upload or a tombstone, is a slot of 16 bytes beside its 16 of hash: with the tree's own
//! room 38 to 53 bytes. Everything else (POSTs, fragments, times with an offset) is a list in a side
//! tree.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_types::{ObjectHash, Timestamp};
use parking_lot::RwLock;

use crate::object::{Entry, EntryKind, Rules, is_simple};
use crate::place::{PLACE_BITS, Place};

/// Locks of the index.
const SHARDS: usize = 64;
const SUFFIX_BITS: u32 = 12;
/// Bits of a hash by which objects are in groups. Each group costs some hundred bytes, and a partition that is
/// smaller than one is looked for in all of it.
const GROUP_BITS: u32 = 12;
/// Changed objects that are noted for each lock. With more it is forgotten which these are.
const CHANGED_MAX: usize = 1 << 14;

/// How objects are in groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// By their hashes. The number of the partition that comes with an object does not matter.
    ByHash,
    /// By the number of the partition that comes with each, where no ring says how that follows from the
    /// hash.
    ByPartition,
}

/// A partition of a ring, as asked for: the hashes that begin with a number of so many bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    partition: u32,
    power: u32,
}

impl Part {
    /// `power`: the ring's; without one the partition is a group.
    pub fn new(partition: u32, power: Option<u32>) -> Self {
        Part {
            partition,
            power: power.unwrap_or(GROUP_BITS).min(32),
        }
    }

    fn has(self, hash: ObjectHash) -> bool {
        hash.partition(32 - self.power) == self.partition
    }

    /// The groups that it may have objects of: none where the ring has no such partition.
    fn groups(self) -> RangeInclusive<u32> {
        let first = u64::from(self.partition) << (32 - self.power);
        let last = first + ((1 << (32 - self.power)) - 1);
        let group = |hash: u64| u32::try_from(hash).map(|hash| hash >> (32 - GROUP_BITS));
        match (group(first), group(last)) {
            (Ok(first), Ok(last)) => first..=last,
            _ => RangeInclusive::new(1, 0),
        }
    }
}

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
struct Group {
    slots: BTreeMap<Key, Slot>,
    lists: BTreeMap<Key, Box<[Entry]>>,
}

impl Group {
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

/// Objects of a group as a checkpoint has them.
#[derive(Default)]
pub(crate) struct Loaded {
    /// Those of one entry, which is simple.
    pub(crate) single: Vec<(ObjectHash, Entry)>,
    pub(crate) lists: Vec<(ObjectHash, Vec<Entry>)>,
}

impl Loaded {
    /// An entry of an object, of which all come one after the other.
    pub(crate) fn add_to_list(&mut self, hash: ObjectHash, entry: Entry) {
        match self.lists.last_mut().filter(|(last, _)| *last == hash) {
            Some((_, entries)) => entries.push(entry),
            None => self.lists.push((hash, vec![entry])),
        }
    }

    fn hashes(&self) -> impl Iterator<Item = &ObjectHash> {
        let single = self.single.iter().map(|(hash, _)| hash);
        single.chain(self.lists.iter().map(|(hash, _)| hash))
    }
}

/// The groups below one lock.
#[derive(Default)]
struct Shard {
    groups: BTreeMap<u32, Group>,
    /// Objects that changed since these were taken, some more than once.
    changed: Vec<(u32, ObjectHash)>,
    has_forgotten: bool,
}

impl Shard {
    fn note_changed(&mut self, group: u32, hash: ObjectHash) {
        if self.has_forgotten {
            return;
        }
        if self.changed.len() >= CHANGED_MAX {
            self.changed.sort_unstable();
            self.changed.dedup();
            if self.changed.len() > CHANGED_MAX / 2 {
                self.changed = Vec::new();
                self.has_forgotten = true;
                return;
            }
        }
        self.changed.push((group, hash));
    }
}

/// All objects of a device and policy.
pub struct Index {
    rules: Rules,
    grouping: Grouping,
    shards: Box<[RwLock<Shard>]>,
    objects: AtomicU64,
    listed: AtomicU64,
}

impl Index {
    pub fn new(rules: Rules, grouping: Grouping) -> Self {
        Index {
            rules,
            grouping,
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            objects: AtomicU64::new(0),
            listed: AtomicU64::new(0),
        }
    }

    pub fn rules(&self) -> Rules {
        self.rules
    }

    fn shard(&self, group: u32) -> &RwLock<Shard> {
        &self.shards[group as usize % SHARDS]
    }

    /// The group of an object, of which somebody says that it is in this partition.
    pub(crate) fn group_of(&self, partition: u32, hash: ObjectHash) -> u32 {
        match self.grouping {
            Grouping::ByHash => hash.partition(32 - GROUP_BITS),
            Grouping::ByPartition => partition,
        }
    }

    /// The records of an object that count; none: it is not there.
    pub fn get(&self, partition: u32, hash: ObjectHash) -> Vec<Entry> {
        let group = self.group_of(partition, hash);
        let shard = self.shard(group).read();
        let group = shard.groups.get(&group);
        group.map_or_else(Vec::new, |group| group.get(Key::of(hash)))
    }

    /// Changes an object's entries, and gives what `change` gives.
    pub fn update<T>(
        &self,
        partition: u32,
        hash: ObjectHash,
        change: impl FnOnce(&mut Vec<Entry>) -> T,
    ) -> T {
        let key = Key::of(hash);
        let group = self.group_of(partition, hash);
        let mut shard = self.shard(group).write();
        shard.note_changed(group, hash);
        let objects = shard.groups.entry(group).or_default();
        let (len, lists) = (objects.len(), objects.lists.len());
        let mut entries = objects.get(key);
        let result = change(&mut entries);
        objects.set(key, entries);
        count(&self.objects, len, objects.len());
        count(&self.listed, lists, objects.lists.len());
        if objects.is_empty() {
            shard.groups.remove(&group);
        }
        result
    }

    /// Fills in objects from a checkpoint, all of one group there.
    pub(crate) fn load(&self, group: u32, loaded: Loaded) {
        let is_there = self.shard(group).read().groups.contains_key(&group);
        let is_its = |hash: &ObjectHash| self.group_of(group, *hash) == group;
        if is_there || !loaded.hashes().all(is_its) {
            return self.load_apart(group, loaded);
        }
        let mut objects = Group::default();
        // Built in order, nodes are full.
        let single = loaded.single.into_iter();
        objects.slots = single
            .map(|(hash, entry)| (Key::of(hash), Slot::of(&entry)))
            .collect();
        // Entries of volumes that are used anew are left out: one or none may be left in a list.
        for (hash, entries) in loaded.lists {
            objects.set(Key::of(hash), entries);
        }
        if objects.is_empty() {
            return;
        }
        count(&self.objects, 0, objects.len());
        count(&self.listed, 0, objects.lists.len());
        self.shard(group).write().groups.insert(group, objects);
    }

    /// The same of objects that were in other groups when the checkpoint was written.
    fn load_apart(&self, group: u32, loaded: Loaded) {
        let single = loaded.single.into_iter();
        let lists = loaded.lists.into_iter();
        for (hash, loaded) in single.map(|(hash, entry)| (hash, vec![entry])).chain(lists) {
            self.update(group, hash, |entries| {
                for entry in loaded {
                    self.rules.apply(entries, entry);
                }
            });
        }
    }

    /// The objects that changed since the last call, each once, with their groups; `None` where it is not
    /// known of all of them.
    pub(crate) fn take_changed(&self) -> Option<Vec<(u32, ObjectHash)>> {
        let (mut all, mut is_known) = (Vec::new(), true);
        for shard in &self.shards {
            let mut shard = shard.write();
            all.append(&mut shard.changed);
            is_known &= !std::mem::take(&mut shard.has_forgotten);
        }
        all.sort_unstable();
        all.dedup();
        is_known.then_some(all)
    }

    /// Whether it is not known of all changed objects which they are.
    pub(crate) fn has_forgotten_changes(&self) -> bool {
        self.shards.iter().any(|shard| shard.read().has_forgotten)
    }

    pub(crate) fn forget_changes(&self) {
        for shard in &self.shards {
            let mut shard = shard.write();
            shard.changed = Vec::new();
            shard.has_forgotten = true;
        }
    }

    /// Shows every entry, in no order.
    pub(crate) fn visit(&self, mut visit: impl FnMut(&Entry)) {
        for shard in &self.shards {
            for group in shard.read().groups.values() {
                group.slots.values().for_each(|slot| visit(&slot.entry()));
                let lists = group.lists.values();
                lists.flat_map(|list| list.iter()).for_each(&mut visit);
            }
        }
    }

    /// The groups in which something is, in order.
    pub fn groups(&self) -> Vec<u32> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.read().groups.keys());
        }
        all.sort_unstable();
        all
    }

    /// All objects of a group, in order.
    pub fn group_objects(&self, group: u32) -> Vec<(ObjectHash, Vec<Entry>)> {
        let shard = self.shard(group).read();
        let group = shard.groups.get(&group);
        group.map_or_else(Vec::new, |group| group.range(Key(0), None))
    }

    /// The partitions of a ring in which something is, in order.
    pub fn partitions(&self, power: Option<u32>) -> Vec<u32> {
        let groups = self.groups();
        let power = match (self.grouping, power) {
            (Grouping::ByHash, Some(power)) => power.min(32),
            _ => return groups,
        };
        let mut all = Vec::new();
        match GROUP_BITS.checked_sub(power) {
            Some(fewer) => all.extend(groups.iter().map(|group| group >> fewer)),
            None => {
                for group in groups {
                    let shard = self.shard(group).read();
                    let Some(group) = shard.groups.get(&group) else {
                        continue;
                    };
                    let keys = group.slots.keys().chain(group.lists.keys());
                    let of_group = keys.map(|key| key.hash().partition(32 - power));
                    let mut of_group: Vec<u32> = of_group.collect();
                    of_group.sort_unstable();
                    of_group.dedup();
                    all.extend(of_group);
                }
            }
        }
        all.dedup();
        all
    }

    /// All objects of a partition, in order.
    pub fn objects(&self, part: Part) -> Vec<(ObjectHash, Vec<Entry>)> {
        self.objects_between(part, Key(0), None)
    }

    /// Those of a suffix.
    pub fn suffix_objects(&self, part: Part, suffix: u16) -> Vec<(ObjectHash, Vec<Entry>)> {
        let to = (suffix + 1 < 1 << SUFFIX_BITS).then(|| Key::first_of(suffix + 1));
        self.objects_between(part, Key::first_of(suffix), to)
    }

    /// Whether an object that was in a partition is in it still.
    pub fn is_in(&self, part: Part, hash: ObjectHash) -> bool {
        self.grouping == Grouping::ByPartition || part.has(hash)
    }

    /// Whether a partition has anything.
    pub fn is_empty(&self, part: Part) -> bool {
        let mut groups = match self.grouping {
            Grouping::ByHash => part.groups(),
            Grouping::ByPartition => part.partition..=part.partition,
        };
        groups.all(|group| {
            let shard = self.shard(group).read();
            let Some(group) = shard.groups.get(&group) else {
                return true;
            };
            let mut keys = group.slots.keys().chain(group.lists.keys());
            let is_its = |key: &Key| part.has(key.hash());
            !(self.grouping == Grouping::ByPartition || keys.any(is_its))
        })
    }

    /// Those of a partition from one key to before another, in order.
    fn objects_between(
        &self,
        part: Part,
        from: Key,
        to: Option<Key>,
    ) -> Vec<(ObjectHash, Vec<Entry>)> {
        let of_group = |group: u32| {
            let shard = self.shard(group).read();
            let group = shard.groups.get(&group);
            group.map_or_else(Vec::new, |group| group.range(from, to))
        };
        if self.grouping == Grouping::ByPartition {
            return of_group(part.partition);
        }
        let mut all: Vec<_> = part.groups().flat_map(of_group).collect();
        if part.power > GROUP_BITS {
            all.retain(|(hash, _)| part.has(*hash));
        } else if part.power < GROUP_BITS {
            all.sort_unstable_by_key(|(hash, _)| Key::of(*hash));
        }
        all
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

/// The place of an object in the order of its group.
pub(crate) fn order_of(hash: ObjectHash) -> impl Ord {
    Key::of(hash)
}

/// The number that a suffix's three digits are.
pub fn suffix_of(hash: ObjectHash) -> u16 {
    Key::of(hash).suffix()
}

#[cfg(test)]
mod tests;
