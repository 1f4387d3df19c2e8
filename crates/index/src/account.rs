//! Account database: totals of the account, and rows of its containers.

use std::ops::Deref;

use rusqlite::types::Type;
use rusqlite::{OptionalExtension, Row, params};

use crate::Result;
use crate::broker::{Broker, timestamp};

/// An account database, lent to a closure.
pub struct AccountBroker<'c>(pub(crate) Broker<'c>);

impl<'c> Deref for AccountBroker<'c> {
    type Target = Broker<'c>;
    fn deref(&self) -> &Broker<'c> {
        &self.0
    }
}

/// Stored totals and state of an account. Times are the database's texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccountInfo {
    pub account: String,
    pub created_at: String,
    pub put_timestamp: String,
    pub delete_timestamp: String,
    pub status: String,
    pub status_changed_at: String,
    pub container_count: i64,
    pub object_count: i64,
    pub bytes_used: i64,
    pub hash: String,
    pub id: String,
}

impl AccountInfo {
    pub fn is_deleted(&self) -> bool {
        self.status == "DELETED"
            || (self.container_count == 0
                && timestamp(&self.delete_timestamp) > timestamp(&self.put_timestamp))
    }

    /// Whether the status is DELETED, even while containers remain.
    pub fn is_status_deleted(&self) -> bool {
        self.status == "DELETED" || self.delete_timestamp > self.put_timestamp
    }
}

/// Totals of one storage policy in an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerStats {
    pub storage_policy_index: i64,
    pub container_count: i64,
    pub object_count: i64,
    pub bytes_used: i64,
}

/// A container's row in its account. Times keep the sender's text, because the running hash covers
/// it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRow {
    pub name: String,
    pub put_timestamp: String,
    pub delete_timestamp: String,
    pub object_count: i64,
    pub bytes_used: i64,
    pub deleted: bool,
    pub storage_policy_index: i64,
}

impl ContainerRow {
    /// Whether the row is deleted and has no objects, so that listings leave it out.
    fn deleted(&self) -> bool {
        timestamp(&self.delete_timestamp) > timestamp(&self.put_timestamp) && self.object_count == 0
    }
}

const INFO: &str = "SELECT account, created_at, put_timestamp, delete_timestamp, status,
    status_changed_at, container_count, object_count, bytes_used, hash, id FROM account_stat";

impl<'c> AccountBroker<'c> {
    /// A view of an account's database.
    pub fn of(broker: &Broker<'c>) -> Self {
        AccountBroker(*broker)
    }
}

impl AccountBroker<'_> {
    /// Reads the stat row.
    ///
    /// # Errors
    /// `Corrupt` without a stat row; else as every query: see [`Broker`].
    pub fn info(&self) -> Result<AccountInfo> {
        let info = self.0.conn.prepare_cached(INFO)?.query_row([], |row| {
            Ok(AccountInfo {
                account: text(row, 0)?,
                created_at: text(row, 1)?,
                put_timestamp: text(row, 2)?,
                delete_timestamp: text(row, 3)?,
                status: text(row, 4)?,
                status_changed_at: text(row, 5)?,
                container_count: number(row, 6)?,
                object_count: number(row, 7)?,
                bytes_used: number(row, 8)?,
                hash: text(row, 9)?,
                id: text(row, 10)?,
            })
        });
        info.optional()?.ok_or_else(|| self.missing_row())
    }

    /// Whether the account is deleted: see [`AccountInfo::is_deleted`].
    ///
    /// # Errors
    /// Those of [`AccountBroker::info`].
    pub fn is_deleted(&self) -> Result<bool> {
        Ok(self.info()?.is_deleted())
    }

    /// Whether the account has no containers.
    ///
    /// # Errors
    /// Those of [`AccountBroker::info`].
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.info()?.container_count == 0)
    }

    /// Totals of each storage policy.
    ///
    /// # Errors
    /// As every query: see [`Broker`].
    pub fn policy_stats(&self) -> Result<Vec<ContainerStats>> {
        let mut query = self.0.conn.prepare_cached(
            "SELECT storage_policy_index, container_count, object_count, bytes_used
             FROM policy_stat",
        )?;
        let rows = query.query_map([], |row| {
            Ok(ContainerStats {
                storage_policy_index: row.get(0)?,
                container_count: number(row, 1)?,
                object_count: number(row, 2)?,
                bytes_used: number(row, 3)?,
            })
        })?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// Merges another replica's creation, put and delete times.
    ///
    /// # Errors
    /// Those of [`AccountBroker::info`], and of the update.
    pub fn merge_timestamps(&self, created: &str, put: &str, delete: &str) -> Result<()> {
        self.merge_timestamps_with([created, put, delete], || self.is_deleted())
    }

    /// Merges rows: each container keeps its latest put and delete times and the counts reported
    /// last.
    ///
    /// # Errors
    /// As every query: see [`Broker`]. `Sqlite` also for a stored hash that is not hexadecimal.
    pub fn merge_items(&self, rows: Vec<ContainerRow>) -> Result<()> {
        for row in rows {
            self.merge_item(row)?;
        }
        Ok(())
    }

    fn merge_item(&self, mut row: ContainerRow) -> Result<()> {
        let which = if self.0.schema.indexed {
            "FROM container WHERE name = ? AND deleted IN (0, 1)"
        } else {
            "FROM container WHERE name = ? AND +deleted IN (0, 1)"
        };
        let old = self
            .0
            .conn
            .prepare_cached(&format!("SELECT put_timestamp, delete_timestamp {which}"))?
            .query_row([&row.name], |row| Ok((text(row, 0)?, text(row, 1)?)))
            .optional()?;
        match old {
            Some((put, delete)) => {
                if timestamp(&put) > timestamp(&row.put_timestamp) {
                    row.put_timestamp = put;
                }
                if timestamp(&delete) > timestamp(&row.delete_timestamp) {
                    row.delete_timestamp = delete;
                }
                row.deleted = row.deleted();
                self.0
                    .conn
                    .prepare_cached(&format!("DELETE {which}"))?
                    .execute([&row.name])?;
            }
            None => row.deleted |= row.deleted(),
        }
        self.0
            .conn
            .prepare_cached(
                "INSERT INTO container (name, put_timestamp, delete_timestamp, object_count,
                     bytes_used, deleted, storage_policy_index) VALUES (?, ?, ?, ?, ?, ?, ?)",
            )?
            .execute(params![
                row.name,
                row.put_timestamp,
                row.delete_timestamp,
                row.object_count,
                row.bytes_used,
                row.deleted,
                row.storage_policy_index
            ])?;
        Ok(())
    }
}

fn text(row: &Row<'_>, column: usize) -> rusqlite::Result<String> {
    Ok(row.get::<_, Option<String>>(column)?.unwrap_or_default())
}

/// A count; text or NULL, which some older writers left, is converted.
fn number(row: &Row<'_>, column: usize) -> rusqlite::Result<i64> {
    match row.get_ref(column)?.data_type() {
        Type::Integer => row.get(column),
        Type::Text => Ok(row.get::<_, String>(column)?.trim().parse().unwrap_or(0)),
        Type::Real => Ok(row.get::<_, f64>(column)? as i64),
        Type::Null | Type::Blob => Ok(0),
    }
}
