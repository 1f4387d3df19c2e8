//! Conditional writes of many clients at once, on a running store with three replicas.

#![allow(clippy::expect_used)]

// Other tests use the rest of it.
#[allow(dead_code)]
mod common;

use std::thread;

use common::{Answer, Running};

const OPTIONS: [&str; 8] = [
    "--bind",
    "127.0.0.1:0",
    "--part-power",
    "4",
    "--devices",
    "4",
    "--replicas",
    "3",
];
const CLIENTS: usize = 8;
const RUNS: usize = 40;
const INCREMENTS: usize = 10;
/// More than what is sent to the replicas in one message.
const LARGE_BYTES: usize = 100_000;

struct Store {
    running: Running,
    token: String,
    container: String,
}

impl Store {
    fn call(&self, method: &str, name: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut all = vec![("X-Auth-Token", &*self.token)];
        all.extend(headers);
        let path = format!("{}/{name}", self.container);
        self.running.call(method, &path, &all, body)
    }
}

fn each_client<T: Send>(work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let work = &work;
        let clients = (0..CLIENTS).map(|client| scope.spawn(move || work(client)));
        let clients: Vec<_> = clients.collect();
        let ends = clients.into_iter().map(|client| client.join());
        ends.map(|end| end.expect("a client ends well")).collect()
    })
}

#[test]
fn one_of_many_wins() {
    let folder = tempfile::tempdir().expect("a folder");
    let running = Running::up(folder.path(), &OPTIONS);
    let (token, account) = running.log_in("test:tester", "testing");
    let container = format!("{account}/c");
    let store = Store {
        running,
        token,
        container,
    };
    assert_eq!(store.call("PUT", "", &[], b"").status, 201);
    let info = store.running.call("GET", "/info", &[], b"");
    let info = String::from_utf8_lossy(&info.body).into_owned();
    assert!(info.contains("conditional_writes"), "{info}");
    makes_once(&store);
    counts(&store);
    deletes_once(&store);
    shown_etags_decide(&store);
    links_have_their_targets_as_etags(&store);
    copies(&store);
}

/// One of eight clients that make an object does; also with content that is streamed.
fn makes_once(store: &Store) {
    for run in 0..RUNS {
        let size = if run % 4 == 0 { LARGE_BYTES } else { 20 };
        let name = format!("once-{run}");
        let answers = each_client(|client| {
            let body = vec![b'a' + client as u8; size];
            store.call("PUT", &name, &[("If-None-Match", "*")], &body)
        });
        let won: Vec<usize> = (0..CLIENTS).filter(|i| answers[*i].status == 201).collect();
        let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
        assert_eq!(won.len(), 1, "{name}: {statuses:?}");
        assert!(
            statuses.iter().all(|s| [201, 412].contains(s)),
            "{name}: {statuses:?}"
        );
        assert_eq!(answers[won[0]].headers["x-conditional-write"], "committed");
        let there = store.call("GET", &name, &[("X-Newest", "true")], b"");
        assert_eq!(there.body, vec![b'a' + won[0] as u8; size], "{name}");
    }
}

/// Eight clients count in one object, and no count is lost.
fn counts(store: &Store) {
    assert_eq!(store.call("PUT", "count", &[], b"0").status, 201);
    each_client(|client| {
        for _ in 0..INCREMENTS {
            loop {
                let seen = store.call("GET", "count", &[("X-Newest", "true")], b"");
                let text = String::from_utf8(seen.body).expect("text");
                let number: usize = text
                    .split(' ')
                    .next()
                    .and_then(|n| n.parse().ok())
                    .expect("a number");
                // Each content is there once.
                let body = format!("{} by {client}", number + 1);
                let etag = seen.headers["etag"].clone();
                let put = store.call("PUT", "count", &[("If-Match", &etag)], body.as_bytes());
                match put.status {
                    201 => break,
                    409 | 412 => {}
                    _ => panic!("{put:?}"),
                }
            }
        }
    });
    let counted = store.call("GET", "count", &[("X-Newest", "true")], b"");
    let text = String::from_utf8(counted.body).expect("text");
    let expected = format!("{} ", CLIENTS * INCREMENTS);
    assert!(text.starts_with(&expected), "{text}");
}

/// One of eight clients that delete a version does; a POST and a PUT of what is gone are refused.
fn deletes_once(store: &Store) {
    let made = store.call("PUT", "gone", &[("If-None-Match", "*")], b"one");
    let etag = made.headers["etag"].clone();
    let condition = [("If-Match", &*etag)];
    let post = store.call("POST", "gone", &condition, b"");
    assert_eq!(post.status, 202);
    let other = [("If-Match", "\"0123\"")];
    assert_eq!(store.call("POST", "gone", &other, b"").status, 412);
    assert_eq!(store.call("DELETE", "gone", &other, b"").status, 412);
    let answers = each_client(|_| store.call("DELETE", "gone", &condition, b"").status);
    assert_eq!(
        answers.iter().filter(|status| **status == 204).count(),
        1,
        "{answers:?}"
    );
    assert_eq!(store.call("PUT", "gone", &condition, b"two").status, 412);
    let not = ("If-None-Match", &*format!("\"{etag}\""));
    // OpenStack Swift knows no other than * of a PUT.
    assert_eq!(store.call("PUT", "gone", &[not], b"").status, 400);
    let new = ("If-None-Match", "*");
    assert_eq!(store.call("PUT", "gone", &[new], b"two").status, 201);
    assert_eq!(store.call("POST", "gone", &[new], b"").status, 412);
    assert_eq!(store.call("POST", "gone", &[not], b"").status, 202);
    let any = [("If-Match", "*")];
    assert_eq!(store.call("PUT", "gone", &any, b"three").status, 201);
    assert_eq!(store.call("GET", "gone", &[], b"").body, b"three");
}

/// A condition is held against the ETag that a GET shows: of a large object and of a link to a
/// certain version it is not the stored content's own.
fn shown_etags_decide(store: &Store) {
    let segment = store.call("PUT", "segment", &[], b"content");
    let container = store.container.rsplit('/').next().expect("a name");
    let segment_etag = segment.headers["etag"].trim_matches('"').to_owned();
    let manifest = format!(
        "[{{\"path\": \"/{container}/segment\", \"etag\": \"{segment_etag}\", \"size_bytes\": 7}}]"
    );
    let manifest = manifest.as_bytes();
    let target = format!("{container}/segment");
    let link = [
        ("X-Symlink-Target", &*target),
        ("X-Symlink-Target-Etag", &*segment_etag),
    ];
    let new = ("If-None-Match", "*");
    for (name, query, headers, body) in [
        ("large", "?multipart-manifest=put", &[][..], manifest),
        ("link", "", &link[..], b""),
    ] {
        let path = format!("{name}{query}");
        let put = |condition: (&str, &str)| {
            let headers = [headers, &[condition]].concat();
            store.call("PUT", &path, &headers, body).status
        };
        assert_eq!(put(new), 201, "{name}");
        assert_eq!(put(new), 412, "{name}");
        let shown = store.call("GET", name, &[], b"").headers["etag"].clone();
        let etag = format!("\"{}\"", shown.trim_matches('"'));
        assert_eq!(put(("If-Match", "\"0123\"")), 412, "{name}");
        assert_eq!(put(("If-Match", &etag)), 201, "{name} {etag}");
        assert_eq!(put(("If-None-Match", &etag)), 400, "{name} {etag}");
        let headers = [("If-Match", &*etag)];
        let delete = |query| {
            let path = format!("{name}{query}");
            store.call("DELETE", &path, &headers, b"").status
        };
        if name == "large" {
            assert_eq!(delete("?multipart-manifest=delete"), 501);
        }
        assert_eq!(delete(""), 204, "{name} {etag}");
    }
}

/// A link that follows its target is told from an empty object, with the ETag that `/info` announces.
fn links_have_their_targets_as_etags(store: &Store) {
    let info = store.running.call("GET", "/info", &[], b"");
    let info = String::from_utf8_lossy(&info.body).into_owned();
    let writes = info
        .split_once("\"conditional_writes\":{")
        .expect("it is announced")
        .1;
    let writes = writes.split('}').next().expect("its end");
    assert!(writes.contains("\"links\":true"), "{info}");
    let container = store.container.rsplit('/').next().expect("a name");
    let target = format!("{container}/to here");
    assert_eq!(store.call("PUT", "to%20here", &[], b"content").status, 201);
    let empty = store.call("PUT", "follows", &[], b"").headers["etag"].clone();
    let empty = format!("\"{}\"", empty.trim_matches('"'));
    let linked = target.replace(' ', "%20");
    let put = |etag: &str| {
        let headers = [("X-Symlink-Target", &*linked), ("If-Match", etag)];
        store.call("PUT", "follows", &headers, b"").status
    };
    assert_eq!(put(&empty), 201);
    let shown = store.call("HEAD", "follows?symlink=get", &[], b"");
    let own = format!("\"{}\"", shown.headers["x-symlink-target"]);
    let followed = store.call("GET", "follows", &[], b"");
    assert_eq!(followed.body, b"content");
    let followed = format!("\"{}\"", followed.headers["etag"].trim_matches('"'));
    for other in [&*empty, &followed] {
        let headers = [("If-Match", other)];
        for method in ["PUT", "POST", "DELETE"] {
            let status = store.call(method, "follows", &headers, b"").status;
            assert_eq!(status, 412, "{method} {other}");
        }
    }
    assert_eq!(put(&own), 201, "{own}");
    let headers = [("If-Match", &*own)];
    assert_eq!(store.call("DELETE", "follows", &headers, b"").status, 204);
    assert_eq!(store.call("DELETE", "to%20here", &[], b"").status, 204);
}

/// Conditions of a copy are of its source.
fn copies(store: &Store) {
    let etag = store.call("PUT", "source", &[], b"one").headers["etag"].clone();
    assert_eq!(store.call("PUT", "sink", &[], b"two").status, 201);
    let container = store.container.rsplit('/').next().expect("a name");
    let sink = format!("{container}/sink");
    let copy = |etag: &str| {
        let headers = [("Destination", &*sink), ("If-Match", etag)];
        store.call("COPY", "source", &headers, b"").status
    };
    assert_eq!(copy("\"0123\""), 412);
    assert_eq!(copy(&etag), 201);
    assert_eq!(store.call("GET", "sink", &[], b"").body, b"one");
}
