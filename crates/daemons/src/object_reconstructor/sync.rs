//! Sync of fragments that belong here with the partition's other servers.

use cairn_disk::DiskError;
use cairn_disk::engine::{FragmentHashes, SuffixHash};
use cairn_formats::pickle;
use cairn_http::client::CallError;
use cairn_peer::Node;
use http::StatusCode;
use thiserror::Error;
use tracing::{error, warn};

use super::jobs::{Hashes, Job, Part};
use super::pass::{Pass, Reconstruction};
use crate::calls;
use crate::object_pass::PartitionWork;
use crate::rebuild::Rebuilder;
use crate::ssync::{FragmentSelection, SsyncError, SsyncJob};

/// Maximum response: twice the size of hashes of 4,096 suffixes with a dozen fragments each.
const HASHES_MAX_BYTES: u64 = 8 << 20;

/// Reasons why another server could not be synced.
#[derive(Debug, Error)]
pub(super) enum SyncError {
    #[error("no server for fragment {0} has its device mounted")]
    Unmounted(u32),
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
}

impl Pass {
    pub(super) async fn sync(&self, job: &Job, hashes: &Hashes) {
        for node in &job.nodes {
            if let Err(error) = self.sync_node(job, hashes, node).await {
                let (node, partition) = (node.name(), job.part.partition);
                warn!(node, partition, %error, "node not brought up to date");
                self.count(|stats| stats.failures += 1);
            }
            self.note_progress();
        }
    }

    async fn sync_node(&self, job: &Job, hashes: &Hashes, node: &Node) -> Result<(), SyncError> {
        let part = &job.part;
        let theirs = part.fragment_of(node);
        let (node, remote) = self.remote_hashes(part, node, theirs).await?;
        let mut suffixes = differing(hashes, job.index, &remote, theirs);
        if suffixes.is_empty() {
            return Ok(());
        }
        // They may be in step again since they were hashed.
        let local = part.hashes(suffixes, false).await?.hashes;
        suffixes = differing(&local, job.index, &remote, theirs);
        if suffixes.is_empty() {
            return Ok(());
        }
        let rebuilder = self.rebuilder(job);
        let job = SsyncJob {
            device: &part.device,
            policy: part.policy,
            partition: part.partition,
            suffixes: &suffixes,
            only: None,
            fragments: Some(FragmentSelection {
                own: job.index,
                theirs,
                not_durable: false,
                most: 0,
                rebuilder: Some(&rebuilder),
            }),
        };
        let on_progress = || self.note_progress();
        self.sender(part, &on_progress).ssync(&job, &node).await?;
        self.count(|stats| stats.suffixes_synced += suffixes.len() as u64);
        Ok(())
    }

    fn rebuilder(&self, job: &Job) -> Rebuilder {
        let config = &self.work.reconstructor.config;
        Rebuilder {
            policy: job.part.policy,
            scheme: job.part.scheme,
            codec: self.codec(&job.part),
            ring: job.part.ring.clone(),
            device: job.part.device.clone(),
            engine: job.part.engine.clone(),
            backends: self.parts().backends.clone(),
            clock: self.parts().clock.clone(),
            node_timeout: config.pass.node_timeout,
            quarantine_threshold: config.quarantine_threshold,
            quarantine_age: config.quarantine_age,
            request_node_count: config.request_node_count,
        }
    }

    /// Hashes of a fragment's server: the primary, or a handoff if its device is not mounted.
    async fn remote_hashes(
        &self,
        part: &Part,
        primary: &Node,
        theirs: u32,
    ) -> Result<(Node, Hashes), SyncError> {
        let most = self.work.reconstructor.config.rebuild_handoff_node_count;
        let mut handoffs = None;
        let mut node = primary.clone();
        loop {
            match self.replicate(part, &node).await? {
                Some(hashes) => return Ok((node, hashes)),
                None => error!(node = node.name(), "responded as unmounted"),
            }
            // Handoffs that also receive fragments of this index from other servers.
            let handoffs = handoffs.get_or_insert_with(|| {
                let handoffs = part.ring.handoffs(part.partition, usize::MAX).into_iter();
                let alike = handoffs.filter(|node| part.fragment_of(node) == theirs);
                alike
                    .take(most.unwrap_or(usize::MAX))
                    .collect::<Vec<_>>()
                    .into_iter()
            });
            node = handoffs.next().ok_or(SyncError::Unmounted(theirs))?;
        }
    }

    /// `None` if the device is not mounted.
    async fn replicate(&self, part: &Part, node: &Node) -> Result<Option<Hashes>, SyncError> {
        let daemon = Reconstruction::USER_AGENT;
        let request = calls::hashes_of(node, part.partition, "", part.policy, daemon);
        let timeout = self.config().http_timeout;
        let backends = &self.parts().backends;
        let called = calls::call_for_body(backends, node, request, timeout, HASHES_MAX_BYTES);
        let (status, body) = called.await?;
        let body = match status {
            StatusCode::OK => body.ok_or(SyncError::Hashes)?,
            StatusCode::INSUFFICIENT_STORAGE => return Ok(None),
            status => return Err(SyncError::Status(status)),
        };
        let value = pickle::loads(&body).map_err(|_| SyncError::Hashes)?;
        let pairs = value.as_dict().ok_or(SyncError::Hashes)?.iter();
        // A suffix that could not be hashed counts as different.
        let pairs = pairs.filter_map(|(suffix, hash)| {
            Some((suffix.as_str()?.to_owned(), SuffixHash::from_value(hash)?))
        });
        Ok(Some(pairs.collect()))
    }
}

/// Suffixes with different objects, or with different timestamps of the two fragments.
fn differing(local: &Hashes, own: Option<u32>, remote: &Hashes, theirs: u32) -> Vec<String> {
    let none = FragmentHashes::new();
    let mut suffixes = Vec::new();
    for (suffix, hash) in local {
        let Some(here) = hash.fragments() else {
            continue;
        };
        let there = remote.get(suffix).and_then(SuffixHash::fragments);
        let there = there.unwrap_or(&none);
        let is_same =
            here.get(&None) == there.get(&None) && here.get(&own) == there.get(&Some(theirs));
        if !is_same {
            suffixes.push(suffix.clone());
        }
    }
    suffixes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_of_the_same_times_are_in_step() {
        let hashes = |pairs: &[(Option<u32>, &str)]| {
            let hashes = pairs
                .iter()
                .map(|(index, hash)| (*index, (*hash).to_owned()));
            SuffixHash::Fragments(hashes.collect())
        };
        let local = Hashes::from([
            ("abc".into(), hashes(&[(None, "d"), (Some(1), "f")])),
            ("abd".into(), hashes(&[(None, "d"), (Some(1), "f")])),
            ("abe".into(), hashes(&[(None, "d")])),
            ("abf".into(), hashes(&[(None, "d"), (Some(1), "f")])),
        ]);
        let remote = Hashes::from([
            ("abc".into(), hashes(&[(None, "d"), (Some(2), "f")])),
            ("abd".into(), hashes(&[(None, "other"), (Some(2), "f")])),
            ("abe".into(), hashes(&[(None, "d"), (Some(5), "x")])),
        ]);
        assert_eq!(differing(&local, Some(1), &remote, 2), ["abd", "abf"]);
    }
}
