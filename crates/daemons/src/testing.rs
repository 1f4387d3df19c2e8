//! What the daemons' tests share: rings of three devices, one on each of three ports.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use cairn_ring::{FormatVersion, NewDevice, RebalanceOptions, RingBuilder};

/// Three replicas, on `d1` of 127.0.0.1:6201 to `d3` of port 6203.
pub(crate) fn write_rings(folder: &Path) {
    let mut builder = RingBuilder::new(3, 3.0, 1).unwrap();
    for (zone, port) in [(1, 6201), (2, 6202), (3, 6203)] {
        let device = NewDevice {
            id: None,
            region: 1,
            zone,
            weight: 1.0,
            ip: "127.0.0.1".into(),
            port,
            device: format!("d{zone}"),
            replication_ip: None,
            replication_port: None,
            meta: String::new(),
        };
        builder.add_dev(device).unwrap();
    }
    builder
        .rebalance(RebalanceOptions {
            seed: None,
            now: 0,
            log: None,
        })
        .unwrap();
    for name in ["account", "container", "object"] {
        let path = folder.join(format!("{name}.ring.gz"));
        builder.ring_data().save(path, FormatVersion::V1).unwrap();
    }
}
