//! Removal of objects that other nodes have got.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use cairn_disk::engine::{Contents, Handover, ObjectState, Purge, ReplicationLock, Reverted};
use cairn_disk::{Disk, DiskError, ObjectId, PartitionKey};
use cairn_types::ObjectHash;

use super::PebblesEngine;
use super::daemons::is_undurable;
use super::stores::{Opened, Stores};
use crate::format::Kind;
use crate::object::{Entry, EntryKind};
use crate::store::{Change, Expected, Outcome};

/// Objects that are removed in one batch.
const TOGETHER: usize = 256;

/// A partition that is held until dropped.
struct HeldPartition {
    stores: Arc<Stores>,
    key: (String, PartitionKey),
}

impl Drop for HeldPartition {
    fn drop(&mut self) {
        self.stores.locked.lock().remove(&self.key);
    }
}

/// An object's records as bytes to be compared, without where they are: compaction changes nothing.
fn state_of(entries: &[Entry]) -> ObjectState {
    let mut entries = entries.to_vec();
    entries.sort_by_key(|e| (e.timestamp, e.kind, e.content_type));
    let text: Vec<String> = entries
        .iter()
        .map(|e| {
            format!(
                "{:?} {} {:?} {:?}",
                e.kind, e.timestamp, e.content_type, e.external
            )
        })
        .collect();
    ObjectState::new(text.join("\n").into_bytes())
}

fn removal(
    at: PartitionKey,
    hash: ObjectHash,
    kind: Kind,
    fragment: Option<u16>,
    expected: Expected,
    reason: &str,
) -> Change {
    Change::Remove {
        kind,
        partition: at.partition,
        hash,
        fragment,
        expected,
        name: Bytes::new(),
        reason: Bytes::copy_from_slice(reason.as_bytes()),
    }
}

impl PebblesEngine {
    /// Ends an object that has this state still.
    fn end_unchanged(
        &self,
        disk: &Disk,
        object: ObjectId,
        state: &ObjectState,
        kind: Kind,
        reason: &str,
    ) -> Result<bool, DiskError> {
        let Some(opened) = self.store_if_there(disk, object.at.policy)? else {
            return Ok(false);
        };
        opened.keep_all_rows(disk, object.at.policy)?;
        let entries = opened.store().index().get(object.at.partition, object.hash);
        let is_same = !entries.is_empty() && state_of(&entries) == *state;
        let may_go = kind == Kind::Quarantined || opened.is_settled(disk, &entries);
        if !is_same || !may_go {
            return Ok(false);
        }
        let store = opened.store();
        let kept = match kind {
            Kind::Quarantined => store.keep_aside(object.hash, entries.iter()),
            _ => Vec::new(),
        };
        let expected = Expected::Entries(entries);
        let change = removal(object.at, object.hash, kind, None, expected, reason);
        let ended = opened.run(change);
        // After an error it may be on disk all the same.
        if matches!(ended, Ok(Outcome::Obsolete)) {
            store.drop_aside(&kept);
        }
        Ok(ended? == Outcome::Written)
    }

    fn purge_one(
        &self,
        disk: &Disk,
        opened: &Opened,
        at: PartitionKey,
        one: &Reverted,
        purge: &Purge,
    ) -> Result<(), DiskError> {
        let entries = opened.store().index().get(at.partition, one.hash);
        let is_of_time = |entry: &&Entry| entry.timestamp == one.data;
        let mut of_time = entries.iter().filter(is_of_time);
        if of_time.any(|entry| entry.kind == EntryKind::Tombstone) {
            let fragments = entries.iter().any(|entry| entry.fragment().is_some());
            // A newer fragment beside it may become durable: the tombstone stays until then.
            if !fragments {
                let expected = Expected::Entries(entries);
                let change = removal(at, one.hash, Kind::Removed, None, expected, "");
                opened.run(change)?;
            }
            return Ok(());
        }
        let Some(index) = purge.index.and_then(|index| u16::try_from(index).ok()) else {
            return Ok(());
        };
        let mut fragments = entries.iter().filter(|entry| entry.fragment().is_some());
        let is_it = |e: &&Entry| e.fragment() == Some(index) && e.timestamp == one.data;
        let Some(found) = entries.iter().find(is_it) else {
            return Ok(());
        };
        let age = super::now(disk)
            .secs()
            .saturating_sub(found.timestamp.secs());
        let is_settled = age > self.inner.config.commit_window.as_secs();
        if !one.is_durable && is_undurable(&entries, found) && !is_settled {
            return Ok(());
        }
        let is_last = fragments.all(|entry| entry.fragment() == Some(index))
            && fragments_of(&entries, index) == 1;
        let metas = entries.iter().filter(|e| e.kind == EntryKind::Meta);
        let metas_went = metas.map(|e| e.timestamp).all(|time| time == one.meta);
        let change = match is_last && (purge.is_handoff && metas_went) {
            true => removal(
                at,
                one.hash,
                Kind::Removed,
                None,
                Expected::Entries(entries),
                "",
            ),
            false => {
                let expected = Expected::UpTo(one.data);
                removal(at, one.hash, Kind::Removed, Some(index), expected, "")
            }
        };
        opened.run(change)?;
        Ok(())
    }
}

fn fragments_of(entries: &[Entry], index: u16) -> usize {
    entries
        .iter()
        .filter(|entry| entry.fragment() == Some(index))
        .count()
}

impl Handover for PebblesEngine {
    fn try_lock_partition(
        &self,
        disk: &Disk,
        at: PartitionKey,
    ) -> Result<Option<ReplicationLock>, DiskError> {
        let stores = self.inner.stores.clone();
        let key = (disk.name().to_owned(), at);
        let is_free = stores.locked.lock().insert(key.clone());
        Ok(is_free.then(|| ReplicationLock::new(HeldPartition { stores, key })))
    }

    fn contents(&self, disk: &Disk, at: PartitionKey) -> Result<Contents, DiskError> {
        let Some(opened) = self.store_if_there(disk, at.policy)? else {
            return Ok(Contents::default());
        };
        let objects = opened.store().index().objects(self.part(at)).into_iter();
        Ok(objects
            .map(|(hash, entries)| (hash, state_of(&entries)))
            .collect())
    }

    fn remove(
        &self,
        disk: &Disk,
        at: PartitionKey,
        contents: &Contents,
        only: Option<&HashSet<ObjectHash>>,
        keep: &HashSet<ObjectHash>,
    ) -> Result<usize, DiskError> {
        let Some(opened) = self.store_if_there(disk, at.policy)? else {
            return Ok(0);
        };
        opened.keep_all_rows(disk, at.policy)?;
        // Were the ring's partitions doubled meanwhile, another one was compared with the other nodes.
        let is_of_it = |hash| opened.store().index().is_in(self.part(at), hash);
        let chosen = contents.chosen(only, keep);
        let chosen: Vec<_> = chosen.filter(|(_, hash, _)| is_of_it(*hash)).collect();
        let mut removed = 0;
        for together in chosen.chunks(TOGETHER) {
            let changes = together.iter().filter_map(|(_, hash, state)| {
                let entries = opened.store().index().get(at.partition, *hash);
                let is_same = !entries.is_empty() && state_of(&entries) == **state;
                let is_same = is_same && opened.is_settled(disk, &entries);
                let expected = Expected::Entries(entries);
                is_same.then(|| removal(at, *hash, Kind::Removed, None, expected, ""))
            });
            removed += opened.run_all(changes.collect())?;
        }
        Ok(removed)
    }

    /// A partition is there as long as something is in it.
    fn remove_partition(&self, disk: &Disk, at: PartitionKey) -> Result<bool, DiskError> {
        let opened = self.store_if_there(disk, at.policy)?;
        Ok(opened.is_none_or(|opened| opened.store().index().is_empty(self.part(at))))
    }

    fn purge(&self, disk: &Disk, at: PartitionKey, purge: &Purge) -> Result<(), DiskError> {
        let Some(opened) = self.store_if_there(disk, at.policy)? else {
            return Ok(());
        };
        for one in &purge.reverted {
            self.purge_one(disk, &opened, at, one, purge)?;
        }
        Ok(())
    }

    fn state(&self, disk: &Disk, object: ObjectId) -> Result<ObjectState, DiskError> {
        let opened = self.store_if_there(disk, object.at.policy)?;
        let entries =
            opened.map(|opened| opened.store().index().get(object.at.partition, object.hash));
        Ok(state_of(&entries.unwrap_or_default()))
    }

    fn remove_unchanged(
        &self,
        disk: &Disk,
        object: ObjectId,
        state: &ObjectState,
    ) -> Result<bool, DiskError> {
        self.end_unchanged(disk, object, state, Kind::Removed, "")
    }

    fn quarantine_unchanged(
        &self,
        disk: &Disk,
        object: ObjectId,
        state: &ObjectState,
        reason: &str,
    ) -> Result<bool, DiskError> {
        self.end_unchanged(disk, object, state, Kind::Quarantined, reason)
    }
}
