//! The console beside the servers of a process: its view of the store, and its order in starting
//! and stopping. `cairn lab serve` runs it alone.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use cairn_console_api::{
    ConsoleOptions, ConsoleServer, DeviceShare, DeviceState, Password, PolicyState, ReconSource,
    RingState, Space, StoreState, StoreView,
};
use cairn_http::Handler;
use cairn_http::audit::AuditLog;
use cairn_http::metrics::Metrics;
use cairn_http::tls::{ServerTls, TlsFiles};
use cairn_peer::LoadedRing;
use tokio::sync::watch;

use crate::cluster::Cluster;
use crate::conf::ServerConf;
use crate::listen::reachable;
use crate::role::Role;
use crate::settings::ServerSettings;
use crate::signals::StopSignals;
use crate::store_tls::StoreTls;

/// A console to be served, with its port bound.
#[derive(Debug)]
pub struct ConsoleRun {
    /// The console's program.
    pub server: Arc<dyn ConsoleServer>,
    pub listener: TcpListener,
    pub bind: SocketAddr,
    /// Host names accepted in requests, beside addresses and `localhost`.
    pub hosts: Vec<String>,
    pub password: Password,
    /// Folder of the runs' folders.
    pub runs: PathBuf,
    /// Local folders that runs may use.
    pub allow_local: Vec<PathBuf>,
    /// Receives sign-ins and changes.
    pub audit: Option<AuditLog>,
    /// TLS with the certificate of the store.
    pub tls: Option<StoreTls>,
}

impl ConsoleRun {
    /// Its program, and what it is started with.
    fn start(self, store: Option<StoreView>) -> Result<Start> {
        let program = std::env::current_exe().context("cannot tell which program this is")?;
        let tls = self.tls.as_ref().map(|tls| {
            ServerTls::load(TlsFiles {
                pairs: vec![(tls.cert.clone(), tls.key.clone())],
                client_authorities: None,
            })
        });
        let own = self.tls.filter(|tls| tls.is_own);
        let options = ConsoleOptions {
            tls: tls.transpose()?,
            store_ca: own.map(|tls| tls.cert),
            bind: self.bind,
            hosts: self.hosts,
            password: self.password,
            runs: self.runs,
            program,
            allow_local: self.allow_local,
            audit: self.audit.map(Arc::new),
            store,
        };
        Ok(Start {
            server: self.server,
            listener: self.listener,
            options,
        })
    }
}

/// A console about to be started.
struct Start {
    server: Arc<dyn ConsoleServer>,
    listener: TcpListener,
    options: ConsoleOptions,
}

impl Start {
    async fn serve(self, stop: watch::Receiver<bool>) -> Result<()> {
        self.server.serve(self.listener, self.options, stop).await
    }
}

/// Serves a console, beside a store or alone, until `stop` turns true.
pub(crate) async fn serve(
    console: ConsoleRun,
    store: Option<StoreView>,
    stop: watch::Receiver<bool>,
) -> Result<()> {
    console.start(store)?.serve(stop).await
}

/// Serves a console alone until a signal ends it. `greeting` is printed once it is ready, and not
/// if it fails: its certificate is read first.
///
/// # Errors
/// The certificate or its key cannot be loaded, threads or signal handlers cannot be started, or
/// the console ends with an error.
pub fn run(console: ConsoleRun, greeting: &str) -> Result<()> {
    let start = console.start(None)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("cairn-console")
        .enable_all()
        .build()
        .context("cannot start the threads that serve")?;
    runtime.block_on(async {
        let signals = StopSignals::new(false).context("cannot listen for signals")?;
        let (stop_sender, stop) = watch::channel(false);
        let watching = tokio::spawn(signals.watch(stop_sender, watch::channel(false).0));
        // Connections queue in the listener until they are accepted, so it is ready already.
        use std::io::Write;
        let mut out = std::io::stdout().lock();
        let _ = out
            .write_all(greeting.as_bytes())
            .and_then(|()| out.flush());
        drop(out);
        let served = start.serve(stop).await;
        watching.abort();
        served
    })
}

/// The console's view of the store served by these servers; `None` without a proxy.
pub(crate) fn store_view(
    servers: &[(ServerConf, ServerSettings)],
    handlers: &[Handler],
    clusters: &[Arc<Cluster>],
    metrics: &Arc<Metrics>,
) -> Option<StoreView> {
    let place = servers
        .iter()
        .position(|(conf, _)| conf.role == Role::Proxy)?;
    let (_, proxy) = &servers[place];
    let cluster = clusters
        .iter()
        .find(|c| c.swift_dir == proxy.folders.swift_dir)?
        .clone();
    let storage = servers
        .iter()
        .zip(handlers)
        .filter(|((conf, _), _)| conf.role != Role::Proxy);
    let recon = storage
        .clone()
        .map(|((conf, _), handler)| ReconSource {
            server: conf.role.as_str(),
            handler: handler.clone(),
        })
        .collect();
    let local: Vec<(u16, PathBuf)> = storage
        .map(|((_, settings), _)| (settings.bind.port(), settings.folders.devices.clone()))
        .collect();
    Some(StoreView {
        swift: handlers[place].clone(),
        endpoint: match proxy.tls {
            Some(_) => format!("https://{}", reachable(proxy.bind)),
            None => format!("http://{}", reachable(proxy.bind)),
        },
        metrics: metrics.clone(),
        state: Arc::new(move || state(&cluster, &local)),
        recon,
    })
}

/// Current rings and devices. `local` has the ports of this process's storage servers and their
/// folders of devices. Blocks.
fn state(cluster: &Cluster, local: &[(u16, PathBuf)]) -> StoreState {
    let policies = cluster.policies.iter().map(|policy| PolicyState {
        index: policy.index.0,
        name: policy.name.clone(),
        default: policy.is_default,
    });
    let mut store = StoreState {
        policies: policies.collect(),
        ..StoreState::default()
    };
    let Some(rings) = cluster.loaded_rings() else {
        return store;
    };
    let mut named: Vec<(String, Arc<LoadedRing>)> = vec![
        ("account".into(), rings.account()),
        ("container".into(), rings.container()),
    ];
    for policy in cluster.policies.iter() {
        if let Some(ring) = rings.object(policy.index) {
            named.push((policy.index.ring_name(), ring));
        }
    }
    // A device serves all rings, with a port for each: host and name identify it.
    let mut devices: BTreeMap<(String, String), DeviceState> = BTreeMap::new();
    for (name, loaded) in &named {
        let ring = loaded.ring();
        let mut held: BTreeMap<u32, u64> = BTreeMap::new();
        for id in ring.data().rows.iter().flat_map(|row| row.iter()) {
            *held.entry(id).or_default() += 1;
        }
        store.rings.push(RingState {
            name: name.clone(),
            partitions: ring.partition_count(),
            replicas: ring.replica_count(),
            devices: ring.device_count(),
            version: ring.version(),
        });
        for device in ring.devices() {
            let key = (device.ip.clone(), device.device.clone());
            let state = devices.entry(key).or_insert_with(|| {
                let own = local.iter().find(|(port, _)| *port == device.port);
                let folder = own.map(|(_, folder)| folder.join(&device.device));
                DeviceState {
                    name: device.device.clone(),
                    region: device.region,
                    zone: device.zone,
                    address: format!("{}:{}", device.ip, device.port),
                    rings: BTreeMap::new(),
                    space: folder.as_deref().and_then(space),
                    missing: folder.is_some_and(|folder| !folder.is_dir()),
                }
            });
            let share = DeviceShare {
                weight: device.weight,
                partitions: held.get(&device.id).copied().unwrap_or(0),
            };
            state.rings.insert(name.clone(), share);
        }
    }
    store.devices = devices.into_values().collect();
    store
}

fn space(folder: &Path) -> Option<Space> {
    let meta = std::fs::metadata(folder)
        .ok()
        .filter(|meta| meta.is_dir())?;
    let told = rustix::fs::statvfs(folder).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(told.f_frsize);
    Some(Space {
        file_system: meta.dev(),
        total: bytes(told.f_blocks),
        used: bytes(told.f_blocks.saturating_sub(told.f_bfree)),
        free: bytes(told.f_bavail),
    })
}
