//! The bytes of a volume: its header, batches, and the records in them.
//!
//! ```text
//! volume   4 KiB: a header of 64 bytes, zeros │ batch │ batch │ …        batches begin at 4 KiB steps
//! batch    header, 64 bytes │ record │ record │ … │ zeros to the next 4 KiB
//! record   header, 64 bytes │ name │ metadata │ body │ zeros to the next 64 bytes
//! ```
//!
//! All numbers are little-endian. Every checksum is a CRC-32 (that of zlib, which the rest of the
//! engine uses for content too). Those of headers begin with the volume's epoch and the header's
//! own offset, so that a header from an earlier use of the file, or one that a disk wrote to the
//! wrong place, is never taken for one that belongs where it is. The epoch is a random number that
//! no client can guess: a body cannot pose as a batch.
//!
//! `docs/pebbles-format.md` has the tables. Pure: bytes in, values out, everything bounded.

use std::ops::Range;

use cairn_types::timestamp::MAX_TICKS;
use cairn_types::{ObjectHash, Timestamp};
use thiserror::Error;

mod bytes;
mod scan;
use bytes::{Fields, put};
pub use scan::{Found, records};

/// Records begin at multiples of this, and so does every header.
pub const UNIT: usize = 64;
/// Batches begin at multiples of this: a disk's sector, and the kernel's page.
pub const BLOCK: usize = 4096;
/// The first batch's offset.
pub const FIRST_BATCH: u64 = BLOCK as u64;
/// Larger bodies are files of their own.
pub const BODY_MAX: usize = 1 << 20;
pub const METADATA_MAX: usize = 1 << 20;
pub const NAME_MAX: usize = u16::MAX as usize;
pub const RECORD_MAX: usize = UNIT + NAME_MAX + METADATA_MAX + BODY_MAX + UNIT;
/// Bytes after which a batch takes no further record.
pub const BATCH_SOFT_MAX: usize = 1 << 20;
pub const BATCH_MAX: usize = 4 << 20;
const _: () = assert!(UNIT + BATCH_SOFT_MAX + RECORD_MAX + BLOCK <= BATCH_MAX);
/// The largest volume: offsets in the index are 24 bits of units.
pub const VOLUME_MAX: u64 = 1 << 30;
/// The smallest in which batches of any size are at home.
pub const VOLUME_MIN: u64 = 16 << 20;

const VERSION: u8 = 1;
const VOLUME_MAGIC: u64 = u64::from_le_bytes(*b"CAIRNVOL");
const BATCH_MAGIC: u32 = u32::from_le_bytes(*b"PBAT");
const RECORD_MAGIC: u16 = u16::from_le_bytes(*b"Pb");
const NO_FRAGMENT: u16 = u16::MAX;
/// Flags share a word with the ticks of a timestamp, which need 50 bits.
const DURABLE: u64 = 1 << 63;
const EXTERNAL: u64 = 1 << 62;
const OWES_ROW: u64 = 1 << 61;
const LASTING: u64 = 1 << 60;
const TICKS: u64 = (1 << 50) - 1;
const _: () = assert!(MAX_TICKS <= TICKS);

/// Why bytes are not the header they should be.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum FormatError {
    #[error("cut short")]
    Short,
    #[error("no header")]
    Magic,
    #[error("format version {0}, and this program knows 1")]
    Version(u8),
    #[error("checksum mismatch")]
    Checksum,
    #[error("a field is out of range")]
    Range,
}

/// The place that a header's checksum binds it to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    pub epoch: u64,
    /// Offset in the volume.
    pub offset: u64,
}

impl Binding {
    fn checksum(self, header: &[u8]) -> u32 {
        let mut crc = crc32fast::Hasher::new();
        crc.update(&self.epoch.to_le_bytes());
        crc.update(&self.offset.to_le_bytes());
        crc.update(header);
        crc.finalize()
    }

    /// Seals a header whose last four bytes are for the checksum.
    fn seal(self, header: &mut [u8; UNIT]) {
        let crc = self.checksum(&header[..UNIT - 4]);
        put(header, UNIT - 4, &crc.to_le_bytes());
    }

    fn check(self, header: &[u8; UNIT]) -> Result<(), FormatError> {
        let stored = Fields(header).u32(UNIT - 4);
        match self.checksum(&header[..UNIT - 4]) == stored {
            true => Ok(()),
            false => Err(FormatError::Checksum),
        }
    }
}

fn header_of(bytes: &[u8]) -> Result<&[u8; UNIT], FormatError> {
    bytes.first_chunk().ok_or(FormatError::Short)
}

/// A volume's first 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeHeader {
    /// Counts uses of files as volumes, upwards: the order in which volumes came into use.
    pub id: u64,
    pub epoch: u64,
    pub size: u64,
}

impl VolumeHeader {
    /// `offset`: 0, or that of the copy at the volume's end.
    pub fn to_bytes(self, offset: u64) -> [u8; UNIT] {
        let mut bytes = [0; UNIT];
        put(&mut bytes, 0, &VOLUME_MAGIC.to_le_bytes());
        bytes[8] = VERSION;
        put(&mut bytes, 16, &self.id.to_le_bytes());
        put(&mut bytes, 24, &self.epoch.to_le_bytes());
        put(&mut bytes, 32, &self.size.to_le_bytes());
        let epoch = self.epoch;
        Binding { epoch, offset }.seal(&mut bytes);
        bytes
    }

    /// Parses and checks a volume's header. `offset`: in the volume, of these bytes.
    ///
    /// # Errors
    /// `Short` or `Magic` for bytes that are none, `Checksum` for a damaged header, `Version` for
    /// one of another format.
    pub fn parse(bytes: &[u8], offset: u64) -> Result<Self, FormatError> {
        let bytes = header_of(bytes)?;
        let fields = Fields(bytes);
        if fields.u64(0) != VOLUME_MAGIC {
            return Err(FormatError::Magic);
        }
        let epoch = fields.u64(24);
        // Later formats have it too: a damaged version is none of theirs.
        Binding { epoch, offset }.check(bytes)?;
        if bytes[8] != VERSION {
            return Err(FormatError::Version(bytes[8]));
        }
        Ok(VolumeHeader {
            id: fields.u64(16),
            epoch,
            size: fields.u64(32),
        })
    }
}

/// The volumes a batch is written to. Records that outlive their first volume are apart from new
/// ones: volumes then tend to be either soon empty, or long full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Class {
    Fresh = 0,
    /// Moved by compaction.
    Kept = 1,
}

/// The header of records that were written, and are durable, together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// The volume's.
    pub id: u64,
    pub epoch: u64,
    /// The first record's number in the order of all records of the device; the others follow.
    pub sequence: u64,
    pub count: u32,
    /// Bytes of the batch with this header and its padding.
    pub len: u32,
    pub class: Class,
    /// Rows of records with lower numbers are durable in their containers' databases, or kept for later.
    pub owed_from: u64,
}

impl BatchHeader {
    pub fn to_bytes(self, offset: u64) -> [u8; UNIT] {
        let mut bytes = [0; UNIT];
        put(&mut bytes, 0, &BATCH_MAGIC.to_le_bytes());
        bytes[4] = VERSION;
        bytes[5] = self.class as u8;
        put(&mut bytes, 8, &self.id.to_le_bytes());
        put(&mut bytes, 16, &self.epoch.to_le_bytes());
        put(&mut bytes, 24, &self.sequence.to_le_bytes());
        put(&mut bytes, 32, &self.count.to_le_bytes());
        put(&mut bytes, 36, &self.len.to_le_bytes());
        put(&mut bytes, 40, &self.owed_from.to_le_bytes());
        let epoch = self.epoch;
        Binding { epoch, offset }.seal(&mut bytes);
        bytes
    }

    /// `offset`: in the volume, of these bytes.
    ///
    /// # Errors
    /// `Short` or `Magic` for bytes that are none, `Checksum` or `Range` for a damaged header, `Version` for one of
    /// another format.
    pub fn parse(bytes: &[u8], offset: u64) -> Result<Self, FormatError> {
        let bytes = header_of(bytes)?;
        let fields = Fields(bytes);
        if fields.u32(0) != BATCH_MAGIC {
            return Err(FormatError::Magic);
        }
        // Later formats have these too: a damaged version is none of theirs.
        let epoch = fields.u64(16);
        Binding { epoch, offset }.check(bytes)?;
        if bytes[4] != VERSION {
            return Err(FormatError::Version(bytes[4]));
        }
        let header = BatchHeader {
            id: fields.u64(8),
            epoch,
            sequence: fields.u64(24),
            count: fields.u32(32),
            len: fields.u32(36),
            class: match bytes[5] {
                0 => Class::Fresh,
                _ => Class::Kept,
            },
            owed_from: fields.u64(40),
        };
        let len = header.len as usize;
        let holds = len / UNIT;
        let is_sound = len.is_multiple_of(BLOCK)
            && (BLOCK..=BATCH_MAX).contains(&len)
            && (1..holds).contains(&(header.count as usize))
            && header.sequence.checked_add(header.count.into()).is_some();
        match is_sound {
            true => Ok(header),
            false => Err(FormatError::Range),
        }
    }
}

/// The epoch in a batch's header of any format.
pub fn epoch_of(batch: &[u8]) -> Option<u64> {
    batch
        .first_chunk::<UNIT>()
        .map(|bytes| Fields(bytes).u64(16))
}

/// The meaning of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// An object, or a fragment of one: metadata and body.
    Data = 1,
    /// Metadata of a POST. Its body is the content type's time in ticks, 0 where it says none.
    Meta = 2,
    /// A tombstone. Its body, as that of the next two, is its horizon (`compaction.rs`).
    Tombstone = 3,
    /// The fragments of a time have become durable.
    Durable = 4,
    /// An object is gone from this device without having been deleted: it was handed over.
    Removed = 5,
    /// The same of one that was found broken; its metadata says why.
    Quarantined = 6,
}

impl Kind {
    const ALL: [Kind; 6] = [
        Kind::Data,
        Kind::Meta,
        Kind::Tombstone,
        Kind::Durable,
        Kind::Removed,
        Kind::Quarantined,
    ];

    /// A record that ends others and is in no index.
    pub const fn is_removal(self) -> bool {
        matches!(self, Kind::Removed | Kind::Quarantined)
    }

    fn body_is(self, len: u32, is_external: bool) -> bool {
        match self {
            Kind::Data if is_external => len == 8,
            Kind::Data => len as usize <= BODY_MAX,
            Kind::Durable => len == 0,
            Kind::Meta | Kind::Tombstone | Kind::Removed | Kind::Quarantined => len == 8,
        }
    }
}

/// A record's first 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    pub kind: Kind,
    pub partition: u32,
    pub hash: ObjectHash,
    pub timestamp: Timestamp,
    /// Index of a fragment of an erasure-coded object.
    pub fragment: Option<u16>,
    /// A fragment that counts at once.
    pub is_durable: bool,
    /// The content is a file of its own, and the body its number.
    pub is_external: bool,
    /// Its container's row may be in memory alone.
    pub owes_row: bool,
    /// An object whose metadata says no time at which it expires.
    pub is_lasting: bool,
    pub name_len: u16,
    pub metadata_len: u32,
    pub body_len: u32,
    /// CRC-32 of name and metadata.
    pub head_crc: u32,
    pub body_crc: u32,
}

impl RecordHeader {
    pub fn to_bytes(self, binding: Binding) -> [u8; UNIT] {
        let mut bytes = [0; UNIT];
        put(&mut bytes, 0, &RECORD_MAGIC.to_le_bytes());
        bytes[2] = VERSION;
        bytes[3] = self.kind as u8;
        let fragment = self.fragment.unwrap_or(NO_FRAGMENT);
        put(&mut bytes, 4, &fragment.to_le_bytes());
        put(&mut bytes, 6, &self.name_len.to_le_bytes());
        put(&mut bytes, 8, &self.hash.0);
        let flag = |is_set: bool, flag: u64| if is_set { flag } else { 0 };
        let flags = flag(self.is_durable, DURABLE)
            | flag(self.is_external, EXTERNAL)
            | flag(self.owes_row, OWES_ROW)
            | flag(self.is_lasting, LASTING);
        let ticks = self.timestamp.ticks() | flags;
        put(&mut bytes, 24, &ticks.to_le_bytes());
        put(&mut bytes, 32, &self.timestamp.offset().to_le_bytes());
        put(&mut bytes, 40, &self.partition.to_le_bytes());
        put(&mut bytes, 44, &self.metadata_len.to_le_bytes());
        put(&mut bytes, 48, &self.body_len.to_le_bytes());
        put(&mut bytes, 52, &self.head_crc.to_le_bytes());
        put(&mut bytes, 56, &self.body_crc.to_le_bytes());
        binding.seal(&mut bytes);
        bytes
    }

    /// Parses and checks a record's header. `binding` is its place.
    ///
    /// # Errors
    /// `Short` or `Magic` for bytes that are none, `Checksum` or `Range` for a damaged header, `Version` for one of
    /// another format.
    pub fn parse(bytes: &[u8], binding: Binding) -> Result<Self, FormatError> {
        let bytes = header_of(bytes)?;
        let fields = Fields(bytes);
        if fields.u16(0) != RECORD_MAGIC {
            return Err(FormatError::Magic);
        }
        binding.check(bytes)?;
        if bytes[2] != VERSION {
            return Err(FormatError::Version(bytes[2]));
        }
        let mut kinds = Kind::ALL.into_iter();
        let kind = kinds.find(|kind| *kind as u8 == bytes[3]);
        let word = fields.u64(24);
        let fragment = fields.u16(4);
        let hash = bytes[8..24].first_chunk().ok_or(FormatError::Short)?;
        let header = RecordHeader {
            kind: kind.ok_or(FormatError::Range)?,
            partition: fields.u32(40),
            hash: ObjectHash(*hash),
            timestamp: Timestamp::from_ticks(word & TICKS).with_offset(fields.u64(32)),
            fragment: (fragment != NO_FRAGMENT).then_some(fragment),
            is_durable: word & DURABLE != 0,
            is_external: word & EXTERNAL != 0,
            owes_row: word & OWES_ROW != 0,
            is_lasting: word & LASTING != 0,
            name_len: fields.u16(6),
            metadata_len: fields.u32(44),
            body_len: fields.u32(48),
            head_crc: fields.u32(52),
            body_crc: fields.u32(56),
        };
        let is_sound = word & !(TICKS | DURABLE | EXTERNAL | OWES_ROW | LASTING) == 0
            && word & TICKS <= MAX_TICKS
            && header.metadata_len as usize <= METADATA_MAX
            && header.kind.body_is(header.body_len, header.is_external);
        match is_sound {
            true => Ok(header),
            false => Err(FormatError::Range),
        }
    }

    /// Bytes of the record with its header and padding.
    pub fn record_len(&self) -> usize {
        self.body().end.next_multiple_of(UNIT)
    }

    /// Positions in the record.
    pub fn name(&self) -> Range<usize> {
        UNIT..UNIT + usize::from(self.name_len)
    }

    pub fn metadata(&self) -> Range<usize> {
        let from = self.name().end;
        from..from + self.metadata_len as usize
    }

    pub fn body(&self) -> Range<usize> {
        let from = self.metadata().end;
        from..from + self.body_len as usize
    }

    /// Whether name and metadata of a record are those that were written.
    pub fn head_is_sound(&self, record: &[u8]) -> bool {
        let head = record.get(UNIT..self.metadata().end);
        head.is_some_and(|head| crc32fast::hash(head) == self.head_crc)
    }

    /// The same of its body.
    pub fn body_is_sound(&self, record: &[u8]) -> bool {
        let body = record.get(self.body());
        body.is_some_and(|body| crc32fast::hash(body) == self.body_crc)
    }
}

/// A record to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRecord {
    pub kind: Kind,
    pub partition: u32,
    pub hash: ObjectHash,
    pub timestamp: Timestamp,
    pub fragment: Option<u16>,
    pub is_durable: bool,
    pub is_external: bool,
    /// Its container's row may be in memory alone, and is made from it after a crash.
    pub owes_row: bool,
    /// An object whose metadata says no time at which it expires.
    pub is_lasting: bool,
    pub name: ::bytes::Bytes,
    pub metadata: ::bytes::Bytes,
    pub body: ::bytes::Bytes,
}

impl NewRecord {
    /// Its header; `None`: a part is longer than the format allows.
    pub fn header(&self) -> Option<RecordHeader> {
        let mut head = crc32fast::Hasher::new();
        head.update(&self.name);
        head.update(&self.metadata);
        let header = RecordHeader {
            kind: self.kind,
            partition: self.partition,
            hash: self.hash,
            timestamp: self.timestamp,
            fragment: self.fragment,
            is_durable: self.is_durable,
            is_external: self.is_external,
            owes_row: self.owes_row,
            is_lasting: self.is_lasting,
            name_len: u16::try_from(self.name.len()).ok()?,
            metadata_len: u32::try_from(self.metadata.len()).ok()?,
            body_len: u32::try_from(self.body.len()).ok()?,
            head_crc: head.finalize(),
            body_crc: crc32fast::hash(&self.body),
        };
        let fits = self.metadata.len() <= METADATA_MAX
            && self.fragment != Some(NO_FRAGMENT)
            && self.kind.body_is(header.body_len, self.is_external);
        fits.then_some(header)
    }

    /// Appends the record at `binding.offset`.
    pub fn append(&self, header: &RecordHeader, binding: Binding, to: &mut Vec<u8>) {
        let start = to.len();
        to.extend_from_slice(&header.to_bytes(binding));
        to.extend_from_slice(&self.name);
        to.extend_from_slice(&self.metadata);
        to.extend_from_slice(&self.body);
        to.resize(start + header.record_len(), 0);
    }
}

/// The number that a record of eight bytes of body holds: a content type's ticks, or a horizon.
pub fn number(body: &[u8]) -> u64 {
    body.first_chunk()
        .map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(any(test, fuzzing))]
pub mod fuzzing;
#[cfg(test)]
mod tests;
