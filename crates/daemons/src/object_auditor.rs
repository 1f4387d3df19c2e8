//! Reads what is stored, before somebody who needs it does: an object whose content or metadata
//! is not what it should be is quarantined, for replication to bring a good one.
//!
//! Two walks go over the same objects side by side, as in Swift: one (`ALL`) reads every object's
//! content at `files_per_second` and `bytes_per_second`; the other (`ZBF`, zero-byte files) only
//! opens them, at `zero_byte_files_per_second`, which finds at once what a crash has emptied.
//!
//! How far a walk is on a device is kept in `objects[-N]/auditor_status_<ALL|ZBF>.json`: a list
//! of the partitions still to do, with which the next program goes on.
//!
//! A watcher (`watchers` in the conf) sees every object whose content was found sound.

mod config;
mod dark_data;
mod stats;
mod walk;

use std::sync::Arc;
use std::time::Duration;

use cairn_disk::{Devices, Engines};
use cairn_http::{Clock, own_thread};
use cairn_types::PolicySet;
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::recon_cache::{OBJECT_RECON_FILE, ReconCache};
pub use config::AuditorConfig;
pub use dark_data::{DarkData, DarkDataAction, DarkDataConfig};
pub use stats::AuditStats;
use walk::{Kind, Walk};

/// What one pass is about. From `--devices` and `--zero_byte_fps`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AuditOnly {
    /// Names of devices; all where empty.
    pub devices: Vec<String>,
    /// Only open objects, so many a second, and read no content.
    pub zero_byte_fps: Option<f64>,
}

/// What the auditor stands on.
#[derive(Clone)]
pub struct AuditorParts {
    /// By policy.
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
}

impl ObjectAuditor {
    pub fn new(config: AuditorConfig, parts: AuditorParts) -> Arc<Self> {
        ObjectAuditor::watched(config, parts, None)
    }

    /// With somebody who sees all that is sound.
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
        })
    }

    /// Both walks again and again, `interval` between two of a kind, until `stop` turns true.
    pub async fn run(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        let rest = self.config.interval.max(Duration::from_millis(10));
        self.forget().await;
        let only = AuditOnly::default();
        let again = |kind: Kind| {
            let (auditor, only) = (self.clone(), only.clone());
            async move {
                loop {
                    auditor.clone().walk_all(kind, &only).await;
                    sleep(rest).await;
                }
            }
        };
        tokio::select! {
            () = again(Kind::All) => {}
            () = again(self.zero_byte_kind()), if self.config.zero_byte_files_per_second > 0.0 => {}
            _ = stop.wait_for(|s| *s) => {}
        }
    }

    /// Each walk once; tells what both did.
    pub async fn once(self: &Arc<Self>, only: &AuditOnly) -> AuditStats {
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

    /// What former programs told monitoring.
    async fn forget(&self) {
        let nothing = || Value::Object(Map::new());
        let keys = [Kind::All, Kind::ZeroByte(0.0)].map(|kind| (kind.recon_key(), nothing()));
        self.recon.update(Map::from_iter(keys)).await;
    }

    /// One walk over all devices, `concurrency` of them at once where that is more than one.
    async fn walk_all(self: Arc<Self>, kind: Kind, only: &AuditOnly) -> AuditStats {
        let devices = self.parts.devices.clone();
        let names = own_thread::blocking(move || devices.names()).await;
        let mut names = names.unwrap_or_default();
        names.retain(|name| only.devices.is_empty() || only.devices.contains(name));
        let workers = match kind {
            Kind::All => self.config.concurrency,
            Kind::ZeroByte(_) => 1,
        };
        // A worker goes over all devices it is given, at its own rates.
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

fn add(total: &mut AuditStats, done: Option<Result<AuditStats, tokio::task::JoinError>>) {
    if let Some(Ok(stats)) = done {
        total.add(&stats);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
