//! A proxy over rings in a folder and servers in this process.
#![allow(clippy::unwrap_used)]
// Each test uses a part of it.
#![allow(dead_code)]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use cairn_formats::ini::Section;
use cairn_http::{Clock, SwiftInfo};
use cairn_peer::{Backends, Rings};
use cairn_proxy::{Proxy, ProxySettings};
use cairn_ring::{Device, FormatVersion, Ring, RingData, Row};
use cairn_types::{Constraints, HashPath, PolicyIndex, PolicyKind, PolicySet, StoragePolicy};

/// Address of a device's server.
pub(crate) fn address(device: u16) -> SocketAddr {
    ([127, 0, 0, 1], 10_000 + device).into()
}

/// Devices of a single partition: the first ones are primaries of everything.
pub(crate) fn ring(devices: u16, replicas: u16) -> Ring {
    let device = |id: u16| Some(Arc::new(Device::at(u32::from(id), address(id))));
    let rows = (0..replicas).map(|replica| Row::new(&[u32::from(replica); 2], 2));
    Ring::from_data(RingData {
        devs: (0..devices).map(device).collect(),
        part_power: 1,
        next_part_power: None,
        version: None,
        dev_id_bytes: 2,
        rows: rows.collect(),
        format_version: FormatVersion::V1,
    })
    .unwrap()
}

/// Saves `ring` as the ring of accounts, containers and policy 0.
pub(crate) fn save_rings(dir: &Path, ring: &Ring) {
    for name in ["account", "container", "object"] {
        let path = dir.join(format!("{name}.ring.gz"));
        ring.save(path, FormatVersion::V1).unwrap();
    }
}

/// One policy, of replicas.
pub(crate) fn one_policy() -> PolicySet {
    PolicySet::new(vec![StoragePolicy {
        index: PolicyIndex(0),
        name: "zero".to_owned(),
        aliases: Vec::new(),
        is_default: true,
        deprecated: false,
        kind: PolicyKind::Replication,
    }])
    .unwrap()
}

/// A proxy with the rings in `dir` and these options in its conf.
pub(crate) fn proxy(
    dir: &Path,
    policies: PolicySet,
    options: &[(&str, &str)],
    backends: Arc<Backends>,
) -> Arc<Proxy> {
    let policies = Arc::new(policies);
    let settings = ProxySettings {
        policy_sections: Default::default(),
        section: Section::from_pairs("app:proxy-server", options),
        constraints: Arc::new(Constraints::default()),
        policies: policies.clone(),
        hash_path: HashPath::new("", "test"),
        rings: Rings::open(dir, &policies).unwrap(),
        swift_info: Arc::new(SwiftInfo::default()),
        clock: Clock::system(),
    };
    Proxy::new(settings, backends).unwrap()
}
