//! Swift's replication RPC between replicas of a database, on the database's side.
//!
//! A replicator sends `sync` with its highest row, hash, id, times and metadata; the response is
//! the receiver's [`ReplicationInfo`] and the sender's sync point there. Missing rows then follow
//! as `merge_items` ([`Rows`]), or the whole file (`exchange.rs`).

pub(crate) mod exchange;
mod policy;
mod rows;

use cairn_types::Timestamp;
use serde_json::{Map, Value, json};

use crate::broker::{Broker, timestamp};
use crate::{AccountBroker, ContainerBroker, DbKind, DbState, Metadata, Result, SyncPoint};

pub use policy::PolicyClaim;
pub use rows::{RowError, Rows};

/// Properties of a database that replicas compare.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicationInfo {
    pub account: String,
    /// Name of the container; none for an account.
    pub container: Option<String>,
    pub created_at: String,
    pub put_timestamp: String,
    pub delete_timestamp: String,
    pub status_changed_at: String,
    /// Containers of an account; objects of a container's own policy.
    pub count: i64,
    /// For an account: the objects of all its containers.
    pub object_count: i64,
    pub bytes_used: i64,
    pub hash: String,
    pub id: String,
    /// The metadata column's text.
    pub metadata: String,
    /// Highest ROWID ever assigned, or -1.
    pub max_row: i64,
    /// Properties of containers only.
    pub of_container: Option<ContainerFacts>,
}

/// Properties of a container's database only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerFacts {
    pub storage_policy_index: i64,
    pub status: String,
    pub reported_put_timestamp: String,
    pub reported_delete_timestamp: String,
    pub reported_object_count: i64,
    pub reported_bytes_used: i64,
    pub x_container_sync_point1: i64,
    pub x_container_sync_point2: i64,
    pub db_state: &'static str,
    pub shard_max_row: i64,
}

/// Arguments of a replicator's `sync` request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RemoteInfo {
    /// Highest ROWID of the sender.
    pub point: i64,
    pub hash: String,
    pub id: String,
    pub created_at: String,
    pub put_timestamp: String,
    pub delete_timestamp: String,
    pub metadata: Metadata,
    /// Sent for containers of clusters with several policies.
    pub policy: Option<RemotePolicy>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemotePolicy {
    pub status_changed_at: String,
    pub count: i64,
    pub storage_policy_index: i64,
}

impl ReplicationInfo {
    /// Whether it is empty, and was deleted before `age`.
    fn is_deleted_before(&self, age: Timestamp) -> bool {
        let deleted = timestamp(&self.delete_timestamp);
        age > deleted && deleted > timestamp(&self.put_timestamp)
    }

    /// Whether the account has this container's current totals and times.
    pub fn is_reported(&self) -> bool {
        self.of_container.as_ref().is_none_or(|facts| {
            facts.reported_put_timestamp == self.put_timestamp
                && facts.reported_delete_timestamp == self.delete_timestamp
                && facts.reported_object_count == self.count
                && facts.reported_bytes_used == self.bytes_used
        })
    }

    /// Arguments of `sync`; with the policy where a cluster has several.
    pub fn sync_args(&self, with_policy: bool) -> Vec<Value> {
        let mut args = vec![
            json!("sync"),
            json!(self.max_row),
            json!(self.hash),
            json!(self.id),
            json!(self.created_at),
            json!(self.put_timestamp),
            json!(self.delete_timestamp),
            json!(self.metadata),
        ];
        if let Some(facts) = self.of_container.as_ref().filter(|_| with_policy) {
            args.push(json!(self.status_changed_at));
            args.push(json!(self.count));
            args.push(json!(facts.storage_policy_index));
        }
        args
    }

    /// Response to `sync`; `point` is the sender's sync point.
    pub fn to_json(&self, point: i64) -> Value {
        let mut all = Map::new();
        let mut put = |name: &str, value: Value| all.insert(name.to_owned(), value);
        put("account", json!(self.account));
        put("created_at", json!(self.created_at));
        put("put_timestamp", json!(self.put_timestamp));
        put("delete_timestamp", json!(self.delete_timestamp));
        put("status_changed_at", json!(self.status_changed_at));
        put("count", json!(self.count));
        put("bytes_used", json!(self.bytes_used));
        put("hash", json!(self.hash));
        put("id", json!(self.id));
        put("metadata", json!(self.metadata));
        put("max_row", json!(self.max_row));
        put("point", json!(point));
        match &self.of_container {
            None => {
                put("object_count", json!(self.object_count));
            }
            Some(facts) => {
                put("container", json!(self.container));
                put("storage_policy_index", json!(facts.storage_policy_index));
                put("status", json!(facts.status));
                put(
                    "reported_put_timestamp",
                    json!(facts.reported_put_timestamp),
                );
                put(
                    "reported_delete_timestamp",
                    json!(facts.reported_delete_timestamp),
                );
                put("reported_object_count", json!(facts.reported_object_count));
                put("reported_bytes_used", json!(facts.reported_bytes_used));
                put(
                    "x_container_sync_point1",
                    json!(facts.x_container_sync_point1),
                );
                put(
                    "x_container_sync_point2",
                    json!(facts.x_container_sync_point2),
                );
                put("db_state", json!(facts.db_state));
                put("shard_max_row", json!(facts.shard_max_row));
            }
        }
        Value::Object(all)
    }
}

impl Broker<'_> {
    /// Reads the properties that replicas compare.
    ///
    /// # Errors
    /// Those of [`AccountBroker::info`] or [`ContainerBroker::info`].
    pub fn replication_info(&self) -> Result<ReplicationInfo> {
        let common = ReplicationInfo {
            metadata: self.raw_metadata()?,
            max_row: self.max_row()?,
            ..ReplicationInfo::default()
        };
        match self.kind() {
            DbKind::Account => {
                let info = AccountBroker(*self).info()?;
                Ok(ReplicationInfo {
                    account: info.account,
                    created_at: info.created_at,
                    put_timestamp: info.put_timestamp,
                    delete_timestamp: info.delete_timestamp,
                    status_changed_at: info.status_changed_at,
                    count: info.container_count,
                    object_count: info.object_count,
                    bytes_used: info.bytes_used,
                    hash: info.hash,
                    id: info.id,
                    ..common
                })
            }
            DbKind::Container => {
                let info = ContainerBroker(*self).info()?;
                Ok(ReplicationInfo {
                    account: info.account,
                    container: Some(info.container),
                    created_at: info.created_at,
                    put_timestamp: info.put_timestamp,
                    delete_timestamp: info.delete_timestamp,
                    status_changed_at: info.status_changed_at,
                    count: info.object_count,
                    object_count: info.object_count,
                    bytes_used: info.bytes_used,
                    hash: info.hash,
                    id: info.id,
                    of_container: Some(ContainerFacts {
                        storage_policy_index: info.storage_policy_index,
                        status: info.status,
                        reported_put_timestamp: info.reported_put_timestamp,
                        reported_delete_timestamp: info.reported_delete_timestamp,
                        reported_object_count: info.reported_object_count,
                        reported_bytes_used: info.reported_bytes_used,
                        x_container_sync_point1: info.x_container_sync_point1,
                        x_container_sync_point2: info.x_container_sync_point2,
                        db_state: info.db_state,
                        shard_max_row: ContainerBroker(*self).shard_max_row()?,
                    }),
                    ..common
                })
            }
        }
    }

    /// Applies a `sync` request; returns the properties from before, and the sender's sync point.
    ///
    /// # Errors
    /// `Corrupt` without a stat row, `MetadataText` if our metadata is not readable; else as every
    /// query: see [`ContainerBroker`].
    pub fn answer_sync(&self, remote: &RemoteInfo) -> Result<(ReplicationInfo, i64)> {
        let mut info = self.replication_info()?;
        if self.take_policy(&info, remote)? {
            info = self.replication_info()?;
        }
        self.take_metadata(&remote.metadata)?;
        self.take_times(&info, remote)?;
        let mut point = self.sync_point(&remote.id, true)?;
        if remote.hash == info.hash && point < remote.point {
            let known = SyncPoint {
                remote_id: remote.id.clone(),
                sync_point: remote.point,
            };
            self.merge_syncs(&[known], true)?;
            point = remote.point;
        }
        Ok((info, point))
    }

    /// Applies the response to our `sync`; `info` is our request.
    ///
    /// # Errors
    /// `Corrupt` without a stat row, `MetadataText` if our metadata is not readable; else as every
    /// query: see [`ContainerBroker`].
    pub fn take_answer(&self, info: &ReplicationInfo, remote: &RemoteInfo) -> Result<()> {
        self.take_policy(info, remote)?;
        if self.kind() == DbKind::Container {
            self.take_times(info, remote)?;
        }
        self.take_metadata(&remote.metadata)
    }

    /// Adopts the other replica's policy if its claim is better. True if adopted.
    fn take_policy(&self, info: &ReplicationInfo, remote: &RemoteInfo) -> Result<bool> {
        let (Some(facts), Some(policy)) = (&info.of_container, &remote.policy) else {
            return Ok(false);
        };
        if facts.storage_policy_index == policy.storage_policy_index
            || !policy::is_remote_better(info, remote, policy)
        {
            return Ok(false);
        }
        let now = self.config.now().internal();
        ContainerBroker(*self).set_storage_policy_index(policy.storage_policy_index, &now)?;
        Ok(true)
    }

    fn take_metadata(&self, metadata: &Metadata) -> Result<()> {
        self.update_metadata(metadata.iter(), false)
    }

    fn take_times(&self, info: &ReplicationInfo, remote: &RemoteInfo) -> Result<()> {
        let same = info.created_at == remote.created_at
            && info.put_timestamp == remote.put_timestamp
            && info.delete_timestamp == remote.delete_timestamp;
        if same {
            return Ok(());
        }
        let times = [
            &*remote.created_at,
            &*remote.put_timestamp,
            &*remote.delete_timestamp,
        ];
        self.merge_timestamps_with(times, || self.is_deleted_db())
    }

    pub(crate) fn is_deleted_db(&self) -> Result<bool> {
        match self.kind() {
            DbKind::Account => AccountBroker(*self).is_deleted(),
            DbKind::Container => ContainerBroker(*self).is_deleted(),
        }
    }

    /// Whether the database may be removed: empty, and deleted before `age`.
    ///
    /// # Errors
    /// For a container, `Corrupt` without a stat row and `MetadataText` if its metadata is not
    /// readable; else as every query: see [`ContainerBroker`].
    pub fn is_reclaimable(&self, info: &ReplicationInfo, age: Timestamp) -> Result<bool> {
        if !info.is_deleted_before(age) {
            return Ok(false);
        }
        match self.kind() {
            DbKind::Account => Ok(info.count == 0),
            DbKind::Container => {
                let broker = ContainerBroker(*self);
                let is_sharding = broker.db_state()? == DbState::Sharding;
                let has_more = broker.is_root()? && (is_sharding || broker.has_shards()?);
                Ok(!has_more && broker.is_empty()?)
            }
        }
    }

    /// Whether [`Broker::reclaim_tombstones`] or [`Broker::reclaim_other`] would remove anything; a
    /// cheap check, as most databases have nothing to reclaim.
    ///
    /// # Errors
    /// `Corrupt` without a stat row, `MetadataText` if the metadata is not readable; else as every
    /// query: see [`Broker`].
    pub fn has_reclaimable(&self, age: Timestamp, sync_age: Timestamp) -> Result<bool> {
        let column = match self.kind() {
            DbKind::Account => "delete_timestamp",
            DbKind::Container => "created_at",
        };
        let sql = self.sql(&format!(
            "SELECT 1 FROM {{contains}} WHERE deleted = 1 AND {column} < ? LIMIT 1"
        ));
        if self.conn.prepare_cached(&sql)?.exists([age.internal()])? {
            return Ok(true);
        }
        for table in ["outgoing_sync", "incoming_sync"] {
            if self.has_column(table, "updated_at")? {
                let sql = format!("SELECT 1 FROM {table} WHERE updated_at < ? LIMIT 1");
                if self
                    .conn
                    .prepare_cached(&sql)?
                    .exists([sync_age.normal()])?
                {
                    return Ok(true);
                }
            }
        }
        if self.kind() == DbKind::Container
            && ContainerBroker(*self).has_reclaimable_shards(sync_age)?
        {
            return Ok(true);
        }
        Ok(self.metadata()?.reclaim(|time| timestamp(time) < age))
    }
}
