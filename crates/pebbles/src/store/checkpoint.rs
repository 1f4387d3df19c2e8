//! Checkpoints: the index in a file, so that a start reads only what was written since.
//!
//! ```text
//! checkpoint-0, checkpoint-1   written in turn: one is whole while the other is being written
//! header │ chunk │ … │ end │ since │ changes │ … │ end │ …     chunk: kind, length, checksum
//! ```
//!
//! What changed since is added to the file that is there, until that is half as long as the index was: so
//! a start reads little of the log, and a large index is seldom written whole. Changes that were cut short do
//! not count, nor does what is behind them.
//!
//! Writing one takes a while, and the index changes meanwhile. A checkpoint says up to where the log
//! was in it for certain when it was begun; all records behind that are applied again to whatever the
//! chunks hold of them. An entry of a volume that compaction has emptied since is not loaded: its
//! record is in the log once more, where it was moved to, or it went, and must end nothing that was
//! written since.

use std::io;
use std::sync::Arc;

use cairn_disk::owed::Owed;
use cairn_types::plant::Plant;
use cairn_types::{ObjectHash, Timestamp};

use crate::format::{Class, FIRST_BATCH};
use crate::medium::MediumFile;
use crate::object::{Entry, EntryKind, is_simple};
use crate::place::PLACE_BITS;
use crate::store::Store;
use crate::volume::{Volume, Written as VolumeWritten};

mod load;
mod parse;
pub(crate) use load::newest;
use parse::Chunk;
#[cfg(any(test, fuzzing))]
pub use parse::fuzzing;

const MAGIC: u64 = u64::from_le_bytes(*b"CAIRNCKP");
/// Objects are in the groups of the index. In the first version they were in partitions, which is taken too.
const VERSION: u64 = 2;
const HEADER: usize = 32;
const FRAME: usize = 16;
/// Entries of a chunk.
const CHUNK_ENTRIES: usize = 8192;
pub(crate) const CHUNK_MAX: usize = CHUNK_ENTRIES * LISTED + 4;
/// Bytes of a step, as a part of those of the log from one checkpoint to the next.
const STEPS_OF_LOG: u64 = 32;
/// Bytes of an entry by itself, of one of many, and of a volume.
const SIMPLE: usize = 32;
const LISTED: usize = 56;
const VOLUME: usize = 64;
/// Bytes of a changed object's entry, and of a row that is owed.
const CHANGED: usize = 4 + LISTED;
const OWED: usize = 48;

/// A volume as a checkpoint knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VolumeState {
    pub(crate) slot: u16,
    pub(crate) epoch: u64,
    pub(crate) used: u64,
    pub(crate) written: VolumeWritten,
    /// `None`: full.
    pub(crate) class: Option<Class>,
}

/// The position in the log that a checkpoint covers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) next_sequence: u64,
    pub(crate) volumes: Vec<VolumeState>,
}

impl Position {
    fn now(store: &Store) -> Self {
        // Under the committer's lock: no batch is between two of these volumes.
        let log = store.log();
        let mut volumes = Vec::new();
        for volume in store.volumes.all() {
            let is_same = |of: &Arc<Volume>| of.slot == volume.slot;
            // One that nothing was written to yet is read from its beginning.
            if volume.used() == FIRST_BATCH || log.prepared.iter().any(is_same) {
                continue;
            }
            let classes = [Class::Fresh, Class::Kept].into_iter();
            let mut classes = classes.zip(&log.active);
            let class = classes.find(|(_, active)| active.as_ref().is_some_and(is_same));
            volumes.push(VolumeState {
                slot: volume.slot,
                epoch: volume.epoch,
                used: volume.used(),
                written: volume.written(),
                class: class.map(|(class, _)| class),
            });
        }
        Position {
            next_sequence: log.next_sequence,
            volumes,
        }
    }
}

/// The last checkpoint that is whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) generation: u64,
    /// Bytes without the changes that were added, and with them.
    pub(crate) whole_bytes: u64,
    pub(crate) bytes: u64,
    /// Bytes that had been appended to the log when it was begun, or its last changes were.
    pub(crate) appended: u64,
}

impl Written {
    /// Whether changes can be added to it and are worth it: the file is read at a start.
    pub(crate) fn takes_changes(&self) -> bool {
        let added = self.bytes - self.whole_bytes;
        self.generation > 0 && added < self.whole_bytes / 2
    }
}

/// The generation and number that the checksums of chunks are bound to, beside their bytes.
#[derive(Clone, Copy)]
struct Seal {
    generation: u64,
    /// The next record's number when these changes were begun. So what is left behind them of longer ones
    /// that were cut short is not taken for theirs.
    since: Option<u64>,
}

impl Seal {
    fn crc(self, kind: u32, payload: &[u8]) -> u32 {
        let mut crc = crc32fast::Hasher::new();
        crc.update(&self.generation.to_le_bytes());
        if let Some(number) = self.since {
            crc.update(&number.to_le_bytes());
        }
        crc.update(&kind.to_le_bytes());
        crc.update(payload);
        crc.finalize()
    }
}

fn file_name(generation: u64) -> String {
    format!("checkpoint-{}", generation % 2)
}

/// A checkpoint that is being written, or changes that are added to the last one.
pub struct Writer {
    store: Arc<Store>,
    file: Arc<dyn MediumFile>,
    seal: Seal,
    /// Bytes without changes, where it is of changes.
    whole_bytes: Option<u64>,
    position: Position,
    appended: u64,
    groups: std::vec::IntoIter<u32>,
    at: u64,
    buffer: Vec<u8>,
}

impl Writer {
    /// Begins the next checkpoint: changes of the last one, or all over the last but one.
    ///
    /// # Errors
    /// Its file cannot be created, opened or written.
    pub fn begin(store: &Arc<Store>) -> io::Result<Self> {
        let written = *store.checkpoints.lock();
        let appended = store.log().appended;
        let position = Position::now(store);
        // After the position: what changed before is known, or comes behind it in the log.
        let changed = store.index.take_changed();
        match changed.filter(|_| written.takes_changes()) {
            Some(changed) => Self::begin_changes(store, written, (position, appended), &changed),
            None => Self::begin_whole(store, written, (position, appended)),
        }
        .inspect_err(|_| store.index.forget_changes())
    }

    fn begin_whole(
        store: &Arc<Store>,
        written: Written,
        (position, appended): (Position, u64),
    ) -> io::Result<Self> {
        let generation = written.generation + 1;
        let medium = store.volumes.medium();
        let file = medium.create(&file_name(generation), 0)?;
        let mut header = Vec::with_capacity(HEADER);
        header.extend(MAGIC.to_le_bytes());
        header.extend(VERSION.to_le_bytes());
        header.extend(generation.to_le_bytes());
        let crc = crc32fast::hash(&header);
        header.extend(u64::from(crc).to_le_bytes());
        Ok(Writer {
            store: store.clone(),
            file,
            seal: Seal {
                generation,
                since: None,
            },
            whole_bytes: None,
            position,
            appended,
            groups: store.index.groups().into_iter(),
            at: 0,
            buffer: header,
        })
    }

    fn begin_changes(
        store: &Arc<Store>,
        written: Written,
        (position, appended): (Position, u64),
        changed: &[(u32, ObjectHash)],
    ) -> io::Result<Self> {
        let file = store
            .volumes
            .medium()
            .open(&file_name(written.generation))?;
        let since = position.next_sequence;
        let mut writer = Writer {
            store: store.clone(),
            file,
            seal: Seal {
                generation: written.generation,
                since: None,
            },
            whole_bytes: Some(written.whole_bytes),
            position,
            appended,
            groups: Vec::new().into_iter(),
            at: written.bytes,
            buffer: Vec::new(),
        };
        writer.add(Chunk::SINCE, &since.to_le_bytes())?;
        writer.seal.since = Some(since);
        writer.add_changes(changed)?;
        Ok(writer)
    }

    /// Gives it up. Another one is all of the index.
    fn discard(&self) {
        self.store.index.forget_changes();
        if self.whole_bytes.is_some() {
            return;
        }
        let generation = self.seal.generation;
        let removed = self.store.volumes.medium().remove(&file_name(generation));
        if let Err(error) = removed {
            tracing::debug!(%error, generation, "a part of a checkpoint is left");
        }
    }

    /// Writes some of it; true when it is whole, and durable. One that failed is given up.
    ///
    /// # Errors
    /// Its file cannot be written or synced.
    pub fn step(&mut self) -> io::Result<bool> {
        let result = self.try_step();
        result.inspect_err(|_| self.discard())
    }

    fn try_step(&mut self) -> io::Result<bool> {
        // Beside clients a step waits for a thread of the device and for its share, up to 0.2 s. Meanwhile the
        // log grows by what a start reads.
        let most = self.store.config.checkpoint_bytes / STEPS_OF_LOG;
        let (from, had_groups) = (self.added(), !self.groups.as_slice().is_empty());
        while self.added() - from < most.max(1)
            && let Some(group) = self.groups.next()
        {
            self.add_group(group)?;
        }
        if had_groups {
            return Ok(false);
        }
        if Plant::CheckpointAhead.is_on() {
            self.position = Position::now(&self.store);
        }
        let position = std::mem::take(&mut self.position);
        for volumes in position.volumes.chunks(CHUNK_ENTRIES) {
            let mut payload = Vec::with_capacity(volumes.len() * VOLUME);
            for volume in volumes {
                write_volume(volume, &mut payload);
            }
            self.add(Chunk::VOLUMES, &payload)?;
        }
        self.add_owed(position.next_sequence)?;
        self.add(Chunk::END, &position.next_sequence.to_le_bytes())?;
        self.flush()?;
        self.file.sync()?;
        self.store.volumes.medium().sync_dir()?;
        *self.store.checkpoints.lock() = Written {
            generation: self.seal.generation,
            whole_bytes: self.whole_bytes.unwrap_or(self.at),
            bytes: self.at,
            appended: self.appended,
        };
        Ok(true)
    }

    /// Adds what objects have now, whatever of it is older than they changed.
    fn add_changes(&mut self, changed: &[(u32, ObjectHash)]) -> io::Result<()> {
        let mut payload = Vec::new();
        for (group, hash) in changed {
            if Plant::ChangesForgotten.is_on() && hash.0[0] % 8 == 0 {
                continue;
            }
            let entries = self.store.index.get(*group, *hash);
            // All of an object are in one chunk.
            if payload.len() + CHANGED * entries.len().max(1) > CHUNK_MAX {
                self.add(Chunk::CHANGES, &payload)?;
                payload.clear();
            }
            for entry in &entries {
                payload.extend(group.to_le_bytes());
                write_listed(*hash, entry, &mut payload);
            }
            if entries.is_empty() {
                payload.extend(group.to_le_bytes());
                payload.extend(hash.0);
                payload.extend([0; LISTED - 16]);
            }
        }
        self.add(Chunk::CHANGES, &payload)
    }

    /// Adds the rows that are owed of records below a number: after a crash their records are not looked at.
    fn add_owed(&mut self, below: u64) -> io::Result<()> {
        let owed = self.store.ledger.owed_below(below);
        for owed in owed.chunks(CHUNK_ENTRIES) {
            if Plant::CheckpointUnsettled.is_on() {
                break;
            }
            let mut payload = Vec::with_capacity(owed.len() * OWED);
            owed.iter().for_each(|row| write_owed(row, &mut payload));
            self.add(Chunk::OWED, &payload)?;
        }
        Ok(())
    }

    fn add_group(&mut self, group: u32) -> io::Result<()> {
        let objects = self.store.index.group_objects(group);
        let (simple, lists): (Vec<_>, Vec<_>) = objects
            .into_iter()
            .partition(|(_, entries)| entries.len() == 1 && is_simple(entries));
        for objects in simple.chunks(CHUNK_ENTRIES) {
            let mut payload = group.to_le_bytes().to_vec();
            for (hash, entries) in objects {
                payload.extend(hash.0);
                payload.extend(packed(&entries[0]).to_le_bytes());
                payload.extend(entries[0].timestamp.ticks().to_le_bytes());
            }
            self.add(Chunk::SIMPLE, &payload)?;
        }
        let listed = lists
            .iter()
            .flat_map(|(hash, list)| list.iter().map(move |e| (*hash, e)));
        let listed: Vec<_> = listed.collect();
        for entries in listed.chunks(CHUNK_ENTRIES) {
            let mut payload = group.to_le_bytes().to_vec();
            for (hash, entry) in entries {
                write_listed(*hash, entry, &mut payload);
            }
            self.add(Chunk::LISTED, &payload)?;
        }
        Ok(())
    }

    fn add(&mut self, kind: u32, payload: &[u8]) -> io::Result<()> {
        debug_assert!(payload.len() <= CHUNK_MAX);
        self.buffer.extend(kind.to_le_bytes());
        self.buffer.extend((payload.len() as u32).to_le_bytes());
        let crc = self.seal.crc(kind, payload);
        self.buffer.extend(u64::from(crc).to_le_bytes());
        self.buffer.extend(payload);
        match self.buffer.len() >= 1 << 20 {
            true => self.flush(),
            false => Ok(()),
        }
    }

    /// Bytes up to here.
    fn added(&self) -> u64 {
        self.at + self.buffer.len() as u64
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_at(self.at, &self.buffer)?;
        self.at += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

const TOMBSTONE: u64 = 1 << PLACE_BITS;
const EXTERNAL: u64 = 1 << (PLACE_BITS + 1);
const LASTING: u64 = 1 << (PLACE_BITS + 2);

fn packed(entry: &Entry) -> u64 {
    let flag = |is_set, flag| if is_set { flag } else { 0 };
    entry.place.pack()
        | flag(entry.kind == EntryKind::Tombstone, TOMBSTONE)
        | flag(entry.external.is_some(), EXTERNAL)
        | flag(entry.is_lasting, LASTING)
}

fn write_listed(hash: ObjectHash, entry: &Entry, to: &mut Vec<u8>) {
    let (kind, fragment, is_durable) = match entry.kind {
        EntryKind::Data => (1u8, 0, false),
        EntryKind::Fragment { index, is_durable } => (2, index, is_durable),
        EntryKind::Meta => (3, 0, false),
        EntryKind::Tombstone => (4, 0, false),
        EntryKind::Durable => (5, 0, false),
    };
    to.extend(hash.0);
    to.extend(packed(entry).to_le_bytes());
    to.extend(entry.timestamp.ticks().to_le_bytes());
    to.extend(entry.timestamp.offset().to_le_bytes());
    // Only metadata has a content type, only data is in a file.
    let content_type = entry.content_type.map_or(0, Timestamp::ticks);
    to.extend(entry.external.unwrap_or(content_type).to_le_bytes());
    to.extend([kind, u8::from(is_durable)]);
    to.extend(fragment.to_le_bytes());
    to.extend([0; 4]);
}

fn write_owed(owed: &Owed, to: &mut Vec<u8>) {
    to.extend(owed.number.to_le_bytes());
    to.extend(owed.hash.0);
    to.extend(owed.timestamp.ticks().to_le_bytes());
    to.extend(owed.timestamp.offset().to_le_bytes());
    to.extend(owed.partition.to_le_bytes());
    to.extend([0; 4]);
}

fn write_volume(volume: &VolumeState, to: &mut Vec<u8>) {
    let class: u64 = match volume.class {
        None => 0,
        Some(Class::Fresh) => 1,
        Some(Class::Kept) => 2,
    };
    let written = volume.written;
    let fields = [
        u64::from(volume.slot),
        volume.epoch,
        volume.used,
        written.all,
        written.removals,
        written.tombstones,
        written.latest_tombstone,
        class,
    ];
    to.extend(fields.iter().flat_map(|field| field.to_le_bytes()));
}

#[cfg(test)]
mod tests;
