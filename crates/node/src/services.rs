//! Construction of the services described by conf files, and their registration with each other in
//! this process.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use cairn_assembly::DaemonOptions;
use cairn_daemons::{Daemon, Written};
use cairn_http::metrics::Background;
use cairn_http::{Clock, Handler};
use cairn_index::TakesRows;
use cairn_middleware::{CrossOrigin, FilterEnv};
use cairn_peer::{Backends, Rings, TakesCalls};
use cairn_servers::AccessLog;
use cairn_servers::rows::LocalRows;

use crate::backend_tls;
use crate::background;
use crate::cluster::{Cluster, Clusters};
use crate::conf::ServerConf;
use crate::daemons;
use crate::engines::EngineModules;
use crate::for_clients::ForClients;
use crate::head_limits;
use crate::listen;
use crate::parts::{ConfParts, PartsContext};
use crate::pipeline;
pub(crate) use crate::pipeline::proxy;
use crate::role::DaemonKind;
use crate::role::Role;
use crate::settings::{Folders, ServerSettings};
use crate::storage::{Storage, Uses};
use crate::upkeep::Maintained;

type Server = (ServerConf, ServerSettings);

/// All services of a process, and their dependencies.
pub(crate) struct Services {
    /// One for each server, in order.
    handlers: Vec<Handler>,
    /// Parts of each that are called without a request.
    calls: Vec<Calls>,
    local_rows: Arc<LocalRows>,
    daemons: Vec<Arc<dyn Daemon>>,
    backends: Arc<Backends>,
    clusters: Clusters,
    storage: Storage,
}

impl Services {
    /// To be called inside a runtime.
    pub(crate) fn build(
        servers: &[Server],
        engines: EngineModules,
        unsafe_no_fsync: bool,
        with_daemons: bool,
    ) -> Result<Services> {
        let mut maker = Maker {
            backends: Backends::with_tls(
                connect_timeout(servers)?,
                backend_tls::of_all(servers.iter().map(|(conf, _)| conf))?,
            ),
            clusters: Clusters::default(),
            storage: storage_of(servers, engines, unsafe_no_fsync, with_daemons)?,
            clock: Clock::system(),
            local_rows: Arc::default(),
            written: if with_daemons {
                noted_folders(servers)
            } else {
                BTreeMap::new()
            },
            made: BTreeSet::new(),
        };
        let mut daemons = Vec::new();
        let (mut handlers, mut calls) = (Vec::new(), Vec::new());
        for (conf, settings) in servers {
            let (handler, of_it) = maker
                .handler(conf, settings)
                .with_context(|| format!("{} of {}", conf.role, conf.path.display()))?;
            handlers.push(handler);
            calls.push(of_it);
        }
        if with_daemons {
            for (conf, settings) in servers {
                daemons.extend(maker.daemons(conf, settings)?);
            }
        }
        let Maker {
            backends,
            clusters,
            storage,
            local_rows,
            ..
        } = maker;
        let services = Services {
            handlers,
            calls,
            local_rows,
            daemons,
            backends,
            clusters,
            storage,
        };
        (services.registrar(servers))();
        Ok(services)
    }

    /// In the servers' order.
    pub(crate) fn handlers(&self) -> &[Handler] {
        &self.handlers
    }

    pub(crate) fn clusters(&self) -> Vec<Arc<Cluster>> {
        self.clusters.iter().cloned().collect()
    }

    pub(crate) fn daemons(&self) -> &[Arc<dyn Daemon>] {
        &self.daemons
    }

    /// Devices with the engines that maintain them.
    pub(crate) fn maintained(&self) -> Maintained {
        self.storage.maintained()
    }

    /// Metrics of background work in this process.
    pub(crate) fn background(&self) -> Arc<dyn Fn() -> Background + Send + Sync> {
        let passes = self.daemons.iter();
        let passes = passes.filter_map(|daemon| Some((daemon.kind().name(), daemon.progress()?)));
        let engines = self
            .storage
            .maintained()
            .into_iter()
            .map(|(_, engine)| engine);
        background::shown(
            self.storage.all_devices(),
            passes.collect(),
            engines.collect(),
        )
    }

    /// A function that reloads changed rings, and registers the storage servers of this process
    /// under every local address in the rings. Blocks.
    pub(crate) fn registrar(&self, servers: &[Server]) -> Arc<dyn Fn() + Send + Sync> {
        let local: Vec<_> = servers
            .iter()
            .zip(self.handlers.iter().zip(&self.calls))
            .filter(|((conf, _), _)| conf.role != Role::Proxy)
            .map(|((_, settings), (handler, calls))| {
                (settings.clone(), handler.clone(), calls.clone())
            })
            .collect();
        let local_rows = self.local_rows.clone();
        let clusters: Vec<Arc<Cluster>> = self.clusters.iter().cloned().collect();
        let backends = self.backends.clone();
        Arc::new(move || {
            let rings: Vec<(Arc<Rings>, &Arc<Cluster>)> = clusters
                .iter()
                .filter_map(|cluster| Some((cluster.loaded_rings()?, cluster)))
                .collect();
            for (rings, _) in &rings {
                rings.refresh();
            }
            for (settings, handler, calls) in &local {
                let mut binds = BTreeSet::from([settings.bind]);
                if let Some(per_port) = &settings.per_port {
                    binds = rings
                        .iter()
                        .flat_map(|(rings, cluster)| {
                            let rings = cluster.policies.iter().map(|p| rings.object(p.index));
                            rings
                                .flatten()
                                .flat_map(|ring| per_port.ports_of(ring.ring()))
                        })
                        .map(|port| SocketAddr::new(settings.bind.ip(), port))
                        .collect();
                }
                for bind in binds {
                    let mut addresses = listen::known_as(bind, None, []);
                    for (rings, cluster) in &rings {
                        let policies: Vec<_> = cluster.policies.iter().map(|p| p.index).collect();
                        addresses.extend(listen::known_as(bind, [&**rings], policies));
                    }
                    for address in addresses {
                        backends.register_local(address, handler.clone());
                        if let Some(rows) = &calls.rows {
                            local_rows.register(address, rows.clone());
                        }
                        if let Some(objects) = &calls.objects {
                            backends.register_calls(address, objects.clone());
                        }
                    }
                }
            }
        })
    }

    /// Drops everything except the storage, including connection pools.
    pub(crate) fn into_storage(self) -> Storage {
        self.storage
    }
}

/// The longest `conn_timeout` of any conf, for the shared connection pool.
fn connect_timeout(servers: &[Server]) -> Result<Duration> {
    let mut longest = Duration::ZERO;
    for (conf, _) in servers {
        longest = longest.max(conf.app.seconds_or("conn_timeout", 0.5)?);
    }
    Ok(longest)
}

/// The storage of all servers and daemons, whose options must agree.
fn storage_of(
    servers: &[Server],
    engines: EngineModules,
    unsafe_no_fsync: bool,
    with_daemons: bool,
) -> Result<Storage> {
    let mut storage = Storage::new(engines, unsafe_no_fsync);
    for (conf, settings) in servers {
        if let Some(uses) = Uses::of_server(conf.role) {
            storage.declare(&settings.folders, &conf.app, uses)?;
        }
    }
    for (conf, _) in servers.iter().filter(|_| with_daemons) {
        for kind in DaemonKind::ALL {
            let section = conf
                .daemon(kind.name())
                .filter(|_| conf.role == Role::beside(kind));
            if let (Some(section), Some(uses)) = (section, Uses::of_daemon(kind)) {
                storage.declare(&Folders::read(&section), &section, uses)?;
            }
        }
    }
    Ok(storage)
}

/// Folders of devices with a container updater, for which writes are recorded.
fn noted_folders(servers: &[Server]) -> BTreeMap<PathBuf, Arc<Written>> {
    let updater = DaemonKind::ContainerUpdater;
    servers
        .iter()
        .filter(|(conf, _)| {
            conf.role == Role::beside(updater) && conf.daemon(updater.name()).is_some()
        })
        .map(|(_, settings)| (settings.folders.devices.clone(), Arc::default()))
        .collect()
}

/// Parts of a server that others of its process call without a request, past its pipeline.
#[derive(Clone, Default)]
struct Calls {
    /// Databases that take rows.
    rows: Option<Arc<dyn TakesRows>>,
    /// The object server, which takes requests.
    objects: Option<Arc<dyn TakesCalls>>,
}

/// A server, and what of it is called.
type Made = (Handler, Calls);

/// Whether the pipeline has no filter that calls must not pass by.
fn lets_calls_through(conf: &ServerConf) -> bool {
    let is_passed = |name: &str| ["healthcheck", "recon"].contains(&name);
    conf.filters
        .iter()
        .all(|filter| is_passed(&filter.entry_point))
}

/// State shared during construction.
struct Maker {
    backends: Arc<Backends>,
    clusters: Clusters,
    storage: Storage,
    clock: Clock,
    local_rows: Arc<LocalRows>,
    /// By folder of devices.
    written: BTreeMap<PathBuf, Arc<Written>>,
    /// Daemons constructed so far, by folder of devices.
    made: BTreeSet<(DaemonKind, PathBuf)>,
}

impl Maker {
    /// A server's pipeline, and what at its end is called.
    fn handler(&mut self, conf: &ServerConf, settings: &ServerSettings) -> Result<Made> {
        let cluster = self.clusters.get(&settings.folders.swift_dir)?;
        match conf.role {
            Role::Proxy => Ok((self.proxy(conf, &cluster)?, Calls::default())),
            _ => {
                let (app, calls) = self.backend(conf, settings)?;
                let app = match conf.app.bool_or("replication_server", true) {
                    true => app,
                    false => ForClients::around(app),
                };
                let app = match conf.app.bool_or("log_requests", true) {
                    true => AccessLog::around(app, self.clock.clone()),
                    false => app,
                };
                let env = pipeline::filter_env(&cluster, None, self.clock.clone());
                let pipeline = pipeline::build(conf, app, &env)?;
                let calls = match lets_calls_through(conf) {
                    true => calls,
                    false => Calls::default(),
                };
                Ok((pipeline, calls))
            }
        }
    }

    fn proxy(&self, conf: &ServerConf, cluster: &Cluster) -> Result<Handler> {
        let proxy = proxy(conf, cluster, &self.backends, &self.clock)?;
        let env = FilterEnv {
            cross_origin: CrossOrigin::read(&conf.app),
            ..pipeline::filter_env(cluster, Some(proxy.clone()), self.clock.clone())
        };
        let pipeline = pipeline::build(conf, proxy, &env)?;
        Ok(head_limits::around(pipeline, &cluster.constraints))
    }

    fn backend(&mut self, conf: &ServerConf, settings: &ServerSettings) -> Result<Made> {
        let section = &conf.app;
        let context = self.context(&conf.path, settings);
        let parts = &mut ConfParts::new(context, section, false)?;
        let handler = match conf.role {
            Role::Account => cairn_assembly::account_server(section, parts),
            Role::Container => cairn_assembly::container_server(section, parts),
            Role::Proxy | Role::Object => cairn_assembly::object_server(section, parts),
        };
        let handler = handler?;
        let (rows, objects) = (parts.rows.take(), parts.object_calls.take());
        Ok((handler, Calls { rows, objects }))
    }

    fn context<'a>(&'a mut self, conf: &'a Path, settings: &ServerSettings) -> PartsContext<'a> {
        PartsContext {
            clusters: &mut self.clusters,
            storage: &mut self.storage,
            backends: &self.backends,
            clock: &self.clock,
            written: self.written.get(&settings.folders.devices).cloned(),
            local_rows: &self.local_rows,
            conf,
        }
    }

    /// The daemons with sections in this conf. One serves all servers of a folder.
    fn daemons(
        &mut self,
        conf: &ServerConf,
        settings: &ServerSettings,
    ) -> Result<Vec<Arc<dyn Daemon>>> {
        let mut daemons = Vec::new();
        for kind in DaemonKind::ALL {
            let Some(section) = conf.daemon(kind.name()) else {
                continue;
            };
            let of_folder = (kind, settings.folders.devices.clone());
            if conf.role != Role::beside(kind) || !self.made.insert(of_folder) {
                continue;
            }
            let context = self.context(&conf.path, settings);
            let daemon = daemons::make(kind, &section, &DaemonOptions::default(), context)
                .with_context(|| conf.path.display().to_string())?;
            daemons.push(daemon);
        }
        Ok(daemons)
    }
}
