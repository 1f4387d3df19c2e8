//! Object reconstructor: keeps every fragment of erasure-coded objects on its primary. For a
//! partition that belongs here it fetches the fragment hashes of three of the partition's other
//! servers (those beside this one in the ring, and the opposite one), and if they differ offers the
//! objects by SSYNC; a fragment missing there is rebuilt from others. Misplaced fragments are
//! handed over and then removed.
//!
//! All of this server's devices in the ring are processed concurrently, `concurrency` partitions at
//! a time on each (`object_pass.rs`); each partition waits while operations queue for its device.

mod config;
mod jobs;
mod pass;
mod revert;
mod sync;

use std::sync::Arc;

use cairn_http::Clock;
use serde_json::{Map, Value, json};
use tracing::{info, warn};

use crate::daemon::{Daemon, DaemonKind, PassFilter, PassFuture, Schedule};
use crate::object_pass::{PassContext, ReplicatorParts};
use crate::progress::Progress;
use crate::recon_cache::{OBJECT_RECON_FILE, ReconCache};
pub use config::ReconstructorConfig;
use pass::{Pass, Reconstruction};

/// Counts of one pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReconstructionStats {
    /// Partitions processed.
    pub partitions: u64,
    /// Jobs in them: one for each fragment index.
    pub jobs: u64,
    /// Suffixes that differed from another server's, and were sent to it.
    pub suffixes_synced: u64,
    /// Objects of which a fragment, or the tombstone, was handed over and removed.
    pub reverted: u64,
    /// SSYNC sessions with other servers that failed.
    pub failures: u64,
    /// Misplaced fragments that remain, by job.
    pub handoffs_remaining: u64,
}

/// The daemon, for all devices of one object server.
pub struct ObjectReconstructor {
    config: ReconstructorConfig,
    context: PassContext,
    recon: ReconCache,
}

impl ObjectReconstructor {
    pub fn new(config: ReconstructorConfig, parts: ReplicatorParts) -> Arc<Self> {
        Arc::new(ObjectReconstructor {
            recon: ReconCache::new(&config.recon_cache_path, OBJECT_RECON_FILE),
            context: PassContext::new(parts),
            config,
        })
    }

    fn clock(&self) -> &Clock {
        &self.context.parts.clock
    }

    /// Runs one pass. Dropped half-way it leaves every fragment usable, here or where it was sent.
    pub async fn pass(self: &Arc<Self>, only: &PassFilter) -> ReconstructionStats {
        let started = self.clock().now();
        let work = Reconstruction::new(self.clone());
        let (mut stats, remaining) = Pass::run(work, only.clone()).await;
        stats.handoffs_remaining = remaining;
        let ended = self.clock().now();
        let minutes = (ended.as_f64() - started.as_f64()) / 60.0;
        info!(
            minutes,
            partitions = stats.partitions,
            jobs = stats.jobs,
            suffixes_synced = stats.suffixes_synced,
            reverted = stats.reverted,
            failures = stats.failures,
            "object reconstruction pass completed"
        );
        if self.config.handoffs_only {
            match stats.handoffs_remaining {
                0 => warn!("handoffs_only: no handoffs remain; it should be turned off"),
                remaining => info!(remaining, "handoffs_only: handoffs remain"),
            }
        }
        // A restricted pass does not represent reconstruction as a whole.
        if only.is_everything() {
            let recon = recon_entries(minutes, ended.as_f64());
            self.recon.update(recon).await;
        }
        stats
    }
}

impl Daemon for ObjectReconstructor {
    fn kind(&self) -> DaemonKind {
        DaemonKind::ObjectReconstructor
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

/// Entries of `object.recon` after a pass of `minutes` that ended at `ended`, seconds since the
/// epoch. The empty one removes those of several workers of Swift's.
fn recon_entries(minutes: f64, ended: f64) -> Map<String, Value> {
    let entries = json!({
        "object_reconstruction_time": minutes,
        "object_reconstruction_last": ended,
        "object_reconstruction_per_disk": {},
    });
    match entries {
        Value::Object(entries) => entries,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests;
