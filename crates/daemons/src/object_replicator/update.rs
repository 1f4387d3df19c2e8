//! Update of a partition that belongs here: brings its other primaries up to date.

use std::collections::{BTreeMap, HashSet};

use cairn_disk::DiskError;
use cairn_disk::engine::{Hashed, SuffixHash};
use cairn_formats::pickle;
use cairn_http::client::CallError;
use cairn_http::own_thread;
use cairn_peer::Node;
use http::StatusCode;
use thiserror::Error;
use tracing::{error, warn};

use super::config::{HandoffDelete, SyncMethod};
use super::pass::{Job, Pass, Replication};
use super::rsync::RsyncError;
use crate::calls;
use crate::object_pass::PartitionWork;
use crate::ssync::{Delivered, SsyncError, SsyncJob};

/// Maximum response: four times the hashes of 4,096 suffixes.
const HASHES_MAX_BYTES: u64 = 1 << 20;

/// Reasons why another device could not be updated.
#[derive(Debug, Error)]
pub(super) enum SyncError {
    #[error("its device is not mounted")]
    Unmounted,
    #[error("REPLICATE: {0}")]
    Status(StatusCode),
    #[error("REPLICATE: {0}")]
    Call(#[from] CallError),
    #[error("REPLICATE: the answer holds no hashes")]
    Hashes,
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error("ssync: {0}")]
    Ssync(#[from] SsyncError),
    #[error("rsync: {0}")]
    Rsync(#[from] RsyncError),
}

/// Result for one node.
enum Outcome {
    Same,
    Sent { suffixes: u64 },
}

/// Devices tried, and the number left to try.
struct Attempts {
    left: usize,
    targets: HashSet<(String, String)>,
    failed: HashSet<(String, String)>,
}

fn whole(found: Hashed) -> BTreeMap<String, String> {
    let pairs = found.hashes.into_iter();
    let pair = |(suffix, hash): (String, SuffixHash)| Some((suffix, hash.whole()?.to_owned()));
    pairs.filter_map(pair).collect()
}

pub(super) fn identity(node: &Node) -> (String, String) {
    (
        node.device.replication_ip.clone(),
        node.device.device.clone(),
    )
}

impl Pass {
    pub(super) async fn update(&self, job: &Job) {
        self.count(|stats| stats.attempted += 1);
        let mut attempts = Attempts {
            left: job.other_primaries().len(),
            targets: HashSet::new(),
            failed: HashSet::new(),
        };
        if let Err(error) = self.update_all(job, &mut attempts).await {
            let (device, partition) = (&job.local.device, job.partition);
            if self.context().logged.is_due(device, &error) {
                warn!(device, partition, %error, "partition not replicated");
            }
            attempts.failed.clone_from(&attempts.targets);
        }
        self.count(|stats| {
            for (ip, device) in &attempts.failed {
                stats.add_failure(ip, device);
            }
            stats.success += (attempts.targets.len() - attempts.failed.len()) as u64;
        });
    }

    async fn update_all(&self, job: &Job, attempts: &mut Attempts) -> Result<(), DiskError> {
        let is_search_due = self.work.is_search_due(job.partition);
        let found = job.hashes(Vec::new(), is_search_due).await?;
        self.count(|stats| {
            stats.suffix_hash += found.hashed;
            stats.suffix_count += found.hashes.len() as u64;
        });
        let mut local = whole(found);
        let mut primaries = job.other_primaries();
        own_thread::shuffle(&mut primaries);
        let mut primaries = primaries.into_iter();
        let mut handoffs = None;
        // A region that received it spreads it among its own devices.
        let mut regions_done = HashSet::new();
        while attempts.left > 0 {
            let node = primaries.next().or_else(|| {
                let handoffs = handoffs.get_or_insert_with(|| {
                    job.ring.handoffs(job.partition, usize::MAX).into_iter()
                });
                handoffs.next()
            });
            let Some(node) = node else {
                error!(
                    partition = job.partition,
                    policy = job.policy.0,
                    "ran out of handoffs"
                );
                return Ok(());
            };
            attempts.left -= 1;
            attempts.targets.insert(identity(&node));
            let region = node.device.region;
            if regions_done.contains(&region) {
                continue;
            }
            match self.update_node(job, &node, &mut local).await {
                Ok(outcome) => {
                    let is_sent = matches!(outcome, Outcome::Sent { .. });
                    if is_sent && region != job.local.region {
                        regions_done.insert(region);
                    }
                    self.count(|stats| match outcome {
                        Outcome::Same => stats.hashmatch += 1,
                        Outcome::Sent { suffixes } => {
                            stats.rsync += 1;
                            stats.suffix_sync += suffixes;
                        }
                    });
                }
                Err(error) => {
                    let partition = job.partition;
                    warn!(node = node.name(), partition, %error, "node not brought up to date");
                    attempts.failed.insert(identity(&node));
                    if matches!(error, SyncError::Unmounted) {
                        self.try_another(attempts);
                    }
                }
            }
            self.note_progress();
        }
        Ok(())
    }

    /// Replaces an unmounted device by a handoff, unless fewer copies suffice and will exist.
    fn try_another(&self, attempts: &mut Attempts) {
        let is_wanted = match self.work.replicator.config.handoff_delete {
            HandoffDelete::Auto => true,
            HandoffDelete::After(copies) => {
                // One is ours.
                let safe = 1 + attempts.targets.len() - attempts.failed.len();
                safe + attempts.left < copies
            }
        };
        if is_wanted {
            attempts.left += 1;
        }
    }

    async fn update_node(
        &self,
        job: &Job,
        node: &Node,
        local: &mut BTreeMap<String, String>,
    ) -> Result<Outcome, SyncError> {
        let remote = self.remote_hashes(job, node).await?;
        let differing = |local: &BTreeMap<String, String>| -> Vec<String> {
            let differ = local
                .iter()
                .filter(|(suffix, hash)| remote.get(*suffix) != Some(*hash));
            differ.map(|(suffix, _)| suffix.clone()).collect()
        };
        let mut suffixes = differing(local);
        if suffixes.is_empty() {
            return Ok(Outcome::Same);
        }
        // They may be in step again since they were hashed; those missing there cannot be.
        suffixes.retain(|suffix| remote.contains_key(suffix));
        if !suffixes.is_empty() {
            *local = whole(job.hashes(suffixes, false).await?);
        }
        suffixes = differing(local);
        if suffixes.is_empty() {
            return Ok(Outcome::Same);
        }
        self.sync(job, node, &suffixes, None).await?;
        Ok(Outcome::Sent {
            suffixes: suffixes.len() as u64,
        })
    }

    /// Sends the differences in these suffixes. With `only`, just determines which of these objects
    /// the remote has (SSYNC).
    pub(super) async fn sync(
        &self,
        job: &Job,
        node: &Node,
        suffixes: &[String],
        only: Option<&HashSet<cairn_types::ObjectHash>>,
    ) -> Result<Delivered, SyncError> {
        match (self.work.replicator.config.sync_method, job.engine.rsync()) {
            // An engine without files has no rsync.
            (SyncMethod::Ssync, _) | (SyncMethod::Rsync, None) => {
                let on_progress = || self.note_progress();
                let ssync_job = SsyncJob {
                    device: &job.device,
                    policy: job.policy,
                    partition: job.partition,
                    suffixes,
                    only,
                    fragments: None,
                };
                Ok(self
                    .sender(job, &on_progress)
                    .ssync(&ssync_job, node)
                    .await?)
            }
            (SyncMethod::Rsync, Some(rsync)) => {
                let sent = self.rsync(job, rsync, node, suffixes).await;
                if sent.is_ok() || !job.is_handoff {
                    self.note_changes(job, node, suffixes).await?;
                }
                sent?;
                Ok(Delivered::default())
            }
        }
    }

    async fn remote_hashes(
        &self,
        job: &Job,
        node: &Node,
    ) -> Result<BTreeMap<String, String>, SyncError> {
        let body = self.replicate(job, node, "").await?;
        let value = pickle::loads(&body).map_err(|_| SyncError::Hashes)?;
        let pairs = value.as_dict().ok_or(SyncError::Hashes)?;
        let pair = |(suffix, hash): &(pickle::Value, pickle::Value)| {
            Some((suffix.as_str()?.to_owned(), hash.as_str()?.to_owned()))
        };
        // A suffix that could not be hashed counts as different.
        Ok(pairs.iter().filter_map(pair).collect())
    }

    /// Invalidates these suffixes on the other server after rsync.
    async fn note_changes(
        &self,
        job: &Job,
        node: &Node,
        suffixes: &[String],
    ) -> Result<(), SyncError> {
        // Even a line of all 4,096 would be within the servers' limit.
        for suffixes in suffixes.chunks(1024) {
            self.replicate(job, node, &format!("/{}", suffixes.join("-")))
                .await?;
        }
        Ok(())
    }

    async fn replicate(
        &self,
        job: &Job,
        node: &Node,
        suffixes: &str,
    ) -> Result<bytes::Bytes, SyncError> {
        let daemon = Replication::USER_AGENT;
        let request = calls::hashes_of(node, job.partition, suffixes, job.policy, daemon);
        let timeout = self.config().http_timeout;
        let backends = &self.parts().backends;
        let (status, body) =
            calls::call_for_body(backends, node, request, timeout, HASHES_MAX_BYTES).await?;
        match status {
            StatusCode::OK => body.ok_or(SyncError::Hashes),
            StatusCode::INSUFFICIENT_STORAGE => Err(SyncError::Unmounted),
            status => Err(SyncError::Status(status)),
        }
    }
}
