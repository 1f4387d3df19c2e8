//! Four devices and a policy of 2 + 1 fragments, in this process.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::time::Duration;

use cairn_disk::engine::{Content, Sendable};
use cairn_disk::{
    Devices, DevicesConfig, FallocateReserve, FragmentChoice, FragmentPreference, PartitionKey,
};
use cairn_erasure::Codec;
use cairn_formats::ini::Section;
use cairn_http::{Body, Request, Service};
use cairn_peer::{Backends, Node, Rings};
use cairn_servers::object::{ObjectServer, ObjectServerConfig};
use cairn_types::{
    EcType, ErasureScheme, HashPath, PolicyIndex, PolicyKind, PolicySet, StoragePolicy, Timestamp,
};
use http::StatusCode;

use super::*;
use crate::testing::{Kind, engines, over_engines, write_rings_of};

const POLICY: PolicyIndex = PolicyIndex(1);
const CONTENT: &[u8] = b"what an object is made of, in two fragments and one of parity";

struct Cluster {
    folder: tempfile::TempDir,
    server: Arc<ObjectServer>,
    parts: ReplicatorParts,
    scheme: ErasureScheme,
}

fn policies(scheme: ErasureScheme) -> PolicySet {
    let policy = |index, name: &str, kind| StoragePolicy {
        index: PolicyIndex(index),
        name: name.into(),
        aliases: Vec::new(),
        is_default: index == 0,
        deprecated: false,
        kind,
    };
    PolicySet::new(vec![
        policy(0, "gold", PolicyKind::Replication),
        policy(1, "ec", PolicyKind::ErasureCoding(scheme)),
    ])
    .unwrap()
}

fn cluster(kind: Kind) -> Cluster {
    let folder = tempfile::tempdir().unwrap();
    let scheme = ErasureScheme::new(EcType::IsaLRsVand, 2, 1).unwrap();
    let policies = Arc::new(policies(scheme));
    write_rings_of(
        folder.path(),
        4,
        1,
        &["account", "container", "object", "object-1"],
    );
    let root = folder.path().join("dev");
    let backends = Backends::new(Duration::from_secs(1));
    let devices = Devices::new(DevicesConfig {
        mount_check: false,
        fallocate_reserve: FallocateReserve::Bytes(0),
        ..DevicesConfig::new(&root)
    });
    let hash_path = HashPath::new("", "end");
    let engines = engines(kind, &hash_path, &policies);
    let config = ObjectServerConfig::new(hash_path, (*policies).clone());
    let server = ObjectServer::new(config, engines.clone(), devices.clone(), backends.clone());
    for node in 1..=4 {
        std::fs::create_dir_all(root.join(format!("d{node}"))).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 6200 + node));
        backends.register_local(address, server.clone());
    }
    let parts = ReplicatorParts {
        engines,
        rings: Rings::open(folder.path(), &policies).unwrap(),
        policies,
        devices,
        backends,
        clock: Clock::system(),
    };
    Cluster {
        folder,
        server,
        parts,
        scheme,
    }
}

impl Cluster {
    fn fragment(&self, index: usize) -> Vec<u8> {
        Codec::new(&self.scheme).encode(CONTENT)[index].clone()
    }

    fn primaries(&self) -> Vec<Node> {
        self.parts.rings.object(POLICY).unwrap().primaries(0)
    }

    fn handoff(&self) -> Node {
        let ring = self.parts.rings.object(POLICY).unwrap();
        ring.handoffs(0, 1).remove(0)
    }

    /// Fragment `index` of the object comes to a node.
    async fn put(&self, node: &Node, index: usize, time: Timestamp, is_durable: bool) {
        let fragment = self.fragment(index);
        let mut request = http::Request::put(format!("/{}/0/a/c/o", node.device.device))
            .header("x-timestamp", time.internal())
            .header("x-backend-storage-policy-index", "1")
            .header("content-type", "text/plain")
            .header("content-length", fragment.len())
            .header("x-object-meta-color", "blue")
            .header("x-object-sysmeta-ec-etag", "of the object")
            .header("x-object-sysmeta-ec-frag-index", index);
        if !is_durable {
            request = request.header("x-backend-no-commit", "True");
        }
        let request: Request = request.body(Body::full(fragment)).unwrap();
        let response = self.server.call(request).await;
        assert_eq!(response.status(), StatusCode::CREATED);
    }

    /// The fragments of the object on a node, durable or not, the newest first: when they were
    /// written, index, whether they are durable, content.
    fn fragments(&self, node: &Node) -> Vec<(Timestamp, u32, bool, Vec<u8>)> {
        let disk = self.parts.devices.get(&node.device.device).unwrap();
        let disk = disk.disk().unwrap();
        let engine = self.parts.engines.of(POLICY).unwrap();
        let hash = HashPath::new("", "end").hash("a", Some("c"), Some("o"));
        let object = PartitionKey::new(POLICY, 0).object(hash);
        let open = |choice| engine.open_to_send(&disk, object, 1 << 20, choice).unwrap();
        let Sendable::Object(_, newest) = open(FragmentChoice::even_not_durable(None)) else {
            return Vec::new();
        };
        let known = newest.info.fragments.unwrap();
        let mut found = Vec::new();
        for (timestamp, indices) in known.found {
            for index in indices {
                let preference = FragmentPreference {
                    timestamp,
                    exclude: Vec::new(),
                };
                let choice = FragmentChoice {
                    index: Some(index),
                    preferences: Some(vec![preference]),
                };
                let Sendable::Object(_, open) = open(choice) else {
                    panic!("fragment {index} is not there");
                };
                let Content::Inline(content) = open.content else {
                    panic!("not read along");
                };
                let is_durable = known.durable == Some(timestamp);
                found.push((timestamp, index, is_durable, content.to_vec()));
            }
        }
        found
    }

    async fn reconstruct(&self, change: &[(&str, &str)]) -> ReconstructionStats {
        let recon = self.folder.path().to_str().unwrap();
        let mut pairs = vec![
            ("ring_ip", "127.0.0.1"),
            // All ports are this process's.
            ("servers_per_port", "1"),
            ("recon_cache_path", recon),
        ];
        pairs.extend(change);
        let section = Section::from_pairs("object-reconstructor", &pairs);
        let config = ReconstructorConfig::read(&section).unwrap();
        let reconstructor = ObjectReconstructor::new(config, self.parts.clone());
        reconstructor.pass(&PassFilter::default()).await
    }
}

async fn a_lost_fragment_is_rebuilt(kind: Kind) {
    let cluster = cluster(kind);
    let primaries = cluster.primaries();
    let time = Timestamp::from_secs(4_000_000_000);
    for index in [0, 2] {
        cluster.put(&primaries[index], index, time, true).await;
    }
    let stats = cluster.reconstruct(&[]).await;
    assert_eq!(stats.failures, 0, "{stats:?}");
    let rebuilt = (time, 1, true, cluster.fragment(1));
    assert_eq!(cluster.fragments(&primaries[1]), [rebuilt]);
    let recon = cluster.folder.path().join("object.recon");
    let recon = std::fs::read_to_string(recon).unwrap();
    assert!(recon.contains("object_reconstruction_time"), "{recon}");
    // All is well now.
    let stats = cluster.reconstruct(&[]).await;
    assert_eq!((stats.suffixes_synced, stats.failures), (0, 0));
}

async fn misplaced_fragments_are_handed_over(kind: Kind) {
    let cluster = cluster(kind);
    let (primaries, handoff) = (cluster.primaries(), cluster.handoff());
    let time = Timestamp::from_secs(4_000_000_000);
    cluster.put(&handoff, 1, time, true).await;
    let stats = cluster.reconstruct(&[("handoffs_only", "yes")]).await;
    assert_eq!((stats.reverted, stats.handoffs_remaining), (1, 0));
    assert!(cluster.fragments(&handoff).is_empty());
    let moved = (time, 1, true, cluster.fragment(1));
    let at_home = cluster.fragments(&primaries[1]);
    assert_eq!(at_home, std::slice::from_ref(&moved));

    // Nobody has committed this one: it is handed over as it is, and stays while it is young.
    let later = Timestamp::from_secs(4_000_000_001);
    cluster.put(&handoff, 1, later, false).await;
    cluster.reconstruct(&[("handoffs_only", "yes")]).await;
    assert_eq!(cluster.fragments(&handoff).len(), 1);
    let newer = (later, 1, false, cluster.fragment(1));
    assert_eq!(cluster.fragments(&primaries[1]), [newer, moved]);
}

async fn a_lonely_fragment_is_quarantined_where_asked_for(kind: Kind) {
    let cluster = cluster(kind);
    let primaries = cluster.primaries();
    let old = Timestamp::from_secs(1_700_000_000);
    cluster.put(&primaries[0], 0, old, true).await;
    cluster.reconstruct(&[]).await;
    assert_eq!(cluster.fragments(&primaries[0]).len(), 1);
    cluster.reconstruct(&[("quarantine_threshold", "1")]).await;
    assert!(cluster.fragments(&primaries[0]).is_empty());
    let device = &primaries[0].device.device;
    let dir = cluster.folder.path().join("dev").join(device);
    let is_aside = dir.join("quarantined/objects-1").exists();
    assert_eq!(is_aside, kind == Kind::Files);
}

over_engines!(
    a_lost_fragment_is_rebuilt,
    misplaced_fragments_are_handed_over,
    a_lonely_fragment_is_quarantined_where_asked_for,
);
