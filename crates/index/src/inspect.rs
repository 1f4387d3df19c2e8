//! Read access to a database file without a pool, for tools that are given a path. Nothing is
//! written, so a database of an old release is not migrated.

use std::path::Path;

use cairn_types::ObjectHash;
use rusqlite::{Connection, OpenFlags};

use crate::config::IndexConfig;
use crate::migrate;
use crate::{Broker, ContainerBroker, DbKey, DbKind, IndexError, Result, ShardRange};

/// A replica's sync point, and when it was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncRow {
    pub remote_id: String,
    pub sync_point: i64,
    /// Seconds since 1970, as stored.
    pub updated_at: String,
}

/// Opens a database file and lends it to `f`.
///
/// # Errors
/// `DriveFailed` (on a full device `NoSpace`) if the file is missing or cannot be opened. `Sqlite`
/// if it is damaged or no database, or stays locked. Those of `f` are returned as they are.
pub fn read<T>(path: &Path, kind: DbKind, f: impl FnOnce(&Broker<'_>) -> Result<T>) -> Result<T> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let config = IndexConfig::new("");
    let conn = Connection::open_with_flags(path, flags)
        .map_err(|error| IndexError::from(error).at(path))?;
    conn.busy_timeout(config.lock_timeout)?;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let (hash, epoch) = stem.split_once('_').unwrap_or((&stem, ""));
    let hash = ObjectHash::from_hex(hash).unwrap_or(ObjectHash([0; 16]));
    let key = DbKey::new("", "0", kind, hash);
    // SQLite reads the file with the first query: that one says whether it is a database.
    let schema =
        migrate::as_found(&conn, kind, !epoch.is_empty()).map_err(|error| error.at(path))?;
    f(&Broker {
        conn: &conn,
        schema,
        config: &config,
        key: &key,
        created: false,
    })
}

/// Sync points of known replicas, for rows received (`incoming`) or sent.
///
/// # Errors
/// As every query: see [`Broker`]. `Sqlite` also for a database of an old release, whose table
/// lacks `updated_at`.
pub fn syncs(broker: &Broker<'_>, incoming: bool) -> Result<Vec<SyncRow>> {
    let table = if incoming {
        "incoming_sync"
    } else {
        "outgoing_sync"
    };
    let sql = format!("SELECT remote_id, sync_point, updated_at FROM {table}");
    let mut query = broker.conn.prepare(&sql)?;
    let rows = query.query_map([], |row| {
        let updated_at = row.get_ref(2)?;
        Ok(SyncRow {
            remote_id: row.get(0)?,
            sync_point: row.get(1)?,
            updated_at: match updated_at.as_str() {
                Ok(text) => text.to_owned(),
                Err(_) => updated_at.as_i64().unwrap_or(0).to_string(),
            },
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// Shard ranges except the container's own, in the order of names.
///
/// # Errors
/// Those of [`ContainerBroker::info`] and of the query of the ranges.
pub fn shard_ranges(broker: &ContainerBroker<'_>) -> Result<Vec<ShardRange>> {
    let info = broker.info()?;
    let own = format!("{}/{}", info.account, info.container);
    let mut ranges = broker.shard_ranges()?;
    ranges.retain(|range| range.deleted == 0 && range.name != own);
    // The last range has no upper bound.
    ranges.sort_by_key(|range| (range.upper.is_empty(), range.upper.clone(), range.state));
    Ok(ranges)
}
