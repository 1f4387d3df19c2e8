//! Files of a container being sharded: a fresh file is created beside the retiring one, which is
//! removed once its rows are in the shards.

use std::fs;
use std::path::{Path, PathBuf};

use cairn_formats::shard::ShardRange;
use rusqlite::{Connection, params};

use crate::config::IndexConfig;
use crate::db::Db;
use crate::held::wal_path;
use crate::schema::Schema;
use crate::{
    ContainerBroker, ContainerInfo, DbState, Metadata, NewDb, Result, SyncPoint, connection, files,
    schema,
};

/// State copied from the retiring file to the fresh one.
struct RetiringState {
    info: ContainerInfo,
    metadata: Metadata,
    ranges: Vec<ShardRange>,
    incoming: Vec<SyncPoint>,
    outgoing: Vec<SyncPoint>,
    max_row: i64,
}

impl RetiringState {
    fn of(broker: ContainerBroker<'_>) -> Result<Self> {
        Ok(RetiringState {
            info: broker.info()?,
            metadata: broker.metadata()?,
            ranges: broker.shard_ranges()?,
            incoming: broker.sync_points(true)?,
            outgoing: broker.sync_points(false)?,
            max_row: broker.max_row()?,
        })
    }

    /// Writes the state. ROWIDs continue from the old file, so a replica that had all its rows has
    /// all of this one's. The hash is that of no rows.
    fn give(&self, broker: ContainerBroker<'_>) -> Result<()> {
        broker.update_metadata(self.metadata.iter(), false)?;
        broker.merge_shard_ranges(self.ranges.clone())?;
        broker.merge_syncs(&self.incoming, true)?;
        broker.merge_syncs(&self.outgoing, false)?;
        if self.max_row > 0 {
            broker.conn.execute(
                "INSERT INTO object (ROWID, name, created_at, size, content_type, etag)
                 VALUES (?, '', '0', 0, '', '')",
                [self.max_row],
            )?;
            broker
                .conn
                .execute("DELETE FROM object WHERE ROWID = ?", [self.max_row])?;
        }
        let info = &self.info;
        broker.conn.execute(
            "UPDATE container_info SET created_at = ?, delete_timestamp = ?, status = ?,
                 status_changed_at = ?",
            params![
                info.created_at,
                info.delete_timestamp,
                info.status,
                info.status_changed_at
            ],
        )?;
        Ok(())
    }
}

impl Db {
    pub(crate) fn begin_sharding(&self, config: &IndexConfig) -> Result<bool> {
        let mut writer = self.write_lock()?;
        let opened = self.open_merged(config, &mut writer)?;
        let Some(conn) = writer.as_ref() else {
            return Ok(false);
        };
        // Locks out writes to the retiring file between the copy and the switch.
        conn.execute_batch("BEGIN IMMEDIATE")?;
        let begun = self.make_fresh(config, conn, opened.schema);
        conn.execute_batch("ROLLBACK")?;
        let begun = begun?;
        if begun {
            self.forget(&mut writer);
        }
        Ok(begun)
    }

    fn make_fresh(&self, config: &IndexConfig, conn: &Connection, schema: Schema) -> Result<bool> {
        let broker = ContainerBroker(self.broker(config, conn, schema, false));
        let name = broker.own_name()?;
        let Some(epoch) = broker.own_shard_range()?.epoch else {
            tracing::warn!(name, "cannot be sharded: its own shard range has no epoch");
            return Ok(false);
        };
        if broker.db_state()? != DbState::Unsharded {
            return Ok(false);
        }
        let taken = RetiringState::of(broker)?;
        let new = NewDb::Container {
            account: taken.info.account.clone(),
            container: taken.info.container.clone(),
            put_timestamp: taken.info.put_timestamp.clone(),
            storage_policy_index: taken.info.storage_policy_index,
        };
        let path = self.path_at(config, Some(&epoch));
        self.build_file(config, &new, &path, |fresh| taken.give(fresh))?;
        Ok(true)
    }

    pub(crate) fn end_sharding(&self, config: &IndexConfig) -> Result<bool> {
        let mut writer = self.write_lock()?;
        let dir = self.key.dir(&config.devices);
        let mut files = files::db_files(&dir, &self.key.hash.hex())?;
        let (Some(_fresh), Some(retiring)) = (files.pop(), files.pop()) else {
            return Ok(false);
        };
        self.forget(&mut writer);
        match fs::remove_file(&retiring) {
            Ok(()) => {
                // A reader's leftover log has no meaning without it.
                let _ = fs::remove_file(wal_path(&retiring));
                files::sync_folder(&dir)?;
            }
            Err(error) if files::is_missing(&error) => return Ok(false),
            Err(error) => return Err(crate::IndexError::io(&retiring, error)),
        }
        Ok(files.is_empty())
    }

    pub(crate) fn create_at_epoch(
        &self,
        config: &IndexConfig,
        new: &NewDb,
        epoch: Option<&str>,
    ) -> Result<bool> {
        let _writer = self.write_lock()?;
        if self.exists(config)? {
            return Ok(false);
        }
        let dir = self.key.dir(&config.devices);
        let device = config.devices.join(&*self.key.device);
        let _lock = files::make_locked_folder(&device, &dir, config.lock_timeout)?;
        if files::find_db_file(&self.key, &config.devices)?.is_some() {
            return Ok(false);
        }
        self.build_file(config, new, &self.path_at(config, epoch), |_| Ok(()))?;
        Ok(true)
    }

    fn path_at(&self, config: &IndexConfig, epoch: Option<&str>) -> PathBuf {
        let hash = self.key.hash.hex();
        let name = match epoch {
            Some(epoch) => format!("{hash}_{epoch}.db"),
            None => format!("{hash}.db"),
        };
        self.key.dir(&config.devices).join(name)
    }

    /// Creates a file, complete and synced before it has its name.
    fn build_file(
        &self,
        config: &IndexConfig,
        new: &NewDb,
        path: &Path,
        fill: impl FnOnce(ContainerBroker<'_>) -> Result<()>,
    ) -> Result<()> {
        let dir = path.parent().unwrap_or(path);
        let temporary = dir.join(format!("{:032x}.tmp", (config.random)()));
        let build = || -> Result<()> {
            let (conn, file) = connection::open_new(&temporary)?;
            let id = config.new_db_id(&self.key.device);
            schema::create(&conn, new, &config.now().internal(), &id)?;
            let schema = Schema {
                indexed: true,
                has_epoch: false,
                known_triggers: true,
            };
            conn.execute_batch("BEGIN IMMEDIATE")?;
            fill(ContainerBroker(self.broker(config, &conn, schema, true)))?;
            conn.execute_batch("COMMIT")?;
            self.writer.set_stored_mode(&conn)?;
            conn.close()
                .map_err(|(_, error)| crate::IndexError::from(error))?;
            file.sync_all()
                .map_err(|error| crate::IndexError::io(&temporary, error))?;
            fs::rename(&temporary, path).map_err(|error| crate::IndexError::io(path, error))?;
            files::sync_folder(dir)
        };
        let built = build().map_err(|error| error.at(path));
        if built.is_err() {
            // Already renamed, or a leftover that nobody reads.
            let _ = fs::remove_file(&temporary);
        }
        built
    }
}
