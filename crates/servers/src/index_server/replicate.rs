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
use cairn_index::{
    ContainerBroker, DbKey, DbKind, IndexDb, IndexPool, Metadata, Received, RemoteInfo,
    RemotePolicy, Rows, ShardRange, SyncPoint,
};
use cairn_types::{ObjectHash, Timestamp};
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
    if Timestamp::parse(time).is_err() {
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

/// A replica's shard ranges.
fn shard_ranges(args: &[Value]) -> Result<Vec<ShardRange>, Refused> {
    let ranges = list(args, "shard ranges")?.iter();
    let ranges = ranges.map(ShardRange::from_json);
    ranges
        .collect::<Result<_, _>>()
        .map_err(|error| bad(format!("Invalid shard range: {error}")))
}

async fn merge_shard_ranges(db: &IndexDb, args: &[Value]) -> Answer {
    let ranges = shard_ranges(args)?;
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
        for (time, is_one) in [
            ("0000000000.00000", true),
            ("0000000001.00000_0000000000000001", true),
            ("0000000000a", false),
        ] {
            let args = serde_json::json!([7, "hash", "id", time, "0", "0", ""]);
            let read = remote_info(args.as_array().unwrap());
            assert_eq!(read.is_ok(), is_one, "{time:?}");
        }
    }

    #[test]
    fn a_replica_s_shard_ranges_are_checked_like_anybody_s() {
        let now = cairn_types::Timestamp::from_secs(5);
        let range = ShardRange::new("a/c", now, "", "m");
        let sent = |change: &dyn Fn(&mut Value)| {
            let mut range = serde_json::to_value(&range).unwrap();
            change(&mut range);
            shard_ranges(&[Value::Array(vec![range])]).map_err(|_| ())
        };
        assert_eq!(sent(&|_| {}), Ok(vec![range.clone()]));
        for (field, value) in [
            ("name", serde_json::json!("no-account")),
            ("state", serde_json::json!(11)),
            ("object_count", serde_json::json!(-1)),
            ("bytes_used", serde_json::json!(i64::MAX)),
            ("lower", serde_json::json!("n")),
            ("timestamp", serde_json::json!("soon")),
        ] {
            assert_eq!(
                sent(&|range| range[field] = value.clone()),
                Err(()),
                "{field}"
            );
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod properties {
    use cairn_index::{ContainerFacts, ReplicationInfo};
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;
    use serde_json::json;

    use super::*;

    fn any_value() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "0|0000000(000|[0-9]{3})(\\.[0-9]{5})?[a-z]?|.{0,12}".prop_map(Value::from),
            Just(json!({"name": "o", "created_at": "1"})),
            Just(json!([{"remote_id": "i", "sync_point": 1}])),
        ]
    }

    proptest! {
        #[test]
        fn a_sync_is_read_as_it_was_sent(
            numbers: [i64; 3],
            texts in proptest::array::uniform2(".{0,40}"),
            times in proptest::array::uniform4(prop_oneof![Just("0".to_owned()), "[0-9]{9}[1-9]\\.[0-9]{5}"]),
            items in vec(("[A-Z][a-z-]{0,9}", ".{0,9}", "[1-9][0-9]{9}\\.[0-9]{5}"), 0..3),
            with_policy: bool,
        ) {
            let column: serde_json::Map<String, Value> = items
                .into_iter()
                .map(|(name, value, time)| (name, json!([value, time])))
                .collect();
            let metadata = Value::Object(column.clone()).to_string();
            let info = ReplicationInfo {
                max_row: numbers[0],
                count: numbers[1],
                hash: texts[0].clone(),
                id: texts[1].clone(),
                created_at: times[0].clone(),
                put_timestamp: times[1].clone(),
                delete_timestamp: times[2].clone(),
                status_changed_at: times[3].clone(),
                metadata,
                of_container: Some(ContainerFacts {
                    storage_policy_index: numbers[2],
                    ..ContainerFacts::default()
                }),
                ..ReplicationInfo::default()
            };
            let sent = json_ascii::to_string(&Value::Array(info.sync_args(with_policy)));
            let args = arguments(sent.as_bytes()).unwrap();
            prop_assert_eq!(&args[0], "sync");
            let read = remote_info(&args[1..]).unwrap();
            let policy = with_policy.then(|| RemotePolicy {
                status_changed_at: info.status_changed_at.clone(),
                count: info.count,
                storage_policy_index: numbers[2],
            });
            prop_assert_eq!(read.metadata.iter().count(), column.len());
            for (name, value, time) in read.metadata.iter() {
                prop_assert_eq!(&column[name], &json!([value, time]));
            }
            let expected = RemoteInfo {
                point: info.max_row,
                hash: info.hash,
                id: info.id,
                created_at: info.created_at,
                put_timestamp: info.put_timestamp,
                delete_timestamp: info.delete_timestamp,
                metadata: read.metadata.clone(),
                policy,
            };
            prop_assert_eq!(read, expected);
        }

        #[test]
        fn any_arguments_are_read_or_refused(changed in vec((0..10usize, any_value()), 0..3), length in 6..=10usize, body in "[\\[\\]{}\"0-9,:a]{0,20}|.{0,20}") {
            if let Ok(args) = arguments(body.as_bytes()) {
                prop_assert_eq!(serde_json::from_str::<Vec<Value>>(&body).unwrap(), args);
            }
            let time = "0000000001.00000";
            let args = json!([7, "hash", "id", time, time, time, "", time, 4, 1]);
            let mut args = args.as_array().unwrap().clone();
            for (at, value) in changed {
                args[at] = value;
            }
            args.truncate(length);
            if let Ok(remote) = remote_info(&args) {
                prop_assert_eq!(args[0].as_i64(), Some(remote.point));
                let texts = [&remote.hash, &remote.id, &remote.created_at];
                let times = [&remote.put_timestamp, &remote.delete_timestamp];
                for (at, text) in texts.into_iter().chain(times).enumerate() {
                    prop_assert_eq!(args[at + 1].as_str(), Some(&**text));
                }
                // All of the policy, or nothing of it.
                prop_assert_eq!(remote.policy.is_some(), args.len() >= 10);
            }
        }

        #[test]
        fn a_key_is_a_device_a_number_and_a_hash(
            device in select(vec!["sdb1", "d-1", "..", ".", "a b", "a%2Fb", "", "%ff"]),
            partition in "[0-9]{1,9}|[0-9]{0,3}[a-z.+-]?",
            hash in "[0-9a-f]{32}|[0-9a-fA-F]{30,33}",
            end in select(vec!["", "/", "/x", "//"]),
        ) {
            let key = key_of(&format!("/{device}/{partition}/{hash}{end}"), DbKind::Account);
            let is_name = matches!(device, "sdb1" | "d-1");
            let is_number = !partition.is_empty() && partition.bytes().all(|b| b.is_ascii_digit());
            let is_hash = hash.len() == 32 && !hash.bytes().any(|b| b.is_ascii_uppercase());
            prop_assert_eq!(key.is_ok(), is_name && is_number && is_hash && end.len() < 2 && end != "/x");
            if let Ok(key) = key {
                prop_assert_eq!((&*key.device, &*key.partition, key.hash.hex()), (device, &*partition, hash));
            }
        }

        #[test]
        fn any_path_has_a_key_or_none(path in "/(\\.{1,2}|[a-z%0-9F.]{0,4})/[0-9]{1,2}/0{32}/?|(/[a-z0-9%.]{0,9}){0,4}|.{0,30}") {
            if let Ok(key) = key_of(&path, DbKind::Container) {
                prop_assert!(!key.device.contains(['/', '\0']) && !matches!(&*key.device, "." | ".." | ""));
            }
        }
    }
}
