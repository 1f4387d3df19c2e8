//! Daemons: what is there, what may go, what is broken.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use cairn_disk::engine::{
    Audit, Audited, Contents, Handover, Hashed, Inventory, NextUpkeep, ObjectState, Purge,
    ReplicationLock, Sendable, SuffixHash, SuffixHasher, Upkeep,
};
use cairn_disk::layout::{FileKind, OnDiskFiles};
use cairn_disk::steps::Step;
use cairn_disk::{
    Disk, DiskError, FragmentChoice, ObjectEngine, ObjectId, ObjectKey, OpenOptions, PartitionKey,
};
use cairn_formats::ssync::{Held, Offer};
use cairn_types::{ObjectHash, PolicyIndex, Timestamp};
use parking_lot::Mutex;

use crate::objects::Object;
use crate::{COMMIT_WINDOW, MemoryEngine, RECLAIM_AGE, State};

/// From one step of maintenance to the next.
const MAINTAIN_INTERVAL: Duration = Duration::from_millis(100);

impl MemoryEngine {
    fn held_of(
        &self,
        disk: &Disk,
        object: ObjectId,
        fragment: FragmentChoice,
    ) -> Result<Option<Held>, DiskError> {
        let mut options = OpenOptions::metadata(Timestamp::ZERO);
        options.open_expired = true;
        options.fragment = fragment;
        match self.open_any(disk, object, None, &options) {
            Ok((_, open)) => Ok(Some(Held {
                data: open.info.data_timestamp,
                meta: Some(open.info.timestamp()),
                content_type: Some(open.info.content_type_timestamp()),
            })),
            Err(DiskError::Deleted { timestamp }) => Ok(Some(Held {
                data: timestamp,
                meta: None,
                content_type: None,
            })),
            Err(DiskError::NotExist | DiskError::Quarantined(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn chosen(&self, disk: &Disk, object: ObjectId, choice: &FragmentChoice) -> OnDiskFiles {
        let state = self.0.state.lock();
        let found = state.object(disk.name(), object);
        let unique = self.unique_fragments(object.at.policy);
        found.map_or_else(OnDiskFiles::default, |found| found.choose(unique, choice))
    }

    fn hash_of(&self, disk: &Disk, at: PartitionKey, hashes: &[ObjectHash]) -> Option<SuffixHash> {
        let mut hasher = SuffixHasher::new();
        let mut state = self.0.state.lock();
        let mut is_empty = true;
        for hash in hashes {
            let files = self.clean_up(&mut state, disk, at.object(*hash));
            is_empty &= state.object(disk.name(), at.object(*hash)).is_none();
            hasher.add_object(&files);
        }
        let has_fragments = self.unique_fragments(at.policy).is_some();
        (!is_empty).then(|| hasher.finish(has_fragments))
    }
}

impl State {
    fn state_of(&self, device: &str, object: ObjectId) -> ObjectState {
        let version = self.object(device, object).map_or(0, |o| o.version);
        ObjectState::new(version.to_be_bytes())
    }
}

impl Inventory for MemoryEngine {
    fn partitions(&self, disk: &Disk, policy: PolicyIndex) -> Result<Vec<u32>, DiskError> {
        let state = self.0.state.lock();
        let all = state.devices.get(disk.name()).into_iter().flatten();
        let of_policy = all.filter(|(at, _)| at.policy == policy);
        Ok(of_policy.map(|(at, _)| at.partition).collect())
    }

    fn objects(&self, disk: &Disk, at: PartitionKey) -> Result<Vec<ObjectHash>, DiskError> {
        let state = self.0.state.lock();
        let partition = state.devices.get(disk.name()).and_then(|all| all.get(&at));
        let keys = partition.into_iter().flat_map(BTreeMap::keys);
        Ok(keys.map(|(_, hash)| *hash).collect())
    }

    fn suffix_hashes(
        &self,
        disk: &Disk,
        at: PartitionKey,
        _recalculate: &[String],
        _look: bool,
    ) -> Result<Hashed, DiskError> {
        let mut by_suffix: BTreeMap<String, Vec<ObjectHash>> = BTreeMap::new();
        for hash in self.objects(disk, at)? {
            by_suffix.entry(hash.suffix()).or_default().push(hash);
        }
        let hashed = by_suffix.len() as u64;
        let hash = |(suffix, hashes): (String, Vec<ObjectHash>)| {
            Some((suffix, self.hash_of(disk, at, &hashes)?))
        };
        Ok(Hashed {
            hashes: by_suffix.into_iter().filter_map(hash).collect(),
            hashed,
        })
    }

    /// No hash is kept.
    fn invalidate(&self, _: &Disk, _: PartitionKey, _: &[String]) -> Result<(), DiskError> {
        Ok(())
    }

    fn offers(
        &self,
        disk: &Disk,
        at: PartitionKey,
        suffix: &str,
        fragment: &FragmentChoice,
    ) -> Result<Vec<Offer>, DiskError> {
        let hashes = self.objects(disk, at)?.into_iter();
        let offer = |hash: ObjectHash| {
            let files = self.chosen(disk, at.object(hash), fragment);
            let data = files.data.as_ref().or(files.tombstone.as_ref())?;
            let content_type = files.content_type.as_ref();
            let content_type = content_type.and_then(|entry| entry.content_type_timestamp);
            Some(Offer {
                hash,
                data: data.timestamp,
                meta: files.meta.as_ref().unwrap_or(data).timestamp,
                content_type: content_type.unwrap_or(data.timestamp),
                is_durable: data.is_durable(),
            })
        };
        let of_suffix = hashes.filter(|hash| hash.suffix() == suffix);
        Ok(of_suffix.filter_map(offer).collect())
    }

    fn held(
        &self,
        disk: &Disk,
        at: PartitionKey,
        offer: &Offer,
        fragment: Option<u32>,
    ) -> Result<Option<Held>, DiskError> {
        let object = at.object(offer.hash);
        let choice = FragmentChoice::of_index(fragment);
        let held = self.held_of(disk, object, choice.clone())?;
        let files = self.chosen(disk, object, &choice);
        let is_ours = |index: &u32| files.fragments.has(offer.data, *index);
        let Some(index) = fragment.filter(is_ours) else {
            return Ok(held);
        };
        if files.fragments.durable.is_some_and(|at| at >= offer.data) {
            return Ok(held);
        }
        if !offer.is_durable {
            let held = held.unwrap_or(Held {
                data: offer.data,
                meta: None,
                content_type: None,
            });
            return Ok(Some(Held {
                data: offer.data,
                ..held
            }));
        }
        let key = ObjectKey {
            policy: at.policy,
            partition: at.partition,
            hash: offer.hash,
            name: "".into(),
        };
        let durable = self.make_durable(disk, &key, offer.data, index)?;
        Step::finish(durable, disk)?;
        self.held_of(disk, object, choice)
    }

    fn open_to_send(
        &self,
        disk: &Disk,
        object: ObjectId,
        inline_limit: u64,
        fragment: FragmentChoice,
    ) -> Result<Sendable, DiskError> {
        let options = OpenOptions {
            now: Timestamp::ZERO,
            open_expired: true,
            inline_limit,
            fragment,
        };
        match self.open_any(disk, object, None, &options) {
            Ok((key, open)) => Ok(Sendable::Object(key, Box::new(open))),
            Err(DiskError::Deleted { timestamp }) => {
                let state = self.0.state.lock();
                let found = state.object(disk.name(), object);
                let name = found.and_then(Object::name);
                Ok(name.map_or(Sendable::Nothing, |name| {
                    Sendable::Tombstone(name, timestamp)
                }))
            }
            Err(DiskError::NotExist | DiskError::Quarantined(_)) => Ok(Sendable::Nothing),
            Err(error) => Err(error),
        }
    }
}

/// A partition of a device that is held until dropped.
struct HeldPartition {
    locked: Arc<Mutex<BTreeSet<(String, PartitionKey)>>>,
    key: (String, PartitionKey),
}

impl Drop for HeldPartition {
    fn drop(&mut self) {
        self.locked.lock().remove(&self.key);
    }
}

impl Handover for MemoryEngine {
    fn try_lock_partition(
        &self,
        disk: &Disk,
        at: PartitionKey,
    ) -> Result<Option<ReplicationLock>, DiskError> {
        let key = (disk.name().to_owned(), at);
        let is_free = self.0.locked.lock().insert(key.clone());
        let locked = self.0.locked.clone();
        Ok(is_free.then(|| ReplicationLock::new(HeldPartition { locked, key })))
    }

    fn contents(&self, disk: &Disk, at: PartitionKey) -> Result<Contents, DiskError> {
        let hashes = self.objects(disk, at)?.into_iter();
        let states = hashes.map(|hash| Ok((hash, self.state(disk, at.object(hash))?)));
        states.collect()
    }

    fn remove(
        &self,
        disk: &Disk,
        at: PartitionKey,
        contents: &Contents,
        only: Option<&HashSet<ObjectHash>>,
        keep: &HashSet<ObjectHash>,
    ) -> Result<usize, DiskError> {
        let mut removed = 0;
        for (_, hash, state) in contents.chosen(only, keep) {
            removed += usize::from(self.remove_unchanged(disk, at.object(hash), state)?);
        }
        Ok(removed)
    }

    fn remove_partition(&self, disk: &Disk, at: PartitionKey) -> Result<bool, DiskError> {
        let mut state = self.0.state.lock();
        let Some(partitions) = state.devices.get_mut(disk.name()) else {
            return Ok(true);
        };
        let is_empty = partitions.get(&at).is_none_or(BTreeMap::is_empty);
        if is_empty {
            partitions.remove(&at);
        }
        Ok(is_empty)
    }

    fn purge(&self, disk: &Disk, at: PartitionKey, purge: &Purge) -> Result<(), DiskError> {
        let mut state = self.0.state.lock();
        for one in &purge.reverted {
            let object = at.object(one.hash);
            self.clean_up(&mut state, disk, object);
            state.changes += 1;
            let version = state.changes;
            let Some(found) = state.object_mut(disk.name(), object) else {
                continue;
            };
            let times = found.fragment_times();
            let is_last = times.len() < 2 && times.iter().all(|time| *time == one.data);
            found.version = version;
            found.remove_where(|record| match record.kind {
                FileKind::Tombstone => record.timestamp == one.data,
                FileKind::Meta => purge.is_handoff && is_last && record.timestamp == one.meta,
                FileKind::Fragment { index, is_durable } => {
                    let is_it = Some(index) == purge.index && record.timestamp == one.data;
                    let is_settled = Self::is_older_than(disk, record.written, COMMIT_WINDOW);
                    is_it && (one.is_durable || is_durable || is_settled)
                }
                _ => false,
            });
            if found.is_empty() {
                state.remove(disk.name(), object);
            }
        }
        Ok(())
    }

    fn state(&self, disk: &Disk, object: ObjectId) -> Result<ObjectState, DiskError> {
        Ok(self.0.state.lock().state_of(disk.name(), object))
    }

    fn remove_unchanged(
        &self,
        disk: &Disk,
        object: ObjectId,
        state: &ObjectState,
    ) -> Result<bool, DiskError> {
        let mut all = self.0.state.lock();
        let is_same = all.state_of(disk.name(), object) == *state;
        Ok(is_same && all.remove(disk.name(), object).is_some())
    }

    fn quarantine_unchanged(
        &self,
        disk: &Disk,
        object: ObjectId,
        state: &ObjectState,
        _reason: &str,
    ) -> Result<bool, DiskError> {
        let mut all = self.0.state.lock();
        let is_same = all.state_of(disk.name(), object) == *state;
        Ok(is_same && all.quarantine(disk.name(), object))
    }
}

impl Audit for MemoryEngine {
    fn partitions_to_audit(
        &self,
        disk: &Disk,
        policy: PolicyIndex,
        walk: &str,
    ) -> Result<Vec<u32>, DiskError> {
        let key = (disk.name().to_owned(), policy, walk.to_owned());
        let left = self.0.state.lock().walks.get(&key).cloned();
        match left {
            Some(left) => Ok(left),
            None => self.partitions(disk, policy),
        }
    }

    fn note_audited(
        &self,
        disk: &Disk,
        policy: PolicyIndex,
        walk: &str,
        left: &[u32],
    ) -> Result<(), DiskError> {
        let key = (disk.name().to_owned(), policy, walk.to_owned());
        let walks = &mut self.0.state.lock().walks;
        match left.is_empty() {
            true => drop(walks.remove(&key)),
            false => drop(walks.insert(key, left.to_vec())),
        }
        Ok(())
    }

    fn audit(
        &self,
        disk: &Disk,
        object: ObjectId,
        options: &OpenOptions,
    ) -> Result<Audited, DiskError> {
        match self.open_any(disk, object, None, options) {
            Ok((key, open)) => Ok(Audited::Object(key, Box::new(open))),
            Err(DiskError::Quarantined(reason)) => Ok(Audited::Quarantined(reason)),
            Err(DiskError::Deleted { timestamp }) => {
                if Self::is_older_than(disk, timestamp.secs() as i64, RECLAIM_AGE) {
                    self.clean_up(&mut self.0.state.lock(), disk, object);
                }
                Ok(Audited::Nothing)
            }
            Err(DiskError::NotExist | DiskError::Expired(_)) => Ok(Audited::Nothing),
            Err(error) => Err(error),
        }
    }

    /// No hash is kept.
    fn settled_hashes(
        &self,
        _: &Disk,
        _: PartitionKey,
    ) -> Result<BTreeMap<String, SuffixHash>, DiskError> {
        Ok(BTreeMap::new())
    }

    fn check_suffix(
        &self,
        _: &Disk,
        _: PartitionKey,
        _: &str,
        _: &SuffixHash,
    ) -> Result<bool, DiskError> {
        Ok(false)
    }
}

/// Maintenance removes what need not be remembered any longer.
impl Upkeep for MemoryEngine {
    fn clear_leftovers(&self, _: &Disk, _: PolicyIndex) -> Result<(), DiskError> {
        Ok(())
    }

    fn is_maintained(&self) -> bool {
        true
    }

    fn open_device(&self, disk: &Disk) -> Result<(), DiskError> {
        let devices = &mut self.0.state.lock().devices;
        devices.entry(disk.name().to_owned()).or_default();
        Ok(())
    }

    fn maintain(&self, disk: &Disk) -> Result<NextUpkeep, DiskError> {
        let mut state = self.0.state.lock();
        let partitions = state.devices.get(disk.name()).into_iter().flatten();
        let objects = partitions.flat_map(|(at, objects)| {
            let hashes = objects.keys().map(|(_, hash)| *hash);
            hashes.map(|hash| at.object(hash))
        });
        for object in objects.collect::<Vec<_>>() {
            self.clean_up(&mut state, disk, object);
        }
        Ok(NextUpkeep::After(MAINTAIN_INTERVAL))
    }
}
