//! Daemons by their kinds.

use std::sync::Arc;

use anyhow::Result;
use cairn_daemons::{
    AccountReaper, AccountReaperConfig, AuditorConfig, AuditorParts, ContainerReconciler,
    ContainerReconcilerConfig, ContainerSharder, ContainerSharderConfig, ContainerSync,
    ContainerSyncConfig, ContainerUpdater, ContainerUpdaterConfig, Daemon, DaemonKind, DarkData,
    DarkDataConfig, DbAuditor, DbAuditorConfig, DbReplicator, DbReplicatorConfig, ExpirerParts,
    InternalClient, ObjectAuditor, ObjectExpirer, ObjectExpirerConfig, ObjectReconstructor,
    ObjectReplicator, ObjectUpdater, ReconcilerParts, ReconstructorConfig, ReplicatorConfig,
    ReplicatorParts, SharderParts, SyncParts, UpdaterConfig,
};
use cairn_formats::ini::Section;
use cairn_index::DbKind;

use crate::Parts;

/// Options of a daemon that are not in its section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonOptions {
    /// Sharder: no automatic sharding or merging.
    pub no_auto_shard: bool,
    /// Number of processes that share the work.
    pub processes: Option<u64>,
    /// Index of this process, from 0.
    pub process: Option<u64>,
    /// Expirer: whether the conf is for it alone.
    pub has_own_conf: bool,
}

/// Makes a daemon.
///
/// # Errors
/// An option or a part is invalid or missing.
pub fn daemon(
    kind: DaemonKind,
    section: &Section,
    options: &DaemonOptions,
    parts: &mut dyn Parts,
) -> Result<Arc<dyn Daemon>> {
    let daemon: Arc<dyn Daemon> = match kind {
        DaemonKind::AccountAuditor => db_auditor(DbKind::Account, section, parts)?,
        DaemonKind::AccountReaper => reaper(section, parts)?,
        DaemonKind::AccountReplicator => db_replicator(DbKind::Account, section, parts)?,
        DaemonKind::ContainerAuditor => db_auditor(DbKind::Container, section, parts)?,
        DaemonKind::ContainerReconciler => reconciler(section, options, parts)?,
        DaemonKind::ContainerReplicator => db_replicator(DbKind::Container, section, parts)?,
        DaemonKind::ContainerSharder => sharder(section, options, parts)?,
        DaemonKind::ContainerSync => container_sync(section, parts)?,
        DaemonKind::ContainerUpdater => container_updater(section, parts)?,
        DaemonKind::ObjectAuditor => object_auditor(section, parts)?,
        DaemonKind::ObjectExpirer => expirer(section, options, parts)?,
        DaemonKind::ObjectReconstructor => {
            let config = ReconstructorConfig::read(section)?;
            ObjectReconstructor::new(config, replicator_parts(parts)?)
        }
        DaemonKind::ObjectReplicator => {
            let config = ReplicatorConfig::read(section)?;
            ObjectReplicator::new(config, replicator_parts(parts)?)
        }
        DaemonKind::ObjectUpdater => object_updater(section, parts)?,
    };
    Ok(daemon)
}

fn db_auditor(kind: DbKind, section: &Section, parts: &mut dyn Parts) -> Result<Arc<DbAuditor>> {
    let config = DbAuditorConfig::read(section, kind)?;
    Ok(DbAuditor::new(config, parts.databases()?))
}

fn db_replicator(
    kind: DbKind,
    section: &Section,
    parts: &mut dyn Parts,
) -> Result<Arc<DbReplicator>> {
    let config = DbReplicatorConfig::read(section, kind)?;
    let common = parts.common().clone();
    Ok(DbReplicator::new(
        config,
        common.hash_path,
        &common.policies,
        parts.rings()?,
        parts.databases()?,
        common.backends,
    ))
}

fn reaper(section: &Section, parts: &mut dyn Parts) -> Result<Arc<AccountReaper>> {
    let config = AccountReaperConfig::read(section)?;
    let common = parts.common().clone();
    Ok(AccountReaper::new(
        config,
        common.hash_path,
        parts.rings()?,
        parts.databases()?,
        common.backends,
    ))
}

fn container_updater(section: &Section, parts: &mut dyn Parts) -> Result<Arc<ContainerUpdater>> {
    let config = ContainerUpdaterConfig::read(section)?;
    let common = parts.common().clone();
    Ok(ContainerUpdater::new(
        config,
        common.hash_path,
        parts.rings()?,
        parts.databases()?,
        common.backends,
        parts.written(),
    ))
}

fn sharder(
    section: &Section,
    options: &DaemonOptions,
    parts: &mut dyn Parts,
) -> Result<Arc<ContainerSharder>> {
    let mut config = ContainerSharderConfig::read(section)?;
    config.auto_shard &= !options.no_auto_shard;
    let client = client(parts, "Swift Container Sharder", config.request_tries)?;
    let common = parts.common().clone();
    let parts = SharderParts {
        hash_path: common.hash_path,
        policies: common.policies,
        rings: parts.rings()?,
        pool: parts.databases()?,
        backends: common.backends,
        client,
        auto_create_account_prefix: common.constraints.auto_create_account_prefix.clone(),
    };
    Ok(ContainerSharder::new(config, parts))
}

fn container_sync(section: &Section, parts: &mut dyn Parts) -> Result<Arc<ContainerSync>> {
    let config = ContainerSyncConfig::read(section)?;
    let parts = SyncParts {
        client: client(parts, "Swift Container Sync", config.request_tries)?,
        hash_path: parts.common().hash_path.clone(),
        rings: parts.rings()?,
        pool: parts.databases()?,
    };
    Ok(ContainerSync::new(config, parts))
}

fn reconciler(
    section: &Section,
    options: &DaemonOptions,
    parts: &mut dyn Parts,
) -> Result<Arc<ContainerReconciler>> {
    let config = ContainerReconcilerConfig::read(section)?;
    let config = config.shared(section, options.processes, options.process)?;
    let client = client(parts, "Swift Container Reconciler", config.request_tries)?;
    let common = parts.common().clone();
    let parts = ReconcilerParts {
        client,
        hash_path: common.hash_path,
        rings: parts.rings()?,
        backends: common.backends,
        clock: common.clock,
    };
    Ok(ContainerReconciler::new(config, parts))
}

fn expirer(
    section: &Section,
    options: &DaemonOptions,
    parts: &mut dyn Parts,
) -> Result<Arc<ObjectExpirer>> {
    let config = ObjectExpirerConfig::read(section, options.has_own_conf)?;
    let config = config.shared(section, options.processes, options.process)?;
    let client = client(parts, "Swift Object Expirer", config.request_tries)?;
    let common = parts.common().clone();
    let parts = ExpirerParts {
        client,
        auto_create_account_prefix: common.constraints.auto_create_account_prefix.clone(),
        hash_path: common.hash_path,
        rings: parts.rings()?,
        backends: common.backends,
        clock: common.clock,
    };
    Ok(ObjectExpirer::new(config, parts))
}

fn object_updater(section: &Section, parts: &mut dyn Parts) -> Result<Arc<ObjectUpdater>> {
    let config = UpdaterConfig::read(section)?;
    let common = parts.common().clone();
    Ok(ObjectUpdater::new(
        config,
        common.hash_path,
        common.policies,
        parts.rings()?,
        parts.devices()?,
        common.backends,
    ))
}

fn object_auditor(section: &Section, parts: &mut dyn Parts) -> Result<Arc<ObjectAuditor>> {
    let config = AuditorConfig::read(section)?;
    let common = parts.common().clone();
    let watcher = match &config.watcher_section {
        Some(name) => Some(DarkData {
            config: DarkDataConfig::read(&parts.other_section(name)?)?,
            hash_path: common.hash_path,
            rings: parts.rings()?,
            backends: common.backends,
        }),
        None => None,
    };
    let parts = AuditorParts {
        engines: parts.engines()?,
        policies: common.policies,
        devices: parts.devices()?,
        clock: common.clock,
    };
    Ok(ObjectAuditor::watched(config, parts, watcher))
}

/// Parts of the replicator and the reconstructor.
fn replicator_parts(parts: &mut dyn Parts) -> Result<ReplicatorParts> {
    let common = parts.common().clone();
    Ok(ReplicatorParts {
        engines: parts.engines()?,
        policies: common.policies,
        rings: parts.rings()?,
        devices: parts.devices()?,
        backends: common.backends,
        clock: common.clock,
    })
}

fn client(parts: &mut dyn Parts, user_agent: &'static str, tries: u32) -> Result<InternalClient> {
    let pipeline = parts.internal_pipeline()?;
    Ok(InternalClient::new(pipeline, user_agent, tries))
}
