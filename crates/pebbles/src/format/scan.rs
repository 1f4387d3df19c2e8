//! Records of a batch, one after the other, also past damage.
//!
//! A damaged record header does not say how long its record is: the next one is then looked for at
//! every 64 bytes. Checksums are bound to epoch and offset, so nothing else is taken for one.

use super::{BatchHeader, Binding, FormatError, RecordHeader, UNIT};

/// A stretch of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A record whose parts all match their checksums. `at`: its offset in the volume.
    Record {
        at: u64,
        sequence: u64,
        header: RecordHeader,
    },
    /// A record known by its header, with another part damaged.
    Damaged {
        at: u64,
        sequence: u64,
        header: RecordHeader,
    },
    /// Bytes that should have been a record.
    Lost { at: u64 },
    /// A record of another format. What follows is not read.
    Other { version: u8 },
}

/// The records of a batch of which `bytes` are all bytes, at `offset` in the volume.
/// `header`: the batch's own. Where that itself was damaged, its `count` is a bound.
pub fn records(bytes: &[u8], header: &BatchHeader, offset: u64) -> Vec<Found> {
    let mut found = Vec::new();
    let mut at = UNIT;
    let mut number = 0;
    let mut is_lost = false;
    while number < u64::from(header.count) && at + UNIT <= bytes.len() {
        let binding = Binding {
            epoch: header.epoch,
            offset: offset + at as u64,
        };
        let record = RecordHeader::parse(&bytes[at..], binding);
        if let Err(FormatError::Version(version)) = record {
            found.push(Found::Other { version });
            break;
        }
        let Some(record) = record
            .ok()
            .filter(|record| at + record.record_len() <= bytes.len())
        else {
            if !is_lost {
                found.push(Found::Lost { at: binding.offset });
                is_lost = true;
            }
            at += UNIT;
            continue;
        };
        is_lost = false;
        let whole = &bytes[at..at + record.record_len()];
        let is_sound = record.head_is_sound(whole) && record.body_is_sound(whole);
        let (at_volume, sequence) = (binding.offset, header.sequence + number);
        found.push(match is_sound {
            true => Found::Record {
                at: at_volume,
                sequence,
                header: record,
            },
            false => Found::Damaged {
                at: at_volume,
                sequence,
                header: record,
            },
        });
        number += 1;
        at += record.record_len();
    }
    found
}
