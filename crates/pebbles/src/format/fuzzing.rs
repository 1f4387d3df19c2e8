//! The entry of the fuzz target, and its seeds as a test.

use super::{BATCH_MAX, BLOCK, BatchHeader, Binding, RecordHeader, UNIT, VolumeHeader, records};

/// A block of a volume as it might be on a disk: nothing in it makes a parser panic or read past
/// its end. Checksums are set right first, so that the fuzzer gets past them.
pub fn volume(bytes: &[u8]) {
    let _ = VolumeHeader::parse(bytes, 0);
    let mut bytes = bytes[..bytes.len().min(BATCH_MAX)].to_vec();
    bytes.resize(bytes.len().max(2 * UNIT).next_multiple_of(BLOCK), 0);
    let Ok(header) = BatchHeader::parse(&reseal(&bytes, 0), 0) else {
        return;
    };
    let binding = |offset| Binding {
        epoch: header.epoch,
        offset,
    };
    for at in (UNIT..bytes.len() - UNIT).step_by(UNIT) {
        let mut record = [0; UNIT];
        record.copy_from_slice(&bytes[at..at + UNIT]);
        binding(at as u64).seal(&mut record);
        if RecordHeader::parse(&record, binding(at as u64)).is_ok() {
            bytes[at..at + UNIT].copy_from_slice(&record);
        }
    }
    let len = (header.len as usize).min(bytes.len());
    for found in records(&bytes[..len], &header, 0) {
        if let super::Found::Record { at, header, .. } = found {
            assert!(at as usize + header.record_len() <= len);
            let again = header.to_bytes(binding(at));
            assert_eq!(RecordHeader::parse(&again, binding(at)), Ok(header));
        }
    }
}

fn reseal(bytes: &[u8], offset: u64) -> [u8; UNIT] {
    let mut header = [0; UNIT];
    header.copy_from_slice(&bytes[..UNIT]);
    let epoch = super::Fields(&header).u64(16);
    Binding { epoch, offset }.seal(&mut header);
    header
}

#[cfg(test)]
#[test]
fn seeds_pass() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/pebbles");
    let mut count = 0;
    for seed in std::fs::read_dir(folder).expect("seeds") {
        let bytes = std::fs::read(seed.expect("a seed").path()).expect("a seed's bytes");
        volume(&bytes);
        count += 1;
    }
    assert!(count > 0);
}
