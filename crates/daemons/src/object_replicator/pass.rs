//! One pass over all partitions: devices concurrently, a few partitions of each at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cairn_http::own_thread;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{info, warn};

use super::jobs::Job;
use super::{ObjectReplicator, ReplicationStats};
use crate::daemon::PassFilter;
use crate::lockup::Watch;
use crate::turns::SessionPermits;

/// A pass in progress.
pub(super) struct Pass {
    pub(super) replicator: Arc<ObjectReplicator>,
    pub(super) only: PassFilter,
    pub(super) cycle: u32,
    /// By device.
    stats: Mutex<BTreeMap<String, ReplicationStats>>,
    /// Counter of progress, for lockup detection.
    progress_count: AtomicU64,
    /// Number of misplaced partitions that remain.
    handoffs_remaining: AtomicU64,
    ring_changed: AtomicBool,
    ring_looked_at: Mutex<Instant>,
    pub(super) permits: SessionPermits,
    job_count: AtomicU64,
    started: Instant,
}

impl Pass {
    pub(super) fn new(replicator: Arc<ObjectReplicator>, only: PassFilter, cycle: u32) -> Self {
        Pass {
            replicator,
            only,
            cycle,
            stats: Mutex::default(),
            progress_count: AtomicU64::new(0),
            handoffs_remaining: AtomicU64::new(0),
            ring_changed: AtomicBool::new(false),
            ring_looked_at: Mutex::new(Instant::now()),
            permits: SessionPermits::default(),
            job_count: AtomicU64::new(0),
            started: Instant::now(),
        }
    }

    pub(super) async fn run(self: Arc<Self>) -> ReplicationStats {
        let config = &self.replicator.config;
        let watch = Watch {
            progress_count: &self.progress_count,
            lockup: config.lockup_timeout,
            report_every: config.stats_interval,
        };
        watch.over(self.clone().work(), || self.report()).await;
        self.total()
    }

    async fn work(self: Arc<Self>) {
        self.refresh_rings().await;
        let jobs = self.collect_jobs().await;
        self.job_count.store(jobs.len() as u64, Ordering::Relaxed);
        self.replicator.progress.begin(jobs.len());
        if !self.replicator.config.handoffs_first {
            return self.clone().work_through(jobs).await;
        }
        let (handoffs, own) = jobs.into_iter().partition(|job| job.is_handoff);
        self.clone().work_through(handoffs).await;
        let remaining = self.handoffs_remaining.load(Ordering::Relaxed);
        if remaining > 0 {
            warn!(
                remaining,
                "handoffs first: some remain, so the pass ends here"
            );
            return;
        }
        self.work_through(own).await;
    }

    /// Runs jobs. Each device has its own workers, so that a slow one does not delay others.
    async fn work_through(self: Arc<Self>, jobs: Vec<Job>) {
        let mut by_device: BTreeMap<String, Vec<Job>> = BTreeMap::new();
        for job in jobs {
            by_device
                .entry(job.local.device.clone())
                .or_default()
                .push(job);
        }
        let mut devices = JoinSet::new();
        for jobs in by_device.into_values() {
            devices.spawn(self.clone().work_device(jobs));
        }
        while devices.join_next().await.is_some() {}
    }

    async fn work_device(self: Arc<Self>, jobs: Vec<Job>) {
        let mut under_way = JoinSet::new();
        for job in jobs {
            while under_way.len() >= self.replicator.config.concurrency {
                under_way.join_next().await;
            }
            if self.is_ring_old(&job).await {
                break;
            }
            let pass = self.clone();
            under_way.spawn(async move {
                if job.is_handoff {
                    pass.revert(&job).await;
                } else {
                    pass.update(&job).await;
                }
                pass.replicator.progress.step();
                pass.note_progress();
            });
        }
        while under_way.join_next().await.is_some() {}
    }

    async fn refresh_rings(&self) {
        let rings = self.replicator.parts.rings.clone();
        // Blocks on the disk.
        let _ = own_thread::blocking(move || rings.refresh()).await;
    }

    /// Whether the job's ring was replaced, so that its placement may have changed.
    async fn is_ring_old(&self, job: &Job) -> bool {
        if self.ring_changed.load(Ordering::Relaxed) {
            return true;
        }
        let interval = self.replicator.config.ring_check_interval;
        let is_due = {
            let mut looked_at = self.ring_looked_at.lock();
            let is_due = looked_at.elapsed() >= interval;
            if is_due {
                *looked_at = Instant::now();
            }
            is_due
        };
        if is_due {
            self.refresh_rings().await;
        }
        let current = self.replicator.parts.rings.object(job.policy);
        let is_old = current.is_none_or(|ring| !Arc::ptr_eq(&ring, &job.ring));
        if is_old && !self.ring_changed.swap(true, Ordering::Relaxed) {
            info!("the ring has changed: replication pass ends here");
        }
        is_old
    }

    pub(super) fn note_progress(&self) {
        self.progress_count.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn handoff_remains(&self) {
        self.handoffs_remaining.fetch_add(1, Ordering::Relaxed);
    }

    /// Changes the counts of one of our devices.
    pub(super) fn count(&self, device: &str, change: impl FnOnce(&mut ReplicationStats)) {
        let mut stats = self.stats.lock();
        change(stats.entry(device.to_owned()).or_default());
    }

    pub(super) fn total(&self) -> ReplicationStats {
        let stats = self.stats.lock();
        let mut total = ReplicationStats::default();
        stats.values().for_each(|of_device| total.add(of_device));
        total
    }

    fn report(&self) {
        let stats = self.total();
        let jobs = self.job_count.load(Ordering::Relaxed);
        let elapsed = self.started.elapsed().as_secs_f64();
        let rate = stats.attempted as f64 / elapsed.max(1e-6);
        info!(
            replicated = stats.attempted,
            of = jobs,
            rate,
            remaining_s = jobs.saturating_sub(stats.attempted) as f64 / rate.max(1e-6),
            successes = stats.success,
            failures = stats.failure,
            suffixes_hashed = stats.suffix_hash,
            suffixes_synced = stats.suffix_sync,
            "object replication under way"
        );
    }
}
