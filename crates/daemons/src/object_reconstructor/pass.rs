//! One pass over all partitions: devices concurrently, a few partitions of each at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cairn_erasure::Codec;
use cairn_http::own_thread;
use cairn_types::PolicyIndex;
use parking_lot::{Mutex, MutexGuard};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{info, warn};

use super::jobs::{Job, Kind, Part};
use super::{ObjectReconstructor, ReconstructionStats};
use crate::daemon::PassFilter;
use crate::lockup::Watch;
use crate::object_replicator::ReplicatorParts;
use crate::ssync::Sender;
use crate::turns::SessionPermits;

/// A pass in progress.
pub(super) struct Pass {
    pub(super) reconstructor: Arc<ObjectReconstructor>,
    pub(super) only: PassFilter,
    stats: Mutex<ReconstructionStats>,
    /// Counter of progress, for lockup detection.
    progress_count: AtomicU64,
    rings_changed: Mutex<BTreeMap<PolicyIndex, bool>>,
    rings_looked_at: Mutex<Instant>,
    is_refreshing: AtomicBool,
    /// Permits for SSYNC sessions, one per remote device: by default it accepts only one.
    permits: SessionPermits,
    codecs: Mutex<BTreeMap<PolicyIndex, Arc<Codec>>>,
    part_count: AtomicU64,
    started: Instant,
}

impl Pass {
    pub(super) fn new(reconstructor: Arc<ObjectReconstructor>, only: PassFilter) -> Self {
        Pass {
            reconstructor,
            only,
            stats: Mutex::default(),
            progress_count: AtomicU64::new(0),
            rings_changed: Mutex::default(),
            rings_looked_at: Mutex::new(Instant::now()),
            is_refreshing: AtomicBool::new(false),
            permits: SessionPermits::default(),
            codecs: Mutex::default(),
            part_count: AtomicU64::new(0),
            started: Instant::now(),
        }
    }

    pub(super) fn parts(&self) -> &ReplicatorParts {
        &self.reconstructor.parts
    }

    pub(super) async fn run(self: Arc<Self>) -> ReconstructionStats {
        let config = &self.reconstructor.config;
        let watch = Watch {
            progress_count: &self.progress_count,
            lockup: config.lockup_timeout,
            report_every: config.stats_interval,
        };
        watch.over(self.clone().work(), || self.report()).await;
        self.lock_stats().clone()
    }

    async fn work(self: Arc<Self>) {
        self.refresh_rings().await;
        let parts = self.collect_parts().await;
        self.part_count.store(parts.len() as u64, Ordering::Relaxed);
        self.reconstructor.progress.begin(parts.len());
        let mut by_device: BTreeMap<String, Vec<Arc<Part>>> = BTreeMap::new();
        for part in parts {
            let device = by_device.entry(part.local.device.clone());
            device.or_default().push(part);
        }
        // Each device has its own workers, so that a slow one does not delay others.
        let mut devices = JoinSet::new();
        for parts in by_device.into_values() {
            devices.spawn(self.clone().work_device(parts));
        }
        while devices.join_next().await.is_some() {}
    }

    async fn work_device(self: Arc<Self>, parts: Vec<Arc<Part>>) {
        let mut under_way = JoinSet::new();
        for part in parts {
            while under_way.len() >= self.reconstructor.config.concurrency {
                under_way.join_next().await;
            }
            if self.is_ring_old(&part).await {
                continue;
            }
            let pass = self.clone();
            under_way.spawn(async move {
                pass.work_part(&part).await;
                pass.reconstructor.progress.step();
                pass.note_progress();
            });
        }
        while under_way.join_next().await.is_some() {}
    }

    async fn work_part(&self, part: &Arc<Part>) {
        self.count(|stats| stats.partitions += 1);
        let jobs = match self.jobs(part).await {
            Ok(jobs) => jobs,
            Err(error) => {
                let (device, partition) = (&part.local.device, part.partition);
                if self.reconstructor.logged.is_due(device, &error) {
                    warn!(device, partition, %error, "partition not reconstructed");
                }
                return self.count(|stats| stats.failures += 1);
            }
        };
        if jobs.is_empty() {
            self.remove(part).await;
        }
        for job in jobs {
            self.count(|stats| stats.jobs += 1);
            self.work_job(&job).await;
            self.note_progress();
        }
    }

    async fn work_job(&self, job: &Job) {
        match &job.kind {
            Kind::Sync(hashes) => self.sync(job, hashes).await,
            Kind::Revert => self.revert(job).await,
        }
    }

    /// Removes a misplaced, empty partition.
    async fn remove(&self, part: &Part) {
        let (at, engine) = (part.at(), part.engine.clone());
        let removed = part
            .device
            .write(move |disk| engine.remove_partition(disk, at));
        let (device, partition) = (&part.local.device, part.partition);
        match removed.await {
            Ok(is_gone) => info!(device, partition, is_gone, "handoff partition removed"),
            Err(error) if self.reconstructor.logged.is_due(device, &error) => {
                warn!(device, partition, %error, "handoff partition not removed");
            }
            Err(_) => {}
        }
    }

    async fn refresh_rings(&self) {
        let rings = self.parts().rings.clone();
        // Blocks on the disk.
        let _ = own_thread::blocking(move || rings.refresh()).await;
    }

    /// Whether the partition's ring was replaced, so that its placement may have changed.
    async fn is_ring_old(&self, part: &Part) -> bool {
        let is_due = {
            let mut looked_at = self.rings_looked_at.lock();
            let is_due = looked_at.elapsed() >= self.reconstructor.config.ring_check_interval;
            if is_due {
                *looked_at = Instant::now();
            }
            is_due
        };
        if is_due && !self.is_refreshing.swap(true, Ordering::Relaxed) {
            self.refresh_rings().await;
            self.is_refreshing.store(false, Ordering::Relaxed);
        }
        let current = self.parts().rings.object(part.policy);
        let is_old = current.is_none_or(|ring| !Arc::ptr_eq(&ring, &part.ring));
        let mut changed = self.rings_changed.lock();
        let is_known = changed.entry(part.policy).or_default();
        if is_old && !std::mem::replace(is_known, true) {
            info!(
                policy = part.policy.0,
                "the ring has changed: reconstruction of this policy ends here"
            );
        }
        *is_known
    }

    pub(super) fn note_progress(&self) {
        self.progress_count.fetch_add(1, Ordering::Relaxed);
    }

    fn lock_stats(&self) -> MutexGuard<'_, ReconstructionStats> {
        self.stats.lock()
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut ReconstructionStats)) {
        change(&mut self.lock_stats());
    }

    pub(super) fn codec(&self, part: &Part) -> Arc<Codec> {
        let mut codecs = self.codecs.lock();
        let codec = codecs.entry(part.policy);
        codec
            .or_insert_with(|| Arc::new(Codec::new(&part.scheme).with_checksums()))
            .clone()
    }

    pub(super) fn sender<'a>(
        &'a self,
        part: &'a Part,
        on_progress: &'a (dyn Fn() + Send + Sync),
    ) -> Sender<'a> {
        let config = &self.reconstructor.config;
        Sender {
            engine: &part.engine,
            backends: &self.parts().backends,
            daemon: "obj-reconstructor",
            node_timeout: config.node_timeout,
            http_timeout: config.http_timeout,
            permits: &self.permits,
            on_progress,
        }
    }

    fn report(&self) {
        let stats = self.lock_stats().clone();
        let parts = self.part_count.load(Ordering::Relaxed);
        let elapsed = self.started.elapsed().as_secs_f64();
        let rate = stats.partitions as f64 / elapsed.max(1e-6);
        info!(
            reconstructed = stats.partitions,
            of = parts,
            rate,
            remaining_s = parts.saturating_sub(stats.partitions) as f64 / rate.max(1e-6),
            suffixes_synced = stats.suffixes_synced,
            reverted = stats.reverted,
            failures = stats.failures,
            "object reconstruction under way"
        );
    }
}
