//! Whole database files: sent, received in a device's `tmp` folder, installed, removed.
//!
//! A received file is installed by one rename; meanwhile the write lock excludes our updates and a
//! lock on the replaced database those of other processes.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use crate::broker::Broker;
use crate::config::IndexConfig;
use crate::db::Db;
use crate::held::wal_path;
use crate::migrate::migrate;
use crate::{AccountBroker, ContainerBroker, DbKind, IndexError, Result, connection, files};

/// Rows per transaction when merging into a received file.
const PAGE_ROWS: usize = 1000;

/// Result of installing a received file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    Done,
    /// Refused for now: a file is missing, the target exists, or the database is being sharded
    /// or read.
    NotNow,
}

/// Path of a received file; names come from other servers and are validated.
pub(crate) fn received_path(db: &Db, config: &IndexConfig, name: &str) -> Result<PathBuf> {
    let plain = !name.is_empty() && !name.contains(['/', '\0']) && name != "." && name != "..";
    if !plain {
        return Err(IndexError::bad_row(format!(
            "{name:?} is no name of a file"
        )));
    }
    Ok(config.devices.join(&*db.key.device).join("tmp").join(name))
}

impl Db {
    /// Installs a received file as the database, which must not exist. `file_name` is its name at
    /// the sender: `<hash>.db` or `<hash>_<epoch>.db`.
    pub(crate) fn take_received(
        &self,
        config: &IndexConfig,
        name: &str,
        file_name: Option<&str>,
    ) -> Result<Received> {
        let received = received_path(self, config, name)?;
        let dir = self.key.dir(&config.devices);
        let hash = self.key.hash.hex();
        let file_name = file_name.map_or_else(|| format!("{hash}.db"), str::to_owned);
        let stem = file_name.strip_suffix(".db").unwrap_or_default();
        let known = stem.split('_').next() == Some(&hash) && !file_name.contains('/');
        if !known {
            return Err(IndexError::bad_row(format!(
                "{file_name:?} is no name of this database's file"
            )));
        }
        let to = dir.join(file_name);
        let mut writer = self.write_lock()?;
        if to.exists() || !received.exists() {
            return Ok(Received::NotNow);
        }
        self.with_received(config, &received, |broker| broker.become_own(name))?;
        self.forget(&mut writer);
        // A new folder cannot be in removal: no lock, and as with Swift's programs no lock file.
        let is_new = !dir.exists();
        files::make_folders(&config.devices.join(&*self.key.device), &dir)?;
        let _lock = match is_new {
            true => None,
            false => Some(files::lock_folder(&dir, config.lock_timeout)?),
        };
        // SQLite would take a leftover log for the new database's.
        let _ = fs::remove_file(wal_path(&to));
        sync_file(&received)?;
        if !files::rename_to_free(&received, &to)? {
            return Ok(Received::NotNow);
        }
        files::sync_folder(&dir)?;
        Ok(Received::Done)
    }

    /// First step of replacing the database by a received file: copies our rows there. Returns the
    /// last ROWID copied.
    pub(crate) fn fill_received(&self, config: &IndexConfig, name: &str) -> Result<Option<i64>> {
        let received = received_path(self, config, name)?;
        if !received.exists() {
            return Ok(None);
        }
        self.read(config, |ours| {
            if ours.kind() == DbKind::Container && ContainerBroker(ours).is_sharding_initiated()? {
                return Ok(None);
            }
            self.with_received(config, &received, |theirs| copy_rows(ours, theirs, -1))
                .map(Some)
        })
    }

    /// Second step: copies newer rows and other state, then renames.
    pub(crate) fn replace_by_received(
        &self,
        config: &IndexConfig,
        name: &str,
        since: i64,
    ) -> Result<Received> {
        let received = received_path(self, config, name)?;
        let mut writer = self.write_lock()?;
        let opened = self.open_merged(config, &mut writer)?;
        let Some(conn) = writer.as_ref() else {
            return Ok(Received::NotNow);
        };
        if !received.exists() {
            return Ok(Received::NotNow);
        }
        // From here on: SQLite would take a log for that of the file installed under this name.
        if !self.writer.empty_log(conn, config)? {
            return Ok(Received::NotNow);
        }
        let locked = Locked::begin(conn).map_err(|error| error.at(&opened.file))?;
        let ours = self.broker(config, conn, opened.schema, false);
        let own_error = |error: IndexError| error.at(&opened.file);
        let as_container = (ours.kind() == DbKind::Container).then_some(ContainerBroker(ours));
        if let Some(ours) = &as_container
            && ours.is_sharding_initiated().map_err(own_error)?
        {
            return Ok(Received::NotNow);
        }
        self.with_received(config, &received, |theirs| {
            copy_rows(ours, theirs, since)?;
            theirs.merge_syncs(&ours.sync_points(true).map_err(own_error)?, true)?;
            if let Some(ours) = &as_container {
                let ranges = ours.shard_ranges().map_err(own_error)?;
                ContainerBroker(theirs).merge_replicated_shard_ranges(ranges)?;
            }
            theirs.become_own(name)?;
            let metadata = ours.metadata().map_err(own_error)?;
            theirs.update_metadata(metadata.iter(), false)
        })?;
        put_in_place(&received, &opened.file)?;
        drop(locked);
        self.forget(&mut writer);
        Ok(Received::Done)
    }

    /// Writes a consistent copy to `to`, which does not exist or is empty.
    pub(crate) fn copy_to(&self, config: &IndexConfig, to: &Path) -> Result<()> {
        self.read(config, |broker| {
            broker.conn.pragma_update(None, "query_only", "OFF")?;
            let text = to.to_string_lossy().into_owned();
            let copied = broker.conn.execute("VACUUM INTO ?", [text]);
            broker.conn.pragma_update(None, "query_only", "ON")?;
            copied?;
            Ok(())
        })
    }

    pub(crate) fn make_tmp(&self, config: &IndexConfig) -> Result<()> {
        let device = config.devices.join(&*self.key.device);
        files::make_folders(&device, &device.join("tmp"))
    }

    /// As `copy_to`, in the device's `tmp` folder; also returns the database's file name.
    pub(crate) fn snapshot(&self, config: &IndexConfig, name: &str) -> Result<(PathBuf, String)> {
        let to = received_path(self, config, name)?;
        self.make_tmp(config)?;
        // A file that is there already is not this copy's to remove.
        let own = OpenOptions::new().write(true).create_new(true).open(&to);
        own.map_err(|error| IndexError::io(&to, error))?;
        self.copy_to(config, &to).inspect_err(|_| {
            // Removes an incomplete copy.
            let _ = fs::remove_file(&to);
        })?;
        let file = self.read(config, |broker| {
            let file = Path::new(broker.conn.path().unwrap_or_default()).file_name();
            Ok(file.unwrap_or_default().to_string_lossy().into_owned())
        })?;
        Ok((to, file))
    }

    /// Runs `f` on a received file in one transaction, and leaves one synced file. A damaged one is
    /// removed: its sender has the original.
    fn with_received<T>(
        &self,
        config: &IndexConfig,
        path: &Path,
        f: impl FnOnce(Broker<'_>) -> Result<T>,
    ) -> Result<T> {
        files::make_private(path);
        let work = || -> Result<T> {
            let conn = connection::open_received(path, config)?;
            let schema = migrate(&conn, self.key.kind, false)?;
            conn.execute_batch("BEGIN IMMEDIATE")?;
            let value = f(self.broker(config, &conn, schema, false))?;
            conn.execute_batch("COMMIT")?;
            conn.close().map_err(|(_, error)| IndexError::from(error))?;
            Ok(value)
        };
        let worked = work().map_err(|error| error.at(path));
        match &worked {
            Err(IndexError::Corrupt { path: damaged, .. }) if damaged == path => {
                let _ = fs::remove_file(path);
            }
            _ => {}
        }
        worked
    }

    /// Removes the database if `may_go` accepts its last state. Nothing is written in between.
    /// False if it stays.
    pub(crate) fn remove_if(
        &self,
        config: &IndexConfig,
        may_go: impl FnOnce(Broker<'_>) -> Result<bool>,
    ) -> Result<bool> {
        let mut writer = self.write_lock()?;
        let opened = self.open_merged(config, &mut writer)?;
        let Some(conn) = writer.as_ref() else {
            return Ok(false);
        };
        let locked = Locked::begin(conn).map_err(|error| error.at(&opened.file))?;
        if !may_go(self.broker(config, conn, opened.schema, false))? {
            return Ok(false);
        }
        let dir = self.key.dir(&config.devices);
        let lock = files::lock_folder(&dir, config.lock_timeout)?;
        files::remove_db_folder(&self.key, &config.devices)?;
        drop((lock, locked));
        self.forget(&mut writer);
        Ok(true)
    }
}

/// Write lock on a database, released by a rollback.
struct Locked<'c>(&'c Connection);

impl<'c> Locked<'c> {
    fn begin(conn: &'c Connection) -> Result<Self> {
        conn.execute_batch("BEGIN IMMEDIATE")?;
        Ok(Locked(conn))
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // Nothing was written; the owner drops a connection whose rollback fails.
        let _ = self.0.execute_batch("ROLLBACK");
    }
}

fn sync_file(path: &Path) -> Result<()> {
    // No connection has it open: see the warning in `files`.
    OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|file| file.sync_all())
        .map_err(|error| IndexError::io(path, error))
}

fn put_in_place(received: &Path, to: &Path) -> Result<()> {
    sync_file(received)?;
    fs::rename(received, to).map_err(|error| IndexError::io(to, error))?;
    files::sync_folder(to.parent().unwrap_or(to))
}

/// Copies rows; returns the highest ROWID copied, or `since`.
fn copy_rows(from: Broker<'_>, to: Broker<'_>, since: i64) -> Result<i64> {
    let mut point = since;
    loop {
        let rows = from
            .replicated_rows_since(point, PAGE_ROWS)
            .map_err(|error| error.at(Path::new(from.conn.path().unwrap_or_default())))?;
        let Some(last) = rows.last() else {
            return Ok(point);
        };
        to.merge_rows(rows, None)?;
        point = last;
    }
}

impl Broker<'_> {
    fn become_own(&self, remote_id: &str) -> Result<()> {
        match self.kind() {
            DbKind::Account => AccountBroker(*self).newid(remote_id),
            DbKind::Container => ContainerBroker(*self).newid(remote_id),
        }
    }
}
