//! Tests of reads that are handed over by a call: they answer as their requests do.

use cairn_peer::{ObjectRead, TakesCalls};
use cairn_types::{ObjectHash, Timestamp};
use http::header::{HeaderName, HeaderValue};

use super::*;

const UNSOUND: &str = "x-backend-refuse-unsound: true";

fn headers_of(lines: &[&str]) -> HeaderMap {
    let parsed = lines.iter().map(|line| {
        let (name, value) = line.split_once(": ").unwrap();
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        (name, HeaderValue::from_str(value).unwrap())
    });
    parsed.collect()
}

struct Read {
    hash_path: HashPath,
    hash: ObjectHash,
    object: String,
    policy: PolicyIndex,
    is_head: bool,
    now: &'static str,
    headers: HeaderMap,
    device: &'static str,
}

impl Read {
    fn of(object: &str, lines: &[&str]) -> Self {
        let hash_path = HashPath::new("", "endcap");
        Read {
            hash: hash_path.hash("a", Some("c"), Some(object)),
            hash_path,
            object: object.to_owned(),
            policy: PolicyIndex(0),
            is_head: false,
            now: T[4],
            headers: headers_of(lines),
            device: "sda1",
        }
    }
}

impl World {
    /// The answer to a call; `None`: the server wants the request.
    async fn read(&self, read: &Read) -> Option<Answer> {
        let asked = ObjectRead {
            hash_path: &read.hash_path,
            account: "a",
            container: "c",
            object: &read.object,
            path: format!("/a/c/{}", read.object).into(),
            hash: read.hash,
            policy: read.policy,
            partition: 7,
            is_head: read.is_head,
            timestamp: Timestamp::parse(read.now).unwrap(),
            headers: &read.headers,
        };
        let response = self
            .server
            .read(&asked, &node(0, read.device, SERVER))?
            .await;
        Some(answer(response).await)
    }
}

async fn a_call_answers_as_its_request(kind: Kind) {
    let world = world(kind);
    let more = [
        "content-type: a/b",
        "x-object-meta-color: red",
        "x-object-sysmeta-etag: other",
    ];
    let times = format!("x-timestamp: {}", T[1]);
    let large: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
    for (object, body) in [
        ("small", b"0123456789".to_vec()),
        ("large", large),
        ("empty", vec![]),
    ] {
        let length = format!("content-length: {}", body.len());
        let headers = [more[0], more[1], more[2], &times, &length];
        assert_eq!(world.send("PUT", object, &headers, body).await.status, 201);
    }
    // It expires in second 4,000,000,003.
    assert_eq!(
        world
            .put_with("expired", T[1], &["x-delete-at: 4000000003"])
            .await
            .status,
        201
    );
    assert_eq!(world.put("deleted", T[1], "x").await.status, 201);
    let then = format!("x-timestamp: {}", T[2]);
    let deleted = world.send("DELETE", "deleted", &[&then], "").await;
    assert_eq!(deleted.status, 204);
    let etag = "781e5e245d69b566979b86e28d23f2c7";
    let seen = [
        vec![],
        vec!["range: bytes=2-5"],
        vec!["range: bytes=900000-"],
        vec![
            "range: bytes=1-2",
            "x-backend-ignore-range-if-metadata-present: x-object-meta-color",
        ],
        vec!["if-match: *"],
        vec!["if-none-match: 781e5e245d69b566979b86e28d23f2c7"],
        vec![
            "if-match: other",
            "x-backend-etag-is-at: x-object-sysmeta-etag",
        ],
        vec!["if-modified-since: Tue, 02 Oct 2096 07:06:41 GMT"],
        vec!["x-backend-open-expired: true"],
        vec!["x-backend-fragment-preferences: no"],
    ];
    let now = format!("x-timestamp: {}", T[4]);
    for object in ["small", "large", "empty", "expired", "deleted", "none"] {
        for lines in &seen {
            let mut asked = lines.clone();
            asked.extend([UNSOUND, &now]);
            for is_head in [false, true] {
                let read = Read {
                    is_head,
                    ..Read::of(object, lines)
                };
                let called = world.read(&read).await.unwrap();
                let method = if is_head { "HEAD" } else { "GET" };
                let asked = world.send(method, object, &asked, Body::empty()).await;
                let what = format!("{method} {object} {lines:?}");
                assert_eq!(called.status, asked.status, "{what}");
                assert_eq!(called.headers, asked.headers, "{what}");
                assert_eq!(called.body, asked.body, "{what}");
            }
        }
    }
    let small = world.read(&Read::of("small", &[])).await.unwrap();
    assert_eq!(
        (small.status, small.header("etag")),
        (200, &*format!("\"{etag}\""))
    );
    assert_eq!(small.header("x-backend-refuse-unsound"), "true");
    let ranges = world
        .read(&Read::of("small", &["range: bytes=0-1,4-5"]))
        .await
        .unwrap();
    assert_eq!(ranges.status, 206);
    assert!(
        ranges
            .header("content-type")
            .starts_with("multipart/byteranges")
    );
    // It expires by the time of who asks.
    let mut early = Read::of("expired", &[]);
    early.now = T[2];
    assert_eq!(world.read(&early).await.unwrap().status, 200);
}

async fn a_read_that_is_anothers_comes_as_a_request(kind: Kind) {
    let world = world(kind);
    assert_eq!(world.put("o", T[1], "x").await.status, 201);
    assert!(world.read(&Read::of("o", &[])).await.is_some());
    for (what, change) in [
        (
            "of another cluster",
            (|read| read.hash_path = HashPath::new("", "other")) as fn(&mut Read),
        ),
        ("of a daemon", |read| {
            read.headers = headers_of(&["x-backend-replication: true"])
        }),
        ("policy", |read| read.policy = PolicyIndex(7)),
        ("name", |read| read.object = "\0o".into()),
        ("device", |read| read.device = "../sda1"),
    ] {
        let mut read = Read::of("o", &[]);
        change(&mut read);
        assert!(world.read(&read).await.is_none(), "{what}");
    }
}

over_engines!(
    a_call_answers_as_its_request,
    a_read_that_is_anothers_comes_as_a_request,
);
