//! The reconstructor's work in a pass: the jobs of each partition, one for each fragment index.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_erasure::Codec;
use cairn_peer::LoadedRing;
use cairn_types::{ErasureScheme, PolicyIndex, StoragePolicy};
use parking_lot::Mutex;
use tracing::{info, warn};

use super::jobs::{Job, Kind, Part};
use super::{ObjectReconstructor, ReconstructionStats};
use crate::object_pass::{self, PartitionWork, PassConfig, PassContext};

pub(super) type Pass = object_pass::Pass<Reconstruction>;

pub(super) struct Reconstruction {
    pub(super) reconstructor: Arc<ObjectReconstructor>,
    codecs: Mutex<BTreeMap<PolicyIndex, Arc<Codec>>>,
}

impl Reconstruction {
    pub(super) fn new(reconstructor: Arc<ObjectReconstructor>) -> Self {
        Reconstruction {
            reconstructor,
            codecs: Mutex::default(),
        }
    }
}

impl PartitionWork for Reconstruction {
    type Scheme = ErasureScheme;
    type Stats = ReconstructionStats;

    const USER_AGENT: &'static str = "obj-reconstructor";
    const VERB: &'static str = "reconstruct";
    const PARTICIPLE: &'static str = "reconstructed";
    const NEW_RING_ENDS_PASS: bool = false;

    fn context(&self) -> &PassContext {
        &self.reconstructor.context
    }

    fn config(&self) -> &PassConfig {
        &self.reconstructor.config.pass
    }

    fn scheme(policy: &StoragePolicy) -> Option<ErasureScheme> {
        policy.erasure().copied()
    }

    fn wants(&self, part: &Part) -> bool {
        part.is_handoff || !self.reconstructor.config.handoffs_only
    }

    async fn process(pass: &Pass, part: Arc<Part>) {
        pass.work_part(&part).await;
    }

    fn count_failed_device(stats: &mut ReconstructionStats, _: &LoadedRing) {
        stats.failures += 1;
    }

    fn log_new_ring(policy: PolicyIndex) {
        info!(
            policy = policy.0,
            "the ring has changed: reconstruction of this policy ends here"
        );
    }

    fn report(pass: &Pass) {
        let stats = pass.stats();
        let rate = pass.rate(stats.partitions);
        info!(
            reconstructed = stats.partitions,
            of = rate.of,
            rate = rate.rate,
            remaining_s = rate.remaining_s,
            suffixes_synced = stats.suffixes_synced,
            reverted = stats.reverted,
            failures = stats.failures,
            "object reconstruction under way"
        );
    }
}

impl Pass {
    async fn work_part(&self, part: &Arc<Part>) {
        self.count(|stats| stats.partitions += 1);
        let jobs = match self.jobs(part).await {
            Ok(jobs) => jobs,
            Err(error) => {
                let (device, partition) = (&part.local.device, part.partition);
                if self.context().logged.is_due(device, &error) {
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
            Err(error) if self.context().logged.is_due(device, &error) => {
                warn!(device, partition, %error, "handoff partition not removed");
            }
            Err(_) => {}
        }
    }

    pub(super) fn codec(&self, part: &Part) -> Arc<Codec> {
        let mut codecs = self.work.codecs.lock();
        let codec = codecs.entry(part.policy);
        codec
            .or_insert_with(|| Arc::new(Codec::new(&part.scheme).with_checksums()))
            .clone()
    }
}
