//! Helpers of the daemons' tests: rings of three devices, one on each of three ports.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cairn_disk::{DiskFileConfig, DiskFileEngine, Engine, Engines};
use cairn_memory::MemoryEngine;
use cairn_ring::{FormatVersion, NewDevice, RebalanceOptions, RingBuilder};
use cairn_types::{HashPath, PolicySet};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The engine of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Files,
    Memory,
}

/// Engines of this kind, one for all policies.
pub(crate) fn engines(kind: Kind, hash_path: &HashPath, policies: &PolicySet) -> Engines {
    let hash_path = hash_path.clone();
    let engine: Arc<dyn Engine> = match kind {
        Kind::Files => {
            let config = DiskFileConfig::default();
            Arc::new(DiskFileEngine::new(hash_path, policies, config))
        }
        Kind::Memory => Arc::new(MemoryEngine::new(hash_path, policies)),
    };
    Engines::uniform(policies, engine)
}

/// Generates tests of async functions that take a [`Kind`]: one per engine.
macro_rules! over_engines {
    ($($name:ident),+ $(,)?) => {
        mod over_files {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(crate::testing::Kind::Files).await;
            })+
        }

        mod over_memory {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(crate::testing::Kind::Memory).await;
            })+
        }
    };
}
pub(crate) use over_engines;

/// Writes rings of three replicas, on `d1` of 127.0.0.1:6201 to `d3` of port 6203.
pub(crate) fn write_rings(folder: &Path) {
    write_rings_of(folder, 3, 3, &["account", "container", "object"]);
}

/// Writes rings of three replicas, on `d1` of 127.0.0.1:6201 and so on.
pub(crate) fn write_rings_of(folder: &Path, devices: u16, part_power: u32, names: &[&str]) {
    let mut builder = RingBuilder::new(part_power, 3.0, 1).unwrap();
    for zone in 1..=u32::from(devices) {
        let port = 6200 + zone as u16;
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
    for name in names {
        let path = folder.join(format!("{name}.ring.gz"));
        builder.ring_data().save(path, FormatVersion::V1).unwrap();
    }
}

/// Subscriber that counts logged warnings and errors.
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
