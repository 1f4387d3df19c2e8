//! Rows of another policy than their container's, left by a split cluster that created one
//! container with different policies. They are queued for the reconciler, which moves the objects:
//! as rows of `.misplaced_objects/<hour>`, named `<policy>:/account/container/object`.

use std::collections::BTreeMap;

use cairn_http::params::unquote;
use cairn_index::{
    Broker, ContainerBroker, DbKind, IndexError, NewDb, ObjectRecord, ObjectRow, ReplicationInfo,
};
use cairn_types::timestamp::decode_timestamps;
use cairn_types::{Quorum, Timestamp};
use tracing::error;

use super::{DbReplicator, Job};
use crate::container_reconciler::{
    DELETE_TYPE, MISPLACED_OBJECTS_ACCOUNT, PUT_TYPE, queue_container,
};

/// Whether its rows are being moved to its shards.
pub(super) fn is_sharding(broker: &Broker<'_>) -> Result<bool, IndexError> {
    match broker.key().kind {
        DbKind::Account => Ok(false),
        DbKind::Container => ContainerBroker::of(broker).is_sharding_initiated(),
    }
}

/// Whether its sharding is incomplete here.
pub(super) fn is_sharding_required(broker: &Broker<'_>) -> Result<bool, IndexError> {
    match broker.key().kind {
        DbKind::Account => Ok(false),
        DbKind::Container => ContainerBroker::of(broker).is_sharding_required(),
    }
}

impl DbReplicator {
    /// Queues misplaced rows, and advances the reconciler's sync point once most replicas have all
    /// rows.
    pub(super) async fn reconcile(
        &self,
        job: &Job,
        info: &ReplicationInfo,
        sent: &[bool],
    ) -> Result<(), IndexError> {
        let is_queue = info.account == MISPLACED_OBJECTS_ACCOUNT;
        if job.db.key().kind == DbKind::Account || is_queue {
            return Ok(());
        }
        let (point, policies) = job
            .db
            .read(|broker| {
                let broker = ContainerBroker::of(broker);
                let policies = broker.policy_stats()?.len();
                Ok((broker.reconciler_sync_point()?, policies))
            })
            .await?;
        if policies <= 1 && info.max_row != point {
            return self.note_reconciled(job, info.max_row).await;
        }
        let reached = self.queue_misplaced(job, info, point).await?;
        let successes = sent.iter().filter(|success| **success).count();
        if reached > point && Quorum::majority_of(sent.len()).is_reached_by(successes) {
            self.note_reconciled(job, reached).await?;
        }
        Ok(())
    }

    async fn note_reconciled(&self, job: &Job, point: i64) -> Result<(), IndexError> {
        job.db
            .write(None, move |broker| {
                ContainerBroker::of(broker).set_reconciler_sync_point(point)
            })
            .await
    }

    /// Queues rows; returns the last one that need not be examined again.
    async fn queue_misplaced(
        &self,
        job: &Job,
        info: &ReplicationInfo,
        point: i64,
    ) -> Result<i64, IndexError> {
        let per_diff = self.config.per_diff;
        let misplaced_since = |point: i64| {
            job.db
                .read(move |broker| ContainerBroker::of(broker).misplaced_since(point, per_diff))
        };
        let max_row = job.db.read(|broker| broker.max_row()).await?;
        let mut rows = misplaced_since(point).await?;
        if rows.is_empty() {
            return Ok(max_row);
        }
        let (account, container) = self.root_of(job, info).await?;
        let (mut at, mut reached, mut complete) = (point, point, true);
        while let Some(last) = rows.last().map(|row| row.rowid) {
            let mut queues: BTreeMap<u64, Vec<ObjectRow>> = BTreeMap::new();
            for row in rows {
                if let Some((hour, entry)) = entry_of(&account, &container, row) {
                    queues.entry(hour).or_default().push(entry);
                }
            }
            for (hour, entries) in queues {
                if let Err(error) = self.queue(hour, entries).await {
                    error!(hour, %error, "misplaced objects are not queued");
                    complete = false;
                }
            }
            at = at.max(last);
            if complete {
                reached = at;
            }
            rows = misplaced_since(at).await?;
        }
        Ok(reached)
    }

    /// The root of a shard, or the container itself.
    async fn root_of(
        &self,
        job: &Job,
        info: &ReplicationInfo,
    ) -> Result<(String, String), IndexError> {
        let metadata = job.db.read(|broker| broker.metadata()).await?;
        let value = |name: &str| metadata.get(name).map(|(value, _)| value.to_owned());
        let quoted = value("X-Container-Sysmeta-Shard-Quoted-Root");
        let root = quoted
            .and_then(|root| unquote(&root).ok())
            .or_else(|| value("X-Container-Sysmeta-Shard-Root"));
        let root = root.as_deref().and_then(|root| root.split_once('/'));
        Ok(match root {
            Some((account, container)) => (account.to_owned(), container.to_owned()),
            None => (
                info.account.clone(),
                info.container.clone().unwrap_or_default(),
            ),
        })
    }

    /// Adds entries to the queue's database on a device of this node; replicated at the pass's end.
    async fn queue(&self, hour: u64, entries: Vec<ObjectRow>) -> Result<(), IndexError> {
        let ring = self.ring();
        let container = hour.to_string();
        let partition = ring.partition(
            &self.hash_path,
            MISPLACED_OBJECTS_ACCOUNT,
            Some(&container),
            None,
        );
        let own = self.config.own.replicated_devices(&ring);
        let primaries = ring.primaries(partition);
        let device = primaries
            .iter()
            .find(|node| own.iter().any(|device| device.id == node.device.id))
            .map(|node| &node.device)
            .or_else(|| own.iter().find(|device| device.weight > 0.0))
            .or_else(|| own.first());
        let Some(device) = device else {
            return Err(IndexError::Busy {
                what: "no device of this node is in the container ring".into(),
            });
        };
        let db = self.pool.container(
            &self.hash_path,
            &device.device,
            &partition.to_string(),
            MISPLACED_OBJECTS_ACCOUNT,
            &container,
        );
        let new = NewDb::Container {
            account: MISPLACED_OBJECTS_ACCOUNT.into(),
            container,
            put_timestamp: Timestamp::from_secs(hour).internal(),
            storage_policy_index: 0,
        };
        db.merge_items(Some(new), entries).await?;
        self.reconcilers.lock().insert(db.key().clone());
        Ok(())
    }
}

/// The queue's hour and the entry; none for an unreadable timestamp.
fn entry_of(account: &str, container: &str, row: ObjectRecord) -> Option<(u64, ObjectRow)> {
    let (data, ctype, meta) = decode_timestamps(&row.created_at).ok()?;
    let content_type = if row.deleted { DELETE_TYPE } else { PUT_TYPE };
    let entry = ObjectRow {
        name: format!(
            "{}:/{account}/{container}/{}",
            row.storage_policy_index, row.name
        ),
        data,
        ctype,
        meta,
        size: 0,
        content_type: content_type.into(),
        etag: row.created_at,
        deleted: false,
        storage_policy_index: 0,
    };
    Some((queue_container(meta), entry))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn entries_say_what_to_do() {
        let row = ObjectRecord {
            rowid: 1,
            name: "o/p".into(),
            created_at: "0000007300.00000".into(),
            size: 9,
            content_type: "t".into(),
            etag: "e".into(),
            deleted: true,
            storage_policy_index: 2,
        };
        let (hour, entry) = entry_of("a", "c", row).unwrap();
        assert_eq!(hour, 7200);
        assert_eq!(entry.name, "2:/a/c/o/p");
        assert_eq!(entry.etag, "0000007300.00000");
        assert_eq!(entry.content_type, "application/x-delete");
        assert!(!entry.deleted);
    }
}
