//! Compaction: the records of a volume that still count are appended to another one, and its file is
//! used anew.
//!
//! A tombstone, or a record that ends an object in another way, is needed as long as a scan of all
//! volumes could find an older record of that object. Such records were written before it, so they
//! are in volumes whose ids do not exceed its horizon, the highest id in use when it was written; and
//! they count no longer. When no such volume is left that has anything which counts no longer, the
//! record can go: a tombstone at the earliest after the reclaim age, which other replicas need.

use std::sync::Arc;

use bytes::Bytes;
use cairn_disk::layout::FragmentChoice;
use cairn_types::plant::Plant;
use cairn_types::{ObjectHash, Timestamp};

use crate::error::PebblesError;
use crate::format::{Class, FIRST_BATCH, Found, Kind, NewRecord, RecordHeader, number};
use crate::object::{Entry, EntryKind};
use crate::place::Place;
use crate::scanner::{Scanned, Scanner};
use crate::store::{AHEAD, Change, Expected, Outcome, Store};
use crate::volume::Volume;

/// A volume of which this share counts is worth its while on a full device.
const FULL_DEVICE_BELOW: f64 = 0.95;
/// Expired tombstones of all bytes written, from which volumes that hold them back are compacted.
const EXPIRED_SHARE: f64 = 0.05;

/// A volume that is being emptied.
pub struct Compaction {
    store: Arc<Store>,
    source: Arc<Volume>,
    scanner: Scanner,
}

impl Compaction {
    /// Picks a volume; `None`: none is worth it. `is_full`: there is no room for new volumes.
    pub fn pick(store: &Arc<Store>, is_full: bool) -> Option<Self> {
        let sealed = store.sealed();
        let below = match is_full {
            true => FULL_DEVICE_BELOW.max(store.config.compact_below),
            false => store.config.compact_below,
        };
        let shares = sealed.iter().map(|volume| (share(store, volume), volume));
        let lowest = shares.min_by(|(one, _), (other, _)| one.total_cmp(other));
        let lowest = lowest
            .filter(|(share, _)| *share < below)
            .map(|(_, volume)| volume);
        let source = lowest.or_else(|| holds_back(store, &sealed))?;
        Some(Compaction {
            scanner: Scanner::of_written(source.clone()),
            source: source.clone(),
            store: store.clone(),
        })
    }

    /// Moves a batch; true when the volume is empty and its file in use anew.
    pub fn step(&mut self) -> Result<bool, PebblesError> {
        let read = |source| PebblesError::of_io("compact", source);
        let Some(scanned) = self.scanner.next().map_err(read)? else {
            return self.finish().map(|()| true);
        };
        let mut changes = Vec::new();
        for found in &scanned.found {
            match found {
                Found::Record { at, header, .. } => {
                    let change = self.keep(&scanned, *at, header);
                    changes.extend(change);
                }
                Found::Damaged { at, header, .. } => {
                    let place = self.place(*at, header);
                    self.quarantine(header.partition, header.hash, place)?;
                }
                // Entries that point there are left over at the end.
                Found::Lost { .. } => {}
            }
        }
        for ended in self.store.commit(Class::Kept, changes) {
            ended?;
        }
        Ok(false)
    }

    fn place(&self, at: u64, header: &RecordHeader) -> Place {
        Place {
            slot: self.source.slot,
            offset: at,
            len: header.record_len() as u32,
        }
    }

    /// The move of a record that is still needed.
    fn keep(&self, scanned: &Scanned, at: u64, header: &RecordHeader) -> Option<Change> {
        let place = self.place(at, header);
        let record = scanned.record(at);
        let body = &record[header.body()];
        if header.kind.is_removal() {
            if !self.is_held_back(number(body)) {
                return None;
            }
        } else {
            let entries = self.store.index.get(header.partition, header.hash);
            let is_at = |entry: &&Entry| entry.place == place;
            let entry = entries.iter().find(is_at);
            if entry.is_none() && !Plant::CompactionOverwrites.is_on() {
                return None;
            }
            let can_go = entry.is_some_and(|entry| match entry.kind {
                EntryKind::Tombstone => {
                    self.is_expired(entry.timestamp) && !self.is_held_back(number(body))
                }
                _ => self.is_stray(&entries, entry),
            });
            if can_go {
                self.drop_entry(header, place);
                return None;
            }
        }
        let copy = |range: std::ops::Range<usize>| Bytes::copy_from_slice(&record[range]);
        let record = NewRecord {
            kind: header.kind,
            partition: header.partition,
            hash: header.hash,
            timestamp: header.timestamp,
            fragment: header.fragment,
            is_durable: header.is_durable,
            is_external: header.is_external,
            name: copy(header.name()),
            metadata: copy(header.metadata()),
            body: copy(header.body()),
        };
        Some(Change::Copy {
            source: place,
            record,
        })
    }

    fn is_expired(&self, timestamp: Timestamp) -> bool {
        is_expired(&self.store, timestamp)
    }

    /// Metadata without data, or a fragment that never became durable, for longer than the reclaim
    /// age.
    fn is_stray(&self, entries: &[Entry], entry: &Entry) -> bool {
        if !self.is_expired(entry.timestamp) || entry.kind == EntryKind::Data {
            return false;
        }
        if entry.kind == EntryKind::Durable {
            let is_of_it = |e: &Entry| e.fragment().is_some() && e.timestamp == entry.timestamp;
            return !entries.iter().any(is_of_it);
        }
        let rules = self.store.config.rules;
        let (chosen, named) = rules.choose(entries, &FragmentChoice::default());
        let mut names = named.iter().filter(|(_, of)| of.is_same(entry));
        names.any(|(name, _)| chosen.reclaimable.iter().any(|file| file.name == *name))
    }

    /// Whether a volume up to `horizon` may have what a record ends.
    fn is_held_back(&self, horizon: u64) -> bool {
        if Plant::TombstoneTooSoon.is_on() {
            return false;
        }
        let holds = |volume: &Arc<Volume>| {
            volume.id <= horizon && volume.slot != self.source.slot && volume.has_dead()
        };
        self.store.volumes().iter().any(holds)
    }

    /// Takes an entry out of the index. Nothing is written: should a checkpoint have it, it is
    /// dangling once the volume was used anew.
    fn drop_entry(&self, header: &RecordHeader, place: Place) {
        let store = &self.store;
        let dropped = store
            .index
            .update(header.partition, header.hash, |entries| {
                let at = entries.iter().position(|entry| entry.place == place)?;
                Some(entries.remove(at))
            });
        if let Some(entry) = dropped {
            store.live(place, false);
            if let Some(number) = entry.external {
                (store.config.external_gone)(number);
            }
        }
    }

    fn quarantine(
        &self,
        partition: u32,
        hash: ObjectHash,
        place: Place,
    ) -> Result<Outcome, PebblesError> {
        self.store
            .quarantine(partition, hash, place, "damaged, found by compaction")
    }

    fn finish(&mut self) -> Result<(), PebblesError> {
        if self.source.live() > 0 {
            self.end_left_over()?;
        }
        assert_eq!(
            self.source.live(),
            0,
            "a volume is used anew when nothing in it counts"
        );
        let store = &self.store;
        if store.log().prepared.len() > AHEAD {
            return store.volumes.remove(&self.source);
        }
        match store.volumes.recycle(&self.source) {
            Ok(volume) => store.log().add_prepared(volume),
            Err(error) => {
                store.poison();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Ends entries whose records were not found: their headers are damaged.
    fn end_left_over(&self) -> Result<(), PebblesError> {
        for partition in self.store.index.partitions() {
            for (hash, entries) in self.store.index.objects(partition) {
                let left = entries.iter().filter(|e| e.place.slot == self.source.slot);
                for entry in left {
                    self.quarantine(partition, hash, entry.place)?;
                }
            }
        }
        Ok(())
    }
}

fn is_expired(store: &Store, timestamp: Timestamp) -> bool {
    let now = (store.config.now)().secs();
    now.saturating_sub(timestamp.secs()) > store.config.reclaim_age.as_secs()
}

/// The share of a volume's bytes that compaction would have to move.
fn share(store: &Store, volume: &Volume) -> f64 {
    let used = volume.used().saturating_sub(FIRST_BATCH).max(1);
    let expired = expired(store, volume);
    let moved = volume.live().saturating_sub(expired) + volume.written().removals;
    moved as f64 / used as f64
}

/// Bytes of tombstones that could go, were nothing to hold them back.
fn expired(store: &Store, volume: &Volume) -> u64 {
    let written = volume.written();
    let latest = Timestamp::from_ticks(written.latest_tombstone);
    match written.tombstones > 0 && is_expired(store, latest) {
        true => written.tombstones.min(volume.live()),
        false => 0,
    }
}

/// The oldest volume with records that count no longer, where tombstones wait for it.
fn holds_back<'a>(store: &Store, sealed: &'a [Arc<Volume>]) -> Option<&'a Arc<Volume>> {
    let used: u64 = sealed.iter().map(|volume| volume.used()).sum();
    let waiting: u64 = sealed.iter().map(|volume| expired(store, volume)).sum();
    if waiting as f64 <= used as f64 * EXPIRED_SHARE || waiting == 0 {
        return None;
    }
    let with_dead = sealed.iter().filter(|volume| volume.has_dead());
    with_dead.min_by_key(|volume| volume.id)
}

impl Store {
    /// Ends an object, or the fragment of it, whose record at `place` is damaged.
    pub fn quarantine(
        &self,
        partition: u32,
        hash: ObjectHash,
        place: Place,
        reason: &str,
    ) -> Result<Outcome, PebblesError> {
        let entries = self.index.get(partition, hash);
        let Some(entry) = entries.iter().find(|entry| entry.place == place) else {
            return Ok(Outcome::Obsolete);
        };
        let content = entries.iter().filter(|entry| entry.is_content());
        // Other fragments are sound.
        let fragment = entry.fragment().filter(|_| content.count() > 1);
        let change = Change::Remove {
            kind: Kind::Quarantined,
            partition,
            hash,
            fragment,
            expected: Expected::At(place),
            name: Bytes::new(),
            reason: Bytes::copy_from_slice(reason.as_bytes()),
        };
        let ended = self.commit(Class::Fresh, vec![change]).pop();
        let outcome = ended.unwrap_or(Ok(Outcome::Obsolete))?;
        if outcome == Outcome::Written {
            tracing::warn!(partition, hash = hash.hex(), reason, "quarantined a record");
        }
        Ok(outcome)
    }
}
