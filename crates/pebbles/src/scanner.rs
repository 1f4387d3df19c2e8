//! Batches of a volume, one after the other, up to the end of what was written.
//!
//! The committer writes a batch only when the one before it is durable. So the last batch alone may
//! be torn by a power cut; a damaged one with a sound one behind it was acknowledged, and has rotted.
//! Blocks that cannot be read are damage when they could not some time before either
//! (`read_errors.rs`); until then the scanner is unsure, and what it found is not to be believed. Where
//! nothing sound is seen behind such damage, nobody knows what was there, nor whether it was acknowledged:
//! the volume's end is lost.
//!
//! What is of another format, with a checksum that is right, ends the scan with an error: to go on would be to
//! write over it.

use std::io;
use std::sync::Arc;

use cairn_types::Timestamp;
use cairn_types::plant::Plant;

use crate::error::OtherFormat;
use crate::format::{
    BATCH_MAX, BLOCK, BatchHeader, Class, FIRST_BATCH, FormatError, Found, UNIT, epoch_of, records,
};
use crate::read_errors::ReadErrors;
use crate::volume::{Volume, file_name};

/// How far behind damage a sound batch is looked for.
const LOOK_AHEAD: u64 = 4 * BATCH_MAX as u64;
/// Bytes that are read at once: batches of few records are short, and each read waits for the disk.
const WINDOW: u64 = 1 << 20;
/// Attempts to read blocks of a volume that may fail. More indicate a failing disk.
const UNREADABLE_MAX: u64 = 1024;

pub(crate) struct Scanner {
    pub(crate) volume: Arc<Volume>,
    at: u64,
    /// The next record's number is not below this.
    sequence: u64,
    next: Option<Next>,
    /// Bytes of the volume, and where they begin. Before the first batch is given, and after the last, there
    /// are none: a scanner of every volume of a device is not many windows.
    window: (u64, Vec<u8>),
    /// No batch begins behind this.
    end: u64,
    /// All up to there was acknowledged: nothing is torn.
    is_end_known: bool,
    read_errors: Arc<ReadErrors>,
    /// When it began.
    now: Timestamp,
    /// Number of blocks so far that the disk did not give, each as often as it was asked for.
    unreadable: u64,
    is_unsure: bool,
    is_end_lost: bool,
}

/// A batch that was seen and not read.
#[derive(Clone, Copy)]
struct Next {
    header: BatchHeader,
    len: u64,
}

/// A batch that was read.
pub(crate) struct Scanned {
    pub(crate) class: Class,
    pub(crate) start: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) found: Vec<Found>,
    /// The number after the last record's.
    pub(crate) next_sequence: u64,
    /// No rows of records before this number are owed.
    pub(crate) owed_from: u64,
}

impl Scanned {
    /// The bytes of a record in it.
    pub(crate) fn record(&self, at: u64) -> &[u8] {
        &self.bytes[(at - self.start) as usize..]
    }
}

impl Scanner {
    /// `at`: a batch's offset, or the end.
    pub(crate) fn new(
        volume: Arc<Volume>,
        at: u64,
        read_errors: Arc<ReadErrors>,
        now: Timestamp,
    ) -> Self {
        Scanner {
            end: volume.size,
            is_end_known: false,
            volume,
            at,
            sequence: 0,
            next: None,
            window: (0, Vec::new()),
            read_errors,
            now,
            unreadable: 0,
            is_unsure: false,
            is_end_lost: false,
        }
    }

    /// A scanner of all that was written to a volume.
    pub(crate) fn of_written(
        volume: Arc<Volume>,
        read_errors: Arc<ReadErrors>,
        now: Timestamp,
    ) -> Self {
        Scanner {
            end: volume.used(),
            is_end_known: true,
            ..Scanner::new(volume, FIRST_BATCH, read_errors, now)
        }
    }

    /// Whether a block could not be read that may yet be.
    pub(crate) fn is_unsure(&self) -> bool {
        self.is_unsure
    }

    /// Whether batches may have been behind the last one that was given, which the disk does not give.
    pub(crate) fn is_end_lost(&self) -> bool {
        self.is_end_lost
    }

    /// Reads by the window, which is moved where it has not all of it. A window that the disk does not give
    /// is none: what of it is needed is read by itself.
    fn read_ahead(&mut self, at: u64, len: usize) -> io::Result<Vec<u8>> {
        if self.in_window(at, len).is_none() {
            let most = (self.end.max(at) - at).min(WINDOW).max(len as u64);
            let bytes = self.volume.read(at, most as usize);
            self.window = (at, bytes.unwrap_or_default());
        }
        self.read(at, len)
    }

    fn in_window(&self, at: u64, len: usize) -> Option<&[u8]> {
        let (from, bytes) = &self.window;
        let skipped = usize::try_from(at.checked_sub(*from)?).ok()?;
        bytes.get(skipped..)?.get(..len)
    }

    /// Reads, with zeros for blocks that the disk does not give: what was in them is damaged, if that
    /// lasts.
    fn read(&mut self, at: u64, len: usize) -> io::Result<Vec<u8>> {
        if let Some(bytes) = self.in_window(at, len) {
            return Ok(bytes.to_vec());
        }
        let (volume, errors, now) = (&self.volume, &self.read_errors, self.now);
        let (unreadable, is_unsure) = (&mut self.unreadable, &mut self.is_unsure);
        volume.read_past_damage(at, len, |block, error| {
            *unreadable += 1;
            *is_unsure |= !errors.has_lasted(volume.epoch, block, now);
            match *unreadable > UNREADABLE_MAX {
                true => Err(error),
                false => Ok(()),
            }
        })
    }

    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// The first number of the next batch; `None` at the end.
    pub(crate) fn peek(&mut self) -> io::Result<Option<u64>> {
        if self.next.is_none() {
            self.next = self.look()?;
        }
        if self.next.is_none() {
            self.window = (0, Vec::new());
        }
        Ok(self.next.map(|next| next.header.sequence))
    }

    fn look(&mut self) -> io::Result<Option<Next>> {
        if self.at + BLOCK as u64 > self.end {
            return Ok(None);
        }
        let unreadable = self.unreadable;
        let block = self.read(self.at, BLOCK)?;
        if let Some(header) = self.header_in(&block, self.at)? {
            let len = header.len.into();
            return Ok(Some(Next { header, len }));
        }
        let found = self.look_ahead(self.at + BLOCK as u64)?;
        let (at, following) = match found {
            Some(found) => found,
            None if self.is_end_known => (self.end, self.header_at_end()),
            None => return self.end_at(unreadable).map(|()| None),
        };
        // Its header rotted. The numbers that are missing are those of its records.
        let len = at - self.at;
        let missing = following.sequence.saturating_sub(self.sequence);
        let count = missing.min(len / UNIT as u64);
        let header = BatchHeader {
            sequence: following.sequence - count,
            count: count as u32,
            len: len as u32,
            ..following
        };
        Ok(Some(Next { header, len }))
    }

    /// Stands for a batch behind the last one.
    fn header_at_end(&self) -> BatchHeader {
        BatchHeader {
            id: self.volume.id,
            epoch: self.volume.epoch,
            sequence: u64::MAX,
            count: 1,
            len: BLOCK as u32,
            class: Class::Kept,
            owed_from: 0,
        }
    }

    fn header_in(&self, block: &[u8], at: u64) -> io::Result<Option<BatchHeader>> {
        let header = match BatchHeader::parse(block, at) {
            Ok(header) => header,
            // Nobody knows the epoch but this volume: content cannot pose as one.
            Err(FormatError::Version(version)) if epoch_of(block) == Some(self.volume.epoch) => {
                return Err(self.other_format(version));
            }
            Err(_) => return Ok(None),
        };
        let is_of_volume = header.epoch == self.volume.epoch
            && at + u64::from(header.len) <= self.volume.size
            && header.sequence >= self.sequence;
        Ok(is_of_volume.then_some(header))
    }

    fn other_format(&self, version: u8) -> io::Error {
        let name = file_name(self.volume.slot);
        OtherFormat { name, version }.into()
    }

    /// The first sound batch header from `from` on.
    fn look_ahead(&mut self, from: u64) -> io::Result<Option<(u64, BatchHeader)>> {
        if Plant::RotTakenForTorn.is_on() {
            return Ok(None);
        }
        let end = self.end.min(from.saturating_add(LOOK_AHEAD));
        let mut at = from;
        while at + BLOCK as u64 <= end {
            let len = (end - at).min(BATCH_MAX as u64) as usize / BLOCK * BLOCK;
            let bytes = self.read(at, len)?;
            for (number, block) in bytes.chunks(BLOCK).enumerate() {
                let here = at + (number * BLOCK) as u64;
                if let Some(header) = self.header_in(block, here)? {
                    return Ok(Some((here, header)));
                }
            }
            at += len as u64;
        }
        Ok(None)
    }

    /// Ends the volume here. Where blocks could not be read since there were this many that could not,
    /// its end is lost: an acknowledged batch that cannot be read looks like a torn one.
    fn end_at(&mut self, unreadable: u64) -> io::Result<()> {
        if self.unreadable == unreadable {
            return Ok(());
        }
        if self.is_unsure {
            return Err(io::Error::other(format!(
                "volume {} cannot be read at {}, where its last batch may be: what it had there is lost if \
                 it cannot in ten seconds either",
                self.volume.slot, self.at
            )));
        }
        self.is_end_lost = true;
        Ok(())
    }

    /// The next batch. One that is torn is not given: the volume ends there.
    pub(crate) fn next(&mut self) -> io::Result<Option<Scanned>> {
        if self.peek()?.is_none() {
            return Ok(None);
        }
        let Some(Next { header, len }) = self.next.take() else {
            return Ok(None);
        };
        let unreadable = self.unreadable;
        let bytes = self.read_ahead(self.at, len as usize)?;
        let found = records(&bytes, &header, self.at);
        if let Some(Found::Other { version }) = found.last() {
            return Err(self.other_format(*version));
        }
        let sound = found.iter().filter(|f| matches!(f, Found::Record { .. }));
        let is_whole = sound.count() == header.count as usize;
        if !is_whole && !self.is_end_known && !Plant::TornTakenForRot.is_on() {
            let behind = self.at + len;
            let is_rot = behind < self.end && self.look_ahead(behind)?.is_some();
            if !is_rot {
                return self.end_at(unreadable).map(|()| None);
            }
        }
        let scanned = Scanned {
            class: header.class,
            start: self.at,
            bytes,
            found,
            next_sequence: header.sequence.saturating_add(header.count.into()),
            owed_from: header.owed_from,
        };
        self.at += len;
        self.sequence = scanned.next_sequence;
        Ok(Some(scanned))
    }
}
