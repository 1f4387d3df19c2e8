#![allow(clippy::unwrap_used)]

use ::bytes::Bytes;
use proptest::prelude::*;

use super::*;

const EPOCH: u64 = 0x0123_4567_89ab_cdef;

fn record(kind: Kind, hash: u8, body: &[u8]) -> NewRecord {
    NewRecord {
        kind,
        partition: 7,
        hash: ObjectHash([hash; 16]),
        timestamp: Timestamp::from_ticks(140_246_467_704_188),
        fragment: None,
        is_durable: false,
        is_external: false,
        owes_row: false,
        is_lasting: false,
        name: Bytes::from_static(b"/AUTH_test/c/o"),
        metadata: Bytes::from_static(b"metadata"),
        body: Bytes::copy_from_slice(body),
    }
}

/// A batch of these records at 4,096.
fn batch(records: &[NewRecord]) -> Vec<u8> {
    let mut bytes = vec![0; UNIT];
    for record in records {
        let offset = FIRST_BATCH + bytes.len() as u64;
        let header = record.header().unwrap();
        record.append(
            &header,
            Binding {
                epoch: EPOCH,
                offset,
            },
            &mut bytes,
        );
    }
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    let header = BatchHeader {
        id: 3,
        epoch: EPOCH,
        sequence: 100,
        count: records.len() as u32,
        len: bytes.len() as u32,
        class: Class::Fresh,
        owed_from: 0,
    };
    bytes[..UNIT].copy_from_slice(&header.to_bytes(FIRST_BATCH));
    bytes
}

fn sample() -> Vec<u8> {
    let header = VolumeHeader {
        id: 3,
        epoch: EPOCH,
        size: VOLUME_MIN,
    };
    let mut volume = header.to_bytes(0).to_vec();
    volume.resize(BLOCK, 0);
    let fragment = NewRecord {
        fragment: Some(5),
        is_durable: true,
        timestamp: Timestamp::from_ticks(140_246_467_704_188).with_offset(10),
        ..record(Kind::Data, 2, b"a fragment")
    };
    let lasting = NewRecord {
        is_lasting: true,
        ..record(Kind::Data, 6, b"stays")
    };
    let records = [
        record(Kind::Data, 1, b"a body"),
        fragment,
        record(Kind::Meta, 1, &140_246_467_704_188u64.to_le_bytes()),
        record(Kind::Tombstone, 3, &3u64.to_le_bytes()),
        record(Kind::Durable, 2, b""),
        record(Kind::Removed, 4, &3u64.to_le_bytes()),
        record(Kind::Quarantined, 5, &3u64.to_le_bytes()),
        lasting,
    ];
    volume.extend(batch(&records));
    volume
}

/// Written once, and readable ever after: `golden.volume` is committed. `PEBBLES_GOLDEN=1` writes it.
#[test]
fn the_golden_volume() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/format/golden.volume");
    if std::env::var_os("PEBBLES_GOLDEN").is_some() {
        std::fs::write(path, sample()).unwrap();
    }
    let golden = std::fs::read(path).unwrap();
    assert_eq!(golden, sample());
    let volume = VolumeHeader::parse(&golden, 0).unwrap();
    assert_eq!((volume.id, volume.epoch), (3, EPOCH));
    let header = BatchHeader::parse(&golden[BLOCK..], FIRST_BATCH).unwrap();
    let found = records(&golden[BLOCK..], &header, FIRST_BATCH);
    let kinds = found.iter().map(|found| match found {
        Found::Record { header, .. } => header.kind as u8,
        _ => 0,
    });
    assert_eq!(kinds.collect::<Vec<_>>(), [1, 1, 2, 3, 4, 5, 6, 1]);
}

#[test]
fn damage_ends_one_record_only() {
    let many: Vec<_> = (1..=5).map(|n| record(Kind::Data, n, &[n; 300])).collect();
    let sound = batch(&many);
    let header = BatchHeader::parse(&sound, FIRST_BATCH).unwrap();
    let len = many[0].header().unwrap().record_len();
    // Every byte of the second record but its padding.
    let end = UNIT + len + many[1].header().unwrap().body().end;
    for at in UNIT + len..end {
        let mut bytes = sound.clone();
        bytes[at] ^= 0x10;
        let found = records(&bytes, &header, FIRST_BATCH);
        let hashes: Vec<_> = found
            .iter()
            .filter_map(|found| match found {
                Found::Record { header, .. } => Some(header.hash.0[0]),
                _ => None,
            })
            .collect();
        assert_eq!(hashes, [1, 3, 4, 5], "byte {at}");
    }
}

#[test]
fn headers_are_bound_to_their_place() {
    let bytes = batch(&[record(Kind::Data, 1, b"x")]);
    assert!(BatchHeader::parse(&bytes, FIRST_BATCH).is_ok());
    let elsewhere = BatchHeader::parse(&bytes, 2 * FIRST_BATCH);
    assert_eq!(elsewhere, Err(FormatError::Checksum));
    let offset = FIRST_BATCH + UNIT as u64;
    let parse = |epoch, offset| RecordHeader::parse(&bytes[UNIT..], Binding { epoch, offset });
    assert!(parse(EPOCH, offset).is_ok());
    assert!(parse(EPOCH + 1, offset).is_err() && parse(EPOCH, offset + 64).is_err());
}

fn any_record() -> impl Strategy<Value = NewRecord> {
    let bytes = |max| proptest::collection::vec(any::<u8>(), 0..max).prop_map(Bytes::from);
    (
        (0usize..6, any::<u32>(), any::<[u8; 16]>()),
        (0..=MAX_TICKS, any::<u64>(), proptest::option::of(0u16..300)),
        (any::<bool>(), any::<u64>(), any::<bool>()),
        (bytes(60), bytes(300), bytes(3000)),
    )
        .prop_map(
            |((kind, partition, hash), time, (is_durable, number, is_lasting), parts)| {
                let kind = Kind::ALL[kind];
                NewRecord {
                    kind,
                    partition,
                    hash: ObjectHash(hash),
                    timestamp: Timestamp::from_ticks(time.0).with_offset(time.1),
                    fragment: time.2,
                    is_durable,
                    is_external: false,
                    owes_row: false,
                    is_lasting,
                    name: parts.0,
                    metadata: parts.1,
                    body: match kind {
                        Kind::Data => parts.2,
                        Kind::Durable => Bytes::new(),
                        _ => Bytes::copy_from_slice(&number.to_le_bytes()),
                    },
                }
            },
        )
}

proptest! {
    #[test]
    fn batches_round_trip(written in proptest::collection::vec(any_record(), 1..8)) {
        let bytes = batch(&written);
        let header = BatchHeader::parse(&bytes, FIRST_BATCH).unwrap();
        prop_assert_eq!(header.len as usize, bytes.len());
        let found = records(&bytes, &header, FIRST_BATCH);
        prop_assert_eq!(found.len(), written.len());
        for (number, (found, written)) in found.iter().zip(&written).enumerate() {
            let Found::Record { at, sequence, header } = found else {
                return Err(TestCaseError::fail("damaged"));
            };
            prop_assert_eq!(*sequence, 100 + number as u64);
            let record = &bytes[(at - FIRST_BATCH) as usize..];
            prop_assert_eq!(&record[header.name()], &written.name[..]);
            prop_assert_eq!(&record[header.metadata()], &written.metadata[..]);
            prop_assert_eq!(&record[header.body()], &written.body[..]);
            prop_assert_eq!(Some(*header), written.header());
        }
    }

    /// Any damage is seen: no record is other than it was written.
    #[test]
    fn damage_is_never_believed(
        written in proptest::collection::vec(any_record(), 1..4),
        at in any::<prop::sample::Index>(),
        bit in 0u8..8,
    ) {
        let sound = batch(&written);
        let mut bytes = sound.clone();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let Ok(header) = BatchHeader::parse(&bytes, FIRST_BATCH) else {
            prop_assert!(at < UNIT);
            return Ok(());
        };
        for found in records(&bytes, &header, FIRST_BATCH) {
            if let Found::Record { at, header, .. } = found {
                let from = (at - FIRST_BATCH) as usize;
                let to = from + header.body().end;
                prop_assert_eq!(&bytes[from..to], &sound[from..to]);
            }
        }
    }

    #[test]
    fn noise_never_panics(noise in proptest::collection::vec(any::<u8>(), 0..9000)) {
        super::fuzzing::volume(&noise);
    }
}
