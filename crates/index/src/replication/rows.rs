//! JSON of rows between replicas: objects with the columns' names, including `ROWID`.

use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::broker::Broker;
use crate::sync::{ContainerRecord, ObjectRecord};
use crate::{
    AccountBroker, ContainerBroker, ContainerRow, DbKind, IndexError, ObjectRow, Result, SyncPoint,
};

/// Rows in the order of their ROWIDs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Rows of a container.
    Objects(Vec<ObjectRecord>),
    /// Rows of an account.
    Containers(Vec<ContainerRecord>),
}

/// An invalid row.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("row {number}: {reason}")]
pub struct RowError {
    /// Its index in the list, from 0.
    pub number: usize,
    pub reason: String,
}

impl Rows {
    pub fn len(&self) -> usize {
        match self {
            Rows::Objects(rows) => rows.len(),
            Rows::Containers(rows) => rows.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// ROWID of the last row.
    pub fn last(&self) -> Option<i64> {
        match self {
            Rows::Objects(rows) => rows.last().map(|row| row.rowid),
            Rows::Containers(rows) => rows.last().map(|row| row.rowid),
        }
    }

    pub fn to_json(&self) -> Value {
        match self {
            Rows::Objects(rows) => rows.iter().map(object_json).collect(),
            Rows::Containers(rows) => rows.iter().map(container_json).collect(),
        }
    }

    /// Reads the rows of another replica; missing columns get their defaults.
    ///
    /// # Errors
    /// The first row that is no object, lacks a name (or the `created_at` of an object), or has a
    /// value that cannot be converted.
    pub fn from_json(kind: DbKind, rows: &[Value]) -> std::result::Result<Self, RowError> {
        fn each<T>(
            rows: &[Value],
            read: impl Fn(&Map<String, Value>) -> std::result::Result<T, String>,
        ) -> std::result::Result<Vec<T>, RowError> {
            let row = |(number, row): (usize, &Value)| {
                let row = row.as_object().ok_or("not an object".to_owned());
                row.and_then(&read)
                    .map_err(|reason| RowError { number, reason })
            };
            rows.iter().enumerate().map(row).collect()
        }
        Ok(match kind {
            DbKind::Account => Rows::Containers(each(rows, container_record)?),
            DbKind::Container => Rows::Objects(each(rows, object_record)?),
        })
    }
}

fn object_json(row: &ObjectRecord) -> Value {
    json!({
        "ROWID": row.rowid, "name": row.name, "created_at": row.created_at, "size": row.size,
        "content_type": row.content_type, "etag": row.etag, "deleted": i64::from(row.deleted),
        "storage_policy_index": row.storage_policy_index,
    })
}

fn container_json(row: &ContainerRecord) -> Value {
    json!({
        "ROWID": row.rowid, "name": row.name, "put_timestamp": row.put_timestamp,
        "delete_timestamp": row.delete_timestamp, "object_count": row.object_count,
        "bytes_used": row.bytes_used, "deleted": i64::from(row.deleted),
        "storage_policy_index": row.storage_policy_index,
    })
}

type Field<T> = std::result::Result<T, String>;

fn object_record(row: &Map<String, Value>) -> Field<ObjectRecord> {
    Ok(ObjectRecord {
        rowid: number(row, "ROWID", Some(-1))?,
        name: text(row, "name", None)?,
        created_at: text(row, "created_at", None)?,
        size: number(row, "size", Some(0))?,
        content_type: text(row, "content_type", Some(""))?,
        etag: text(row, "etag", Some(""))?,
        deleted: number(row, "deleted", Some(0))? != 0,
        storage_policy_index: number(row, "storage_policy_index", Some(0))?,
    })
}

fn container_record(row: &Map<String, Value>) -> Field<ContainerRecord> {
    Ok(ContainerRecord {
        rowid: number(row, "ROWID", Some(-1))?,
        name: text(row, "name", None)?,
        put_timestamp: text(row, "put_timestamp", Some("0"))?,
        delete_timestamp: text(row, "delete_timestamp", Some("0"))?,
        object_count: number(row, "object_count", Some(0))?,
        bytes_used: number(row, "bytes_used", Some(0))?,
        deleted: number(row, "deleted", Some(0))? != 0,
        storage_policy_index: number(row, "storage_policy_index", Some(0))?,
    })
}

/// A text column; missing or null is `default`, if there is one.
fn text(row: &Map<String, Value>, name: &str, default: Option<&str>) -> Field<String> {
    match (row.get(name), default) {
        (Some(Value::String(text)), _) => Ok(text.clone()),
        (Some(Value::Number(number)), _) => Ok(number.to_string()),
        (None | Some(Value::Null), Some(default)) => Ok(default.to_owned()),
        _ => Err(format!("expected text in {name}")),
    }
}

/// A number column; text, which some older writers left, is converted.
fn number(row: &Map<String, Value>, name: &str, default: Option<i64>) -> Field<i64> {
    let bad = || format!("expected a number in {name}");
    match (row.get(name), default) {
        (Some(Value::Number(number)), _) => number.as_i64().ok_or_else(bad),
        (Some(Value::Bool(yes)), _) => Ok(i64::from(*yes)),
        (Some(Value::String(text)), _) => text.trim().parse().map_err(|_| bad()),
        (None | Some(Value::Null), Some(default)) => Ok(default),
        _ => Err(bad()),
    }
}

impl Broker<'_> {
    /// Rows including tombstones, by ROWID.
    ///
    /// # Errors
    /// As every query: see [`Broker`].
    pub fn replicated_rows_since(&self, start: i64, count: usize) -> Result<Rows> {
        Ok(match self.kind() {
            DbKind::Account => Rows::Containers(AccountBroker(*self).items_since(start, count)?),
            DbKind::Container => Rows::Objects(ContainerBroker(*self).items_since(start, count)?),
        })
    }

    /// Merges rows of another replica; with its id, also advances its incoming sync point.
    ///
    /// # Errors
    /// `BadRow` for an object whose `created_at` is no timestamp, before any row is merged; else as
    /// every query: see [`Broker`].
    pub fn merge_rows(&self, rows: Rows, source: Option<&str>) -> Result<()> {
        let last = rows.last();
        match rows {
            Rows::Objects(rows) => {
                let row = |row: ObjectRecord| {
                    let name = row.name.clone();
                    ObjectRow::try_from(row)
                        .map_err(|error| IndexError::bad_row(format!("row of {name:?}: {error}")))
                };
                let rows = rows.into_iter().map(row).collect::<Result<_>>()?;
                ContainerBroker(*self).merge_items(rows)?;
            }
            Rows::Containers(rows) => {
                let rows = rows.into_iter().map(ContainerRow::from).collect();
                AccountBroker(*self).merge_items(rows)?;
            }
        }
        if let (Some(source), Some(sync_point)) = (source, last) {
            let known = SyncPoint {
                remote_id: source.to_owned(),
                sync_point,
            };
            self.merge_syncs(&[known], true)?;
        }
        Ok(())
    }
}

impl From<ContainerRecord> for ContainerRow {
    fn from(record: ContainerRecord) -> Self {
        ContainerRow {
            name: record.name,
            put_timestamp: record.put_timestamp,
            delete_timestamp: record.delete_timestamp,
            object_count: record.object_count,
            bytes_used: record.bytes_used,
            deleted: record.deleted,
            storage_policy_index: record.storage_policy_index,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn rows_survive_the_way() {
        let rows = Rows::Objects(vec![ObjectRecord {
            rowid: 7,
            name: "é\0".into(),
            created_at: "0000000001.00000+0+a".into(),
            size: 5,
            content_type: "t".into(),
            etag: "e".into(),
            deleted: true,
            storage_policy_index: 1,
        }]);
        let json = rows.to_json();
        let back = Rows::from_json(DbKind::Container, json.as_array().unwrap()).unwrap();
        assert_eq!(back, rows);
        assert_eq!(back.last(), Some(7));

        let lean = [json!({"name": "c", "object_count": "3", "bytes_used": null})];
        let Rows::Containers(lean) = Rows::from_json(DbKind::Account, &lean).unwrap() else {
            panic!("an account has containers");
        };
        assert_eq!((lean[0].object_count, lean[0].bytes_used), (3, 0));
        assert_eq!(lean[0].put_timestamp, "0");

        let bad = [json!({"name": "o", "created_at": "1"}), json!([])];
        let error = Rows::from_json(DbKind::Container, &bad).unwrap_err();
        assert_eq!(error.number, 1);
        assert!(Rows::from_json(DbKind::Container, &[json!({"name": 5.5})]).is_err());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod properties {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    const COLUMNS: [&str; 12] = [
        "ROWID",
        "name",
        "created_at",
        "size",
        "content_type",
        "etag",
        "deleted",
        "storage_policy_index",
        "put_timestamp",
        "delete_timestamp",
        "object_count",
        "bytes_used",
    ];

    fn any_value() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "[-+ ]?[0-9]{0,20}|.{0,9}".prop_map(Value::from),
            Just(json!({})),
        ]
    }

    fn rows() -> impl Strategy<Value = Rows> {
        let object = (any::<[i64; 3]>(), any::<[String; 4]>(), any::<bool>());
        let object = object.prop_map(|([rowid, size, policy], texts, deleted)| {
            let [name, created_at, content_type, etag] = texts;
            ObjectRecord {
                rowid,
                name,
                created_at,
                size,
                content_type,
                etag,
                deleted,
                storage_policy_index: policy,
            }
        });
        let container = (any::<[i64; 4]>(), any::<[String; 3]>(), any::<bool>());
        let container = container.prop_map(|([rowid, count, bytes, policy], texts, deleted)| {
            let [name, put_timestamp, delete_timestamp] = texts;
            ContainerRecord {
                rowid,
                name,
                put_timestamp,
                delete_timestamp,
                object_count: count,
                bytes_used: bytes,
                deleted,
                storage_policy_index: policy,
            }
        });
        prop_oneof![
            vec(object, 0..4).prop_map(Rows::Objects),
            vec(container, 0..4).prop_map(Rows::Containers),
        ]
    }

    fn kind_of(rows: &Rows) -> DbKind {
        match rows {
            Rows::Objects(_) => DbKind::Container,
            Rows::Containers(_) => DbKind::Account,
        }
    }

    proptest! {
        #[test]
        fn rows_are_read_as_they_were_written(rows in rows(), as_text: bool) {
            let mut json = rows.to_json();
            if as_text {
                // As some older writers leave numbers.
                for row in json.as_array_mut().unwrap() {
                    for column in row.as_object_mut().unwrap().values_mut() {
                        if column.is_number() {
                            *column = column.to_string().into();
                        }
                    }
                }
            }
            let read = Rows::from_json(kind_of(&rows), json.as_array().unwrap());
            prop_assert_eq!(read.as_ref(), Ok(&rows));
            prop_assert_eq!(read.unwrap().last(), json.as_array().unwrap().last().map(|row| {
                let rowid = &row["ROWID"];
                rowid.as_i64().or_else(|| rowid.as_str()?.parse().ok()).unwrap()
            }));
        }

        #[test]
        fn any_rows_are_read_or_refused(
            rows in vec(vec((select(COLUMNS.to_vec()), any_value()), 0..9), 0..4),
            named: bool,
            stray in proptest::option::of(any_value()),
        ) {
            let mut json: Vec<Value> = Vec::new();
            for columns in &rows {
                let mut row = Map::new();
                if named {
                    row.insert("name".into(), "o".into());
                    row.insert("created_at".into(), "1".into());
                }
                row.extend(columns.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
                json.push(row.into());
            }
            json.extend(stray);
            for kind in [DbKind::Account, DbKind::Container] {
                match Rows::from_json(kind, &json) {
                    Ok(read) => {
                        prop_assert_eq!(read.len(), json.len());
                        let again = read.to_json();
                        let again = Rows::from_json(kind, again.as_array().unwrap());
                        prop_assert_eq!(again, Ok(read));
                    }
                    Err(error) => {
                        // Those before it are well.
                        prop_assert!(error.number < json.len());
                        prop_assert!(Rows::from_json(kind, &json[..error.number]).is_ok());
                        let row = &json[error.number..=error.number];
                        prop_assert!(Rows::from_json(kind, row).is_err());
                    }
                }
            }
        }
    }
}
