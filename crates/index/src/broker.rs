//! Operations common to accounts and containers: the stat row, metadata, times, and reclaiming
//! after the reclaim age.
//!
//! A broker is lent to a closure that runs on one of the device's threads. When writing, the whole
//! closure is one transaction, committed when it returns `Ok`.

use cairn_types::Timestamp;
use cairn_types::plant::Plant;
use rusqlite::{Connection, OptionalExtension, params};

use crate::config::IndexConfig;
use crate::metadata::Metadata;
use crate::schema::Schema;
use crate::{DbKey, DbKind, IndexError, Result};

/// Tombstones examined by one step of a reclaim.
const RECLAIM_PAGE_ROWS: i64 = 10_000;

/// One database, through one connection.
///
/// A failed query is `Sqlite` here, as for a file that cannot be read or written, a missing table
/// or a column of another type. `read` and `write` of a handle make of it `Locked`, `NoSpace`,
/// `DriveFailed` or, after damage, `Quarantined`, if that was the cause.
#[derive(Clone, Copy)]
pub struct Broker<'c> {
    pub(crate) conn: &'c Connection,
    pub(crate) schema: Schema,
    pub(crate) config: &'c IndexConfig,
    pub(crate) key: &'c DbKey,
    pub(crate) created: bool,
}

/// Result of one reclaim step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reclaimed {
    pub removed: usize,
    /// Marker of the next step; none after the last.
    pub next_marker: Option<String>,
}

/// Parses a database's timestamp; an invalid one is time zero.
pub fn timestamp(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap_or(Timestamp::ZERO)
}

impl<'c> Broker<'c> {
    /// Whether this operation created the database.
    pub fn created(&self) -> bool {
        self.created
    }

    pub fn key(&self) -> &DbKey {
        self.key
    }

    pub(crate) fn kind(&self) -> DbKind {
        self.key.kind
    }

    /// Executes a statement after filling in the kind's `{stat}` and `{contains}`.
    pub(crate) fn execute(&self, sql: &str, params: impl rusqlite::Params) -> Result<usize> {
        Ok(self.conn.prepare_cached(&self.sql(sql))?.execute(params)?)
    }

    pub(crate) fn sql(&self, sql: &str) -> String {
        sql.replace("{stat}", self.kind().stat())
            .replace("{contains}", self.kind().contains())
    }

    pub(crate) fn missing_row(&self) -> IndexError {
        IndexError::corrupt(format!("missing row in {} table", self.kind().stat()))
    }

    /// Reads the metadata.
    ///
    /// # Errors
    /// `Corrupt` without a stat row, `MetadataText` if the column is not readable; else as every
    /// query: see [`Broker`].
    pub fn metadata(&self) -> Result<Metadata> {
        Metadata::parse(&self.raw_metadata()?)
    }

    /// The metadata column's text.
    ///
    /// # Errors
    /// `Corrupt` without a stat row; else as every query: see [`Broker`].
    pub fn raw_metadata(&self) -> Result<String> {
        let column = self
            .conn
            .prepare_cached(&self.sql("SELECT metadata FROM {stat}"))?
            .query_row([], |row| row.get::<_, Option<String>>(0))
            .optional()?;
        Ok(column
            .ok_or_else(|| self.missing_row())?
            .unwrap_or_default())
    }

    /// Sets values unless newer ones are stored; `("", timestamp)` removes. With `validate` the
    /// result must be within the limits.
    ///
    /// # Errors
    /// Those of [`Broker::metadata`]; with `validate` also `IndexError::Metadata` for a result that
    /// exceeds the limits or has a NUL.
    pub fn update_metadata<'m>(
        &self,
        updates: impl IntoIterator<Item = (&'m str, &'m str, &'m str)>,
        validate: bool,
    ) -> Result<()> {
        let mut metadata = self.metadata()?;
        let mut changed = false;
        for (name, value, timestamp) in updates {
            changed |= metadata.set(name, value, timestamp);
        }
        if !changed {
            return Ok(());
        }
        if validate {
            metadata.validate(self.config.metadata_limits)?;
        }
        self.execute("UPDATE {stat} SET metadata = ?", [metadata.to_column()])?;
        Ok(())
    }

    /// Raises the put time to `internal`; never lowers it.
    ///
    /// # Errors
    /// As every query: see [`Broker`].
    pub fn update_put_timestamp(&self, internal: &str) -> Result<()> {
        self.execute(
            "UPDATE {stat} SET put_timestamp = ?1 WHERE put_timestamp < ?1",
            [internal],
        )?;
        Ok(())
    }

    /// Raises the time of the last change of status; never lowers it.
    ///
    /// # Errors
    /// As every query: see [`Broker`].
    pub fn update_status_changed_at(&self, internal: &str) -> Result<()> {
        self.execute(
            "UPDATE {stat} SET status_changed_at = ?1 WHERE status_changed_at < ?1",
            [internal],
        )?;
        Ok(())
    }

    /// Marks the database as deleted and clears its metadata; rows are the caller's responsibility.
    ///
    /// # Errors
    /// Those of [`Broker::metadata`].
    pub fn delete_db(&self, internal: &str) -> Result<()> {
        let metadata = self.metadata()?;
        let names = metadata.iter().map(|(name, ..)| name);
        let cleared = names.filter(|name| !self.survives_deletion(name));
        self.update_metadata(cleared.map(|name| (name, "", internal)), false)?;
        self.execute(
            "UPDATE {stat} SET delete_timestamp = ?1, status = 'DELETED', status_changed_at = ?1
             WHERE delete_timestamp < ?1",
            [internal],
        )?;
        Ok(())
    }

    /// Whether a shard keeps this metadata when deleted: items that name its root.
    fn survives_deletion(&self, name: &str) -> bool {
        const KEPT: [&str; 3] = [
            "x-container-sysmeta-shard-quoted-root",
            "x-container-sysmeta-shard-root",
            "x-container-sysmeta-sharding",
        ];
        self.kind() == DbKind::Container && KEPT.contains(&name.to_lowercase().as_str())
    }

    /// Merges another replica's times: earliest creation, latest put and delete. The status time
    /// changes if `is_deleted` differs before and after.
    pub(crate) fn merge_timestamps_with(
        &self,
        times: [&str; 3],
        is_deleted: impl Fn() -> Result<bool>,
    ) -> Result<()> {
        let before = is_deleted()?;
        let merge = match Plant::TimesAsTheyCome.is_on() {
            true => "UPDATE {stat} SET created_at = ?1, put_timestamp = ?2, delete_timestamp = ?3",
            false => {
                "UPDATE {stat} SET created_at = MIN(?1, created_at),
                     put_timestamp = MAX(?2, put_timestamp),
                     delete_timestamp = MAX(?3, delete_timestamp)"
            }
        };
        self.execute(merge, times)?;
        if before != is_deleted()? {
            self.update_status_changed_at(&self.config.now().internal())?;
        }
        Ok(())
    }

    /// Removes one page of tombstones older than `age`, starting at `marker`.
    ///
    /// # Errors
    /// As every query: see [`Broker`].
    pub fn reclaim_tombstones(&self, age: Timestamp, marker: &str) -> Result<Reclaimed> {
        let column = match self.kind() {
            DbKind::Account => "delete_timestamp",
            DbKind::Container => "created_at",
        };
        let end = self
            .conn
            .prepare_cached(&self.sql(
                "SELECT name FROM {contains} WHERE deleted = 1 AND name >= ?
                 ORDER BY name LIMIT 1 OFFSET ?",
            ))?
            .query_row(params![marker, RECLAIM_PAGE_ROWS], |row| {
                row.get::<_, String>(0)
            })
            .optional()?;
        let delete =
            format!("DELETE FROM {{contains}} WHERE deleted = 1 AND name >= ?1 AND {column} < ?2");
        let age = age.internal();
        let removed = match &end {
            Some(end) => self.execute(&(delete + " AND name < ?3"), params![marker, age, end])?,
            None => self.execute(&delete, params![marker, age])?,
        };
        Ok(Reclaimed {
            removed,
            next_marker: end,
        })
    }

    /// Removes old sync points, shard ranges and metadata tombstones.
    ///
    /// # Errors
    /// Those of [`Broker::metadata`].
    pub fn reclaim_other(&self, age: Timestamp, sync_age: Timestamp) -> Result<()> {
        for table in ["outgoing_sync", "incoming_sync"] {
            if self.has_column(table, "updated_at")? {
                self.conn.execute(
                    &format!("DELETE FROM {table} WHERE updated_at < ?"),
                    [sync_age.normal()],
                )?;
            }
        }
        if self.kind() == DbKind::Container && self.has_column("shard_range", "name")? {
            self.conn.execute(
                "DELETE FROM shard_range WHERE deleted = 1 AND timestamp < ? AND name !=
                 (SELECT account || '/' || container FROM container_info LIMIT 1)",
                [sync_age.internal()],
            )?;
        }
        let mut metadata = self.metadata()?;
        if metadata.reclaim(|time| timestamp(time) < age) {
            self.execute("UPDATE {stat} SET metadata = ?", [metadata.to_column()])?;
        }
        Ok(())
    }

    pub(crate) fn has_column(&self, table: &str, column: &str) -> Result<bool> {
        let mut query = self
            .conn
            .prepare_cached("SELECT 1 FROM pragma_table_info(?) WHERE name = ?")?;
        Ok(query.exists([table, column])?)
    }
}
