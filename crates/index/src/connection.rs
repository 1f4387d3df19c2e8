//! Opening a database: pragmas, the `chexor` function, the journal mode.
//!
//! Shared databases are written as Swift's programs write them: with a rollback journal that a
//! commit deletes, under SQLite's locks between processes, each waited for up to `lock_timeout`.
//! A process that finds one in WAL mode (an exclusive one of ours was killed) brings it back.
//!
//! Exclusive databases are in WAL mode while we have them: a commit appends to `<hash>.db-wal` and
//! syncs it, readers see the last commit. The last connection to close merges the log into the
//! file and removes it. Swift's programs set the journal mode to DELETE when they open a file, and
//! fail at once where somebody has it open in WAL mode: such a database is for one process only.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use md5::{Digest, Md5};
use rusqlite::functions::FunctionFlags;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};

use crate::config::IndexConfig;
use crate::{IndexError, Result};

/// Log pages after which a commit also merges the log into the file: often enough to keep reads
/// quick, seldom enough that hot pages are merged once for many commits.
const CHECKPOINT_PAGES: u32 = 2000;
const WRITER_CACHE_KIB: i32 = 1024;
const READER_CACHE_KIB: i32 = 512;
const STATEMENTS_MAX: usize = 48;

/// Keeps the log's index in this process's memory. In a file, as by default, the index is written
/// to disk with every sync of the file system, for nothing. Other processes are kept out while a
/// database is open here.
const EXCLUSIVE_VFS: &str = "unix-excl";
const SHARED_VFS: &str = "unix";

/// The one connection that writes a database.
pub(crate) fn open_writer(path: &Path, config: &IndexConfig) -> Result<Connection> {
    let conn = open_existing(path, config)?;
    conn.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
    if config.exclusive {
        set_journal_mode(&conn, path, "wal", config.lock_timeout)?;
        conn.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
        // The log is synced after each commit by whoever commits (`db.rs`), together with others'.
        // NORMAL syncs what merging the log into the file needs.
        conn.pragma_update(None, "synchronous", "NORMAL")?;
    } else {
        set_journal_mode(&conn, path, "delete", config.lock_timeout)?;
        set_synced_commits(&conn, config)?;
    }
    Ok(conn)
}

/// A file that nobody else knows of yet: one that a replicator has sent. It stays one file.
pub(crate) fn open_received(path: &Path, config: &IndexConfig) -> Result<Connection> {
    let conn = open_with(path, SHARED_VFS, config.lock_timeout)?;
    set_journal_mode(&conn, path, "delete", config.lock_timeout)?;
    set_synced_commits(&conn, config)?;
    Ok(conn)
}

/// A commit is the removal of the journal: EXTRA syncs the folder after it, so that a power cut
/// does not bring the journal, and the state of before, back.
fn set_synced_commits(conn: &Connection, config: &IndexConfig) -> Result<()> {
    let level = if config.unsafe_no_sync {
        "OFF"
    } else {
        "EXTRA"
    };
    Ok(conn.pragma_update(None, "synchronous", level)?)
}

pub(crate) fn open_reader(path: &Path, config: &IndexConfig) -> Result<Connection> {
    let conn = open_existing(path, config)?;
    conn.pragma_update(None, "cache_size", -READER_CACHE_KIB)?;
    conn.pragma_update(None, "query_only", "ON")?;
    Ok(conn)
}

/// A new file, filled without syncs: the caller syncs it once, when it is whole.
pub(crate) fn open_new(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.pragma_update(None, "synchronous", "OFF")?;
    conn.pragma_update(None, "temp_store", "MEMORY")?;
    conn.pragma_update(None, "journal_mode", "MEMORY")?;
    add_chexor(&conn)?;
    Ok(conn)
}

fn open_existing(path: &Path, config: &IndexConfig) -> Result<Connection> {
    let vfs = if config.exclusive {
        EXCLUSIVE_VFS
    } else {
        SHARED_VFS
    };
    open_with(path, vfs, config.lock_timeout)
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

/// Waits for whoever has the database in another mode: SQLite's own busy handler is not asked
/// when the mode changes.
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

/// What a row adds to the running hash of its database: the XOR of each row's MD5, so that adding
/// a row twice takes it out, in any order.
pub(crate) fn row_hash(name: &[u8], time: ValueRef<'_>) -> u128 {
    finish_row(Md5::new_with_prefix(name), time)
}

fn finish_row(mut md5: Md5, time: ValueRef<'_>) -> u128 {
    md5.update(b"-");
    update_text(&mut md5, time);
    u128::from_be_bytes(md5.finalize().into())
}

/// The running hash `old`, as the database has it, with rows added or taken out.
pub(crate) fn xor_text(old: &str, rows: u128) -> rusqlite::Result<String> {
    match u128::from_str_radix(old, 16) {
        Ok(old) => Ok(format!("{:032x}", old ^ rows)),
        Err(_) => Err(rusqlite::Error::UserFunctionError("bad hash".into())),
    }
}

/// Feeds a value in the text form that Python would give it.
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
        // Upstream's own sample: test_db.py, TestHelperFunctions.
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
