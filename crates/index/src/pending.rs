//! Pending file `<hash>.db.pending`: updates that are acknowledged and not yet merged.
//!
//! Swift's container and account servers append to it; the next program that opens the database
//! merges it and truncates it, under the folder's lock. So does this module: entries of Swift are
//! merged when a database is opened and, for a shared one, before every read and write. Containers
//! with many updates are logged by us too (`shared_log.rs`, `db/exclusive.rs`); unlike Swift we
//! sync the file before acknowledging. Invalid entries are logged and dropped, as in Swift.

mod entry;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod shared_log;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::broker::Broker;
use crate::config::IndexConfig;
use crate::container::batch;
use crate::container::epoch_of;
use crate::files::{self, is_missing};
use crate::held::{CommitLog, Held};
use crate::turns::Turns;
use crate::{AccountBroker, ContainerBroker, DbKind, IndexError, ObjectRow, Result};

pub(crate) use shared_log::SharedLog;

/// Maximum size of a pending file. Swift merges at 128 KiB; a far larger file is not its own.
const PENDING_BYTES_MAX: u64 = 64 << 20;
/// Timeout for another process that merges.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// The pending file of an open database as a log of rows.
pub(crate) trait RowLog: Sized {
    /// Opens the pending file, whose entries have been merged.
    fn open(db_file: &Path, config: &IndexConfig, held: &Arc<Held>) -> Result<Self>;
    fn is_empty(&self) -> bool;
    /// Time of the oldest entry.
    fn since(&self) -> Option<Instant>;
    /// Whether entries of this size fit. An entry too long for any log does not fit an empty one
    /// either.
    fn has_room(&self, bytes: usize) -> bool;
    /// Adds the rows of the entries just written.
    fn add_rows(&mut self, rows: Vec<ObjectRow>);
    /// The log that a sync of its entries must cover.
    fn to_sync(&self) -> CommitLog;
}

/// Log entries of these rows.
pub(crate) fn entries<'r>(rows: impl IntoIterator<Item = &'r ObjectRow>) -> String {
    let mut text = String::with_capacity(4096);
    for row in rows {
        entry::write_object_row(row, &mut text);
    }
    text
}

/// Merges pending entries of the shared database at `db_file`, and truncates the file. Called on
/// the write connection, outside a transaction. `ours` has the bytes that this process wrote there,
/// and their rows.
pub(crate) fn merge_pending(
    broker: Broker<'_>,
    db_file: &Path,
    turns: &Turns,
    ours: Option<(&[u8], &[ObjectRow])>,
) -> Result<()> {
    let path = pending_path(db_file);
    if !has_content(&path)? {
        return Ok(());
    }
    let _lock = files::lock_folder(db_file.parent().unwrap_or(db_file), LOCK_TIMEOUT)?;
    merge_file(broker, &path, Some(turns), ours)?;
    match OpenOptions::new().write(true).open(&path) {
        Err(error) if is_missing(&error) => Ok(()),
        file => file
            .and_then(|file| file.set_len(0))
            .map_err(|error| IndexError::io(&path, error)),
    }
}

/// As [`merge_pending`], while opening a database, and removes the file: after a failed write to
/// its folder its name may exist in memory alone, where no later sync would write it. The next
/// entry creates a new file. `sync` makes merged rows durable in the database, if the commit did
/// not.
pub(crate) fn merge_left(
    broker: Broker<'_>,
    db_file: &Path,
    sync: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let path = pending_path(db_file);
    if !path.exists() {
        return Ok(());
    }
    let _lock = files::lock_folder(db_file.parent().unwrap_or(db_file), LOCK_TIMEOUT)?;
    if merge_file(broker, &path, None, None)? {
        sync()?;
    }
    if fs::metadata(&path).is_ok_and(|meta| meta.len() > PENDING_BYTES_MAX) {
        return Ok(());
    }
    match fs::remove_file(&path) {
        Err(error) if !is_missing(&error) => Err(IndexError::io(&path, error)),
        _ => Ok(()),
    }
}

/// Merges the entries of the pending file, which stay there. False if there are none. The caller
/// has the folder's lock.
fn merge_file(
    broker: Broker<'_>,
    path: &Path,
    turns: Option<&Turns>,
    ours: Option<(&[u8], &[ObjectRow])>,
) -> Result<bool> {
    if !has_content(path)? {
        return Ok(false);
    }
    let text = fs::read(path).map_err(|error| IndexError::io(path, error))?;
    in_transaction(broker, turns, || match ours {
        Some((written, rows)) if written == text => merge_object_rows(broker, rows.to_vec()),
        _ => merge_all(broker, &text, path),
    })?;
    Ok(true)
}

/// Merges rows as [`merge_pending`] would.
pub(crate) fn merge_rows(broker: Broker<'_>, rows: Vec<ObjectRow>) -> Result<()> {
    in_transaction(broker, None, || merge_object_rows(broker, rows))
}

fn in_transaction(
    broker: Broker<'_>,
    turns: Option<&Turns>,
    merge: impl FnOnce() -> Result<()>,
) -> Result<()> {
    broker.conn.execute_batch("BEGIN IMMEDIATE")?;
    let commit = || -> Result<()> { Ok(broker.conn.execute_batch("COMMIT")?) };
    let merged = merge().and_then(|()| match turns {
        Some(turns) => turns.commit(commit),
        None => commit(),
    });
    if merged.is_err() && !broker.conn.is_autocommit() {
        broker.conn.execute_batch("ROLLBACK")?;
    }
    merged
}

fn merge_object_rows(broker: Broker<'_>, rows: Vec<ObjectRow>) -> Result<()> {
    if broker.schema.known_triggers {
        batch::set_triggers(broker.conn, false)?;
        return batch::merge(broker, rows);
    }
    batch::set_triggers(broker.conn, true)?;
    ContainerBroker(broker).merge_items(rows)
}

/// Whether the pending file has content.
pub(crate) fn is_pending(db_file: &Path) -> Result<bool> {
    has_content(&pending_path(db_file))
}

/// Path of the pending file, shared by all of a database's files: its name has no epoch.
fn pending_path(db_file: &Path) -> PathBuf {
    let mut path = match epoch_of(db_file) {
        None => db_file.as_os_str().to_owned(),
        Some(epoch) => {
            let name = db_file.file_name().unwrap_or_default().to_string_lossy();
            let name = name.replace(&format!("_{epoch}"), "");
            db_file.with_file_name(name).into_os_string()
        }
    };
    path.push(".pending");
    path.into()
}

/// Opens the pending file of a database; creates it if necessary.
pub(crate) fn open_file(db_file: &Path) -> Result<(PathBuf, File)> {
    let path = pending_path(db_file);
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(files::PRIVATE_FILE_MODE)
        .open(&path);
    let file = opened.map_err(|error| IndexError::io(&path, error))?;
    Ok((path, file))
}

fn has_content(path: &Path) -> Result<bool> {
    match fs::metadata(path) {
        Ok(meta) if meta.len() > PENDING_BYTES_MAX => {
            tracing::error!(path = %path.display(), "pending file too large, left alone");
            Ok(false)
        }
        Ok(meta) => Ok(meta.len() > 0),
        Err(error) if is_missing(&error) => Ok(false),
        Err(error) => Err(IndexError::io(path, error)),
    }
}

fn merge_all(broker: Broker<'_>, text: &[u8], path: &Path) -> Result<()> {
    let readable = |is_some: bool| {
        if !is_some {
            tracing::error!(path = %path.display(), "invalid pending entry dropped");
        }
    };
    match broker.kind() {
        DbKind::Container => {
            let rows = entry::tuples(text).map(|tuple| entry::object_row(&tuple?));
            let rows = rows.inspect(|row| readable(row.is_some()));
            merge_object_rows(broker, rows.flatten().collect())
        }
        DbKind::Account => {
            let rows = entry::tuples(text).map(|tuple| entry::container_row(&tuple?));
            let rows = rows.inspect(|row| readable(row.is_some()));
            AccountBroker(broker).merge_items(rows.flatten().collect())
        }
    }
}
