//! Creation of a database: built in a temporary file with its first update, synced, then renamed,
//! so that it is never visible half made.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use cairn_device::{FileSystem, SyncSet};

use crate::config::IndexConfig;
use crate::db::{Db, Update, Writer, apply_alone, run};
use crate::schema::Schema;
use crate::schema::{self, NewDb};
use crate::{IndexError, Result, connection, files};

impl Db {
    /// Creates the database and completes the first update.
    pub(crate) fn create(&self, config: &IndexConfig, new: &NewDb, mut first: Box<dyn Update>) {
        let outcome = self.create_with(config, new, first.as_mut());
        let path = self.key.file(&config.devices);
        first.finish(outcome.map_err(|error| error.at(&path)));
    }

    fn create_with(&self, config: &IndexConfig, new: &NewDb, first: &mut dyn Update) -> Result<()> {
        let dir = self.key.dir(&config.devices);
        let path = self.key.file(&config.devices);
        let device = config.devices.join(&*self.key.device);
        let _lock = files::make_locked_folder(&device, &dir, config.lock_timeout)?;
        let folder = File::open(&dir).map_err(|error| IndexError::io(&dir, error))?;
        let file_system = FileSystem::of(folder.as_fd(), &config.syncs())
            .map_err(|error| IndexError::io(&dir, error))?;
        let temporary = dir.join(format!("{:032x}.tmp", (config.random)()));
        let result = self
            .build(config, new, first, &temporary)
            .and_then(|outcome| {
                if !files::rename_to_free(&temporary, &path)? {
                    // Another process created it first; one that receives a database takes no lock.
                    return Err(IndexError::Busy {
                        what: path.display().to_string(),
                    });
                }
                name_file(&self.writer, &dir, folder, &file_system)?;
                outcome
            });
        if result.is_err() {
            // Already renamed, or a leftover that nobody reads.
            let _ = fs::remove_file(&temporary);
        }
        result
    }

    /// Fills and syncs the file. The inner result is the update's: a refused update still creates
    /// the database, as in Swift.
    fn build(
        &self,
        config: &IndexConfig,
        new: &NewDb,
        first: &mut dyn Update,
        path: &Path,
    ) -> Result<Result<()>> {
        let (conn, file) = connection::open_new(path)?;
        let id = config.new_db_id(&self.key.device);
        schema::create(&conn, new, &config.now().internal(), &id)?;
        let schema = Schema {
            indexed: true,
            has_epoch: false,
            known_triggers: true,
        };
        let broker = self.broker(config, &conn, schema, true);
        run(&conn, "BEGIN IMMEDIATE")?;
        let outcome = apply_alone(&conn, broker, first)?;
        run(&conn, "COMMIT")?;
        self.writer.set_stored_mode(&conn)?;
        conn.close().map_err(|(_, error)| IndexError::from(error))?;
        file.sync_all()
            .map_err(|error| IndexError::io(path, error))?;
        Ok(outcome)
    }
}

/// Renames a file and makes the name durable.
fn name_file(
    writer: &Writer,
    dir: &Path,
    folder: File,
    file_system: &Arc<FileSystem>,
) -> Result<()> {
    let synced = match writer {
        Writer::Exclusive(_) => {
            let mut set = SyncSet::on(file_system);
            set.add_directory(Arc::new(OwnedFd::from(folder)));
            file_system.sync(&set)
        }
        Writer::Shared(_) => folder.sync_all(),
    };
    synced.map_err(|error| IndexError::io(dir, error))
}
