//! The daemons: their kinds, their sections, and their construction.
//!
//! A daemon runs in one of two ways. `cairn up` and `cairn serve` run those whose sections are in
//! the servers' confs, inside their process. Under Swift's names (`swift-object-updater CONF`) each
//! is a program of its own, and `swift-object-server` runs the server alone. A lock on the folder
//! of devices keeps one daemon from running both ways at once.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use cairn_daemons::{
    AccountReaper, AccountReaperConfig, AuditOnly, AuditorConfig, AuditorParts,
    ContainerReconciler, ContainerReconcilerConfig, ContainerSharder, ContainerSharderConfig,
    ContainerSync, ContainerSyncConfig, ContainerUpdater, ContainerUpdaterConfig, DarkData,
    DarkDataConfig, DbAuditor, DbAuditorConfig, DbReplicator, DbReplicatorConfig, ExpirerParts,
    InternalClient, ObjectAuditor, ObjectExpirer, ObjectExpirerConfig, ObjectReconstructor,
    ObjectReplicator, ObjectUpdater, Only, OnlyThese, Progress, ReconcilerParts,
    ReconstructorConfig, ReplicatorConfig, ReplicatorParts, SharderParts, SyncParts, UpdaterConfig,
    Written,
};
use cairn_formats::ini::Section;
use cairn_http::{Clock, Handler};
use cairn_index::DbKind;
use cairn_peer::Backends;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::cluster::{Cluster, Clusters};
use crate::conf::{ServerConf, read_conf};
use crate::pipeline;
use crate::role::{DaemonKind, Role};
use crate::services;
use crate::settings::Place;
use crate::storage::Storage;

/// Restriction of a pass by the command line. Empty fields impose none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Narrowed {
    pub devices: Vec<String>,
    pub partitions: Vec<u32>,
    pub policies: Vec<u32>,
    /// Object auditor: only opens objects, at this rate per second.
    pub zero_byte_fps: Option<f64>,
    /// Sharder: no automatic sharding or merging.
    pub no_auto_shard: bool,
    /// Number of processes that share the work.
    pub processes: Option<u64>,
    /// Index of this process, from 0.
    pub process: Option<u64>,
}

impl Narrowed {
    /// The restriction for the replicator and the reconstructor.
    fn only(&self) -> Only {
        Only {
            devices: self.devices.clone(),
            partitions: self.partitions.clone(),
            policies: self.policies.clone(),
        }
    }
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A daemon, ready to run.
pub(crate) struct Daemon {
    pub(crate) kind: DaemonKind,
    once: Box<dyn Fn() -> Work + Send + Sync>,
    run: Box<dyn Fn(watch::Receiver<bool>) -> Work + Send + Sync>,
    /// Progress, for daemons that count their work.
    pub(crate) progress: Option<Arc<Progress>>,
}

impl Daemon {
    fn new<D, O, R>(
        kind: DaemonKind,
        daemon: Arc<D>,
        once: impl Fn(Arc<D>) -> O + Send + Sync + 'static,
        run: impl Fn(Arc<D>, watch::Receiver<bool>) -> R + Send + Sync + 'static,
    ) -> Daemon
    where
        D: Send + Sync + 'static,
        O: Future<Output = ()> + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let other = daemon.clone();
        Daemon {
            kind,
            once: Box::new(move || Box::pin(once(daemon.clone()))),
            run: Box::new(move |stop| Box::pin(run(other.clone(), stop))),
            progress: None,
        }
    }

    fn showing(self, progress: Arc<Progress>) -> Daemon {
        Daemon {
            progress: Some(progress),
            ..self
        }
    }

    /// Spawns the daemon, until `stop` turns true.
    pub(crate) fn start(&self, tasks: &mut JoinSet<()>, stop: watch::Receiver<bool>) {
        tasks.spawn((self.run)(stop));
    }

    /// Runs one pass.
    pub(crate) fn once(&self) -> Work {
        (self.once)()
    }
}

/// Dependencies of daemons.
pub(crate) struct DaemonContext<'a> {
    pub(crate) clusters: &'a mut Clusters,
    pub(crate) storage: &'a mut Storage,
    pub(crate) backends: &'a Arc<Backends>,
    pub(crate) clock: &'a Clock,
    /// Writes of this process's own container servers; none if it has no such servers.
    pub(crate) written: Option<Arc<Written>>,
    /// Path of the conf with the daemon's section.
    pub(crate) conf: &'a Path,
}

/// The section of an auditor's watcher; empty if missing.
fn watcher_section(conf: &Path, name: &str) -> Result<Section> {
    Ok(read_conf(conf)?.section_or_defaults(name))
}

/// Constructs a daemon from its section.
pub(crate) fn make(
    kind: DaemonKind,
    section: &Section,
    narrowed: &Narrowed,
    context: DaemonContext<'_>,
) -> Result<Daemon> {
    let place = Place::read(section);
    make_at(kind, section, &place, narrowed, context).with_context(|| format!("[{}]", kind.name()))
}

fn make_at(
    kind: DaemonKind,
    section: &Section,
    place: &Place,
    narrowed: &Narrowed,
    context: DaemonContext<'_>,
) -> Result<Daemon> {
    let cluster = context.clusters.get(&place.swift_dir)?;
    let clock = context.clock.clone();
    let (backends, storage) = (context.backends.clone(), context.storage);
    let narrowed = narrowed.clone();
    Ok(match kind {
        DaemonKind::AccountAuditor | DaemonKind::ContainerAuditor => Daemon::new(
            kind,
            DbAuditor::new(
                DbAuditorConfig::read(section, db_kind(kind))?,
                storage.pool(place, section)?,
            ),
            |auditor| async move { _ = auditor.once().await },
            |auditor, stop| auditor.run(stop),
        ),
        DaemonKind::AccountReplicator | DaemonKind::ContainerReplicator => Daemon::new(
            kind,
            DbReplicator::new(
                DbReplicatorConfig::read(section, db_kind(kind))?,
                cluster.hash_path.clone(),
                &cluster.policies,
                cluster.rings()?,
                storage.pool(place, section)?,
                backends,
            ),
            move |replicator| {
                let only = OnlyThese {
                    devices: narrowed.devices.iter().cloned().collect(),
                    partitions: narrowed.partitions.iter().copied().collect(),
                };
                async move { _ = replicator.once_of(&only).await }
            },
            |replicator, stop| replicator.run(stop),
        ),
        DaemonKind::ContainerSharder => {
            let mut config = ContainerSharderConfig::read(section)?;
            config.auto_shard &= !narrowed.no_auto_shard;
            let conf = internal_client_conf(kind, section, place, context.conf);
            let pipeline = internal_pipeline(&conf, &cluster, &backends, &clock)
                .with_context(|| format!("internal_client_conf_path = {}", conf.display()))?;
            let tries = config.request_tries;
            let prefix = &cluster.constraints.auto_create_account_prefix;
            let parts = SharderParts {
                hash_path: cluster.hash_path.clone(),
                policies: cluster.policies.clone(),
                rings: cluster.rings()?,
                pool: storage.pool(place, section)?,
                client: InternalClient::new(pipeline, "Swift Container Sharder", tries),
                backends,
                auto_create_account_prefix: prefix.clone(),
            };
            Daemon::new(
                kind,
                ContainerSharder::new(config, parts),
                move |sharder| {
                    let only = OnlyThese {
                        devices: narrowed.devices.iter().cloned().collect(),
                        partitions: narrowed.partitions.iter().copied().collect(),
                    };
                    async move { _ = sharder.once(&only).await }
                },
                |sharder, stop| sharder.run(stop),
            )
        }
        DaemonKind::AccountReaper => Daemon::new(
            kind,
            AccountReaper::new(
                AccountReaperConfig::read(section)?,
                cluster.hash_path.clone(),
                cluster.rings()?,
                storage.pool(place, section)?,
                backends,
            ),
            |reaper| async move { _ = reaper.once().await },
            |reaper, stop| reaper.run(stop),
        ),
        DaemonKind::ContainerReconciler => {
            let config = ContainerReconcilerConfig::read(section)?.shared(
                section,
                narrowed.processes,
                narrowed.process,
            )?;
            let conf = internal_client_conf(kind, section, place, context.conf);
            let pipeline = internal_pipeline(&conf, &cluster, &backends, &clock)?;
            let tries = config.request_tries;
            let parts = ReconcilerParts {
                client: InternalClient::new(pipeline, "Swift Container Reconciler", tries),
                hash_path: cluster.hash_path.clone(),
                rings: cluster.rings()?,
                backends,
                clock,
            };
            Daemon::new(
                kind,
                ContainerReconciler::new(config, parts),
                |reconciler| async move { _ = reconciler.once().await },
                |reconciler, stop| reconciler.run(stop),
            )
        }
        DaemonKind::ContainerSync => {
            let config = ContainerSyncConfig::read(section)?;
            let conf = internal_client_conf(kind, section, place, context.conf);
            let pipeline = internal_pipeline(&conf, &cluster, &backends, &clock)?;
            let parts = SyncParts {
                client: InternalClient::new(pipeline, "Swift Container Sync", config.request_tries),
                hash_path: cluster.hash_path.clone(),
                rings: cluster.rings()?,
                pool: storage.pool(place, section)?,
            };
            Daemon::new(
                kind,
                ContainerSync::new(config, parts),
                |sync| async move { _ = sync.once().await },
                |sync, stop| sync.run(stop),
            )
        }
        DaemonKind::ContainerUpdater => Daemon::new(
            kind,
            ContainerUpdater::new(
                ContainerUpdaterConfig::read(section)?,
                cluster.hash_path.clone(),
                cluster.rings()?,
                storage.pool(place, section)?,
                backends,
                context.written,
            ),
            |updater| async move { updater.once().await },
            |updater, stop| updater.run(stop),
        ),
        DaemonKind::ObjectUpdater => Daemon::new(
            kind,
            ObjectUpdater::new(
                UpdaterConfig::read(section)?,
                cluster.hash_path.clone(),
                cluster.policies.clone(),
                cluster.rings()?,
                storage.devices(place, section)?,
                backends,
            ),
            |updater| async move { _ = updater.sweep().await },
            |updater, stop| updater.run(stop),
        ),
        DaemonKind::ObjectAuditor => Daemon::new(
            kind,
            {
                let config = AuditorConfig::read(section)?;
                let watcher = match &config.watcher_section {
                    Some(name) => Some(DarkData {
                        config: DarkDataConfig::read(&watcher_section(context.conf, name)?)?,
                        hash_path: cluster.hash_path.clone(),
                        rings: cluster.rings()?,
                        backends,
                    }),
                    None => None,
                };
                let parts = AuditorParts {
                    engines: storage.engines(place, section, &cluster)?,
                    policies: cluster.policies.clone(),
                    devices: storage.devices(place, section)?,
                    clock,
                };
                ObjectAuditor::watched(config, parts, watcher)
            },
            move |auditor| {
                let only = AuditOnly {
                    devices: narrowed.devices.clone(),
                    zero_byte_fps: narrowed.zero_byte_fps,
                };
                async move { _ = auditor.once(&only).await }
            },
            |auditor, stop| auditor.run(stop),
        ),
        DaemonKind::ObjectExpirer => {
            let conf = internal_client_conf(kind, section, place, context.conf);
            let config = ObjectExpirerConfig::read(section, is_its_own(kind, context.conf))?
                .shared(section, narrowed.processes, narrowed.process)?;
            let pipeline = internal_pipeline(&conf, &cluster, &backends, &clock)?;
            let prefix = &cluster.constraints.auto_create_account_prefix;
            let tries = config.request_tries;
            let parts = ExpirerParts {
                client: InternalClient::new(pipeline, "Swift Object Expirer", tries),
                auto_create_account_prefix: prefix.clone(),
                hash_path: cluster.hash_path.clone(),
                rings: cluster.rings()?,
                backends,
                clock,
            };
            Daemon::new(
                kind,
                ObjectExpirer::new(config, parts),
                |expirer| async move { _ = expirer.once().await },
                |expirer, stop| expirer.run(stop),
            )
        }
        DaemonKind::ObjectReconstructor => {
            let reconstructor = ObjectReconstructor::new(
                ReconstructorConfig::read(section)?,
                replicator_parts(section, place, &cluster, storage, backends, clock)?,
            );
            let progress = reconstructor.progress();
            let once = move |reconstructor: Arc<ObjectReconstructor>| {
                let only = narrowed.only();
                async move { _ = reconstructor.once(&only).await }
            };
            Daemon::new(kind, reconstructor, once, |reconstructor, stop| {
                reconstructor.run(stop)
            })
            .showing(progress)
        }
        DaemonKind::ObjectReplicator => {
            let replicator = ObjectReplicator::new(
                ReplicatorConfig::read(section)?,
                replicator_parts(section, place, &cluster, storage, backends, clock)?,
            );
            let progress = replicator.progress();
            let once = move |replicator: Arc<ObjectReplicator>| {
                let only = narrowed.only();
                async move { _ = replicator.once(&only).await }
            };
            Daemon::new(kind, replicator, once, |replicator, stop| {
                replicator.run(stop)
            })
            .showing(progress)
        }
    })
}

/// Dependencies of the replicator and the reconstructor.
fn replicator_parts(
    section: &Section,
    place: &Place,
    cluster: &Cluster,
    storage: &mut Storage,
    backends: Arc<Backends>,
    clock: Clock,
) -> Result<ReplicatorParts> {
    Ok(ReplicatorParts {
        engines: storage.engines(place, section, cluster)?,
        policies: cluster.policies.clone(),
        rings: cluster.rings()?,
        devices: storage.devices(place, section)?,
        backends,
        clock,
    })
}

fn db_kind(kind: DaemonKind) -> DbKind {
    match kind.role() {
        Role::Account => DbKind::Account,
        _ => DbKind::Container,
    }
}

/// Whether a conf is for this daemon alone, by its name, as in Swift; it then also has the daemon's
/// pipeline.
fn is_its_own(kind: DaemonKind, conf: &Path) -> bool {
    let name = conf.to_string_lossy();
    match kind {
        DaemonKind::ObjectExpirer => name.contains("expirer"),
        DaemonKind::ContainerReconciler => name.contains("reconciler"),
        _ => false,
    }
}

fn internal_client_conf(kind: DaemonKind, section: &Section, place: &Place, own: &Path) -> PathBuf {
    match section.get("internal_client_conf_path") {
        Some(path) => path.into(),
        None if is_its_own(kind, own) => own.to_owned(),
        None => place.swift_dir.join("internal-client.conf"),
    }
}

/// The pipeline of a conf, without the filters that clients would need.
fn internal_pipeline(
    path: &Path,
    cluster: &Cluster,
    backends: &Arc<Backends>,
    clock: &Clock,
) -> Result<Handler> {
    read_pipeline(path, cluster, backends, clock)
        .with_context(|| format!("internal_client_conf_path = {}", path.display()))
}

pub(crate) fn read_pipeline(
    path: &Path,
    cluster: &Cluster,
    backends: &Arc<Backends>,
    clock: &Clock,
) -> Result<Handler> {
    let conf = ServerConf::load(path)?;
    if conf.role != Role::Proxy {
        bail!("this is the conf of {}, not of a proxy", conf.role);
    }
    if conf.filters.iter().any(|f| f.entry_point == "gatekeeper") {
        bail!("gatekeeper is for clients: remove it from the pipeline");
    }
    let cluster = &cluster.apart();
    let proxy = services::proxy(&conf, cluster, backends, clock)?;
    let env = pipeline::filter_env(cluster, Some(proxy.clone()), clock.clone());
    pipeline::around(&conf.filters, proxy, &env)
}
