//! A pass whose work is only noted, on one of four devices, over memory.
#![allow(clippy::unwrap_used)]

use cairn_disk::{DevicesConfig, FallocateReserve};
use cairn_formats::ini::Section;
use cairn_http::{Body, Request, Service};
use cairn_servers::object::{ObjectServer, ObjectServerConfig};
use cairn_types::HashPath;
use http::StatusCode;

use super::*;
use crate::testing::{Kind, engines, write_rings_of};

const DEVICES: u16 = 4;
const RINGS: [&str; 3] = ["account", "container", "object"];

/// A partition, and whether it was a handoff.
type Processed = (u32, bool);

struct Fake {
    context: PassContext,
    config: PassConfig,
    processed: Arc<Mutex<Vec<Processed>>>,
    /// Handoffs are not handed over.
    keeps_handoffs: bool,
    /// The folder of the rings, replaced by other ones when the first partition is processed.
    new_rings: Option<std::path::PathBuf>,
}

impl PartitionWork for Fake {
    type Scheme = ();
    type Stats = u64;

    const USER_AGENT: &'static str = "fake";
    const VERB: &'static str = "do";
    const PARTICIPLE: &'static str = "done";
    const NEW_RING_ENDS_PASS: bool = true;

    fn context(&self) -> &PassContext {
        &self.context
    }

    fn config(&self) -> &PassConfig {
        &self.config
    }

    fn scheme(_: &StoragePolicy) -> Option<()> {
        Some(())
    }

    fn has_handoffs_first(&self) -> bool {
        self.keeps_handoffs
    }

    async fn process(pass: &Pass<Self>, partition: Arc<LocalPartition<()>>) {
        let work = &pass.work;
        let processed = (partition.partition, partition.is_handoff);
        work.processed.lock().push(processed);
        if partition.is_handoff && work.keeps_handoffs {
            pass.handoff_remains();
        }
        if let Some(folder) = &work.new_rings {
            // A later time of the files.
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            write_rings_of(folder, 3, 1, &RINGS);
        }
        pass.count(|stats| *stats += 1);
    }

    fn count_failed_device(_: &mut u64, _: &LoadedRing) {}
    fn log_new_ring(_: PolicyIndex) {}
    fn report(_: &Pass<Self>) {}
}

/// A node with both partitions of the ring, and those that passes have processed.
struct Node {
    folder: tempfile::TempDir,
    parts: ReplicatorParts,
    port: u16,
    processed: Arc<Mutex<Vec<Processed>>>,
}

impl Node {
    /// The node of a device that is no primary of one of the partitions.
    async fn with_a_handoff() -> Node {
        let folder = tempfile::tempdir().unwrap();
        write_rings_of(folder.path(), DEVICES, 1, &RINGS);
        let policies = Arc::new(PolicySet::single());
        let rings = Rings::open(folder.path(), &policies).unwrap();
        let ring = rings.object(PolicyIndex(0)).unwrap();
        let primaries: Vec<u32> = ring.primaries(0).iter().map(|n| n.device.id).collect();
        let mut all = ring.ring().devices();
        let own = all.find(|device| !primaries.contains(&device.id)).unwrap();
        let (name, port) = (own.device.clone(), own.port);
        std::fs::create_dir_all(folder.path().join(&name)).unwrap();
        let devices = Devices::new(DevicesConfig {
            mount_check: false,
            fallocate_reserve: FallocateReserve::Bytes(0),
            ..DevicesConfig::new(folder.path())
        });
        let hash_path = HashPath::new("", "end");
        let engines = engines(Kind::Memory, &hash_path, &policies);
        let backends = Backends::new(std::time::Duration::from_secs(1));
        let config = ObjectServerConfig::new(hash_path, (*policies).clone());
        let server = ObjectServer::new(config, engines.clone(), devices.clone(), backends.clone());
        for partition in [0, 1] {
            let request = http::Request::put(format!("/{name}/{partition}/a/c/o"));
            let request = request.header("x-timestamp", "1700000001.00000");
            let request = request.header("content-type", "a/b");
            let request: Request = request
                .header("content-length", 1)
                .body(Body::full("x"))
                .unwrap();
            assert_eq!(server.call(request).await.status(), StatusCode::CREATED);
        }
        let parts = ReplicatorParts {
            engines,
            policies,
            rings,
            devices,
            backends,
            clock: Clock::system(),
        };
        Node {
            folder,
            parts,
            port,
            processed: Arc::default(),
        }
    }

    fn work(&self, keeps_handoffs: bool) -> Fake {
        let port = self.port.to_string();
        let options = [
            ("ring_ip", "127.0.0.1"),
            ("bind_port", &port),
            ("concurrency", "1"),
            ("ring_check_interval", "0"),
        ];
        Fake {
            context: PassContext::new(self.parts.clone()),
            config: PassConfig::read(&Section::from_pairs("fake", &options)).unwrap(),
            processed: self.processed.clone(),
            keeps_handoffs,
            new_rings: None,
        }
    }

    /// Partitions processed since the last call.
    fn take(&self) -> Vec<Processed> {
        let mut processed = std::mem::take(&mut *self.processed.lock());
        processed.sort_unstable();
        processed
    }
}

#[tokio::test]
async fn what_is_processed() {
    let node = Node::with_a_handoff().await;
    let everything = PassFilter::default();
    let done = Pass::run(node.work(false), everything.clone()).await;
    assert_eq!(done, (2, 0));
    assert_eq!(node.take(), [(0, true), (1, false)]);
    // Handoffs first: one remains, so the rest has to wait.
    let done = Pass::run(node.work(true), everything).await;
    assert_eq!(done, (1, 1));
    assert_eq!(node.take(), [(0, true)]);
    let only = PassFilter {
        partitions: vec![1],
        ..PassFilter::default()
    };
    assert_eq!(Pass::run(node.work(true), only).await, (1, 0));
    assert_eq!(node.take(), [(1, false)]);
    let elsewhere = PassFilter {
        devices: vec!["other".into()],
        ..PassFilter::default()
    };
    assert_eq!(Pass::run(node.work(false), elsewhere).await, (0, 0));
}

#[tokio::test]
async fn a_new_ring_ends_a_pass() {
    let node = Node::with_a_handoff().await;
    let work = Fake {
        new_rings: Some(node.folder.path().to_owned()),
        ..node.work(false)
    };
    assert_eq!(Pass::run(work, PassFilter::default()).await, (1, 0));
}
