//! Four devices and a policy of 2 + 1 fragments, in this process.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::path::PathBuf;

use cairn_disk::{Devices, DevicesConfig, FallocateReserve};
use cairn_erasure::Codec;
use cairn_formats::ini::Section;
use cairn_http::{Body, Request, Service};
use cairn_peer::{Backends, Node, Rings};
use cairn_ring::{FormatVersion, NewDevice, RebalanceOptions, RingBuilder};
use cairn_servers::object::{ObjectServer, ObjectServerConfig};
use cairn_types::{
    EcType, ErasureScheme, HashPath, PolicyIndex, PolicyKind, PolicySet, StoragePolicy, Timestamp,
};
use http::StatusCode;

use super::*;

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

fn cluster() -> Cluster {
    let folder = tempfile::tempdir().unwrap();
    let scheme = ErasureScheme::new(EcType::IsaLRsVand, 2, 1).unwrap();
    let policies = Arc::new(policies(scheme));
    let mut builder = RingBuilder::new(1, 3.0, 1).unwrap();
    let root = folder.path().join("dev");
    let backends = Backends::new(Duration::from_secs(1));
    let devices = Devices::new(DevicesConfig {
        mount_check: false,
        fallocate_reserve: FallocateReserve::Bytes(0),
        ..DevicesConfig::new(&root)
    });
    let config = ObjectServerConfig::new(HashPath::new("", "end"), (*policies).clone());
    let server = ObjectServer::new(config, devices.clone(), backends.clone());
    for zone in 1..=4 {
        let port = 6200 + zone as u16;
        let name = format!("d{zone}");
        std::fs::create_dir_all(root.join(&name)).unwrap();
        let device = NewDevice {
            id: None,
            region: 1,
            zone,
            weight: 1.0,
            ip: "127.0.0.1".into(),
            port,
            device: name,
            replication_ip: None,
            replication_port: None,
            meta: String::new(),
        };
        builder.add_dev(device).unwrap();
        backends.register_local(SocketAddr::from(([127, 0, 0, 1], port)), server.clone());
    }
    let options = RebalanceOptions {
        seed: None,
        now: 0,
        log: None,
    };
    builder.rebalance(options).unwrap();
    for name in ["account", "container", "object", "object-1"] {
        let path = folder.path().join(format!("{name}.ring.gz"));
        builder.ring_data().save(path, FormatVersion::V1).unwrap();
    }
    let parts = ReplicatorParts {
        engine: server.engine().clone(),
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

    /// The files of the object's directory on a node.
    fn files(&self, node: &Node) -> Vec<PathBuf> {
        let hash = HashPath::new("", "end").hash("a", Some("c"), Some("o"));
        let place = format!("objects-1/0/{}/{}", hash.suffix(), hash.hex());
        let dir = self.folder.path().join("dev").join(&node.device.device);
        let entries = std::fs::read_dir(dir.join(place));
        entries.map_or(Vec::new(), |all| all.map(|e| e.unwrap().path()).collect())
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
        reconstructor.once(&Only::default()).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_fragment_is_rebuilt() {
    let cluster = cluster();
    let primaries = cluster.primaries();
    let time = Timestamp::from_secs(4_000_000_000);
    for index in [0, 2] {
        cluster.put(&primaries[index], index, time, true).await;
    }
    let stats = cluster.reconstruct(&[]).await;
    assert_eq!(stats.failures, 0, "{stats:?}");
    let files = cluster.files(&primaries[1]);
    let [file] = &files[..] else {
        panic!("{files:?}");
    };
    assert!(file.ends_with("4000000000.00000#1#d.data"), "{file:?}");
    assert_eq!(std::fs::read(file).unwrap(), cluster.fragment(1));
    let recon = cluster.folder.path().join("object.recon");
    let recon = std::fs::read_to_string(recon).unwrap();
    assert!(recon.contains("object_reconstruction_time"), "{recon}");
    // All is well now.
    let stats = cluster.reconstruct(&[]).await;
    assert_eq!((stats.suffixes_synced, stats.failures), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn misplaced_fragments_are_handed_over() {
    let cluster = cluster();
    let (primaries, handoff) = (cluster.primaries(), cluster.handoff());
    let time = Timestamp::from_secs(4_000_000_000);
    cluster.put(&handoff, 1, time, true).await;
    let stats = cluster.reconstruct(&[("handoffs_only", "yes")]).await;
    assert_eq!((stats.reverted, stats.handoffs_remaining), (1, 0));
    assert!(cluster.files(&handoff).is_empty());
    assert!(cluster.files(&primaries[1])[0].ends_with("4000000000.00000#1#d.data"));

    // Nobody has committed this one: it is handed over as it is, and stays while it is young.
    let later = Timestamp::from_secs(4_000_000_001);
    cluster.put(&handoff, 1, later, false).await;
    cluster.reconstruct(&[("handoffs_only", "yes")]).await;
    assert_eq!(cluster.files(&handoff).len(), 1);
    let mut names = cluster.files(&primaries[1]);
    names.sort();
    assert_eq!(names.len(), 2);
    assert!(names[1].ends_with("4000000001.00000#1.data"), "{names:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lonely_fragment_is_quarantined_where_asked_for() {
    let cluster = cluster();
    let primaries = cluster.primaries();
    let old = Timestamp::from_secs(1_700_000_000);
    cluster.put(&primaries[0], 0, old, true).await;
    cluster.reconstruct(&[]).await;
    assert_eq!(cluster.files(&primaries[0]).len(), 1);
    cluster.reconstruct(&[("quarantine_threshold", "1")]).await;
    assert!(cluster.files(&primaries[0]).is_empty());
    let device = &primaries[0].device.device;
    let dir = cluster.folder.path().join("dev").join(device);
    assert!(dir.join("quarantined/objects-1").exists());
}
