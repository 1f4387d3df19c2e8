//! Swift's `<hash>.db.pending`: updates it has acknowledged and not yet merged.
//!
//! The file is entries, each a `:` and the base64 of a pickled tuple (protocol 2):
//! * container: `(name, created_at, size, content_type, etag, deleted[, policy index
//!   [, content-type time[, metadata time]]])`
//! * account: `(name, put_timestamp, delete_timestamp, object_count, bytes_used, deleted
//!   [, policy index])`
//!
//! We never write one. When a database is opened and there is one, its rows are merged and it is
//! cut to nothing, under Swift's own lock of the folder: a Swift server that has just stopped
//! loses no update. Of a shared database this is asked before every read and write, as Swift
//! does: what another process has acknowledged is seen here. Entries that make no sense are logged and dropped, as Swift does.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cairn_formats::pickle::{self, Value};

use crate::broker::Broker;
use crate::container::batch;
use crate::container::epoch_of;
use crate::files::{self, is_missing};
use crate::{AccountBroker, ContainerBroker, ContainerRow, DbKind, IndexError, ObjectRow, Result};

/// Swift merges at 128 KiB; what is far beyond is not its file.
const PENDING_BYTES_MAX: u64 = 64 << 20;

/// Merges what is pending for the database at `db_file`. Called on the connection that writes,
/// outside a transaction.
pub(crate) fn merge_pending(broker: Broker<'_>, db_file: &Path) -> Result<()> {
    let path = pending_path(db_file);
    if !has_content(&path)? {
        return Ok(());
    }
    let dir = db_file.parent().unwrap_or(db_file);
    let _lock = files::lock_folder(dir, Duration::from_secs(10))?;
    if !has_content(&path)? {
        return Ok(());
    }
    let text = fs::read(&path).map_err(|error| IndexError::io(&path, error))?;
    batch::set_triggers(broker.conn, true)?;
    broker.conn.execute_batch("BEGIN IMMEDIATE")?;
    let merged = merge_all(broker, &text, &path).and_then(|()| {
        broker.conn.execute_batch("COMMIT")?;
        Ok(())
    });
    if merged.is_err() && !broker.conn.is_autocommit() {
        broker.conn.execute_batch("ROLLBACK")?;
    }
    merged?;
    let file = OpenOptions::new().write(true).open(&path);
    file.and_then(|file| file.set_len(0))
        .map_err(|error| IndexError::io(&path, error))
}

/// Is there anything to merge?
pub(crate) fn is_pending(db_file: &Path) -> Result<bool> {
    has_content(&pending_path(db_file))
}

/// There is one for all files of a database, named without an epoch.
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
    let kind = broker.kind();
    for entry in text.split(|byte| *byte == b':').filter(|e| !e.is_empty()) {
        let tuple = STANDARD
            .decode(entry)
            .ok()
            .and_then(|bytes| pickle::loads(&bytes).ok());
        let fields = tuple.as_ref().and_then(Value::items);
        let merged = match kind {
            DbKind::Container => fields
                .and_then(object_row)
                .map(|row| ContainerBroker(broker).merge_items(vec![row])),
            DbKind::Account => fields
                .and_then(container_row)
                .map(|row| AccountBroker(broker).merge_items(vec![row])),
        };
        match merged {
            Some(result) => result?,
            None => tracing::error!(path = %path.display(), "invalid pending entry dropped"),
        }
    }
    Ok(())
}

fn object_row(fields: &[Value]) -> Option<ObjectRow> {
    let (data, ctype, meta) = ObjectRow::times(
        fields.get(1)?.as_str()?,
        fields.get(7).and_then(Value::as_str),
        fields.get(8).and_then(Value::as_str),
    )
    .ok()?;
    Some(ObjectRow {
        name: text(fields, 0)?,
        data,
        ctype,
        meta,
        size: integer(fields, 2)?,
        content_type: text(fields, 3)?,
        etag: text(fields, 4)?,
        deleted: integer(fields, 5)? != 0,
        storage_policy_index: policy_index(fields)?,
    })
}

fn container_row(fields: &[Value]) -> Option<ContainerRow> {
    Some(ContainerRow {
        name: text(fields, 0)?,
        put_timestamp: text(fields, 1)?,
        delete_timestamp: text(fields, 2)?,
        object_count: integer(fields, 3)?,
        bytes_used: integer(fields, 4)?,
        deleted: integer(fields, 5)? != 0,
        storage_policy_index: policy_index(fields)?,
    })
}

fn text(fields: &[Value], at: usize) -> Option<String> {
    fields.get(at)?.as_str().map(str::to_owned)
}

/// Account rows have counts as the text of a header.
fn integer(fields: &[Value], at: usize) -> Option<i64> {
    match fields.get(at)? {
        Value::Bool(yes) => Some(i64::from(*yes)),
        value => value
            .as_int()
            .or_else(|| value.as_str().and_then(|text| text.trim().parse().ok())),
    }
}

fn policy_index(fields: &[Value]) -> Option<i64> {
    if fields.len() > 6 {
        integer(fields, 6)
    } else {
        Some(0)
    }
}
