//! The cluster: four storage nodes of the real servers and daemons, two proxies, one network.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use cairn_daemons::{
    AuditorConfig, AuditorParts, ContainerUpdater, ContainerUpdaterConfig, Daemon, DaemonKind,
    DbReplicator, DbReplicatorConfig, ExpirerParts, InternalClient, ObjectAuditor, ObjectExpirer,
    ObjectExpirerConfig, ObjectReconstructor, ObjectReplicator, ObjectUpdater, PassFilter,
    ReconstructorConfig, ReplicatorConfig, ReplicatorParts, UpdaterConfig,
};
use cairn_disk::{
    Devices, DevicesConfig, DiskFileConfig, DiskFileEngine, Engines, FallocateReserve,
};
use cairn_formats::ini::Section;
use cairn_http::{Clock, Handler, SwiftInfo};
use cairn_index::{DbKind, IndexConfig, IndexPool};
use cairn_peer::{Backends, Rings};

use cairn_proxy::{Proxy, ProxySettings};
use cairn_servers::account::{AccountServer, AccountServerConfig};
use cairn_servers::container::{ContainerServer, ContainerServerConfig};
use cairn_servers::object::{ObjectServer, ObjectServerConfig};
use cairn_types::{Constraints, HashPath, PolicySet};

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Object,
    Container,
    Account,
}

impl Kind {
    pub(crate) const ALL: [Kind; 3] = [Kind::Object, Kind::Container, Kind::Account];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Object => "object",
            Kind::Container => "container",
            Kind::Account => "account",
        }
    }
}

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

/// Address of a node's server.
pub(crate) fn address(node: usize, kind: Kind) -> SocketAddr {
    let port = 6000 + 10 * node as u16 + kind as u16;
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
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

/// A running node.
pub(crate) struct Node {
    pub(crate) life: Arc<Life>,
    /// Devices, and the engines of its daemons.
    pub(crate) parts: ReplicatorParts,
    pool: Arc<IndexPool>,
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
            ("node_timeout", "3"),
            ("conn_timeout", "0.5"),
            ("client_timeout", "10"),
            ("error_suppression_interval", "10"),
            ("recheck_container_existence", "5"),
            ("recheck_account_existence", "5"),
        ];
        let settings = ProxySettings {
            section: Section::from_pairs("app:proxy-server", &options),
            policy_sections: Default::default(),
            constraints: Arc::new(Constraints::default()),
            policies: self.policies.clone(),
            hash_path: hash_path(),
            rings: self.rings.of(machine).clone(),
            swift_info: Arc::new(SwiftInfo::default()),
            clock: clock.clone(),
        };
        Ok(Proxy::new(settings, backends.clone())?)
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
        ended.pool.close_all();
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
            node.pool.close_all();
        }
        self.wires.end();
    }

    pub(crate) fn start_node(&self, node: usize) -> Result<()> {
        self.shared.log(|| format!("n{node} starts"));
        let life = Life::begin(self.shared.clone(), node, self.device(node))?;
        let started = Arc::new(self.make_node(&life)?);
        for (kind, handler) in Kind::ALL.into_iter().zip(&started.handlers) {
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
        let (policies, hash_path) = (self.policies.clone(), hash_path());
        let backends = self.backends(node, life.alive.clone());
        let rings = self.rings.of(node);
        let devices = devices(life, &root);
        let pool = IndexPool::new(self.index_config(life, &root));
        let section = |name: &str, kind: Kind, more: &[(&str, &str)]| {
            let port = address(node, kind).port().to_string();
            let mut pairs = vec![
                ("bind_ip", "127.0.0.1"),
                ("bind_port", port.as_str()),
                ("mount_check", "false"),
                ("recon_cache_path", "/nonexistent"),
            ];
            pairs.extend(more);
            Section::from_pairs(name, &pairs)
        };
        let databases = |kind: Kind, of: DbKind| -> Result<Arc<DbReplicator>> {
            let rows = [("whole_databases", "rows"), ("node_timeout", "3")];
            let config = DbReplicatorConfig::read(&section("replicator", kind, &rows), of)?;
            Ok(DbReplicator::new(
                config,
                hash_path.clone(),
                &policies,
                rings.clone(),
                pool.clone(),
                backends.clone(),
            ))
        };
        let objects = |name: &str, more: &[(&str, &str)]| section(name, Kind::Object, more);
        let fast = [("files_per_second", "0"), ("bytes_per_second", "0")];
        let patience = [
            ("sync_method", "ssync"),
            ("node_timeout", "3"),
            ("http_timeout", "10"),
        ];
        let parts = ReplicatorParts {
            engines: fresh_engines(&policies),
            policies: policies.clone(),
            rings: rings.clone(),
            devices: devices.clone(),
            backends: backends.clone(),
            clock: clock.clone(),
        };
        let reconstructor = self.shared.has_fragments.then(|| {
            let config = ReconstructorConfig::read(&objects("object-reconstructor", &patience))?;
            Ok::<_, anyhow::Error>(ObjectReconstructor::new(config, parts.clone()))
        });
        let reconstructor = reconstructor.transpose()?;
        let mut daemons: Vec<Arc<dyn Daemon>> = vec![
            ObjectUpdater::new(
                UpdaterConfig::read(&objects("object-updater", &[("node_timeout", "3")]))?,
                hash_path.clone(),
                policies.clone(),
                rings.clone(),
                devices.clone(),
                backends.clone(),
            ),
            databases(Kind::Container, DbKind::Container)?,
            databases(Kind::Account, DbKind::Account)?,
            ContainerUpdater::new(
                ContainerUpdaterConfig::read(&section(
                    "container-updater",
                    Kind::Container,
                    &[
                        ("account_suppression_time", "1"),
                        ("recon_cache_path", "/nonexistent"),
                    ],
                ))?,
                hash_path.clone(),
                rings.clone(),
                pool.clone(),
                backends.clone(),
                None,
            ),
            ObjectAuditor::new(
                AuditorConfig::read(&objects("object-auditor", &fast))?,
                AuditorParts {
                    engines: parts.engines.clone(),
                    policies: policies.clone(),
                    devices: devices.clone(),
                    clock: clock.clone(),
                },
            ),
            ObjectReplicator::new(
                ReplicatorConfig::read(&objects("object-replicator", &patience))?,
                parts.clone(),
            ),
            ObjectExpirer::new(
                ObjectExpirerConfig::read(
                    &objects("object-expirer", &[("dequeue_from_legacy", "yes")]),
                    false,
                )?,
                ExpirerParts {
                    client: InternalClient::new(self.proxy(node, &clock, &backends)?, "expirer", 1),
                    auto_create_account_prefix: ".".into(),
                    hash_path: hash_path.clone(),
                    rings: rings.clone(),
                    backends: backends.clone(),
                    clock: clock.clone(),
                },
            ),
        ];
        if let Some(reconstructor) = reconstructor {
            daemons.push(reconstructor);
        }
        let by_kind = |daemon: Arc<dyn Daemon>| (daemon.kind(), daemon);
        Ok(Node {
            daemons: daemons.into_iter().map(by_kind).collect(),
            handlers: self.servers(clock, &devices, &pool, backends),
            pool,
            parts,
            life: life.clone(),
        })
    }

    /// The three servers of a node.
    fn servers(
        &self,
        clock: Clock,
        devices: &Arc<Devices>,
        pool: &Arc<IndexPool>,
        backends: Arc<Backends>,
    ) -> Vec<Handler> {
        let (policies, hash_path) = (self.policies.clone(), hash_path());
        let mut object = ObjectServerConfig::new(hash_path.clone(), (*policies).clone());
        object.clock = clock.clone();
        if self.shared.manner.is_rotting {
            object.disk_chunk_size = READ_BYTES;
        }
        let mut container = ContainerServerConfig::new(hash_path.clone(), policies.clone());
        (container.mount_check, container.fallocate_reserve) = (false, None);
        let mut account = AccountServerConfig::new(hash_path, policies.clone());
        (account.mount_check, account.fallocate_reserve) = (false, None);
        account.clock = clock;
        let engines = fresh_engines(&policies);
        vec![
            ObjectServer::new(object, engines, devices.clone(), backends.clone()),
            ContainerServer::new(container, pool.clone(), backends),
            AccountServer::new(account, pool.clone()),
        ]
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
