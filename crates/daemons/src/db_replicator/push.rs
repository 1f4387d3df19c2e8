//! Replication of one database to one node: `sync`, then the missing parts.

use cairn_index::{ContainerBroker, DbKind, IndexError, ReplicationInfo, ShardRange, SyncPoint};
use cairn_peer::Node;
use http::StatusCode;
use serde_json::{Value, json};
use thiserror::Error;
use tracing::{debug, warn};

use super::peer::{Answer, Peer, Replica};
use super::{DbReplicator, Job};

#[derive(Debug, Error)]
pub(super) enum PushError {
    #[error("the device is not mounted there")]
    NotMounted,
    #[error(transparent)]
    Index(#[from] IndexError),
}

type Result<T> = std::result::Result<T, PushError>;

fn is_success(answer: &Option<Answer>) -> bool {
    answer.as_ref().is_some_and(|a| a.status.is_success())
}

impl DbReplicator {
    /// Replicates to the node. True if it has everything now.
    pub(super) async fn send_to(
        &self,
        job: &Job,
        node: &Node,
        partition: u32,
        info: &ReplicationInfo,
        far: bool,
    ) -> Result<bool> {
        let peer = Peer {
            backends: &self.backends,
            node,
            partition,
            key: job.db.key(),
            call_timeout: self.config.node_timeout + self.config.conn_timeout,
        };
        let Some(answer) = self.send_sync(&peer, info).await else {
            return Ok(false);
        };
        match answer.status {
            StatusCode::NOT_FOUND => {
                self.count(|stats| stats.rsync += 1);
                self.send_missing(job, &peer, info, far).await
            }
            StatusCode::INSUFFICIENT_STORAGE => Err(PushError::NotMounted),
            status if status.is_success() => self.send_news(job, &peer, info, &answer, far).await,
            status => {
                warn!(node = node.name(), %status, "a replica refuses to be compared");
                Ok(false)
            }
        }
    }

    /// Sends `sync`.
    pub(super) async fn send_sync(
        &self,
        peer: &Peer<'_>,
        info: &ReplicationInfo,
    ) -> Option<Answer> {
        let args = info.sync_args(self.has_policies);
        peer.replicate(&Value::Array(args)).await
    }

    /// Handles the response: adopts newer state, sends missing parts.
    pub(super) async fn send_news(
        &self,
        job: &Job,
        peer: &Peer<'_>,
        info: &ReplicationInfo,
        answer: &Answer,
        far: bool,
    ) -> Result<bool> {
        let Some(replica) = Replica::parse(&answer.body) else {
            warn!(
                node = peer.node.name(),
                "a replica's answer is not readable"
            );
            return Ok(false);
        };
        self.take(job, info, &replica).await?;
        if job.db.key().kind == DbKind::Account {
            return self.send_rows_of(job, peer, info, &replica, far).await;
        }
        if replica.shard_max_row.is_some_and(|row| row >= 0) {
            self.fetch_shard_ranges(job, peer).await?;
        }
        let shards_sent = match replica.shard_max_row {
            Some(_) => self.send_shard_ranges(job, peer, info).await?,
            None => false,
        };
        if job.db.read(super::reconcile::is_sharding).await? {
            // Its rows go to its shards; a second replica with these rows would be sharded twice.
            self.count(|stats| stats.deferred += 1);
            return Ok(shards_sent);
        }
        let sent = self.send_rows_of(job, peer, info, &replica, far).await?;
        Ok(sent && shards_sent)
    }

    async fn take(&self, job: &Job, info: &ReplicationInfo, replica: &Replica) -> Result<()> {
        let remote = &replica.remote;
        let policy = remote.policy.as_ref().map(|p| p.storage_policy_index);
        let own_policy = info.of_container.as_ref().map(|f| f.storage_policy_index);
        let is_news = remote.created_at != info.created_at
            || remote.put_timestamp != info.put_timestamp
            || remote.delete_timestamp != info.delete_timestamp
            || (policy.is_some() && policy != own_policy)
            || replica.raw_metadata != info.metadata;
        if is_news {
            let (info, remote) = (info.clone(), remote.clone());
            let take = job
                .db
                .write(None, move |broker| broker.take_answer(&info, &remote));
            take.await?;
        }
        Ok(())
    }

    async fn fetch_shard_ranges(&self, job: &Job, peer: &Peer<'_>) -> Result<()> {
        let answer = peer.replicate(&json!(["get_shard_ranges"])).await;
        let Some(answer) = answer.filter(|answer| answer.status.is_success()) else {
            return Ok(());
        };
        match serde_json::from_slice::<Vec<ShardRange>>(&answer.body) {
            Ok(ranges) => {
                let merge = job.db.write(None, move |broker| {
                    ContainerBroker::of(broker).merge_replicated_shard_ranges(ranges)
                });
                merge.await?;
            }
            Err(error) => {
                warn!(node = peer.node.name(), %error, "a replica's shard ranges are not readable");
            }
        }
        Ok(())
    }

    async fn send_shard_ranges(
        &self,
        job: &Job,
        peer: &Peer<'_>,
        info: &ReplicationInfo,
    ) -> Result<bool> {
        let ranges = job
            .db
            .read(|broker| ContainerBroker::of(broker).shard_ranges())
            .await?;
        if ranges.is_empty() {
            return Ok(true);
        }
        let args = json!(["merge_shard_ranges", ranges, info.id]);
        Ok(is_success(&peer.replicate(&args).await))
    }

    async fn send_rows_of(
        &self,
        job: &Job,
        peer: &Peer<'_>,
        info: &ReplicationInfo,
        replica: &Replica,
        far: bool,
    ) -> Result<bool> {
        let remote_id = replica.remote.id.clone();
        let told = {
            let id = remote_id.clone();
            job.db
                .read(move |broker| broker.sync_point(&id, false))
                .await?
        };
        let known = replica.point.max(told);
        if known >= info.max_row {
            self.count(|stats| stats.no_change += 1);
            return Ok(true);
        }
        if replica.remote.hash == info.hash {
            self.count(|stats| stats.hashmatch += 1);
            self.note_sent(job, remote_id, replica.point).await?;
            return Ok(true);
        }
        let behind = info.max_row.saturating_sub(replica.max_row);
        let per_diff = i64::try_from(self.config.per_diff).unwrap_or(i64::MAX);
        let far_behind = (replica.max_row as f64) / (info.max_row as f64) < 0.5;
        if far_behind && behind > per_diff {
            self.count(|stats| stats.remote_merge += 1);
            if self.send_far_behind(job, peer, info, far).await? {
                return Ok(true);
            }
        }
        self.send_rows(job, peer, &info.id, remote_id, known).await
    }

    async fn note_sent(&self, job: &Job, remote_id: String, sync_point: i64) -> Result<()> {
        let note = job.db.write(None, move |broker| {
            let point = SyncPoint {
                remote_id,
                sync_point,
            };
            broker.merge_syncs(&[point], false)
        });
        Ok(note.await?)
    }

    /// Sends all rows after `point`, up to `max_diffs` requests. True if that was all.
    pub(super) async fn send_rows(
        &self,
        job: &Job,
        peer: &Peer<'_>,
        own_id: &str,
        remote_id: String,
        mut point: i64,
    ) -> Result<bool> {
        self.count(|stats| stats.diff += 1);
        let known = job.db.read(|broker| broker.sync_points(true)).await?;
        let per_diff = self.config.per_diff;
        let rows_since = |point: i64| {
            job.db
                .read(move |broker| broker.replicated_rows_since(point, per_diff))
        };
        let mut rows = rows_since(point).await?;
        let mut sent = 0;
        while let (Some(last), true) = (rows.last(), sent < self.config.max_diffs) {
            sent += 1;
            let args = json!(["merge_items", rows.to_json(), own_id]);
            if !is_success(&peer.replicate(&args).await) {
                return Ok(false);
            }
            point = last;
            rows = rows_since(point).await?;
        }
        if !rows.is_empty() {
            debug!(
                node = peer.node.name(),
                "the rest of the rows is sent by the next pass"
            );
            self.count(|stats| stats.diff_capped += 1);
            return Ok(false);
        }
        // The replica now has the rows that others sent us, too.
        let known: Value = known
            .iter()
            .map(|p| json!({"remote_id": p.remote_id, "sync_point": p.sync_point}))
            .collect();
        if !is_success(&peer.replicate(&json!(["merge_syncs", known])).await) {
            return Ok(false);
        }
        self.note_sent(job, remote_id, point).await?;
        Ok(true)
    }
}
