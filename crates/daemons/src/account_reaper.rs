//! Account reaper: deletes the objects and containers of deleted accounts, by requests to their
//! servers. The account's database is removed by the replicator once it is empty and old enough.
//!
//! Each of an account's primaries handles its share of the containers. Failures are retried in the
//! next pass.

mod reap;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use cairn_formats::ini::{ConfError, Section};
use cairn_index::broker::timestamp;
use cairn_index::{AccountBroker, AccountInfo, DbKey, DbKind, DriveCheck, IndexError, IndexPool};
use cairn_peer::{Backends, Rings};
use cairn_types::{HashPath, Timestamp};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::daemon::{Daemon, DaemonKind, PassFilter, PassFuture, Schedule};
use crate::db_replicator::{default_port, own_address};
use crate::local::{self, OwnAddress, blocking};
use crate::log_limit::DeviceErrors;

/// `[account-reaper]`; names, units and defaults are Swift's.
#[derive(Clone, Debug, PartialEq)]
pub struct AccountReaperConfig {
    /// Address of this node in the ring; accounts on its devices are reaped.
    pub own: OwnAddress,
    pub mount_check: bool,
    /// Interval from one pass's start to the next one's.
    pub interval: Duration,
    /// Maximum concurrent deletions of objects.
    pub concurrency: usize,
    /// Timeout of a request, including the connection.
    pub call_timeout: Duration,
    /// Minimum time since an account's deletion before anything is removed.
    pub delay_reaping: Duration,
    /// Time after that from which a remaining account is logged.
    pub reap_warn_after: Duration,
}

impl AccountReaperConfig {
    /// Reads the options of `[account-reaper]`.
    ///
    /// # Errors
    /// A value is no number, or out of its range.
    pub fn read(section: &Section) -> Result<Self, ConfError> {
        let concurrency = section.usize_or("concurrency", 25)?;
        if !(1..=1024).contains(&concurrency) {
            return Err(section.bad("concurrency", "expected 1 to 1024"));
        }
        Ok(AccountReaperConfig {
            own: own_address(section, default_port(DbKind::Account))?,
            mount_check: section.bool_or("mount_check", true),
            interval: section.seconds_or("interval", 3600.0)?,
            concurrency,
            call_timeout: section.seconds_or("conn_timeout", 0.5)?
                + section.seconds_or("node_timeout", 10.0)?,
            delay_reaping: section.seconds_or("delay_reaping", 0.0)?,
            reap_warn_after: section.seconds_or("reap_warn_after", 2_592_000.0)?,
        })
    }
}

/// Results of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaperStats {
    pub accounts: u64,
    /// Deleted on most servers.
    pub containers_deleted: u64,
    /// Deleted on none.
    pub containers_remaining: u64,
    /// Deleted on some.
    pub containers_possibly_remaining: u64,
    pub objects_deleted: u64,
    pub objects_remaining: u64,
    pub objects_possibly_remaining: u64,
}

/// The daemon, for all devices under one folder.
pub struct AccountReaper {
    config: AccountReaperConfig,
    hash_path: HashPath,
    rings: Arc<Rings>,
    pool: Arc<IndexPool>,
    backends: Arc<Backends>,
    stats: Mutex<ReaperStats>,
    logged: DeviceErrors,
}

impl AccountReaper {
    pub fn new(
        config: AccountReaperConfig,
        hash_path: HashPath,
        rings: Arc<Rings>,
        pool: Arc<IndexPool>,
        backends: Arc<Backends>,
    ) -> Arc<Self> {
        Arc::new(AccountReaper {
            config,
            hash_path,
            rings,
            pool,
            backends,
            stats: Mutex::default(),
            logged: DeviceErrors::default(),
        })
    }

    /// Runs one pass over all accounts.
    pub async fn pass(self: &Arc<Self>) -> ReaperStats {
        let started = Instant::now();
        *self.stats.lock() = ReaperStats::default();
        let root = self.pool.devices().to_owned();
        match blocking(move || local::folders(&root)).await {
            Ok(devices) => {
                for device in devices {
                    if let Err(error) = self.reap_device(&device).await
                        && self.logged.is_due(&device, &error)
                    {
                        warn!(device, %error, "account reaper cannot list this device");
                    }
                }
            }
            Err(error) => warn!(%error, "account reaper cannot list the devices"),
        }
        let stats = *self.stats.lock();
        let elapsed_s = started.elapsed().as_secs_f64();
        if stats.accounts > 0 {
            info!(?stats, elapsed_s, "account reaper pass completed");
        } else {
            debug!(elapsed_s, "account reaper pass completed");
        }
        stats
    }

    async fn reap_device(self: &Arc<Self>, device: &str) -> std::io::Result<()> {
        let kind = DbKind::Account;
        let (root, name) = (self.pool.devices().to_owned(), device.to_owned());
        for partition in blocking(move || local::partitions(&root, &name, kind)).await? {
            let ring = self.rings.account();
            let primaries = ring.primaries(partition);
            let is_own = |node: &cairn_peer::Node| {
                node.device.device == device && self.config.own.serves(&ring, &node.device)
            };
            let Some(share) = primaries.iter().position(is_own) else {
                continue;
            };
            let (root, name) = (self.pool.devices().to_owned(), device.to_owned());
            let keys = blocking(move || local::databases(&root, &name, kind, partition)).await?;
            for key in keys {
                match self.due(&key).await {
                    Ok(Some(info)) => self.reap_account(&key, &info, share, &primaries).await,
                    Ok(None) | Err(IndexError::NotFound { .. } | IndexError::Closed) => {}
                    Err(error) => {
                        if self.logged.is_due(device, &error) {
                            warn!(device, hash = key.hash.hex(), %error, "account reaper cannot read an account");
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads the account; `None` unless it is to be reaped now.
    async fn due(&self, key: &DbKey) -> Result<Option<AccountInfo>, IndexError> {
        let db = self.pool.db_by_key(key.clone()).checked(DriveCheck {
            mount_check: self.config.mount_check,
            reserve: None,
        });
        let info = db.read(|broker| AccountBroker::of(broker).info()).await?;
        let is_due = info.is_status_deleted()
            && info.container_count > 0
            && self.deleted_for(&info) > self.config.delay_reaping;
        Ok(is_due.then_some(info))
    }

    fn deleted_for(&self, info: &AccountInfo) -> Duration {
        let deleted = timestamp(&info.delete_timestamp).as_f64();
        Duration::try_from_secs_f64(self.now().as_f64() - deleted).unwrap_or_default()
    }

    fn now(&self) -> Timestamp {
        (self.pool.config().clock)()
    }

    fn count(&self, count: impl FnOnce(&mut ReaperStats)) {
        count(&mut self.stats.lock());
    }
}

impl Daemon for AccountReaper {
    fn kind(&self) -> DaemonKind {
        DaemonKind::AccountReaper
    }

    fn schedule(&self) -> Schedule {
        Schedule::from_start(self.config.interval)
    }

    fn once(self: Arc<Self>, _: PassFilter) -> PassFuture {
        Box::pin(async move { _ = self.pass().await })
    }
}
