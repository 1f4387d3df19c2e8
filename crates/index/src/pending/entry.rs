//! Format of one entry of a pending file: a `:` and the base64 of a pickled tuple (protocol 2), as
//! in Swift:
//! * container: `(name, created_at, size, content_type, etag, deleted[, policy index [,
//!   content-type time[, metadata time]]])`
//! * account: `(name, put_timestamp, delete_timestamp, object_count, bytes_used, deleted [, policy
//!   index])`
//!
//! Colons alone are padding, and skipped.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cairn_formats::pickle::{self, Value};

use crate::{ContainerRow, ObjectRow};

/// Tuples of a file; none for an invalid entry.
///
/// Zeros separate entries, too: a later entry of which a power cut left the file's size but not the
/// bytes. They would make the entry before them, which was acknowledged, invalid. (Python's decoder
/// ignores them.)
pub(super) fn tuples(text: &[u8]) -> impl Iterator<Item = Option<Value>> {
    let entries = text
        .split(|byte| matches!(byte, b':' | 0))
        .filter(|e| !e.is_empty());
    entries.map(|entry| pickle::loads(&STANDARD.decode(entry).ok()?).ok())
}

/// Appends the entry of a container's row.
pub(super) fn write_object_row(row: &ObjectRow, out: &mut String) {
    let tuple = Value::Tuple(vec![
        Value::str(row.name.as_str()),
        Value::str(row.data.internal()),
        Value::Int(row.size),
        Value::str(row.content_type.as_str()),
        Value::str(row.etag.as_str()),
        Value::Int(row.deleted.into()),
        Value::Int(row.storage_policy_index),
        Value::str(row.ctype.internal()),
        Value::str(row.meta.internal()),
    ]);
    out.push(':');
    STANDARD.encode_string(pickle::dumps(&tuple), out);
}

pub(super) fn object_row(tuple: &Value) -> Option<ObjectRow> {
    let fields = tuple.items()?;
    let (data, ctype, meta) = ObjectRow::times(
        fields.get(1)?.as_str()?,
        fields.get(7).and_then(Value::as_str),
        fields.get(8).and_then(Value::as_str),
    )
    .ok()?;
    Some(ObjectRow {
        name: text(fields, 0)?,
        data,
        ctype,
        meta,
        size: integer(fields, 2)?,
        content_type: text(fields, 3)?,
        etag: text(fields, 4)?,
        deleted: integer(fields, 5)? != 0,
        storage_policy_index: policy_index(fields)?,
    })
}

pub(super) fn container_row(tuple: &Value) -> Option<ContainerRow> {
    let fields = tuple.items()?;
    Some(ContainerRow {
        name: text(fields, 0)?,
        put_timestamp: text(fields, 1)?,
        delete_timestamp: text(fields, 2)?,
        object_count: integer(fields, 3)?,
        bytes_used: integer(fields, 4)?,
        deleted: integer(fields, 5)? != 0,
        storage_policy_index: policy_index(fields)?,
    })
}

fn text(fields: &[Value], at: usize) -> Option<String> {
    fields.get(at)?.as_str().map(str::to_owned)
}

/// An integer; account rows have counts as text of a header.
fn integer(fields: &[Value], at: usize) -> Option<i64> {
    match fields.get(at)? {
        Value::Bool(yes) => Some(i64::from(*yes)),
        value => value
            .as_int()
            .or_else(|| value.as_str().and_then(|text| text.trim().parse().ok())),
    }
}

fn policy_index(fields: &[Value]) -> Option<i64> {
    if fields.len() > 6 {
        integer(fields, 6)
    } else {
        Some(0)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use cairn_types::Timestamp;

    use super::*;

    #[test]
    fn a_row_is_read_as_it_was_written() {
        let row = ObjectRow {
            name: "a:b/\u{e9}\u{0}".into(),
            data: Timestamp::from_secs(5).with_offset(3),
            ctype: Timestamp::from_secs(6),
            meta: Timestamp::from_secs(7),
            size: 1 << 40,
            content_type: "text/plain;swift_bytes=9".into(),
            etag: "e".into(),
            deleted: false,
            storage_policy_index: 2,
        };
        let gone = ObjectRow::tombstone("b".into(), Timestamp::from_secs(8), 0);
        let mut text = String::from(":::");
        write_object_row(&row, &mut text);
        text.push_str("::::");
        write_object_row(&gone, &mut text);
        text.push_str("::");
        let rows: Vec<_> = tuples(text.as_bytes())
            .map(|tuple| object_row(&tuple.unwrap()).unwrap())
            .collect();
        assert_eq!(rows, [row.clone(), gone.clone()]);
        // An entry whose bytes are lost, or all but its end, spoils neither of those beside it.
        for lost in ["\0".repeat(300), "\0".repeat(400) + "dGFpbA=="] {
            let mut torn = String::new();
            write_object_row(&row, &mut torn);
            torn.push_str(&lost);
            write_object_row(&gone, &mut torn);
            let rows: Vec<_> = tuples(torn.as_bytes()).flatten().collect();
            let rows: Vec<_> = rows.iter().filter_map(object_row).collect();
            assert_eq!(rows, [row.clone(), gone.clone()], "{lost:?}");
        }
        // A prefix, as left by a power cut, is not an entry.
        for end in 4..text.len() - 3 {
            let whole = tuples(&text.as_bytes()[..end]).flatten().count();
            assert!(whole <= 1, "{end}");
        }
    }
}
