//! State of replication: rows since a ROWID, and sync points of replicas.

use rusqlite::{OptionalExtension, Row, params};

use crate::broker::Broker;
use crate::{AccountBroker, ContainerBroker, Result};

/// A row of a container database, as sent between replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRecord {
    pub rowid: i64,
    pub name: String,
    /// The encoded data, content-type and metadata times.
    pub created_at: String,
    pub size: i64,
    pub content_type: String,
    pub etag: String,
    pub deleted: bool,
    pub storage_policy_index: i64,
}

/// A row of an account database, as sent between replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRecord {
    pub rowid: i64,
    pub name: String,
    pub put_timestamp: String,
    pub delete_timestamp: String,
    pub object_count: i64,
    pub bytes_used: i64,
    pub deleted: bool,
    pub storage_policy_index: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncPoint {
    pub remote_id: String,
    pub sync_point: i64,
}

impl Broker<'_> {
    /// Sync point of a replica by its id, or -1.
    ///
    /// # Errors
    /// As every query: see [`Broker`].
    pub fn sync_point(&self, remote_id: &str, incoming: bool) -> Result<i64> {
        let sql = format!(
            "SELECT sync_point FROM {} WHERE remote_id = ?",
            table(incoming)
        );
        let point = self
            .conn
            .prepare_cached(&sql)?
            .query_row([remote_id], |row| row.get(0))
            .optional()?;
        Ok(point.unwrap_or(-1))
    }

    /// Sync points of all known replicas.
    ///
    /// # Errors
    /// As every query: see [`Broker`].
    pub fn sync_points(&self, incoming: bool) -> Result<Vec<SyncPoint>> {
        let sql = format!("SELECT remote_id, sync_point FROM {}", table(incoming));
        let mut query = self.conn.prepare_cached(&sql)?;
        let rows = query.query_map([], |row| {
            Ok(SyncPoint {
                remote_id: row.get(0)?,
                sync_point: row.get(1)?,
            })
        })?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// Raises sync points; never lowers them.
    ///
    /// # Errors
    /// As every query: see [`Broker`].
    pub fn merge_syncs(&self, points: &[SyncPoint], incoming: bool) -> Result<()> {
        let table = table(incoming);
        let update =
            format!("UPDATE {table} SET sync_point = max(?1, sync_point) WHERE remote_id = ?2");
        let insert = format!("INSERT INTO {table} (sync_point, remote_id) VALUES (?1, ?2)");
        for point in points {
            let row = params![point.sync_point, point.remote_id];
            if self.conn.prepare_cached(&update)?.execute(row)? == 0 {
                self.conn.prepare_cached(&insert)?.execute(row)?;
            }
        }
        Ok(())
    }

    /// Id of the database file: a replacement has another.
    ///
    /// # Errors
    /// As every query: see [`Broker`]. A missing stat row is `Sqlite`, too.
    pub fn id(&self) -> Result<String> {
        let sql = self.sql("SELECT id FROM {stat}");
        let id = self
            .conn
            .prepare_cached(&sql)?
            .query_row([], |row| row.get::<_, Option<String>>(0))?;
        Ok(id.unwrap_or_default())
    }

    /// Highest ROWID ever assigned, or -1.
    ///
    /// # Errors
    /// As every query: see [`Broker`].
    pub fn max_row(&self) -> Result<i64> {
        let row = self
            .conn
            .prepare_cached("SELECT seq FROM sqlite_sequence WHERE name = ? LIMIT 1")?
            .query_row([self.kind().contains()], |row| row.get(0))
            .optional()?;
        Ok(row.unwrap_or(-1))
    }

    /// Gives a copied database a new id, and a sync point that covers all rows of `remote_id`.
    pub(crate) fn newid_common(&self, remote_id: &str) -> Result<()> {
        let id = self.config.new_db_id(&self.key.device);
        self.execute("UPDATE {stat} SET id = ?", [id])?;
        let last = self
            .conn
            .prepare(&self.sql("SELECT ROWID FROM {contains} ORDER BY ROWID DESC LIMIT 1"))?
            .query_row([], |row| row.get::<_, i64>(0))
            .optional()?;
        self.conn.execute(
            "INSERT OR REPLACE INTO incoming_sync (sync_point, remote_id) VALUES (?, ?)",
            params![last.unwrap_or(-1), remote_id],
        )?;
        Ok(())
    }

    fn rows_since<T>(
        &self,
        columns: &str,
        start: i64,
        count: usize,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>> {
        let sql = self.sql(&format!(
            "SELECT {columns} FROM {{contains}} WHERE ROWID > ? ORDER BY ROWID LIMIT ?"
        ));
        let mut query = self.conn.prepare_cached(&sql)?;
        let rows = query.query_map(params![start, count as i64], read)?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }
}

fn table(incoming: bool) -> &'static str {
    if incoming {
        "incoming_sync"
    } else {
        "outgoing_sync"
    }
}

const OBJECT_COLUMNS: &str =
    "ROWID, name, created_at, size, content_type, etag, deleted, storage_policy_index";

fn object_record(row: &Row<'_>) -> rusqlite::Result<ObjectRecord> {
    Ok(ObjectRecord {
        rowid: row.get(0)?,
        name: row.get(1)?,
        created_at: row.get(2)?,
        size: row.get::<_, Option<i64>>(3)?.unwrap_or(0),
        content_type: row.get::<_, Option<String>>(4)?.unwrap_or_default(),
        etag: row.get::<_, Option<String>>(5)?.unwrap_or_default(),
        deleted: row.get(6)?,
        storage_policy_index: row.get::<_, Option<i64>>(7)?.unwrap_or(0),
    })
}

impl ContainerBroker<'_> {
    /// Rows including tombstones, by ROWID.
    ///
    /// # Errors
    /// As every query: see [`Broker`](crate::Broker).
    pub fn items_since(&self, start: i64, count: usize) -> Result<Vec<ObjectRecord>> {
        self.rows_since(OBJECT_COLUMNS, start, count, object_record)
    }

    /// Rows of other policies than the container's, which the reconciler moves.
    ///
    /// # Errors
    /// As every query: see [`Broker`](crate::Broker).
    pub fn misplaced_since(&self, start: i64, count: usize) -> Result<Vec<ObjectRecord>> {
        let sql = format!(
            "SELECT {OBJECT_COLUMNS} FROM object WHERE ROWID > ? AND storage_policy_index !=
             (SELECT storage_policy_index FROM container_info LIMIT 1) ORDER BY ROWID LIMIT ?"
        );
        let mut query = self.conn.prepare_cached(&sql)?;
        let rows = query.query_map(params![start, count as i64], object_record)?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// ROWID up to which misplaced rows are queued for the reconciler, or -1.
    ///
    /// # Errors
    /// As every query: see [`Broker`]. A missing stat row is `Sqlite`, too.
    pub fn reconciler_sync_point(&self) -> Result<i64> {
        let sql = "SELECT reconciler_sync_point FROM container_info";
        Ok(self.conn.query_row(sql, [], |row| row.get(0))?)
    }

    /// Stores the ROWID up to which misplaced rows are queued for the reconciler.
    ///
    /// # Errors
    /// As every query: see [`Broker`].
    pub fn set_reconciler_sync_point(&self, point: i64) -> Result<()> {
        self.conn.execute(
            "UPDATE container_info SET reconciler_sync_point = ?",
            [point],
        )?;
        Ok(())
    }

    /// Gives a copy a new id, and resets its reported totals: those were reported for the original.
    ///
    /// # Errors
    /// As every query: see [`Broker`].
    pub fn newid(&self, remote_id: &str) -> Result<()> {
        self.newid_common(remote_id)?;
        self.conn.execute(
            "UPDATE container_info SET reported_put_timestamp = 0, reported_delete_timestamp = 0,
             reported_object_count = 0, reported_bytes_used = 0",
            [],
        )?;
        Ok(())
    }
}

impl AccountBroker<'_> {
    /// Rows including tombstones, by ROWID.
    ///
    /// # Errors
    /// As every query: see [`Broker`].
    pub fn items_since(&self, start: i64, count: usize) -> Result<Vec<ContainerRecord>> {
        self.rows_since(
            "ROWID, name, put_timestamp, delete_timestamp, object_count, bytes_used, deleted,
             storage_policy_index",
            start,
            count,
            |row| {
                Ok(ContainerRecord {
                    rowid: row.get(0)?,
                    name: row.get(1)?,
                    put_timestamp: row.get::<_, Option<String>>(2)?.unwrap_or_default(),
                    delete_timestamp: row.get::<_, Option<String>>(3)?.unwrap_or_default(),
                    object_count: row.get::<_, Option<i64>>(4)?.unwrap_or(0),
                    bytes_used: row.get::<_, Option<i64>>(5)?.unwrap_or(0),
                    deleted: row.get(6)?,
                    storage_policy_index: row.get::<_, Option<i64>>(7)?.unwrap_or(0),
                })
            },
        )
    }

    /// Gives a copy a new id, and a sync point that covers all rows of `remote_id`.
    ///
    /// # Errors
    /// As every query: see [`Broker`].
    pub fn newid(&self, remote_id: &str) -> Result<()> {
        self.newid_common(remote_id)
    }
}
