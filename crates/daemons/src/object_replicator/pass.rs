//! The replicator's work in a pass: updates of partitions that belong here, and reverts of others.

use std::sync::Arc;

use cairn_peer::LoadedRing;
use cairn_types::{PolicyIndex, PolicyKind, StoragePolicy};
use tracing::info;

use super::{ObjectReplicator, ReplicationStats, SEARCH_CYCLE_PASSES};
use crate::object_pass::{self, LocalPartition, PartitionWork, PassConfig, PassContext};

pub(super) type Pass = object_pass::Pass<Replication>;

/// A partition of a replicated policy.
pub(super) type Job = LocalPartition<()>;

pub(super) struct Replication {
    pub(super) replicator: Arc<ObjectReplicator>,
    /// Number of the pass within a cycle of searches.
    pub(super) cycle: u32,
}

impl Replication {
    /// Whether a partition is searched for unknown suffixes in this pass.
    pub(super) fn is_search_due(&self, partition: u32) -> bool {
        partition
            .wrapping_add(self.cycle)
            .is_multiple_of(SEARCH_CYCLE_PASSES)
    }
}

impl PartitionWork for Replication {
    type Scheme = ();
    type Stats = ReplicationStats;

    const USER_AGENT: &'static str = "object-replicator";
    const VERB: &'static str = "replicate";
    const PARTICIPLE: &'static str = "replicated";
    const NEW_RING_ENDS_PASS: bool = true;

    fn context(&self) -> &PassContext {
        &self.replicator.context
    }

    fn config(&self) -> &PassConfig {
        &self.replicator.config.pass
    }

    fn scheme(policy: &StoragePolicy) -> Option<()> {
        matches!(policy.kind, PolicyKind::Replication).then_some(())
    }

    fn has_handoffs_first(&self) -> bool {
        self.replicator.config.handoffs_first
    }

    async fn process(pass: &Pass, job: Arc<Job>) {
        if job.is_handoff {
            pass.revert(&job).await;
        } else {
            pass.update(&job).await;
        }
    }

    fn count_failed_device(stats: &mut ReplicationStats, ring: &LoadedRing) {
        for device in ring.ring().devices() {
            stats.add_failure(&device.replication_ip, &device.device);
        }
    }

    fn log_new_ring(_: PolicyIndex) {
        info!("the ring has changed: replication pass ends here");
    }

    fn report(pass: &Pass) {
        let stats = pass.stats();
        let rate = pass.rate(stats.attempted);
        info!(
            replicated = stats.attempted,
            of = rate.of,
            rate = rate.rate,
            remaining_s = rate.remaining_s,
            successes = stats.success,
            failures = stats.failure,
            suffixes_hashed = stats.suffix_hash,
            suffixes_synced = stats.suffix_sync,
            "object replication under way"
        );
    }
}
