//! Tests of updates of containers and of the expirer's queue.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_disk::async_pending::{self, AsyncUpdate};
use cairn_disk::machine::{AtOnce, Employer};
use cairn_types::PolicyIndex;

use super::*;

impl World {
    fn pending(&self) -> Vec<AsyncUpdate> {
        let disk = self.devices.get("sda1").unwrap().disk().unwrap();
        let policy = PolicyIndex(0);
        let mut updates = Vec::new();
        for suffix in async_pending::list_suffixes(&disk, policy).unwrap() {
            for file in async_pending::list_updates(&disk, policy, &suffix).unwrap() {
                updates.push(file.read(&disk).unwrap());
            }
        }
        updates.sort_by(|a, b| (&a.op, &a.container).cmp(&(&b.op, &b.container)));
        updates
    }
}

impl World {
    /// The operations that are left to the updater.
    pub(super) fn pending_ops(&self) -> Vec<String> {
        let pending = self.pending().into_iter();
        pending.map(|update| update.op).collect()
    }
}

fn header<'a>(request: &'a Request, name: &str) -> &'a str {
    request
        .headers()
        .get(name)
        .map_or("", |v| v.to_str().unwrap())
}

fn text<'a>(update: &'a AsyncUpdate, name: &str) -> &'a str {
    std::str::from_utf8(update.header(name).unwrap_or_default()).unwrap()
}

async fn containers_are_told(kind: Kind) {
    let world = world(kind);
    let (one, seen_one) = world.container_server(201);
    let (two, seen_two) = world.container_server(202);
    let hosts = format!("x-container-host: {one},{two}");
    let to = [
        &*hosts,
        "x-container-device: sdx,sdy",
        "x-container-partition: 5",
        "x-trans-id: tx1",
    ];
    let time = format!("x-timestamp: {}", T[1]);
    let mut headers = vec!["content-type: a/b", "content-length: 1", &*time];
    headers.extend(to);
    assert_eq!(world.send("PUT", "o%20x", &headers, "x").await.status, 201);
    for (seen, device) in [(&seen_one, "sdx"), (&seen_two, "sdy")] {
        let seen = seen.lock().unwrap();
        assert_eq!(seen.len(), 1);
        assert_eq!(seen[0].method(), "PUT");
        assert_eq!(seen[0].uri().path(), format!("/{device}/5/a/c/o%20x"));
        for (name, value) in [
            ("x-size", "1"),
            ("x-content-type", "a/b"),
            ("x-timestamp", T[1]),
            ("x-etag", "9dd4e461268c8034f5c8564e155c67a6"),
            ("x-trans-id", "tx1"),
            ("x-backend-storage-policy-index", "0"),
        ] {
            assert_eq!(header(&seen[0], name), value, "{name}");
        }
    }
    let time = format!("x-timestamp: {}", T[2]);
    let mut headers = vec![&*time, "content-type: c/d"];
    headers.extend(to);
    assert_eq!(world.send("POST", "o%20x", &headers, "").await.status, 202);
    {
        let seen = seen_one.lock().unwrap();
        assert_eq!(header(&seen[1], "x-timestamp"), T[1]);
        assert_eq!(header(&seen[1], "x-meta-timestamp"), T[2]);
        assert_eq!(header(&seen[1], "x-content-type"), "c/d");
        assert_eq!(header(&seen[1], "x-content-type-timestamp"), T[2]);
        assert_eq!(header(&seen[1], "x-size"), "1");
    }
    let time = format!("x-timestamp: {}", T[3]);
    let mut headers = vec![&*time];
    headers.extend(to);
    assert_eq!(
        world.send("DELETE", "o%20x", &headers, "").await.status,
        204
    );
    let seen = seen_one.lock().unwrap();
    assert_eq!(seen[2].method(), "DELETE");
    assert_eq!(header(&seen[2], "x-timestamp"), T[3]);
    assert!(world.pending().is_empty());
}

async fn overrides(kind: Kind) {
    let world = world(kind);
    let (one, seen) = world.container_server(201);
    let host = format!("x-container-host: {one}");
    let headers = [
        &host,
        "x-container-device: sdx",
        "x-container-partition: 5",
        "x-object-sysmeta-container-update-override-etag: sysmeta",
        "x-backend-container-update-override-etag: backend",
        "x-backend-container-update-override-size: 99",
        "x-backend-container-path: .shards_a/c-1",
    ];
    assert_eq!(world.put_with("o", T[1], &headers).await.status, 201);
    let seen = seen.lock().unwrap();
    assert_eq!(seen[0].uri().path(), "/sdx/5/.shards_a/c-1/o");
    assert_eq!(header(&seen[0], "x-etag"), "sysmeta");
    assert_eq!(header(&seen[0], "x-size"), "99");
}

async fn failed_updates_are_kept(kind: Kind) {
    let world = world(kind);
    let (broken, _) = world.container_server(503);
    for (object, host) in [("o", broken.to_string()), ("p", "127.0.0.1:9".into())] {
        let host = format!("x-container-host: {host}");
        let headers = [
            &host,
            "x-container-device: sdx",
            "x-container-partition: 5",
            "x-container-root-db-state: sharding",
        ];
        assert_eq!(world.put_with(object, T[1], &headers).await.status, 201);
    }
    let mut pending = world.pending();
    pending.sort_by(|a, b| a.object.cmp(&b.object));
    assert_eq!(pending.len(), 2);
    assert_eq!(pending[0].op, "PUT");
    assert_eq!(pending[0].account, "a");
    assert_eq!(pending[0].container, "c");
    assert_eq!(pending[0].object, "o");
    assert_eq!(pending[0].db_state.as_deref(), Some("sharding"));
    assert_eq!(text(&pending[0], "X-Size"), "1");
    assert_eq!(text(&pending[0], "X-Timestamp"), T[1]);
    assert_eq!(pending[1].object, "p");
}

async fn what_is_neither_taken_nor_kept_is_not_acknowledged(kind: Kind) {
    let world = world(kind);
    let (broken, _) = world.container_server(503);
    let (sound, _) = world.container_server(201);
    let obstacle = world.root.path().join("sda1/async_pending");
    let one = |host: &dyn std::fmt::Display| format!("x-container-host: {host}");
    let (to_broken, to_sound) = (one(&broken), one(&sound));
    let to_both = format!("x-container-host: {broken},{sound}");
    let (first, second) = ("x-container-device: sdx", "x-container-device: sdx,sdy");
    let time = |n: usize| format!("x-timestamp: {}", T[n]);
    let (mut taken, mut later) = (Vec::new(), 0);
    for is_full in [true, false] {
        match is_full {
            true => std::fs::write(&obstacle, "").unwrap(),
            false => std::fs::remove_file(&obstacle).unwrap(),
        }
        for (host, device) in [(&to_broken, first), (&to_both, second), (&to_sound, first)] {
            for method in ["PUT", "POST", "DELETE"] {
                let (object, time) = (format!("o{later}"), time(2));
                later += 1;
                if method != "PUT" {
                    assert_eq!(world.put(&object, T[1], "x").await.status, 201);
                }
                let mut headers = vec![&*time, host, device, "x-container-partition: 5"];
                if method == "PUT" {
                    headers.extend(["content-type: a/b", "content-length: 0"]);
                }
                let answer = world.send(method, &object, &headers, "").await;
                taken.push(answer.status);
            }
        }
    }
    let (refused, done) = ([500, 500, 500], [201, 202, 204]);
    let expected = [refused, refused, done, done, done, done];
    assert_eq!(taken, expected.concat());
    // The entry of an object that is to expire.
    std::fs::remove_dir_all(&obstacle).unwrap();
    std::fs::write(&obstacle, "").unwrap();
    let queue = format!("x-delete-at-host: {broken}");
    let expires = [
        &*queue,
        "x-delete-at-device: sdx",
        "x-delete-at-partition: 5",
        "x-delete-at: 4000090000",
    ];
    assert_eq!(world.put_with("expires", T[1], &expires).await.status, 500);
}

async fn slow_containers_are_not_waited_for(kind: Kind) {
    let world = world_with(kind, |config| {
        config.container_update_timeout = Duration::from_millis(10);
    });
    let address = SocketAddr::from(([127, 0, 0, 1], 9999));
    let (answered, wait) = tokio::sync::watch::channel(());
    let handler = handler_fn(move |_| {
        let mut wait = wait.clone();
        async move {
            let _ = wait.changed().await;
            Response::new(Body::empty())
        }
    });
    world.backends.register_local(address, handler);
    let headers = [
        "x-container-host: 127.0.0.1:9999",
        "x-container-device: sdx",
        "x-container-partition: 5",
    ];
    assert_eq!(world.put_with("o", T[1], &headers).await.status, 201);
    // The answer has left: what is still to be told must outlive this server.
    assert_eq!(world.pending().len(), 1);
    answered.send(()).unwrap();
    for _ in 0..500 {
        if world.pending().is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("what was told is still kept");
}

async fn the_expirers_queue(kind: Kind) {
    let world = world(kind);
    let (queue, seen) = world.container_server(201);
    let host = format!("x-delete-at-host: {queue}");
    let headers = [
        "x-delete-at: 4000090000",
        &host,
        "x-delete-at-device: sdx",
        "x-delete-at-partition: 9",
        "x-delete-at-container: 4000060705",
    ];
    assert_eq!(world.put_with("o", T[1], &headers).await.status, 201);
    {
        let seen = seen.lock().unwrap();
        let path = "/sdx/9/.expiring_objects/4000060705/4000090000-a/c/o";
        assert_eq!(seen[0].uri().path(), path);
        for (name, value) in [
            ("x-size", "0"),
            ("x-content-type", "text/plain;swift_expirer_bytes=1"),
            ("x-etag", "d41d8cd98f00b204e9800998ecf8427e"),
            ("x-timestamp", T[1]),
            ("x-content-type-timestamp", T[1]),
            ("x-backend-storage-policy-index", "0"),
        ] {
            assert_eq!(header(&seen[0], name), value, "{name}");
        }
    }
    // Overwritten without expiry: the entry's removal is left to the updater.
    world.put("o", T[2], "y").await;
    let pending = world.pending();
    assert_eq!(pending.len(), 1);
    assert_eq!(pending[0].op, "DELETE");
    assert_eq!(pending[0].account, ".expiring_objects");
    assert_eq!(pending[0].object, "4000090000-a/c/o");
    // The day begins at 4000060800.
    let hash = u128::from_be_bytes(
        HashPath::new("", "endcap")
            .hash("a", Some("c"), Some("o"))
            .0,
    );
    let container = 4_000_060_800 - (hash % 100) as u64;
    assert_eq!(pending[0].container, container.to_string());
    // Without a host this server was not asked to queue anything.
    let expires = "x-delete-at: 4000090000";
    assert_eq!(world.put_with("o", T[3], &[expires]).await.status, 201);
    assert_eq!(world.pending().len(), 1);
}

/// A disk that syncs no object while it is told not to.
#[derive(Debug, Default)]
struct Failing(AtomicBool);

impl Machine for Failing {
    fn employer(&self) -> Option<&dyn Employer> {
        Some(&AtOnce)
    }

    fn sync(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let is_object = path.to_string_lossy().contains("/objects/");
        match is_object && self.0.load(Ordering::Relaxed) {
            true => Err(io::Error::other("no sync")),
            false => Ok(()),
        }
    }

    fn now(&self) -> i64 {
        0
    }
}

#[tokio::test]
async fn what_failed_leaves_the_queues_entry() {
    let time = format!("x-timestamp: {}", T[2]);
    let expires = "x-delete-at: 4000090000";
    for (method, status) in [("POST", 202), ("DELETE", 204)] {
        // A disk that has failed takes nothing more.
        for fails in [true, false] {
            let disk = Arc::new(Failing::default());
            let world = world_of(WorldOptions {
                machine: Some(disk.clone()),
                ..WorldOptions::default()
            });
            assert_eq!(world.put_with("o", T[1], &[expires]).await.status, 201);
            disk.0.store(fails, Ordering::Relaxed);
            let answer = world.send(method, "o", &[&time], "").await.status;
            let expected = if fails { (500, 0) } else { (status, 1) };
            assert_eq!((answer, world.pending().len()), expected, "{method}");
        }
    }
}

async fn a_repeated_deletion_is_told_again(kind: Kind) {
    let world = world(kind);
    let (container, seen) = world.container_server(204);
    world.put("o", T[1], "x").await;
    let time = format!("x-timestamp: {}", T[3]);
    let host = format!("x-container-host: {container}");
    let at = format!("x-if-delete-at: {}", T[3]);
    let headers = [
        &*time,
        &*host,
        "x-container-device: sdx",
        "x-container-partition: 5",
        &*at,
    ];
    // The last one is as the expirer's.
    let ways = [(204, &headers[..4]), (404, &headers[..4]), (409, &headers)];
    for (told, (status, headers)) in ways.into_iter().enumerate() {
        assert_eq!(world.send("DELETE", "o", headers, "").await.status, status);
        let seen = seen.lock().unwrap();
        assert_eq!(seen.len(), told + 1);
        assert_eq!(header(&seen[told], "x-timestamp"), T[3]);
    }
    // An older one is no news.
    let time = format!("x-timestamp: {}", T[2]);
    let headers = [&*time, headers[1], headers[2], headers[3]];
    assert_eq!(world.send("DELETE", "o", &headers, "").await.status, 404);
    assert_eq!(seen.lock().unwrap().len(), 3);
}

/// A device on which less is free than its reserve.
#[tokio::test]
async fn below_the_reserve_tombstones_and_updates_are_kept() {
    let world = world(Kind::Files);
    assert_eq!(world.put("o", T[1], "x").await.status, 201);
    let full = world_of(WorldOptions {
        reserve: FallocateReserve::Percent(100.0),
        ..WorldOptions::default()
    });
    // The other world's objects, and a sender's beside them.
    let moved = std::fs::rename(
        world.root.path().join("sda1"),
        full.root.path().join("sda2"),
    );
    moved.unwrap();
    let to = |object: &str| format!("/sda2/7/a/c/{object}");
    let send = async |method: &str, object: &str, time: &str, body: &'static str| {
        let (time, length) = (
            format!("x-timestamp: {time}"),
            format!("content-length: {}", body.len()),
        );
        // Nobody takes the row: it is kept for the updater.
        let headers = [
            "content-type: a/b",
            "x-container-host: 127.0.0.1:1",
            "x-container-device: sdx",
            "x-container-partition: 5",
            &time,
            &length,
        ];
        let answer = full.send_to(method, &to(object), &headers, body).await;
        answer.status
    };
    assert_eq!(send("PUT", "new", T[2], "y").await, 507);
    assert_eq!(send("POST", "o", T[2], "").await, 507);
    assert_eq!(send("GET", "o", T[2], "").await, 200);
    assert_eq!(send("DELETE", "o", T[3], "").await, 204);
    let disk = full.devices.get("sda2").unwrap().disk().unwrap();
    let suffixes = async_pending::list_suffixes(&disk, PolicyIndex(0)).unwrap();
    assert_eq!(suffixes.len(), 1);
}

over_engines!(
    containers_are_told,
    overrides,
    failed_updates_are_kept,
    what_is_neither_taken_nor_kept_is_not_acknowledged,
    slow_containers_are_not_waited_for,
    the_expirers_queue,
    a_repeated_deletion_is_told_again,
);
