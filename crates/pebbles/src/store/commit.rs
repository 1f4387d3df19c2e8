//! One batch: decided, written, put into the index, answered.

use std::sync::Arc;

use cairn_disk::owed::{Debt, Owed};
use cairn_types::Timestamp;
use cairn_types::plant::Plant;

use super::{AHEAD, Change, Expected, Log, Outcome, RESERVE, Store, entry_of};
use crate::error::PebblesError;
use crate::format::{
    BATCH_MAX, BATCH_SOFT_MAX, BLOCK, BatchHeader, Binding, Class, Kind, NewRecord, RecordHeader,
    UNIT,
};
use crate::object::Entry;
use crate::place::Place;
use crate::volume::{Aligned, Volume};

/// Bytes of records that have room together in a batch which takes them still.
const TOGETHER_MAX: usize = BATCH_MAX - BATCH_SOFT_MAX - BLOCK - UNIT;

/// Largest batch whose memory is kept for the next.
const KEPT_BATCH_BYTES: usize = 256 << 10;

type Ended = Result<Outcome, PebblesError>;

/// How changes ended, by their numbers, and the debts of those that owe a row.
struct Ends {
    ended: Vec<Ended>,
    debts: Vec<Option<Debt>>,
}

impl Ends {
    fn of(count: usize) -> Self {
        let of_none = (0..count).map(|_| (Ok(Outcome::Obsolete), None));
        let (ended, debts) = of_none.unzip();
        Ends { ended, debts }
    }
}

/// A record that a batch will have.
struct Planned {
    /// The change it is from.
    number: usize,
    record: NewRecord,
    header: RecordHeader,
    /// A copy's origin.
    source: Option<Place>,
    /// Whoever wrote it is given the debt of its row.
    gives_debt: bool,
}

impl Planned {
    fn entry(&self, place: Place) -> Option<Entry> {
        entry_of(&self.header, &self.record.body, place)
    }
}

impl Store {
    /// Carries out changes together; gives how each ended, when it is durable.
    pub fn commit(&self, class: Class, changes: Vec<Change>) -> Vec<Ended> {
        let ended = self.commit_owing(class, changes).into_iter();
        ended.map(|(ended, _)| ended).collect()
    }

    /// As [`Store::commit`], with the debt of each record that owes a row.
    pub fn commit_owing(&self, class: Class, changes: Vec<Change>) -> Vec<(Ended, Option<Debt>)> {
        let mut ends = Ends::of(changes.len());
        let mut log = self.log();
        let mut batch = Vec::new();
        let mut bytes = 0;
        for (number, change) in changes.into_iter().enumerate() {
            // Before the next is decided on: what is in this one is in the index then.
            let is_apart = self.is_moved_apart(&change);
            if bytes >= self.batch_soft_max() || is_apart {
                let batch = std::mem::take(&mut batch);
                self.commit_batch(&mut log, (class, None), batch, &mut ends);
                bytes = 0;
            }
            if is_apart {
                ends.ended[number] = self.move_apart(&mut log, class, change);
                continue;
            }
            match self.plan(&log, number, change) {
                Ok(mut planned) => {
                    self.inherit_rows(&mut planned, &batch);
                    bytes += bytes_of(&planned);
                    batch.extend(planned);
                }
                Err(error) => ends.ended[number] = Err(error),
            }
        }
        self.commit_batch(&mut log, (class, None), batch, &mut ends);
        ends.ended.into_iter().zip(ends.debts).collect()
    }

    /// Whether a record that ends others moves with more than a batch has room for.
    fn is_moved_apart(&self, change: &Change) -> bool {
        let Change::MoveRemoval {
            removal, behind, ..
        } = change
        else {
            return false;
        };
        let own = removal.header().map_or(0, |header| header.record_len());
        let behind = behind.iter().map(|(place, _)| place.len as usize);
        let most = TOGETHER_MAX.min(self.config.volume_bytes as usize / 2);
        own + behind.sum::<usize>() > most
    }

    /// Moves a record that ends others, and what was written since and it would end, in batches of their
    /// own. A power cut may come between any two, so those come first that are behind it in the log: they
    /// are moved to the volume of the one class with later numbers, and then the record to that of the
    /// other class with the number before these, which a rebuild goes by.
    fn move_apart(&self, log: &mut Log, class: Class, change: Change) -> Ended {
        let mut planned = self.plan(log, 0, change)?.into_iter();
        let Some(removal) = planned.next() else {
            return Ok(Outcome::Obsolete);
        };
        let sequence = log.next_sequence;
        log.next_sequence += 1;
        let mut ends = Ends::of(1);
        let mut left = planned.peekable();
        while left.peek().is_some() {
            let (mut batch, mut bytes) = (Vec::new(), 0);
            while bytes < self.batch_soft_max()
                && let Some(next) = left.next()
            {
                bytes += next.header.record_len();
                batch.push(next);
            }
            self.commit_batch(log, (class, None), batch, &mut ends);
            if ends.ended[0].is_err() {
                break;
            }
        }
        if ends.ended[0].is_ok() {
            let other = match class {
                Class::Fresh => Class::Kept,
                Class::Kept => Class::Fresh,
            };
            self.commit_batch(log, (other, Some(sequence)), vec![removal], &mut ends);
        }
        ends.ended.swap_remove(0)
    }

    /// Bytes after which a batch takes no further record.
    pub(super) fn batch_soft_max(&self) -> usize {
        BATCH_SOFT_MAX.min(self.config.volume_bytes as usize / 4)
    }

    /// The records that a change needs, if any.
    fn plan(&self, log: &Log, number: usize, change: Change) -> Result<Vec<Planned>, PebblesError> {
        if self.is_poisoned() {
            return Err(PebblesError::Poisoned);
        }
        let one = |record: NewRecord, source: Option<Place>| {
            let header = record.header().ok_or(PebblesError::TooLarge)?;
            Ok(Planned {
                number,
                gives_debt: record.owes_row && source.is_none(),
                record,
                header,
                source,
            })
        };
        let with_horizon = |mut record: NewRecord| {
            if record.kind == Kind::Tombstone || record.kind.is_removal() {
                record.body = log.horizon.to_le_bytes().to_vec().into();
            }
            record
        };
        match change {
            Change::Write(record) => {
                let planned = one(with_horizon(record), None)?;
                let record = &planned.record;
                let entries = self.index.get(record.partition, record.hash);
                let new = planned.entry(nowhere());
                let is_obsolete = new.is_some_and(|n| self.config.rules.is_obsolete(&entries, &n));
                Ok(match is_obsolete {
                    true => Vec::new(),
                    false => vec![planned],
                })
            }
            Change::Copy { source, record } => {
                let entries = self.index.get(record.partition, record.hash);
                let is_live = entries.iter().any(|entry| entry.place == source);
                match is_live || Plant::CompactionOverwrites.is_on() {
                    true => Ok(vec![one(record, Some(source))?]),
                    false => Ok(Vec::new()),
                }
            }
            Change::MoveRemoval {
                source,
                removal,
                behind,
            } => {
                let ended: Vec<Place> = self.would_end(&removal).map(|e| e.place).collect();
                let is_same = ended.iter().eq(behind.iter().map(|(place, _)| place));
                if !is_same {
                    // Something was written meanwhile.
                    return Err(PebblesError::Busy);
                }
                let mut planned = vec![one(removal, Some(source))?];
                for (source, record) in behind {
                    planned.push(one(record, Some(source))?);
                }
                Ok(planned)
            }
            remove @ Change::Remove { .. } => match self.removal(remove) {
                Some(record) => Ok(vec![one(with_horizon(record), None)?]),
                None => Ok(Vec::new()),
            },
        }
    }

    /// Records that take the place of one of the same time, as a replicator may send it again: the row that
    /// may be owed for that one is made of this one after a crash. `batch`: those before them.
    fn inherit_rows(&self, planned: &mut [Planned], batch: &[Planned]) {
        for planned in planned {
            let record = &planned.record;
            let has_row = matches!(record.kind, Kind::Data | Kind::Tombstone);
            if record.owes_row || !has_row || record.fragment.is_some() {
                continue;
            }
            let owes = |p: &Planned| {
                let of = (p.record.hash, p.record.timestamp);
                p.record.owes_row && of == (record.hash, record.timestamp)
            };
            let is_again = || {
                let mut entries = self.index.get(record.partition, record.hash).into_iter();
                entries.any(|entry| entry.timestamp == record.timestamp)
            };
            if batch.iter().any(owes) || (self.ledger.mark().is_some() && is_again()) {
                planned.record.owes_row = true;
                planned.header.owes_row = true;
            }
        }
    }

    /// The entries that a record which ends others would end now.
    pub(super) fn would_end(&self, removal: &NewRecord) -> impl Iterator<Item = Entry> {
        let mut entries = self.index.get(removal.partition, removal.hash);
        let (up_to, fragment) = (removal.timestamp, removal.fragment);
        let ended = self.config.rules.remove(&mut entries, up_to, fragment);
        ended.into_iter()
    }

    /// The record of a removal; `None`: the object is not as expected.
    fn removal(&self, change: Change) -> Option<NewRecord> {
        let Change::Remove {
            kind,
            partition,
            hash,
            fragment,
            expected,
            name,
            reason,
        } = change
        else {
            return None;
        };
        let entries = self.index.get(partition, hash);
        let latest = || {
            let goes = |e: &&Entry| fragment.is_none() || e.fragment() == fragment;
            entries.iter().filter(goes).map(|e| e.timestamp).max()
        };
        let timestamp: Timestamp = match expected {
            Expected::Entries(expected) => {
                let is_there = |e: &Entry| expected.iter().any(|of| of.is_same(e));
                let is_it = expected.len() == entries.len() && entries.iter().all(is_there);
                is_it.then(latest)??
            }
            Expected::At(place) => {
                let at = entries.iter().find(|entry| entry.place == place)?;
                match fragment {
                    Some(_) => at.timestamp,
                    None => latest()?,
                }
            }
            Expected::UpTo(time) => time,
        };
        Some(NewRecord {
            kind,
            partition,
            hash,
            timestamp,
            fragment,
            is_durable: false,
            is_external: false,
            owes_row: false,
            is_lasting: false,
            name,
            metadata: reason,
            body: vec![0; 8].into(),
        })
    }

    /// Writes a batch of a class. Its records have the next numbers, or those from the given one on.
    fn commit_batch(
        &self,
        log: &mut Log,
        (class, sequence): (Class, Option<u64>),
        mut batch: Vec<Planned>,
        ends: &mut Ends,
    ) {
        if self.is_tight(log) {
            batch.retain(|planned| {
                let is_refused = planned.source.is_none()
                    && matches!(planned.record.kind, Kind::Data | Kind::Meta);
                if is_refused {
                    ends.ended[planned.number] = Err(PebblesError::NoSpace);
                }
                !is_refused
            });
        }
        if batch.is_empty() {
            return;
        }
        let sequence = sequence.unwrap_or(log.next_sequence);
        match self.write_batch(log, class, sequence, &batch) {
            Ok(places) => {
                for (planned, place) in batch.iter().zip(places) {
                    self.apply(planned, place);
                    ends.ended[planned.number] = Ok(Outcome::Written);
                }
                self.owe_rows(sequence, &batch, ends);
            }
            Err(error) => {
                let is_full = matches!(error, PebblesError::NoSpace);
                for planned in &batch {
                    ends.ended[planned.number] = Err(match is_full {
                        true => PebblesError::NoSpace,
                        false => PebblesError::Poisoned,
                    });
                }
                if !is_full {
                    tracing::error!(%error, "a batch was not written: the store takes no more");
                    self.poison();
                }
            }
        }
    }

    /// Notes the rows that records of a batch owe, which is durable.
    fn owe_rows(&self, sequence: u64, batch: &[Planned], ends: &mut Ends) {
        let owing = (sequence..).zip(batch);
        let owing = owing.filter(|(_, planned)| planned.gives_debt);
        let (changes, rows): (Vec<usize>, Vec<Owed>) = owing
            .map(|(number, planned)| {
                let record = &planned.record;
                let owed = Owed {
                    number,
                    partition: record.partition,
                    hash: record.hash,
                    timestamp: record.timestamp,
                };
                (planned.number, owed)
            })
            .unzip();
        let debts = self
            .ledger
            .owe(sequence, sequence + batch.len() as u64, &rows);
        for (number, debt) in changes.into_iter().zip(debts) {
            ends.debts[number] = Some(debt);
        }
    }

    /// The number from which on rows may be owed, those of a batch that begins with `sequence` too.
    fn owed_from(&self, log: &Log, sequence: u64) -> u64 {
        let next = log.next_sequence.min(sequence);
        match self.ledger.mark() {
            _ if Plant::OwedTooFar.is_on() => u64::MAX,
            Some(mark) => mark.min(next),
            None => next,
        }
    }

    /// Whether the device is so full that only deletions and compaction go on.
    fn is_tight(&self, log: &mut Log) -> bool {
        while log.prepared.len() < RESERVE {
            match self.volumes.make(false) {
                Ok(volume) => log.add_prepared(volume),
                Err(PebblesError::NoSpace) => return true,
                Err(error) => {
                    tracing::error!(%error, "no new volume");
                    return true;
                }
            }
        }
        // Nothing is active, or full: uploads need a volume beyond the reserve.
        let fresh = log.active[Class::Fresh as usize].as_ref();
        let has_room = fresh.is_some_and(|volume| volume.has_room());
        if has_room || log.prepared.len() >= AHEAD {
            return false;
        }
        match self.volumes.make(false) {
            Ok(volume) => log.add_prepared(volume),
            Err(_) => return true,
        }
        false
    }

    /// The volume that takes the next batch of a class.
    fn active(&self, log: &mut Log, class: Class, len: u64) -> Result<Arc<Volume>, PebblesError> {
        if let Some(volume) = &log.active[class as usize]
            && volume.room() >= len
        {
            return Ok(volume.clone());
        }
        if log.prepared.is_empty() {
            let volume = self.volumes.make(false)?;
            log.add_prepared(volume);
        }
        let volume = log.prepared.remove(0);
        if volume.room() < len {
            log.add_prepared(volume);
            return Err(PebblesError::TooLarge);
        }
        log.horizon = log.horizon.max(volume.id);
        log.active[class as usize] = Some(volume.clone());
        Ok(volume)
    }

    /// Writes a batch durably; gives each record's place.
    fn write_batch(
        &self,
        log: &mut Log,
        class: Class,
        sequence: u64,
        batch: &[Planned],
    ) -> Result<Vec<Place>, PebblesError> {
        let len: usize = UNIT + batch.iter().map(|p| p.header.record_len()).sum::<usize>();
        let len = len.next_multiple_of(BLOCK);
        let volume = self.active(log, class, len as u64)?;
        let start = volume.used();
        let mut bytes = Aligned::reusing(log.batch.take(), len);
        bytes.extend(&[0; UNIT]);
        let mut places = Vec::with_capacity(batch.len());
        for planned in batch {
            let place = Place {
                slot: volume.slot,
                offset: start + bytes.len() as u64,
                len: planned.header.record_len() as u32,
            };
            let binding = Binding {
                epoch: volume.epoch,
                offset: place.offset,
            };
            planned
                .record
                .append(&planned.header, binding, bytes.as_vec());
            places.push(place);
        }
        bytes.pad(BLOCK);
        assert_eq!(bytes.len(), len, "a batch is as long as its records say");
        let header = BatchHeader {
            id: volume.id,
            epoch: volume.epoch,
            sequence,
            count: batch.len() as u32,
            len: len as u32,
            class,
            owed_from: self.owed_from(log, sequence),
        };
        bytes.set(0, &header.to_bytes(start));
        if Plant::BatchAnsweredEarly.is_on() {
            // As if it was on disk: a power cut may prove it wrong.
            let _ = volume.file.write_at(start, &bytes);
        } else {
            let written = volume.file.write_durably(start, &bytes);
            written.map_err(|source| PebblesError::Io {
                action: "write batch",
                source,
            })?;
        }
        let behind = sequence + u64::from(header.count);
        log.next_sequence = log.next_sequence.max(behind);
        log.appended += len as u64;
        if class == Class::Fresh {
            log.note_batch(len as u64);
        }
        volume.set_used(start + len as u64);
        if len <= KEPT_BATCH_BYTES {
            log.batch = Some(bytes);
        }
        for (planned, place) in batch.iter().zip(&places) {
            volume.note_written(&planned.header, *place);
        }
        Ok(places)
    }

    /// Puts a record that is durable into the index.
    fn apply(&self, planned: &Planned, place: Place) {
        let record = &planned.record;
        let rules = self.config.rules;
        let new = planned.entry(place);
        if new.is_none() && planned.source.is_some() {
            // It ended what it had to end when it was written first.
            return;
        }
        let gone = self
            .index
            .update(record.partition, record.hash, |entries| match new {
                Some(new) => {
                    self.live(place, true);
                    if planned.source.is_some() && Plant::CompactionOverwrites.is_on() {
                        return std::mem::replace(entries, vec![new]);
                    }
                    rules.apply(entries, new)
                }
                None => rules.remove(entries, record.timestamp, record.fragment),
            });
        let has_moved = |number: u64| new.is_some_and(|new| new.external == Some(number));
        for entry in gone {
            self.live(entry.place, false);
            if let Some(number) = entry.external.filter(|number| !has_moved(*number)) {
                (self.config.external_gone)(number);
            }
        }
    }

    pub(crate) fn live(&self, place: Place, is_live: bool) {
        let Some(volume) = self.volumes.get(place.slot) else {
            return;
        };
        match is_live {
            true => volume.add_live(place.len.into()),
            false => volume.sub_live(place),
        }
    }
}

fn bytes_of(planned: &[Planned]) -> usize {
    planned.iter().map(|p| p.header.record_len()).sum()
}

fn nowhere() -> Place {
    Place {
        slot: 0,
        offset: 0,
        len: 0,
    }
}
