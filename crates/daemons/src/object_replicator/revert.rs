//! Revert of a misplaced partition: handed to its primaries, and then removed.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use cairn_disk::engine::ReplicationLock;
use cairn_disk::{Device, DiskError, Engine, PartitionKey};
use cairn_types::ObjectHash;
use cairn_types::plant::Plant;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::config::HandoffDelete;
use super::jobs::Job;
use super::pass::Pass;
use super::update::identity;

/// Timeout for a partition that another server is just sending us.
const LOCK_TIMEOUT: Duration = Duration::from_millis(200);
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Results of the handover so far.
#[derive(Default)]
struct HandoverResult {
    successes: usize,
    failed: HashSet<(String, String)>,
    /// In other regions one device received everything: its objects, by region.
    by_region: BTreeMap<u32, HashSet<ObjectHash>>,
    /// Objects that could not be sent, and stay.
    unsent: HashSet<ObjectHash>,
}

impl Pass {
    pub(super) async fn revert(&self, job: &Job) {
        self.count(&job.local.device, |stats| stats.attempted += 1);
        let mut handed = HandoverResult::default();
        let removed = match self.hand_over(job, &mut handed).await {
            Ok(removed) => removed,
            Err(error) => {
                let (device, partition) = (&job.local.device, job.partition);
                if self.replicator.logged.is_due(device, &error) {
                    warn!(device, partition, %error, "handoff partition not handed over");
                }
                false
            }
        };
        if !removed {
            self.handoff_remains();
        }
        let targets: HashSet<_> = job.nodes.iter().map(identity).collect();
        self.count(&job.local.device, |stats| {
            for (ip, device) in &handed.failed {
                stats.add_failure(ip, device);
            }
            stats.success += targets.difference(&handed.failed).count() as u64;
        });
    }

    /// Returns whether the partition has been removed.
    async fn hand_over(&self, job: &Job, handed: &mut HandoverResult) -> Result<bool, DiskError> {
        // Held also during an incoming transfer of this partition: both sides would remove what the
        // other just received.
        let Some(_lock) = lock_partition(&job.device, &job.engine, job.at()).await? else {
            info!(
                device = job.local.device,
                partition = job.partition,
                "handoff partition is locked"
            );
            return Ok(false);
        };
        let (at, engine) = (job.at(), job.engine.clone());
        let contents = job
            .device
            .read(move |disk| engine.contents(disk, at))
            .await?;
        if !contents.is_empty() {
            self.hand_to_all(job, &contents.suffixes(), handed).await;
            if !self.may_go(job, handed) {
                return Ok(false);
            }
        }
        self.count(&job.local.device, |stats| stats.remove += 1);
        let only = in_all_regions(handed);
        let keep = std::mem::take(&mut handed.unsent);
        let engine = job.engine.clone();
        let removed = job.device.write(move |disk| {
            let objects = engine.remove(disk, at, &contents, only.as_ref(), &keep)?;
            Ok((objects, engine.remove_partition(disk, at)?))
        });
        let (objects, is_gone) = removed.await?;
        info!(
            device = job.local.device,
            partition = job.partition,
            objects,
            is_gone,
            "handoff partition removed"
        );
        Ok(is_gone)
    }

    async fn hand_to_all(&self, job: &Job, suffixes: &[String], handed: &mut HandoverResult) {
        for node in &job.nodes {
            self.count(&job.local.device, |stats| stats.rsync += 1);
            let region = node.device.region;
            let only = handed.by_region.get(&region);
            match self.sync(job, node, suffixes, only).await {
                Ok(delivered) => {
                    handed.successes += 1;
                    handed.unsent.extend(delivered.unsent);
                    if let Some(in_step) = delivered.in_step
                        && region != job.local.region
                    {
                        handed.by_region.insert(region, in_step);
                    }
                }
                Err(error) => {
                    let partition = job.partition;
                    warn!(node = node.name(), partition, %error, "handoff not taken");
                    handed.failed.insert(identity(node));
                }
            }
            self.note_progress();
        }
    }

    fn may_go(&self, job: &Job, handed: &HandoverResult) -> bool {
        let enough = match self.replicator.config.handoff_delete {
            HandoffDelete::Auto => job.nodes.len(),
            HandoffDelete::After(copies) => copies.min(job.nodes.len()),
        };
        handed.successes >= enough || Plant::HandoffGone.is_on()
    }
}

/// Objects that every region has, where one device per region received everything.
fn in_all_regions(handed: &HandoverResult) -> Option<HashSet<ObjectHash>> {
    let mut regions = handed.by_region.values();
    let mut all = regions.next()?.clone();
    for region in regions {
        all.retain(|hash| region.contains(hash));
    }
    Some(all)
}

/// `None` if another holder has it.
pub(crate) async fn lock_partition(
    device: &Device,
    engine: &Arc<dyn Engine>,
    at: PartitionKey,
) -> Result<Option<ReplicationLock>, DiskError> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        let engine = engine.clone();
        let lock = device.read(move |disk| engine.try_lock_partition(disk, at));
        match lock.await? {
            None if Instant::now() < deadline => sleep(LOCK_RETRY_INTERVAL).await,
            lock => return Ok(lock),
        }
    }
}
