//! Shard ranges as replicas send them, and how they are merged: each range by its own creation,
//! then its counts and its state by their own times. Nothing here shards; replicas of a container
//! that something else shards must agree on its ranges all the same.

use cairn_types::Timestamp;
use rusqlite::{OptionalExtension, Row, params};
use serde::{Deserialize, Serialize};

use crate::{ContainerBroker, Result};

/// States from which on a container's rows are handed to its shards: shrinking, sharding, sharded
/// and shrunk.
const CLEAVING_STATES: [i64; 4] = [50, 60, 70, 80];

/// A row of the table `shard_range`; the JSON has the columns' names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardRange {
    pub name: String,
    pub timestamp: String,
    pub lower: String,
    pub upper: String,
    pub object_count: i64,
    pub bytes_used: i64,
    pub meta_timestamp: String,
    pub deleted: i64,
    pub state: i64,
    pub state_timestamp: String,
    pub epoch: Option<String>,
    #[serde(default)]
    pub reported: i64,
    #[serde(default = "unknown")]
    pub tombstones: i64,
}

fn unknown() -> i64 {
    -1
}

/// Puts into `new` what `old` has newer. False if that leaves nothing new.
fn merge(new: &mut ShardRange, old: &ShardRange) -> bool {
    if old.timestamp < new.timestamp {
        new.reported = 0;
        return true;
    }
    if old.timestamp > new.timestamp {
        return false;
    }
    let mut news = false;
    new.lower.clone_from(&old.lower);
    new.upper.clone_from(&old.upper);
    new.deleted = old.deleted;
    if old.meta_timestamp >= new.meta_timestamp {
        new.object_count = old.object_count;
        new.bytes_used = old.bytes_used;
        new.meta_timestamp.clone_from(&old.meta_timestamp);
        new.tombstones = old.tombstones;
    } else {
        news = true;
    }
    let same = old.object_count == new.object_count
        && old.bytes_used == new.bytes_used
        && old.tombstones == new.tombstones
        && old.state == new.state
        && old.epoch == new.epoch;
    if old.reported != 0 && same {
        new.reported = 1;
    } else if new.reported != 0 && old.reported == 0 {
        news = true;
    }
    let advances = old.state_timestamp == new.state_timestamp && new.state > old.state;
    if advances || old.state_timestamp < new.state_timestamp {
        return true;
    }
    new.state = old.state;
    new.state_timestamp.clone_from(&old.state_timestamp);
    new.epoch.clone_from(&old.epoch);
    news
}

fn read(row: &Row<'_>) -> rusqlite::Result<ShardRange> {
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

const COLUMNS: &str = "name, timestamp, lower, upper, object_count, bytes_used, meta_timestamp,
    deleted, state, state_timestamp, epoch, reported, tombstones";

impl ContainerBroker<'_> {
    /// Databases of old releases have no such table, or one with fewer columns.
    fn has_shard_table(&self) -> Result<bool> {
        self.0.has_column("shard_range", "tombstones")
    }

    /// The highest row number of the shard ranges, or -1.
    pub fn shard_max_row(&self) -> Result<i64> {
        let row = self
            .0
            .conn
            .prepare_cached("SELECT seq FROM sqlite_sequence WHERE name = 'shard_range' LIMIT 1")?
            .query_row([], |row| row.get(0))
            .optional()?;
        Ok(row.unwrap_or(-1))
    }

    /// All ranges, deleted ones and the container's own too.
    pub fn shard_ranges(&self) -> Result<Vec<ShardRange>> {
        if !self.has_shard_table()? {
            return Ok(Vec::new());
        }
        let sql = format!("SELECT {COLUMNS} FROM shard_range ORDER BY lower, upper, ROWID");
        let mut query = self.0.conn.prepare_cached(&sql)?;
        let rows = query.query_map([], read)?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// Merges another replica's ranges. An own range that has an epoch does not yield to one
    /// without: that one was made by a replica that knows nothing of the sharding.
    pub fn merge_shard_ranges(&self, ranges: Vec<ShardRange>) -> Result<()> {
        if ranges.is_empty() {
            return Ok(());
        }
        if !self.has_shard_table()? {
            crate::migrate::shard_range_table(self.0.conn)?;
        }
        let own = self.own_name()?;
        for mut range in ranges {
            let old = self.shard_range(&range.name)?;
            if let Some(old) = &old {
                let stays = range.name == own && old.epoch.is_some() && range.epoch.is_none();
                if stays || !merge(&mut range, old) {
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

    fn shard_range(&self, name: &str) -> Result<Option<ShardRange>> {
        let sql = format!("SELECT {COLUMNS} FROM shard_range WHERE name = ?");
        let mut query = self.0.conn.prepare_cached(&sql)?;
        Ok(query.query_row([name], read).optional()?)
    }

    fn own_name(&self) -> Result<String> {
        let sql = "SELECT account || '/' || container FROM container_info LIMIT 1";
        Ok(self.0.conn.query_row(sql, [], |row| row.get(0))?)
    }

    /// Its rows belong to its shards, or will.
    pub fn is_sharding_initiated(&self) -> Result<bool> {
        if !self.has_shard_table()? {
            return Ok(false);
        }
        let own = self.shard_range(&self.own_name()?)?;
        Ok(own.is_some_and(|own| CLEAVING_STATES.contains(&own.state)) && self.has_shards()?)
    }

    /// Ranges of others than the container itself, not deleted.
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

    /// A container that clients know, not a shard of one.
    pub fn is_root(&self) -> Result<bool> {
        let metadata = self.0.metadata()?;
        let is_set = |name: &str| metadata.get(name).is_some_and(|(root, _)| !root.is_empty());
        Ok(!is_set("X-Container-Sysmeta-Shard-Quoted-Root")
            && !is_set("X-Container-Sysmeta-Shard-Root"))
    }

    pub(super) fn has_reclaimable_shards(&self, age: Timestamp) -> Result<bool> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn range(timestamp: &str, meta: &str, state: (i64, &str)) -> ShardRange {
        ShardRange {
            name: "a/c".into(),
            timestamp: timestamp.into(),
            meta_timestamp: meta.into(),
            object_count: meta.len() as i64,
            state: state.0,
            state_timestamp: state.1.into(),
            ..ShardRange::default()
        }
    }

    #[test]
    fn each_part_by_its_own_time() {
        let old = range("2", "5", (40, "5"));
        assert!(!merge(&mut range("1", "9", (60, "9")), &old));
        assert!(merge(&mut range("3", "1", (10, "1")), &old));
        assert!(!merge(&mut old.clone(), &old));
        let mut newer_state = range("2", "44", (60, "6"));
        assert!(merge(&mut newer_state, &old));
        assert_eq!((newer_state.object_count, newer_state.state), (1, 60));
        let mut newer_counts = range("2", "66", (60, "4"));
        assert!(merge(&mut newer_counts, &old));
        assert_eq!((newer_counts.object_count, newer_counts.state), (2, 40));
        // Of two states of one moment the later in life wins.
        assert!(merge(&mut range("2", "5", (50, "5")), &old));
    }
}
