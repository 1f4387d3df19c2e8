//! Batch merge of object rows without triggers.
//!
//! Swift's triggers update counts and the running hash after every row, which is most of a row's
//! cost. This does the same once per batch and writes the same values. Databases with unknown
//! triggers keep using them.

use std::collections::HashMap;

use md5::{Digest, Md5};
use rusqlite::config::DbConfig;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, ToSql, params, params_from_iter};

use super::merge::{ObjectRow, keep_newest};
use crate::broker::Broker;
use crate::connection::{row_hash, xor_text};
use crate::schema::OBJECT_TRIGGERS;
use crate::{ContainerBroker, Result};

/// Rows per INSERT statement: SQLite looks up the last row number once for each.
const INSERT_ROWS: [usize; 3] = [32, 8, 1];

/// MD5 of OpenStack Swift's triggers, normalised by [`words`]: for deleted rows, for new rows. They
/// are equivalent to ours (releases 1.13 to 2.38).
const SWIFT_TRIGGERS: [&str; 2] = [
    "91d083bf7898216063275b8d8daedb0a",
    "1d4f7b5762c77cfbb51783b76400f193",
];

/// Whether the triggers on object rows are among those this file replaces.
pub(crate) fn known_triggers(conn: &Connection) -> Result<bool> {
    let mut query = conn.prepare(
        "SELECT sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'object'
         AND name <> 'object_update' ORDER BY name",
    )?;
    let found = query.query_map([], |row| Ok(words(&row.get::<_, String>(0)?)))?;
    let found = found.collect::<rusqlite::Result<Vec<_>>>()?;
    let mut ours: Vec<_> = OBJECT_TRIGGERS.split_inclusive("END;").map(words).collect();
    ours.sort_unstable();
    let digests = found
        .iter()
        .map(|sql| format!("{:032x}", u128::from_be_bytes(Md5::digest(sql).into())));
    Ok(found == ours || digests.eq(SWIFT_TRIGGERS))
}

/// A statement's words, without white space and other variations of notation.
fn words(sql: &str) -> String {
    let kept = sql.chars().filter(|c| !c.is_whitespace() && *c != ';');
    kept.flat_map(char::to_lowercase).collect()
}

/// Enables or disables triggers. A change makes SQLite prepare all statements again.
pub(crate) fn set_triggers(conn: &Connection, on: bool) -> Result<()> {
    let flag = DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER;
    if conn.db_config(flag)? != on {
        conn.set_db_config(flag, on)?;
    }
    Ok(())
}

/// A batch's change of one policy's counts.
#[derive(Default)]
struct Change {
    objects: i64,
    bytes: i64,
    inserted: bool,
}

/// A batch's changes beside its rows.
#[derive(Default)]
struct Tally {
    hash: u128,
    policies: HashMap<i64, Change>,
}

/// A stored row with its rowid, and its share of the running hash.
struct Stored {
    rowid: i64,
    row: ObjectRow,
    hash: u128,
}

/// Merges rows, equivalent to `ContainerBroker::merge_items` with triggers, row by row. Triggers
/// must be off.
pub(crate) fn merge(broker: Broker<'_>, rows: Vec<ObjectRow>) -> Result<()> {
    let broker = ContainerBroker(broker);
    let mut tally = Tally::default();
    let mut inserts = Vec::with_capacity(rows.len());
    for mut row in newest(rows) {
        let stored = stored(&broker, &row)?;
        let mut news = true;
        for old in &stored {
            news &= keep_newest(&mut row, &old.row);
        }
        if !news {
            continue;
        }
        for old in &stored {
            remove(broker.0.conn, old, &mut tally)?;
        }
        inserts.push(row);
    }
    insert(broker.0.conn, &inserts, &mut tally)?;
    tally.write(broker.0.conn)
}

/// Deduplicates by name and policy, in order of arrival.
fn newest(rows: Vec<ObjectRow>) -> Vec<ObjectRow> {
    if rows.len() < 2 {
        return rows;
    }
    let mut places = HashMap::with_capacity(rows.len());
    let mut kept: Vec<ObjectRow> = Vec::with_capacity(rows.len());
    for mut row in rows {
        let place = places.entry((row.name.clone(), row.storage_policy_index));
        let place = *place.or_insert(kept.len());
        match kept.get_mut(place) {
            None => kept.push(row),
            Some(before) => {
                if keep_newest(&mut row, before) {
                    *before = row;
                }
            }
        }
    }
    kept
}

/// Stored rows of this name and policy: at most one in a consistent database.
fn stored(broker: &ContainerBroker<'_>, new: &ObjectRow) -> Result<Vec<Stored>> {
    let mut query = broker.0.conn.prepare_cached(broker.by_name(
        "SELECT created_at, size, content_type, etag, deleted, ROWID FROM object
         WHERE deleted IN (0, 1) AND name = ? AND storage_policy_index = ?",
        "SELECT created_at, size, content_type, etag, deleted, ROWID FROM object
         WHERE name = ? AND storage_policy_index = ?",
    ))?;
    let mut rows = query.query(params![new.name, new.storage_policy_index])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(Stored {
            rowid: row.get(5)?,
            row: ObjectRow::stored(row, &new.name, new.storage_policy_index)?,
            hash: row_hash(new.name.as_bytes(), row.get_ref(0)?),
        });
    }
    Ok(found)
}

fn remove(conn: &Connection, old: &Stored, tally: &mut Tally) -> Result<()> {
    conn.prepare_cached("DELETE FROM object WHERE ROWID = ?")?
        .execute([old.rowid])?;
    tally.hash ^= old.hash;
    let change = tally.policies.entry(old.row.storage_policy_index);
    let change = change.or_default();
    change.objects -= 1 - i64::from(old.row.deleted);
    change.bytes -= old.row.size;
    Ok(())
}

fn insert(conn: &Connection, rows: &[ObjectRow], tally: &mut Tally) -> Result<()> {
    let mut rest = rows;
    for count in INSERT_ROWS {
        while rest.len() >= count {
            let (these, more) = rest.split_at(count);
            insert_these(conn, these, tally)?;
            rest = more;
        }
    }
    Ok(())
}

fn insert_these(conn: &Connection, rows: &[ObjectRow], tally: &mut Tally) -> Result<()> {
    let times: Vec<_> = rows.iter().map(ObjectRow::created_at).collect();
    let mut values: Vec<&dyn ToSql> = Vec::with_capacity(rows.len() * 7);
    for (row, time) in rows.iter().zip(&times) {
        values.extend([
            &row.name as &dyn ToSql,
            time,
            &row.size,
            &row.content_type,
            &row.etag,
            &row.deleted,
            &row.storage_policy_index,
        ]);
        tally.hash ^= row_hash(row.name.as_bytes(), ValueRef::Text(time.as_bytes()));
        let change = tally.policies.entry(row.storage_policy_index).or_default();
        change.objects += 1 - i64::from(row.deleted);
        change.bytes += row.size;
        change.inserted = true;
    }
    conn.prepare_cached(&insert_sql(rows.len()))?
        .execute(params_from_iter(values))?;
    Ok(())
}

fn insert_sql(rows: usize) -> String {
    let mut sql = "INSERT INTO object (name, created_at, size, content_type, etag, deleted,
                       storage_policy_index) VALUES "
        .to_owned();
    for n in 0..rows {
        sql += if n == 0 { "" } else { ", " };
        sql += "(?, ?, ?, ?, ?, ?, ?)";
    }
    sql
}

impl Tally {
    fn write(self, conn: &Connection) -> Result<()> {
        for (policy, change) in &self.policies {
            let updated = conn
                .prepare_cached(
                    "UPDATE policy_stat SET object_count = object_count + ?2,
                         bytes_used = bytes_used + ?3 WHERE storage_policy_index = ?1",
                )?
                .execute([*policy, change.objects, change.bytes])?;
            if updated == 0 && change.inserted {
                conn.prepare_cached(
                    "INSERT INTO policy_stat (storage_policy_index, object_count, bytes_used)
                     VALUES (?, ?, ?)",
                )?
                .execute([*policy, change.objects, change.bytes])?;
            }
        }
        if self.hash == 0 {
            return Ok(());
        }
        let old: Option<String> = conn
            .prepare_cached("SELECT hash FROM container_info")?
            .query_row([], |row| row.get(0))
            .optional()?;
        if let Some(old) = old {
            conn.prepare_cached("UPDATE container_info SET hash = ?")?
                .execute([xor_text(&old, self.hash)?])?;
        }
        Ok(())
    }
}
