//! The change feed of containers of a running store, as clients see it: through all of its filters, and
//! at its end.

#![allow(clippy::expect_used)]

// Other tests use the rest of it.
#[allow(dead_code)]
mod common;

use std::thread;
use std::time::{Duration, Instant};

use common::{Answer, Running};
use serde_json::Value;

const OPTIONS: [&str; 4] = ["--bind", "127.0.0.1:0", "--part-power", "4"];
const CURSOR: &str = "x-container-changes-cursor";
const RESET: &str = "x-container-changes-reset";

struct Store {
    running: Running,
    token: String,
    account: String,
}

impl Store {
    fn call(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut all = vec![("X-Auth-Token", &*self.token)];
        all.extend(headers);
        let path = format!("{}/{path}", self.account);
        self.running.call(method, &path, &all, body)
    }

    fn put(&self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let answer = self.call("PUT", path, headers, body);
        assert_eq!(answer.status, 201, "{path}: {answer:?}");
        answer
    }

    fn changes(&self, container: &str, cursor: &str, wait: u32) -> (Vec<Value>, String) {
        let path = format!("{container}?changes={cursor}&wait={wait}");
        let answer = self.call("GET", &path, &[], b"");
        assert_eq!(answer.status, 200, "{answer:?}");
        let kind = &answer.headers["content-type"];
        assert!(kind.starts_with("application/json"), "{kind}");
        let rows: Vec<Value> = serde_json::from_slice(&answer.body).expect("rows");
        assert_eq!(answer.headers.contains_key(RESET), cursor.is_empty());
        (rows, answer.headers[CURSOR].clone())
    }
}

fn find<'r>(rows: &'r [Value], name: &str) -> &'r Value {
    let row = rows.iter().find(|row| row["name"] == name);
    row.unwrap_or_else(|| panic!("{name} in {rows:?}"))
}

#[test]
fn rows_look_as_in_listings_and_waits_end_with_the_store() {
    let folder = tempfile::tempdir().expect("a folder");
    let running = Running::up(folder.path(), &OPTIONS);
    let (token, account) = running.log_in("test:tester", "testing");
    let store = Store {
        running,
        token,
        account,
    };
    let info = store.running.call("GET", "/info", &[], b"");
    let info: Value = serde_json::from_slice(&info.body).expect("JSON");
    assert_eq!(info["change_feed"]["max_wait"], 60);
    rows_of_all_kinds(&store);
    versions(&store);
    ends_with_the_store(store);
}

fn rows_of_all_kinds(store: &Store) {
    store.put("c", &[], b"");
    let (rows, start) = store.changes("c", "", 30);
    assert!(rows.is_empty());
    let plain = store.put("c/plain", &[], b"plain");
    store.put("c/gone", &[], b"gone");
    store.call("DELETE", "c/gone", &[], b"");
    store.put("c/part", &[], b"part of it");
    let manifest = br#"[{"path": "/c/part"}]"#;
    let large = store.put("c/large?multipart-manifest=put", &[], manifest);
    store.put("c/link", &[("X-Symlink-Target", "c/plain")], b"");
    let (rows, end) = store.changes("c", &start, 30);
    assert_eq!(rows.len(), 5, "{rows:?}");
    let listed = store.call("GET", "c?format=json", &[], b"");
    let listed: Vec<Value> = serde_json::from_slice(&listed.body).expect("rows");
    for row in &listed {
        assert_eq!(find(&rows, row["name"].as_str().expect("a name")), row);
    }
    assert_eq!(
        find(&rows, "plain")["hash"],
        plain.headers["etag"].trim_matches('"')
    );
    assert_eq!(
        find(&rows, "large")["slo_etag"],
        large.headers["etag"].as_str()
    );
    assert_eq!(find(&rows, "gone")["deleted"], true);
    assert_eq!(store.changes("c", &end, 0), (vec![], end.clone()));
    // A change of metadata alone is one, too, and ends a wait.
    let seen = thread::scope(|scope| {
        let waits = scope.spawn(|| store.changes("c", &end, 30));
        thread::sleep(Duration::from_millis(200));
        store.call("POST", "c/plain", &[("Content-Type", "text/new")], b"");
        waits.join().expect("it waits well")
    });
    assert_eq!(find(&seen.0, "plain")["content_type"], "text/new");
}

/// Older versions are objects of a hidden container: the feed shows what listings show.
fn versions(store: &Store) {
    store.put("v", &[("X-Versions-Enabled", "true")], b"");
    let (_, start) = store.changes("v", "", 0);
    store.put("v/o", &[], b"one");
    let second = store.put("v/o", &[], b"second");
    let (rows, _) = store.changes("v", &start, 0);
    assert_eq!(rows.len(), 1, "{rows:?}");
    let row = find(&rows, "o");
    assert_eq!(row["hash"], second.headers["etag"].trim_matches('"'));
    assert_eq!(row["bytes"], 6);
    let both = store.call("GET", &format!("v?changes={start}&versions"), &[], b"");
    assert_eq!(both.status, 400, "{both:?}");
}

fn ends_with_the_store(store: Store) {
    let (_, end) = store.changes("c", "", 0);
    let path = format!("{}/c?changes={end}&wait=60", store.account);
    let (address, token) = (store.running.address, store.token.clone());
    let waits = thread::spawn(move || {
        common::call(address, "GET", &path, &[("X-Auth-Token", &token)], b"")
    });
    thread::sleep(Duration::from_millis(500));
    let begun = Instant::now();
    assert_eq!(store.running.stop(), Some(0));
    assert!(
        begun.elapsed() < Duration::from_secs(30),
        "{:?}",
        begun.elapsed()
    );
    let answer = waits.join().expect("it is answered");
    assert_eq!((answer.status, &answer.body[..]), (200, &b"[]"[..]));
}
