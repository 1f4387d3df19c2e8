//! Brings the replicas of every partition in step: compares suffix hashes with the partition's
//! other devices and sends them what differs, by SSYNC or by `rsync`; and hands over partitions
//! that lie on a device that is not theirs, which then go from it.
//!
//! All devices of the ring that are this server's are worked on side by side, `concurrency`
//! partitions at a time on each. Clients come first: a device does background work behind theirs.

mod config;
pub(crate) mod jobs;
mod pass;
mod revert;
mod rsync;
mod stats;
mod update;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cairn_disk::{Devices, Engines};
use cairn_http::{Clock, own_thread};
use cairn_peer::{Backends, Rings};
use cairn_types::PolicySet;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::info;

use crate::log_limit::DeviceErrors;
use crate::progress::Progress;
use crate::recon_cache::{OBJECT_RECON_FILE, ReconCache};
pub use config::{HandoffDelete, ReplicatorConfig, SyncMethod};
use pass::Pass;
pub(crate) use revert::lock_partition;
pub use stats::ReplicationStats;

/// Suffixes that `hashes.pkl` does not know are looked for in one partition of so many each pass.
const LOOK_CYCLE: u32 = 10;

/// What one pass is about; empty lists mean all. From `--devices`, `--partitions`, `--policies`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Only {
    /// Names of devices.
    pub devices: Vec<String>,
    pub partitions: Vec<u32>,
    /// Indices of storage policies.
    pub policies: Vec<u32>,
}

impl Only {
    pub fn is_everything(&self) -> bool {
        self == &Only::default()
    }
}

/// What the replicator stands on.
#[derive(Clone)]
pub struct ReplicatorParts {
    /// By policy, as the object server of these devices has them.
    pub engines: Engines,
    pub policies: Arc<PolicySet>,
    pub rings: Arc<Rings>,
    pub devices: Arc<Devices>,
    pub backends: Arc<Backends>,
    pub clock: Clock,
}

/// The daemon, for all devices of one object server.
pub struct ObjectReplicator {
    config: ReplicatorConfig,
    parts: ReplicatorParts,
    recon: ReconCache,
    cycle: AtomicU32,
    progress: Arc<Progress>,
    logged: DeviceErrors,
}

impl ObjectReplicator {
    pub fn new(config: ReplicatorConfig, parts: ReplicatorParts) -> Arc<Self> {
        Arc::new(ObjectReplicator {
            recon: ReconCache::new(&config.recon_cache_path, OBJECT_RECON_FILE),
            cycle: AtomicU32::new(own_thread::random() as u32 % LOOK_CYCLE),
            progress: Arc::default(),
            logged: DeviceErrors::default(),
            config,
            parts,
        })
    }

    /// Of the pass that is under way.
    pub fn progress(&self) -> Arc<Progress> {
        self.progress.clone()
    }

    /// Passes, with `interval` between them, until `stop` turns true.
    pub async fn run(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        let rest = self.config.interval.max(Duration::from_millis(10));
        let only = Only::default();
        let rounds = async {
            loop {
                self.once(&only).await;
                sleep(rest).await;
            }
        };
        tokio::select! {
            () = rounds => {}
            _ = stop.wait_for(|s| *s) => {}
        }
    }

    /// One pass. Dropped half-way it leaves every partition usable, and handed over or not.
    pub async fn once(self: &Arc<Self>, only: &Only) -> ReplicationStats {
        let started = self.parts.clock.now();
        let cycle = self.cycle.fetch_add(1, Ordering::Relaxed).wrapping_add(1) % LOOK_CYCLE;
        let pass = Arc::new(Pass::new(self.clone(), only.clone(), cycle));
        let stats = pass.clone().run().await;
        let ended = self.parts.clock.now();
        let minutes = (ended.as_f64() - started.as_f64()) / 60.0;
        info!(
            minutes,
            partitions = stats.attempted,
            successes = stats.success,
            failures = stats.failure,
            "object replication pass completed"
        );
        // Part of the devices tells nothing about replication as a whole.
        if only.is_everything() {
            self.recon
                .update(stats.to_recon(minutes, ended.as_f64()))
                .await;
        }
        stats
    }
}

#[cfg(test)]
mod tests;
