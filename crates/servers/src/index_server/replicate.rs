//! `REPLICATE /<device>/<partition>/<hash>`: the replication RPC of OpenStack Swift's databases;
//! the body is a JSON list of the operation's name and its arguments.
//!
//! | operation | arguments | response |
//! | --- | --- | --- |
//! | `sync` | highest row, hash, id, created, put and delete time, metadata[, status change, count, policy] | 200 and the replica's properties as JSON |
//! | `merge_items` | rows, the sender's id | 202 |
//! | `merge_syncs` | `[{"remote_id", "sync_point"}]` | 202 |
//! | `merge_shard_ranges` | ranges, the sender's id | 202 |
//! | `get_shard_ranges` | | 200 and the ranges |
//! | `complete_rsync` | a file in the device's `tmp`[, its name here] | 204: installed as the database |
//! | `rsync_then_merge` | a file in `tmp` | 204: merged with our rows, and installed |
//!
//! 404 means that there is no database, upon which a replicator sends the whole file.

use cairn_formats::json_ascii;
use cairn_http::params::{quote_path, split_path, unquote};
use cairn_http::{Body, Response};
use cairn_index::broker::timestamp;
use cairn_index::{
    ContainerBroker, DbKey, DbKind, IndexDb, IndexPool, Metadata, Received, RemoteInfo,
    RemotePolicy, Rows, ShardRange, SyncPoint,
};
use cairn_types::ObjectHash;
use serde_json::Value;
use std::sync::Arc;

use super::status::{self, Refused};
use super::{Answer, drive_check, read_body};

/// Maximum body. A thousand rows of long names are a few megabytes; peers may be configured to send
/// more.
const BODY_BYTES_MAX: u64 = 64 << 20;

/// The server's configuration for replication.
pub(crate) struct Replicated<'s> {
    pub(crate) pool: &'s Arc<IndexPool>,
    pub(crate) kind: DbKind,
    pub(crate) mount_check: bool,
    pub(crate) reserve: Option<cairn_index::Reserve>,
}

impl Replicated<'_> {
    pub(crate) async fn answer(&self, path: &str, body: Body) -> Answer {
        let key = key_of(path, self.kind)?;
        let db = self
            .pool
            .db_by_key(key)
            .checked(drive_check(self.mount_check, self.reserve));
        let args = read_body(body, BODY_BYTES_MAX, arguments).await?;
        let operation = args.first().and_then(Value::as_str).unwrap_or_default();
        let rest = args.get(1..).unwrap_or_default();
        match operation {
            "sync" => sync(&db, rest).await,
            "merge_items" => merge_items(&db, self.kind, rest).await,
            "merge_syncs" => merge_syncs(&db, rest).await,
            "merge_shard_ranges" if self.kind == DbKind::Container => {
                merge_shard_ranges(&db, rest).await
            }
            "get_shard_ranges" if self.kind == DbKind::Container => get_shard_ranges(&db).await,
            "complete_rsync" => {
                let file = text(rest, 0, "the name of a file")?.to_owned();
                let name = rest.get(1).and_then(Value::as_str).map(str::to_owned);
                received(db.take_received(file, name).await?)
            }
            "rsync_then_merge" => {
                let file = text(rest, 0, "the name of a file")?.to_owned();
                received(db.replace_by_received(file).await?)
            }
            _ => Err(bad(format!("Unknown operation {operation:?}"))),
        }
    }
}

fn arguments(body: &[u8]) -> Result<Vec<Value>, Refused> {
    match serde_json::from_slice(body) {
        Ok(Value::Array(args)) => Ok(args),
        Ok(_) => Err(bad("Invalid object type")),
        Err(error) => Err(bad(format!("Invalid JSON: {error}"))),
    }
}

fn bad(text: impl Into<String>) -> Refused {
    Refused::BadRequest(text.into())
}

/// Parses the database's key from the path.
fn key_of(path: &str, kind: DbKind) -> Result<DbKey, Refused> {
    let path = unquote(path).map_err(|_| Refused::PathNotUtf8)?;
    let invalid = || bad(format!("Invalid path: {}", quote_path(&path)));
    let parts = split_path(&path, 3, 3, false).ok_or_else(invalid)?;
    let [Some(device), Some(partition), Some(hash)] = parts[..] else {
        return Err(invalid());
    };
    let is_number = partition.bytes().all(|byte| byte.is_ascii_digit());
    if matches!(device, "." | "..") || !is_number {
        return Err(invalid());
    }
    if cairn_http::params::quote(device) != device {
        return Err(Refused::NoDrive);
    }
    let hash = ObjectHash::from_hex(hash)
        .filter(|parsed| parsed.hex() == hash)
        .ok_or_else(invalid)?;
    Ok(DbKey::new(device, partition, kind, hash))
}

fn text<'a>(args: &'a [Value], at: usize, what: &str) -> Result<&'a str, Refused> {
    let text = args.get(at).and_then(Value::as_str);
    text.ok_or_else(|| bad(format!("Argument {}: expected {what}", at + 1)))
}

fn number(args: &[Value], at: usize, what: &str) -> Result<i64, Refused> {
    let number = args.get(at).and_then(Value::as_i64);
    number.ok_or_else(|| bad(format!("Argument {}: expected {what}", at + 1)))
}

fn list<'a>(args: &'a [Value], what: &str) -> Result<&'a [Value], Refused> {
    let list = args.first().and_then(Value::as_array);
    list.map(Vec::as_slice)
        .ok_or_else(|| bad(format!("Argument 1: expected a list of {what}")))
}

async fn sync(db: &IndexDb, args: &[Value]) -> Answer {
    let remote = remote_info(args)?;
    make_tmp_folder(db).await?;
    let (info, point) = db
        .write(None, move |broker| broker.answer_sync(&remote))
        .await?;
    Ok(json_answer(&info.to_json(point)))
}

/// Creates `tmp`: a peer that is answered 404 may send the whole file next.
async fn make_tmp_folder(db: &IndexDb) -> Result<(), Refused> {
    if db.exists().await? {
        return Ok(());
    }
    db.make_tmp().await?;
    Err(Refused::NotFound)
}

fn remote_info(args: &[Value]) -> Result<RemoteInfo, Refused> {
    let column = args.get(6).and_then(Value::as_str).unwrap_or_default();
    let metadata = Metadata::parse(column).unwrap_or_else(|error| {
        // As in Swift, the rest is still used.
        tracing::error!(%error, "a replica's metadata is not readable");
        Metadata::default()
    });
    let policy = match args.get(7..10) {
        Some(_) => Some(RemotePolicy {
            status_changed_at: text(args, 7, "a time")?.to_owned(),
            count: number(args, 8, "a count")?,
            storage_policy_index: number(args, 9, "a policy index")?,
        }),
        None => None,
    };
    Ok(RemoteInfo {
        point: number(args, 0, "a row number")?,
        hash: text(args, 1, "a hash")?.to_owned(),
        id: text(args, 2, "an id")?.to_owned(),
        created_at: time(args, 3)?,
        put_timestamp: time(args, 4)?,
        delete_timestamp: time(args, 5)?,
        metadata,
        policy,
    })
}

/// A timestamp's text, unchanged, as replicas compare it. Zero may be written as 0.
fn time(args: &[Value], at: usize) -> Result<String, Refused> {
    let time = text(args, at, "a time")?;
    let readable = time == "0" || !timestamp(time).is_zero() || time.starts_with("0000000000");
    if !readable {
        return Err(bad(format!("Argument {}: {time:?} is no time", at + 1)));
    }
    Ok(time.to_owned())
}

async fn merge_items(db: &IndexDb, kind: DbKind, args: &[Value]) -> Answer {
    let rows =
        Rows::from_json(kind, list(args, "rows")?).map_err(|error| bad(error.to_string()))?;
    let source = args.get(1).and_then(Value::as_str).map(str::to_owned);
    db.write(None, move |broker| {
        broker.merge_rows(rows, source.as_deref())
    })
    .await?;
    Ok(status::accepted())
}

async fn merge_syncs(db: &IndexDb, args: &[Value]) -> Answer {
    let point = |point: &Value| {
        Some(SyncPoint {
            remote_id: point.get("remote_id")?.as_str()?.to_owned(),
            sync_point: point.get("sync_point")?.as_i64()?,
        })
    };
    let points: Option<Vec<SyncPoint>> = list(args, "sync points")?.iter().map(point).collect();
    let points = points.ok_or_else(|| bad("Argument 1: expected remote_id and sync_point"))?;
    db.write(None, move |broker| broker.merge_syncs(&points, true))
        .await?;
    Ok(status::accepted())
}

async fn merge_shard_ranges(db: &IndexDb, args: &[Value]) -> Answer {
    let ranges = Value::Array(list(args, "shard ranges")?.to_vec());
    let ranges: Vec<ShardRange> = serde_json::from_value(ranges)
        .map_err(|error| bad(format!("Invalid shard range: {error}")))?;
    db.write(None, move |broker| {
        ContainerBroker::of(broker).merge_replicated_shard_ranges(ranges)
    })
    .await?;
    Ok(status::accepted())
}

async fn get_shard_ranges(db: &IndexDb) -> Answer {
    let ranges = db
        .read(|broker| ContainerBroker::of(broker).shard_ranges())
        .await?;
    let ranges = serde_json::to_value(ranges)
        .map_err(|error| bad(format!("shard ranges cannot be written: {error}")))?;
    Ok(json_answer(&ranges))
}

fn received(received: Received) -> Answer {
    match received {
        Received::Done => Ok(status::done()),
        Received::NotNow => Err(Refused::NotFound),
    }
}

fn json_answer(value: &Value) -> Response {
    status::json(json_ascii::to_string(value))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        let hash = "d41d8cd98f00b204e9800998ecf8427e";
        let key = key_of(&format!("/sda/7/{hash}"), DbKind::Account).unwrap();
        assert_eq!(key.hash.hex(), hash);
        for (path, status) in [
            (format!("/../7/{hash}"), 400),
            (format!("/sda/x/{hash}"), 400),
            (format!("/sda/7/{}", hash.to_uppercase()), 400),
            (format!("/s%20a/7/{hash}"), 507),
            ("/sda/7/..".to_owned(), 400),
            (format!("/sda/7/{hash}/x"), 400),
        ] {
            let refused = key_of(&path, DbKind::Account).unwrap_err();
            assert_eq!(refused.into_response().status(), status, "{path}");
        }
    }

    #[test]
    fn what_a_sync_says() {
        let args = serde_json::json!([
            7,
            "hash",
            "id",
            "0000000001.00000",
            "0000000002.00000",
            "0",
            "not json",
            "0000000003.00000",
            4,
            1
        ]);
        let info = remote_info(args.as_array().unwrap()).unwrap();
        assert_eq!(info.point, 7);
        assert!(info.metadata.is_empty());
        assert_eq!(info.policy.unwrap().storage_policy_index, 1);
        let args = serde_json::json!([7, "hash", "id", "yesterday", "0", "0", ""]);
        assert!(remote_info(args.as_array().unwrap()).is_err());
        assert!(remote_info(&[]).is_err());
    }
}
