//! Daemons: what is on a device, read again, and maintained.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_disk::engine::{
    Audit, Audited, Figure, Hashed, Inventory, NextUpkeep, Sendable, SuffixHash, Upkeep,
};
use cairn_disk::layout::FileEntry;
use cairn_disk::{
    Disk, DiskError, FragmentChoice, ObjectEngine, ObjectId, ObjectKey, OpenOptions, PartitionKey,
};
use cairn_formats::ssync::{Held, Offer};
use cairn_types::{ObjectHash, PolicyIndex, Timestamp};

use super::PebblesEngine;
use super::stores::{Opened, is_there};
use crate::hashes::{files_of, of_partition, suffix_number};
use crate::object::{Entry, EntryKind};

/// From one look for maintenance to the next.
const MAINTAIN_INTERVAL: Duration = Duration::from_secs(1);
/// A store that failed is not opened anew sooner.
const REOPEN_INTERVAL: Duration = Duration::from_secs(10);

impl PebblesEngine {
    fn held_of(
        &self,
        disk: &Disk,
        object: ObjectId,
        fragment: FragmentChoice,
    ) -> Result<Option<Held>, DiskError> {
        let mut options = OpenOptions::metadata(Timestamp::ZERO);
        options.open_expired = true;
        options.fragment = fragment;
        match self.open_any(disk, object, None, &options, false) {
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
            Err(DiskError::NotExist | DiskError::Quarantined(_) | DiskError::StateChanged) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// An object's offer to another replica.
    fn offer(
        &self,
        disk: &Disk,
        opened: &Opened,
        hash: ObjectHash,
        entries: &[Entry],
        fragment: &FragmentChoice,
    ) -> Option<Offer> {
        let rules = opened.store().rules();
        let (files, _) = files_of(rules, entries, fragment, self.age(disk))?;
        let data = files.data.as_ref().or(files.tombstone.as_ref())?;
        let content_type = files.content_type.as_ref();
        let content_type = content_type.and_then(|entry| entry.content_type_timestamp);
        Some(Offer {
            hash,
            data: data.timestamp,
            meta: files.meta.as_ref().unwrap_or(data).timestamp,
            content_type: content_type.unwrap_or(data.timestamp),
            is_durable: files.data.as_ref().is_none_or(FileEntry::is_durable),
        })
    }
}

impl Inventory for PebblesEngine {
    fn partitions(&self, disk: &Disk, policy: PolicyIndex) -> Result<Vec<u32>, DiskError> {
        let opened = self.store_if_there(disk, policy)?;
        let power = self.part_power(policy);
        Ok(opened.map_or_else(Vec::new, |opened| opened.store().index().partitions(power)))
    }

    fn objects(&self, disk: &Disk, at: PartitionKey) -> Result<Vec<ObjectHash>, DiskError> {
        let Some(opened) = self.store_if_there(disk, at.policy)? else {
            return Ok(Vec::new());
        };
        let (rules, age) = (opened.store().rules(), self.age(disk));
        let choice = FragmentChoice::default();
        let mut objects = opened.store().index().objects(self.part(at));
        objects.retain(|(_, entries)| files_of(rules, entries, &choice, age).is_some());
        Ok(objects.into_iter().map(|(hash, _)| hash).collect())
    }

    fn suffix_hashes(
        &self,
        disk: &Disk,
        at: PartitionKey,
        _recalculate: &[String],
        _look: bool,
    ) -> Result<Hashed, DiskError> {
        let Some(opened) = self.store_if_there(disk, at.policy)? else {
            return Ok(Hashed::default());
        };
        let hashes = of_partition(opened.store().index(), self.part(at), self.age(disk));
        Ok(Hashed {
            hashed: hashes.len() as u64,
            hashes,
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
        let opened = self.store_if_there(disk, at.policy)?;
        let (Some(opened), Some(suffix)) = (opened, suffix_number(suffix)) else {
            return Ok(Vec::new());
        };
        let objects = opened.store().index().suffix_objects(self.part(at), suffix);
        let offers = objects
            .iter()
            .filter_map(|(hash, entries)| self.offer(disk, &opened, *hash, entries, fragment));
        Ok(offers.collect())
    }

    fn held(
        &self,
        disk: &Disk,
        at: PartitionKey,
        offer: &Offer,
        fragment: Option<u32>,
    ) -> Result<Option<Held>, DiskError> {
        if self.store_if_there(disk, at.policy)?.is_none() {
            return Ok(None);
        }
        let object = at.object(offer.hash);
        let choice = FragmentChoice::of_index(fragment);
        let held = self.held_of(disk, object, choice.clone())?;
        // Each call gets the store for itself, else it would keep other processes out of it.
        let Some(opened) = self.store_if_there(disk, at.policy)? else {
            return Ok(held);
        };
        let entries = opened.store().index().get(at.partition, offer.hash);
        let (files, _) = opened.store().rules().choose(&entries, &choice);
        let is_ours = |index: &u32| files.fragments.has(offer.data, *index);
        let Some(index) = fragment.filter(is_ours) else {
            return Ok(held);
        };
        if files.fragments.durable.is_some_and(|at| at >= offer.data) {
            return Ok(held);
        }
        if !offer.is_durable {
            // Ours is as good, whatever older one counts.
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
        let name = self.stored_name(&opened, object);
        drop(opened);
        let key = ObjectKey {
            policy: at.policy,
            partition: at.partition,
            hash: offer.hash,
            name,
        };
        let durable = self.make_durable(disk, &key, offer.data, index);
        match durable.and_then(|step| step.finish(disk)) {
            Ok(()) => self.held_of(disk, object, choice),
            // Then it is asked for.
            Err(error) => {
                let (device, hash) = (disk.name(), offer.hash.hex());
                tracing::error!(device, hash, index, %error, "fragment not made durable");
                Ok(held)
            }
        }
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
        match self.open_any(disk, object, None, &options, false) {
            Ok((key, open)) => Ok(Sendable::Object(key, Box::new(open))),
            Err(DiskError::Deleted { timestamp }) => {
                let name = self.tombstone_name(disk, object)?;
                Ok(name.map_or(Sendable::Nothing, |name| {
                    Sendable::Tombstone(name, timestamp)
                }))
            }
            Err(DiskError::NotExist | DiskError::Quarantined(_)) => Ok(Sendable::Nothing),
            Err(error) => Err(error),
        }
    }
}

impl PebblesEngine {
    /// The name in any of an object's records; empty where none can be read.
    fn stored_name(&self, opened: &Opened, object: ObjectId) -> Arc<str> {
        let store = opened.store();
        let entries = store.index().get(object.at.partition, object.hash);
        let name = entries.iter().find_map(|entry| {
            let stored = store.read_head(object.at.partition, object.hash, entry.place);
            let stored = stored.ok()?;
            Some(std::str::from_utf8(&stored.name).ok()?.into())
        });
        name.unwrap_or_default()
    }
}

impl Audit for PebblesEngine {
    fn partitions_to_audit(
        &self,
        disk: &Disk,
        policy: PolicyIndex,
        walk: &str,
    ) -> Result<Vec<u32>, DiskError> {
        let key = (disk.name().to_owned(), policy, walk.to_owned());
        let left = self.inner.stores.walks.lock().get(&key).cloned();
        match left {
            Some(left) => Ok(left),
            None => self.partitions(disk, policy),
        }
    }

    /// Remembered as long as the process runs: a walk then begins anew.
    fn note_audited(
        &self,
        disk: &Disk,
        policy: PolicyIndex,
        walk: &str,
        left: &[u32],
    ) -> Result<(), DiskError> {
        let key = (disk.name().to_owned(), policy, walk.to_owned());
        let mut walks = self.inner.stores.walks.lock();
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
        match self.open_any(disk, object, None, options, false) {
            Ok((key, open)) => Ok(Audited::Object(key, Box::new(open))),
            Err(DiskError::Quarantined(reason)) => Ok(Audited::Quarantined(reason)),
            Err(
                DiskError::Deleted { .. }
                | DiskError::NotExist
                | DiskError::Expired(_)
                | DiskError::StateChanged,
            ) => Ok(Audited::Nothing),
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

impl Upkeep for PebblesEngine {
    fn clear_leftovers(&self, _: &Disk, _: PolicyIndex) -> Result<(), DiskError> {
        Ok(())
    }

    fn is_maintained(&self) -> bool {
        true
    }

    fn open_device(&self, disk: &Disk) -> Result<(), DiskError> {
        for policy in self.inner.policies.keys() {
            if is_there(disk, *policy) {
                self.store(disk, *policy)?;
            }
        }
        Ok(())
    }

    /// Volumes ahead, checkpoints, compaction; a store that failed, or whose device is another one
    /// now, is opened anew. A store of which a write failed has its own pauses for that.
    fn maintain(&self, disk: &Disk) -> Result<NextUpkeep, DiskError> {
        let stores = &self.inner.stores;
        let mut next = NextUpkeep::After(MAINTAIN_INTERVAL);
        // One store's failure is no other's.
        let mut failed = Ok(());
        for (policy, opened) in stores.of_device(disk.name()) {
            if opened.store().is_poisoned() {
                drop(opened);
                // Opened anew when it is time, as by a write.
                if let Err(error) = self.store(disk, policy) {
                    failed = Err(error);
                }
                continue;
            }
            if !opened.is_current() {
                let device = disk.name();
                tracing::warn!(device, %policy, "volumes are closed, and opened anew");
                stores.close(device, policy);
                drop(opened);
                next = NextUpkeep::After(REOPEN_INTERVAL);
                if let Err(error) = self.open_device(disk) {
                    failed = Err(error);
                }
                continue;
            }
            opened.collect_garbage();
            opened.watch_memory();
            if opened.is_wanted.load(Ordering::Acquire) || !opened.is_upkeep_due() {
                continue;
            }
            match opened.keep_rows(disk, policy) {
                Ok(true) => next = NextUpkeep::Now,
                Ok(false) => {}
                Err(error) => failed = Err(error),
            }
            let Some(mut upkeep) = opened.upkeep.try_lock() else {
                continue;
            };
            match upkeep.step() {
                Ok(None) => {}
                Ok(Some(_)) => next = NextUpkeep::Now,
                Err(error) => failed = Err(opened.disk_error(error)),
            }
        }
        failed.map(|()| next)
    }

    fn figures(&self) -> Vec<Figure> {
        let mut figures = Vec::new();
        for store in self.inner.stores.statuses() {
            let status = store.status;
            let mut add = |name, help, value: f64| {
                figures.push(Figure {
                    store: format!("{}/{}", store.device, store.policy.dir("pebbles")),
                    name,
                    help,
                    value,
                });
            };
            let objects = status.objects as f64;
            add(
                "pebbles_objects",
                "Objects and tombstones in volumes",
                objects,
            );
            let memory = status.memory_bytes as f64;
            add("pebbles_index_bytes", "Memory of the index", memory);
            add(
                "pebbles_live_bytes",
                "Bytes of records that count",
                status.live_bytes as f64,
            );
            let written = status.written_bytes as f64;
            add(
                "pebbles_written_bytes",
                "Bytes of all records in volumes",
                written,
            );
            add("pebbles_volumes", "Volumes", status.volumes as f64);
            let prepared = status.prepared as f64;
            add(
                "pebbles_volumes_ready",
                "Volumes ready to be used",
                prepared,
            );
            add(
                "pebbles_waiting",
                "Writes that wait for the committer",
                store.waiting as f64,
            );
            add(
                "pebbles_read_errors",
                "Reads of volumes that the disk did not answer",
                status.read_errors as f64,
            );
            let failed = f64::from(u8::from(status.is_poisoned));
            add(
                "pebbles_failed",
                "1: a write failed, and the store takes no more",
                failed,
            );
        }
        figures
    }

    fn let_go(&self) {
        self.inner.stores.let_go();
    }

    fn shutdown(&self) {
        self.inner.stores.shutdown();
    }
}

/// Whether an entry is of a fragment that is not durable.
pub(super) fn is_undurable(entries: &[Entry], entry: &Entry) -> bool {
    let is_marked =
        |other: &Entry| other.kind == EntryKind::Durable && other.timestamp == entry.timestamp;
    matches!(
        entry.kind,
        EntryKind::Fragment {
            is_durable: false,
            ..
        }
    ) && !entries.iter().any(is_marked)
}
