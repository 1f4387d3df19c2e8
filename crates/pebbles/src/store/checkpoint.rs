//! Checkpoints: the index in a file, so that a start reads only what was written since.
//!
//! ```text
//! checkpoint-0, checkpoint-1   written in turn: one is whole while the other is being written
//! header │ chunk │ chunk │ …   chunk: kind, length, checksum (which the generation is part of)
//! ```
//!
//! Writing one takes a while, and the index changes meanwhile. A checkpoint says up to where the log
//! was in it for certain when it was begun; all records behind that are applied again to whatever the
//! chunks hold of them. An entry of a volume that compaction has emptied since is not loaded: its
//! record is in the log once more, where it was moved to, or it went, and must end nothing that was
//! written since.

use std::io;
use std::sync::Arc;

use cairn_types::plant::Plant;
use cairn_types::{ObjectHash, Timestamp};

use crate::format::{Class, FIRST_BATCH};
use crate::index::Index;
use crate::medium::{Medium, MediumFile};
use crate::object::{Entry, EntryKind, is_simple};
use crate::place::{PLACE_BITS, Place};
use crate::store::Store;
use crate::volume::{Volume, Written as VolumeWritten};

mod parse;
#[cfg(any(test, fuzzing))]
pub use parse::fuzzing;
#[cfg(test)]
use parse::parse_chunk;
use parse::{Chunk, ParseError};

const MAGIC: u64 = u64::from_le_bytes(*b"CAIRNCKP");
/// Objects are in the groups of the index. In the first version they were in partitions, which is taken too.
const VERSION: u64 = 2;
const HEADER: usize = 32;
const FRAME: usize = 16;
/// Entries of a chunk.
const CHUNK_ENTRIES: usize = 8192;
pub(crate) const CHUNK_MAX: usize = CHUNK_ENTRIES * LISTED + 4;
/// Bytes of an entry by itself, of one of many, and of a volume.
const SIMPLE: usize = 32;
const LISTED: usize = 56;
const VOLUME: usize = 64;

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
    pub(crate) bytes: u64,
    /// Bytes that had been appended to the log when it was begun.
    pub(crate) appended: u64,
}

fn file_name(generation: u64) -> String {
    format!("checkpoint-{}", generation % 2)
}

/// A checkpoint that is being written.
pub struct Writer {
    store: Arc<Store>,
    file: Arc<dyn MediumFile>,
    generation: u64,
    position: Position,
    appended: u64,
    groups: std::vec::IntoIter<u32>,
    at: u64,
    buffer: Vec<u8>,
}

impl Writer {
    /// Begins the next checkpoint, over the last but one.
    ///
    /// # Errors
    /// Its file cannot be created.
    pub fn begin(store: &Arc<Store>) -> io::Result<Self> {
        let generation = store.checkpoints.lock().generation + 1;
        let appended = store.log().appended;
        let position = Position::now(store);
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
            generation,
            position,
            appended,
            groups: store.index.groups().into_iter(),
            at: 0,
            buffer: header,
        })
    }

    /// Whether it is whole but for its end, which is written when no row is owed of what it covers: after
    /// a crash these are looked for behind it.
    pub fn waits_for_rows(&self) -> bool {
        let owed = self.store.ledger.mark();
        let is_behind = owed.is_some_and(|mark| mark < self.position.next_sequence);
        self.groups.as_slice().is_empty() && is_behind && !Plant::CheckpointUnsettled.is_on()
    }

    /// Removes the file of a checkpoint that was not completed.
    pub fn discard(store: &Store) {
        let generation = store.checkpoints.lock().generation + 1;
        let removed = store.volumes.medium().remove(&file_name(generation));
        if let Err(error) = removed {
            tracing::debug!(%error, generation, "a part of a checkpoint is left");
        }
    }

    /// Writes some of it; true when it is whole, and durable.
    ///
    /// # Errors
    /// Its file cannot be written or synced.
    pub fn step(&mut self) -> io::Result<bool> {
        if let Some(group) = self.groups.next() {
            self.add_group(group)?;
            return Ok(false);
        }
        if self.waits_for_rows() {
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
        self.add(Chunk::END, &position.next_sequence.to_le_bytes())?;
        self.flush()?;
        self.file.sync()?;
        self.store.volumes.medium().sync_dir()?;
        *self.store.checkpoints.lock() = Written {
            generation: self.generation,
            bytes: self.at,
            appended: self.appended,
        };
        Ok(true)
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
        let crc = chunk_crc(self.generation, kind, payload);
        self.buffer.extend(u64::from(crc).to_le_bytes());
        self.buffer.extend(payload);
        match self.buffer.len() >= 1 << 20 {
            true => self.flush(),
            false => Ok(()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_at(self.at, &self.buffer)?;
        self.at += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

fn chunk_crc(generation: u64, kind: u32, payload: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&generation.to_le_bytes());
    crc.update(&kind.to_le_bytes());
    crc.update(payload);
    crc.finalize()
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

/// A checkpoint that was found whole.
pub(crate) struct Found {
    file: Arc<dyn MediumFile>,
    pub(crate) written: Written,
    pub(crate) position: Position,
}

/// The newest checkpoint that is whole.
pub(crate) fn newest(medium: &dyn Medium) -> Option<Found> {
    let found = [0, 1].map(|generation| {
        let file = medium.open(&file_name(generation)).ok()?;
        let checked = check(&file);
        if let Err(error) = &checked {
            tracing::info!(%error, generation, "a checkpoint is not whole");
        }
        checked.ok()
    });
    found
        .into_iter()
        .flatten()
        .max_by_key(|found| found.written.generation)
}

fn check(file: &Arc<dyn MediumFile>) -> Result<Found, ParseError> {
    let mut position = Position::default();
    let mut ended = None;
    let (generation, bytes) = parse::walk(&**file, |chunk| match chunk {
        Chunk::Volumes(volumes) => position.volumes.extend(volumes),
        Chunk::End { next_sequence } => ended = Some(next_sequence),
        Chunk::Objects { .. } => {}
    })?;
    position.next_sequence = ended.ok_or(ParseError::Short)?;
    Ok(Found {
        file: file.clone(),
        written: Written {
            generation,
            bytes,
            appended: 0,
        },
        position,
    })
}

impl Found {
    /// Fills the index. `is_current`: whether a volume is still the one that entries were in.
    pub(crate) fn load(
        &self,
        index: &Index,
        is_current: impl Fn(Place) -> bool,
    ) -> Result<(), ParseError> {
        let mut loading: Option<(u32, Objects)> = None;
        parse::walk(&*self.file, |chunk| {
            let Chunk::Objects { group, entries } = chunk else {
                return;
            };
            if let Some((other, objects)) = loading.take_if(|(of, _)| *of != group) {
                index.load(other, objects);
            }
            let (_, objects) = loading.get_or_insert_with(|| (group, Vec::new()));
            for (hash, entry) in entries.into_iter().filter(|(_, e)| is_current(e.place)) {
                match objects.last_mut().filter(|(last, _)| *last == hash) {
                    Some((_, entries)) => entries.push(entry),
                    None => objects.push((hash, vec![entry])),
                }
            }
        })?;
        if let Some((group, objects)) = loading {
            index.load(group, objects);
        }
        Ok(())
    }
}

/// Objects of a group and what of them counts.
type Objects = Vec<(ObjectHash, Vec<Entry>)>;

#[cfg(test)]
mod tests;
