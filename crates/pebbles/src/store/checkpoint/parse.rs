//! Reading a checkpoint: chunk by chunk, each checked before anything of it is believed.

use cairn_types::timestamp::MAX_TICKS;
use cairn_types::{ObjectHash, Timestamp};
use thiserror::Error;

use super::{
    CHUNK_MAX, EXTERNAL, FRAME, HEADER, LASTING, LISTED, MAGIC, SIMPLE, TOMBSTONE, VERSION, VOLUME,
    VolumeState, chunk_crc,
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
pub(crate) enum Chunk {
    Objects {
        group: u32,
        entries: Vec<(ObjectHash, Entry)>,
    },
    Volumes(Vec<VolumeState>),
    End {
        next_sequence: u64,
    },
}

impl Chunk {
    pub(super) const SIMPLE: u32 = 1;
    pub(super) const LISTED: u32 = 2;
    pub(super) const VOLUMES: u32 = 3;
    pub(super) const END: u32 = 4;
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

/// Goes through a whole checkpoint; gives its generation and length.
pub(super) fn walk(
    file: &dyn MediumFile,
    mut visit: impl FnMut(Chunk),
) -> Result<(u64, u64), ParseError> {
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
    let generation = field(16)?;
    let mut at = HEADER as u64;
    let mut payload = Vec::new();
    loop {
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
        if file.read_at(at + FRAME as u64, &mut payload)? < len {
            return Err(ParseError::Short);
        }
        let stored = u64_at(&frame, 8).ok_or(ParseError::Short)?;
        if u64::from(chunk_crc(generation, kind, &payload)) != stored {
            return Err(ParseError::Checksum(at));
        }
        let chunk = parse_chunk(kind, &payload).ok_or(ParseError::Range(at))?;
        at += (FRAME + len) as u64;
        let is_end = matches!(chunk, Chunk::End { .. });
        visit(chunk);
        if is_end {
            return Ok((generation, at));
        }
    }
}

/// `None`: not what was ever written.
pub(crate) fn parse_chunk(kind: u32, payload: &[u8]) -> Option<Chunk> {
    let (group, rest) = match kind {
        Chunk::SIMPLE | Chunk::LISTED => (u32_at(payload, 0)?, payload.get(4..)?),
        _ => (0, payload),
    };
    let size = match kind {
        Chunk::SIMPLE => SIMPLE,
        Chunk::LISTED => LISTED,
        Chunk::VOLUMES => VOLUME,
        Chunk::END if payload.len() == 8 => {
            let next_sequence = u64_at(payload, 0)?;
            return Some(Chunk::End { next_sequence });
        }
        _ => return None,
    };
    if !rest.len().is_multiple_of(size) {
        return None;
    }
    let rows = rest.chunks(size);
    if kind == Chunk::VOLUMES {
        return Some(Chunk::Volumes(rows.map(volume).collect::<Option<_>>()?));
    }
    let entries = rows.map(|row| match kind {
        Chunk::SIMPLE => entry(row, true),
        _ => listed(row),
    });
    Some(Chunk::Objects {
        group,
        entries: entries.collect::<Option<_>>()?,
    })
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
