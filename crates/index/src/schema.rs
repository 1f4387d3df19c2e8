//! Tables of a new database, equivalent to those of Swift's brokers: names, columns, defaults,
//! triggers and views, so that either side may write the other's files.
//!
//! Rows of `object` and `container` are never updated in place, only deleted and inserted again:
//! triggers keep the totals and the running hash exact, and every change gets a new ROWID, by which
//! replication proceeds.

use rusqlite::{Connection, params};

use crate::{DbKind, Result};

/// Properties that differ between open databases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Schema {
    /// Whether there is an index on (deleted, name).
    pub(crate) indexed: bool,
    /// Whether the file's name has an epoch: the container is, or was, a shard or sharded.
    pub(crate) has_epoch: bool,
    /// Whether object rows may be merged without triggers (`container/batch.rs`).
    pub(crate) known_triggers: bool,
}

/// Parameters of a database created by an update.
#[derive(Clone, Debug)]
pub enum NewDb {
    Account {
        account: String,
        /// Internal form.
        put_timestamp: String,
    },
    Container {
        account: String,
        container: String,
        put_timestamp: String,
        storage_policy_index: i64,
    },
}

impl NewDb {
    pub fn kind(&self) -> DbKind {
        match self {
            NewDb::Account { .. } => DbKind::Account,
            NewDb::Container { .. } => DbKind::Container,
        }
    }
}

/// Incoming and outgoing sync points of replicas.
const SYNC_TABLES: &str = "
CREATE TABLE outgoing_sync (
    remote_id TEXT UNIQUE, sync_point INTEGER, updated_at TEXT DEFAULT 0
);
CREATE TABLE incoming_sync (
    remote_id TEXT UNIQUE, sync_point INTEGER, updated_at TEXT DEFAULT 0
);
CREATE TRIGGER outgoing_sync_insert AFTER INSERT ON outgoing_sync BEGIN
    UPDATE outgoing_sync SET updated_at = STRFTIME('%s', 'NOW') WHERE ROWID = new.ROWID;
END;
CREATE TRIGGER outgoing_sync_update AFTER UPDATE ON outgoing_sync BEGIN
    UPDATE outgoing_sync SET updated_at = STRFTIME('%s', 'NOW') WHERE ROWID = new.ROWID;
END;
CREATE TRIGGER incoming_sync_insert AFTER INSERT ON incoming_sync BEGIN
    UPDATE incoming_sync SET updated_at = STRFTIME('%s', 'NOW') WHERE ROWID = new.ROWID;
END;
CREATE TRIGGER incoming_sync_update AFTER UPDATE ON incoming_sync BEGIN
    UPDATE incoming_sync SET updated_at = STRFTIME('%s', 'NOW') WHERE ROWID = new.ROWID;
END;";

const OBJECT_TABLE: &str = "
CREATE TABLE object (
    ROWID INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT, created_at TEXT, size INTEGER, content_type TEXT, etag TEXT,
    deleted INTEGER DEFAULT 0, storage_policy_index INTEGER DEFAULT 0
);
CREATE INDEX ix_object_deleted_name ON object (deleted, name);
CREATE TRIGGER object_update BEFORE UPDATE ON object BEGIN
    SELECT RAISE(FAIL, 'UPDATE not allowed; DELETE and INSERT');
END;";

pub(crate) const CONTAINER_POLICY_STAT: &str = "
CREATE TABLE policy_stat (
    storage_policy_index INTEGER PRIMARY KEY,
    object_count INTEGER DEFAULT 0, bytes_used INTEGER DEFAULT 0
);";

pub(crate) const OBJECT_TRIGGERS: &str = "
CREATE TRIGGER object_insert_policy_stat AFTER INSERT ON object BEGIN
    INSERT OR IGNORE INTO policy_stat (storage_policy_index, object_count, bytes_used)
        VALUES (new.storage_policy_index, 0, 0);
    UPDATE policy_stat
        SET object_count = object_count + (1 - new.deleted), bytes_used = bytes_used + new.size
        WHERE storage_policy_index = new.storage_policy_index;
    UPDATE container_info SET hash = chexor(hash, new.name, new.created_at);
END;
CREATE TRIGGER object_delete_policy_stat AFTER DELETE ON object BEGIN
    UPDATE policy_stat
        SET object_count = object_count - (1 - old.deleted), bytes_used = bytes_used - old.size
        WHERE storage_policy_index = old.storage_policy_index;
    UPDATE container_info SET hash = chexor(hash, old.name, old.created_at);
END;";

pub(crate) const CONTAINER_INFO: &str = "
CREATE TABLE container_info (
    account TEXT, container TEXT, created_at TEXT,
    put_timestamp TEXT DEFAULT '0', delete_timestamp TEXT DEFAULT '0',
    reported_put_timestamp TEXT DEFAULT '0', reported_delete_timestamp TEXT DEFAULT '0',
    reported_object_count INTEGER DEFAULT 0, reported_bytes_used INTEGER DEFAULT 0,
    hash TEXT default '00000000000000000000000000000000', id TEXT,
    status TEXT DEFAULT '', status_changed_at TEXT DEFAULT '0', metadata TEXT DEFAULT '',
    x_container_sync_point1 INTEGER DEFAULT -1, x_container_sync_point2 INTEGER DEFAULT -1,
    storage_policy_index INTEGER DEFAULT 0, reconciler_sync_point INTEGER DEFAULT -1
);";

/// The stat table from before storage policies, as a view that can be updated.
pub(crate) const CONTAINER_STAT_VIEW: &str = "
CREATE VIEW container_stat AS SELECT
    ci.account, ci.container, ci.created_at, ci.put_timestamp, ci.delete_timestamp,
    ci.reported_put_timestamp, ci.reported_delete_timestamp, ci.reported_object_count,
    ci.reported_bytes_used, ci.hash, ci.id, ci.status, ci.status_changed_at, ci.metadata,
    ci.x_container_sync_point1, ci.x_container_sync_point2, ci.reconciler_sync_point,
    ci.storage_policy_index,
    coalesce(ps.object_count, 0) AS object_count, coalesce(ps.bytes_used, 0) AS bytes_used
FROM container_info ci LEFT JOIN policy_stat ps
ON ci.storage_policy_index = ps.storage_policy_index;
CREATE TRIGGER container_stat_update INSTEAD OF UPDATE ON container_stat BEGIN
    UPDATE container_info SET
        account = NEW.account, container = NEW.container, created_at = NEW.created_at,
        put_timestamp = NEW.put_timestamp, delete_timestamp = NEW.delete_timestamp,
        reported_put_timestamp = NEW.reported_put_timestamp,
        reported_delete_timestamp = NEW.reported_delete_timestamp,
        reported_object_count = NEW.reported_object_count,
        reported_bytes_used = NEW.reported_bytes_used, hash = NEW.hash, id = NEW.id,
        status = NEW.status, status_changed_at = NEW.status_changed_at, metadata = NEW.metadata,
        x_container_sync_point1 = NEW.x_container_sync_point1,
        x_container_sync_point2 = NEW.x_container_sync_point2,
        storage_policy_index = NEW.storage_policy_index,
        reconciler_sync_point = NEW.reconciler_sync_point;
END;";

pub(crate) const SHARD_RANGE_TABLE: &str = "
CREATE TABLE shard_range (
    ROWID INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT, timestamp TEXT, lower TEXT, upper TEXT,
    object_count INTEGER DEFAULT 0, bytes_used INTEGER DEFAULT 0, meta_timestamp TEXT,
    deleted INTEGER DEFAULT 0, state INTEGER, state_timestamp TEXT, epoch TEXT,
    reported INTEGER DEFAULT 0, tombstones INTEGER DEFAULT -1
);
CREATE TRIGGER shard_range_update BEFORE UPDATE ON shard_range BEGIN
    SELECT RAISE(FAIL, 'UPDATE not allowed; DELETE and INSERT');
END;";

const CONTAINER_TABLE: &str = "
CREATE TABLE container (
    ROWID INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT, put_timestamp TEXT, delete_timestamp TEXT,
    object_count INTEGER, bytes_used INTEGER,
    deleted INTEGER DEFAULT 0, storage_policy_index INTEGER DEFAULT 0
);
CREATE INDEX ix_container_deleted_name ON container (deleted, name);
CREATE TRIGGER container_insert AFTER INSERT ON container BEGIN
    UPDATE account_stat SET
        container_count = container_count + (1 - new.deleted),
        object_count = object_count + new.object_count,
        bytes_used = bytes_used + new.bytes_used,
        hash = chexor(hash, new.name, new.put_timestamp || '-' || new.delete_timestamp || '-' ||
                                      new.object_count || '-' || new.bytes_used);
END;
CREATE TRIGGER container_update BEFORE UPDATE ON container BEGIN
    SELECT RAISE(FAIL, 'UPDATE not allowed; DELETE and INSERT');
END;
CREATE TRIGGER container_delete AFTER DELETE ON container BEGIN
    UPDATE account_stat SET
        container_count = container_count - (1 - old.deleted),
        object_count = object_count - old.object_count,
        bytes_used = bytes_used - old.bytes_used,
        hash = chexor(hash, old.name, old.put_timestamp || '-' || old.delete_timestamp || '-' ||
                                      old.object_count || '-' || old.bytes_used);
END;";

pub(crate) const CONTAINER_TRIGGERS: &str = "
CREATE TRIGGER container_insert_ps AFTER INSERT ON container BEGIN
    INSERT OR IGNORE INTO policy_stat
        (storage_policy_index, container_count, object_count, bytes_used)
        VALUES (new.storage_policy_index, 0, 0, 0);
    UPDATE policy_stat SET
        container_count = container_count + (1 - new.deleted),
        object_count = object_count + new.object_count,
        bytes_used = bytes_used + new.bytes_used
        WHERE storage_policy_index = new.storage_policy_index;
END;
CREATE TRIGGER container_delete_ps AFTER DELETE ON container BEGIN
    UPDATE policy_stat SET
        container_count = container_count - (1 - old.deleted),
        object_count = object_count - old.object_count,
        bytes_used = bytes_used - old.bytes_used
        WHERE storage_policy_index = old.storage_policy_index;
END;";

const ACCOUNT_STAT: &str = "
CREATE TABLE account_stat (
    account TEXT, created_at TEXT,
    put_timestamp TEXT DEFAULT '0', delete_timestamp TEXT DEFAULT '0',
    container_count INTEGER, object_count INTEGER DEFAULT 0, bytes_used INTEGER DEFAULT 0,
    hash TEXT default '00000000000000000000000000000000', id TEXT,
    status TEXT DEFAULT '', status_changed_at TEXT DEFAULT '0', metadata TEXT DEFAULT ''
);";

/// Totals from before storage policies belong to policy 0.
pub(crate) const ACCOUNT_POLICY_STAT: &str = "
CREATE TABLE policy_stat (
    storage_policy_index INTEGER PRIMARY KEY,
    container_count INTEGER DEFAULT 0,
    object_count INTEGER DEFAULT 0, bytes_used INTEGER DEFAULT 0
);
INSERT OR IGNORE INTO policy_stat
    (storage_policy_index, container_count, object_count, bytes_used)
    SELECT 0, container_count, object_count, bytes_used FROM account_stat
    WHERE container_count > 0;";

/// Creates the tables in an empty file. `created_at` is the current time, `id` the database's id.
pub(crate) fn create(conn: &Connection, new: &NewDb, created_at: &str, id: &str) -> Result<()> {
    conn.execute_batch("BEGIN")?;
    conn.execute_batch(SYNC_TABLES)?;
    match new {
        NewDb::Account {
            account,
            put_timestamp,
        } => {
            for part in [CONTAINER_TABLE, CONTAINER_TRIGGERS, ACCOUNT_STAT] {
                conn.execute_batch(part)?;
            }
            conn.execute(
                "INSERT INTO account_stat
                 (container_count, account, created_at, id, put_timestamp, status_changed_at)
                 VALUES (0, ?1, ?2, ?3, ?4, ?4)",
                params![account, created_at, id, put_timestamp],
            )?;
            conn.execute_batch(ACCOUNT_POLICY_STAT)?;
        }
        NewDb::Container {
            account,
            container,
            put_timestamp,
            storage_policy_index,
        } => {
            for part in [OBJECT_TABLE, OBJECT_TRIGGERS, CONTAINER_POLICY_STAT] {
                conn.execute_batch(part)?;
            }
            conn.execute(
                "INSERT INTO policy_stat (storage_policy_index) VALUES (?)",
                [storage_policy_index],
            )?;
            for part in [CONTAINER_INFO, CONTAINER_STAT_VIEW, SHARD_RANGE_TABLE] {
                conn.execute_batch(part)?;
            }
            conn.execute(
                "INSERT INTO container_info (account, container, created_at, id, put_timestamp,
                     status_changed_at, storage_policy_index) VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?6)",
                params![
                    account,
                    container,
                    created_at,
                    id,
                    put_timestamp,
                    storage_policy_index
                ],
            )?;
        }
    }
    conn.execute_batch("COMMIT")?;
    Ok(())
}

pub(crate) fn exists(conn: &Connection, kind: &str, name: &str) -> Result<bool> {
    let mut query = conn.prepare("SELECT 1 FROM sqlite_master WHERE type = ? AND name = ?")?;
    Ok(query.exists([kind, name])?)
}

pub(crate) fn has_column(conn: &Connection, table: &str, column: &str) -> Result<bool> {
    let mut query = conn.prepare("SELECT 1 FROM pragma_table_info(?) WHERE name = ?")?;
    Ok(query.exists([table, column])?)
}

/// Creates the table of shard ranges, or adds missing columns. Inside the caller's transaction.
pub(crate) fn shard_range_table(conn: &Connection) -> Result<()> {
    if !exists(conn, "table", "shard_range")? {
        conn.execute_batch(SHARD_RANGE_TABLE)?;
        return Ok(());
    }
    for (column, default) in [("reported", 0), ("tombstones", -1)] {
        if !has_column(conn, "shard_range", column)? {
            conn.execute_batch(&format!(
                "ALTER TABLE shard_range ADD COLUMN {column} INTEGER DEFAULT {default};"
            ))?;
        }
    }
    Ok(())
}
