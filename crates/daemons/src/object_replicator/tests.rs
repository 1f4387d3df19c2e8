//! Four nodes in this process, each with a server and a device of its own, over Swift's layout, over
//! memory, or some over either; three replicas.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::time::Duration;

use cairn_disk::engine::{Content, Sendable};
use cairn_disk::{
    Devices, DevicesConfig, FallocateReserve, FragmentChoice, ObjectId, PartitionKey,
};
use cairn_formats::ini::Section;
use cairn_http::{Body, Clock, Request, Service};
use cairn_peer::{Backends, Rings};
use cairn_servers::object::{ObjectServer, ObjectServerConfig};
use cairn_types::{HashPath, PolicyIndex, PolicySet, Timestamp};
use http::StatusCode;

use super::*;
use crate::testing::{Kind, engines, over_engines, write_rings_of};

const NODES: usize = 4;
const PARTITION: u32 = 0;

/// A node, by its number.
struct Node {
    server: Arc<ObjectServer>,
    parts: ReplicatorParts,
}

struct Cluster {
    folder: tempfile::TempDir,
    nodes: Vec<Node>,
}

fn port(node: usize) -> u16 {
    6201 + node as u16
}

fn device(node: usize) -> String {
    format!("d{}", node + 1)
}

fn id(object: &str) -> ObjectId {
    let hash = HashPath::new("", "end").hash("a", Some("c"), Some(object));
    PartitionKey::new(PolicyIndex(0), PARTITION).object(hash)
}

/// Seconds after some moment of late.
fn at(seconds: u64) -> Timestamp {
    Timestamp::from_secs(4_000_000_000 + seconds)
}

impl Cluster {
    fn new(kinds: [Kind; NODES]) -> Cluster {
        let folder = tempfile::tempdir().unwrap();
        write_rings_of(
            folder.path(),
            NODES as u16,
            1,
            &["account", "container", "object"],
        );
        let backends = Backends::new(Duration::from_secs(1));
        let policies = Arc::new(PolicySet::single());
        let rings = Rings::open(folder.path(), &policies).unwrap();
        let mut nodes = Vec::new();
        for (node, kind) in kinds.into_iter().enumerate() {
            let root = folder.path().join(format!("n{node}"));
            std::fs::create_dir_all(root.join(device(node))).unwrap();
            let devices = Devices::new(DevicesConfig {
                mount_check: false,
                fallocate_reserve: FallocateReserve::Bytes(0),
                ..DevicesConfig::new(&root)
            });
            let hash_path = HashPath::new("", "end");
            let engines = engines(kind, &hash_path, &policies);
            let config = ObjectServerConfig::new(hash_path, (*policies).clone());
            let server =
                ObjectServer::new(config, engines.clone(), devices.clone(), backends.clone());
            let address = SocketAddr::from(([127, 0, 0, 1], port(node)));
            backends.register_local(address, server.clone());
            let parts = ReplicatorParts {
                engines,
                policies: policies.clone(),
                rings: rings.clone(),
                devices,
                backends: backends.clone(),
                clock: Clock::system(),
            };
            nodes.push(Node { server, parts });
        }
        Cluster { folder, nodes }
    }

    /// The partition's primaries, and the node that is none of them.
    fn places(&self) -> (Vec<usize>, usize) {
        let ring = self.nodes[0].parts.rings.object(PolicyIndex(0)).unwrap();
        let primaries = ring.primaries(PARTITION).into_iter();
        let number = |node: cairn_peer::Node| usize::from(node.address.port() - port(0));
        let primaries: Vec<usize> = primaries.map(number).collect();
        let handoff = (0..NODES).find(|node| !primaries.contains(node));
        (primaries, handoff.unwrap())
    }

    async fn send(
        &self,
        node: usize,
        method: &str,
        object: &str,
        time: Timestamp,
        body: &'static [u8],
    ) -> StatusCode {
        let request = http::Request::builder()
            .method(method)
            .uri(format!("/{}/{PARTITION}/a/c/{object}", device(node)))
            .header("x-timestamp", time.internal())
            .header("x-object-meta-time", time.internal())
            .header("content-type", "a/b")
            .header("content-length", body.len());
        let request: Request = request.body(Body::full(body)).unwrap();
        self.nodes[node].server.call(request).await.status()
    }

    async fn pass(&self, node: usize, sync_method: &str) -> ReplicationStats {
        let cache = self.folder.path().to_str().unwrap();
        let section = Section::from_pairs(
            "object-replicator",
            &[
                ("ring_ip", "127.0.0.1"),
                ("bind_port", &port(node).to_string()),
                ("sync_method", sync_method),
                ("recon_cache_path", cache),
            ],
        );
        let config = ReplicatorConfig::read(&section).unwrap();
        let replicator = ObjectReplicator::new(config, self.nodes[node].parts.clone());
        replicator.pass(&PassFilter::default()).await
    }

    /// A node's replica of an object: when it was written, with its content, or deleted.
    fn seen(&self, node: usize, object: &str) -> Option<(Timestamp, Option<Vec<u8>>)> {
        let parts = &self.nodes[node].parts;
        let disk = parts.devices.get(&device(node)).unwrap().disk().unwrap();
        let engine = parts.engines.of(PolicyIndex(0)).unwrap();
        let choice = FragmentChoice::default();
        match engine
            .open_to_send(&disk, id(object), 1 << 20, choice)
            .unwrap()
        {
            Sendable::Nothing => None,
            Sendable::Tombstone(_, time) => Some((time, None)),
            Sendable::Object(_, open) => {
                let Content::Inline(content) = open.content else {
                    panic!("not read along");
                };
                Some((open.info.timestamp(), Some(content.to_vec())))
            }
        }
    }

    fn hashes(&self, node: usize) -> cairn_disk::engine::Hashed {
        let parts = &self.nodes[node].parts;
        let disk = parts.devices.get(&device(node)).unwrap().disk().unwrap();
        let engine = parts.engines.of(PolicyIndex(0)).unwrap();
        engine.suffix_hashes(&disk, id("x").at, &[], true).unwrap()
    }

    fn partitions(&self, node: usize) -> Vec<u32> {
        let parts = &self.nodes[node].parts;
        let disk = parts.devices.get(&device(node)).unwrap().disk().unwrap();
        let engine = parts.engines.of(PolicyIndex(0)).unwrap();
        engine.partitions(&disk, PolicyIndex(0)).unwrap()
    }
}

/// One of three writes each comes to one primary, and the last to a handoff: all are everywhere in the
/// end, and nothing on the handoff.
async fn all_comes_to_all(kinds: [Kind; NODES]) {
    let cluster = Cluster::new(kinds);
    let (primaries, handoff) = cluster.places();
    let [one, two, three] = primaries[..] else {
        panic!("{primaries:?}");
    };
    let created = StatusCode::CREATED;
    assert_eq!(cluster.send(one, "PUT", "o", at(1), b"old").await, created);
    assert_eq!(
        cluster.send(two, "PUT", "o", at(2), b"newer").await,
        created
    );
    assert_eq!(cluster.send(one, "PUT", "p", at(1), b"gone").await, created);
    let deleted = cluster.send(three, "DELETE", "p", at(3), b"").await;
    assert_eq!(deleted, StatusCode::NOT_FOUND);
    assert_eq!(
        cluster.send(two, "PUT", "q", at(1), b"posted").await,
        created
    );
    let posted = cluster.send(two, "POST", "q", at(4), b"").await;
    assert_eq!(posted, StatusCode::ACCEPTED);
    assert_eq!(
        cluster.send(handoff, "PUT", "r", at(5), b"far").await,
        created
    );
    for node in [handoff, one, two, three] {
        let stats = cluster.pass(node, "ssync").await;
        assert_eq!(stats.failure, 0, "{stats:?}");
    }
    for node in primaries {
        let content = |text: &[u8]| Some(text.to_vec());
        assert_eq!(cluster.seen(node, "o"), Some((at(2), content(b"newer"))));
        assert_eq!(cluster.seen(node, "p"), Some((at(3), None)));
        assert_eq!(cluster.seen(node, "q"), Some((at(4), content(b"posted"))));
        assert_eq!(cluster.seen(node, "r"), Some((at(5), content(b"far"))));
        assert_eq!(cluster.hashes(node).hashes, cluster.hashes(one).hashes);
    }
    assert_eq!(cluster.partitions(handoff), [0; 0]);
    let again = cluster.pass(one, "ssync").await;
    assert_eq!((again.suffix_sync, again.failure), (0, 0));
}

async fn alike(kind: Kind) {
    all_comes_to_all([kind; NODES]).await;
}

/// Nodes of one cluster, and replicas of one partition, need not have the same engine.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_with_different_engines() {
    let (files, memory) = (Kind::Files, Kind::Memory);
    all_comes_to_all([files, memory, files, memory]).await;
    all_comes_to_all([memory, files, memory, files]).await;
}

/// An engine without files is not asked for any: it sends by SSYNC whatever the conf says.
#[tokio::test(flavor = "multi_thread")]
async fn without_files_rsync_is_ssync() {
    let cluster = Cluster::new([Kind::Memory; NODES]);
    let (primaries, _) = cluster.places();
    cluster.send(primaries[0], "PUT", "o", at(1), b"x").await;
    let stats = cluster.pass(primaries[0], "rsync").await;
    assert_eq!(stats.failure, 0, "{stats:?}");
    for node in primaries {
        assert_eq!(cluster.seen(node, "o"), Some((at(1), Some(b"x".to_vec()))));
    }
}

over_engines!(alike);
