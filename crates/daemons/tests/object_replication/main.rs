//! Replication between object servers, each Cairn's or OpenStack Swift's: objects that one has
//! and the others lack, newer metadata, tombstones, handoffs, damage; by SSYNC and by rsync.
//!
//! With Swift it needs a Python that has it: `CAIRN_SWIFT_PYTHON=/path/to/python`. Without it
//! those tests say so and pass; so do those that need `rsync`, where it is not installed.
#![allow(clippy::unwrap_used)]

mod cluster;
#[path = "../ports/mod.rs"]
mod ports;
mod tree;

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use cairn_daemons::PassFilter;
use cluster::Kind::{Cairn, Swift};
use cluster::{Cluster, Kind, NODES};

/// Expected content of an object; `None` if deleted.
type Model = BTreeMap<String, Option<(Vec<u8>, BTreeMap<String, String>)>>;

fn time(offset: u64) -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    format!("{:010}.{:05}", now - 5000 + offset, offset % 7)
}

/// Writes a history of which each server knows a part: by way of nodes of one kind.
async fn write(cluster: &Cluster, via: Kind, prefix: &str) -> Model {
    let mut model = Model::new();
    for number in 0..24usize {
        let object = match number {
            5 => format!("{prefix}/sub dir/\u{e9}\u{4e2d}?"),
            number => format!("{prefix}{number}"),
        };
        let (_, primaries) = cluster.place(&object);
        let handoff = cluster.handoff(&object);
        // Target of the write: one primary, or where none will do or every fifth, the handoff.
        let own: Vec<usize> = primaries
            .iter()
            .copied()
            .filter(|node| cluster.kinds[*node] == via)
            .collect();
        let use_handoff = (number % 5 == 4 || own.is_empty()) && cluster.kinds[handoff] == via;
        let Some(node) = (if use_handoff {
            Some(handoff)
        } else {
            own.first().copied()
        }) else {
            continue;
        };
        let size = [0, 10, 5000, 70_000, 1_500_000][number % 5];
        let mut content = vec![b'a' + (number % 26) as u8; size];
        content.extend_from_slice(object.as_bytes());
        let put_time = time(number as u64);
        let headers = [
            ("x-timestamp", put_time.as_str()),
            ("content-type", "text/plain; x=\u{e9}"),
            ("x-object-meta-of-put", "one"),
            ("x-object-sysmeta-kept", "sys\u{e9}"),
            ("content-encoding", "gzip"),
            // Kept by this server only because it was told to.
            ("x-backend-replication-headers", "x-custom"),
            ("x-custom", "kept"),
        ];
        let (status, _, _) = cluster
            .ask(node, "PUT", &object, &headers, content.clone())
            .await;
        assert_eq!(status, 201, "PUT {object} on node {node}");
        let mut meta = BTreeMap::from([("x-object-meta-of-put".to_owned(), "one".to_owned())]);
        if number % 3 == 1 {
            let post_time = time(100 + number as u64);
            let mut headers = vec![
                ("x-timestamp", post_time.as_str()),
                ("x-object-meta-of-post", "two"),
            ];
            if number % 2 == 0 {
                headers.push(("content-type", "new/type"));
            }
            let (status, _, _) = cluster
                .ask(node, "POST", &object, &headers, Vec::new())
                .await;
            assert_eq!(status, 202, "POST {object}");
            meta = BTreeMap::from([("x-object-meta-of-post".to_owned(), "two".to_owned())]);
        }
        let mut last = Some((content, meta));
        if number % 6 == 2 {
            // Deleted on a server that may never have had it.
            let node = own.last().copied().unwrap_or(node);
            let at = time(200 + number as u64);
            let headers = [("x-timestamp", at.as_str())];
            let (status, _, _) = cluster
                .ask(node, "DELETE", &object, &headers, Vec::new())
                .await;
            assert!(matches!(status, 204 | 404), "DELETE {object}: {status}");
            last = None;
        }
        model.insert(object, last);
    }
    assert!(
        model.len() > 12,
        "too few objects are on nodes of this kind"
    );
    model
}

/// All replicas are alike, and what was written; nothing is where it does not belong.
async fn check(cluster: &Cluster, model: &Model) {
    for (object, expected) in model {
        let (partition, primaries) = cluster.place(object);
        let place = format!("objects/{partition}");
        let trees: Vec<_> = primaries
            .iter()
            .map(|node| tree::read(&cluster.device(*node).join(&place)))
            .collect();
        for (node, tree) in primaries.iter().zip(&trees) {
            let first = primaries[0];
            let difference: Vec<_> = tree
                .iter()
                .filter(|(k, v)| trees[0].get(*k) != Some(v))
                .collect();
            let names = |t: &tree::Tree| t.keys().cloned().collect::<Vec<_>>();
            assert_eq!(
                names(tree),
                names(&trees[0]),
                "files of {object}: nodes {node}, {first}"
            );
            assert!(
                difference.is_empty(),
                "{object}: nodes {node}, {first}: {difference:?}"
            );
        }
        let stray = cluster.device(cluster.handoff(object)).join(&place);
        assert!(!stray.exists(), "{} is still there", stray.display());
        for node in primaries {
            let (status, headers, body) = cluster.ask(node, "GET", object, &[], Vec::new()).await;
            match expected {
                None => assert_eq!(status, 404, "{object} on node {node}"),
                Some((content, meta)) => {
                    assert_eq!(status, 200, "{object} on node {node}");
                    assert!(body == *content, "content of {object} on node {node}");
                    let meta_here: BTreeMap<String, String> = headers
                        .iter()
                        .filter(|(name, _)| name.as_str().starts_with("x-object-meta-"))
                        .map(|(n, v)| (n.to_string(), v.to_str().unwrap().to_owned()))
                        .collect();
                    assert_eq!(meta_here, *meta, "{object} on node {node}");
                }
            }
        }
    }
}

async fn all_cairn(method: &'static str, in_process: bool) {
    let Some(mut cluster) = Cluster::start([Cairn; NODES], method).await else {
        return;
    };
    cluster.in_process = in_process;
    let model = write(&cluster, Cairn, "o").await;
    for _ in 0..2 {
        for node in 0..NODES {
            cluster.replicate(node).await;
        }
    }
    check(&cluster, &model).await;
    let stats = cluster.replicate_by_cairn(0, &[]).await;
    assert_eq!(
        (stats.failure, stats.rsync, stats.remove),
        (0, 0, 0),
        "{stats:?}"
    );
    assert!(stats.hashmatch > 0);
    let recon = cluster.recon(0);
    assert_eq!(recon["replication_stats"]["attempted"], stats.attempted);
    assert!(recon["object_replication_last"].as_f64().unwrap() > 1e9);
}

/// Servers of both kinds: first Cairn's replicators alone bring everything to Swift's servers,
/// then Swift's alone to Cairn's.
async fn mixed(method: &'static str) {
    let kinds = [Cairn, Swift, Cairn, Swift];
    let Some(cluster) = Cluster::start(kinds, method).await else {
        return;
    };
    for (kind, prefix) in [(Cairn, "by-cairn"), (Swift, "by-swift")] {
        let model = write(&cluster, kind, prefix).await;
        for _ in 0..2 {
            for node in (0..NODES).filter(|node| kinds[*node] == kind) {
                cluster.replicate(node).await;
            }
        }
        check(&cluster, &model).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cairn_alone_by_ssync() {
    all_cairn("ssync", false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cairn_alone_in_one_process() {
    all_cairn("ssync", true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cairn_alone_by_rsync() {
    all_cairn("rsync", false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cairn_and_swift_by_ssync() {
    mixed("ssync").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cairn_and_swift_by_rsync() {
    mixed("rsync").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handoff_stands_in_for_a_device_that_is_not_there() {
    let Some(cluster) = Cluster::start([Cairn; NODES], "ssync").await else {
        return;
    };
    let (_, primaries) = cluster.place("o");
    let (here, away) = (primaries[0], primaries[1]);
    let at = time(1);
    let headers = [("x-timestamp", at.as_str()), ("content-type", "a/b")];
    let (status, _, _) = cluster
        .ask(here, "PUT", "o", &headers, b"content".to_vec())
        .await;
    assert_eq!(status, 201);
    let (mounted, unmounted) = (cluster.device(away), cluster.folder.path().join("away"));
    std::fs::rename(&mounted, &unmounted).unwrap();
    let stats = cluster.replicate_by_cairn(here, &[]).await;
    assert_eq!(stats.failure, 1, "{stats:?}");
    assert_eq!(stats.failure_nodes["127.0.0.1"][&format!("d{away}")], 1);
    assert_eq!(
        stats.rsync, 2,
        "the third primary, and the handoff: {stats:?}"
    );
    let handoff = cluster.handoff("o");
    assert!(cluster.hash_dir(handoff, "o").exists());
    // Handoffs come first while there are any: the handoff does not give up its own for nothing.
    let stats = cluster
        .replicate_by_cairn(handoff, &[("handoffs_first", "yes")])
        .await;
    assert_eq!((stats.remove, stats.failure), (0, 1), "{stats:?}");
    assert!(cluster.hash_dir(handoff, "o").exists());
    std::fs::rename(&unmounted, &mounted).unwrap();
    let stats = cluster
        .replicate_by_cairn(handoff, &[("handoffs_first", "yes")])
        .await;
    assert_eq!((stats.remove, stats.failure), (1, 0), "{stats:?}");
    let content = BTreeMap::new();
    let model = Model::from([("o".to_owned(), Some((b"content".to_vec(), content)))]);
    check(&cluster, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fewer_copies_are_enough_where_the_conf_says_so() {
    let Some(cluster) = Cluster::start([Cairn; NODES], "ssync").await else {
        return;
    };
    let (_, primaries) = cluster.place("o");
    let handoff = cluster.handoff("o");
    let at = time(1);
    let headers = [("x-timestamp", at.as_str()), ("content-type", "a/b")];
    cluster
        .ask(handoff, "PUT", "o", &headers, b"content".to_vec())
        .await;
    std::fs::rename(
        cluster.device(primaries[2]),
        cluster.folder.path().join("away"),
    )
    .unwrap();
    let stats = cluster
        .replicate_by_cairn(handoff, &[("handoff_delete", "2")])
        .await;
    assert_eq!(
        (stats.remove, stats.failure, stats.success),
        (1, 1, 2),
        "{stats:?}"
    );
    assert!(!cluster.hash_dir(handoff, "o").exists());
    assert!(cluster.hash_dir(primaries[0], "o").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_damaged_is_quarantined_and_comes_back() {
    let Some(cluster) = Cluster::start([Cairn; NODES], "ssync").await else {
        return;
    };
    let model = write(&cluster, Cairn, "o").await;
    for node in [0, 1, 2, 3, 0, 1, 2, 3] {
        cluster.replicate(node).await;
    }
    let (_, primaries) = cluster.place("o3");
    let damaged = primaries[1];
    let dir = cluster.hash_dir(damaged, "o3");
    let file = std::fs::read_dir(&dir)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let mut content = std::fs::read(&file).unwrap();
    content[60_000] ^= 1;
    // In place: the file keeps its attributes.
    std::fs::write(&file, content).unwrap();
    // And one is cut short, as by a crash.
    let (_, primaries_of_1) = cluster.place("o1");
    let cut = cluster.hash_dir(damaged, "o1");
    let is_cut = primaries_of_1.contains(&damaged);
    if is_cut {
        let mut files = std::fs::read_dir(&cut).unwrap().map(|f| f.unwrap().path());
        let file = files.find(|p| p.extension().unwrap() == "data").unwrap();
        std::fs::File::options()
            .write(true)
            .open(file)
            .unwrap()
            .set_len(0)
            .unwrap();
    }
    // A walk that only opens objects finds those emptied by a crash.
    let opening = PassFilter {
        zero_byte_fps: Some(0.0),
        ..PassFilter::default()
    };
    let stats = cluster.audit_by_cairn(damaged, &opening).await;
    assert_eq!(stats.quarantined, u64::from(is_cut), "{stats:?}");
    assert_eq!(stats.bytes_processed, 0);
    let stats = cluster
        .audit_by_cairn(damaged, &PassFilter::default())
        .await;
    assert_eq!(stats.quarantined, 1, "{stats:?}");
    assert_eq!(stats.errors, 0);
    assert!(!dir.exists());
    let recon = cluster.recon(damaged);
    assert!(
        recon["object_auditor_stats_ALL"]["passes"]
            .as_u64()
            .unwrap()
            > 0
    );
    assert!(recon["object_auditor_stats_ZBF"].is_object());
    let moved = cluster.device(damaged).join("quarantined/objects");
    assert_eq!(
        std::fs::read_dir(moved).unwrap().count(),
        1 + usize::from(is_cut)
    );
    for node in primaries {
        cluster.replicate(node).await;
    }
    check(&cluster, &model).await;
}
