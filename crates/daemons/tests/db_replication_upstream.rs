//! Database replication with OpenStack Swift's own servers and replicators on some of the nodes:
//! whoever replicates to whomever, in the end all replicas have the same rows, counts, metadata
//! and times, as Swift's own brokers read them.
//!
//! Needs a Python that has Swift (`CAIRN_SWIFT_PYTHON=/path/to/python`) and rsync. Without them
//! these tests say so and pass.
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod ports;
mod swift_nodes;

use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use cairn_index::DbKind;
use serde_json::{Value, json};
use swift_nodes::{Cluster, Side};

use Side::{Ours, Swift};

const ARRANGEMENTS: [[Side; 4]; 2] = [[Ours, Swift, Ours, Swift], [Swift, Ours, Swift, Ours]];

/// In every arrangement; or not at all.
async fn everywhere(kind: DbKind, test: impl AsyncFn(&Cluster)) {
    for sides in ARRANGEMENTS {
        let Some(cluster) = Cluster::start(kind, sides).await else {
            return;
        };
        println!("{sides:?}");
        test(&cluster).await;
    }
}

/// A full hour of yesterday.
fn base() -> u64 {
    static BASE: LazyLock<u64> = LazyLock::new(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        (since.as_secs() - 86_400) / 3600 * 3600
    });
    *BASE
}

fn time(seconds: u64) -> String {
    format!("{:010}.00000", base() + seconds)
}

fn object(number: usize, seconds: u64, deleted: bool) -> Value {
    json!({
        "name": format!("o-{number:05} é"), "created_at": time(seconds),
        "size": if deleted { 0 } else { number }, "content_type": "text/plain", "etag": "e",
        "deleted": u8::from(deleted), "storage_policy_index": 0,
    })
}

fn container(number: usize, seconds: u64, deleted: bool) -> Value {
    json!({
        "name": format!("c-{number:05} é"), "put_timestamp": time(seconds),
        "delete_timestamp": if deleted { time(seconds + 1) } else { "0".into() },
        "object_count": if deleted { 0 } else { 2 }, "bytes_used": if deleted { 0 } else { number },
        "deleted": u8::from(deleted), "storage_policy_index": 0,
    })
}

type Row = fn(usize, u64, bool) -> Value;

fn rows(kind: DbKind, numbers: std::ops::Range<usize>, seconds: u64, deleted: bool) -> Value {
    let row: Row = match kind {
        DbKind::Account => container,
        DbKind::Container => object,
    };
    numbers
        .map(|number| row(number, seconds, deleted))
        .collect()
}

fn create(cluster: &Cluster, node: usize, seconds: u64) {
    let create = match cluster.kind {
        DbKind::Account => json!(["create", time(seconds)]),
        DbKind::Container => json!(["create", time(seconds), 0]),
    };
    cluster.make_folder(node);
    cluster.act(node, &[create]);
}

/// All primaries have the same state; gives it.
fn same(cluster: &Cluster) -> Value {
    let states: Vec<Value> = cluster
        .primaries()
        .iter()
        .map(|node| cluster.act(*node, &[json!(["state"])])[0].clone())
        .collect();
    for state in &states[1..] {
        assert_eq!(state["info"], states[0]["info"]);
        assert_eq!(state["metadata"], states[0]["metadata"]);
        assert_eq!(state["rows"], states[0]["rows"]);
        assert_eq!(state, &states[0]);
    }
    states[0].clone()
}

/// Passes on all nodes until nobody has anything to send: at most so many.
async fn settle(cluster: &Cluster) {
    for _ in 0..4 {
        let mut sent = 0;
        for node in 0..4 {
            let stats = cluster.replicate(node, &[]).await;
            let count = |name: &str| stats[name].as_u64().unwrap();
            sent += count("rsync") + count("diff") + count("remote_merge") + count("failure");
        }
        if sent == 0 {
            return;
        }
    }
    panic!("the replicas do not settle");
}

/// Everyone knows how far they have everyone's rows: what was sent, and what was the same.
fn synced(cluster: &Cluster) {
    let syncs: Vec<Value> = cluster
        .primaries()
        .iter()
        .map(|node| cluster.act(*node, &[json!(["syncs"])])[0].clone())
        .collect();
    let known = |at: &Value, table: &str, of: &Value| {
        let points = at[table].as_array().unwrap();
        let point = points.iter().find(|point| point["remote_id"] == of["id"]);
        point.map_or(-1, |point| point["sync_point"].as_i64().unwrap())
    };
    for (from, sender) in syncs.iter().enumerate() {
        for (to, receiver) in syncs.iter().enumerate() {
            if from != to {
                let max_row = sender["max_row"].as_i64().unwrap();
                let known = known(receiver, "incoming", sender);
                let told = known.max(self::known_by(sender, receiver));
                assert_eq!(told, max_row, "{sender} {receiver}");
            }
        }
    }
}

/// A node knows that it has all rows of another.
fn knows(cluster: &Cluster, receiver: usize, sender: usize) {
    let [receiver, sender] =
        [receiver, sender].map(|node| cluster.act(node, &[json!(["syncs"])])[0].clone());
    let points = receiver["incoming"].as_array().unwrap();
    let point = points
        .iter()
        .find(|point| point["remote_id"] == sender["id"]);
    assert_eq!(
        point.map(|point| &point["sync_point"]),
        Some(&sender["max_row"]),
        "{receiver} {sender}"
    );
}

fn known_by(sender: &Value, receiver: &Value) -> i64 {
    let points = sender["outgoing"].as_array().unwrap();
    let point = points
        .iter()
        .find(|point| point["remote_id"] == receiver["id"]);
    point.map_or(-1, |point| point["sync_point"].as_i64().unwrap())
}

/// New databases, news on two sides, deletions and metadata.
async fn replicas_agree(cluster: &Cluster) {
    let kind = cluster.kind;
    let [a, b, c] = cluster.primaries();
    create(cluster, a, 1);
    let metadata = json!(["metadata", {"X-Container-Meta-Color": ["réd", time(2)],
                                       "X-Container-Meta-Gone": ["x", time(2)]}]);
    cluster.act(
        a,
        &[json!(["merge", rows(kind, 0..30, 5, false)]), metadata],
    );
    let stats = cluster.replicate(a, &[]).await;
    assert_eq!(stats["rsync"], 2, "{stats}");
    assert_eq!(stats["failure"], 0, "{stats}");
    let state = same(cluster);
    assert_eq!(state["rows"].as_array().unwrap().len(), 30);
    knows(cluster, b, a);
    knows(cluster, c, a);

    // Two learn different things.
    let metadata = json!(["metadata", {"X-Container-Meta-Color": ["blue", time(3)],
                                       "X-Container-Meta-Size": ["9", time(3)]}]);
    let gone = json!(["metadata", {"X-Container-Meta-Gone": ["", time(4)]}]);
    cluster.act(b, &[json!(["merge", rows(kind, 0..5, 7, true)]), metadata]);
    // An account's rows have the counts that were told last: they do not bear being told late.
    let overlap = if kind == DbKind::Container { 3 } else { 5 };
    cluster.act(
        c,
        &[json!(["merge", rows(kind, overlap..8, 6, false)]), gone],
    );
    cluster.act(c, &[json!(["merge", rows(kind, 40..45, 6, false)])]);
    let stats = cluster.replicate(b, &[]).await;
    assert_eq!(stats["diff"], 2, "{stats}");
    knows(cluster, a, b);
    for node in [c, a, b] {
        cluster.replicate(node, &[]).await;
    }
    let state = same(cluster);
    assert_eq!(state["rows"].as_array().unwrap().len(), 35);
    assert_eq!(state["info"]["count"], 30);
    assert_eq!(state["metadata"]["X-Container-Meta-Color"][0], "blue");
    assert_eq!(state["metadata"]["X-Container-Meta-Gone"][0], "");
    settle(cluster).await;
    same(cluster);
    synced(cluster);
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_agree() {
    everywhere(DbKind::Container, async |cluster| {
        replicas_agree(cluster).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn accounts_agree() {
    everywhere(DbKind::Account, async |cluster| {
        replicas_agree(cluster).await
    })
    .await;
}

/// One has far more rows: the whole file goes, and is merged with what is there.
async fn files_are_merged(cluster: &Cluster) {
    let kind = cluster.kind;
    let [a, b, c] = cluster.primaries();
    create(cluster, a, 1);
    cluster.act(a, &[json!(["merge", rows(kind, 0..300, 5, false)])]);
    let few = [("per_diff", "10"), ("max_diffs", "3")];
    // Nobody else has it: the file goes by rsync.
    let stats = cluster.replicate(a, &few).await;
    assert_eq!(stats["rsync"], 2, "{stats}");
    assert_eq!(stats["failure"], 0, "{stats}");
    same(cluster);

    cluster.act(a, &[json!(["merge", rows(kind, 300..1500, 6, false)])]);
    let gone = if kind == DbKind::Container { 20 } else { 10 };
    cluster.act(b, &[json!(["merge", rows(kind, 290..290 + gone, 7, true)])]);
    cluster.act(
        c,
        &[json!(["metadata", {"X-Container-Meta-A": ["c", time(9)]}])],
    );
    let stats = cluster.replicate(a, &few).await;
    assert_eq!(stats["remote_merge"], 2, "{stats}");
    assert_eq!(stats["failure"], 0, "{stats}");
    for node in [b, c, a] {
        cluster.replicate(node, &[]).await;
    }
    let state = same(cluster);
    assert_eq!(state["info"]["count"], 1500 - gone);
    assert_eq!(state["metadata"]["X-Container-Meta-A"][0], "c");
    settle(cluster).await;
    same(cluster);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_containers_are_merged() {
    everywhere(DbKind::Container, async |cluster| {
        files_are_merged(cluster).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_accounts_are_merged() {
    everywhere(DbKind::Account, async |cluster| {
        files_are_merged(cluster).await
    })
    .await;
}

/// A database on a device that should not have it goes to those that should, and is removed.
async fn handoffs_go_home(cluster: &Cluster) {
    let kind = cluster.kind;
    let (primaries, handoff) = (cluster.primaries(), cluster.handoff());
    create(cluster, handoff, 1);
    cluster.act(handoff, &[json!(["merge", rows(kind, 0..30, 5, false)])]);
    cluster.stop(primaries[1]).await;
    cluster.replicate(handoff, &[]).await;
    assert!(cluster.exists(primaries[0]) && cluster.exists(primaries[2]));
    assert!(
        cluster.exists(handoff),
        "one of those who should have it has not"
    );
    cluster.start_again(primaries[1]).await;
    let stats = cluster.replicate(handoff, &[]).await;
    assert_eq!(stats["remove"], 1, "{stats}");
    assert!(!cluster.exists(handoff));
    assert!(!cluster.partition_folder(handoff).exists());
    assert_eq!(same(cluster)["info"]["count"], 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn handoffs_of_containers_go_home() {
    everywhere(DbKind::Container, async |cluster| {
        handoffs_go_home(cluster).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn handoffs_of_accounts_go_home() {
    everywhere(DbKind::Account, async |cluster| {
        handoffs_go_home(cluster).await
    })
    .await;
}

/// A deletion reaches a replica that was away; after the reclaim age the database is removed.
async fn deleted_stays_deleted(cluster: &Cluster) {
    let kind = cluster.kind;
    let [a, b, c] = cluster.primaries();
    create(cluster, a, 1);
    cluster.act(a, &[json!(["merge", rows(kind, 0..5, 5, false)])]);
    settle(cluster).await;
    cluster.stop(c).await;
    for node in [a, b] {
        let delete = [
            json!(["merge", rows(kind, 0..5, 7, true)]),
            json!(["delete", time(10)]),
        ];
        cluster.act(node, &delete);
    }
    cluster.replicate(a, &[]).await;
    cluster.start_again(c).await;
    // The one that knows nothing speaks first.
    for node in [c, a, b] {
        cluster.replicate(node, &[]).await;
    }
    let state = same(cluster);
    assert_eq!(state["deleted"], true);
    assert_eq!(state["info"]["count"], 0);

    // The account has not been told yet: a container stays until it has.
    if kind == DbKind::Container {
        cluster.replicate(a, &[("reclaim_age", "1")]).await;
        assert!(cluster.exists(a));
        for node in [a, b, c] {
            cluster.note_reported(node);
        }
    }
    for node in [a, b, c] {
        let stats = cluster.replicate(node, &[("reclaim_age", "1")]).await;
        assert_eq!(stats["remove"], 1, "{stats}");
    }
    for node in [a, b, c, a] {
        cluster.replicate(node, &[("reclaim_age", "1")]).await;
        assert!(!cluster.exists(node));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_containers_stay_deleted() {
    everywhere(DbKind::Container, async |cluster| {
        deleted_stays_deleted(cluster).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_accounts_stay_deleted() {
    everywhere(DbKind::Account, async |cluster| {
        deleted_stays_deleted(cluster).await
    })
    .await;
}

/// Two halves of a cluster made one container with different policies: the older one stays, and
/// what the other half wrote is queued for the reconciler, alike whoever finds it.
#[tokio::test(flavor = "multi_thread")]
async fn policies_are_merged() {
    everywhere(DbKind::Container, async |cluster| {
        let [a, b, c] = cluster.primaries();
        create(cluster, a, 1);
        cluster.make_folder(b);
        let object = json!({
            "name": "misplaced", "created_at": time(7300), "size": 5, "content_type": "t",
            "etag": "e", "deleted": 0, "storage_policy_index": 1,
        });
        let news = [json!(["create", time(2), 1]), json!(["merge", [object]])];
        cluster.act(b, &news);
        for node in [a, b, c, a, b, c] {
            cluster.replicate(node, &[]).await;
        }
        let state = same(cluster);
        assert_eq!(state["info"]["storage_policy_index"], 0);
        assert_eq!(state["rows"][0]["storage_policy_index"], 1);
        let queues = cluster.queues();
        assert!(!queues.is_empty());
        for queue in queues {
            assert_eq!(queue["info"]["account"], ".misplaced_objects");
            let hour = (base() + 7200).to_string();
            assert_eq!(queue["info"]["container"], hour.as_str());
            let row = &queue["rows"][0];
            let name = format!("1:/{}/{}/misplaced", cluster.account(), "c");
            assert_eq!(row["name"], name.as_str());
            assert_eq!(row["content_type"], "application/x-put");
            assert_eq!(row["etag"], time(7300).as_str());
        }
    })
    .await;
}
