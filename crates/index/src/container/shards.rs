//! A container's shards: their ranges, the state of sharding, and rows of a range of names.
//!
//! While being sharded a container has two files: the retiring one, whose rows are copied into
//! shards, and `<hash>_<epoch>.db`, which takes new rows. Afterwards only the latter remains.

use std::path::{Path, PathBuf};

use cairn_formats::shard::{Bound, Bounded, ShardRange, State, sort_ranges, total};
use cairn_types::Timestamp;
use rusqlite::{OptionalExtension, params, params_from_iter};

use super::shard_ranges::{COLUMNS, read};
use super::{ContainerBroker, ContainerInfo};
use crate::broker::{Broker, timestamp};
use crate::schema::Schema;
use crate::sync::ObjectRecord;
use crate::{IndexError, Result, connection, files};

const SYSMETA: &str = "X-Container-Sysmeta-Shard-";

/// State of a container's sharding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DbState {
    Unsharded,
    /// Two files: rows are being copied to shards.
    Sharding,
    Sharded,
    /// Formerly sharded; its shards have been merged back.
    Collapsed,
}

impl DbState {
    pub const fn name(self) -> &'static str {
        match self {
            DbState::Unsharded => "unsharded",
            DbState::Sharding => "sharding",
            DbState::Sharded => "sharded",
            DbState::Collapsed => "collapsed",
        }
    }
}

/// Query of shard ranges. Empty texts and lists impose no condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeQuery {
    pub marker: String,
    pub end_marker: String,
    /// Only the range that contains this name; markers are ignored.
    pub includes: Option<String>,
    pub reverse: bool,
    pub include_deleted: bool,
    pub states: Vec<State>,
    /// Includes the container's own range.
    pub include_own: bool,
    /// Adds the container itself for names beyond the last range.
    pub fill_gaps: bool,
}

/// A candidate range without a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundRange {
    pub index: usize,
    pub lower: String,
    pub upper: String,
    pub object_count: i64,
}

/// Parameters of the search for shard bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    pub rows_per_shard: i64,
    /// Minimum rows of the last shard.
    pub minimum_rows: i64,
    /// Maximum ranges per call; none is unlimited.
    pub limit: Option<usize>,
}

/// Query of rows in a range of names, by page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowsQuery {
    /// Exclusive lower bound of names.
    pub lower: String,
    /// Inclusive upper bound; empty is unbounded.
    pub upper: String,
    pub deleted: bool,
    /// Only rows with a higher row number.
    pub since_row: i64,
    /// Last row of the previous page.
    pub after: Option<(String, i64)>,
    pub limit: usize,
}

/// Epoch in a file's name.
pub(crate) fn epoch_of(file: &Path) -> Option<String> {
    let stem = file.file_stem()?.to_str()?;
    stem.split_once('_').map(|(_, epoch)| epoch.to_owned())
}

impl ContainerBroker<'_> {
    /// Path of the database file.
    pub fn file(&self) -> PathBuf {
        self.0.conn.path().unwrap_or_default().into()
    }

    /// All files of this database, oldest first.
    fn files(&self) -> Result<Vec<PathBuf>> {
        let file = self.file();
        files::db_files(file.parent().unwrap_or(&file), &self.0.key.hash.hex())
    }

    /// Epoch of the file; none if the container was never sharded.
    pub fn db_epoch(&self) -> Option<String> {
        epoch_of(&self.file())
    }

    /// State of the sharding, by the files and the own shard range.
    ///
    /// # Errors
    /// `Io` or `DriveFailed` if the folder cannot be read; else as every query: see [`Broker`].
    pub fn db_state(&self) -> Result<DbState> {
        if !self.0.schema.has_epoch {
            return Ok(DbState::Unsharded);
        }
        if self.files()?.len() > 1 {
            return Ok(DbState::Sharding);
        }
        if self.db_epoch() != self.own_shard_range()?.epoch {
            return Ok(DbState::Unsharded);
        }
        match self.has_shards()? {
            true => Ok(DbState::Sharded),
            false => Ok(DbState::Collapsed),
        }
    }

    /// Sets the state, and totals that come from the retiring file or the shards.
    pub(super) fn add_shard_facts(&self, info: &mut ContainerInfo) -> Result<()> {
        let state = self.db_state()?;
        info.db_state = state.name();
        match state {
            DbState::Sharding => {
                let old = self.with_source(|source| source.info())?;
                (info.object_count, info.bytes_used) = (old.object_count, old.bytes_used);
            }
            DbState::Sharded if self.is_root()? => {
                (info.object_count, info.bytes_used) = self.shard_usage()?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether the retiring file and a root's shards have no objects.
    pub(super) fn is_empty_beyond(&self) -> Result<bool> {
        let source_is_empty = self.with_source(|source| source.is_empty_itself())?;
        let in_shards = source_is_empty && self.is_sharding_initiated()? && self.is_root()?;
        Ok(source_is_empty && !(in_shards && self.shard_usage()?.0 > 0))
    }

    /// Objects and bytes in all shards.
    ///
    /// # Errors
    /// As every query: see [`Broker`].
    pub fn shard_usage(&self) -> Result<(i64, i64)> {
        let ranges = self.list_shard_ranges(&RangeQuery {
            states: State::COUNTED.to_vec(),
            ..RangeQuery::default()
        })?;
        let objects = total(ranges.iter().map(|range| range.object_count));
        let bytes = total(ranges.iter().map(|range| range.bytes_used));
        Ok((objects, bytes))
    }

    /// Runs `f` on the file whose rows are listed and cleaved: the retiring one if there is one,
    /// else this one.
    ///
    /// # Errors
    /// Those of `f`, and of finding and opening the retiring file: see [`ContainerBroker`].
    pub fn with_source<T>(&self, f: impl FnOnce(&ContainerBroker<'_>) -> Result<T>) -> Result<T> {
        match self.retiring()? {
            Some(file) => {
                let conn = connection::open_reader(&file, self.0.config)?;
                // Only the writer knows whether the log is sound.
                connection::set_log_stays(&conn, true)?;
                f(&self.on(&conn, false)?).map_err(|error| error.at(&file))
            }
            None => f(self),
        }
    }

    /// As [`ContainerBroker::with_source`], in a transaction of that file.
    ///
    /// # Errors
    /// Those of `f`, which roll back, and of finding, opening and writing the retiring file: see
    /// [`ContainerBroker`].
    pub fn with_source_to_write<T>(
        &self,
        f: impl FnOnce(&ContainerBroker<'_>) -> Result<T>,
    ) -> Result<T> {
        let Some(file) = self.retiring()? else {
            return f(self);
        };
        let conn = connection::open_beside(&file, self.0.config)?;
        // Transactions are rare here: SQLite syncs each by itself.
        conn.pragma_update(None, "synchronous", "FULL")?;
        conn.execute_batch("BEGIN IMMEDIATE")?;
        let value = f(&self.on(&conn, false)?).map_err(|error| error.at(&file))?;
        conn.execute_batch("COMMIT")?;
        connection::close(conn, true);
        Ok(value)
    }

    /// The retiring file beside this one, if any.
    fn retiring(&self) -> Result<Option<PathBuf>> {
        if !self.0.schema.has_epoch {
            return Ok(None);
        }
        let mut files = self.files()?;
        files.pop();
        Ok(files.pop())
    }

    fn on<'s>(
        &'s self,
        conn: &'s rusqlite::Connection,
        has_epoch: bool,
    ) -> Result<ContainerBroker<'s>> {
        let indexed = conn
            .prepare("SELECT 1 FROM sqlite_master WHERE name = 'ix_object_deleted_name'")?
            .exists([])?;
        Ok(ContainerBroker(Broker {
            conn,
            schema: Schema {
                indexed,
                has_epoch,
                known_triggers: false,
            },
            ..self.0
        }))
    }

    /// The container's own range; by default the whole namespace.
    ///
    /// # Errors
    /// As every query: see [`Broker`]. A missing stat row is `Sqlite`, too.
    pub fn own_shard_range(&self) -> Result<ShardRange> {
        let name = self.own_name()?;
        if let Some(own) = self.stored_own_shard_range()? {
            return Ok(own);
        }
        let mut own = ShardRange::new(name, self.0.config.now(), "", "");
        own.set_state(State::Active);
        Ok(own)
    }

    /// The container's own range, if one is stored.
    ///
    /// # Errors
    /// As every query: see [`Broker`]. A missing stat row is `Sqlite`, too.
    pub fn stored_own_shard_range(&self) -> Result<Option<ShardRange>> {
        match self.has_shard_table()? {
            true => self.shard_range(&self.own_name()?),
            false => Ok(None),
        }
    }

    /// Whether sharding has begun and is not complete.
    ///
    /// # Errors
    /// Those of [`ContainerBroker::db_state`].
    pub fn is_sharding_required(&self) -> Result<bool> {
        match self.db_state()? {
            DbState::Sharding => Ok(true),
            DbState::Unsharded => self.is_sharding_initiated(),
            _ => Ok(false),
        }
    }

    /// Shard ranges in the order of their upper bounds.
    ///
    /// # Errors
    /// As every query: see [`Broker`]. A missing stat row is `Sqlite`, too.
    pub fn list_shard_ranges(&self, query: &RangeQuery) -> Result<Vec<ShardRange>> {
        let (marker, end_marker) = match query.reverse {
            true => (&query.end_marker, &query.marker),
            false => (&query.marker, &query.end_marker),
        };
        let is_void = !marker.is_empty() && !end_marker.is_empty() && marker >= end_marker;
        if !self.has_shard_table()? || is_void {
            return Ok(Vec::new());
        }
        let mut sql = format!("SELECT {COLUMNS} FROM shard_range WHERE 1");
        let mut values: Vec<String> = Vec::new();
        let mut add = |condition: &str, bound: &[&str]| {
            sql.push_str(" AND ");
            sql.push_str(condition);
            values.extend(bound.iter().map(|text| (*text).to_owned()));
        };
        if !query.include_deleted {
            add("deleted = 0", &[]);
        }
        let own = self.own_name()?;
        if !query.include_own {
            add("name != ?", &[&own]);
        }
        if !query.states.is_empty() {
            let states: Vec<String> = query
                .states
                .iter()
                .map(|s| (*s as i64).to_string())
                .collect();
            add(&format!("state IN ({})", states.join(",")), &[]);
        }
        match &query.includes {
            Some(name) => {
                add("lower < ?", &[name]);
                add("(upper = '' OR upper >= ?)", &[name]);
            }
            None => {
                if !end_marker.is_empty() {
                    add("lower < ?", &[end_marker]);
                }
                if !marker.is_empty() {
                    add("(upper = '' OR upper > ?)", &[marker]);
                }
            }
        }
        let mut statement = self.0.conn.prepare_cached(&sql)?;
        let rows = statement.query_map(params_from_iter(values), read)?;
        let mut ranges: Vec<ShardRange> = rows.collect::<rusqlite::Result<_>>()?;
        sort_ranges(&mut ranges);
        if query.includes.is_some() {
            ranges.truncate(1);
            return Ok(ranges);
        }
        if query.fill_gaps {
            ranges.extend(self.filler(ranges.last(), marker, end_marker)?);
        }
        if query.reverse {
            ranges.reverse();
        }
        Ok(ranges)
    }

    /// The container itself as a range, from the end of the last range.
    fn filler(
        &self,
        last: Option<&ShardRange>,
        marker: &str,
        end_marker: &str,
    ) -> Result<Option<ShardRange>> {
        let mut own = self.own_shard_range()?;
        let from = match last {
            Some(last) => last.upper(),
            None => own.lower().max(Bound::lower(marker)),
        };
        let to = own.upper().min(Bound::upper(end_marker));
        if to <= from {
            return Ok(None);
        }
        (own.lower, own.upper) = (from.text().to_owned(), to.text().to_owned());
        Ok(Some(own))
    }

    /// Starts sharding: the own range gets a new epoch.
    ///
    /// # Errors
    /// As every query: see [`Broker`]. A missing stat row is `Sqlite`, too.
    pub fn enable_sharding(&self, epoch: Timestamp) -> Result<ShardRange> {
        let mut own = self.own_shard_range()?;
        own.set_state_at(State::Sharding, epoch);
        own.epoch = Some(epoch.normal());
        self.merge_shard_ranges(vec![own.clone()])?;
        Ok(own)
    }

    /// Searches for shard bounds after the existing ranges. True with the last range.
    ///
    /// # Errors
    /// Those of [`ContainerBroker::info`] and [`ContainerBroker::with_source`].
    pub fn find_shard_ranges(
        &self,
        cut: Cut,
        existing: &[ShardRange],
    ) -> Result<(Vec<FoundRange>, bool)> {
        let minimum = cut.minimum_rows.max(1);
        let object_count = self.info()?.object_count;
        if cut.rows_per_shard + minimum > object_count {
            return Ok((Vec::new(), false));
        }
        let own = self.own_shard_range()?;
        let mut at = own.lower.clone();
        // Ranges changed since they were found have counts unrelated to the remaining rows.
        let mut done = Some(0);
        if let Some(last) = existing.last() {
            done = existing
                .iter()
                .all(|range| range.is(State::Found))
                .then(|| total(existing.iter().map(|range| range.object_count)));
            if last.upper() >= own.upper() {
                return Ok((Vec::new(), true));
            }
            at.clone_from(&last.upper);
        }
        self.with_source(|source| {
            let mut found = Vec::new();
            while cut.limit.is_none_or(|limit| found.len() < limit) {
                let is_last = done.unwrap_or(0) + cut.rows_per_shard + minimum > object_count;
                let upper = match is_last {
                    true => None,
                    false => source.name_at(&at, cut.rows_per_shard)?,
                };
                let upper = upper.filter(|upper| Bound::At(upper) <= own.upper());
                let count = match (&upper, done) {
                    (None, Some(done)) => object_count - done,
                    _ => cut.rows_per_shard,
                };
                let upper = upper.unwrap_or_else(|| own.upper.clone());
                let ended = upper == own.upper;
                found.push(FoundRange {
                    index: existing.len() + found.len(),
                    lower: std::mem::replace(&mut at, upper.clone()),
                    upper,
                    object_count: count,
                });
                if ended {
                    return Ok((found, true));
                }
                done = done.map(|done| done + cut.rows_per_shard);
            }
            Ok((found, false))
        })
    }

    /// Name of the object `count` objects after `after`.
    fn name_at(&self, after: &str, count: i64) -> Result<Option<String>> {
        let sql = "SELECT name FROM object WHERE deleted = 0 AND name > ?
                   ORDER BY name LIMIT 1 OFFSET ?";
        let row = self
            .0
            .conn
            .prepare_cached(sql)?
            .query_row(params![after, count - 1], |row| row.get(0));
        Ok(row.optional()?)
    }

    /// Rows of all policies in the order of their names.
    ///
    /// # Errors
    /// As every query: see [`Broker`].
    pub fn rows_between(&self, query: &RowsQuery) -> Result<Vec<ObjectRecord>> {
        let (name, row) = match &query.after {
            Some((name, row)) => (name.as_str(), *row),
            None => (query.lower.as_str(), i64::MAX),
        };
        let sql = "SELECT ROWID, name, created_at, size, content_type, etag, deleted,
                       storage_policy_index FROM object
                   WHERE deleted = ?1 AND name >= ?2 AND (name, ROWID) > (?2, ?3)
                       AND (?4 = '' OR name <= ?4) AND ROWID > ?5
                   ORDER BY name, ROWID LIMIT ?6";
        let mut statement = self.0.conn.prepare_cached(sql)?;
        let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
        let values = params![
            query.deleted,
            name,
            row,
            query.upper,
            query.since_row,
            limit
        ];
        let rows = statement.query_map(values, |row| {
            Ok(ObjectRecord {
                rowid: row.get(0)?,
                name: row.get(1)?,
                created_at: row.get::<_, Option<String>>(2)?.unwrap_or_default(),
                size: row.get::<_, Option<i64>>(3)?.unwrap_or(0),
                content_type: row.get::<_, Option<String>>(4)?.unwrap_or_default(),
                etag: row.get::<_, Option<String>>(5)?.unwrap_or_default(),
                deleted: row.get(6)?,
                storage_policy_index: row.get::<_, Option<i64>>(7)?.unwrap_or(0),
            })
        })?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// Deletes the rows of a range of names, up to a row number; leaves no tombstones.
    ///
    /// # Errors
    /// As every query: see [`Broker`]. `Sqlite` also for a stored hash that is not hexadecimal.
    pub fn remove_rows(&self, lower: &str, upper: &str, max_row: i64) -> Result<usize> {
        let sql = "DELETE FROM object WHERE deleted IN (0, 1) AND name > ?1
                   AND (?2 = '' OR name <= ?2) AND ROWID <= ?3";
        let mut statement = self.0.conn.prepare_cached(sql)?;
        Ok(statement.execute(params![lower, upper, max_row])?)
    }

    /// Number of tombstones.
    ///
    /// # Errors
    /// As every query: see [`Broker`].
    pub fn tombstone_count(&self) -> Result<i64> {
        let sql = "SELECT count(*) FROM object WHERE deleted = 1";
        Ok(self.0.conn.query_row(sql, [], |row| row.get(0))?)
    }

    /// Sharding metadata: name without its prefix, value, time.
    ///
    /// # Errors
    /// Those of [`Broker::metadata`].
    pub fn sharding_sysmeta(&self) -> Result<Vec<(String, String, String)>> {
        let metadata = self.metadata()?;
        let ours = metadata.iter().filter_map(|(name, value, time)| {
            let short = name.strip_prefix(SYSMETA)?;
            Some((short.to_owned(), value.to_owned(), time.to_owned()))
        });
        Ok(ours.collect())
    }

    /// Sets an item of the sharding metadata; an empty value removes it.
    ///
    /// # Errors
    /// Those of [`Broker::metadata`].
    pub fn set_sharding_sysmeta(&self, name: &str, value: &str) -> Result<()> {
        let name = format!("{SYSMETA}{name}");
        let now = self.0.config.now();
        // Two changes in the same instant must still be ordered.
        let next = match self.metadata()?.get(&name) {
            Some((_, before)) => now.max(timestamp(before).plus_ticks(1)),
            None => now,
        };
        self.update_metadata([(&*name, value, &*next.internal())], false)
    }

    /// The root's `account/container` as stored in a shard's metadata.
    pub(crate) fn root_sysmeta(&self) -> Result<Option<String>> {
        let metadata = self.metadata()?;
        let value = |name: &str| {
            let (value, _) = metadata.get(name)?;
            (!value.is_empty()).then(|| value.to_owned())
        };
        let quoted = value("X-Container-Sysmeta-Shard-Quoted-Root");
        Ok(quoted
            .map(|quoted| unquoted(&quoted))
            .or_else(|| value("X-Container-Sysmeta-Shard-Root")))
    }

    /// The root container: `account/container`.
    ///
    /// # Errors
    /// `BadRow` if the metadata's root is not `account/container`; else those of
    /// [`Broker::metadata`].
    pub fn root_name(&self) -> Result<String> {
        match self.root_sysmeta()? {
            Some(root) if root.split('/').count() == 2 => Ok(root),
            Some(root) => Err(IndexError::bad_row(format!(
                "X-Container-Sysmeta-Shard-Root is {root:?}, not account/container"
            ))),
            None => self.own_name(),
        }
    }
}

fn unquoted(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = text.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(code) => {
                out.push(code);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_roots_and_files() {
        assert_eq!(unquoted("a%20b/%C3%A9%zz"), "a b/é%zz");
        assert_eq!(
            epoch_of(Path::new("/d/ab_12.5.db")).as_deref(),
            Some("12.5")
        );
        assert_eq!(epoch_of(Path::new("/d/ab.db")), None);
    }
}
