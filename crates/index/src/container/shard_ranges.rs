//! Shard ranges in a container's database, and the merge of those from replicas.

use cairn_formats::shard::sort_ranges;
use cairn_types::Timestamp;
use rusqlite::{OptionalExtension, Row, params};

use crate::{ContainerBroker, Result};

pub use cairn_formats::shard::ShardRange;

pub(crate) fn read(row: &Row<'_>) -> rusqlite::Result<ShardRange> {
    let text = |column: usize| {
        row.get::<_, Option<String>>(column)
            .map(Option::unwrap_or_default)
    };
    let number = |column: usize| {
        row.get::<_, Option<i64>>(column)
            .map(Option::unwrap_or_default)
    };
    Ok(ShardRange {
        name: text(0)?,
        timestamp: text(1)?,
        lower: text(2)?,
        upper: text(3)?,
        object_count: number(4)?,
        bytes_used: number(5)?,
        meta_timestamp: text(6)?,
        deleted: number(7)?,
        state: number(8)?,
        state_timestamp: text(9)?,
        epoch: row.get(10)?,
        reported: number(11)?,
        tombstones: row.get::<_, Option<i64>>(12)?.unwrap_or(-1),
    })
}

pub(crate) const COLUMNS: &str =
    "name, timestamp, lower, upper, object_count, bytes_used, meta_timestamp,
    deleted, state, state_timestamp, epoch, reported, tombstones";

impl ContainerBroker<'_> {
    /// Whether the table has all columns; old releases have none, or fewer.
    pub(crate) fn has_shard_table(&self) -> Result<bool> {
        self.0.has_column("shard_range", "tombstones")
    }

    /// Highest ROWID of the shard ranges, or -1.
    ///
    /// # Errors
    /// As every query: see [`ContainerBroker`].
    pub fn shard_max_row(&self) -> Result<i64> {
        let row = self
            .0
            .conn
            .prepare_cached("SELECT seq FROM sqlite_sequence WHERE name = 'shard_range' LIMIT 1")?
            .query_row([], |row| row.get(0))
            .optional()?;
        Ok(row.unwrap_or(-1))
    }

    /// All ranges, including deleted ones and the container's own.
    ///
    /// # Errors
    /// As every query: see [`ContainerBroker`].
    pub fn shard_ranges(&self) -> Result<Vec<ShardRange>> {
        if !self.has_shard_table()? {
            return Ok(Vec::new());
        }
        let sql = format!("SELECT {COLUMNS} FROM shard_range");
        let mut query = self.0.conn.prepare_cached(&sql)?;
        let rows = query.query_map([], read)?;
        let mut ranges: Vec<ShardRange> = rows.collect::<rusqlite::Result<_>>()?;
        sort_ranges(&mut ranges);
        Ok(ranges)
    }

    /// Merges another replica's ranges. An own range with an epoch does not yield to one without,
    /// made by a replica that has not learnt of the sharding.
    ///
    /// # Errors
    /// As every query: see [`ContainerBroker`]. A missing stat row is `Sqlite`, too.
    pub fn merge_replicated_shard_ranges(&self, mut ranges: Vec<ShardRange>) -> Result<()> {
        let own = self.own_name()?;
        let is_reset = |range: &ShardRange| range.name == own && range.epoch.is_none();
        if ranges.iter().any(is_reset) && self.own_shard_range()?.epoch.is_some() {
            tracing::warn!(
                own,
                "a replica's own shard range without an epoch is ignored"
            );
            ranges.retain(|range| !is_reset(range));
        }
        self.merge_shard_ranges(ranges)
    }

    /// Merges ranges; the newest of each name wins.
    ///
    /// # Errors
    /// As every query: see [`ContainerBroker`].
    pub fn merge_shard_ranges(&self, ranges: Vec<ShardRange>) -> Result<()> {
        if ranges.is_empty() {
            return Ok(());
        }
        if !self.has_shard_table()? {
            crate::schema::shard_range_table(self.0.conn)?;
        }
        for mut range in ranges {
            let old = self.shard_range(&range.name)?;
            if let Some(old) = &old {
                if !range.take_newer(old) {
                    continue;
                }
                self.0
                    .conn
                    .prepare_cached("DELETE FROM shard_range WHERE name = ?")?
                    .execute([&range.name])?;
            }
            self.insert_shard_range(&range)?;
        }
        Ok(())
    }

    fn insert_shard_range(&self, range: &ShardRange) -> Result<()> {
        let sql = format!(
            "INSERT INTO shard_range ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        );
        self.0.conn.prepare_cached(&sql)?.execute(params![
            range.name,
            range.timestamp,
            range.lower,
            range.upper,
            range.object_count,
            range.bytes_used,
            range.meta_timestamp,
            range.deleted,
            range.state,
            range.state_timestamp,
            range.epoch,
            range.reported,
            range.tombstones
        ])?;
        Ok(())
    }

    pub(crate) fn shard_range(&self, name: &str) -> Result<Option<ShardRange>> {
        let sql = format!("SELECT {COLUMNS} FROM shard_range WHERE name = ?");
        let mut query = self.0.conn.prepare_cached(&sql)?;
        Ok(query.query_row([name], read).optional()?)
    }

    /// Name of the container's own shard range: `account/container`.
    ///
    /// # Errors
    /// As every query: see [`ContainerBroker`]. A missing stat row is `Sqlite`, too.
    pub fn own_name(&self) -> Result<String> {
        let sql = "SELECT account || '/' || container FROM container_info LIMIT 1";
        Ok(self.0.conn.query_row(sql, [], |row| row.get(0))?)
    }

    /// Whether its rows belong to shards now or later.
    ///
    /// # Errors
    /// As every query: see [`ContainerBroker`]. A missing stat row is `Sqlite`, too.
    pub fn is_sharding_initiated(&self) -> Result<bool> {
        if !self.has_shard_table()? {
            return Ok(false);
        }
        let own = self.shard_range(&self.own_name()?)?;
        Ok(own.is_some_and(|own| own.is_cleaving()) && self.has_shards()?)
    }

    /// Whether there are undeleted ranges beside its own.
    ///
    /// # Errors
    /// As every query: see [`ContainerBroker`]. A missing stat row is `Sqlite`, too.
    pub fn has_shards(&self) -> Result<bool> {
        if !self.has_shard_table()? {
            return Ok(false);
        }
        let sql = "SELECT 1 FROM shard_range WHERE deleted = 0 AND name != ? LIMIT 1";
        Ok(self
            .0
            .conn
            .prepare_cached(sql)?
            .exists([self.own_name()?])?)
    }

    /// Whether clients know this container: it is not a shard.
    ///
    /// # Errors
    /// `Corrupt` without a stat row, `MetadataText` if the metadata is not readable; else as every
    /// query: see [`ContainerBroker`].
    pub fn is_root(&self) -> Result<bool> {
        if let Some(root) = self.root_sysmeta()? {
            return Ok(root == self.own_name()?);
        }
        // A deleted shard of old releases lacks its root's name; its own range is deleted.
        let own = match self.has_shard_table()? {
            true => self.shard_range(&self.own_name()?)?,
            false => None,
        };
        Ok(own.is_none_or(|own| !own.is_deleted()))
    }

    pub(crate) fn has_reclaimable_shards(&self, age: Timestamp) -> Result<bool> {
        if !self.has_shard_table()? {
            return Ok(false);
        }
        let sql = "SELECT 1 FROM shard_range WHERE deleted = 1 AND timestamp < ? AND name != ?";
        let own = self.own_name()?;
        Ok(self
            .0
            .conn
            .prepare_cached(sql)?
            .exists([age.internal(), own])?)
    }
}
