//! Opening a database: pragmas, the `chexor` function, the journal mode.
//!
//! Shared databases are written as Swift's programs write them: with a rollback journal that a
//! commit deletes, under SQLite's locks between processes, each with `lock_timeout`. One found in
//! WAL mode (left by a killed exclusive process) is converted back.
//!
//! Exclusive databases are in WAL mode while open: a commit appends to `<hash>.db-wal` and syncs
//! it; readers see the last commit. The last connection to close checkpoints the log into the file
//! and removes it. Swift's programs set the journal mode to DELETE on opening, and fail at once on
//! a database that is open in WAL mode: it is for one process only.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use cairn_types::plant::Plant;
use md5::{Digest, Md5};
use rusqlite::config::DbConfig;
use rusqlite::functions::FunctionFlags;
use rusqlite::hooks::Wal;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::config::IndexConfig;
use crate::held::{Held, SyncMode, wal_path};
use crate::{IndexError, Result, files};

/// Log pages that trigger a checkpoint: low enough to keep reads quick, high enough that a hot page
/// is merged once for many commits.
const CHECKPOINT_PAGES: i32 = 2000;
/// Timeout for readers of the log before it is truncated.
const READERS_TIMEOUT: Duration = Duration::from_secs(1);
const WRITER_CACHE_KIB: i32 = 1024;
const READER_CACHE_KIB: i32 = 512;
const STATEMENTS_MAX: usize = 48;

/// VFS that keeps the log's index in process memory. In a file, the default, every sync of the file
/// system would also write the index. It locks out other processes while a database is open.
const EXCLUSIVE_VFS: &str = "unix-excl";
const SHARED_VFS: &str = "unix";

/// Opens the write connection of a shared database.
pub(crate) fn open_shared(path: &Path, config: &IndexConfig) -> Result<Connection> {
    read_log_from_disk(path, config)?;
    let conn = open_with(path, SHARED_VFS, config.lock_timeout)?;
    conn.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
    set_journal_mode(&conn, path, "delete", config.lock_timeout)?;
    set_synced_commits(&conn, config)?;
    Ok(conn)
}

/// Opens the write connection of an exclusive database synced through `held`; a log left by an
/// earlier process is merged first.
pub(crate) fn open_exclusive_held(
    path: &Path,
    config: &IndexConfig,
    held: &Held,
) -> Result<Connection> {
    merge_left_log(path, config, held)?;
    let conn = open_exclusive(path, config)?;
    held.hold_wal()?;
    Ok(conn)
}

fn open_exclusive(path: &Path, config: &IndexConfig) -> Result<Connection> {
    read_log_from_disk(path, config)?;
    let mut conn = open_with(path, EXCLUSIVE_VFS, config.lock_timeout)?;
    conn.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
    set_log_stays(&conn, true)?;
    set_journal_mode(&conn, path, "wal", config.lock_timeout)?;
    conn.wal_hook(Some(merge_grown_log))?;
    // SQLite opens its log with the first read.
    conn.query_row("SELECT COUNT(*) FROM sqlite_master", [], |_| Ok(()))?;
    // Commits are synced by their committer (`db/group_commit.rs`) together with others. NORMAL adds the
    // syncs that a checkpoint needs.
    conn.pragma_update(None, "synchronous", "NORMAL")?;
    Ok(conn)
}

/// Opens a write connection to a file beside an open database. Must be closed by [`close`], or its
/// log stays on disk.
pub(crate) fn open_beside(path: &Path, config: &IndexConfig) -> Result<Connection> {
    match config.exclusive {
        true => open_exclusive(path, config),
        false => open_shared(path, config),
    }
}

/// Stores WAL mode in a new file. The mode is part of a file: this is the one that an exclusive
/// database is opened with later.
pub(crate) fn set_stored_wal_mode(conn: &Connection) -> Result<()> {
    conn.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    Ok(())
}

/// Closes the write connection, and checkpoints the log if `is_sound`: no sync has failed. After a
/// failure, pages of the log may be lost on disk although the page cache still has them.
pub(crate) fn close(conn: Connection, is_sound: bool) {
    if is_sound && let Err(error) = set_log_stays(&conn, false) {
        tracing::warn!(%error, "the log of a database is left beside it");
    }
    drop(conn);
}

/// Sets whether SQLite leaves the log in place when the last connection closes.
pub(crate) fn set_log_stays(conn: &Connection, stays: bool) -> Result<()> {
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, stays)?;
    Ok(())
}

/// Checkpoints and truncates the log. False if a reader still uses it.
pub(crate) fn empty_log(conn: &Connection, config: &IndexConfig) -> Result<bool> {
    conn.busy_timeout(READERS_TIMEOUT.min(config.lock_timeout))?;
    let busy = conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| {
        row.get::<_, i64>(0)
    });
    conn.busy_timeout(config.lock_timeout)?;
    Ok(busy? == 0)
}

/// Checkpoints and removes a log left beside an exclusive database, by a killed process or after a
/// failed sync. Later commits go to a new log: the old one's name and extents may exist in memory
/// alone. They are clean there after a failed write, and on a file system without a journal no
/// later sync writes them.
///
/// # Errors
/// The log stays, and remains part of the database. It also stays, without an error, where the file
/// cannot grow.
fn merge_left_log(path: &Path, config: &IndexConfig, held: &Held) -> Result<()> {
    let log = wal_path(path);
    let left = match fs::metadata(&log) {
        Ok(meta) => meta.len(),
        Err(_) => return Ok(()),
    };
    if left == 0 {
        return remove(&log);
    }
    read_log_from_disk(path, config)?;
    // Closing this descriptor would drop SQLite's locks on the file, so it outlives the connection.
    let file = fs::File::open(path).map_err(|error| IndexError::io(path, error))?;
    let file = held.synced(file);
    let conn = open_with(path, EXCLUSIVE_VFS, config.lock_timeout)?;
    set_log_stays(&conn, true)?;
    set_journal_mode(&conn, path, "wal", config.lock_timeout)?;
    match merge_whole_log(&conn).map_err(|error| IndexError::from(error).at(path)) {
        Ok(true) => {}
        Ok(false) | Err(IndexError::NoSpace { .. }) => return Ok(()),
        Err(error) => return Err(error),
    }
    held.sync(&held.set_of(&file, true), SyncMode::Grouped)
        .map_err(|error| IndexError::io(path, error))?;
    close(conn, true);
    drop(file);
    // Without this sync a power cut can restore the name, perhaps after later pages reached the
    // file.
    held.sync(&held.set_of(&held.folder, true), SyncMode::Grouped)
        .map_err(|error| IndexError::io(path, error))
}

/// Checkpoints the whole log and syncs the file. False if a reader still uses the log.
fn merge_whole_log(conn: &Connection) -> rusqlite::Result<bool> {
    conn.query_row("PRAGMA wal_checkpoint(FULL)", [], |row| {
        let (busy, pages, merged): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(busy == 0 && pages == merged)
    })
}

fn remove(file: &Path) -> Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(IndexError::io(file, error))
        }
        _ => Ok(()),
    }
}

/// Drops the page cache of an unmerged log, left by a killed process or distrusted after a failed
/// sync: cached pages may differ from the disk.
fn read_log_from_disk(path: &Path, config: &IndexConfig) -> Result<()> {
    let log = wal_path(path);
    let is_left = fs::metadata(&log).is_ok_and(|meta| meta.len() > 0);
    match is_left && !config.unsafe_no_sync && !Plant::FailedSyncBelieved.is_on() {
        true => match (config.read_from_disk)(&log) {
            // An earlier connection of this process checkpointed the log while closing.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            read => read.map_err(|error| IndexError::io(&log, error)),
        },
        false => Ok(()),
    }
}

/// Checkpoints the log once it is long. SQLite's own auto-checkpoint ignores failed syncs; here the
/// commit fails and the connection is dropped.
fn merge_grown_log(log: &mut Wal, pages: i32) -> rusqlite::Result<()> {
    if pages < CHECKPOINT_PAGES {
        return Ok(());
    }
    match log.checkpoint() {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure) => Err(error),
        // A concurrent checkpoint, or no space: the log has all rows.
        _ => Ok(()),
    }
}

/// Opens a file received from a replicator, not yet in place. It stays a single file.
pub(crate) fn open_received(path: &Path, config: &IndexConfig) -> Result<Connection> {
    let conn = open_with(path, SHARED_VFS, config.lock_timeout)?;
    set_journal_mode(&conn, path, "delete", config.lock_timeout)?;
    set_synced_commits(&conn, config)?;
    Ok(conn)
}

/// Makes commits durable. A commit is the removal of the journal: EXTRA syncs the folder after it,
/// so that a power cut cannot restore the journal and roll back.
fn set_synced_commits(conn: &Connection, config: &IndexConfig) -> Result<()> {
    let level = if config.unsafe_no_sync {
        "OFF"
    } else {
        "EXTRA"
    };
    Ok(conn.pragma_update(None, "synchronous", level)?)
}

pub(crate) fn open_reader(path: &Path, config: &IndexConfig) -> Result<Connection> {
    let vfs = match config.exclusive {
        true => EXCLUSIVE_VFS,
        false => SHARED_VFS,
    };
    let conn = open_with(path, vfs, config.lock_timeout)?;
    conn.pragma_update(None, "cache_size", -READER_CACHE_KIB)?;
    conn.pragma_update(None, "query_only", "ON")?;
    Ok(conn)
}

/// Creates a file, filled without syncs. The caller syncs it once, when complete, by the returned
/// descriptor, opened before the first write and kept until the connection is closed.
pub(crate) fn open_new(path: &Path) -> Result<(Connection, fs::File)> {
    let created = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(files::PRIVATE_FILE_MODE)
        .open(path);
    let file = created.map_err(|error| IndexError::io(path, error))?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.pragma_update(None, "synchronous", "OFF")?;
    conn.pragma_update(None, "temp_store", "MEMORY")?;
    conn.pragma_update(None, "journal_mode", "MEMORY")?;
    add_chexor(&conn)?;
    Ok((conn, file))
}

fn open_with(path: &Path, vfs: &str, lock_timeout: Duration) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags_and_vfs(path, flags, vfs)?;
    conn.busy_timeout(lock_timeout)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    conn.pragma_update(None, "temp_store", "MEMORY")?;
    add_chexor(&conn)?;
    Ok(conn)
}

/// Sets the journal mode, and retries while other connections use another mode: SQLite's busy
/// handler is not called for mode changes.
fn set_journal_mode(
    conn: &Connection,
    path: &Path,
    wanted: &str,
    lock_timeout: Duration,
) -> Result<()> {
    let deadline = Instant::now() + lock_timeout;
    let mut pause = Duration::from_millis(1);
    loop {
        let mode = conn.query_row(&format!("PRAGMA journal_mode = {wanted}"), [], |row| {
            row.get::<_, String>(0)
        });
        let locked = match mode.map_err(|error| IndexError::from(error).at(path)) {
            Ok(mode) if mode == wanted => return Ok(()),
            Ok(_) => IndexError::Locked { path: path.into() },
            Err(locked @ IndexError::Locked { .. }) => locked,
            Err(error) => return Err(error),
        };
        if Instant::now() >= deadline {
            return Err(locked);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

fn add_chexor(conn: &Connection) -> Result<()> {
    conn.create_scalar_function(
        "chexor",
        3,
        FunctionFlags::SQLITE_UTF8
            | FunctionFlags::SQLITE_DETERMINISTIC
            | FunctionFlags::SQLITE_INNOCUOUS,
        |context| {
            let name = context.get_raw(1);
            if name == ValueRef::Null {
                return Err(rusqlite::Error::UserFunctionError("name is NULL".into()));
            }
            let mut md5 = Md5::new();
            update_text(&mut md5, name);
            let old = context.get_raw(0).as_str().unwrap_or_default();
            xor_text(old, finish_row(md5, context.get_raw(2)))
        },
    )?;
    Ok(())
}

/// A row's share of the running hash: its MD5. Shares are combined by XOR, so that adding a row
/// twice removes it, in any order.
pub(crate) fn row_hash(name: &[u8], time: ValueRef<'_>) -> u128 {
    finish_row(Md5::new_with_prefix(name), time)
}

fn finish_row(mut md5: Md5, time: ValueRef<'_>) -> u128 {
    md5.update(b"-");
    update_text(&mut md5, time);
    u128::from_be_bytes(md5.finalize().into())
}

/// The stored running hash `old`, with rows added or removed.
pub(crate) fn xor_text(old: &str, rows: u128) -> rusqlite::Result<String> {
    match u128::from_str_radix(old, 16) {
        Ok(old) => Ok(format!("{:032x}", old ^ rows)),
        Err(_) => Err(rusqlite::Error::UserFunctionError("bad hash".into())),
    }
}

/// Hashes a value in Python's text form.
fn update_text(md5: &mut Md5, value: ValueRef<'_>) {
    match value {
        ValueRef::Text(text) | ValueRef::Blob(text) => md5.update(text),
        ValueRef::Integer(number) => md5.update(number.to_string()),
        ValueRef::Real(number) => md5.update(format!("{number:?}")),
        ValueRef::Null => md5.update(b"None"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn chexor_as_upstream() {
        // Sample from upstream's test_db.py, TestHelperFunctions.
        let conn = Connection::open_in_memory().unwrap();
        add_chexor(&conn).unwrap();
        let call = |old: &str, name: &str, time: &str| -> String {
            conn.query_row("SELECT chexor(?, ?, ?)", [old, name, time], |row| {
                row.get(0)
            })
            .unwrap()
        };
        assert_eq!(
            call(
                "d41d8cd98f00b204e9800998ecf8427e",
                "new name",
                "0000000001.00000"
            ),
            "4f2ea31ac14d4273fe32ba08062b21de"
        );
        let zero = "00000000000000000000000000000000";
        let once = call(zero, "a", "b");
        assert_eq!(call(&once, "a", "b"), zero);
    }
}
