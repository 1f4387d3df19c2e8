//! Container database: its stat row, and its storage policy.

pub(crate) mod batch;
mod merge;
mod shard_ranges;
mod shards;

use std::ops::Deref;

use rusqlite::{OptionalExtension, params};

use crate::Result;
use crate::broker::{Broker, timestamp};

pub use merge::ObjectRow;
pub use shard_ranges::ShardRange;
pub(crate) use shards::epoch_of;
pub use shards::{Cut, DbState, FoundRange, RangeQuery, RowsQuery};

/// Rows from which it pays that SQLite prepares its statements again.
const BATCH_ROWS_MIN: usize = 16;

/// A container database, lent to a closure.
///
/// Queries fail as those of [`Broker`]. In a file with an epoch some also look for the retiring
/// file: `Io` or `DriveFailed` if the folder cannot be read.
pub struct ContainerBroker<'c>(pub(crate) Broker<'c>);

impl<'c> Deref for ContainerBroker<'c> {
    type Target = Broker<'c>;
    fn deref(&self) -> &Broker<'c> {
        &self.0
    }
}

/// Stored totals and state of a container. Times are the database's texts: the hash covers them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerInfo {
    pub account: String,
    pub container: String,
    pub created_at: String,
    pub put_timestamp: String,
    pub delete_timestamp: String,
    pub status: String,
    pub status_changed_at: String,
    pub object_count: i64,
    pub bytes_used: i64,
    pub reported_put_timestamp: String,
    pub reported_delete_timestamp: String,
    pub reported_object_count: i64,
    pub reported_bytes_used: i64,
    pub hash: String,
    pub id: String,
    pub x_container_sync_point1: i64,
    pub x_container_sync_point2: i64,
    pub storage_policy_index: i64,
    /// Name of its [`DbState`].
    pub db_state: &'static str,
}

impl ContainerInfo {
    /// Whether the delete time is later than the put time and no objects are left.
    pub fn is_deleted(&self) -> bool {
        self.object_count == 0 && timestamp(&self.delete_timestamp) > timestamp(&self.put_timestamp)
    }
}

/// Totals of one storage policy in a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyStats {
    pub storage_policy_index: i64,
    pub object_count: i64,
    pub bytes_used: i64,
}

const INFO: &str = "SELECT account, container, created_at, put_timestamp, delete_timestamp,
    status, status_changed_at, object_count, bytes_used, reported_put_timestamp,
    reported_delete_timestamp, reported_object_count, reported_bytes_used, hash, id,
    x_container_sync_point1, x_container_sync_point2, storage_policy_index FROM container_stat";

impl<'c> ContainerBroker<'c> {
    /// A view of a container's database.
    pub fn of(broker: &Broker<'c>) -> Self {
        ContainerBroker(*broker)
    }
}

impl ContainerBroker<'_> {
    /// Reads the stat row; the totals may be those of the retiring file or of the shards.
    ///
    /// # Errors
    /// `Corrupt` without a stat row, `MetadataText` if a sharded container's metadata is not
    /// readable; else as every query: see [`ContainerBroker`].
    pub fn info(&self) -> Result<ContainerInfo> {
        let text = |row: &rusqlite::Row<'_>, column: usize| {
            Ok::<_, rusqlite::Error>(row.get::<_, Option<String>>(column)?.unwrap_or_default())
        };
        let number = |row: &rusqlite::Row<'_>, column: usize| {
            Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(column)?.unwrap_or_default())
        };
        let info = self.0.conn.prepare_cached(INFO)?.query_row([], |row| {
            Ok(ContainerInfo {
                account: text(row, 0)?,
                container: text(row, 1)?,
                created_at: text(row, 2)?,
                put_timestamp: text(row, 3)?,
                delete_timestamp: text(row, 4)?,
                status: text(row, 5)?,
                status_changed_at: text(row, 6)?,
                object_count: number(row, 7)?,
                bytes_used: number(row, 8)?,
                reported_put_timestamp: text(row, 9)?,
                reported_delete_timestamp: text(row, 10)?,
                reported_object_count: number(row, 11)?,
                reported_bytes_used: number(row, 12)?,
                hash: text(row, 13)?,
                id: text(row, 14)?,
                x_container_sync_point1: number(row, 15)?,
                x_container_sync_point2: number(row, 16)?,
                storage_policy_index: number(row, 17)?,
                db_state: DbState::Unsharded.name(),
            })
        });
        let mut info = info.optional()?.ok_or_else(|| self.missing_row())?;
        if self.0.schema.has_epoch {
            self.add_shard_facts(&mut info)?;
        }
        Ok(info)
    }

    /// Whether the container is deleted: see [`ContainerInfo::is_deleted`].
    ///
    /// # Errors
    /// Those of [`ContainerBroker::info`].
    pub fn is_deleted(&self) -> Result<bool> {
        Ok(self.info()?.is_deleted())
    }

    /// Whether no policy and no shard has objects; stricter than `is_deleted`.
    ///
    /// # Errors
    /// `MetadataText` if the metadata of a container with shards is not readable; else as every
    /// query: see [`ContainerBroker`].
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.is_empty_itself()? && self.is_empty_beyond()?)
    }

    fn is_empty_itself(&self) -> Result<bool> {
        let most = self
            .0
            .conn
            .prepare_cached("SELECT max(object_count) FROM policy_stat")?
            .query_row([], |row| row.get::<_, Option<i64>>(0))?;
        Ok(most.unwrap_or(0) == 0)
    }

    /// Totals of each storage policy.
    ///
    /// # Errors
    /// As every query: see [`Broker`].
    pub fn policy_stats(&self) -> Result<Vec<PolicyStats>> {
        let mut query = self.0.conn.prepare_cached(
            "SELECT storage_policy_index, object_count, bytes_used FROM policy_stat",
        )?;
        let rows = query.query_map([], |row| {
            Ok(PolicyStats {
                storage_policy_index: row.get(0)?,
                object_count: row.get(1)?,
                bytes_used: row.get(2)?,
            })
        })?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// Changes the container's policy; objects of the old one stay until reconciled.
    ///
    /// # Errors
    /// As every query: see [`Broker`].
    pub fn set_storage_policy_index(&self, index: i64, internal: &str) -> Result<()> {
        self.execute(
            "INSERT OR IGNORE INTO policy_stat (storage_policy_index) VALUES (?)",
            [index],
        )?;
        self.execute(
            "UPDATE container_info SET storage_policy_index = ?1,
                 status_changed_at = MAX(?2, status_changed_at) WHERE storage_policy_index <> ?1",
            params![index, internal],
        )?;
        Ok(())
    }

    /// Stores the totals that were last reported to the account.
    ///
    /// # Errors
    /// As every query: see [`Broker`].
    pub fn reported(
        &self,
        put_timestamp: &str,
        delete_timestamp: &str,
        object_count: i64,
        bytes_used: i64,
    ) -> Result<()> {
        self.execute(
            "UPDATE container_info SET reported_put_timestamp = ?, reported_delete_timestamp = ?,
                 reported_object_count = ?, reported_bytes_used = ?",
            params![put_timestamp, delete_timestamp, object_count, bytes_used],
        )?;
        Ok(())
    }

    /// Sets the sync points of container sync; none leaves a point unchanged.
    ///
    /// # Errors
    /// As every query: see [`Broker`].
    pub fn set_x_container_sync_points(
        &self,
        point1: Option<i64>,
        point2: Option<i64>,
    ) -> Result<()> {
        self.execute(
            "UPDATE container_info SET
                 x_container_sync_point1 = coalesce(?, x_container_sync_point1),
                 x_container_sync_point2 = coalesce(?, x_container_sync_point2)",
            params![point1, point2],
        )?;
        Ok(())
    }

    /// Merges another replica's creation, put and delete times.
    ///
    /// # Errors
    /// Those of [`ContainerBroker::info`], and of the update.
    pub fn merge_timestamps(&self, created: &str, put: &str, delete: &str) -> Result<()> {
        self.merge_timestamps_with([created, put, delete], || self.is_deleted())
    }

    /// Whether a batch may be merged without triggers: the database's triggers are known ones.
    pub fn counts_in_batches(&self) -> bool {
        self.0.schema.known_triggers
    }

    /// Merges rows; the newest of each name wins.
    ///
    /// # Errors
    /// As every query: see [`Broker`]. `Sqlite` also for a stored hash that is not hexadecimal.
    pub fn merge_items(&self, rows: Vec<ObjectRow>) -> Result<()> {
        if self.0.schema.known_triggers && rows.len() >= BATCH_ROWS_MIN {
            batch::set_triggers(self.0.conn, false)?;
            let merged = batch::merge(self.0, rows);
            batch::set_triggers(self.0.conn, true)?;
            return merged;
        }
        for row in rows {
            self.merge_item(row)?;
        }
        Ok(())
    }
}
