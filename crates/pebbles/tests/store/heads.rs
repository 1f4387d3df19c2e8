//! A volume is known by its head, by the copy of that, or by its batches.

use super::*;

#[test]
fn a_later_format_refuses_the_device() {
    let setup = Setup::new();
    let store = setup.open();
    put(&store, 1, 10, 100);
    let (name, _) = setup.volume_of(&store, 1);
    drop(store);
    setup.change(&name, |bytes| {
        bytes[8] = 2;
        let mut crc = crc32fast::Hasher::new();
        crc.update(&bytes[24..32]);
        crc.update(&0u64.to_le_bytes());
        crc.update(&bytes[..60]);
        bytes[60..64].copy_from_slice(&crc.finalize().to_le_bytes());
        // Its batches may look otherwise too.
        bytes[BLOCK..2 * BLOCK].fill(7);
    });
    let before = std::fs::read(setup.path(&name)).unwrap();
    let error = setup.try_open().err().unwrap().to_string();
    assert!(
        error.contains(&name) && error.contains("version 2") && error.contains("release"),
        "{error}"
    );
    assert_eq!(std::fs::read(setup.path(&name)).unwrap(), before);
}

fn epoch_of(volume: &[u8]) -> u64 {
    VolumeHeader::parse(volume, 0).unwrap().epoch
}

/// Sets the version in a header, with a checksum that is right.
fn make_later(bytes: &mut [u8], offset: usize, version_at: usize) {
    let epoch = epoch_of(bytes);
    let header = &mut bytes[offset..offset + 64];
    header[version_at] = 2;
    let mut crc = crc32fast::Hasher::new();
    crc.update(&epoch.to_le_bytes());
    crc.update(&(offset as u64).to_le_bytes());
    crc.update(&header[..60]);
    header[60..].copy_from_slice(&crc.finalize().to_le_bytes());
}

/// A later release may write a batch of its own to a volume of this one.
#[test]
fn a_later_format_in_a_batch_or_a_record_refuses_the_device() {
    // The last batch's header; a record's in it; and the header of one before, with sound ones behind it.
    for (number, behind, version_at) in [(4, 0, 4), (4, 64, 2), (2, 0, 4)] {
        let setup = Setup::new();
        let store = setup.open();
        for number in 0..5 {
            put(&store, number, 10, 100);
        }
        let (name, offset) = setup.volume_of(&store, number);
        drop(store);
        let at = offset - 64 + behind;
        setup.change(&name, |bytes| make_later(bytes, at, version_at));
        let before = std::fs::read(setup.path(&name)).unwrap();
        for _ in 0..2 {
            let error = setup.try_open().err().unwrap().to_string();
            assert!(
                error.contains(&name) && error.contains("version 2") && error.contains("release"),
                "{error}"
            );
        }
        assert_eq!(std::fs::read(setup.path(&name)).unwrap(), before);
        // A version without its checksum is damage.
        setup.change(&name, |bytes| bytes[at + 60] ^= 1);
        let store = setup.open();
        assert!(has(&store, 0, 10, 100));
    }
}

/// Content that looks like a batch of a later volume, where head and copy are damaged.
#[test]
fn content_does_not_say_which_volume_it_is_in() {
    for is_first_damaged in [false, true] {
        let setup = Setup::new();
        let store = setup.open();
        for number in 0..5 {
            put(&store, number, 10, 10_000);
        }
        let (name, offset) = setup.volume_of(&store, 4);
        drop(store);
        let forged = cairn_pebbles::format::BatchHeader {
            id: u64::MAX / 2,
            epoch: 77,
            sequence: 1 << 40,
            count: 1,
            len: BLOCK as u32,
            class: cairn_pebbles::format::Class::Fresh,
            owed_from: 0,
        };
        setup.change(&name, |bytes| {
            let size = bytes.len();
            bytes[..64].fill(0x5a);
            bytes[size - BLOCK..].fill(0x5a);
            if is_first_damaged {
                bytes[BLOCK..BLOCK + 64].fill(0x5a);
            }
            // In the body of the last record, which is damaged by that: its content is of no matter here.
            let at = offset.next_multiple_of(BLOCK);
            bytes[at..at + 64].copy_from_slice(&forged.to_bytes(at as u64));
        });
        let store = setup.open();
        for number in 1..4 {
            assert!(has(&store, number, 10, 10_000), "{number}");
        }
        put(&store, 9, 10, 100);
        drop(store);
        assert!(has(&setup.open(), 9, 10, 100));
    }
}

#[test]
fn a_damaged_head_is_taken_from_elsewhere() {
    // The version alone; the header; and the first batch with it.
    for (from, to) in [(8, 9), (0, 64), (0, 2 * BLOCK)] {
        let setup = Setup::new();
        let store = setup.open();
        for number in 0..5 {
            put(&store, number, 10, 100);
        }
        let (name, _) = setup.volume_of(&store, 4);
        drop(store);
        setup.change(&name, |bytes| {
            for byte in &mut bytes[from..to] {
                *byte ^= 0x5a;
            }
        });
        for _ in 0..2 {
            let store = setup.open();
            for number in 1..5 {
                assert!(has(&store, number, 10, 100), "{number} after {from}..{to}");
            }
        }
        let store = setup.open();
        put(&store, 9, 10, 100);
        drop(store);
        assert!(has(&setup.open(), 9, 10, 100));
    }
}

/// The disk lost a write of a head or of its copy: the one of the later use counts, and the other is
/// written again.
#[test]
fn the_later_of_a_head_and_its_copy_counts() {
    for is_copy_older in [false, true] {
        let setup = Setup::new();
        let store = setup.open();
        for number in 0..5 {
            put(&store, number, 10, 100);
        }
        let (name, _) = setup.volume_of(&store, 4);
        drop(store);
        let at_end = (256 << 10) - BLOCK;
        let (older, newer) = match is_copy_older {
            true => (at_end, 0),
            false => (0, at_end),
        };
        setup.change(&name, |bytes| {
            let header = VolumeHeader::parse(bytes, 0).unwrap();
            let before = VolumeHeader {
                id: header.id - 1,
                epoch: header.epoch ^ 1,
                ..header
            };
            bytes[older..older + 64].copy_from_slice(&before.to_bytes(older as u64));
        });
        let store = setup.open();
        for number in 0..5 {
            assert!(has(&store, number, 10, 100), "{number}, {is_copy_older}");
        }
        drop(store);
        // Both are of the later use now: each is enough.
        setup.change(&name, |bytes| bytes[newer..newer + 64].fill(0x5a));
        let store = setup.open();
        for number in 0..5 {
            assert!(has(&store, number, 10, 100), "{number}, {is_copy_older}");
        }
    }
}

/// A volume that was used anew a moment ago is known by the copy of its head: what is left in it of an
/// earlier use counts no longer.
#[test]
fn an_earlier_use_does_not_come_back_with_a_damaged_head() {
    let setup = Setup::new();
    let store = setup.open();
    for number in 0..200 {
        put(&store, number, 10, 1000);
    }
    let slots: Vec<u16> = (0..200)
        .map(|number| entry(&store, number).unwrap().place.slot)
        .collect();
    let latest = store
        .volumes()
        .iter()
        .map(|volume| volume.id)
        .max()
        .unwrap();
    for number in 0..200 {
        delete(&store, number, 20);
    }
    setup.wait(100_000);
    let mut upkeep = Upkeep::new(store.clone());
    compact(&mut upkeep);
    let is_anew = |volume: &Arc<cairn_pebbles::volume::Volume>| {
        volume.id > latest && volume.used() == BLOCK as u64
    };
    let volumes = store.volumes();
    let anew: Vec<u16> = volumes
        .iter()
        .filter(|volume| is_anew(volume))
        .map(|volume| volume.slot)
        .collect();
    // No tombstone is left of these.
    let lost =
        |number: &u64| anew.contains(&slots[*number as usize]) && entry(&store, *number).is_none();
    let numbers: Vec<u64> = (0..200).filter(lost).collect();
    assert!(!numbers.is_empty(), "{anew:?} had nothing before");
    drop((upkeep, store));
    for slot in anew {
        setup.change(&format!("volume-{slot:05}"), |bytes| bytes[..64].fill(0x5a));
    }
    let store = setup.open();
    for number in numbers {
        assert!(entry(&store, number).is_none(), "{number} is back");
    }
}

#[test]
fn a_volume_that_cannot_be_read_is_kept() {
    let setup = Setup::new();
    let store = setup.open();
    put(&store, 1, 10, 100);
    let (name, _) = setup.volume_of(&store, 1);
    drop(store);
    let noise = vec![0x5a; 256 << 10];
    setup.change(&name, |bytes| *bytes = noise.clone());
    for _ in 0..2 {
        let store = setup.open();
        assert!(entry(&store, 1).is_none());
        drop(store);
        assert!(setup.files("").contains(&noise), "it was removed");
    }
    let store = setup.open();
    put(&store, 1, 10, 100);
    assert!(has(&store, 1, 10, 100));
}
