//! Merge of object rows: for each name and policy the newest data, content type and metadata win,
//! each by its own timestamp. Merging is commutative and idempotent, so replicas converge in any
//! order of updates.
//!
//! The three times are one text in the column `created_at` (`cairn_types::encode_timestamps`).

use cairn_types::Timestamp;
use cairn_types::plant::Plant;
use cairn_types::timestamp::{TimestampError, decode_timestamps, encode_timestamps};
use rusqlite::{OptionalExtension, params};

use super::ContainerBroker;
use crate::Result;
use crate::content_type::extract_swift_bytes;
use crate::sync::ObjectRecord;

/// An object's row in its container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRow {
    pub name: String,
    pub data: Timestamp,
    pub ctype: Timestamp,
    pub meta: Timestamp,
    pub size: i64,
    pub content_type: String,
    pub etag: String,
    pub deleted: bool,
    pub storage_policy_index: i64,
}

impl ObjectRow {
    /// Parses timestamps: one text that may encode all three, and two that may override.
    ///
    /// # Errors
    /// `Syntax` for a text that is no timestamp, `Range` for one out of range.
    pub fn times(
        created_at: &str,
        ctype: Option<&str>,
        meta: Option<&str>,
    ) -> std::result::Result<(Timestamp, Timestamp, Timestamp), TimestampError> {
        let (data, mut ctype_time, mut meta_time) = decode_timestamps(created_at)?;
        if let Some(ctype) = ctype.filter(|text| !text.is_empty()) {
            ctype_time = Timestamp::parse(ctype)?;
            meta_time = ctype_time;
        }
        if let Some(meta) = meta.filter(|text| !text.is_empty()) {
            meta_time = Timestamp::parse(meta)?;
        }
        Ok((data, ctype_time, meta_time))
    }

    /// A tombstone for an object deleted at `time`.
    pub fn tombstone(name: String, time: Timestamp, storage_policy_index: i64) -> Self {
        ObjectRow {
            name,
            data: time,
            ctype: time,
            meta: time,
            size: 0,
            content_type: "application/deleted".into(),
            etag: "noetag".into(),
            deleted: true,
            storage_policy_index,
        }
    }

    /// From the columns created_at, size, content_type, etag and deleted.
    pub(super) fn stored(
        row: &rusqlite::Row<'_>,
        name: &str,
        storage_policy_index: i64,
    ) -> rusqlite::Result<Self> {
        let created_at: Option<String> = row.get(0)?;
        let zero = (Timestamp::ZERO, Timestamp::ZERO, Timestamp::ZERO);
        let (data, ctype, meta) =
            decode_timestamps(&created_at.unwrap_or_default()).unwrap_or(zero);
        Ok(ObjectRow {
            name: name.to_owned(),
            data,
            ctype,
            meta,
            size: row.get::<_, Option<i64>>(1)?.unwrap_or(0),
            content_type: row.get::<_, Option<String>>(2)?.unwrap_or_default(),
            etag: row.get::<_, Option<String>>(3)?.unwrap_or_default(),
            deleted: row.get(4)?,
            storage_policy_index,
        })
    }

    pub(super) fn created_at(&self) -> String {
        encode_timestamps(self.data, Some(self.ctype), Some(self.meta))
    }
}

impl TryFrom<ObjectRecord> for ObjectRow {
    type Error = TimestampError;

    fn try_from(record: ObjectRecord) -> std::result::Result<Self, TimestampError> {
        let (data, ctype, meta) = decode_timestamps(&record.created_at)?;
        Ok(ObjectRow {
            name: record.name,
            data,
            ctype,
            meta,
            size: record.size,
            content_type: record.content_type,
            etag: record.etag,
            deleted: record.deleted,
            storage_policy_index: record.storage_policy_index,
        })
    }
}

/// Merges the newer parts of `old` into `new`. False if `new` contributes nothing.
pub(super) fn keep_newest(new: &mut ObjectRow, old: &ObjectRow) -> bool {
    // A manifest's total size belongs to the data, although it is stored in the content type.
    let (old_type, old_bytes) = extract_swift_bytes(&old.content_type);
    let (mut content_type, mut swift_bytes) = extract_swift_bytes(&new.content_type);
    let mut news = false;
    if old.data >= new.data {
        new.data = old.data;
        new.size = old.size;
        new.etag.clone_from(&old.etag);
        new.deleted = old.deleted;
        swift_bytes = old_bytes;
    } else {
        news = true;
    }
    if old.ctype >= new.ctype {
        new.ctype = old.ctype;
        content_type = old_type;
    } else {
        news = true;
    }
    if old.meta >= new.meta {
        new.meta = old.meta;
    } else {
        news = true;
    }
    if let Some(bytes) = swift_bytes.filter(|bytes| !bytes.is_empty()) {
        content_type.push_str(";swift_bytes=");
        content_type.push_str(&bytes);
    }
    new.content_type = content_type;
    news
}

impl ContainerBroker<'_> {
    pub(crate) fn merge_item(&self, mut row: ObjectRow) -> Result<()> {
        if let Some(old) = self.object_row(&row.name, row.storage_policy_index)? {
            if !Plant::RowsAsTheyCome.is_on() && !keep_newest(&mut row, &old) {
                return Ok(());
            }
            self.0
                .conn
                .prepare_cached(self.by_name(
                    "DELETE FROM object WHERE deleted IN (0, 1) AND name = ?
                     AND storage_policy_index = ?",
                    "DELETE FROM object WHERE name = ? AND storage_policy_index = ?",
                ))?
                .execute(params![row.name, row.storage_policy_index])?;
        }
        self.0
            .conn
            .prepare_cached(
                "INSERT INTO object (name, created_at, size, content_type, etag, deleted,
                     storage_policy_index) VALUES (?, ?, ?, ?, ?, ?, ?)",
            )?
            .execute(params![
                row.name,
                row.created_at(),
                row.size,
                row.content_type,
                row.etag,
                row.deleted,
                row.storage_policy_index
            ])?;
        Ok(())
    }

    /// The stored row, which may be a tombstone.
    ///
    /// # Errors
    /// As every query: see [`Broker`](crate::Broker).
    pub fn object_row(&self, name: &str, storage_policy_index: i64) -> Result<Option<ObjectRow>> {
        let row = self
            .0
            .conn
            .prepare_cached(self.by_name(
                "SELECT created_at, size, content_type, etag, deleted FROM object
                 WHERE deleted IN (0, 1) AND name = ? AND storage_policy_index = ?",
                "SELECT created_at, size, content_type, etag, deleted FROM object
                 WHERE name = ? AND storage_policy_index = ?",
            ))?
            .query_row(params![name, storage_policy_index], |row| {
                ObjectRow::stored(row, name, storage_policy_index)
            })
            .optional()?;
        Ok(row)
    }

    /// The query for this schema: `deleted IN (0, 1)` selects the index on (deleted, name), where
    /// there is one.
    pub(super) fn by_name(&self, indexed: &'static str, plain: &'static str) -> &'static str {
        if self.0.schema.indexed {
            indexed
        } else {
            plain
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn row(times: &str, size: i64, content_type: &str) -> ObjectRow {
        let (data, ctype, meta) = ObjectRow::times(times, None, None).unwrap();
        ObjectRow {
            name: "o".into(),
            data,
            ctype,
            meta,
            size,
            content_type: content_type.into(),
            etag: format!("etag{size}"),
            deleted: false,
            storage_policy_index: 0,
        }
    }

    #[test]
    fn each_part_by_its_own_time() {
        let old = row("5+5+5", 1, "old/type;swift_bytes=9");
        let mut newer_data = row("8", 2, "new/type");
        assert!(keep_newest(&mut newer_data, &old));
        assert_eq!(newer_data.size, 2);
        assert_eq!(newer_data.content_type, "new/type");

        let mut newer_type = row("4", 3, "new/type;swift_bytes=3");
        newer_type.ctype = Timestamp::from_secs(7);
        newer_type.meta = Timestamp::from_secs(7);
        assert!(keep_newest(&mut newer_type, &old));
        assert_eq!(newer_type.size, 1);
        assert_eq!(newer_type.content_type, "new/type;swift_bytes=9");
        assert_eq!(newer_type.data, Timestamp::from_secs(5));

        assert!(!keep_newest(&mut old.clone(), &old));
    }

    #[test]
    fn times_override() {
        let (data, ctype, meta) = ObjectRow::times("1", Some("2"), None).unwrap();
        assert_eq!((data.secs(), ctype.secs(), meta.secs()), (1, 2, 2));
        let (data, ctype, meta) = ObjectRow::times("1", None, Some("3")).unwrap();
        assert_eq!((data.secs(), ctype.secs(), meta.secs()), (1, 1, 3));
        assert!(ObjectRow::times("x", None, None).is_err());
    }
}
