//! Compaction: the records of a volume that still count are appended to another one, and its file is
//! used anew.
//!
//! A tombstone, or a record that ends an object in another way, is needed as long as a scan of all
//! volumes could find an older record of that object. Such records were written before it, so they
//! are in volumes whose ids do not exceed its horizon, the highest id in use when it was written; and
//! they count no longer. When no such volume is left that has anything which counts no longer, the
//! record can go: a tombstone at the earliest after the reclaim age, which other replicas need. Once a
//! record can go it always can, as what is written later is not what it ended.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use cairn_disk::layout::FragmentChoice;
use cairn_types::plant::Plant;
use cairn_types::{ObjectHash, Timestamp};

use crate::error::{PebblesError, ReadError};
use crate::format::{Class, FIRST_BATCH, Found, Kind, NewRecord, RecordHeader, number};
use crate::object::{Entry, EntryKind};
use crate::place::Place;
use crate::scanner::{Scanned, Scanner};
use crate::store::quarantine::Broken;
use crate::store::{AHEAD, Change, Store};
use crate::volume::Volume;

/// A volume of which this share counts is worth its while on a full device.
const FULL_DEVICE_BELOW: f64 = 0.95;
/// Expired tombstones of all bytes written, from which volumes that hold them back are compacted.
const EXPIRED_SHARE: f64 = 0.05;

/// Bytes that a step reads, at most, and a batch more.
const STEP_BYTES: usize = 8 << 20;
/// Entries that a step takes out of the index.
const STEP_ENTRIES: usize = 1024;
/// Entries other than tombstones that go with one volume: they are looked at while writes wait.
const STRAYS_MAX: usize = 1024;

/// A volume that is being emptied.
pub struct Compaction {
    store: Arc<Store>,
    source: Arc<Volume>,
    scanner: Scanner,
    /// Entries that go with the volume, and their bytes. Until then they count: at a crash their records
    /// are there.
    going: HashMap<Place, Going>,
    going_bytes: u64,
    /// Those of them that are no tombstones, at the time they were found.
    strays: Vec<Place>,
    emptied: Option<Emptied>,
    /// See [`Compaction::first_holder`], as of the last step's beginning.
    holder: u64,
    /// Records found damaged in this step.
    damaged: Vec<Broken>,
}

/// An entry that goes by its age.
struct Going {
    partition: u32,
    hash: ObjectHash,
    place: Place,
    /// A tombstone's.
    horizon: u64,
}

/// A volume whose records are gone, and of which entries are left in the index. They count as before
/// until each is taken out, which is as it was a moment ago: nothing older was taken meanwhile, and the
/// volume is not used yet. So that takes its time, and no write waits for it.
struct Emptied {
    going: std::collections::hash_map::IntoValues<Place, Going>,
    /// The file's new use; `None`: it was removed.
    volume: Option<Arc<Volume>>,
}

/// The room for records that are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    Enough,
    /// There is none for new volumes, or soon will not be.
    Short,
    /// There was none for what was moved last: volumes of which nothing is moved make some.
    Used,
}

/// An entry whose record was not found.
enum LeftOver {
    /// It was moved, or counts no longer.
    Settled,
    Damaged,
    /// The disk does not give it.
    Unread,
}

impl Compaction {
    /// Picks a volume; `None`: none is worth it. `is_left`: of an id, whether that volume is left alone
    /// for now.
    pub fn pick(store: &Arc<Store>, room: Room, is_left: impl Fn(u64) -> bool) -> Option<Self> {
        let mut sealed = store.sealed();
        let first_dead = sealed.iter().filter(|v| v.has_dead()).map(|v| v.id).min();
        sealed.retain(|volume| {
            let is_held_back = first_dead.is_some_and(|id| id < volume.id);
            let moves_nothing = share(store, volume) == 0.0 && !(is_held_back && volume.live() > 0);
            (moves_nothing || room != Room::Used) && !is_left(volume.id)
        });
        let below = match room {
            Room::Enough => store.config.compact_below,
            Room::Short | Room::Used => FULL_DEVICE_BELOW.max(store.config.compact_below),
        };
        let shares = sealed.iter().map(|volume| (share(store, volume), volume));
        let lowest = shares.min_by(|(one, _), (other, _)| one.total_cmp(other));
        let lowest = lowest
            .filter(|(share, _)| *share < below)
            .map(|(_, volume)| volume);
        let source = lowest.or_else(|| holds_back(store, &sealed))?;
        source.watch(true);
        Some(Compaction {
            scanner: Scanner::of_written(
                source.clone(),
                store.config.read_errors.clone(),
                (store.config.now)(),
            ),
            source: source.clone(),
            store: store.clone(),
            going: HashMap::new(),
            going_bytes: 0,
            strays: Vec::new(),
            emptied: None,
            holder: 0,
            damaged: Vec::new(),
        })
    }

    /// The id of the volume that is being emptied.
    pub fn source(&self) -> u64 {
        self.source.id
    }

    /// Moves records; true when the volume is empty and its file in use anew. What is left of many
    /// batches is moved as one.
    ///
    /// # Errors
    /// `Busy` if something was written meanwhile, `NoSpace` without room to move records,
    /// `Poisoned` after a failed write, `Io` if the volume cannot be read, or its file not used
    /// anew.
    pub fn step(&mut self) -> Result<bool, PebblesError> {
        if self.emptied.is_some() {
            return Ok(self.drop_entries());
        }
        self.forget_ended();
        let read = |source| PebblesError::of_io("compact", source);
        self.holder = self.first_holder();
        let (mut changes, mut moved, mut seen) = (Vec::new(), 0, 0);
        let (mut is_end, mut has_moved) = (false, false);
        while moved < self.store.batch_soft_max() && seen < STEP_BYTES {
            let Some(scanned) = self.scanner.next().map_err(read)? else {
                is_end = true;
                break;
            };
            seen += scanned.bytes.len();
            for found in &scanned.found {
                let change = match found {
                    Found::Record { at, header, .. } => self.keep(&scanned, *at, header)?,
                    Found::Damaged { at, header, .. } => self.keep_damaged(*at, header)?,
                    // Entries that point there are left over at the end.
                    Found::Lost { .. } | Found::Other { .. } => None,
                };
                moved += change.as_ref().map_or(0, |change| moved_len(found, change));
                changes.extend(change);
                // Small removals can bring whole objects along, many in a batch.
                if moved >= self.store.batch_soft_max() {
                    self.commit(std::mem::take(&mut changes))?;
                    (moved, has_moved) = (0, true);
                }
            }
        }
        let damaged = std::mem::take(&mut self.damaged);
        self.quarantine(&damaged)?;
        if is_end && changes.is_empty() && !has_moved {
            return self.finish().map(|()| false);
        }
        self.commit(changes).map(|()| false)
    }

    fn commit(&self, changes: Vec<Change>) -> Result<(), PebblesError> {
        let mut ended = self.store.commit(Class::Kept, changes).into_iter();
        ended.try_for_each(|ended| ended.map(drop))
    }

    fn place(&self, at: u64, header: &RecordHeader) -> Place {
        Place {
            slot: self.source.slot,
            offset: at,
            len: header.record_len() as u32,
        }
    }

    /// The move of a record that is still needed.
    fn keep(
        &mut self,
        scanned: &Scanned,
        at: u64,
        header: &RecordHeader,
    ) -> Result<Option<Change>, PebblesError> {
        let place = self.place(at, header);
        let record = scanned.record(at);
        let copy = |range: std::ops::Range<usize>| Bytes::copy_from_slice(&record[range]);
        let parts = (
            copy(header.name()),
            copy(header.metadata()),
            copy(header.body()),
        );
        let horizon = number(&parts.2);
        let record = record_of(header, parts);
        if header.kind.is_removal() {
            return match self.holder <= horizon {
                true => self.move_removal(place, record).map(Some),
                false => Ok(None),
            };
        }
        let going = Going {
            partition: header.partition,
            hash: header.hash,
            place,
            horizon,
        };
        match self.can_go(&going, self.holder) {
            Some(true) if header.kind == Kind::Tombstone || self.strays.len() < STRAYS_MAX => {
                if header.kind != Kind::Tombstone {
                    self.strays.push(place);
                }
                self.going_bytes += u64::from(place.len);
                self.going.insert(place, going);
                return Ok(None);
            }
            Some(_) => {}
            None if Plant::CompactionOverwrites.is_on() => {}
            None => return Ok(None),
        }
        Ok(Some(Change::Copy {
            source: place,
            record,
        }))
    }

    /// A record with damage is ended. Of one that ends others the header is all that counts.
    fn keep_damaged(
        &mut self,
        at: u64,
        header: &RecordHeader,
    ) -> Result<Option<Change>, PebblesError> {
        let place = self.place(at, header);
        if !header.kind.is_removal() {
            // The next attempt may find it whole.
            if !self.scanner.is_unsure() {
                self.damaged.push(Broken {
                    partition: header.partition,
                    hash: header.hash,
                    place,
                });
            }
            return Ok(None);
        }
        // Its own horizon was not above this.
        let horizon = self.store.log().horizon;
        let body = horizon.to_le_bytes().to_vec().into();
        let record = record_of(header, (Bytes::new(), Bytes::new(), body));
        match self.holder <= horizon {
            true => self.move_removal(place, record).map(Some),
            false => Ok(None),
        }
    }

    /// The move of a record that ends others, with what was written since and it would end.
    fn move_removal(&self, source: Place, removal: NewRecord) -> Result<Change, PebblesError> {
        let store = &self.store;
        let mut behind = Vec::new();
        for entry in store.would_end(&removal) {
            let place = entry.place;
            let stored = match store.read(removal.partition, removal.hash, place) {
                Ok(stored) => stored,
                Err(ReadError::Gone) => return Err(PebblesError::Busy),
                Err(ReadError::Damaged(_)) => {
                    self.quarantine(&[Broken {
                        partition: removal.partition,
                        hash: removal.hash,
                        place,
                    }])?;
                    return Err(PebblesError::Busy);
                }
                Err(ReadError::Unreadable(_)) => return Err(self.unread()),
                Err(ReadError::Io(source)) => return Err(PebblesError::of_io("compact", source)),
            };
            let parts = (stored.name, stored.metadata, stored.body);
            behind.push((place, record_of(&stored.header, parts)));
        }
        Ok(Change::MoveRemoval {
            source,
            removal,
            behind,
        })
    }

    /// Whether an entry is so old that it goes; `None`: its record counts no longer. `holder`: the first.
    fn can_go(&self, of: &Going, holder: u64) -> Option<bool> {
        let entries = self.store.index.get(of.partition, of.hash);
        let entry = entries.iter().find(|entry| entry.place == of.place)?;
        Some(match entry.kind {
            EntryKind::Tombstone => self.is_expired(entry.timestamp) && holder > of.horizon,
            _ => self.is_stray(&entries, entry),
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

    /// The lowest id of another volume that may have what a record ends. It holds back the records
    /// whose horizons are not below it.
    fn first_holder(&self) -> u64 {
        if Plant::TombstoneTooSoon.is_on() {
            return u64::MAX;
        }
        let holds = |v: &&Arc<Volume>| v.slot != self.source.slot && v.has_dead();
        let volumes = self.store.volumes();
        let ids = volumes.iter().filter(holds).map(|volume| volume.id);
        ids.min().unwrap_or(u64::MAX)
    }

    fn quarantine(&self, broken: &[Broken]) -> Result<(), PebblesError> {
        let reason = "damaged, found by compaction";
        let mut ended = self.store.quarantine_all(broken, reason).into_iter();
        ended.try_for_each(|ended| ended.map(drop))
    }

    fn unread(&self) -> PebblesError {
        PebblesError::unread("compact", self.source.slot)
    }

    /// Gives the file back, with nothing in it that counts but what goes with it: as one step to the
    /// committer. Were an entry to go sooner, a crash would bring it back, and with it swallow what was
    /// written since.
    fn finish(&mut self) -> Result<(), PebblesError> {
        if self.scanner.is_unsure() {
            return Err(self.unread());
        }
        let store = self.store.clone();
        // While others write: what they change shows below.
        if self.live_of_others() > 0 {
            self.end_left_over()?;
            self.forget_ended();
        }
        // The committer is at rest from here on.
        let log = store.log();
        if store.is_poisoned() {
            return Err(PebblesError::Poisoned);
        }
        self.forget_ended();
        if self.live_of_others() > 0 || self.has_stray_that_stays() {
            // Something was written meanwhile: the next attempt moves it.
            return Err(PebblesError::Busy);
        }
        let ended = match log.prepared.len() > AHEAD {
            true => store.volumes.remove_emptied(&self.source).map(|()| None),
            false => store.volumes.recycle(&self.source).map(Some),
        };
        let volume = ended.inspect_err(|_| store.poison())?;
        drop(log);
        self.emptied = Some(Emptied {
            going: std::mem::take(&mut self.going).into_values(),
            volume,
        });
        Ok(())
    }

    /// Takes some of the entries that go out of the index; true when all are out, and the volume can be
    /// used.
    fn drop_entries(&mut self) -> bool {
        let Some(emptied) = &mut self.emptied else {
            return true;
        };
        let some: Vec<Going> = emptied.going.by_ref().take(STEP_ENTRIES).collect();
        some.iter().for_each(|going| self.drop_entry(going));
        if some.len() == STEP_ENTRIES {
            return false;
        }
        let volume = self.emptied.take().and_then(|emptied| emptied.volume);
        let mut log = self.store.log();
        self.store
            .volumes
            .release(self.source.slot, volume.as_ref());
        volume
            .into_iter()
            .for_each(|volume| log.add_prepared(volume));
        true
    }

    /// Entries that were to go and have ended by themselves.
    fn forget_ended(&mut self) {
        for place in self.source.take_ended() {
            if self.going.remove(&place).is_some() {
                self.going_bytes -= u64::from(place.len);
            }
        }
    }

    /// Bytes that count in the volume, without those that go with it.
    fn live_of_others(&self) -> u64 {
        self.source.live().saturating_sub(self.going_bytes)
    }

    /// Whether an entry cannot go any more: a fragment of its time was made durable, say.
    fn has_stray_that_stays(&self) -> bool {
        let strays = self.strays.iter().filter_map(|place| self.going.get(place));
        let mut can_go = strays.map(|going| self.can_go(going, 0));
        can_go.any(|can_go| can_go == Some(false))
    }

    /// Takes an entry out of the index. Nothing is written.
    fn drop_entry(&self, going: &Going) {
        let store = &self.store;
        let place = going.place;
        let dropped = store.index.update(going.partition, going.hash, |entries| {
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

    /// Settles entries whose records were not found.
    fn end_left_over(&self) -> Result<(), PebblesError> {
        let (mut is_all_read, mut damaged) = (true, Vec::new());
        for group in self.store.index.groups() {
            for (hash, entries) in self.store.index.group_objects(group) {
                let left = entries.iter().filter(|e| e.place.slot == self.source.slot);
                for entry in left.filter(|entry| !self.going.contains_key(&entry.place)) {
                    let one = Broken {
                        partition: group,
                        hash,
                        place: entry.place,
                    };
                    match self.move_left_over(one)? {
                        LeftOver::Settled => {}
                        LeftOver::Damaged => damaged.push(one),
                        LeftOver::Unread => is_all_read = false,
                    }
                }
            }
        }
        self.quarantine(&damaged)?;
        match is_all_read {
            true => Ok(()),
            false => Err(self.unread()),
        }
    }

    /// Moves the record of an entry that is sound: damage beside it hid it.
    fn move_left_over(&self, of: Broken) -> Result<LeftOver, PebblesError> {
        match self.store.read(of.partition, of.hash, of.place) {
            Ok(stored) => {
                let parts = (stored.name, stored.metadata, stored.body);
                let record = record_of(&stored.header, parts);
                let source = of.place;
                self.commit(vec![Change::Copy { source, record }])?;
                Ok(LeftOver::Settled)
            }
            Err(ReadError::Gone) => Ok(LeftOver::Settled),
            Err(ReadError::Damaged(_)) => Ok(LeftOver::Damaged),
            Err(ReadError::Unreadable(_)) => Ok(LeftOver::Unread),
            Err(ReadError::Io(source)) => Err(PebblesError::of_io("compact", source)),
        }
    }
}

impl Drop for Compaction {
    fn drop(&mut self) {
        self.source.watch(false);
    }
}

/// Number of bytes that the move of a record writes, or holds until then.
fn moved_len(found: &Found, change: &Change) -> usize {
    let own = match found {
        Found::Record { header, .. } | Found::Damaged { header, .. } => header.record_len(),
        Found::Lost { .. } | Found::Other { .. } => 0,
    };
    let behind = match change {
        Change::MoveRemoval { behind, .. } => &behind[..],
        _ => &[],
    };
    own + behind
        .iter()
        .map(|(place, _)| place.len as usize)
        .sum::<usize>()
}

fn record_of(header: &RecordHeader, (name, metadata, body): (Bytes, Bytes, Bytes)) -> NewRecord {
    NewRecord {
        kind: header.kind,
        partition: header.partition,
        hash: header.hash,
        timestamp: header.timestamp,
        fragment: header.fragment,
        is_durable: header.is_durable,
        is_external: header.is_external,
        owes_row: header.owes_row,
        is_lasting: header.is_lasting,
        name,
        metadata,
        body,
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

#[cfg(test)]
mod tests;
