#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::place::Place;

fn any_entry() -> impl Strategy<Value = (ObjectHash, Entry)> {
    (
        any::<[u8; 16]>(),
        (0usize..5, any::<u16>(), any::<bool>(), any::<bool>()),
        (
            0..1u64 << 49,
            any::<u64>(),
            proptest::option::of(1..1u64 << 49),
        ),
        (any::<u16>(), 0..1u64 << 24, 0..1u32 << 18, any::<bool>()),
    )
        .prop_map(
            |(hash, (kind, index, is_durable, is_external), time, place)| {
                let kinds = [
                    EntryKind::Data,
                    EntryKind::Fragment { index, is_durable },
                    EntryKind::Meta,
                    EntryKind::Tombstone,
                    EntryKind::Durable,
                ];
                let entry = Entry {
                    kind: kinds[kind],
                    timestamp: Timestamp::from_ticks(time.0).with_offset(time.1),
                    content_type: time.2.map(Timestamp::from_ticks).filter(|_| !is_external),
                    external: is_external.then_some(12),
                    is_lasting: place.3,
                    place: Place {
                        slot: place.0,
                        offset: place.1 * 64,
                        len: place.2 * 64,
                    },
                };
                (ObjectHash(hash), entry)
            },
        )
}

proptest! {
    #[test]
    fn entries_round_trip(entries in proptest::collection::vec(any_entry(), 0..20)) {
        let mut payload = 7u32.to_le_bytes().to_vec();
        for (hash, entry) in &entries {
            write_listed(*hash, entry, &mut payload);
        }
        let parsed = parse_chunk(Chunk::LISTED, &payload);
        let Some(Chunk::Objects(rows)) = parsed else {
            panic!("{parsed:?}");
        };
        prop_assert_eq!((rows.group, rows.is_simple), (7, false));
        prop_assert_eq!(rows.entries().collect::<Vec<_>>(), entries);
    }

    #[test]
    fn noise_never_panics(noise in proptest::collection::vec(any::<u8>(), 0..300)) {
        fuzzing::chunk(&noise);
        for kind in 0..6 {
            let _ = parse_chunk(kind, &noise);
        }
    }
}

#[test]
fn volumes_round_trip() {
    let volume = VolumeState {
        slot: 9,
        epoch: 12,
        used: 8192,
        written: VolumeWritten {
            all: 5,
            removals: 4,
            tombstones: 3,
            latest_tombstone: 2,
        },
        class: Some(Class::Kept),
    };
    let mut payload = Vec::new();
    write_volume(&volume, &mut payload);
    assert_eq!(
        parse_chunk(Chunk::VOLUMES, &payload),
        Some(Chunk::Volumes(vec![volume]))
    );
}
