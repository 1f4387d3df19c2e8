//! Object auditor: verifies stored objects before clients read them; an object with broken content
//! or metadata is quarantined, and replication restores it.
//!
//! Two walks over the same objects run concurrently, as in Swift: one (`ALL`) reads every object's
//! content at `files_per_second` and `bytes_per_second`; the other (`ZBF`, zero-byte files) only
//! opens them, at `zero_byte_files_per_second`, and so quickly finds files emptied by a crash.
//!
//! The checkpoint of a walk on a device is `objects[-N]/auditor_status_<ALL|ZBF>.json`: the
//! partitions left, from which the next process continues.
//!
//! A watcher (`watchers` in the conf) is called with every valid object.

mod config;
mod dark_data;
mod stats;
mod walk;

use std::sync::Arc;

use cairn_disk::{Devices, Engines};
use cairn_http::{Clock, own_thread};
use cairn_types::PolicySet;
use serde_json::{Map, Value};
use tokio::sync::OnceCell;
use tokio::task::JoinSet;

use crate::daemon::{Cycle, Daemon, DaemonKind, PassFilter, PassFuture, Schedule};
use crate::recon_cache::{OBJECT_RECON_FILE, ReconCache};
pub use config::AuditorConfig;
pub use dark_data::{DarkData, DarkDataAction, DarkDataConfig};
pub use stats::AuditStats;
use walk::{Kind, Walk};

/// Dependencies of the auditor.
#[derive(Clone)]
pub struct AuditorParts {
    /// The engine of each policy.
    pub engines: Engines,
    pub policies: Arc<PolicySet>,
    pub devices: Arc<Devices>,
    pub clock: Clock,
}

/// The daemon, for all devices under one folder.
pub struct ObjectAuditor {
    config: AuditorConfig,
    parts: AuditorParts,
    recon: ReconCache,
    watcher: Option<DarkData>,
    /// Set once entries of earlier processes are removed.
    forgotten: OnceCell<()>,
}

impl ObjectAuditor {
    pub fn new(config: AuditorConfig, parts: AuditorParts) -> Arc<Self> {
        ObjectAuditor::watched(config, parts, None)
    }

    /// Adds a watcher of valid objects.
    pub fn watched(
        config: AuditorConfig,
        mut parts: AuditorParts,
        watcher: Option<DarkData>,
    ) -> Arc<Self> {
        parts.engines = parts.engines.for_audit();
        Arc::new(ObjectAuditor {
            recon: ReconCache::new(&config.recon_cache_path, OBJECT_RECON_FILE),
            config,
            parts,
            watcher,
            forgotten: OnceCell::new(),
        })
    }

    /// Runs each walk once; returns the total.
    pub async fn pass(self: &Arc<Self>, only: &PassFilter) -> AuditStats {
        self.forget().await;
        if let Some(rate) = only.zero_byte_fps {
            return self.clone().walk_all(Kind::ZeroByte(rate), only).await;
        }
        if self.config.zero_byte_files_per_second <= 0.0 {
            return self.clone().walk_all(Kind::All, only).await;
        }
        let (mut stats, opened) = tokio::join!(
            self.clone().walk_all(Kind::All, only),
            self.clone().walk_all(self.zero_byte_kind(), only)
        );
        stats.add(&opened);
        stats
    }

    fn zero_byte_kind(&self) -> Kind {
        Kind::ZeroByte(self.config.zero_byte_files_per_second)
    }

    /// Removes monitoring entries of earlier processes.
    async fn forget(&self) {
        let nothing = || Value::Object(Map::new());
        let keys = [Kind::All, Kind::ZeroByte(0.0)].map(|kind| (kind.recon_key(), nothing()));
        self.recon.update(Map::from_iter(keys)).await;
    }

    /// Runs one walk over all devices, `concurrency` of them concurrently if that is more than one.
    async fn walk_all(self: Arc<Self>, kind: Kind, only: &PassFilter) -> AuditStats {
        let devices = self.parts.devices.clone();
        let names = own_thread::blocking(move || devices.names()).await;
        let mut names = names.unwrap_or_default();
        names.retain(|name| only.has_device(name));
        let workers = match kind {
            Kind::All => self.config.concurrency,
            Kind::ZeroByte(_) => 1,
        };
        // A worker walks all its devices, at its own rates.
        let shares: Vec<Vec<String>> = match workers {
            1 => vec![names],
            _ => names.into_iter().map(|name| vec![name]).collect(),
        };
        let is_part = workers > 1 || !only.devices.is_empty();
        let mut total = AuditStats::default();
        let mut under_way: JoinSet<AuditStats> = JoinSet::new();
        for share in shares {
            while under_way.len() >= workers {
                add(&mut total, under_way.join_next().await);
            }
            let walk = Walk::new(self.clone(), kind, share, is_part);
            under_way.spawn(walk.run());
        }
        while let Some(done) = under_way.join_next().await {
            add(&mut total, Some(done));
        }
        total
    }
}

impl Daemon for ObjectAuditor {
    fn kind(&self) -> DaemonKind {
        DaemonKind::ObjectAuditor
    }

    fn schedule(&self) -> Schedule {
        Schedule::from_end(self.config.interval)
    }

    fn once(self: Arc<Self>, only: PassFilter) -> PassFuture {
        Box::pin(async move { _ = self.pass(&only).await })
    }

    /// The two walks, each with `interval` between two of them.
    fn cycles(self: Arc<Self>) -> Vec<Cycle> {
        let mut kinds = vec![Kind::All];
        if self.config.zero_byte_files_per_second > 0.0 {
            kinds.push(self.zero_byte_kind());
        }
        let cycle = |kind| {
            let auditor = self.clone();
            Cycle::new(self.schedule(), move || {
                let auditor = auditor.clone();
                Box::pin(async move {
                    auditor.forgotten.get_or_init(|| auditor.forget()).await;
                    auditor.clone().walk_all(kind, &PassFilter::default()).await;
                })
            })
        };
        kinds.into_iter().map(cycle).collect()
    }
}

fn add(total: &mut AuditStats, done: Option<Result<AuditStats, tokio::task::JoinError>>) {
    if let Some(Ok(stats)) = done {
        total.add(&stats);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
