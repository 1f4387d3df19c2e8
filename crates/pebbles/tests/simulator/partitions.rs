//! Partitions of rings whose part power changes: requests come with the numbers of any of them.

use std::collections::BTreeSet;

use cairn_pebbles::Store;
use cairn_pebbles::index::{Grouping, Part, suffix_of};
use cairn_types::ObjectHash;

use crate::model::Key;
use crate::world::{Checked, World};

/// Part powers of rings are up to this.
const POWER_MAX: u64 = 20;

impl World {
    /// Every object is in its partition, and in no other, whatever the ring's part power is now.
    pub(super) fn check_partitions(&mut self, store: &Store) -> Checked {
        let power = self.below(1 + POWER_MAX) as u32;
        let index = store.index();
        let mut left: BTreeSet<Key> = self.keys.iter().copied().collect();
        left.retain(|key| !index.get(key.0, key.1).is_empty());
        for partition in index.partitions(Some(power)) {
            let part = Part::new(partition, Some(power));
            let objects = index.objects(part);
            if objects.is_empty() || index.is_empty(part) {
                return Err(format!("{partition} of 2^{power} is listed, and empty"));
            }
            for (hash, entries) in objects {
                let in_suffix = index.suffix_objects(part, suffix_of(hash));
                let is_its = |key: &Key| match self.grouping {
                    Grouping::ByHash => hash.partition(32 - power) == partition,
                    Grouping::ByPartition => key.0 == partition,
                };
                let key = self.keys.iter().find(|key| key.1 == hash);
                let key = key.filter(|key| is_its(key) && left.remove(*key));
                if key.is_none() || !in_suffix.contains(&(hash, entries)) {
                    return Err(format!("{} is nobody's in {partition}", hash.hex()));
                }
            }
        }
        match left.first() {
            Some((_, hash)) => Err(format!("{} is in no partition of 2^{power}", hash.hex())),
            None => Ok(()),
        }
    }

    /// The object with a hash.
    pub(super) fn key_of(&self, partition: u32, hash: ObjectHash) -> Key {
        let key = self.keys.iter().find(|key| key.1 == hash);
        key.copied().unwrap_or((partition, hash))
    }

    /// The number of an object's partition in a request, by a ring of any part power.
    pub(super) fn partition_of(&mut self, key: Key) -> u32 {
        match self.grouping {
            Grouping::ByHash => key.1.partition(32 - self.below(1 + POWER_MAX) as u32),
            Grouping::ByPartition => key.0,
        }
    }
}
