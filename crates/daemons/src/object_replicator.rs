//! Object replicator: compares suffix hashes with a partition's other devices and sends
//! differences, by SSYNC or by `rsync`; hands over misplaced partitions and removes them.
//!
//! All of this server's devices in the ring are processed concurrently, `concurrency` partitions at
//! a time on each (`object_pass.rs`). Clients precede background work on each device.

mod config;
mod pass;
mod revert;
mod rsync;
mod stats;
mod update;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cairn_http::own_thread;
use tracing::info;

use crate::daemon::{Daemon, DaemonKind, PassFilter, PassFuture, Schedule};
use crate::object_pass::{PassContext, ReplicatorParts};
use crate::progress::Progress;
use crate::recon_cache::{OBJECT_RECON_FILE, ReconCache};
pub use config::{HandoffDelete, ReplicatorConfig, SyncMethod};
use pass::{Pass, Replication};
pub use stats::ReplicationStats;

/// Passes within which each partition is searched for suffixes missing from `hashes.pkl`.
const SEARCH_CYCLE_PASSES: u32 = 10;

/// The daemon, for all devices of one object server.
pub struct ObjectReplicator {
    config: ReplicatorConfig,
    context: PassContext,
    recon: ReconCache,
    cycle: AtomicU32,
}

impl ObjectReplicator {
    pub fn new(config: ReplicatorConfig, parts: ReplicatorParts) -> Arc<Self> {
        Arc::new(ObjectReplicator {
            recon: ReconCache::new(&config.recon_cache_path, OBJECT_RECON_FILE),
            cycle: AtomicU32::new(own_thread::random() as u32 % SEARCH_CYCLE_PASSES),
            context: PassContext::new(parts),
            config,
        })
    }

    /// Runs one pass. Dropped half-way it leaves every partition usable, and handed over or not.
    pub async fn pass(self: &Arc<Self>, only: &PassFilter) -> ReplicationStats {
        let started = self.context.parts.clock.now();
        let cycle =
            self.cycle.fetch_add(1, Ordering::Relaxed).wrapping_add(1) % SEARCH_CYCLE_PASSES;
        let work = Replication {
            replicator: self.clone(),
            cycle,
        };
        let (stats, _) = Pass::run(work, only.clone()).await;
        let ended = self.context.parts.clock.now();
        let minutes = (ended.as_f64() - started.as_f64()) / 60.0;
        info!(
            minutes,
            partitions = stats.attempted,
            successes = stats.success,
            failures = stats.failure,
            "object replication pass completed"
        );
        // A restricted pass does not represent replication as a whole.
        if only.is_everything() {
            self.recon
                .update(stats.to_recon(minutes, ended.as_f64()))
                .await;
        }
        stats
    }
}

impl Daemon for ObjectReplicator {
    fn kind(&self) -> DaemonKind {
        DaemonKind::ObjectReplicator
    }

    fn schedule(&self) -> Schedule {
        Schedule::from_end(self.config.pass.interval)
    }

    fn once(self: Arc<Self>, only: PassFilter) -> PassFuture {
        Box::pin(async move { _ = self.pass(&only).await })
    }

    fn progress(&self) -> Option<Arc<Progress>> {
        Some(self.context.progress.clone())
    }
}

#[cfg(test)]
mod tests;
