//! Reads, on connections of their own.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;

use super::{Db, Opened};
use crate::broker::Broker;
use crate::config::IndexConfig;
use crate::held::Reading;
use crate::{IndexError, Result, connection};

/// Timeout of a reader for the merge of pending rows; Swift's servers use 0.1 seconds.
const READER_MERGE_TIMEOUT: Duration = Duration::from_secs(1);

/// Attempts to open a database that other processes keep replacing.
const OPEN_ATTEMPTS_MAX: usize = 3;

/// Read connections kept per database; more are opened under concurrent reads.
const READERS_KEPT_MAX: usize = 2;

impl Db {
    pub(crate) fn read<T>(
        &self,
        config: &IndexConfig,
        f: impl FnOnce(Broker<'_>) -> Result<T>,
    ) -> Result<T> {
        let (opened, _reading, kept) = self.begin_reading(config)?;
        let conn = match kept {
            Some(conn) => conn,
            None => connection::open_reader(&opened.file, config)
                .and_then(|conn| connection::set_log_stays(&conn, true).map(|()| conn))
                .map_err(|error| self.failed(config, &opened.file, error))?,
        };
        let turn = self.writer.read_turn();
        let result = f(self.broker(config, &conn, opened.schema, false));
        drop(turn);
        match result {
            Err(error) => {
                let error = error.at(&opened.file);
                let spoiled = error.spoils_connection();
                if !spoiled {
                    self.keep_reader(conn, &opened);
                }
                Err(self.failed(config, &opened.file, error))
            }
            Ok(value) => {
                self.keep_reader(conn, &opened);
                Ok(value)
            }
        }
    }

    /// Opens the database if necessary, and returns a kept read connection if there is one. After a
    /// failed sync it is not reopened while readers use it.
    fn begin_reading(&self, config: &IndexConfig) -> Result<(Opened, Reading, Option<Connection>)> {
        for _ in 0..OPEN_ATTEMPTS_MAX {
            let opened = self.open_to_read(config)?;
            let mut state = self.state.lock();
            let is_open = |now: &Opened| Arc::ptr_eq(&now.held, &opened.held);
            if state.opened.as_ref().is_some_and(is_open) && !opened.held.has_failed() {
                let (reading, kept) = (opened.held.reading(), state.readers.pop());
                return Ok((opened, reading, kept));
            }
        }
        Err(IndexError::Busy {
            what: self.key.file(&config.devices).display().to_string(),
        })
    }

    fn open_to_read(&self, config: &IndexConfig) -> Result<Opened> {
        match self.still_open(config)? {
            Some(opened) if !self.writer.is_behind(&opened)? => Ok(opened),
            Some(opened) => match self.connection.try_lock_for(READER_MERGE_TIMEOUT) {
                Some(mut lock) => self.open_shown(config, &mut lock),
                // The writer waits for the disk; the last commit can still be read.
                None => Ok(opened),
            },
            None => self.open_shown(config, &mut self.connection.lock()),
        }
    }

    fn keep_reader(&self, conn: Connection, opened: &Opened) {
        let mut state = self.state.lock();
        let is_open = |now: &Opened| Arc::ptr_eq(&now.held, &opened.held);
        if state.opened.as_ref().is_some_and(is_open) && state.readers.len() < READERS_KEPT_MAX {
            state.readers.push(conn);
        } else {
            drop(state);
            drop(conn);
        }
    }
}
