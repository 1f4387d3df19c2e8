//! Opening a store: the newest checkpoint, then every batch behind it in the order of the log.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use cairn_disk::owed::Owed;
use cairn_types::plant::Plant;
use cairn_types::{ObjectHash, Timestamp};

use crate::error::PebblesError;
use crate::format::{
    BATCH_MAX, BLOCK, BatchHeader, Binding, Class, FIRST_BATCH, Found, Kind, RecordHeader, UNIT,
};
use crate::index::Index;
use crate::place::Place;
use crate::scanner::{Scanned, Scanner};
use crate::store::checkpoint::{self, Position, Written};
use crate::store::heads::{find_volumes, mend_heads};
use crate::store::{Config, Log, entry_of};
use crate::volume::{Aligned, Volume, Volumes};

/// Records that owe rows are sifted when there are so many, and again when twice as many are there as were left.
const OWED_KEPT: usize = 1 << 16;

/// The account of an opening.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Entries from a checkpoint, and records read behind it.
    pub loaded: u64,
    pub replayed: u64,
    /// Records known by their headers of which another part is damaged, and that count still. They
    /// are ended.
    pub damaged: Vec<Damaged>,
    /// A damaged record no longer says which file its content is.
    pub has_unnamed: bool,
    /// Stretches in which records were lost, with their names.
    pub lost: u64,
    /// Files that were volumes, and are kept: nothing in them can be read.
    pub unreadable: u64,
    /// Rows of containers that may have been in memory alone, in the log's order.
    pub owed: Vec<Owed>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged {
    pub partition: u32,
    pub hash: ObjectHash,
    pub kind: Kind,
    pub timestamp: Timestamp,
    pub fragment: Option<u16>,
    pub place: Place,
}

pub(crate) fn recover(
    volumes: &Volumes,
    index: &Index,
    config: &Config,
    is_read_only: bool,
) -> Result<(Log, Written, Recovery), PebblesError> {
    let mut report = Recovery::default();
    let found = checkpoint::newest(volumes.medium());
    let (mut position, mut written) = (Position::default(), Written::default());
    if let Some(found) = &found {
        position = found.position.clone();
        written = found.written;
        report.owed.clone_from(&found.owed);
    }
    find_volumes(volumes, &position, is_read_only, &mut report)?;
    if !is_read_only {
        volumes.all().iter().for_each(|volume| mend_heads(volume));
    }
    if let Some(found) = &found {
        let loaded = found.load(index, volumes);
        loaded.map_err(|error| PebblesError::Io {
            action: "load checkpoint",
            source: std::io::Error::other(error),
        })?;
    }
    // The checkpoint says these; a replay makes the first that it does not.
    drop(index.take_changed());
    report.loaded = index.size().objects;
    let mut replay = Replay {
        index,
        config,
        is_read_only,
        report,
        next_sequence: position.next_sequence,
        replayed_bytes: 0,
        owed_from: 0,
        sifted_at: OWED_KEPT,
        last: [None, None],
    };
    replay.run(volumes, &position)?;
    let log = replay.log(volumes, &position);
    // The first batch of a volume may be torn too: nothing is in it then.
    let next = log.active.iter().flatten().chain(&log.prepared);
    for volume in next.filter(|_| !is_read_only) {
        end_torn(volume).map_err(|error| PebblesError::of_io("end torn batch", error))?;
    }
    let (mut report, owed_from) = (replay.report, replay.owed_from);
    report.owed.retain(|owed| owed.number >= owed_from);
    report.damaged.retain(|damaged| {
        let mut entries = index.get(damaged.partition, damaged.hash).into_iter();
        entries.any(|entry| entry.place == damaged.place)
    });
    settle(volumes, index);
    Ok((log, written, report))
}

struct Replay<'a> {
    index: &'a Index,
    config: &'a Config,
    is_read_only: bool,
    report: Recovery,
    next_sequence: u64,
    replayed_bytes: u64,
    /// The last batch's word on what rows are owed.
    owed_from: u64,
    /// The number of rows owed that are sifted next.
    sifted_at: usize,
    /// The volume with the latest batch of each class, and the number behind that.
    last: [Option<(u64, Arc<Volume>)>; 2],
}

impl Replay<'_> {
    fn run(&mut self, volumes: &Volumes, position: &Position) -> Result<(), PebblesError> {
        let error = |source| PebblesError::of_io("read volume", source);
        let (mut scanners, now) = (Vec::new(), (self.config.now)());
        let mut heap = BinaryHeap::new();
        for volume in volumes.all() {
            let mut known = position.volumes.iter();
            let known = known.find(|v| (v.slot, v.epoch) == (volume.slot, volume.epoch));
            let mut from = FIRST_BATCH;
            if let Some(known) = known {
                from = known.used.clamp(FIRST_BATCH, volume.size);
                volume.set_used(from / BLOCK as u64 * BLOCK as u64);
                volume.set_written(known.written);
                let Some(class) = known.class else {
                    continue;
                };
                self.saw(position.next_sequence, class, &volume);
            }
            let mut scanner = Scanner::new(volume, from, self.config.read_errors.clone(), now);
            if let Some(sequence) = scanner.peek().map_err(error)? {
                heap.push(Reverse((sequence, scanners.len())));
            }
            scanners.push(scanner);
        }
        while let Some(Reverse((_, number))) = heap.pop() {
            let scanner = &mut scanners[number];
            let Some(scanned) = scanner.next().map_err(error)? else {
                continue;
            };
            let volume = scanner.volume.clone();
            volume.set_used(scanner.at());
            self.apply(&volume, &scanned);
            self.saw(scanned.next_sequence, scanned.class, &volume);
            self.replayed_bytes += scanned.bytes.len() as u64;
            self.owed_from = self.owed_from.max(scanned.owed_from);
            self.next_sequence = self.next_sequence.max(scanned.next_sequence);
            if let Some(sequence) = scanner.peek().map_err(error)? {
                heap.push(Reverse((sequence, number)));
            }
        }
        let unsure = scanners.iter().find(|scanner| scanner.is_unsure());
        if let Some(scanner) = unsure.filter(|_| !self.is_read_only) {
            return Err(PebblesError::unread("read volume", scanner.volume.slot));
        }
        let lost = scanners.iter().filter(|scanner| scanner.is_end_lost());
        lost.for_each(|scanner| self.lose_end(&scanner.volume, scanner.at()));
        Ok(())
    }

    /// The end of a volume cannot be read. Nothing more is written to it, and its file is used anew when
    /// what is left in it was moved.
    fn lose_end(&mut self, volume: &Arc<Volume>, at: u64) {
        tracing::error!(
            volume = volume.slot,
            at,
            "the end of a volume cannot be read: what was written last may be lost here, and comes back by \
             replication"
        );
        self.report.lost += 1;
        self.report.has_unnamed = true;
        // The numbers that its records may have had are not given again, should it be read one day.
        self.next_sequence += (volume.size - at) / UNIT as u64;
        volume.set_used(volume.size);
    }

    fn saw(&mut self, sequence: u64, class: Class, volume: &Arc<Volume>) {
        let last = &mut self.last[class as usize];
        if last.as_ref().is_none_or(|(before, _)| *before <= sequence) {
            *last = Some((sequence, volume.clone()));
        }
    }

    fn apply(&mut self, volume: &Volume, scanned: &Scanned) {
        for found in &scanned.found {
            match found {
                Found::Record {
                    at,
                    header,
                    sequence,
                } => {
                    let place = place_of(volume, *at, header);
                    volume.note_written(header, place);
                    self.note_owed(*sequence, header);
                    self.apply_record(header, &scanned.record(*at)[header.body()], place);
                }
                Found::Damaged { at, header, .. } => {
                    let place = place_of(volume, *at, header);
                    volume.note_written(header, place);
                    let hash = header.hash.hex();
                    tracing::error!(
                        volume = volume.slot,
                        at,
                        hash,
                        "a damaged record in the log"
                    );
                    self.apply_damaged(header, place, scanned.record(*at));
                }
                Found::Lost { at } => {
                    tracing::error!(volume = volume.slot, at, "records lost in the log");
                    self.report.lost += 1;
                }
                // The scanner gives no such batch.
                Found::Other { .. } => {}
            }
        }
    }

    fn note_owed(&mut self, number: u64, header: &RecordHeader) {
        if !header.owes_row || Plant::OwedForgotten.is_on() {
            return;
        }
        let owed = &mut self.report.owed;
        if owed.len() >= self.sifted_at {
            owed.retain(|owed| owed.number >= self.owed_from);
            self.sifted_at = OWED_KEPT.max(2 * owed.len());
        }
        owed.push(Owed {
            number,
            partition: header.partition,
            hash: header.hash,
            timestamp: header.timestamp,
        });
    }

    fn apply_record(&mut self, header: &RecordHeader, body: &[u8], place: Place) {
        self.report.replayed += 1;
        let Some(entry) = entry_of(header, body, place) else {
            return self.end(header);
        };
        self.forget_damaged(header);
        let rules = self.config.rules;
        self.index.update(header.partition, header.hash, |entries| {
            rules.apply(entries, entry)
        });
    }

    /// A record of which only the header is sound counts until it is known whether it was written
    /// again: it is ended when all has been read.
    fn apply_damaged(&mut self, header: &RecordHeader, place: Place, record: &[u8]) {
        let body = match header.body_is_sound(record) {
            true => &record[header.body()],
            false => &[],
        };
        self.report.has_unnamed |= header.is_external && body.is_empty();
        let Some(entry) = entry_of(header, body, place) else {
            return self.end(header);
        };
        self.forget_damaged(header);
        let rules = self.config.rules;
        self.index.update(header.partition, header.hash, |entries| {
            rules.apply(entries, entry)
        });
        self.report.damaged.push(Damaged {
            partition: header.partition,
            hash: header.hash,
            kind: header.kind,
            timestamp: header.timestamp,
            fragment: fragment_of(header),
            place,
        });
    }

    /// A record is there once more: the damaged one of before counts no longer.
    fn forget_damaged(&mut self, header: &RecordHeader) {
        let group_of = |partition| self.index.group_of(partition, header.hash);
        let is_it = |damaged: &Damaged| {
            damaged.hash == header.hash
                && group_of(damaged.partition) == group_of(header.partition)
                && damaged.kind == header.kind
                && damaged.timestamp == header.timestamp
                && damaged.fragment == fragment_of(header)
        };
        let index = self.index;
        self.report.damaged.retain(|damaged| {
            let is_it = is_it(damaged);
            if is_it {
                // Its entry may differ in what its body would have said.
                index.update(header.partition, header.hash, |entries| {
                    entries.retain(|entry| entry.place != damaged.place);
                });
            }
            !is_it
        });
    }

    fn end(&mut self, header: &RecordHeader) {
        let rules = self.config.rules;
        self.index.update(header.partition, header.hash, |entries| {
            rules.remove(entries, header.timestamp, fragment_of(header))
        });
    }

    /// The committer goes on in the volume that each class was in.
    fn log(&self, volumes: &Volumes, position: &Position) -> Log {
        let active = |class: Class| {
            let (_, volume) = self.last[class as usize].as_ref()?;
            volume.has_room().then(|| volume.clone())
        };
        let is_known = |volume: &Volume| {
            let mut known = position.volumes.iter();
            known.any(|v| (v.slot, v.epoch) == (volume.slot, volume.epoch))
        };
        let (prepared, used): (Vec<_>, Vec<_>) = volumes
            .all()
            .into_iter()
            .partition(|v| v.used() == FIRST_BATCH && !is_known(v));
        let mut log = Log {
            active: [active(Class::Fresh), active(Class::Kept)],
            prepared: Vec::new(),
            next_sequence: self.next_sequence,
            appended: self.replayed_bytes,
            batch_bytes: 0,
            horizon: used.iter().map(|volume| volume.id).max().unwrap_or(0),
            batch: None,
        };
        for volume in prepared {
            log.add_prepared(volume);
        }
        log
    }
}

/// Overwrites the remains of a torn batch. Nobody looks for them there now; but should a later batch
/// in that place be lost by the disk, they must not be taken for its records.
fn end_torn(volume: &Volume) -> std::io::Result<()> {
    let tail = volume.used();
    let len = (volume.size - tail).min(BATCH_MAX as u64) as usize;
    let bytes = volume.read(tail, len)?;
    let remains = |at: &usize| {
        let binding = Binding {
            epoch: volume.epoch,
            offset: tail + *at as u64,
        };
        let batch = || BatchHeader::parse(&bytes[*at..], binding.offset);
        RecordHeader::parse(&bytes[*at..], binding).is_ok()
            || batch().is_ok_and(|torn| torn.epoch == volume.epoch)
    };
    let last = (0..len).step_by(UNIT).rfind(remains);
    if let Some(last) = last {
        let mut zeros = Aligned::with_capacity(len);
        zeros.extend(&vec![0; last + 1]);
        zeros.pad(BLOCK);
        volume.file.write_durably(tail, &zeros)?;
    }
    Ok(())
}

/// A record of a removal, or of a fragment, is about that fragment.
fn fragment_of(header: &RecordHeader) -> Option<u16> {
    let is_of_one = header.kind == Kind::Data || header.kind.is_removal();
    header.fragment.filter(|_| is_of_one)
}

fn place_of(volume: &Volume, at: u64, header: &RecordHeader) -> Place {
    Place {
        slot: volume.slot,
        offset: at,
        len: header.record_len() as u32,
    }
}

/// Counts the bytes of all entries.
fn settle(volumes: &Volumes, index: &Index) {
    let mut live = BTreeMap::<u16, u64>::new();
    index.visit(|entry| *live.entry(entry.place.slot).or_default() += u64::from(entry.place.len));
    for (slot, bytes) in live {
        if let Some(volume) = volumes.get(slot) {
            volume.add_live(bytes);
        }
    }
}
