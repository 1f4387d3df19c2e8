//! Entries of the queue of misplaced objects: `<policy>:/account/container/object` in containers
//! named by the hour of the objects' timestamps (written by `db_replicator/reconcile.rs`). The
//! entry's ETag is the timestamp of the misplaced write, its content type the kind of write.

use cairn_types::timestamp::decode_timestamps;
use cairn_types::{PolicyIndex, Timestamp};
use serde_json::Value;

/// Account of the queue.
pub const MISPLACED_OBJECTS_ACCOUNT: &str = ".misplaced_objects";
/// Period of a queue container, in seconds.
pub(crate) const QUEUE_SECONDS: u64 = 3600;
/// Content type of an entry for a misplaced PUT.
pub const PUT_TYPE: &str = "application/x-put";
/// Content type of an entry for a misplaced DELETE.
pub const DELETE_TYPE: &str = "application/x-delete";

/// Name of the queue's container for a timestamp.
pub fn queue_container(time: Timestamp) -> u64 {
    time.secs() / QUEUE_SECONDS * QUEUE_SECONDS
}

/// A write to another policy than its container's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) queue_container: String,
    /// The entry's name in the queue.
    pub(super) name: String,
    /// Policy of the write.
    pub(super) policy: PolicyIndex,
    pub(super) account: String,
    pub(super) container: String,
    pub(super) object: String,
    pub(super) is_delete: bool,
    /// Timestamp of the write.
    pub(super) time: Timestamp,
    /// Timestamp of the entry: later if it was queued again.
    pub(super) queued: Timestamp,
}

impl Entry {
    /// Parses a listing's row; `None` if it is invalid.
    pub(super) fn parse(queue_container: &str, row: &Value) -> Option<Entry> {
        let text = |name: &str| row.get(name).and_then(Value::as_str);
        let name = text("name")?;
        let (policy, path) = name.split_once(':')?;
        let mut parts = path.strip_prefix('/')?.splitn(3, '/');
        let mut part = || parts.next().filter(|p| !p.is_empty()).map(str::to_owned);
        Some(Entry {
            queue_container: queue_container.to_owned(),
            name: name.to_owned(),
            policy: PolicyIndex(policy.parse().ok()?),
            account: part()?,
            container: part()?,
            object: part()?,
            is_delete: match text("content_type")? {
                PUT_TYPE => false,
                DELETE_TYPE => true,
                _ => return None,
            },
            time: decode_timestamps(text("hash")?).ok()?.0,
            queued: Timestamp::parse_isoformat(text("last_modified")?).ok()?,
        })
    }

    /// Path for requests to a proxy.
    pub(super) fn path(&self) -> String {
        format!("/v1/{}/{}/{}", self.account, self.container, self.object)
    }
}

/// The timestamp plus a small offset, after the write and `by` corrections of it.
pub(super) fn slightly_later(time: Timestamp, by: u64) -> Timestamp {
    time.with_offset(time.offset().saturating_add(by))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn entries_say_what_was_written() {
        let row = json!({
            "name": "1:/AUTH_a/c/o/with:/slashes", "content_type": "application/x-delete",
            "hash": "1402464677.04188_00000000000000a1+0+1f",
            "last_modified": "2014-06-11T05:31:17.041880", "bytes": 0,
        });
        let entry = Entry::parse("1402462800", &row).unwrap();
        assert_eq!(entry.policy, PolicyIndex(1));
        assert_eq!(entry.path(), "/v1/AUTH_a/c/o/with:/slashes");
        assert!(entry.is_delete);
        assert_eq!(entry.time.internal(), "1402464677.04188_00000000000000a1");
        assert_eq!(entry.queued.internal(), "1402464677.04188");
        let later = slightly_later(entry.time, 3);
        assert_eq!(later.internal(), "1402464677.04188_00000000000000a4");
        for (field, value) in [
            ("name", "1:a/c/o"),
            ("name", "x:/a/c/o"),
            ("name", "1:/a/c"),
            ("content_type", "text/plain"),
            ("hash", "d41d8cd98f00b204e9800998ecf8427e"),
        ] {
            let mut bad = row.clone();
            bad[field] = value.into();
            assert_eq!(Entry::parse("1402462800", &bad), None, "{value}");
        }
    }
}
