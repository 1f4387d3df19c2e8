//! Rings of a new store: all devices on this host, each in a zone of its own.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use cairn_ring::{FormatVersion, NewDevice, RebalanceOptions, RingBuilder};

use crate::up::layout::{Layout, Shape, write_file};

/// The ports of the three storage servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ports {
    pub(crate) account: u16,
    pub(crate) container: u16,
    pub(crate) object: u16,
}

/// Writes `account`, `container` and `object`, each as `.builder` and `.ring.gz`.
pub(crate) fn write_rings(layout: &Layout, shape: Shape, ports: Ports) -> Result<()> {
    let rings = [("account", ports.account), ("container", ports.container)];
    for (name, port) in rings.into_iter().chain([("object", ports.object)]) {
        let builder = build(shape, port).with_context(|| format!("cannot make the {name} ring"))?;
        write_file(
            &layout.etc.join(format!("{name}.builder")),
            &builder.to_bytes(),
        )?;
        let ring = layout.etc.join(format!("{name}.ring.gz"));
        builder
            .ring_data()
            .save(&ring, FormatVersion::V1)
            .with_context(|| format!("cannot write {}", ring.display()))?;
    }
    Ok(())
}

fn build(shape: Shape, port: u16) -> Result<RingBuilder> {
    let mut builder = RingBuilder::new(shape.part_power, f64::from(shape.replicas), 1)?;
    for (zone, device) in (1..).zip(Layout::device_names(shape.devices)) {
        builder.add_dev(NewDevice {
            id: None,
            region: 1,
            zone,
            weight: 100.0,
            ip: "127.0.0.1".into(),
            port,
            device,
            replication_ip: None,
            replication_port: None,
            meta: String::new(),
        })?;
    }
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    builder.rebalance(RebalanceOptions {
        seed: None,
        now,
        log: None,
    })?;
    builder.assign_id(|| format!("{:032x}", rand::random::<u128>()));
    Ok(builder)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_partition_is_on_different_devices() {
        let builder = build(
            Shape {
                devices: 4,
                replicas: 3,
                part_power: 6,
            },
            6200,
        )
        .unwrap();
        let ring = builder.ring().unwrap();
        assert_eq!((ring.partition_count(), ring.device_count()), (64, 4));
        assert!((0..64).all(|partition| ring.primaries(partition).len() == 3));
    }
}
