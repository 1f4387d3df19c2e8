use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};

use cairn_disk::DevicesConfig;
use cairn_formats::ini::Section;
use cairn_http::{handler_fn, respond};
use http::StatusCode;

use super::*;
use crate::testing::write_rings;

/// Three container servers on one machine, all in this process.
struct Cluster {
    _folder: tempfile::TempDir,
    updater: Arc<ObjectUpdater>,
    device: Arc<Device>,
    hash_path: HashPath,
    /// Response of the server on port 6203; the others accept everything.
    third: Arc<AtomicU16>,
    seen: Arc<Mutex<Vec<String>>>,
}

fn cluster() -> Cluster {
    cluster_with(|_| {})
}

fn cluster_with(change: impl FnOnce(&mut UpdaterConfig)) -> Cluster {
    let folder = tempfile::tempdir().unwrap();
    write_rings(folder.path());
    let policies = Arc::new(PolicySet::single());
    let rings = Rings::open(folder.path(), &policies).unwrap();
    let root = folder.path().join("dev");
    std::fs::create_dir_all(root.join("sda")).unwrap();
    let devices = Devices::new(DevicesConfig {
        mount_check: false,
        ..DevicesConfig::new(&root)
    });
    let device = devices.get("sda").unwrap();
    let backends = Backends::new(Duration::from_secs(1));
    let third = Arc::new(AtomicU16::new(503));
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    for port in [6201, 6202, 6203] {
        let (third, seen) = (third.clone(), seen.clone());
        let handler = handler_fn(move |request: Request| {
            let path = request
                .uri()
                .path()
                .splitn(4, '/')
                .nth(3)
                .unwrap()
                .to_owned();
            seen.lock()
                .push(format!("{port} {} {path}", request.method()));
            let status = if port == 6203 {
                third.load(Ordering::SeqCst)
            } else {
                201
            };
            async move {
                let status = StatusCode::from_u16(status).unwrap();
                let mut response = respond::text(status, "");
                if status == StatusCode::MOVED_PERMANENTLY {
                    let headers = response.headers_mut();
                    let location = HeaderValue::from_static("/.shards_a/c%20s/o");
                    headers.insert("location", location);
                    let quoted = HeaderValue::from_static("true");
                    headers.insert("x-backend-location-is-quoted", quoted);
                    let time = HeaderValue::from_static("0000000009.00000");
                    headers.insert("x-backend-redirect-timestamp", time);
                }
                response
            }
        });
        backends.register_local(SocketAddr::from(([127, 0, 0, 1], port)), handler);
    }
    let config = UpdaterConfig::read(&Section::from_pairs("object-updater", &[])).unwrap();
    let mut config = UpdaterConfig {
        objects_per_second: 0.0,
        recon_cache_path: folder.path().to_owned(),
        ..config
    };
    change(&mut config);
    let hash_path = HashPath::new("", "end");
    let updater = ObjectUpdater::new(
        config,
        hash_path.clone(),
        policies,
        rings,
        devices,
        backends,
    );
    Cluster {
        _folder: folder,
        updater,
        device,
        hash_path,
        third,
        seen,
    }
}

impl Cluster {
    async fn leave_update(&self, seconds: u64) {
        self.leave_update_of(seconds, &[]).await;
    }

    /// Kept under that time, with these times in it.
    async fn leave_update_of(&self, seconds: u64, times: &[(&str, u64)]) {
        let mut headers = vec![("X-Size".into(), b"3".to_vec())];
        for (name, at) in times {
            let at = Timestamp::from_secs(*at).internal();
            headers.push(((*name).to_owned(), at.into_bytes()));
        }
        let update = AsyncUpdate {
            op: "PUT".into(),
            account: "a".into(),
            container: "c".into(),
            object: "o é".into(),
            headers,
            ..AsyncUpdate::default()
        };
        let hash = self.hash_path.hash("a", Some("c"), Some("o é"));
        let time = Timestamp::from_secs(seconds);
        let written = self.device.write(move |disk| {
            async_pending::write_async_update(disk, PolicyIndex(0), hash, time, &update)
        });
        written.await.unwrap();
    }

    fn pending(&self) -> usize {
        let disk = self.device.disk().unwrap();
        let suffixes = async_pending::list_suffixes(&disk, PolicyIndex(0)).unwrap();
        suffixes
            .iter()
            .map(|s| {
                async_pending::list_updates(&disk, PolicyIndex(0), s)
                    .unwrap()
                    .len()
            })
            .sum()
    }

    fn take_seen(&self) -> Vec<String> {
        let mut seen = std::mem::take(&mut *self.seen.lock());
        seen.sort();
        seen
    }
}

#[tokio::test]
async fn an_update_is_kept_until_all_have_it() {
    let cluster = cluster();
    cluster.leave_update(5).await;
    cluster.leave_update(7).await;
    let stats = cluster.updater.pass().await;
    assert_eq!(
        (stats.failures, stats.outdated_unlinks, stats.successes),
        (1, 1, 0)
    );
    let path = "PUT a/c/o%20%C3%A9";
    assert_eq!(
        cluster.take_seen(),
        [6201, 6202, 6203].map(|port| format!("{port} {path}"))
    );
    assert_eq!(cluster.pending(), 1);

    cluster.third.store(201, Ordering::SeqCst);
    let stats = cluster.updater.pass().await;
    assert_eq!((stats.failures, stats.successes), (0, 1));
    assert_eq!(cluster.take_seen(), [format!("6203 {path}")]);
    assert_eq!(cluster.pending(), 0);
    assert_eq!(cluster.updater.pass().await, SweepStats::default());
}

#[tokio::test]
async fn a_busy_container_takes_turns() {
    let cluster = cluster_with(|config| {
        config.per_container.per_second = 0.001;
    });
    cluster.third.store(201, Ordering::SeqCst);
    // Both count: the one has newer metadata, the other newer content; and a third.
    let post = [("X-Timestamp", 3), ("X-Meta-Timestamp", 9)];
    cluster.leave_update_of(9, &post).await;
    cluster.leave_update_of(6, &[("X-Timestamp", 6)]).await;
    let post = [("X-Timestamp", 2), ("X-Content-Type-Timestamp", 8)];
    cluster.leave_update_of(8, &post).await;
    let stats = cluster.updater.pass().await;
    assert_eq!((stats.deferrals, stats.drains, stats.skips), (2, 0, 2));
    assert_eq!(stats.successes, 1);
    assert_eq!(
        cluster.pending(),
        2,
        "what was skipped is there for the next sweep"
    );
}

#[tokio::test]
async fn an_older_update_counts_where_it_tells_more() {
    let cluster = cluster();
    cluster.third.store(201, Ordering::SeqCst);
    let sweep = async || {
        let stats = cluster.updater.pass().await;
        assert_eq!(cluster.pending(), 0);
        (stats.successes, stats.outdated_unlinks)
    };
    // A POST to what was there before a PUT that came late.
    let post = [("X-Timestamp", 3), ("X-Meta-Timestamp", 9)];
    cluster.leave_update_of(9, &post).await;
    cluster.leave_update_of(6, &[("X-Timestamp", 6)]).await;
    assert_eq!(sweep().await, (2, 0));
    // One to that PUT, which says all that the PUT's says.
    let post = [("X-Timestamp", 6), ("X-Meta-Timestamp", 9)];
    cluster.leave_update_of(9, &post).await;
    cluster.leave_update_of(6, &[("X-Timestamp", 6)]).await;
    assert_eq!(sweep().await, (1, 1));
}

#[tokio::test]
async fn a_redirected_update_goes_to_the_shard() {
    let cluster = cluster();
    cluster.leave_update(5).await;
    cluster.third.store(301, Ordering::SeqCst);
    let stats = cluster.updater.pass().await;
    // The third server sends back to the same shard: the next sweep starts at the root again.
    assert_eq!((stats.redirects, stats.successes), (2, 0));
    let shard = "PUT .shards_a/c%20s/o%20%C3%A9";
    assert!(cluster.take_seen().contains(&format!("6201 {shard}")));
    assert_eq!(cluster.pending(), 1);
    cluster.third.store(204, Ordering::SeqCst);
    assert_eq!(cluster.updater.pass().await.successes, 1);
}

#[test]
fn options() {
    let read = |pairs: &[(&str, &str)]| {
        UpdaterConfig::read(&Section::from_pairs("object-updater", pairs))
            .map_err(|e| e.to_string())
    };
    assert_eq!(read(&[]).unwrap().interval, Duration::from_secs(300));
    assert!(
        read(&[("concurrency", "0")])
            .unwrap_err()
            .contains("1 to 1024")
    );
    assert!(read(&[("objects_per_second", "-1")]).is_err());
    assert_eq!(read(&[]).unwrap().per_container.per_second, 0.0);
    for (name, value) in [
        ("max_objects_per_container_per_second", "-1"),
        ("per_container_ratelimit_buckets", "0"),
        ("max_deferred_updates", "some"),
    ] {
        assert!(read(&[(name, value)]).unwrap_err().contains(name), "{name}");
    }
}
