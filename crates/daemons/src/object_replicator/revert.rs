//! Revert of a misplaced partition: handed to its primaries, and then removed.

use std::collections::{BTreeMap, HashSet};

use cairn_disk::DiskError;
use cairn_types::ObjectHash;
use cairn_types::plant::Plant;
use tracing::{info, warn};

use super::config::HandoffDelete;
use super::pass::{Job, Pass};
use super::update::identity;

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
        self.count(|stats| stats.attempted += 1);
        let mut handed = HandoverResult::default();
        let removed = match self.hand_over(job, &mut handed).await {
            Ok(removed) => removed,
            Err(error) => {
                let (device, partition) = (&job.local.device, job.partition);
                if self.context().logged.is_due(device, &error) {
                    warn!(device, partition, %error, "handoff partition not handed over");
                }
                false
            }
        };
        if !removed {
            self.handoff_remains();
        }
        let targets: HashSet<_> = job.other_primaries().iter().map(identity).collect();
        self.count(|stats| {
            for (ip, device) in &handed.failed {
                stats.add_failure(ip, device);
            }
            stats.success += targets.difference(&handed.failed).count() as u64;
        });
    }

    /// Returns whether the partition has been removed.
    async fn hand_over(&self, job: &Job, handed: &mut HandoverResult) -> Result<bool, DiskError> {
        let Some(_lock) = job.lock().await? else {
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
        self.count(|stats| stats.remove += 1);
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
        for node in &job.other_primaries() {
            self.count(|stats| stats.rsync += 1);
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
        let primaries = job.other_primaries().len();
        let enough = match self.work.replicator.config.handoff_delete {
            HandoffDelete::Auto => primaries,
            HandoffDelete::After(copies) => copies.min(primaries),
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
