//! The cluster: four storage nodes of the real servers and daemons, two proxies, one network.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use cairn_assembly::{Common, DaemonOptions, Parts, ProxyOptions};
use cairn_daemons::{Daemon, DaemonKind, PassFilter};
use cairn_disk::{
    Devices, DevicesConfig, DiskFileConfig, DiskFileEngine, Engines, FallocateReserve,
};
use cairn_formats::ini::Section;
use cairn_http::{Clock, Handler};
use cairn_index::{IndexConfig, IndexPool};
use cairn_peer::{Backends, Rings};
use cairn_types::{Constraints, HashPath, PolicySet, ServerKind};

use crate::addresses::{SERVERS, address};
use crate::disk::Image;
use crate::life::{Life, LifeMachine};
use crate::network::{Port, Wires};
use crate::rings::ClusterRings;
use crate::shared::{NODES, PROXIES, Shared};
use parking_lot::Mutex;

/// Maximum size of buffered bodies; larger ones are streamed to the replicas.
const BUFFERED: &str = "2048";
/// Bytes per read from disk in runs with rot: clients receive the start of an object long before
/// its end is verified.
const READ_BYTES: usize = 16 << 10;

type Options = &'static [(&'static str, &'static str)];

const SENDS_OBJECTS: Options = &[
    ("sync_method", "ssync"),
    ("node_timeout", "3"),
    ("http_timeout", "10"),
];
const SENDS_ROWS: Options = &[("whole_databases", "rows"), ("node_timeout", "3")];

/// Engines of a server, or of a node's daemons, which share no state.
fn fresh_engines(policies: &PolicySet) -> Engines {
    let engine = DiskFileEngine::new(hash_path(), policies, DiskFileConfig::default());
    Engines::uniform(policies, Arc::new(engine))
}

/// The device of a node, on the simulator's clock.
fn devices(life: &Arc<Life>, root: &Path) -> Arc<Devices> {
    Devices::new(DevicesConfig {
        mount_check: false,
        fallocate_reserve: FallocateReserve::Bytes(0),
        disable_fallocate: true,
        machine: Some(Arc::new(LifeMachine(life.clone()))),
        ..DevicesConfig::new(root)
    })
}

pub(crate) fn hash_path() -> HashPath {
    HashPath::new("", "simulated")
}

/// The daemons of a node, in the order of a round's passes; the reconstructor only with an
/// erasure-coded policy.
pub(crate) const DAEMONS: [DaemonKind; 8] = [
    DaemonKind::ObjectUpdater,
    DaemonKind::ContainerReplicator,
    DaemonKind::AccountReplicator,
    DaemonKind::ContainerUpdater,
    DaemonKind::ObjectAuditor,
    DaemonKind::ObjectReplicator,
    DaemonKind::ObjectReconstructor,
    DaemonKind::ObjectExpirer,
];

/// The server beside which a daemon works, and its options.
fn daemon_options(kind: DaemonKind) -> (ServerKind, Options) {
    match kind {
        DaemonKind::AccountReplicator => (ServerKind::Account, SENDS_ROWS),
        DaemonKind::ContainerReplicator => (ServerKind::Container, SENDS_ROWS),
        DaemonKind::ContainerUpdater => {
            (ServerKind::Container, &[("account_suppression_time", "1")])
        }
        DaemonKind::ObjectAuditor => (
            ServerKind::Object,
            &[("files_per_second", "0"), ("bytes_per_second", "0")],
        ),
        DaemonKind::ObjectExpirer => (
            ServerKind::Object,
            &[("dequeue_from_legacy", "yes"), ("request_tries", "1")],
        ),
        DaemonKind::ObjectReconstructor | DaemonKind::ObjectReplicator => {
            (ServerKind::Object, SENDS_OBJECTS)
        }
        DaemonKind::ObjectUpdater => (ServerKind::Object, &[("node_timeout", "3")]),
        _ => (ServerKind::Object, &[]),
    }
}

/// The section of a server, or of a daemon beside it.
fn section(name: &str, node: usize, server: ServerKind, more: &[(&str, &str)]) -> Section {
    let port = address(node, server).port().to_string();
    let mut pairs = vec![
        ("bind_ip", "127.0.0.1"),
        ("bind_port", port.as_str()),
        ("mount_check", "false"),
        ("recon_cache_path", "/nonexistent"),
    ];
    pairs.extend(more);
    Section::from_pairs(name, &pairs)
}

/// Parts of a node's servers, or of its daemons.
#[derive(Clone)]
pub(crate) struct NodeParts {
    common: Common,
    rings: Arc<Rings>,
    pub(crate) devices: Arc<Devices>,
    pub(crate) engines: Engines,
    databases: Arc<IndexPool>,
    proxy: Handler,
}

impl Parts for NodeParts {
    fn common(&self) -> &Common {
        &self.common
    }

    fn rings(&mut self) -> Result<Arc<Rings>> {
        Ok(self.rings.clone())
    }

    fn devices(&mut self) -> Result<Arc<Devices>> {
        Ok(self.devices.clone())
    }

    fn engines(&mut self) -> Result<Engines> {
        Ok(self.engines.clone())
    }

    fn databases(&mut self) -> Result<Arc<IndexPool>> {
        Ok(self.databases.clone())
    }

    fn internal_pipeline(&mut self) -> Result<Handler> {
        Ok(self.proxy.clone())
    }

    fn other_section(&self, name: &str) -> Result<Section> {
        Ok(Section::from_pairs(name, &[]))
    }
}

/// A running node.
pub(crate) struct Node {
    pub(crate) life: Arc<Life>,
    /// Parts of its daemons.
    pub(crate) parts: NodeParts,
    pub(crate) handlers: Vec<Handler>,
    daemons: BTreeMap<DaemonKind, Arc<dyn Daemon>>,
}

impl Node {
    /// Runs one pass to its end, or to the node's.
    pub(crate) async fn pass(&self, kind: DaemonKind) {
        if let Some(daemon) = self.daemons.get(&kind) {
            daemon.clone().once(PassFilter::default()).await;
        }
    }
}

pub(crate) struct Cluster {
    pub(crate) shared: Arc<Shared>,
    policies: Arc<PolicySet>,
    pub(crate) rings: ClusterRings,
    wires: Arc<Wires>,
    root: PathBuf,
    nodes: Mutex<Vec<Option<Arc<Node>>>>,
    pub(crate) proxies: Vec<Handler>,
    pub(crate) proxy_clocks: Vec<Clock>,
}

impl Cluster {
    pub(crate) fn start(
        shared: Arc<Shared>,
        policies: Arc<PolicySet>,
        rings: ClusterRings,
        root: &Path,
    ) -> Result<Arc<Self>> {
        let wires = Wires::new(shared.clone());
        let mut cluster = Cluster {
            shared,
            policies,
            rings,
            wires,
            root: root.to_owned(),
            nodes: Mutex::new((0..NODES).map(|_| None).collect()),
            proxies: Vec::new(),
            proxy_clocks: Vec::new(),
        };
        for proxy in 0..PROXIES {
            let clock = cluster.clock(NODES + proxy);
            let backends = cluster.backends(NODES + proxy, Arc::new(AtomicBool::new(true)));
            cluster
                .proxies
                .push(cluster.proxy(NODES + proxy, &clock, &backends)?);
            cluster.proxy_clocks.push(clock);
        }
        for node in 0..NODES {
            std::fs::create_dir_all(cluster.device(node))?;
            cluster.start_node(node)?;
        }
        Ok(Arc::new(cluster))
    }

    /// Path of a node's device.
    pub(crate) fn device(&self, node: usize) -> PathBuf {
        self.root.join(format!("n{node}")).join(format!("d{node}"))
    }

    fn clock(&self, machine: usize) -> Clock {
        let shared = self.shared.clone();
        Clock::given(move || shared.now(machine))
    }

    fn backends(&self, machine: usize, alive: Arc<AtomicBool>) -> Arc<Backends> {
        Backends::simulated(Arc::new(Port {
            wires: self.wires.clone(),
            machine,
            alive,
        }))
    }

    fn proxy(&self, machine: usize, clock: &Clock, backends: &Arc<Backends>) -> Result<Handler> {
        let options = [
            ("account_autocreate", "true"),
            ("allow_account_management", "true"),
            ("buffered_put_bytes", BUFFERED),
            ("whole_put_bytes", BUFFERED),
            ("node_timeout", "3"),
            ("conn_timeout", "0.5"),
            ("client_timeout", "10"),
            ("error_suppression_interval", "10"),
            ("recheck_container_existence", "5"),
            ("recheck_account_existence", "5"),
        ];
        let options = ProxyOptions {
            section: Section::from_pairs("app:proxy-server", &options),
            policy_sections: BTreeMap::new(),
            swift_info: Arc::default(),
        };
        let common = self.common(clock, backends);
        let rings = self.rings.of(machine).clone();
        Ok(cairn_assembly::proxy(options, &common, rings)?)
    }

    fn common(&self, clock: &Clock, backends: &Arc<Backends>) -> Common {
        Common {
            hash_path: hash_path(),
            policies: self.policies.clone(),
            constraints: Arc::new(Constraints::default()),
            backends: backends.clone(),
            clock: clock.clone(),
            local_rows: Arc::default(),
        }
    }

    /// The rings of a proxy, for checks of the whole cluster.
    pub(crate) fn rings(&self) -> &Rings {
        self.rings.of(NODES)
    }

    pub(crate) fn node(&self, node: usize) -> Option<Arc<Node>> {
        self.nodes.lock()[node].clone()
    }

    /// Removes a dead node, and replaces its disk's content by `change` of what the crash left.
    pub(crate) fn bury(&self, node: usize, change: impl FnOnce(Image) -> Image) -> Result<()> {
        let Some(ended) = self.nodes.lock()[node].take() else {
            return Ok(());
        };
        let left = ended.life.bury().context("a node is buried alive")?;
        // Closes its files, which are about to be replaced.
        ended.parts.devices.shutdown();
        ended.parts.databases.close_all();
        Ok(change(left).write(&ended.life.device)?)
    }

    /// Closes everything; the disks' content no longer matters.
    pub(crate) fn end(&self) {
        for node in std::mem::take(&mut *self.nodes.lock())
            .into_iter()
            .flatten()
        {
            node.life.alive.store(false, Ordering::Relaxed);
            drop(node.life.bury());
            node.parts.devices.shutdown();
            node.parts.databases.close_all();
        }
        self.wires.end();
    }

    pub(crate) fn start_node(&self, node: usize) -> Result<()> {
        self.shared.log(|| format!("n{node} starts"));
        let life = Life::begin(self.shared.clone(), node, self.device(node))?;
        let started = Arc::new(self.make_node(&life)?);
        for (kind, handler) in SERVERS.into_iter().zip(&started.handlers) {
            let alive = life.alive.clone();
            let at = address(node, kind);
            self.wires.register(at, node, handler.clone(), alive);
        }
        self.nodes.lock()[node] = Some(started);
        Ok(())
    }

    fn make_node(&self, life: &Arc<Life>) -> Result<Node> {
        let (node, root) = (life.node, self.root.join(format!("n{}", life.node)));
        let clock = self.clock(node);
        let backends = self.backends(node, life.alive.clone());
        let mut parts = NodeParts {
            common: self.common(&clock, &backends),
            rings: self.rings.of(node).clone(),
            devices: devices(life, &root),
            engines: fresh_engines(&self.policies),
            databases: IndexPool::new(self.index_config(life, &root)),
            proxy: self.proxy(node, &clock, &backends)?,
        };
        let mut daemons = BTreeMap::new();
        for kind in DAEMONS {
            if kind == DaemonKind::ObjectReconstructor && !self.shared.has_fragments {
                continue;
            }
            let (server, options) = daemon_options(kind);
            let section = section(kind.name(), node, server, options);
            let options = DaemonOptions::default();
            let daemon = cairn_assembly::daemon(kind, &section, &options, &mut parts)?;
            daemons.insert(kind, daemon);
        }
        let of_servers = &mut NodeParts {
            engines: fresh_engines(&self.policies),
            ..parts.clone()
        };
        Ok(Node {
            handlers: self.servers(node, of_servers)?,
            daemons,
            parts,
            life: life.clone(),
        })
    }

    /// The three servers of a node.
    fn servers(&self, node: usize, parts: &mut NodeParts) -> Result<Vec<Handler>> {
        let chunk = READ_BYTES.to_string();
        let mut servers = Vec::new();
        for kind in SERVERS {
            let mut options = vec![("fallocate_reserve", "0")];
            if self.shared.manner.is_rotting {
                options.push(("disk_chunk_size", &chunk));
            }
            let section = section("app", node, kind, &options);
            servers.push(match kind {
                ServerKind::Object => cairn_assembly::object_server(&section, parts)?,
                ServerKind::Container => cairn_assembly::container_server(&section, parts)?,
                ServerKind::Account => cairn_assembly::account_server(&section, parts)?,
            });
        }
        Ok(servers)
    }

    fn index_config(&self, life: &Arc<Life>, root: &Path) -> IndexConfig {
        let mut config = IndexConfig::new(root);
        config.exclusive = true;
        // A few rows, so that crashes hit all states of a full pending file.
        config.pending_bytes = 2048;
        config.lock_timeout = Duration::from_millis(200);
        config.machine = Some(Arc::new(LifeMachine(life.clone())));
        let reader = life.clone();
        config.read_from_disk = Arc::new(move |path| reader.read_from_disk(path));
        let (shared, node) = (self.shared.clone(), life.node);
        config.clock = Arc::new(move || shared.now(node));
        let shared = self.shared.clone();
        config.random = Arc::new(move || {
            let (high, low) = (shared.disk_dice.number(), shared.disk_dice.number());
            u128::from(high) << 64 | u128::from(low)
        });
        config
    }
}
