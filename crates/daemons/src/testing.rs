//! What the daemons' tests share: rings of three devices, one on each of three ports.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cairn_ring::{FormatVersion, NewDevice, RebalanceOptions, RingBuilder};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

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

/// Counts warnings and errors that are logged; to be set as a thread's subscriber.
#[derive(Clone, Default)]
pub(crate) struct CountedLines(Arc<AtomicUsize>);

impl CountedLines {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Subscriber for CountedLines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
