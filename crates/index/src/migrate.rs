//! Migration of databases from older Swift releases, when they are opened.
//!
//! Swift migrates table by table when a statement fails; the result is the same. The exception is
//! the index `ix_…_deleted_name`: like Swift, databases without it are left so and queried without
//! it.

use rusqlite::Connection;

use crate::container::batch;
use crate::schema::{
    ACCOUNT_POLICY_STAT, CONTAINER_INFO, CONTAINER_POLICY_STAT, CONTAINER_STAT_VIEW,
    CONTAINER_TRIGGERS, OBJECT_TRIGGERS, Schema, exists, has_column,
};
use crate::{DbKind, Result};

pub(crate) fn migrate(conn: &Connection, kind: DbKind, has_epoch: bool) -> Result<Schema> {
    match kind {
        DbKind::Container => migrate_container(conn)?,
        DbKind::Account => migrate_account(conn)?,
    }
    as_found(conn, kind, has_epoch)
}

/// Reads the schema without changes.
pub(crate) fn as_found(conn: &Connection, kind: DbKind, has_epoch: bool) -> Result<Schema> {
    let index = format!("ix_{}_deleted_name", kind.contains());
    Ok(Schema {
        indexed: exists(conn, "index", &index)?,
        has_epoch,
        known_triggers: kind == DbKind::Container && batch::known_triggers(conn)?,
    })
}

/// Runs `steps` in one transaction: a database is never seen half migrated.
fn in_transaction(conn: &Connection, steps: &str) -> Result<()> {
    let done = conn.execute_batch(&format!("BEGIN IMMEDIATE; {steps} COMMIT;"));
    if done.is_err() && !conn.is_autocommit() {
        conn.execute_batch("ROLLBACK")?;
    }
    Ok(done?)
}

/// Replaces the table `container_stat`, counted by triggers, by `container_info`, `policy_stat` and
/// a view.
fn migrate_container(conn: &Connection) -> Result<()> {
    if !exists(conn, "table", "container_stat")? {
        return Ok(());
    }
    let mut steps = String::new();
    for (column, definition) in [
        ("metadata", "TEXT DEFAULT ''"),
        ("x_container_sync_point1", "INTEGER DEFAULT -1"),
        ("x_container_sync_point2", "INTEGER DEFAULT -1"),
    ] {
        if !has_column(conn, "container_stat", column)? {
            steps += &format!("ALTER TABLE container_stat ADD COLUMN {column} {definition};");
        }
    }
    steps += CONTAINER_POLICY_STAT;
    steps += "INSERT INTO policy_stat (storage_policy_index, object_count, bytes_used)
                  SELECT 0, object_count, bytes_used FROM container_stat;
              DROP TRIGGER IF EXISTS object_insert;
              DROP TRIGGER IF EXISTS object_delete;";
    if !has_column(conn, "object", "storage_policy_index")? {
        steps += "ALTER TABLE object ADD COLUMN storage_policy_index INTEGER DEFAULT 0;";
    }
    steps += OBJECT_TRIGGERS;
    steps += CONTAINER_INFO;
    // Swift's migration drops the reported delete time; the updater then reports again.
    const KEPT: &str = "account, container, created_at, put_timestamp, delete_timestamp,
        reported_put_timestamp, reported_object_count, reported_bytes_used, hash, id, status,
        status_changed_at, metadata, x_container_sync_point1, x_container_sync_point2";
    steps += &format!("INSERT INTO container_info ({KEPT}) SELECT {KEPT} FROM container_stat;");
    steps += "DROP TABLE container_stat;";
    steps += CONTAINER_STAT_VIEW;
    in_transaction(conn, &steps)
}

fn migrate_account(conn: &Connection) -> Result<()> {
    let mut steps = String::new();
    if !has_column(conn, "account_stat", "metadata")? {
        steps += "ALTER TABLE account_stat ADD COLUMN metadata TEXT DEFAULT '';";
    }
    let has_policy_stat = exists(conn, "table", "policy_stat")?;
    if !has_policy_stat {
        steps += ACCOUNT_POLICY_STAT;
    }
    if !has_column(conn, "container", "storage_policy_index")? {
        steps += "ALTER TABLE container ADD COLUMN storage_policy_index INTEGER DEFAULT 0;";
    }
    let counts_containers = !has_policy_stat || has_column(conn, "policy_stat", "container_count")?;
    if !counts_containers {
        steps += "ALTER TABLE policy_stat ADD COLUMN container_count INTEGER DEFAULT 0;
                  UPDATE policy_stat SET container_count = (
                      SELECT count(*) FROM container WHERE deleted = 0
                      AND container.storage_policy_index = policy_stat.storage_policy_index);";
    }
    if !counts_containers || !exists(conn, "trigger", "container_insert_ps")? {
        steps += "DROP TRIGGER IF EXISTS container_insert_ps;
                  DROP TRIGGER IF EXISTS container_delete_ps;";
        steps += CONTAINER_TRIGGERS;
    }
    if steps.is_empty() {
        return Ok(());
    }
    in_transaction(conn, &steps)
}
