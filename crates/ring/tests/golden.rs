//! Ring files made by OpenStack Swift (`golden/rings/make.py`): they load, look-ups give Swift's
//! results, and the same builder steps here give the same ring.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use cairn_ring::{FormatVersion, NewDevice, RebalanceOptions, Ring, RingBuilder, Seed};
use cairn_types::HashPath;
use serde_json::{Value, json};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/rings")
}

fn look_ups() -> Vec<Value> {
    let text = std::fs::read_to_string(golden().join("look_ups.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn rings(golden_case: &Value) -> Vec<Ring> {
    let names = golden_case["rings"].as_array().unwrap().iter();
    names
        .map(|name| Ring::load(golden().join(name.as_str().unwrap())).unwrap())
        .collect()
}

#[test]
fn look_ups_are_swifts() {
    let hashes = HashPath::new("", "endcap");
    for case in look_ups() {
        for ring in rings(&case) {
            assert_eq!(ring.part_shift(), 26);
            assert_eq!(ring.partition_count(), 64);
            assert_eq!(json!(ring.replica_count()), case["replicas"]);
            for name in case["names"].as_array().unwrap() {
                let mut words = name[0].as_str().unwrap().splitn(3, '/');
                let account = words.next().unwrap();
                let hash = hashes.hash(account, words.next(), words.next());
                assert_eq!(json!(ring.partition(hash)), name[1], "{name}");
            }
            for (part, nodes) in case["nodes"].as_array().unwrap().iter().enumerate() {
                let part = part as u32;
                let primaries: Vec<u32> =
                    ring.primaries(part).iter().map(|n| n.device.id).collect();
                let handoffs: Vec<u32> = ring.handoffs(part).map(|n| n.device.id).collect();
                assert_eq!(json!([primaries, handoffs]), *nodes, "partition {part}");
            }
        }
    }
}

#[test]
fn both_formats_hold_the_same_and_survive_rewriting() {
    for case in look_ups() {
        let rings = rings(&case);
        for ring in &rings {
            for version in [FormatVersion::V1, FormatVersion::V2] {
                let bytes = ring.to_bytes(version).unwrap();
                let again = Ring::from_bytes(&bytes).unwrap();
                assert_eq!(again.format_version(), version);
                assert!(again.data().same_ring(rings[0].data()));
            }
        }
    }
}

#[test]
fn metadata_is_read() {
    let ring = Ring::load(golden().join("mixed-v1.ring.gz")).unwrap();
    let device = ring.device(3).unwrap();
    assert_eq!(
        device.to_string(),
        "d3r1z2-10.1.2.1:6200R[fe80::2]:6300/sd0_\"rack \"7\" é\""
    );
    assert_eq!(device.weight, 75.5);
    assert!(ring.device(1).is_none(), "removed devices leave a hole");
    assert_eq!(ring.device_count(), 7);
    assert_eq!(ring.assigned_device_count(), 6);
    assert_eq!(ring.weighted_device_count(), 6);
}

/// Swift's own builder files are read, changed and written back in Swift's format.
#[test]
fn swifts_builder_files_are_read_and_written() {
    for case in look_ups() {
        let ring = rings(&case).remove(0);
        let name = case["rings"][0]
            .as_str()
            .unwrap()
            .replace("-v1.ring.gz", "");
        let bytes = std::fs::read(golden().join(format!("{name}.builder"))).unwrap();
        let mut builder = RingBuilder::from_bytes(&bytes).unwrap();
        assert!(builder.ring_data().same_ring(ring.data()));
        assert_eq!(builder.id(), Some("golden"));
        assert_eq!(builder.min_part_hours(), 1);
        assert_eq!(builder.min_part_seconds_left(1_700_000_600), 3000);
        builder.validate().unwrap();
        builder.remove_dev(2).unwrap();
        let written = builder.to_bytes();
        assert_eq!(written[..2], [0x80, 2], "still a pickle");
        let again = RingBuilder::from_bytes(&written).unwrap();
        assert!(again.ring_data().same_ring(&builder.ring_data()));
        assert!(again.device(2).unwrap().removing);
        assert_eq!(again.to_bytes(), written);
    }
}

#[test]
fn the_builder_places_as_swifts_does() {
    let devices = [
        (1, 1, 1, 0, 100.0),
        (1, 1, 1, 1, 50.0),
        (1, 1, 2, 0, 100.0),
        (1, 2, 1, 0, 75.5),
        (1, 2, 1, 1, 100.0),
        (2, 1, 1, 0, 100.0),
        (2, 1, 2, 0, 0.0),
        (2, 2, 1, 0, 120.0),
    ];
    for case in look_ups() {
        let mut builder = RingBuilder::new(6, case["replicas"].as_f64().unwrap(), 1).unwrap();
        for (region, zone, host, disk, weight) in devices {
            builder
                .add_dev(NewDevice {
                    id: None,
                    region,
                    zone,
                    weight,
                    ip: format!("10.{region}.{zone}.{host}"),
                    port: 6200,
                    device: format!("sd{disk}"),
                    replication_ip: Some(format!("fe80::{zone}")),
                    replication_port: Some(6300),
                    meta: "rack \"7\" é".to_owned(),
                })
                .unwrap();
        }
        let rebalance = |builder: &mut RingBuilder, seed: &str| {
            let options = RebalanceOptions {
                seed: Some(Seed::Text(seed.to_owned())),
                now: 1_700_000_000,
                log: None,
            };
            builder.rebalance(options).unwrap()
        };
        rebalance(&mut builder, "golden");
        builder.remove_dev(1).unwrap();
        let outcome = rebalance(&mut builder, "golden again");
        assert_eq!(outcome.removed_devices, 1);
        assert!((outcome.balance - case["balance"].as_f64().unwrap()).abs() < 1e-9);
        for ring in rings(&case) {
            assert!(ring.data().same_ring(&builder.ring_data()));
        }
    }
}

/// Builders used to be JSON, which Swift's tools reject.
#[test]
fn a_json_builder_is_read_and_saved_as_a_pickle() {
    let builder = RingBuilder::load(golden().join("json.builder")).unwrap();
    assert_eq!(builder.part_power(), 6);
    assert_eq!(builder.devices().filter(|dev| dev.removing).count(), 1);
    let bytes = builder.to_bytes();
    assert_eq!(bytes.first(), Some(&0x80));
    let again = RingBuilder::from_bytes(&bytes).unwrap();
    assert!(again.ring_data().same_ring(&builder.ring_data()));
    assert!(again.devices().eq(builder.devices()));
}
