//! The daemons: their kinds, their sections, and their construction.
//!
//! A daemon runs in one of two ways. `cairn up` and `cairn serve` run those whose sections are in
//! the servers' confs, inside their process. Under Swift's names (`swift-object-updater CONF`) each
//! is a program of its own, and `swift-object-server` runs the server alone. A lock on the folder
//! of devices keeps one daemon from running both ways at once.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
pub use cairn_daemons::PassFilter;
use cairn_daemons::{
    AccountReaper, AccountReaperConfig, AuditorConfig, AuditorParts, ContainerReconciler,
    ContainerReconcilerConfig, ContainerSharder, ContainerSharderConfig, ContainerSync,
    ContainerSyncConfig, ContainerUpdater, ContainerUpdaterConfig, Daemon, DarkData,
    DarkDataConfig, DbAuditor, DbAuditorConfig, DbReplicator, DbReplicatorConfig, ExpirerParts,
    InternalClient, ObjectAuditor, ObjectExpirer, ObjectExpirerConfig, ObjectReconstructor,
    ObjectReplicator, ObjectUpdater, ReconcilerParts, ReconstructorConfig, ReplicatorConfig,
    ReplicatorParts, SharderParts, SyncParts, UpdaterConfig, Written,
};
use cairn_formats::ini::Section;
use cairn_http::{Clock, Handler};
use cairn_index::DbKind;
use cairn_peer::Backends;

use crate::cluster::{Cluster, Clusters};
use crate::conf::{ServerConf, read_conf};
use crate::pipeline;
use crate::role::{DaemonKind, Role};
use crate::services;
use crate::settings::Place;
use crate::storage::Storage;

/// Restriction of a daemon's work by the command line. Empty fields impose none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Narrowed {
    pub only: PassFilter,
    /// Sharder: no automatic sharding or merging.
    pub no_auto_shard: bool,
    /// Number of processes that share the work.
    pub processes: Option<u64>,
    /// Index of this process, from 0.
    pub process: Option<u64>,
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
) -> Result<Arc<dyn Daemon>> {
    let place = Place::read(section);
    make_at(kind, section, &place, narrowed, context).with_context(|| format!("[{}]", kind.name()))
}

fn make_at(
    kind: DaemonKind,
    section: &Section,
    place: &Place,
    narrowed: &Narrowed,
    context: DaemonContext<'_>,
) -> Result<Arc<dyn Daemon>> {
    let cluster = context.clusters.get(&place.swift_dir)?;
    let clock = context.clock.clone();
    let (backends, storage) = (context.backends.clone(), context.storage);
    let daemon: Arc<dyn Daemon> = match kind {
        DaemonKind::AccountAuditor | DaemonKind::ContainerAuditor => DbAuditor::new(
            DbAuditorConfig::read(section, db_kind(kind))?,
            storage.pool(place, section)?,
        ),
        DaemonKind::AccountReplicator | DaemonKind::ContainerReplicator => DbReplicator::new(
            DbReplicatorConfig::read(section, db_kind(kind))?,
            cluster.hash_path.clone(),
            &cluster.policies,
            cluster.rings()?,
            storage.pool(place, section)?,
            backends,
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
            ContainerSharder::new(config, parts)
        }
        DaemonKind::AccountReaper => AccountReaper::new(
            AccountReaperConfig::read(section)?,
            cluster.hash_path.clone(),
            cluster.rings()?,
            storage.pool(place, section)?,
            backends,
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
            ContainerReconciler::new(config, parts)
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
            ContainerSync::new(config, parts)
        }
        DaemonKind::ContainerUpdater => ContainerUpdater::new(
            ContainerUpdaterConfig::read(section)?,
            cluster.hash_path.clone(),
            cluster.rings()?,
            storage.pool(place, section)?,
            backends,
            context.written,
        ),
        DaemonKind::ObjectUpdater => ObjectUpdater::new(
            UpdaterConfig::read(section)?,
            cluster.hash_path.clone(),
            cluster.policies.clone(),
            cluster.rings()?,
            storage.devices(place, section)?,
            backends,
        ),
        DaemonKind::ObjectAuditor => {
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
        }
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
            ObjectExpirer::new(config, parts)
        }
        DaemonKind::ObjectReconstructor => ObjectReconstructor::new(
            ReconstructorConfig::read(section)?,
            replicator_parts(section, place, &cluster, storage, backends, clock)?,
        ),
        DaemonKind::ObjectReplicator => ObjectReplicator::new(
            ReplicatorConfig::read(section)?,
            replicator_parts(section, place, &cluster, storage, backends, clock)?,
        ),
    };
    Ok(daemon)
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
    match Role::beside(kind) {
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
