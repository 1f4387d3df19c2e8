#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::parse::parse_chunk;
use super::*;
use crate::index::{Grouping, Index};
use crate::medium::Folder;
use crate::object::Rules;
use crate::place::Place;
use crate::volume::Volumes;

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
        for kind in 0..9 {
            let _ = parse_chunk(kind, &noise);
        }
    }
}

#[test]
fn owed_rows_round_trip() {
    let owed = Owed {
        number: 1 << 40,
        partition: 77,
        hash: ObjectHash([3; 16]),
        timestamp: Timestamp::from_secs(9).with_offset(4),
    };
    let mut payload = Vec::new();
    write_owed(&owed, &mut payload);
    write_owed(&owed, &mut payload);
    assert_eq!(
        parse_chunk(Chunk::OWED, &payload),
        Some(Chunk::Owed(vec![owed, owed]))
    );
    assert_eq!(parse_chunk(Chunk::OWED, &payload[1..]), None);
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

/// The bytes of a checkpoint of nothing, with changes of nothing, and where these begin.
fn with_changes(since: u64) -> (Vec<u8>, usize) {
    let mut seal = Seal {
        generation: 1,
        since: None,
    };
    let chunk = |seal: Seal, kind: u32, payload: &[u8]| {
        let crc = u64::from(seal.crc(kind, payload));
        let head = [kind.to_le_bytes(), (payload.len() as u32).to_le_bytes()].concat();
        [&head, &crc.to_le_bytes()[..], payload].concat()
    };
    let mut bytes = [MAGIC, VERSION, seal.generation]
        .map(u64::to_le_bytes)
        .concat();
    bytes.extend(u64::from(crc32fast::hash(&bytes)).to_le_bytes());
    bytes.extend(chunk(seal, Chunk::END, &7u64.to_le_bytes()));
    let whole = bytes.len();
    bytes.extend(chunk(seal, Chunk::SINCE, &since.to_le_bytes()));
    seal.since = Some(since);
    bytes.extend(chunk(seal, Chunk::CHANGES, &[]));
    bytes.extend(chunk(seal, Chunk::END, &9u64.to_le_bytes()));
    (bytes, whole)
}

/// The end of longer ones that were cut short in the same place is not theirs: what these do not say is in the
/// log from in front of it.
#[test]
fn changes_have_an_end_of_their_own() {
    let root = tempfile::tempdir().unwrap();
    let medium = Folder::open(&root.path().join("store"), true).unwrap();
    medium.lock([1, 2]).unwrap();
    let (own, whole) = with_changes(7);
    let (other, _) = with_changes(8);
    let end = own.len() - FRAME - 8;
    let bytes = [&own[..end], &other[end..]].concat();
    std::fs::write(root.path().join("store/checkpoint-1"), bytes).unwrap();
    let found = newest(&medium).unwrap();
    assert_eq!(found.written.bytes, whole as u64);
}

/// The log is read from behind the changes that were seen: an index without them would lack what they say.
#[test]
fn changes_that_are_seen_and_cannot_be_loaded_are_an_error() {
    let root = tempfile::tempdir().unwrap();
    let medium = Arc::new(Folder::open(&root.path().join("store"), true).unwrap());
    medium.lock([1, 2]).unwrap();
    let path = root.path().join("store/checkpoint-1");
    let (bytes, whole) = with_changes(7);
    std::fs::write(&path, &bytes).unwrap();
    let found = newest(&*medium).unwrap();
    assert_eq!(found.position.next_sequence, 9);
    let index = Index::new(Rules::default(), Grouping::ByHash);
    let volumes = Volumes::new(medium, 1 << 20, Box::new(|| 1), Box::new(|_| 0));
    assert!(found.load(&index, &volumes).is_ok());
    let mut damaged = bytes;
    *damaged.last_mut().unwrap() ^= 1;
    std::fs::write(&path, &damaged).unwrap();
    let loaded = found.load(&index, &volumes);
    assert!(loaded.is_err());
    // Looked at again it has what is in front of them.
    let found = newest(volumes.medium()).unwrap();
    assert_eq!(
        (found.position.next_sequence, found.written.bytes),
        (7, whole as u64)
    );
}
