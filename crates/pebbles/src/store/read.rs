//! Reading records: one read of the disk each.

use bytes::Bytes;
use cairn_types::ObjectHash;

use super::Store;
use crate::error::{OtherFormat, ReadError, is_unreadable};
use crate::format::{BLOCK, Binding, FormatError, RecordHeader};
use crate::place::Place;
use crate::volume::{Volume, file_name};

/// A record that was read, every part of it held against its checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub header: RecordHeader,
    pub name: Bytes,
    pub metadata: Bytes,
    /// Empty where only the head was asked for.
    pub body: Bytes,
}

impl Store {
    /// A whole record.
    ///
    /// # Errors
    /// `Gone` if the record has moved or ended, `Damaged` for bad checksums or a lasting read
    /// error, `Unreadable` for a first one, `Io` for other errors.
    pub fn read(
        &self,
        partition: u32,
        hash: ObjectHash,
        place: Place,
    ) -> Result<Stored, ReadError> {
        self.read_part(partition, hash, place, true)
    }

    /// Name and metadata of a record.
    ///
    /// # Errors
    /// As [`Store::read`]; the body is not checked.
    pub fn read_head(
        &self,
        partition: u32,
        hash: ObjectHash,
        place: Place,
    ) -> Result<Stored, ReadError> {
        self.read_part(partition, hash, place, false)
    }

    fn read_part(
        &self,
        partition: u32,
        hash: ObjectHash,
        place: Place,
        is_whole: bool,
    ) -> Result<Stored, ReadError> {
        let volume = self.volumes.get(place.slot).ok_or(ReadError::Gone)?;
        let attempt = || match read_from(&volume, hash, place, is_whole) {
            Ok(read) => read.map_err(ReadError::Damaged),
            Err(error) if is_unreadable(&error) => Err(ReadError::Unreadable(error)),
            Err(error) => Err(ReadError::Io(error)),
        };
        match attempt() {
            Err(ReadError::Damaged(_) | ReadError::Unreadable(_)) => {}
            other => return other,
        }
        // Writes go past the kernel's cache: what is amiss in that alone is no damage.
        volume.file.forget(place.offset, place.len.into());
        let read = attempt();
        if read.is_err() && !self.is_at(partition, hash, place, &volume) {
            return Err(ReadError::Gone);
        }
        let now = (self.config.now)();
        let has_lasted = || {
            let errors = &self.config.read_errors;
            errors.has_lasted(volume.epoch, place.offset, now)
        };
        match read {
            Err(ReadError::Unreadable(error)) if has_lasted() => {
                Err(ReadError::Damaged(format!("it cannot be read: {error}")))
            }
            other => other,
        }
    }

    /// A whole record that lies in memory, without waiting; `None` where it does not.
    pub fn read_cached(&self, hash: ObjectHash, place: Place) -> Option<Stored> {
        let volume = self.volumes.get(place.slot)?;
        let mut bytes = vec![0; place.len as usize];
        let count = volume.file.read_cached(place.offset, &mut bytes).ok()?;
        if count < bytes.len() {
            return None;
        }
        // Anything amiss is for a read that may wait.
        parse(bytes, &volume, hash, place, true).ok()
    }

    /// Whether an object's record should be there: it has not moved, nor ended.
    fn is_at(&self, partition: u32, hash: ObjectHash, place: Place, volume: &Volume) -> bool {
        let mut entries = self.index.get(partition, hash).into_iter();
        let is_there = entries.any(|entry| entry.place == place);
        let is_same = self
            .volumes
            .get(place.slot)
            .is_some_and(|now| now.id == volume.id);
        is_there && is_same
    }
}

/// Reads a record, or the head of it, and holds it against its checksums.
fn read_from(
    volume: &Volume,
    hash: ObjectHash,
    place: Place,
    is_whole: bool,
) -> std::io::Result<Result<Stored, String>> {
    let len = place.len as usize;
    let first = match is_whole {
        true => len,
        false => len.min(BLOCK),
    };
    let mut bytes = volume.read(place.offset, first)?;
    let binding = Binding {
        epoch: volume.epoch,
        offset: place.offset,
    };
    if let Err(FormatError::Version(version)) = RecordHeader::parse(&bytes, binding) {
        // It is no damage.
        let name = file_name(volume.slot);
        return Err(OtherFormat { name, version }.into());
    }
    if let Ok(header) = header_of(&bytes, volume, hash, place)
        && header.metadata().end > first
    {
        bytes = volume.read(place.offset, header.metadata().end)?;
    }
    Ok(parse(bytes, volume, hash, place, is_whole))
}

fn header_of(
    bytes: &[u8],
    volume: &Volume,
    hash: ObjectHash,
    place: Place,
) -> Result<RecordHeader, String> {
    let binding = Binding {
        epoch: volume.epoch,
        offset: place.offset,
    };
    let header = RecordHeader::parse(bytes, binding);
    let header = header.map_err(|error| format!("record header: {error}"))?;
    match header.hash == hash && header.record_len() == place.len as usize {
        true => Ok(header),
        false => Err("another record is in its place".to_owned()),
    }
}

fn parse(
    bytes: Vec<u8>,
    volume: &Volume,
    hash: ObjectHash,
    place: Place,
    is_whole: bool,
) -> Result<Stored, String> {
    let header = header_of(&bytes, volume, hash, place)?;
    if !header.head_is_sound(&bytes) {
        return Err("name and metadata do not match their checksum".to_owned());
    }
    if is_whole && !header.body_is_sound(&bytes) {
        return Err("the body does not match its checksum".to_owned());
    }
    let bytes = Bytes::from(bytes);
    Ok(Stored {
        name: bytes.slice(header.name()),
        metadata: bytes.slice(header.metadata()),
        body: match is_whole {
            true => bytes.slice(header.body()),
            false => Bytes::new(),
        },
        header,
    })
}
