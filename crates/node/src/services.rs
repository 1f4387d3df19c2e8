//! Makes the services that conf files describe, and makes those of this process known to each
//! other.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use cairn_daemons::{
    ContainerUpdater, ContainerUpdaterConfig, NotesWrites, ObjectUpdater, UpdaterConfig, Written,
};
use cairn_disk::group_sync::GroupSync;
use cairn_disk::{Devices, DevicesConfig};
use cairn_formats::ini::Section;
use cairn_http::{Clock, Handler};
use cairn_index::{IndexConfig, IndexPool};
use cairn_peer::{Backends, Rings};
use cairn_proxy::{Proxy, ProxySettings};
use cairn_servers::account::AccountServer;
use cairn_servers::container::ContainerServer;
use cairn_servers::object::ObjectServer;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::backends;
use crate::cluster::{Cluster, Clusters};
use crate::conf::{Role, ServerConf};
use crate::listen;
use crate::pipeline;
use crate::settings::ServerSettings;

type Server = (ServerConf, ServerSettings);

/// What works in the background.
pub(crate) enum Daemon {
    ObjectUpdater(Arc<ObjectUpdater>),
    ContainerUpdater(Arc<ContainerUpdater>),
}

impl Daemon {
    /// Runs until `stop` turns true.
    pub(crate) fn start(&self, tasks: &mut JoinSet<()>, stop: watch::Receiver<bool>) {
        match self {
            Daemon::ObjectUpdater(updater) => tasks.spawn(updater.clone().run(stop)),
            Daemon::ContainerUpdater(updater) => tasks.spawn(updater.clone().run(stop)),
        };
    }
}

/// All services of a process, and what they stand on.
pub(crate) struct Services {
    /// One for each server, in order.
    handlers: Vec<Handler>,
    daemons: Vec<Daemon>,
    backends: Arc<Backends>,
    clusters: Clusters,
    storage: Storage,
}

impl Services {
    /// To be called inside a runtime.
    pub(crate) fn build(servers: &[Server], unsafe_no_fsync: bool) -> Result<Services> {
        let mut maker = Maker {
            backends: Backends::new(connect_timeout(servers)?),
            clusters: Clusters::default(),
            storage: Storage {
                unsafe_no_fsync,
                ..Storage::default()
            },
            clock: Clock::system(),
            written: noted_folders(servers),
        };
        let mut daemons = Vec::new();
        let mut handlers = Vec::new();
        for (conf, settings) in servers {
            let handler = maker
                .handler(conf, settings)
                .with_context(|| format!("{} of {}", conf.role, conf.path.display()))?;
            handlers.push(handler);
        }
        for (conf, settings) in servers {
            daemons.extend(maker.daemon(conf, settings)?);
        }
        let Maker {
            backends,
            clusters,
            storage,
            ..
        } = maker;
        let services = Services {
            handlers,
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

    pub(crate) fn daemons(&self) -> &[Daemon] {
        &self.daemons
    }

    /// What loads rings that changed, and makes the storage servers of this process local under
    /// every address the rings have for them. Blocks.
    pub(crate) fn registrar(&self, servers: &[Server]) -> Arc<dyn Fn() + Send + Sync> {
        let local: Vec<(SocketAddr, Handler)> = servers
            .iter()
            .zip(&self.handlers)
            .filter(|((conf, _), _)| conf.role != Role::Proxy)
            .map(|((_, settings), handler)| (settings.bind, handler.clone()))
            .collect();
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
            for (bind, handler) in &local {
                let mut addresses = listen::known_as(*bind, None, []);
                for (rings, cluster) in &rings {
                    let policies: Vec<_> = cluster.policies.iter().map(|p| p.index).collect();
                    addresses.extend(listen::known_as(*bind, [&**rings], policies));
                }
                for address in addresses {
                    backends.register_local(address, handler.clone());
                }
            }
        })
    }

    /// Finishes what disks and databases have begun, and joins their threads. Blocks.
    pub(crate) fn close(self) {
        let Services {
            handlers,
            daemons,
            storage,
            ..
        } = self;
        drop((handlers, daemons));
        storage.close();
    }
}

/// One pool of connections for all: the longest `conn_timeout` of any conf.
fn connect_timeout(servers: &[Server]) -> Result<Duration> {
    let mut longest = Duration::ZERO;
    for (conf, _) in servers {
        longest = longest.max(conf.app.seconds_or("conn_timeout", 0.5)?);
    }
    Ok(longest)
}

fn container_updater(conf: &ServerConf) -> Option<Section> {
    (conf.role == Role::Container)
        .then(|| conf.daemon("container-updater"))
        .flatten()
}

/// Folders of devices with a container updater: what is written there is noted for it.
fn noted_folders(servers: &[Server]) -> BTreeMap<PathBuf, Noted> {
    servers
        .iter()
        .filter(|(conf, _)| container_updater(conf).is_some())
        .map(|(_, settings)| (settings.devices.clone(), Noted::default()))
        .collect()
}

#[derive(Default)]
struct Noted {
    written: Arc<Written>,
    /// One updater does for all servers of the folder.
    has_updater: bool,
}

/// What is shared while services are made.
struct Maker {
    backends: Arc<Backends>,
    clusters: Clusters,
    storage: Storage,
    clock: Clock,
    /// By folder of devices.
    written: BTreeMap<PathBuf, Noted>,
}

impl Maker {
    fn handler(&mut self, conf: &ServerConf, settings: &ServerSettings) -> Result<Handler> {
        let cluster = self.clusters.get(&settings.swift_dir)?;
        match conf.role {
            Role::Proxy => self.proxy(conf, &cluster),
            _ => {
                let app = self.backend(conf, settings, &cluster)?;
                let env = pipeline::filter_env(&cluster, None, self.clock.clone());
                pipeline::build(conf, app, &env)
            }
        }
    }

    fn proxy(&self, conf: &ServerConf, cluster: &Cluster) -> Result<Handler> {
        let settings = ProxySettings {
            section: conf.app.clone(),
            constraints: cluster.constraints.clone(),
            policies: cluster.policies.clone(),
            hash_path: cluster.hash_path.clone(),
            rings: cluster.rings()?,
            swift_info: cluster.swift_info.clone(),
            clock: self.clock.clone(),
        };
        let proxy = Proxy::new(settings, self.backends.clone())?;
        let env = pipeline::filter_env(cluster, Some(proxy.clone()), self.clock.clone());
        pipeline::build(conf, proxy, &env)
    }

    fn backend(
        &mut self,
        conf: &ServerConf,
        settings: &ServerSettings,
        cluster: &Cluster,
    ) -> Result<Handler> {
        let (section, network) = (&conf.app, self.backends.clone());
        Ok(match conf.role {
            Role::Account => {
                let config = backends::account(section, settings, cluster, self.clock.clone())?;
                AccountServer::new(config, self.storage.pool(&settings.devices))
            }
            Role::Container => {
                let config = backends::container(section, settings, cluster)?;
                let pool = self.storage.pool(&settings.devices);
                let server = ContainerServer::new(config, pool, network);
                match self.written.get(&settings.devices) {
                    Some(Noted { written, .. }) => {
                        NotesWrites::around(server, cluster.hash_path.clone(), written.clone())
                    }
                    None => server,
                }
            }
            Role::Proxy | Role::Object => {
                let config = backends::object(section, settings, cluster, self.clock.clone())?;
                ObjectServer::new(config, self.storage.devices(settings, section)?, network)
            }
        })
    }

    /// The daemon that this conf asks for, if it asks for one and it is not there yet.
    fn daemon(&mut self, conf: &ServerConf, settings: &ServerSettings) -> Result<Option<Daemon>> {
        if let Some(section) = container_updater(conf) {
            return self.container_updater(&section, settings);
        }
        match conf.daemon("object-updater") {
            Some(section) if conf.role == Role::Object => {
                self.object_updater(&section, settings).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn object_updater(&mut self, section: &Section, settings: &ServerSettings) -> Result<Daemon> {
        let cluster = self.clusters.get(&settings.swift_dir)?;
        Ok(Daemon::ObjectUpdater(ObjectUpdater::new(
            UpdaterConfig::read(section)?,
            cluster.hash_path.clone(),
            cluster.policies.clone(),
            cluster.rings()?,
            self.storage.devices(settings, section)?,
            self.backends.clone(),
        )))
    }

    fn container_updater(
        &mut self,
        section: &Section,
        settings: &ServerSettings,
    ) -> Result<Option<Daemon>> {
        let cluster = self.clusters.get(&settings.swift_dir)?;
        let written = match self.written.get_mut(&settings.devices) {
            Some(noted) if !noted.has_updater => {
                noted.has_updater = true;
                noted.written.clone()
            }
            _ => return Ok(None),
        };
        Ok(Some(Daemon::ContainerUpdater(ContainerUpdater::new(
            ContainerUpdaterConfig::read(section)?,
            cluster.hash_path.clone(),
            cluster.rings()?,
            self.storage.pool(&settings.devices),
            self.backends.clone(),
            written,
        ))))
    }
}

/// Disks and databases, one of each per folder of devices: servers of several roles share them.
#[derive(Default)]
struct Storage {
    devices: BTreeMap<PathBuf, Arc<Devices>>,
    pools: BTreeMap<PathBuf, Arc<IndexPool>>,
    unsafe_no_fsync: bool,
}

impl Storage {
    fn devices(&mut self, settings: &ServerSettings, section: &Section) -> Result<Arc<Devices>> {
        if let Some(known) = self.devices.get(&settings.devices) {
            return Ok(known.clone());
        }
        let devices = Devices::new(DevicesConfig {
            mount_check: settings.mount_check,
            fallocate_reserve: backends::reserve(section)?,
            disable_fallocate: section.bool_or("disable_fallocate", false),
            unsafe_no_fsync: self.unsafe_no_fsync,
            ..DevicesConfig::new(&settings.devices)
        });
        self.devices
            .insert(settings.devices.clone(), devices.clone());
        Ok(devices)
    }

    fn pool(&mut self, devices: &Path) -> Arc<IndexPool> {
        let make = || {
            let mut config = IndexConfig::new(devices);
            // Rows and objects on one file system share their syncs.
            config.commit_sync = if self.unsafe_no_fsync {
                Arc::new(|_, _, _| Ok(()))
            } else {
                Arc::new(|on, weight, own| GroupSync::of(on.as_fd())?.sync(on.as_fd(), weight, own))
            };
            IndexPool::new(config)
        };
        self.pools
            .entry(devices.to_owned())
            .or_insert_with(make)
            .clone()
    }

    fn close(self) {
        for pool in self.pools.into_values() {
            pool.close_all();
        }
        for devices in self.devices.into_values() {
            devices.shutdown();
        }
    }
}
