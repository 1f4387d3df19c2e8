//! What a container knows of its shards: which ranges there are, how far sharding has come, and
//! the rows of a part of the namespace.
//!
//! While it is being sharded a container has two files: the retiring one, whose rows are copied
//! into shards, and `<hash>_<epoch>.db`, which takes what is new. Afterwards only that is left.

use std::path::{Path, PathBuf};

use cairn_formats::shard::{Bound, Bounded, ShardRange, State, sort_ranges};
use cairn_types::Timestamp;
use rusqlite::{OptionalExtension, params, params_from_iter};

use super::{ContainerBroker, ContainerInfo};
use crate::broker::{Broker, timestamp};
use crate::migrate::Schema;
use crate::replication::shard_table::{COLUMNS, read};
use crate::sync::ObjectRecord;
use crate::{IndexError, Result, connection, files};

const SYSMETA: &str = "X-Container-Sysmeta-Shard-";

/// How far the sharding of a container has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DbState {
    Unsharded,
    /// Two files: rows are on their way to the shards.
    Sharding,
    Sharded,
    /// Was sharded, and its shards have been merged into it again.
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

/// Which shard ranges are wanted. Empty texts and lists are no condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeQuery {
    pub marker: String,
    pub end_marker: String,
    /// Only the range that has this name; markers do not count then.
    pub includes: Option<String>,
    pub reverse: bool,
    pub include_deleted: bool,
    pub states: Vec<State>,
    /// The container's own range too.
    pub include_own: bool,
    /// What the ranges leave open at the end is covered by the container itself.
    pub fill_gaps: bool,
}

/// A range yet to be named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundRange {
    pub index: usize,
    pub lower: String,
    pub upper: String,
    pub object_count: i64,
}

/// How a container is to be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    pub rows_per_shard: i64,
    /// The last shard has no fewer rows.
    pub minimum_rows: i64,
    /// Ranges found at once; none: all.
    pub limit: Option<usize>,
}

/// Rows of a part of the namespace, page by page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowsQuery {
    /// Names above this one …
    pub lower: String,
    /// … and up to this one; empty: to the end.
    pub upper: String,
    pub deleted: bool,
    /// Only rows after this one.
    pub since_row: i64,
    /// The last row of the page before.
    pub after: Option<(String, i64)>,
    pub limit: usize,
}

/// The epoch of a file's name.
pub(crate) fn epoch_of(file: &Path) -> Option<String> {
    let stem = file.file_stem()?.to_str()?;
    stem.split_once('_').map(|(_, epoch)| epoch.to_owned())
}

impl ContainerBroker<'_> {
    /// Where the database is.
    pub fn file(&self) -> PathBuf {
        self.0.conn.path().unwrap_or_default().into()
    }

    /// All files there are of this database, oldest first.
    fn files(&self) -> Result<Vec<PathBuf>> {
        let file = self.file();
        files::db_files(file.parent().unwrap_or(&file), &self.0.key.hash.hex())
    }

    /// The epoch of the file: none where the container was never sharded.
    pub fn db_epoch(&self) -> Option<String> {
        epoch_of(&self.file())
    }

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

    /// State, and counts that are not those of this file's own rows.
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

    /// No objects in the retiring file, nor in a root's shards.
    pub(super) fn is_empty_beyond(&self) -> Result<bool> {
        let source_is_empty = self.with_source(|source| source.is_empty_itself())?;
        let in_shards = source_is_empty && self.is_sharding_initiated()? && self.is_root()?;
        Ok(source_is_empty && !(in_shards && self.shard_usage()?.0 > 0))
    }

    /// Objects and bytes of all shards.
    pub fn shard_usage(&self) -> Result<(i64, i64)> {
        let ranges = self.list_shard_ranges(&RangeQuery {
            states: State::COUNTED.to_vec(),
            ..RangeQuery::default()
        })?;
        let objects = ranges.iter().map(|range| range.object_count).sum();
        let bytes = ranges.iter().map(|range| range.bytes_used).sum();
        Ok((objects, bytes))
    }

    /// Runs `f` on the file whose rows are to be listed and cleaved: the retiring one while there
    /// is one, else this.
    pub fn with_source<T>(&self, f: impl FnOnce(&ContainerBroker<'_>) -> Result<T>) -> Result<T> {
        match self.retiring()? {
            Some(file) => {
                let conn = connection::open_reader(&file, self.0.config)?;
                // Only who writes it knows whether its log is sound.
                connection::set_log_stays(&conn, true)?;
                f(&self.on(&conn, false)?).map_err(|error| error.at(&file))
            }
            None => f(self),
        }
    }

    /// As [`ContainerBroker::with_source`], in a transaction of that file.
    pub fn with_source_to_write<T>(
        &self,
        f: impl FnOnce(&ContainerBroker<'_>) -> Result<T>,
    ) -> Result<T> {
        let Some(file) = self.retiring()? else {
            return f(self);
        };
        let conn = connection::open_writer(&file, self.0.config)?;
        // Few transactions are made here: each is synced by SQLite itself.
        conn.pragma_update(None, "synchronous", "FULL")?;
        conn.execute_batch("BEGIN IMMEDIATE")?;
        let value = f(&self.on(&conn, false)?).map_err(|error| error.at(&file))?;
        conn.execute_batch("COMMIT")?;
        connection::close(conn, true);
        Ok(value)
    }

    /// The file whose rows go into shards, beside this one.
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

    /// The container's own range; one of the whole namespace where there is none.
    pub fn own_shard_range(&self) -> Result<ShardRange> {
        let name = self.own_name()?;
        if let Some(own) = self.stored_own_shard_range()? {
            return Ok(own);
        }
        let mut own = ShardRange::new(name, self.0.config.now(), "", "");
        own.set_state(State::Active);
        Ok(own)
    }

    /// None: it was never written.
    pub fn stored_own_shard_range(&self) -> Result<Option<ShardRange>> {
        match self.has_shard_table()? {
            true => self.shard_range(&self.own_name()?),
            false => Ok(None),
        }
    }

    /// Sharding has begun and is not over.
    pub fn is_sharding_required(&self) -> Result<bool> {
        match self.db_state()? {
            DbState::Sharding => Ok(true),
            DbState::Unsharded => self.is_sharding_initiated(),
            _ => Ok(false),
        }
    }

    /// In the order of their upper bounds.
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

    /// The container itself, for what is behind the last range.
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

    /// Asks for sharding: the own range begins a new epoch.
    pub fn enable_sharding(&self, epoch: Timestamp) -> Result<ShardRange> {
        let mut own = self.own_shard_range()?;
        own.set_state_at(State::Sharding, epoch);
        own.epoch = Some(epoch.normal());
        self.merge_shard_ranges(vec![own.clone()])?;
        Ok(own)
    }

    /// Where to cut, from behind the ranges there are on. True: the last one was found.
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
        // Counts of ranges that have changed since they were found say nothing of the rows left.
        let mut done = Some(0);
        if let Some(last) = existing.last() {
            done = existing
                .iter()
                .all(|range| range.is(State::Found))
                .then(|| existing.iter().map(|range| range.object_count).sum());
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

    /// The name of the object that is so many objects behind `after`.
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

    /// Rows of all policies, in the order of their names.
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

    /// Removes the rows of a part of the namespace for good, up to this row.
    pub fn remove_rows(&self, lower: &str, upper: &str, max_row: i64) -> Result<usize> {
        let sql = "DELETE FROM object WHERE deleted IN (0, 1) AND name > ?1
                   AND (?2 = '' OR name <= ?2) AND ROWID <= ?3";
        let mut statement = self.0.conn.prepare_cached(sql)?;
        Ok(statement.execute(params![lower, upper, max_row])?)
    }

    pub fn tombstone_count(&self) -> Result<i64> {
        let sql = "SELECT count(*) FROM object WHERE deleted = 1";
        Ok(self.0.conn.query_row(sql, [], |row| row.get(0))?)
    }

    /// Facts about sharding that are kept in the metadata: name without its prefix, value, time.
    pub fn sharding_sysmeta(&self) -> Result<Vec<(String, String, String)>> {
        let metadata = self.metadata()?;
        let ours = metadata.iter().filter_map(|(name, value, time)| {
            let short = name.strip_prefix(SYSMETA)?;
            Some((short.to_owned(), value.to_owned(), time.to_owned()))
        });
        Ok(ours.collect())
    }

    /// The empty value removes.
    pub fn set_sharding_sysmeta(&self, name: &str, value: &str) -> Result<()> {
        let name = format!("{SYSMETA}{name}");
        let now = self.0.config.now();
        // Two changes of one moment are still one after the other.
        let next = match self.metadata()?.get(&name) {
            Some((_, before)) => now.max(timestamp(before).plus_ticks(1)),
            None => now,
        };
        self.update_metadata([(&*name, value, &*next.internal())], false)
    }

    /// The `account/container` that a shard says is its root.
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

    /// The container that clients know: `account/container`.
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
