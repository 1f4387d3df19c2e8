use std::net::SocketAddr;
use std::path::Path;

use cairn_formats::ini::Section;
use cairn_http::Handler;
use cairn_index::{IndexConfig, NewDb, ObjectRow};
use cairn_servers::container::{ContainerServer, ContainerServerConfig};
use tempfile::TempDir;

use super::*;
use crate::testing::{CountedLines, write_rings};

/// Three container servers, each with a folder of devices of its own, called without sockets.
struct Nodes {
    folder: TempDir,
    rings: Arc<Rings>,
    backends: Arc<Backends>,
    pools: Vec<Arc<IndexPool>>,
}

const ACCOUNT: &str = "a";
const CONTAINER: &str = "c é";

fn hash_path() -> HashPath {
    HashPath::new("", "end")
}

fn address(node: usize) -> SocketAddr {
    let port = 6201 + u16::try_from(node).unwrap();
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn nodes() -> Nodes {
    let folder = tempfile::tempdir().unwrap();
    write_rings(folder.path());
    let policies = Arc::new(PolicySet::single());
    let rings = Rings::open(folder.path(), &policies).unwrap();
    let backends = Backends::new(Duration::from_secs(1));
    let mut pools = Vec::new();
    for node in 0..3 {
        let root = folder.path().join(format!("node{node}"));
        std::fs::create_dir_all(root.join(format!("d{}", node + 1))).unwrap();
        let pool = IndexPool::new(IndexConfig::new(root));
        let config = ContainerServerConfig {
            mount_check: false,
            fallocate_reserve: None,
            ..ContainerServerConfig::new(hash_path(), policies.clone())
        };
        let server = ContainerServer::new(config, pool.clone(), backends.clone());
        backends.register_local(address(node), server as Handler);
        pools.push(pool);
    }
    Nodes {
        folder,
        rings,
        backends,
        pools,
    }
}

impl Nodes {
    fn replicator(&self, node: usize, options: &[(&str, &str)]) -> Arc<DbReplicator> {
        let port = address(node).port().to_string();
        let cache = self.folder.path().to_str().unwrap();
        let mut pairs = vec![
            ("mount_check", "no"),
            ("bind_port", &*port),
            ("recon_cache_path", cache),
            ("databases_per_second", "0"),
            ("whole_databases", "rows"),
        ];
        pairs.extend(options);
        let section = Section::from_pairs("container-replicator", &pairs);
        DbReplicator::new(
            DbReplicatorConfig::read(&section, DbKind::Container).unwrap(),
            hash_path(),
            &PolicySet::single(),
            self.rings.clone(),
            self.pools[node].clone(),
            self.backends.clone(),
        )
    }

    fn partition(&self) -> String {
        let ring = self.rings.container();
        let partition = ring.partition(&hash_path(), ACCOUNT, Some(CONTAINER), None);
        partition.to_string()
    }

    fn db_in(&self, node: usize, partition: &str) -> cairn_index::ContainerDb {
        let device = format!("d{}", node + 1);
        self.pools[node].container(&hash_path(), &device, partition, ACCOUNT, CONTAINER)
    }

    fn db(&self, node: usize) -> cairn_index::ContainerDb {
        self.db_in(node, &self.partition())
    }

    async fn fill(&self, db: &cairn_index::ContainerDb, names: std::ops::Range<u32>) {
        let now = (self.pools[0].config().clock)();
        let new = NewDb::Container {
            account: ACCOUNT.into(),
            container: CONTAINER.into(),
            put_timestamp: now.internal(),
            storage_policy_index: 0,
        };
        let row = |number: u32| ObjectRow {
            size: 1,
            deleted: false,
            ..ObjectRow::tombstone(format!("o{number}"), now, 0)
        };
        db.merge_items(Some(new), names.map(row).collect())
            .await
            .unwrap();
    }

    async fn count(&self, node: usize) -> Option<i64> {
        let info = self.db(node).read(|broker| broker.info()).await;
        info.ok().map(|info| info.object_count)
    }
}

#[tokio::test]
async fn without_rsync_rows_make_the_replicas() {
    let nodes = nodes();
    nodes.fill(&nodes.db(0), 0..25).await;
    let replicator = nodes.replicator(0, &[("per_diff", "10")]);
    let stats = replicator.pass(&PassFilter::default()).await;
    assert_eq!((stats.rsync, stats.success, stats.failure), (2, 2, 0));
    for node in 0..3 {
        assert_eq!(nodes.count(node).await, Some(25), "node {node}");
    }
    let told = replicator.recon.read();
    assert_eq!(told["replication_stats"]["attempted"], 1);
    let again = replicator.pass(&PassFilter::default()).await;
    assert_eq!((again.no_change, again.diff), (2, 0));
}

#[tokio::test]
async fn a_device_out_of_service_is_one_line() {
    let nodes = nodes();
    for partition in 0..8 {
        let db = nodes.db_in(0, &partition.to_string());
        nodes.fill(&db, 0..1).await;
    }
    // Nothing is mounted there.
    let replicator = nodes.replicator(0, &[("mount_check", "yes")]);
    let lines = CountedLines::default();
    let _guard = tracing::subscriber::set_default(lines.clone());
    let stats = replicator.pass(&PassFilter::default()).await;
    assert_eq!(stats.attempted, 8);
    assert_eq!(lines.count(), 1);
    replicator.pass(&PassFilter::default()).await;
    assert_eq!(lines.count(), 1, "a second pass within the minute");
}

#[tokio::test]
async fn a_pass_sends_so_many_rows_and_the_next_the_rest() {
    let nodes = nodes();
    nodes.fill(&nodes.db(0), 0..1).await;
    let replicator = nodes.replicator(0, &[("per_diff", "10"), ("max_diffs", "2")]);
    replicator.pass(&PassFilter::default()).await;
    nodes.fill(&nodes.db(0), 1..36).await;
    let stats = replicator.pass(&PassFilter::default()).await;
    assert_eq!((stats.diff_capped, stats.failure), (2, 2));
    assert_eq!(nodes.count(1).await, Some(21));
    let stats = replicator.pass(&PassFilter::default()).await;
    assert_eq!((stats.diff_capped, stats.failure), (0, 0));
    assert_eq!(nodes.count(2).await, Some(36));
}

#[tokio::test]
async fn a_wrong_partition_is_left() {
    let nodes = nodes();
    let wrong = nodes.partition().parse::<u32>().unwrap() ^ 1;
    let stray = nodes.db_in(0, &wrong.to_string());
    nodes.fill(&stray, 0..3).await;
    let stats = nodes.replicator(0, &[]).pass(&PassFilter::default()).await;
    assert_eq!((stats.remove, stats.failure), (1, 0));
    assert!(!stray.exists().await.unwrap());
    // The device it lay on is one that should have it: that one, too, got it.
    for node in 0..3 {
        assert_eq!(nodes.count(node).await, Some(3), "node {node}");
    }
}

#[tokio::test]
async fn passes_may_be_narrowed() {
    let nodes = nodes();
    nodes.fill(&nodes.db(0), 0..3).await;
    let partition: u32 = nodes.partition().parse().unwrap();
    let replicator = nodes.replicator(0, &[]);
    for only in [
        PassFilter {
            devices: ["d2".to_owned()].into(),
            ..PassFilter::default()
        },
        PassFilter {
            partitions: [partition ^ 1].into(),
            ..PassFilter::default()
        },
    ] {
        assert_eq!(replicator.pass(&only).await.attempted, 0);
    }
    let handoffs_only = nodes.replicator(0, &[("handoffs_only", "yes")]);
    assert_eq!(
        handoffs_only.pass(&PassFilter::default()).await.attempted,
        0
    );
    assert!(Path::new(&nodes.db(0).key().file(nodes.pools[0].devices())).exists());
}
