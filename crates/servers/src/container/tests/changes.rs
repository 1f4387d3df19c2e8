//! The change feed.

use super::*;

const CURSOR: &str = "x-backend-changes-cursor";

impl Node {
    async fn feed(&self, path: &str, cursor: &str, more: &str) -> Got {
        let path = format!("{path}?changes={cursor}{more}");
        self.call("GET", &path, &[]).await
    }

    async fn start(&self, path: &str) -> String {
        let got = self.feed(path, "", "").await;
        assert_eq!((got.status, &*got.body), (200, "[]"));
        assert_eq!(got.header("x-backend-changes-reset"), "true");
        got.header(CURSOR).to_owned()
    }

    async fn container(&self, path: &str) {
        let put = [T1, ("x-backend-storage-policy-index", "0")];
        assert_eq!(self.call("PUT", path, &put).await.status, 201);
    }
}

impl Got {
    fn names(&self) -> Vec<String> {
        let rows: Vec<serde_json::Value> = serde_json::from_str(&self.body).unwrap();
        let name = |row: &serde_json::Value| {
            let mark = if row["deleted"] == true { "-" } else { "" };
            format!("{mark}{}", row["name"].as_str().unwrap())
        };
        rows.iter().map(name).collect()
    }
}

#[tokio::test]
async fn rows_beyond_a_cursor_are_told_once() {
    let node = node();
    node.container("a/c").await;
    node.put_object("a/c/before", "0000000002.00000", 1).await;
    let start = node.start("a/c").await;
    // Quick ones go to the row log, which readers have merged.
    for name in ["x", "y", "z"] {
        let path = format!("a/c/{name}");
        assert_eq!(node.put_object(&path, "0000000003.00000", 7).await, 201);
    }
    assert_eq!(node.feed("a/c", &start, "").await.names(), ["x", "y", "z"]);
    let time = ("x-timestamp", "0000000004.00000");
    assert_eq!(node.call("DELETE", "a/c/x", &[time]).await.status, 204);
    let got = node.feed("a/c", &start, "").await;
    assert_eq!(got.names(), ["y", "z", "-x"]);
    assert_eq!(got.header("x-backend-changes-reset"), "");
    let row: Vec<serde_json::Value> = serde_json::from_str(&got.body).unwrap();
    assert_eq!(
        (&row[0]["bytes"], &row[0]["hash"]),
        (&7.into(), &"e".into())
    );
    assert_eq!(row[0]["last_modified"], "1970-01-01T00:00:03.000000");
    let end = got.header(CURSOR).to_owned();
    assert_eq!(
        node.feed("a/c", &end, "").await.names(),
        Vec::<String>::new()
    );
    let first = node.feed("a/c", &start, "&limit=1").await;
    assert_eq!(first.names(), ["y"]);
    let rest = node.feed("a/c", first.header(CURSOR), "").await;
    assert_eq!(rest.names(), ["z", "-x"]);
}

#[tokio::test]
async fn any_other_cursor_is_answered_by_the_end() {
    let node = node();
    node.container("a/c").await;
    node.container("a/d").await;
    node.put_object("a/c/o", "0000000002.00000", 1).await;
    let (good, other) = (node.start("a/c").await, node.start("a/d").await);
    let token = good.split_once('.').unwrap().0;
    for bad in [
        other,
        format!("{token}.-1"),
        format!("{token}.99"),
        format!("{token}.99999999999999999999999"),
        format!("{token}."),
        "x".repeat(10_000),
        "000000000000.0".into(),
        "%00".into(),
    ] {
        // At once, however long it may wait.
        let got = node.feed("a/c", &bad, "&wait=50").await;
        assert_eq!(got.header("x-backend-changes-reset"), "true", "{bad}");
        assert_eq!(got.header(CURSOR), good, "{bad}");
    }
    for bad in ["-1", "x", "NaN", "inf"] {
        let got = node.feed("a/c", &good, &format!("&wait={bad}")).await;
        assert_eq!(got.status, 400, "{bad}");
        assert!(
            got.body.contains(&format!("wait={bad}: expected")),
            "{}",
            got.body
        );
    }
    assert_eq!(node.feed("a/none", &good, "&wait=50").await.status, 404);
}

/// A node whose process alone writes its databases: nobody looks at them from time to time.
fn node_alone(dir: &TempDir) -> Node {
    let mut config = IndexConfig::new(dir.path());
    config.exclusive = true;
    let pool = IndexPool::new(config);
    let backends = Backends::new(Duration::from_millis(100));
    Node {
        dir: tempfile::tempdir().unwrap(),
        server: server(&pool, &backends, None),
        backends,
        pool,
    }
}

fn device() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("sda")).unwrap();
    dir
}

#[tokio::test]
async fn a_wait_ends_with_a_row_a_deletion_or_its_time() {
    let dir = device();
    let node = node_alone(&dir);
    node.container("a/c").await;
    let mut cursor = node.start("a/c").await;
    // The later ones go to the row log.
    for name in ["o", "p", "q"] {
        let path = format!("a/c/{name}");
        let waits = node.feed("a/c", &cursor, "&wait=60");
        let waits = tokio::time::timeout(Duration::from_secs(30), waits);
        let (got, ()) = tokio::join!(waits, async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            node.put_object(&path, "0000000002.00000", 1).await;
        });
        let got = got.expect("it is woken");
        assert_eq!(got.names(), [name]);
        got.header(CURSOR).clone_into(&mut cursor);
    }
    let got = node.feed("a/c", &cursor, "").await;
    let cursor = got.header(CURSOR).to_owned();
    let before = std::time::Instant::now();
    let got = node.feed("a/c", &cursor, "&wait=0.2").await;
    assert_eq!((got.status, &*got.body), (200, "[]"));
    assert!(before.elapsed() >= Duration::from_millis(200));
    for path in ["a/c/o", "a/c/p", "a/c/q"] {
        node.call("DELETE", path, &[T3]).await;
    }
    let cursor = node.feed("a/c", &cursor, "").await;
    let (got, ()) = tokio::join!(node.feed("a/c", cursor.header(CURSOR), "&wait=60"), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let time = ("x-timestamp", "0000000004.00000");
        assert_eq!(node.call("DELETE", "a/c", &[time]).await.status, 204);
    });
    assert_eq!(got.status, 404);
}

#[tokio::test]
async fn another_process_is_found_too_and_by_all() {
    let node = node();
    node.container("a/c").await;
    let start = node.start("a/c").await;
    let elsewhere = server(
        &IndexPool::new(IndexConfig::new(node.dir.path())),
        &node.backends,
        None,
    );
    let elsewhere = Node {
        dir: tempfile::tempdir().unwrap(),
        server: elsewhere,
        backends: node.backends.clone(),
        pool: node.pool.clone(),
    };
    let waits = || {
        let waits = node.feed("a/c", &start, "&wait=60");
        tokio::time::timeout(Duration::from_secs(30), waits)
    };
    let (one, other, ()) = tokio::join!(waits(), waits(), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        elsewhere.put_object("a/c/o", "0000000002.00000", 1).await;
    });
    let (one, other) = (one.expect("it looks"), other.expect("it is told"));
    assert_eq!(
        (one.names(), other.names()),
        (vec!["o".into()], vec!["o".into()])
    );
}

#[tokio::test]
async fn many_wait_and_hold_nothing() {
    let node = node();
    node.container("a/c").await;
    let start = node.start("a/c").await;
    let feeds = (0..1000).map(|_| node.feed("a/c", &start, "&wait=60"));
    let waiting = futures_util::future::join_all(feeds);
    let (all, ()) = tokio::join!(waiting, async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        // Some leave; whoever stays, and others' requests, do not notice.
        let left = node.feed("a/c", &start, "&wait=60");
        assert!(
            tokio::time::timeout(Duration::from_millis(10), left)
                .await
                .is_err()
        );
        assert_eq!(node.call("HEAD", "a/c", &[]).await.status, 204);
        node.put_object("a/c/o", "0000000002.00000", 1).await;
    });
    assert!(all.iter().all(|got| got.names() == ["o"]));
    // The closed pool ends waits, so that it can go.
    let cursor = all[0].header(CURSOR).to_owned();
    let (got, ()) = tokio::join!(node.feed("a/c", &cursor, "&wait=60"), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let pool = node.pool.clone();
        let closing = tokio::task::spawn_blocking(move || pool.close_all());
        closing.await.unwrap();
    });
    assert_eq!(got.status, 503);
}

#[tokio::test]
async fn there_is_room_for_so_many_and_no_more() {
    let node = node();
    node.container("a/c").await;
    let start = node.start("a/c").await;
    let places = super::super::changes::tests_take_places(&node.server);
    let refused = node.feed("a/c", &start, "&wait=60").await;
    assert_eq!(refused.status, 503);
    drop(places);
    assert_eq!(node.feed("a/c", &start, "&wait=0.01").await.status, 200);
}

#[tokio::test]
async fn a_process_that_writes_alone_has_cursors_of_its_own() {
    let dir = device();
    let mut cursors = Vec::new();
    for round in 0..2 {
        let node = node_alone(&dir);
        let pool = node.pool.clone();
        if round == 0 {
            node.container("a/c").await;
        }
        let start = node.start("a/c").await;
        for name in ["a", "b", "c"] {
            node.put_object(&format!("a/c/{name}{round}"), "0000000002.00000", 1)
                .await;
        }
        assert_eq!(node.feed("a/c", &start, "").await.names().len(), 3);
        cursors.push(start);
        tokio::task::spawn_blocking(move || pool.close_all())
            .await
            .unwrap();
    }
    assert_ne!(cursors[0].split_once('.'), cursors[1].split_once('.'));
    assert_ne!(cursors[0][..12], cursors[1][..12]);
}
