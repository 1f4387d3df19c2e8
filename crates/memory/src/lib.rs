//! An engine that keeps objects in memory: for tests of what is above the seam
//! (`cairn_disk::engine`), which have to pass over it as over files. It has no capability that needs
//! files, and its writes end as those of an engine with a committer of its own do (`Step::handed`).
//!
//! A device is no more than a name to it. Nothing survives the process.

mod daemons;
mod objects;
mod requests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cairn_disk::{Disk, Engine, ObjectId, PartitionKey};
use cairn_types::{HashPath, ObjectHash, PolicyIndex, PolicySet};
use parking_lot::Mutex;

use objects::Object;

/// Deletions are remembered so long (Swift's default).
const RECLAIM_AGE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Fragments that are not durable are kept at least so long (Swift's default).
const COMMIT_WINDOW: Duration = Duration::from_secs(60);

/// Objects in memory. Clones share them.
#[derive(Clone, Debug)]
pub struct MemoryEngine(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    hash_path: HashPath,
    /// The erasure-coded policies, each with how many different fragments it has.
    fragments: BTreeMap<PolicyIndex, u32>,
    state: Mutex<State>,
    /// Held partitions, for `ReplicationLock`s.
    locked: Arc<Mutex<BTreeSet<(String, PartitionKey)>>>,
}

#[derive(Debug, Default)]
struct State {
    /// By device.
    devices: BTreeMap<String, BTreeMap<PartitionKey, Partition>>,
    quarantined: Vec<ObjectId>,
    /// Partitions still to do of walks that were interrupted.
    walks: BTreeMap<(String, PolicyIndex, String), Vec<u32>>,
    /// Grows with each change of an object: no two states have the same number.
    changes: u64,
}

type Partition = BTreeMap<(String, ObjectHash), Object>;

impl MemoryEngine {
    pub fn new(hash_path: HashPath, policies: &PolicySet) -> Self {
        let fragments = policies.iter().filter_map(|policy| {
            let unique = policy.erasure()?.unique();
            Some((policy.index, u32::try_from(unique).unwrap_or(u32::MAX)))
        });
        MemoryEngine(Arc::new(Inner {
            hash_path,
            fragments: fragments.collect(),
            state: Mutex::default(),
            locked: Arc::default(),
        }))
    }

    /// Objects that were moved to quarantine, in that order.
    pub fn quarantined(&self) -> Vec<ObjectId> {
        self.0.state.lock().quarantined.clone()
    }

    /// Devices that were opened or written to.
    pub fn devices(&self) -> Vec<String> {
        self.0.state.lock().devices.keys().cloned().collect()
    }

    /// How many objects of a device have content, or a fragment.
    pub fn content_count(&self, device: &str) -> usize {
        let state = self.0.state.lock();
        let partitions = state.devices.get(device).into_iter().flatten();
        let objects = partitions.flat_map(|(_, objects)| objects.values());
        objects.filter(|object| object.has_content()).count()
    }

    /// Replaces the content of an object that counts on a device, and nothing else of it, as rot
    /// does. False: there is none.
    pub fn damage(&self, device: &str, object: ObjectId, content: &[u8]) -> bool {
        let mut state = self.0.state.lock();
        let Some(found) = state.object_mut(device, object) else {
            return false;
        };
        found.damage(content)
    }

    /// How many different fragments an object of an erasure-coded policy has.
    fn unique_fragments(&self, policy: PolicyIndex) -> Option<u32> {
        self.0.fragments.get(&policy).copied()
    }

    fn is_older_than(disk: &Disk, at: i64, age: Duration) -> bool {
        let age = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
        disk.now().saturating_sub(at) > age
    }
}

impl State {
    fn object(&self, device: &str, object: ObjectId) -> Option<&Object> {
        let partition = self.devices.get(device)?.get(&object.at)?;
        partition.get(&(object.hash.suffix(), object.hash))
    }

    fn object_mut(&mut self, device: &str, object: ObjectId) -> Option<&mut Object> {
        let partition = self.devices.get_mut(device)?.get_mut(&object.at)?;
        partition.get_mut(&(object.hash.suffix(), object.hash))
    }

    /// The object, made where there is nothing of it, and marked as changed.
    fn change(&mut self, device: &str, object: ObjectId) -> &mut Object {
        self.changes += 1;
        let partition = self.partition(device, object.at);
        let key = (object.hash.suffix(), object.hash);
        partition.entry(key).or_default()
    }

    fn partition(&mut self, device: &str, at: PartitionKey) -> &mut Partition {
        let device = self.devices.entry(device.to_owned()).or_default();
        device.entry(at).or_default()
    }

    fn remove(&mut self, device: &str, object: ObjectId) -> Option<Object> {
        let partition = self.devices.get_mut(device)?.get_mut(&object.at)?;
        partition.remove(&(object.hash.suffix(), object.hash))
    }
}

impl Engine for MemoryEngine {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn for_audit(&self) -> Arc<dyn Engine> {
        Arc::new(self.clone())
    }
}

#[cfg(test)]
mod tests;
