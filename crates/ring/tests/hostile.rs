//! Untrusted ring files: random, damaged, truncated, absurd. Reading them gives an error that
//! describes the problem, never a panic, and never allocates memory for bytes that are not there.

#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_ring::{
    Device, FormatVersion, RebalanceOptions, Ring, RingBuilder, RingData, RingError, RingFile, Row,
};
use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

fn version_1(json: &str, table: &[u8]) -> Vec<u8> {
    let mut bytes = b"R1NG\0\x01".to_vec();
    bytes.extend((json.len() as u32).to_be_bytes());
    bytes.extend(json.as_bytes());
    bytes.extend(table);
    gzip(&bytes)
}

const DEVICE: &str = r#"{"id": 0, "region": 1, "zone": 1, "ip": "10.0.0.1", "port": 6200,
    "device": "sda", "weight": 1.0}"#;

fn metadata(devs: &str, part_shift: &str, replicas: &str, more: &str) -> String {
    format!(
        "{{\"devs\": [{devs}], \"part_shift\": {part_shift}, \"replica_count\": {replicas}{more}}}"
    )
}

#[track_caller]
fn refused(bytes: &[u8], because: &str) {
    let error = Ring::from_bytes(bytes).unwrap_err().to_string();
    assert!(
        error.contains(because),
        "{error:?} does not say {because:?}"
    );
}

#[test]
fn wrong_files_say_what_is_wrong() {
    refused(b"", "gzip");
    refused(b"R1NG", "gzip");
    refused(&gzip(b"R1"), "magic");
    refused(&gzip(b"GIF89a"), "magic");
    refused(&gzip(b"R1NG\0\x07"), "version 7");
    refused(
        &gzip(b"R1NG\0\x01\xff\xff\xff\xff{}"),
        "4294967295 bytes long",
    );
    refused(
        &gzip(b"R1NG\0\x01\0\0\0\x09{}"),
        "9 bytes expected, 2 found",
    );
    refused(&gzip(b"R1NG\0\x02"), "index offset");
    refused(
        &gzip(&[b"R1NG\0\x02".as_slice(), &[0xff; 40]].concat()),
        "index",
    );
    refused(&version_1("[]", b""), "metadata");
    let shift = |shift| version_1(&metadata(DEVICE, shift, "1", ""), &[0, 0]);
    refused(&shift("33"), "part_shift is 33");
    refused(&shift("-1"), "part_shift is -1");
    refused(&shift("\"32\""), "metadata");
    refused(&shift("0"), "8589934592 bytes long");
    refused(
        &version_1(&metadata(DEVICE, "32", "4294967295", ""), b""),
        "bytes long",
    );
    refused(
        &version_1(
            &metadata(DEVICE, "32", "1", ", \"byteorder\": \"pdp\""),
            b"",
        ),
        "byteorder",
    );
    refused(
        &version_1(&metadata(DEVICE, "31", "1", ""), &[0, 0]),
        "1 partitions of 2",
    );
    refused(
        &version_1(&metadata(DEVICE, "31", "1", ""), &[0, 0, 0]),
        "table",
    );
    refused(
        &version_1(&metadata(DEVICE, "32", "1", ""), &[1, 0]),
        "device 1, which does not",
    );
    refused(
        &version_1(&metadata("null", "32", "1", ""), &[0, 0]),
        "device 0, which does not",
    );
    let moved = format!("null, {DEVICE}");
    refused(
        &version_1(&metadata(&moved, "32", "1", ""), &[0, 0]),
        "position 1 says its id is 0",
    );
    let heavy = DEVICE.replace("1.0", "-1.0");
    refused(
        &version_1(&metadata(&heavy, "32", "1", ""), &[0, 0]),
        "weight",
    );
    let port = DEVICE.replace("6200", "62000000");
    refused(
        &version_1(&metadata(&port, "32", "1", ""), &[0, 0]),
        "metadata",
    );
    assert!(Ring::from_bytes(&version_1(&metadata(DEVICE, "32", "1", ""), &[0, 0])).is_ok());
}

#[test]
fn old_rings_without_newer_keys_load() {
    let json = metadata(
        r#"null, {"id": 1, "zone": 3, "ip": "10.0.0.1", "port": 6200, "device": "sda", "weight": 1}"#,
        "32",
        "1",
        ", \"byteorder\": \"big\", \"unknown\": [1]",
    );
    let ring = Ring::from_bytes(&version_1(&json, &[0, 1])).unwrap();
    let device = &ring.primaries(0)[0].device;
    assert_eq!((device.region, device.replication_port), (1, 6200));
    assert_eq!(
        (device.replication_ip.as_str(), device.meta.as_str()),
        ("10.0.0.1", "")
    );
    assert_eq!(ring.version(), None);
    assert!(ring.primaries(1).is_empty());
}

/// A gigabyte of zeros in a megabyte is refused by the maximum size of the table.
#[test]
fn a_gzip_bomb_is_refused() {
    let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
    bomb.write_all(b"R1NG\0\x02").unwrap();
    let zeros = vec![0; 1 << 20];
    for _ in 0..700 {
        bomb.write_all(&zeros).unwrap();
    }
    let bomb = bomb.finish().unwrap();
    assert!(bomb.len() < 1 << 20);
    refused(&bomb, "the uncompressed ring is said to be");
}

#[test]
fn damage_is_found_by_checksums() {
    let data = sample(3, &[8, 8, 2], 5, 2);
    let good = Ring::from_data(data)
        .unwrap()
        .to_bytes(FormatVersion::V2)
        .unwrap();
    for cut in 0..good.len() {
        assert!(Ring::from_bytes(&good[..cut]).is_err(), "cut at {cut}");
    }
    // Recompressed with one assignment changed: gzip's checksum is right, the section's SHA-256 is
    // not.
    let mut plain = Vec::new();
    let mut gunzip = flate2::read::GzDecoder::new(good.as_slice());
    std::io::Read::read_to_end(&mut gunzip, &mut plain).unwrap();
    assert!(
        Ring::from_bytes(&gzip(&plain)).is_ok(),
        "recompressed files load"
    );
    let index = plain.windows(9).position(|w| w == b"{\"swift/r").unwrap();
    plain[index - 9] ^= 1;
    refused(&gzip(&plain), "sha256");
}

fn sample(part_power: u32, rows: &[usize], devices: u32, dev_id_bytes: u8) -> RingData {
    let device = |id: u32| {
        Arc::new(Device {
            id,
            region: id % 2,
            zone: id % 3,
            weight: f64::from(id) / 3.0,
            ip: format!("10.0.0.{}", id % 4),
            port: 6200,
            device: format!("sd\u{1F600}\"{id}"),
            replication_ip: "fe80::1".to_owned(),
            replication_port: 0,
            meta: "\\é\n".to_owned(),
        })
    };
    RingData {
        devs: (0..devices)
            .map(|id| (id != 1).then(|| device(id)))
            .collect(),
        part_power,
        next_part_power: None,
        version: Some(7),
        dev_id_bytes,
        rows: rows
            .iter()
            .enumerate()
            .map(|(replica, length)| {
                let ids = (0..*length).map(|part| {
                    let id = (part * 7 + replica) as u32 % devices;
                    if id == 1 { 0 } else { id }
                });
                Row::new(&ids.collect::<Vec<_>>(), dev_id_bytes)
            })
            .collect(),
        format_version: FormatVersion::V1,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(Ring::from_bytes(&bytes).is_err());
        let _ = RingBuilder::from_bytes(&bytes);
        for version in [1, 2] {
            let mut inner = b"R1NG\0".to_vec();
            inner.push(version);
            inner.extend(&bytes);
            let _ = Ring::from_bytes(&gzip(&inner));
        }
    }

    #[test]
    fn damaged_builders_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/rings");
        let swift = std::fs::read(golden.join("fractional.builder")).unwrap();
        let json = std::fs::read(golden.join("json.builder")).unwrap();
        for mut bytes in [swift, json] {
            for (at, byte) in &changes {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            if let Ok(mut builder) = RingBuilder::from_bytes(&bytes)
                && builder.part_power() < 12
            {
                let _ = builder.validate();
                let _ = builder.dispersion_report(|_| true);
                let options = RebalanceOptions { seed: None, now: 1_800_000_000, log: None };
                let _ = builder.rebalance(options);
            }
        }
    }

    #[test]
    fn damaged_rings_never_panic(
        two in any::<bool>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let version = if two { FormatVersion::V2 } else { FormatVersion::V1 };
        let ring = Ring::from_data(sample(3, &[8, 8, 2], 5, 2)).unwrap();
        let bytes = ring.to_bytes(version).unwrap();
        let mut plain = Vec::new();
        let mut gunzip = flate2::read::GzDecoder::new(bytes.as_slice());
        std::io::Read::read_to_end(&mut gunzip, &mut plain).unwrap();
        for (at, byte) in changes {
            let at = at.index(plain.len());
            plain[at] = byte;
        }
        if let Ok(ring) = Ring::from_bytes(&gzip(&plain)) {
            for part in 0..ring.partition_count().min(64) {
                let nodes = ring.primaries(part).len() + ring.handoffs(part).count();
                prop_assert!(nodes <= ring.device_count());
            }
        }
    }

    #[test]
    fn rings_round_trip(
        part_power in 0..7_u32,
        whole in 1..4_usize,
        fraction in 0.0..1.0_f64,
        devices in 2..70_u32,
        wide in any::<bool>(),
        next in prop::option::of(1..8_u32),
    ) {
        let parts = 1 << part_power;
        let mut rows = vec![parts; whole];
        rows.push((parts as f64 * fraction) as usize);
        let mut data = sample(part_power, &rows, devices, if wide { 4 } else { 2 });
        data.next_part_power = next;
        let ring = Ring::from_data(data).unwrap();
        if wide {
            prop_assert!(matches!(
                ring.to_bytes(FormatVersion::V1),
                Err(RingError::DeviceIdsTooWide)
            ));
        } else {
            let again = Ring::from_bytes(&ring.to_bytes(FormatVersion::V1).unwrap()).unwrap();
            prop_assert!(again.data().same_ring(ring.data()));
            prop_assert_eq!(again.replica_count(), ring.replica_count());
        }
        let bytes = ring.to_bytes(FormatVersion::V2).unwrap();
        let again = Ring::from_bytes(&bytes).unwrap();
        prop_assert!(again.data().same_ring(ring.data()));
        prop_assert_eq!(again.data().dev_id_bytes, ring.data().dev_id_bytes);
        prop_assert_eq!(again.to_bytes(FormatVersion::V2).unwrap(), bytes);
        // Primaries and handoffs never contain a device twice, and in small rings contain all
        // devices except those that occur only in the skipped first partition.
        let mut ids: Vec<u32> = ring.primaries(0).iter().map(|n| n.device.id).collect();
        ids.extend(ring.handoffs(0).map(|n| n.device.id));
        prop_assert!(ids.len() <= ring.assigned_device_count());
        let found = ids.len();
        ids.sort_unstable();
        ids.dedup();
        prop_assert_eq!(ids.len(), found);
    }
}

/// The file changes under a running server.
#[test]
fn a_ring_file_follows_changes_and_survives_bad_ones() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("object.ring.gz");
    let save = |version| {
        let mut data = sample(3, &[8, 8], 5, 2);
        data.version = Some(version);
        data.save(&path, FormatVersion::V1).unwrap();
        touch(&path, version);
    };
    save(1);
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    let ring = RingFile::open(&path, Duration::from_secs(15), start).unwrap();
    save(2);
    assert!(!ring.refresh(after(14)).unwrap(), "not due yet");
    assert_eq!(ring.get().version(), Some(1));
    assert!(ring.refresh(after(15)).unwrap());
    assert_eq!(ring.get().version(), Some(2));
    assert!(!ring.refresh(after(40)).unwrap(), "unchanged");

    std::fs::write(&path, b"half a ring").unwrap();
    let error = ring.refresh(after(60)).unwrap_err().to_string();
    assert!(error.contains("object.ring.gz"), "{error}");
    assert_eq!(ring.get().version(), Some(2), "the old ring stays");
    std::fs::remove_file(&path).unwrap();
    assert!(ring.refresh(after(80)).is_err());
    save(3);
    assert!(ring.refresh(after(100)).unwrap());
    assert_eq!(ring.get().version(), Some(3));
    assert!(RingFile::open(dir.path().join("none"), Duration::ZERO, start).is_err());
}

/// Sets a distinct modification time for each version, so that no test depends on the clock's
/// resolution.
fn touch(path: &Path, version: u64) {
    let file = std::fs::File::options().write(true).open(path).unwrap();
    let time = std::time::UNIX_EPOCH + Duration::from_secs(1_600_000_000 + version);
    file.set_modified(time).unwrap();
}
