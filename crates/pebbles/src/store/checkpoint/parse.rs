//! Reading a checkpoint: chunk by chunk, each checked before anything of it is believed.

use cairn_disk::owed::Owed;
use cairn_types::timestamp::MAX_TICKS;
use cairn_types::{ObjectHash, Timestamp};
use thiserror::Error;

use super::{
    CHANGED, CHUNK_MAX, EXTERNAL, FRAME, HEADER, LASTING, LISTED, MAGIC, OWED, SIMPLE, Seal,
    TOMBSTONE, VERSION, VOLUME, VolumeState,
};
use crate::format::Class;
use crate::medium::MediumFile;
use crate::object::{Entry, EntryKind};
use crate::place::{PLACE_BITS, Place};
use crate::volume::Written;

#[derive(Debug, Error)]
pub(crate) enum ParseError {
    #[error("cut short")]
    Short,
    #[error("no checkpoint, or of another version")]
    Magic,
    #[error("checksum mismatch at {0}")]
    Checksum(u64),
    #[error("a field is out of range at {0}")]
    Range(u64),
    #[error("read: {0}")]
    Io(#[from] std::io::Error),
}

/// A part of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Chunk<'a> {
    Objects(Rows<'a>),
    /// Begins what changed since, up to the next end; the number that stands in it.
    Since(u64),
    Changes(Changes<'a>),
    Volumes(Vec<VolumeState>),
    /// Rows that are owed of what is in front, in the order of their numbers.
    Owed(Vec<Owed>),
    End {
        next_sequence: u64,
    },
}

/// Entries of objects of one group, as they lie in the file; each was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows<'a> {
    pub(crate) group: u32,
    /// Each is the only one of its object, and a slot of the index.
    pub(crate) is_simple: bool,
    bytes: &'a [u8],
}

impl<'a> Rows<'a> {
    /// `None`: a row is not what was ever written.
    fn checked(group: u32, is_simple: bool, bytes: &'a [u8]) -> Option<Self> {
        let rows = Rows {
            group,
            is_simple,
            bytes,
        };
        rows.parsed().all(|row| row.is_some()).then_some(rows)
    }

    fn parsed(self) -> impl Iterator<Item = Option<(ObjectHash, Entry)>> {
        let size = if self.is_simple { SIMPLE } else { LISTED };
        let rows = self.bytes.chunks(size);
        rows.map(move |row| match self.is_simple {
            true => entry(row, true),
            false => listed(row),
        })
    }

    pub(crate) fn entries(self) -> impl Iterator<Item = (ObjectHash, Entry)> {
        self.parsed().flatten()
    }
}

/// Objects that changed, as they lie in the file; each was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Changes<'a> {
    bytes: &'a [u8],
}

/// An object, and one of the entries that it has; `None`: it has none.
pub(crate) type Change = (u32, ObjectHash, Option<Entry>);

impl<'a> Changes<'a> {
    /// `None`: a row is not what was ever written.
    fn checked(bytes: &'a [u8]) -> Option<Self> {
        let changes = Changes { bytes };
        changes.parsed().all(|row| row.is_some()).then_some(changes)
    }

    fn parsed(self) -> impl Iterator<Item = Option<Change>> {
        self.bytes.chunks(CHANGED).map(|row| {
            let (group, row) = (u32_at(row, 0)?, row.get(4..)?);
            match row.get(48)? {
                0 => Some((group, hash(row)?, None)),
                _ => listed(row).map(|(hash, entry)| (group, hash, Some(entry))),
            }
        })
    }

    /// The rows; those of one object are all in one chunk, one after the other.
    pub(crate) fn rows(self) -> impl Iterator<Item = Change> {
        self.parsed().flatten()
    }
}

impl Chunk<'_> {
    pub(super) const SIMPLE: u32 = 1;
    pub(super) const LISTED: u32 = 2;
    pub(super) const VOLUMES: u32 = 3;
    pub(super) const END: u32 = 4;
    pub(super) const SINCE: u32 = 5;
    pub(super) const CHANGES: u32 = 6;
    pub(super) const OWED: u32 = 7;
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

/// The generation of a checkpoint, by its header alone.
pub(super) fn generation_of(file: &dyn MediumFile) -> Result<u64, ParseError> {
    let mut header = [0; HEADER];
    if file.read_at(0, &mut header)? < HEADER {
        return Err(ParseError::Short);
    }
    let field = |at| u64_at(&header, at).ok_or(ParseError::Short);
    if field(0)? != MAGIC || !(1..=VERSION).contains(&field(8)?) {
        return Err(ParseError::Magic);
    }
    if u64::from(crc32fast::hash(&header[..24])) != field(24)? {
        return Err(ParseError::Checksum(0));
    }
    field(16)
}

/// The parts of a checkpoint that a walk found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Walked {
    pub(super) generation: u64,
    /// Bytes up to its first end, and up to the last.
    pub(super) whole: u64,
    pub(super) all: u64,
}

/// Goes through a checkpoint up to its last end, at most up to `until`. What `visit` sees behind the last
/// [`Chunk::End`] is of changes that are cut short, and does not count.
pub(super) fn walk(
    file: &dyn MediumFile,
    until: u64,
    mut visit: impl FnMut(Chunk<'_>),
) -> Result<Walked, ParseError> {
    let generation = generation_of(file)?;
    let mut seal = Seal {
        generation,
        since: None,
    };
    let mut at = HEADER as u64;
    let mut payload = Vec::new();
    let mut walked: Option<Walked> = None;
    let mut covered = 0;
    while at < until {
        let (len, chunk) = match read_chunk(file, at, seal, &mut payload) {
            Ok(read) => read,
            Err(error) => return walked.ok_or(error),
        };
        at += len;
        match chunk {
            // Changes of before: what was in front of them was damaged, and written over.
            Chunk::Since(number) if number < covered => break,
            Chunk::Since(number) => seal.since = Some(number),
            Chunk::End { next_sequence } => {
                covered = next_sequence;
                let whole = walked.map_or(at, |walked| walked.whole);
                walked = Some(Walked {
                    generation,
                    whole,
                    all: at,
                });
                seal.since = None;
            }
            // Nothing is between an end and the changes that follow.
            _ if walked.is_some() && seal.since.is_none() => break,
            _ => {}
        }
        visit(chunk);
    }
    walked.ok_or(ParseError::Short)
}

/// A chunk, and its length with its frame.
fn read_chunk<'a>(
    file: &dyn MediumFile,
    at: u64,
    seal: Seal,
    payload: &'a mut Vec<u8>,
) -> Result<(u64, Chunk<'a>), ParseError> {
    let mut frame = [0; FRAME];
    if file.read_at(at, &mut frame)? < FRAME {
        return Err(ParseError::Short);
    }
    let kind = u32_at(&frame, 0).ok_or(ParseError::Short)?;
    let len = u32_at(&frame, 4).ok_or(ParseError::Short)? as usize;
    if len > CHUNK_MAX {
        return Err(ParseError::Range(at));
    }
    payload.resize(len, 0);
    if file.read_at(at + FRAME as u64, payload)? < len {
        return Err(ParseError::Short);
    }
    let stored = u64_at(&frame, 8).ok_or(ParseError::Short)?;
    if u64::from(seal.crc(kind, payload)) != stored {
        return Err(ParseError::Checksum(at));
    }
    let chunk = parse_chunk(kind, payload).ok_or(ParseError::Range(at))?;
    Ok(((FRAME + len) as u64, chunk))
}

/// `None`: not what was ever written.
pub(crate) fn parse_chunk(kind: u32, payload: &[u8]) -> Option<Chunk<'_>> {
    let (group, rest) = match kind {
        Chunk::SIMPLE | Chunk::LISTED => (u32_at(payload, 0)?, payload.get(4..)?),
        _ => (0, payload),
    };
    let size = match kind {
        Chunk::SIMPLE => SIMPLE,
        Chunk::LISTED => LISTED,
        Chunk::VOLUMES => VOLUME,
        Chunk::CHANGES => CHANGED,
        Chunk::OWED => OWED,
        Chunk::END if payload.len() == 8 => {
            let next_sequence = u64_at(payload, 0)?;
            return Some(Chunk::End { next_sequence });
        }
        Chunk::SINCE if payload.len() == 8 => return u64_at(payload, 0).map(Chunk::Since),
        _ => return None,
    };
    if !rest.len().is_multiple_of(size) {
        return None;
    }
    match kind {
        Chunk::VOLUMES => {
            let volumes = rest.chunks(size).map(volume);
            Some(Chunk::Volumes(volumes.collect::<Option<_>>()?))
        }
        Chunk::OWED => {
            let rows = rest.chunks(size).map(owed);
            Some(Chunk::Owed(rows.collect::<Option<_>>()?))
        }
        Chunk::CHANGES => Changes::checked(rest).map(Chunk::Changes),
        _ => Rows::checked(group, kind == Chunk::SIMPLE, rest).map(Chunk::Objects),
    }
}

fn hash(row: &[u8]) -> Option<ObjectHash> {
    Some(ObjectHash(*row.first_chunk()?))
}

fn ticks(row: &[u8], at: usize) -> Option<Timestamp> {
    let ticks = u64_at(row, at)?;
    (ticks <= MAX_TICKS).then(|| Timestamp::from_ticks(ticks))
}

fn entry(row: &[u8], is_simple: bool) -> Option<(ObjectHash, Entry)> {
    let word = u64_at(row, 16)?;
    if word >> PLACE_BITS > 7 || (is_simple && word & EXTERNAL != 0) {
        return None;
    }
    let entry = Entry {
        kind: match word & TOMBSTONE {
            0 => EntryKind::Data,
            _ => EntryKind::Tombstone,
        },
        timestamp: ticks(row, 24)?,
        content_type: None,
        external: None,
        is_lasting: word & LASTING != 0,
        place: Place::unpack(word),
    };
    Some((hash(row)?, entry))
}

fn listed(row: &[u8]) -> Option<(ObjectHash, Entry)> {
    let (hash, entry) = entry(row, false)?;
    let is_external = u64_at(row, 16)? & EXTERNAL != 0;
    let index = u16::from_le_bytes(*row.get(50..)?.first_chunk()?);
    let is_durable = *row.get(49)? != 0;
    let kind = match row.get(48)? {
        1 => EntryKind::Data,
        2 => EntryKind::Fragment { index, is_durable },
        3 => EntryKind::Meta,
        4 => EntryKind::Tombstone,
        5 => EntryKind::Durable,
        _ => return None,
    };
    let content_type = ticks(row, 40)?;
    let entry = Entry {
        kind,
        timestamp: entry.timestamp.with_offset(u64_at(row, 32)?),
        content_type: (!is_external && !content_type.is_zero()).then_some(content_type),
        external: is_external.then_some(content_type.ticks()),
        ..entry
    };
    Some((hash, entry))
}

fn owed(row: &[u8]) -> Option<Owed> {
    Some(Owed {
        number: u64_at(row, 0)?,
        hash: hash(row.get(8..)?)?,
        timestamp: ticks(row, 24)?.with_offset(u64_at(row, 32)?),
        partition: u32_at(row, 40)?,
    })
}

fn volume(row: &[u8]) -> Option<VolumeState> {
    let field = |number: usize| u64_at(row, 8 * number);
    Some(VolumeState {
        slot: u16::try_from(field(0)?).ok()?,
        epoch: field(1)?,
        used: field(2)?,
        written: Written {
            all: field(3)?,
            removals: field(4)?,
            tombstones: field(5)?,
            latest_tombstone: field(6)?,
        },
        class: match field(7)? {
            0 => None,
            1 => Some(Class::Fresh),
            2 => Some(Class::Kept),
            _ => return None,
        },
    })
}

#[cfg(any(test, fuzzing))]
pub mod fuzzing {
    /// A chunk of any kind, its checksum having matched.
    pub fn chunk(bytes: &[u8]) {
        if let Some((kind, payload)) = bytes.split_first() {
            let _ = super::parse_chunk(u32::from(*kind), payload);
        }
    }
}
