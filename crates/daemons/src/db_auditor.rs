//! The account and the container auditor: opens and checks every database. A damaged one is
//! quarantined, and replication restores a copy.
//!
//! Unlike Swift's auditors, it also runs SQLite's integrity check on databases of up to 64 MiB.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cairn_formats::ini::{ConfError, Section};
use cairn_index::{DbKey, DbKind, DriveCheck, IndexError, IndexPool};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tracing::{debug, error, info, warn};

use crate::daemon::{Daemon, DaemonKind, PassFilter, PassFuture, Schedule};
use crate::local::{self, blocking};
use crate::log_limit::DeviceErrors;
use crate::pace::{Pace, yield_to_clients};
use crate::recon_cache::{
    ACCOUNT_RECON_FILE, CONTAINER_RECON_FILE, DEFAULT_RECON_CACHE_PATH, ReconCache,
};

/// Interval of reports to monitoring, after which counts restart at 0, as in Swift. They are
/// reported at each pass's end as well: most passes end sooner, and Swift's show nothing then.
const REPORT_INTERVAL: Duration = Duration::from_secs(3600);

/// `[account-auditor]` and `[container-auditor]`; names, units and defaults are Swift's.
#[derive(Clone, Debug, PartialEq)]
pub struct DbAuditorConfig {
    pub kind: DbKind,
    pub mount_check: bool,
    /// Interval from one pass's start to the next one's.
    pub interval: Duration,
    /// `accounts_per_second`, `containers_per_second`; 0 is unlimited.
    pub per_second: f64,
    pub recon_cache_path: PathBuf,
}

impl DbAuditorConfig {
    /// Reads the auditor's section.
    ///
    /// # Errors
    /// `Value` for a value that is no number or duration, and for a negative rate.
    pub fn read(section: &Section, kind: DbKind) -> Result<Self, ConfError> {
        let option = match kind {
            DbKind::Account => "accounts_per_second",
            DbKind::Container => "containers_per_second",
        };
        let per_second = section.f64_or(option, 200.0)?;
        if per_second < 0.0 {
            return Err(section.bad(option, "expected 0 (no limit) or more"));
        }
        Ok(DbAuditorConfig {
            kind,
            mount_check: section.bool_or("mount_check", true),
            interval: section.seconds_or("interval", 1800.0)?,
            per_second,
            recon_cache_path: section
                .str_or("recon_cache_path", DEFAULT_RECON_CACHE_PATH)
                .into(),
        })
    }
}

/// Numbers of audited databases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditStats {
    pub passes: u64,
    /// Damaged, unreadable, or with inconsistent counts.
    pub failures: u64,
    /// Failures that were quarantined.
    pub quarantined: u64,
}

/// The auditor of one kind, for all devices under one folder.
pub struct DbAuditor {
    config: DbAuditorConfig,
    pool: Arc<IndexPool>,
    recon: ReconCache,
    since: Mutex<Since>,
    logged: DeviceErrors,
}

/// Counts since the last report to monitoring.
struct Since {
    at: f64,
    reported: Instant,
    stats: AuditStats,
}

impl DbAuditor {
    pub fn new(config: DbAuditorConfig, pool: Arc<IndexPool>) -> Arc<Self> {
        let file = match config.kind {
            DbKind::Account => ACCOUNT_RECON_FILE,
            DbKind::Container => CONTAINER_RECON_FILE,
        };
        Arc::new(DbAuditor {
            recon: ReconCache::new(&config.recon_cache_path, file),
            since: Mutex::new(Since {
                at: (pool.config().clock)().as_f64(),
                reported: Instant::now(),
                stats: AuditStats::default(),
            }),
            logged: DeviceErrors::default(),
            config,
            pool,
        })
    }

    /// Runs one pass over all databases.
    pub async fn pass(&self) -> AuditStats {
        let started = Instant::now();
        let mut stats = AuditStats::default();
        let mut pace = Pace::new(self.config.per_second);
        let root = self.pool.devices().to_owned();
        match blocking(move || local::folders(&root)).await {
            Ok(devices) => {
                for device in devices {
                    if let Err(error) = self.audit_device(&device, &mut pace, &mut stats).await
                        && self.logged.is_due(&device, &error)
                    {
                        warn!(device, %error, "auditor cannot list this device");
                    }
                }
            }
            Err(error) => warn!(%error, "auditor cannot list the devices"),
        }
        let kind = self.config.kind.as_str();
        let elapsed_s = started.elapsed().as_secs_f64();
        if stats.failures > 0 {
            let AuditStats {
                passes,
                failures,
                quarantined,
            } = stats;
            info!(
                kind,
                passes, failures, quarantined, elapsed_s, "audit pass completed"
            );
        } else {
            debug!(
                kind,
                passes = stats.passes,
                elapsed_s,
                "audit pass completed"
            );
        }
        let mut entries = {
            let since = self.since.lock();
            self.figures(since.at, since.stats)
        };
        entries.insert(format!("{kind}_auditor_pass_completed"), json!(elapsed_s));
        self.recon.update(entries).await;
        stats
    }

    async fn audit_device(
        &self,
        device: &str,
        pace: &mut Pace,
        stats: &mut AuditStats,
    ) -> std::io::Result<()> {
        let (root, kind) = (self.pool.devices().to_owned(), self.config.kind);
        let (first, name) = (root.clone(), device.to_owned());
        for partition in blocking(move || local::partitions(&first, &name, kind)).await? {
            let (root, name) = (root.clone(), device.to_owned());
            for key in blocking(move || local::databases(&root, &name, kind, partition)).await? {
                pace.step().await;
                yield_to_clients(&self.pool, device).await;
                self.audit(key, stats).await;
                self.report_hourly().await;
            }
        }
        Ok(())
    }

    async fn audit(&self, key: DbKey, stats: &mut AuditStats) {
        let (device, hash) = (key.device.to_string(), key.hash.hex());
        let db = self.pool.db_by_key(key).checked(DriveCheck {
            mount_check: self.config.mount_check,
            reserve: None,
        });
        let before = *stats;
        match db.read(|broker| broker.audit()).await {
            Ok(None) => stats.passes += 1,
            Ok(Some(reason)) => {
                error!(device, hash, reason, "audit failed");
                stats.failures += 1;
            }
            // Removed meanwhile, or not the database's fault.
            Err(
                IndexError::NotFound { .. }
                | IndexError::Closed
                | IndexError::NotMounted { .. }
                | IndexError::Busy { .. },
            ) => {}
            Err(error) => {
                // A failing device fails for each database.
                if self.logged.is_due(&device, &error) {
                    error!(device, hash, %error, "audit failed");
                }
                stats.failures += 1;
                stats.quarantined += u64::from(matches!(error, IndexError::Quarantined { .. }));
            }
        }
        let mut since = self.since.lock();
        since.stats.passes += stats.passes - before.passes;
        since.stats.failures += stats.failures - before.failures;
    }

    async fn report_hourly(&self) {
        let reported = {
            let mut since = self.since.lock();
            if since.reported.elapsed() < REPORT_INTERVAL {
                return;
            }
            let reported = (since.at, since.stats);
            *since = Since {
                at: (self.pool.config().clock)().as_f64(),
                reported: Instant::now(),
                stats: AuditStats::default(),
            };
            reported
        };
        self.recon
            .update(self.figures(reported.0, reported.1))
            .await;
    }

    fn figures(&self, since: f64, stats: AuditStats) -> Map<String, Value> {
        let kind = self.config.kind.as_str();
        let mut entries = Map::new();
        entries.insert(format!("{kind}_audits_since"), json!(since));
        entries.insert(format!("{kind}_audits_passed"), json!(stats.passes));
        entries.insert(format!("{kind}_audits_failed"), json!(stats.failures));
        entries
    }
}

impl Daemon for DbAuditor {
    fn kind(&self) -> DaemonKind {
        match self.config.kind {
            DbKind::Account => DaemonKind::AccountAuditor,
            DbKind::Container => DaemonKind::ContainerAuditor,
        }
    }

    fn schedule(&self) -> Schedule {
        Schedule::from_start(self.config.interval)
    }

    fn once(self: Arc<Self>, _: PassFilter) -> PassFuture {
        Box::pin(async move { _ = self.pass().await })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
