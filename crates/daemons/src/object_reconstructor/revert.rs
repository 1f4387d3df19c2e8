//! Revert of misplaced fragments: handed over, and then removed.

use std::collections::HashMap;

use cairn_disk::DiskError;
use cairn_disk::engine::{Purge, Reverted};
use cairn_formats::ssync::Offer;
use cairn_types::ObjectHash;
use tracing::{info, warn};

use super::jobs::Job;
use super::pass::Pass;
use crate::ssync::{FragmentSelection, SsyncJob};

/// Objects that all target servers of a job have.
#[derive(Default)]
struct CommonObjects {
    servers: usize,
    objects: HashMap<ObjectHash, Offer>,
    is_limited: bool,
}

impl Pass {
    pub(super) async fn revert(&self, job: &Job) {
        let part = &job.part;
        let (device, partition) = (&part.local.device, part.partition);
        let lock = match part.lock().await {
            Ok(lock) => lock,
            Err(error) => {
                if self.context().logged.is_due(device, &error) {
                    warn!(device, partition, %error, "handoff partition not locked");
                }
                None
            }
        };
        if lock.is_none() {
            info!(device, partition, "handoff partition is locked");
            return self.handoff_remains();
        }
        let handed = self.hand_over(job).await;
        let is_everywhere = handed.servers >= job.nodes.len();
        if is_everywhere
            && let Err(error) = self.purge(job, &handed).await
            && self.context().logged.is_due(device, &error)
        {
            warn!(device, partition, %error, "reverted fragments not removed");
        }
        if !is_everywhere || handed.is_limited {
            self.handoff_remains();
        }
    }

    async fn hand_over(&self, job: &Job) -> CommonObjects {
        let part = &job.part;
        let on_progress = || self.note_progress();
        let mut handed = CommonObjects::default();
        for node in &job.nodes {
            let job = SsyncJob {
                device: &part.device,
                policy: part.policy,
                partition: part.partition,
                suffixes: &job.suffixes,
                only: None,
                fragments: Some(FragmentSelection {
                    own: job.index,
                    theirs: part.fragment_of(node),
                    not_durable: true,
                    most: self.work.reconstructor.config.max_objects_per_revert,
                    rebuilder: None,
                }),
            };
            match self.sender(part, &on_progress).ssync(&job, node).await {
                Ok(delivered) => {
                    handed.is_limited |= delivered.is_limited;
                    let had = delivered.offers.into_iter();
                    let had: HashMap<_, _> = had.map(|offer| (offer.hash, offer)).collect();
                    if handed.servers == 0 {
                        handed.objects = had;
                    } else {
                        // An object that some server did not receive stays.
                        handed.objects.retain(|hash, _| had.contains_key(hash));
                    }
                    handed.servers += 1;
                }
                Err(error) => {
                    let (node, partition) = (node.name(), part.partition);
                    warn!(node, partition, %error, "handoff not taken");
                    self.count(|stats| stats.failures += 1);
                }
            }
            self.note_progress();
        }
        handed
    }

    async fn purge(&self, job: &Job, handed: &CommonObjects) -> Result<(), DiskError> {
        let part = &job.part;
        let reverted: Vec<Reverted> = handed
            .objects
            .values()
            .map(|offer| Reverted {
                hash: offer.hash,
                data: offer.data,
                meta: offer.meta,
                is_durable: offer.is_durable,
            })
            .collect();
        let count = reverted.len() as u64;
        let purge = Purge {
            reverted,
            index: job.index,
            is_handoff: job.primary.is_none(),
        };
        let (engine, at) = (part.engine.clone(), part.at());
        let purged = part
            .device
            .write(move |disk| engine.purge(disk, at, &purge));
        purged.await?;
        self.count(|stats| stats.reverted += count);
        Ok(())
    }
}
