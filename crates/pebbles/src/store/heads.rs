//! The volumes of a folder: each known by its head, by the copy of that, or by its batches.
//!
//! Nothing is removed that cannot be read. A file in which nothing was written is one that was never
//! finished; one that has something and says nowhere which volume it is keeps its bytes under another
//! name. A format of a later release refuses the whole folder, before anything in it is changed.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use cairn_types::plant::Plant;

use super::checkpoint::Position;
use super::recovery::Recovery;
use crate::error::{PebblesError, is_unreadable};
use crate::format::{
    BATCH_MAX, BLOCK, BatchHeader, FIRST_BATCH, FormatError, VOLUME_MAX, VolumeHeader,
};
use crate::medium::{Medium, MediumFile};
use crate::volume::{Volume, Volumes, file_name, header_block, slot_of};

/// Names of files that were volumes, and could not be read.
const UNREADABLE: &str = "unreadable-";

/// A file that should be a volume.
struct Candidate {
    name: String,
    slot: u16,
    file: Arc<dyn MediumFile>,
    header: Option<VolumeHeader>,
}

/// The content of a file whose head and its copy are damaged.
struct Searched {
    /// Batch headers of volumes that are not known otherwise, with their offsets.
    batches: Vec<(u64, BatchHeader)>,
    is_zeros: bool,
    /// A sector that the disk does not give.
    error: Option<io::Error>,
}

/// Opens all files that are volumes. `position`: the last checkpoint's.
pub(super) fn find_volumes(
    volumes: &Volumes,
    position: &Position,
    is_read_only: bool,
    report: &mut Recovery,
) -> Result<(), PebblesError> {
    let medium = volumes.medium();
    let error = |source| PebblesError::of_io("open volumes", source);
    let mut names = medium.list().map_err(error)?;
    names.sort();
    let kept = names.iter().filter(|name| name.starts_with(UNREADABLE));
    report.unreadable = kept.count() as u64;
    let mut candidates = Vec::new();
    for name in &names {
        let Some(slot) = slot_of(name).filter(|slot| file_name(*slot) == *name) else {
            continue;
        };
        let file = medium.open(name).map_err(error)?;
        let header = header_of(name, &*file)?;
        candidates.push(Candidate {
            name: name.clone(),
            slot,
            file,
            header,
        });
    }
    let known = candidates.iter().filter_map(|candidate| candidate.header);
    let known: HashSet<u64> = known.map(|header| header.epoch).collect();
    let mut is_changed = false;
    for candidate in candidates {
        let header = match candidate.header {
            Some(header) => Some(header),
            None => {
                let searched = search(&*candidate.file, &known).map_err(error)?;
                let mut of_checkpoint = position.volumes.iter();
                let of_checkpoint = of_checkpoint.find(|volume| volume.slot == candidate.slot);
                match volume_of(&searched.batches, of_checkpoint.map(|volume| volume.epoch)) {
                    Some(batch) => Some(by_batch(&candidate, batch).map_err(error)?),
                    None => {
                        let put_away = put_away(medium, &candidate, searched, &names, is_read_only);
                        report.unreadable += u64::from(put_away.map_err(error)?);
                        None
                    }
                }
            }
        };
        is_changed |= header.is_none() && !is_read_only;
        if let Some(header) = header {
            volumes.insert(Arc::new(Volume::new(
                candidate.slot,
                header,
                candidate.file,
            )));
        }
    }
    match is_changed {
        true => medium.sync_dir().map_err(error),
        false => Ok(()),
    }
}

/// A volume's header, of its head and the copy of that; `None`: neither is sound.
///
/// Ids count uses of files upwards, so of two that differ the higher is of the later use: a death came
/// between their writes, or the disk lost one. Nothing counted in a volume when its later use began.
/// Of two with one id the head counts, which is written last.
fn header_of(name: &str, file: &dyn MediumFile) -> Result<Option<VolumeHeader>, PebblesError> {
    let error = |source| PebblesError::of_io("open volumes", source);
    let size = file_size(file).map_err(error)?;
    let at_end = size.saturating_sub(BLOCK as u64);
    let head = header_at(name, file, 0)?;
    let copy_at = head.map_or(at_end, |head| head.size);
    // Volumes that were made before there were copies have records up to their end.
    let has_copy = copy_at <= at_end;
    let copy = match has_copy {
        true => header_at(name, file, copy_at)?,
        false => None,
    };
    let counts = match (head, copy) {
        (Some(head), Some(copy)) if head != copy => {
            tracing::warn!(name, ?head, ?copy, "a volume's head and its copy differ");
            match copy.id > head.id && !Plant::HeadNotCompared.is_on() {
                true => copy,
                false => head,
            }
        }
        (Some(head), _) => head,
        (None, Some(copy)) => copy,
        (None, None) => return Ok(None),
    };
    let size = counts.size.min(size);
    Ok(Some(VolumeHeader { size, ..counts }))
}

/// The header, or its copy, at an offset; `None`: it is damaged.
fn header_at(
    name: &str,
    file: &dyn MediumFile,
    offset: u64,
) -> Result<Option<VolumeHeader>, PebblesError> {
    let parsed = match read(file, offset, BLOCK) {
        Ok(block) => VolumeHeader::parse(&block, offset),
        Err(source) if is_unreadable(&source) => Err(FormatError::Short),
        Err(source) => return Err(PebblesError::of_io("open volumes", source)),
    };
    match parsed {
        Ok(header) => return Ok(Some(header)),
        Err(FormatError::Version(version)) => {
            let name = name.to_owned();
            return Err(PebblesError::Format { name, version });
        }
        Err(_) => {}
    }
    tracing::warn!(
        name,
        offset,
        "the head of a volume is damaged, or a copy of it"
    );
    Ok(None)
}

/// The batch that says which volume a file is whose head and its copy are damaged.
///
/// The first block of batches has a header, never content, so that one is believed. Where it is damaged too, the
/// checkpoint may know the volume. Else the highest id counts, as the remains of an earlier use have a lower one; what
/// is inside of a batch is content, and says nothing.
fn volume_of(batches: &[(u64, BatchHeader)], of_checkpoint: Option<u64>) -> Option<BatchHeader> {
    let mut found = batches.iter();
    if let Some((_, first)) = found.find(|(at, _)| *at == FIRST_BATCH) {
        return Some(*first);
    }
    let mut found = batches.iter();
    if let Some((_, known)) = found.find(|(_, batch)| Some(batch.epoch) == of_checkpoint) {
        return Some(*known);
    }
    let mut end = 0;
    let outer = batches.iter().filter(|(at, batch)| {
        let is_outer = *at >= end;
        if is_outer {
            end = at + u64::from(batch.len);
        }
        is_outer
    });
    outer.map(|(_, batch)| *batch).max_by_key(|batch| batch.id)
}

/// A volume known by one of its batches.
fn by_batch(candidate: &Candidate, batch: BatchHeader) -> io::Result<VolumeHeader> {
    let name = &candidate.name;
    tracing::error!(name, "a volume without a head: its batches say which it is");
    Ok(VolumeHeader {
        id: batch.id,
        epoch: batch.epoch,
        size: file_size(&*candidate.file)?,
    })
}

/// A file of which nothing says which volume it is: kept under another name, or removed where it was never finished.
/// Whether it is one that cannot be read.
fn put_away(
    medium: &dyn Medium,
    candidate: &Candidate,
    searched: Searched,
    names: &[String],
    is_read_only: bool,
) -> io::Result<bool> {
    let name = &candidate.name;
    if let Some(error) = searched.error {
        // Another attempt may read it.
        return Err(error);
    }
    if is_read_only {
        return Ok(!searched.is_zeros);
    }
    if searched.is_zeros {
        tracing::info!(name, "a volume that was never finished: removed");
        medium.remove(name)?;
        return Ok(false);
    }
    let to = free_name(names, &format!("{UNREADABLE}{name}"))?;
    tracing::error!(name, to, "a file that cannot be read as a volume: kept");
    medium.rename(name, &to)?;
    Ok(true)
}

/// Writes the head of a volume again, or its copy, where it is damaged or of another use.
pub(super) fn mend_heads(volume: &Volume) {
    let (slot, file) = (volume.slot, &*volume.file);
    let header = VolumeHeader {
        id: volume.id,
        epoch: volume.epoch,
        size: volume.size,
    };
    let is_sound = |offset| {
        let block = read(file, offset, BLOCK).ok();
        let found = block.and_then(|block| VolumeHeader::parse(&block, offset).ok());
        found.is_some_and(|found| (found.id, found.epoch) == (header.id, header.epoch))
    };
    let copy_end = volume.size + BLOCK as u64;
    let has_copy = file_size(file).is_ok_and(|size| size >= copy_end);
    // As they are written first: a copy is of no earlier use than its head.
    let offsets = [has_copy.then_some(volume.size), Some(0)];
    for offset in offsets.into_iter().flatten() {
        if is_sound(offset) {
            continue;
        }
        if let Err(error) = file.write_durably(offset, &header_block(header, offset)) {
            tracing::error!(slot, offset, %error, "the head of a volume is left damaged");
            return;
        }
        tracing::warn!(slot, offset, "the head of a volume is written again");
    }
}

/// A name that none of these is.
fn free_name(names: &[String], name: &str) -> io::Result<String> {
    let numbered = (1..).map(|number| format!("{name}.{number}"));
    let mut all = std::iter::once(name.to_owned()).chain(numbered);
    let free = all.find(|name| !names.contains(name));
    free.ok_or(io::ErrorKind::AlreadyExists.into())
}

fn file_size(file: &dyn MediumFile) -> io::Result<u64> {
    Ok(file.size()?.min(VOLUME_MAX) / BLOCK as u64 * BLOCK as u64)
}

fn read(file: &dyn MediumFile, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let count = file.read_at(offset, &mut bytes)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// Reads a whole file, for batches of any but these epochs, which are those of other volumes.
fn search(file: &dyn MediumFile, known: &HashSet<u64>) -> io::Result<Searched> {
    let mut searched = Searched {
        batches: Vec::new(),
        is_zeros: true,
        error: None,
    };
    let mut see = |bytes: &[u8], offset: u64| {
        for (number, block) in bytes.chunks(BLOCK).enumerate() {
            let at = offset + (number * BLOCK) as u64;
            searched.is_zeros &= block.iter().all(|byte| *byte == 0);
            let Ok(header) = BatchHeader::parse(block, at) else {
                continue;
            };
            if !known.contains(&header.epoch) {
                searched.batches.push((at, header));
            }
        }
    };
    let size = file.size()?;
    for at in (0..size).step_by(BATCH_MAX) {
        let len = (size - at).min(BATCH_MAX as u64) as usize;
        match read(file, at, len) {
            Ok(bytes) => see(&bytes, at),
            Err(error) if is_unreadable(&error) => {
                for block in (at..at + len as u64).step_by(BLOCK) {
                    if let Ok(bytes) = read(file, block, BLOCK) {
                        see(&bytes, block);
                    }
                }
                searched.error = Some(error);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(searched)
}
