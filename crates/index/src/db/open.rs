//! Opening of a database for its writer, and closing it: when it is idle, after errors, and for
//! good after damage.

use std::path::Path;
use std::sync::Arc;

use rusqlite::Connection;

use super::{Db, Opened, Writing};
use crate::config::IndexConfig;
use crate::container::batch;
use crate::held::Held;
use crate::migrate::migrate;
use crate::{IndexError, Result, connection, files};

impl Db {
    /// The open database if its file is still in place: another process may have removed or
    /// replaced it, or created the file of a later epoch.
    pub(super) fn still_open(&self, config: &IndexConfig) -> Result<Option<Opened>> {
        let opened = self.state.lock().opened.clone();
        let Some(opened) = opened.filter(|opened| !opened.held.has_failed()) else {
            return Ok(None);
        };
        let same = self.writer.is_in_place(&self.key, config, &opened)?;
        Ok(same.then_some(opened))
    }

    /// Opens the database for writing if necessary: migrates it, and merges Swift's pending rows.
    pub(super) fn open(
        &self,
        config: &IndexConfig,
        writer: &mut Option<Connection>,
    ) -> Result<Opened> {
        self.open_with(config, writer, true)
    }

    fn open_with(
        &self,
        config: &IndexConfig,
        writer: &mut Option<Connection>,
        merges: bool,
    ) -> Result<Opened> {
        match self.still_open(config)? {
            Some(opened) if writer.is_some() => return Ok(opened),
            _ => self.forget(writer),
        }
        self.settle_distrust(config)?;
        let dir = self.key.file(&config.devices);
        let found = files::find_db_file(&self.key, &config.devices)?;
        let (file, identity) = found.ok_or(IndexError::NotFound { path: dir })?;
        files::make_private(&file);
        let held = Held::begin(&file, config)?;
        let opened = self.writer.open(&file, config, &held).and_then(|conn| {
            let schema = migrate(&conn, self.key.kind, has_epoch(&file))?;
            let broker = self.broker(config, &conn, schema, false);
            if merges {
                self.writer.merge_left(broker, &file, &held)?;
            }
            Ok((conn, schema))
        });
        let (conn, schema) = opened.map_err(|error| self.failed(config, &file, error.at(&file)))?;
        let opened = Opened {
            file,
            identity,
            schema,
            log_is_named: Arc::default(),
            held: held.clone(),
        };
        *writer = Some(conn);
        let mut state = self.state.lock();
        state.opened = Some(opened.clone());
        state.held = Some(held);
        state.distrusted = None;
        Ok(opened)
    }

    /// Refuses a reopening after a failed sync while readers remain: connections of one process
    /// share cached state of the log, so it is read from the disk only when all are closed.
    fn settle_distrust(&self, config: &IndexConfig) -> Result<()> {
        let distrusted = self.state.lock().distrusted.clone();
        let Some(distrusted) = distrusted else {
            return Ok(());
        };
        if distrusted.is_read() {
            return Err(IndexError::DriveFailed {
                path: self.key.file(&config.devices),
                reason: "a sync failed, and the database is still being read as it was".into(),
            });
        }
        self.writer.settle_distrust(&self.key.dir(&config.devices))
    }

    /// Opens the database and merges all pending rows. Triggers are on.
    pub(crate) fn open_merged(
        &self,
        config: &IndexConfig,
        writer: &mut Option<Connection>,
    ) -> Result<Opened> {
        let opened = self.open(config, writer)?;
        if let Some(conn) = writer.as_ref() {
            let settled = self.settle_log(config, conn, &opened);
            if let Err(error) = settled.and_then(|()| batch::set_triggers(conn, true)) {
                self.forget_after(&error, writer);
                return Err(self.failed(config, &opened.file, error));
            }
        }
        Ok(opened)
    }

    /// Opens the database and shows pending rows to readers, as far as there is space to merge.
    pub(super) fn open_shown(
        &self,
        config: &IndexConfig,
        writer: &mut Option<Connection>,
    ) -> Result<Opened> {
        match self.try_open_shown(config, writer) {
            Err(IndexError::NoSpace { .. }) => {}
            other => return other,
        }
        (config.make_room)(&config.devices.join(&*self.key.device));
        match self.try_open_shown(config, writer) {
            Err(IndexError::NoSpace { .. }) => self.open_unmerged(config, writer),
            other => other,
        }
    }

    /// Opens the database for readers alone; the next writer reopens it and merges pending rows.
    fn open_unmerged(
        &self,
        config: &IndexConfig,
        writer: &mut Option<Connection>,
    ) -> Result<Opened> {
        self.forget(writer);
        let opened = self.open_with(config, writer, false)?;
        // Keeps its log for the readers: a file that cannot grow cannot be merged into.
        drop(writer.take());
        self.writer.note_unmerged();
        Ok(opened)
    }

    fn try_open_shown(
        &self,
        config: &IndexConfig,
        writer: &mut Option<Connection>,
    ) -> Result<Opened> {
        let opened = self.open(config, writer)?;
        let shown = self.or_close(writer, |conn| {
            self.writer.show(self.writing(config, conn, &opened))
        });
        match shown {
            Ok(()) => Ok(opened),
            Err(error) => Err(self.failed(config, &opened.file, error)),
        }
    }

    pub(super) fn writing<'w>(
        &'w self,
        config: &'w IndexConfig,
        conn: &'w Connection,
        opened: &'w Opened,
    ) -> Writing<'w> {
        Writing {
            db: self,
            config,
            conn,
            opened,
        }
    }

    /// Closes the database; checkpoints its log unless a sync has failed.
    pub(crate) fn forget(&self, writer: &mut Option<Connection>) {
        let (readers, is_sound) = {
            let mut state = self.state.lock();
            state.opened = None;
            let held = state.held.take();
            let is_sound = held.as_ref().is_none_or(|held| !held.has_failed());
            if !is_sound {
                state.distrusted = held;
            }
            (std::mem::take(&mut state.readers), is_sound)
        };
        drop(readers);
        self.writer.forget_log();
        if let Some(conn) = writer.take() {
            connection::close(conn, is_sound);
        }
    }

    /// As [`Db::forget`], after an error: an I/O error may be that of a sync.
    pub(super) fn forget_after(&self, error: &IndexError, writer: &mut Option<Connection>) {
        let held = self.state.lock().held.clone();
        if let Some(held) = held.filter(|_| error.spoils_connection()) {
            held.distrust();
        }
        self.forget(writer);
    }

    /// Quarantines a database after an error of damage; passes other errors through.
    pub(super) fn failed(
        &self,
        config: &IndexConfig,
        file: &Path,
        error: IndexError,
    ) -> IndexError {
        let (path, reason) = match error.at(file) {
            IndexError::Corrupt { path, reason } if path.parent() == file.parent() => {
                (path, reason)
            }
            // Also damage of a file that another server sent, which lies in `tmp`.
            other => return other,
        };
        let readers = {
            let mut state = self.state.lock();
            state.opened = None;
            std::mem::take(&mut state.readers)
        };
        drop(readers);
        match files::quarantine(&self.key, &config.devices, (config.random)()) {
            Ok(to) => {
                tracing::error!(
                    path = %path.display(), to = %to.display(), reason, "quarantined a database"
                );
                IndexError::Quarantined { path, to, reason }
            }
            Err(error) => {
                tracing::error!(
                    path = %path.display(), %error, reason, "could not quarantine a database"
                );
                IndexError::Corrupt { path, reason }
            }
        }
    }
}

/// Whether the name is `<hash>_<epoch>.db`, as sharding makes it.
fn has_epoch(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.contains('_')
}
