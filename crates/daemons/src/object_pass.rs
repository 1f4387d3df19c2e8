//! A pass over the partitions of objects on this server's devices: the object replicator's and the
//! reconstructor's. All devices are processed concurrently, a few partitions of each at a time, in
//! random order. What is done with a partition is the daemon's [`PartitionWork`].
//!
//! A pass ends early if it makes no progress for `lockup_timeout`, or, with `handoffs_first`, if
//! handoffs remain.

mod config;
mod partitions;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_disk::{Devices, Engines};
use cairn_http::{Clock, own_thread};
use cairn_peer::{Backends, LoadedRing, Rings};
use cairn_types::{PolicyIndex, PolicySet, StoragePolicy};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::warn;

use crate::daemon::PassFilter;
use crate::lockup::Watch;
use crate::log_limit::DeviceErrors;
use crate::progress::Progress;
use crate::session_permits::SessionPermits;
use crate::ssync::Sender;
pub use config::PassConfig;
pub(crate) use partitions::LocalPartition;

/// Dependencies of the replicator and the reconstructor.
#[derive(Clone)]
pub struct ReplicatorParts {
    /// The engine of each policy, shared with the object server of these devices.
    pub engines: Engines,
    pub policies: Arc<PolicySet>,
    pub rings: Arc<Rings>,
    pub devices: Arc<Devices>,
    pub backends: Arc<Backends>,
    pub clock: Clock,
}

/// A daemon's state that outlasts a pass.
pub(crate) struct PassContext {
    pub(crate) parts: ReplicatorParts,
    pub(crate) progress: Arc<Progress>,
    pub(crate) logged: DeviceErrors,
}

impl PassContext {
    pub(crate) fn new(parts: ReplicatorParts) -> Self {
        PassContext {
            parts,
            progress: Arc::default(),
            logged: DeviceErrors::default(),
        }
    }
}

/// The work of one pass with each partition.
pub(crate) trait PartitionWork: Send + Sync + Sized + 'static {
    /// The part of a policy that the work needs.
    type Scheme: Copy + Send + Sync + 'static;
    /// Counts of a pass.
    type Stats: Clone + Default + Send + 'static;

    /// The daemon in `User-Agent`.
    const USER_AGENT: &'static str;
    /// The work in the log: infinitive and participle of "replicate".
    const VERB: &'static str;
    const PARTICIPLE: &'static str;
    /// Whether a new ring of one policy ends the pass for all policies.
    const NEW_RING_ENDS_PASS: bool;

    fn context(&self) -> &PassContext;

    fn config(&self) -> &PassConfig;

    /// `None` if the policy is not this daemon's.
    fn scheme(policy: &StoragePolicy) -> Option<Self::Scheme>;

    /// Whether the pass includes this partition.
    fn wants(&self, _partition: &LocalPartition<Self::Scheme>) -> bool {
        true
    }

    /// Whether handoffs are processed before other partitions, and these only if none remain.
    fn has_handoffs_first(&self) -> bool {
        false
    }

    fn process(
        pass: &Pass<Self>,
        partition: Arc<LocalPartition<Self::Scheme>>,
    ) -> impl Future<Output = ()> + Send;

    /// Counts a device that cannot be listed.
    fn count_failed_device(stats: &mut Self::Stats, ring: &LoadedRing);

    /// Logs that a policy's ring was replaced during the pass.
    fn log_new_ring(policy: PolicyIndex);

    /// Logs the progress of the pass.
    fn report(pass: &Pass<Self>);
}

/// A pass in progress.
pub(crate) struct Pass<W: PartitionWork> {
    pub(crate) work: W,
    only: PassFilter,
    stats: Mutex<W::Stats>,
    /// Permits for SSYNC sessions at other servers' devices.
    permits: SessionPermits,
    /// Counter of progress, for lockup detection.
    progress_count: AtomicU64,
    /// Number of misplaced partitions, or jobs in them, that remain.
    handoffs_remaining: AtomicU64,
    /// Policies whose ring was replaced during the pass.
    rings_changed: Mutex<BTreeSet<PolicyIndex>>,
    rings_checked: Mutex<Instant>,
    partition_count: AtomicU64,
    started: Instant,
}

/// Speed of a pass.
pub(crate) struct PassRate {
    /// Partitions of the pass.
    pub(crate) of: u64,
    /// Partitions per second.
    pub(crate) rate: f64,
    pub(crate) remaining_s: f64,
}

impl<W: PartitionWork> Pass<W> {
    /// Runs a pass; returns its counts, and the number of handoffs that remain.
    pub(crate) async fn run(work: W, only: PassFilter) -> (W::Stats, u64) {
        let pass = Arc::new(Pass {
            work,
            only,
            stats: Mutex::default(),
            permits: SessionPermits::default(),
            progress_count: AtomicU64::new(0),
            handoffs_remaining: AtomicU64::new(0),
            rings_changed: Mutex::default(),
            rings_checked: Mutex::new(Instant::now()),
            partition_count: AtomicU64::new(0),
            started: Instant::now(),
        });
        let config = pass.config();
        let watch = Watch {
            progress_count: &pass.progress_count,
            lockup: config.lockup_timeout,
            report_every: config.stats_interval,
        };
        watch
            .over(pass.clone().work_through_all(), || W::report(&pass))
            .await;
        (pass.stats(), pass.handoffs_remaining())
    }

    async fn work_through_all(self: Arc<Self>) {
        self.refresh_rings().await;
        let partitions = self.collect_partitions().await;
        let count = partitions.len();
        self.partition_count.store(count as u64, Ordering::Relaxed);
        self.context().progress.begin(count);
        if !self.work.has_handoffs_first() {
            return self.work_through(partitions).await;
        }
        let (handoffs, own) = partitions.into_iter().partition(|part| part.is_handoff);
        self.clone().work_through(handoffs).await;
        let remaining = self.handoffs_remaining();
        if remaining > 0 {
            warn!(
                remaining,
                "handoffs first: some remain, so the pass ends here"
            );
            return;
        }
        self.work_through(own).await;
    }

    /// Processes partitions. Each device has its own workers, so that a slow one does not delay
    /// others.
    async fn work_through(self: Arc<Self>, partitions: Vec<LocalPartition<W::Scheme>>) {
        let mut by_device: BTreeMap<String, Vec<LocalPartition<W::Scheme>>> = BTreeMap::new();
        for partition in partitions {
            let device = by_device.entry(partition.local.device.clone());
            device.or_default().push(partition);
        }
        let mut devices = JoinSet::new();
        for partitions in by_device.into_values() {
            devices.spawn(self.clone().work_device(partitions));
        }
        while devices.join_next().await.is_some() {}
    }

    async fn work_device(self: Arc<Self>, partitions: Vec<LocalPartition<W::Scheme>>) {
        let mut under_way = JoinSet::new();
        for partition in partitions {
            while under_way.len() >= self.config().concurrency {
                under_way.join_next().await;
            }
            if self.is_ring_old(&partition).await {
                continue;
            }
            let (pass, partition) = (self.clone(), Arc::new(partition));
            under_way.spawn(async move {
                W::process(&pass, partition).await;
                pass.context().progress.step();
                pass.note_progress();
            });
        }
        while under_way.join_next().await.is_some() {}
    }

    async fn refresh_rings(&self) {
        let rings = self.parts().rings.clone();
        // Blocks on the disk.
        let _ = own_thread::blocking(move || rings.refresh()).await;
    }

    /// Whether the partition's ring was replaced, so that its placement may have changed.
    async fn is_ring_old(&self, partition: &LocalPartition<W::Scheme>) -> bool {
        let policy = partition.policy;
        let is_known = |changed: &BTreeSet<PolicyIndex>| match W::NEW_RING_ENDS_PASS {
            true => !changed.is_empty(),
            false => changed.contains(&policy),
        };
        if is_known(&self.rings_changed.lock()) {
            return true;
        }
        let is_due = {
            let mut checked = self.rings_checked.lock();
            let is_due = checked.elapsed() >= self.config().ring_check_interval;
            if is_due {
                *checked = Instant::now();
            }
            is_due
        };
        if is_due {
            self.refresh_rings().await;
        }
        let current = self.parts().rings.object(policy);
        let is_old = current.is_none_or(|ring| !Arc::ptr_eq(&ring, &partition.ring));
        let mut changed = self.rings_changed.lock();
        let was_known = is_known(&changed);
        if is_old && !was_known {
            changed.insert(policy);
            W::log_new_ring(policy);
        }
        is_old || was_known
    }

    pub(crate) fn context(&self) -> &PassContext {
        self.work.context()
    }

    pub(crate) fn parts(&self) -> &ReplicatorParts {
        &self.context().parts
    }

    pub(crate) fn config(&self) -> &PassConfig {
        self.work.config()
    }

    pub(crate) fn note_progress(&self) {
        self.progress_count.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a misplaced partition, or a job in it, remains.
    pub(crate) fn handoff_remains(&self) {
        self.handoffs_remaining.fetch_add(1, Ordering::Relaxed);
    }

    fn handoffs_remaining(&self) -> u64 {
        self.handoffs_remaining.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut W::Stats)) {
        change(&mut self.stats.lock());
    }

    pub(crate) fn stats(&self) -> W::Stats {
        self.stats.lock().clone()
    }

    /// Speed of the pass after this number of partitions.
    pub(crate) fn rate(&self, done: u64) -> PassRate {
        let of = self.partition_count.load(Ordering::Relaxed);
        let elapsed = self.started.elapsed().as_secs_f64();
        let rate = done as f64 / elapsed.max(1e-6);
        PassRate {
            of,
            rate,
            remaining_s: of.saturating_sub(done) as f64 / rate.max(1e-6),
        }
    }

    pub(crate) fn sender<'a>(
        &'a self,
        partition: &'a LocalPartition<W::Scheme>,
        on_progress: &'a (dyn Fn() + Send + Sync),
    ) -> Sender<'a> {
        let config = self.config();
        Sender {
            engine: &partition.engine,
            backends: &self.parts().backends,
            daemon: W::USER_AGENT,
            node_timeout: config.node_timeout,
            http_timeout: config.http_timeout,
            permits: &self.permits,
            on_progress,
        }
    }
}

#[cfg(test)]
mod tests;
