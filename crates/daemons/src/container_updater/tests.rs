use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};

use cairn_http::{Request, handler_fn, respond};
use cairn_index::{ContainerInfo, IndexConfig, NewDb, ObjectRow};
use cairn_types::Timestamp;

use super::*;
use crate::testing::write_rings;

/// Three account servers on one machine, all in this process, and a device with containers.
struct Cluster {
    folder: tempfile::TempDir,
    updater: Arc<ContainerUpdater>,
    pool: Arc<IndexPool>,
    written: Arc<Written>,
    hash_path: HashPath,
    /// Responses of the servers on ports 6202 and 6203; the other accepts everything.
    others: Arc<AtomicU16>,
    seen: Arc<Mutex<Vec<String>>>,
}

fn cluster() -> Cluster {
    cluster_where(true)
}

/// `has_server`: a container server of this process notes what is written.
fn cluster_where(has_server: bool) -> Cluster {
    let folder = tempfile::tempdir().unwrap();
    write_rings(folder.path());
    let rings = Rings::open(folder.path(), &cairn_types::PolicySet::single()).unwrap();
    let root = folder.path().join("dev");
    std::fs::create_dir_all(root.join("sda")).unwrap();
    let pool = IndexPool::new(IndexConfig::new(&root));
    let backends = Backends::new(Duration::from_secs(1));
    let others = Arc::new(AtomicU16::new(201));
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    for port in [6201, 6202, 6203] {
        let (others, seen) = (others.clone(), seen.clone());
        let handler = handler_fn(move |request: Request| {
            let path = request.uri().path().splitn(4, '/').nth(3).unwrap();
            let header = |name: &str| request.headers()[name].to_str().unwrap().to_owned();
            assert_eq!(header("x-account-override-deleted"), "yes");
            seen.lock().push(format!(
                "{port} {} {path} {} {}",
                request.method(),
                header("x-object-count"),
                header("x-bytes-used"),
            ));
            let status = match port {
                6201 => 201,
                _ => others.load(Ordering::SeqCst),
            };
            async move { respond::text(respond::status(status), "") }
        });
        backends.register_local(SocketAddr::from(([127, 0, 0, 1], port)), handler);
    }
    let section = Section::from_pairs("container-updater", &[("mount_check", "no")]);
    let config = ContainerUpdaterConfig {
        containers_per_second: 0.0,
        interval: Duration::from_millis(200),
        recon_cache_path: folder.path().to_owned(),
        ..ContainerUpdaterConfig::read(&section).unwrap()
    };
    let hash_path = HashPath::new("", "end");
    let written = Written::new();
    let updater = ContainerUpdater::new(
        config,
        hash_path.clone(),
        rings,
        pool.clone(),
        backends,
        has_server.then(|| written.clone()),
    );
    Cluster {
        folder,
        updater,
        pool,
        written,
        hash_path,
        others,
        seen,
    }
}

impl Cluster {
    fn db(&self, container: &str) -> ContainerDb {
        self.pool
            .container(&self.hash_path, "sda", "3", "a", container)
    }

    async fn put(&self, container: &str, object: &str, size: i64) {
        let new = NewDb::Container {
            account: "a".into(),
            container: container.into(),
            put_timestamp: Timestamp::from_secs(5).internal(),
            storage_policy_index: 0,
        };
        let time = Timestamp::from_secs(6).internal();
        let (data, ctype, meta) = ObjectRow::times(&time, None, None).unwrap();
        let row = ObjectRow {
            name: object.into(),
            data,
            ctype,
            meta,
            size,
            content_type: "text/plain".into(),
            etag: "e".into(),
            deleted: false,
            storage_policy_index: 0,
        };
        let db = self.db(container);
        db.merge_items(Some(new), vec![row]).await.unwrap();
    }

    async fn info(&self, container: &str) -> ContainerInfo {
        self.db(container)
            .read(|broker| broker.info())
            .await
            .unwrap()
    }

    fn note(&self, container: &str) {
        let key = self.db(container).key().clone();
        self.written.note(key, Instant::now());
    }

    fn take_seen(&self) -> Vec<String> {
        let mut seen = std::mem::take(&mut *self.seen.lock());
        seen.sort();
        seen
    }
}

#[tokio::test]
async fn a_written_container_is_reported_once() {
    let cluster = cluster();
    cluster.updater.sweep().await;
    cluster.put("c é", "o1", 7).await;
    cluster.put("c é", "o2", 4).await;
    cluster.note("c é");
    cluster.updater.sweep().await;
    let told = |port| format!("{port} PUT a/c%20%C3%A9 2 11");
    assert_eq!(cluster.take_seen(), [6201, 6202, 6203].map(told));
    let info = cluster.info("c é").await;
    assert_eq!(
        (info.reported_object_count, info.reported_bytes_used),
        (2, 11)
    );
    assert_eq!(info.reported_put_timestamp, info.put_timestamp);

    cluster.note("c é");
    cluster.note("gone");
    cluster.updater.sweep().await;
    assert!(cluster.take_seen().is_empty());
    let stats = UpdateStats {
        successes: 1,
        no_changes: 1,
        ..UpdateStats::default()
    };
    assert_eq!(cluster.updater.stats(), stats);
}

#[tokio::test]
async fn an_account_that_takes_nothing_is_left_in_peace() {
    let cluster = cluster();
    cluster.put("c", "o", 7).await;
    cluster.put("d", "o", 7).await;
    cluster.others.store(404, Ordering::SeqCst);
    cluster.note("c");
    cluster.updater.sweep().await;
    assert_eq!(cluster.take_seen().len(), 3);
    assert_eq!(cluster.info("c").await.reported_object_count, 0);
    // Its other containers wait as well, and nothing is tried again before the time is over.
    cluster.note("d");
    cluster.note("c");
    cluster.updater.sweep().await;
    assert!(cluster.take_seen().is_empty());
    assert_eq!(cluster.updater.stats().failures, 2);

    cluster.others.store(201, Ordering::SeqCst);
    let later = Instant::now() + Duration::from_secs(61);
    cluster.updater.suppressed.lock().clear();
    let mut due = cluster.written.take(later);
    assert_eq!(due.len(), 2);
    due.drain(..)
        .for_each(|key| cluster.written.note(key, Instant::now()));
    cluster.updater.sweep().await;
    assert_eq!(cluster.updater.stats().successes, 2);
    assert_eq!(cluster.info("d").await.reported_object_count, 1);
}

#[tokio::test]
async fn most_servers_are_enough() {
    let cluster = cluster();
    cluster.put("c", "o", 7).await;
    cluster.updater.backends.register_local(
        SocketAddr::from(([127, 0, 0, 1], 6203)),
        handler_fn(|_| async { respond::text(respond::status(503), "") }),
    );
    cluster.note("c");
    cluster.updater.sweep().await;
    assert_eq!(cluster.updater.stats().successes, 1);
}

#[tokio::test]
async fn a_walk_finds_what_nobody_noted() {
    let cluster = cluster();
    cluster.put("c", "o", 7).await;
    let device = || cluster.updater.walked.lock().get("sda").copied();
    cluster.updater.walk().await;
    assert_eq!(cluster.updater.stats().successes, 1);
    assert!(device().unwrap().until.is_none());
    cluster.updater.walk().await;
    assert!(device().unwrap().until.is_some());
    let looked = |stats: UpdateStats| stats.successes + stats.no_changes;
    let before = looked(cluster.updater.stats());

    // Unchanged databases are not opened.
    let ahead = SystemTime::now() - Duration::from_secs(1) + FILE_TIME_SLACK * 2;
    let none = folders::changed(
        &cluster.folder.path().join("dev"),
        "sda",
        "3",
        &[cluster.db("c").key().hash.suffix()],
        Some(ahead),
    );
    assert!(none.unwrap().is_empty());
    cluster.put("d", "o", 7).await;
    cluster.updater.walk().await;
    assert!(looked(cluster.updater.stats()) > before);
    assert_eq!(cluster.info("d").await.reported_object_count, 1);
}

#[tokio::test]
async fn what_a_missing_device_holds_is_not_forgotten() {
    let cluster = cluster();
    cluster.put("c", "o", 7).await;
    cluster.updater.walk().await;
    cluster.updater.walk().await;
    cluster.put("c", "o2", 7).await;
    let [there, away] = ["dev/sda", "away"].map(|name| cluster.folder.path().join(name));
    std::fs::rename(&there, &away).unwrap();
    cluster.note("c");
    cluster.updater.sweep().await;
    assert_eq!(cluster.updater.stats().errors, 1);
    let missed = || cluster.updater.walked.lock()["sda"].missed;
    assert!(missed());
    cluster.updater.walk().await;
    // An empty mount point is no device either.
    std::fs::create_dir(&there).unwrap();
    cluster.updater.walk().await;
    assert!(missed());
    std::fs::remove_dir(&there).unwrap();
    std::fs::rename(&away, &there).unwrap();
    cluster.updater.walk().await;
    assert!(!missed());
    assert_eq!(cluster.info("c").await.reported_object_count, 2);
}

#[test]
fn options() {
    let read = |pairs: &[(&str, &str)]| {
        let section = Section::from_pairs("container-updater", pairs);
        ContainerUpdaterConfig::read(&section).map_err(|error| error.to_string())
    };
    let defaults = read(&[]).unwrap();
    assert_eq!(defaults.interval, Duration::from_secs(300));
    assert_eq!(defaults.call_timeout, Duration::from_millis(3500));
    assert_eq!(defaults.containers_per_second, 50.0);
    assert!(defaults.mount_check);
    let slow = read(&[("slowdown", "0.09")]).unwrap();
    assert_eq!(slow.containers_per_second.round(), 10.0);
    assert!(
        read(&[("concurrency", "0")])
            .unwrap_err()
            .contains("1 to 1024")
    );
    assert!(read(&[("containers_per_second", "-1")]).is_err());
}

/// The updater as a program of its own, without a server that records writes.
#[tokio::test]
async fn untold_it_walks_at_every_interval() {
    for (has_server, updates) in [(false, 6), (true, 3)] {
        let cluster = cluster_where(has_server);
        cluster.put("c", "one", 1).await;
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let running = tokio::spawn(crate::daemon::run(cluster.updater.clone(), stopped));
        let wait = Duration::from_millis(20);
        let seen = || cluster.seen.lock().len();
        while seen() < 3 {
            sleep(wait).await;
        }
        cluster.put("c", "two", 2).await;
        if has_server {
            // Several intervals: nobody told, so nothing is looked at.
            sleep(wait * 50).await;
        }
        while seen() < updates {
            sleep(wait).await;
        }
        assert_eq!(seen(), updates, "told: {has_server}");
        stop.send_replace(true);
        running.await.unwrap();
        let recon = ReconCache::new(cluster.folder.path(), CONTAINER_RECON_FILE).read();
        let sweep = recon["container_updater_sweep"].as_f64();
        assert!(sweep.is_some(), "{recon:?}");
    }
}
