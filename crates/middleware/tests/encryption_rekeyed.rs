//! Re-keying: objects sealed under one root secret are re-wrapped under another while their content
//! stays, after which the first secret can be removed, whatever clients do before, meanwhile and
//! afterwards.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_http::rekey::{Reason, Rekey, Rekeyed};
use cairn_http::{Body, Handler, Request, Response, handler_fn, respond};
use common::pipeline;
use common::store::Store;
use http::HeaderMap;
use serde_json::Value;

const OLD: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const NEW: &str = "ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8=";
const NEWEST: &str = "QEFCQ0RFRkdISUpLTE1OT1BRUlNUVVZXWFlaW1xdXl8=";
const KEPT: &str = "x-object-transient-sysmeta-crypto-rekeyed";
const KEPT_MAC: &str = "x-object-transient-sysmeta-crypto-rekeyed-etag-mac";
const ROWS: &str = "x-container-sysmeta-crypto-rekeyed-none";

const BEFORE: [(&str, &str); 1] = [("encryption_root_secret", OLD)];
const BOTH: [(&str, &str); 3] = [
    ("encryption_root_secret", OLD),
    ("encryption_root_secret_new", NEW),
    ("active_root_secret_id", "new"),
];
const AFTER: [(&str, &str); 2] = [
    ("encryption_root_secret_new", NEW),
    ("active_root_secret_id", "new"),
];
const NEXT: [(&str, &str); 3] = [
    ("encryption_root_secret_new", NEW),
    ("encryption_root_secret_newest", NEWEST),
    ("active_root_secret_id", "newest"),
];
const LAST: [(&str, &str); 2] = [
    ("encryption_root_secret_newest", NEWEST),
    ("active_root_secret_id", "newest"),
];

fn with(handler: Handler, secrets: &[(&str, &str)], options: &[(&str, &str)]) -> Handler {
    let options = [secrets, options].concat();
    pipeline(&["keymaster", "encryption"], &options, handler)
}

/// Filters that seal new data.
fn sealing(store: &Store, secrets: &[(&str, &str)]) -> Handler {
    with(store.handler(), secrets, &[("authenticated", "true")])
}

fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Request {
    let mut request = Request::new(Body::full(body.to_vec()));
    *request.method_mut() = method.parse().unwrap();
    *request.uri_mut() = path.parse().unwrap();
    if method == "PUT" {
        let length = body.len().to_string();
        respond::set(request.headers_mut(), "content-length", length);
    }
    for (name, value) in headers {
        respond::set(request.headers_mut(), name, value);
    }
    request
}

async fn ask(app: &Handler, method: &str, path: &str, headers: &[(&str, &str)]) -> Response {
    app.call(request(method, path, headers, b"")).await
}

async fn put(app: &Handler, path: &str, headers: &[(&str, &str)], body: &[u8]) {
    let response = app.call(request("PUT", path, headers, body)).await;
    assert_eq!(response.status(), 201);
}

/// Status and body; `None` if the body broke off.
async fn read(app: &Handler, path: &str, headers: &[(&str, &str)]) -> (u16, Option<Vec<u8>>) {
    let response = ask(app, "GET", path, headers).await;
    let status = response.status().as_u16();
    let body = response.into_body().collect(1 << 30).await;
    (status, body.ok().map(|body| body.to_vec()))
}

async fn header_of(app: &Handler, path: &str, name: &str) -> Option<String> {
    let head = ask(app, "HEAD", path, &[]).await;
    assert_eq!(head.status(), 200, "HEAD {path}");
    respond::header(head.headers(), name).map(str::to_owned)
}

/// The ETag in each row, and the names.
async fn rows(app: &Handler) -> Vec<(String, String)> {
    let listing = ask(app, "GET", "/v1/a/c", &[]).await;
    let listing = listing.into_body().collect(1 << 20).await.unwrap();
    let rows: Vec<Value> = serde_json::from_slice(&listing).unwrap();
    let text = |row: &Value, name: &str| row[name].as_str().unwrap().to_owned();
    rows.iter()
        .map(|row| (text(row, "name"), text(row, "hash")))
        .collect()
}

async fn order(app: &Handler, path: &str, is_dry_run: bool) -> Rekeyed {
    let mut request = request("POST", path, &[], b"");
    request.extensions_mut().insert(Rekey { is_dry_run });
    let response = app.call(request).await;
    let outcome = response.extensions().get::<Rekeyed>().cloned();
    outcome.unwrap_or_else(|| panic!("{}", response.status()))
}

fn content(size: usize) -> Vec<u8> {
    (0..size).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn md5(body: &[u8]) -> String {
    use md5::{Digest, Md5};
    cairn_types::hex::encode(Md5::digest(body))
}

/// All reads of an object whose secret has been removed.
async fn reads_all(app: &Handler, path: &str, body: &[u8]) {
    let etag = md5(body);
    assert_eq!(read(app, path, &[]).await, (200, Some(body.to_vec())));
    if body.len() > 70_000 {
        let part = Some(body[65530..65540].to_vec());
        let range = [("range", "bytes=65530-65539")];
        assert_eq!(read(app, path, &range).await, (206, part));
    }
    assert_eq!(header_of(app, path, "etag").await, Some(etag.clone()));
    let length = Some(body.len().to_string());
    assert_eq!(header_of(app, path, "content-length").await, length);
    for (condition, etag, status) in [
        ("if-none-match", etag.as_str(), 304),
        ("if-none-match", "other", 200),
        ("if-match", etag.as_str(), 200),
        ("if-match", "other", 412),
    ] {
        let found = read(app, path, &[(condition, etag)]).await;
        assert_eq!(found.0, status, "{condition} {etag}");
    }
    let head = ask(app, "HEAD", path, &[]).await;
    let is_ours = |name: &&str| name.contains("crypto-") && !name.starts_with("x-backend");
    let shown: Vec<&str> = head.headers().keys().map(|name| name.as_str()).collect();
    assert!(!shown.iter().any(is_ours), "{shown:?}");
}

#[tokio::test]
async fn the_old_secret_may_go() {
    let store = Store::default();
    let (before, both, after) = (
        sealing(&store, &BEFORE),
        sealing(&store, &BOTH),
        sealing(&store, &AFTER),
    );
    let metadata = [
        ("x-object-meta-color", "blue"),
        ("x-delete-at", "9999999999"),
        ("content-type", "a/b"),
    ];
    let mut all = Vec::new();
    for size in [1, 100, 65536, 200_000, 1_500_000] {
        let path = format!("/v1/a/c/o{size}");
        let body = content(size);
        put(&before, &path, &metadata, &body).await;
        let stored = store.get(&path).unwrap();
        let time = store.time_of(&path);
        assert_eq!(
            read(&after, &path, &[]).await.0,
            500,
            "before it is re-keyed"
        );
        let waits = Rekeyed::Remains(None, Reason::NotYet);
        assert_eq!(order(&both, &path, true).await, waits);
        assert_eq!(
            store.get(&path).unwrap(),
            stored,
            "a dry run changes nothing"
        );
        assert_eq!(order(&both, &path, false).await, Rekeyed::Done);
        assert_eq!(order(&both, &path, false).await, Rekeyed::Active);
        assert_eq!(store.time_of(&path), time.with_offset(1));
        assert_eq!(store.get(&path).unwrap().1, stored.1);
        all.push((path, body));
    }
    let covers = |is_changed| Rekeyed::Container {
        active: Some("new".into()),
        covered: vec![None],
        is_changed,
    };
    assert_eq!(order(&both, "/v1/a/c", false).await, covers(true));
    assert_eq!(order(&both, "/v1/a/c", false).await, covers(false));
    for app in [&both, &after] {
        for (path, body) in &all {
            reads_all(app, path, body).await;
            let color = header_of(app, path, "x-object-meta-color").await;
            assert_eq!(color.as_deref(), Some("blue"));
            let at = header_of(app, path, "x-delete-at").await;
            assert!(at.is_none() || at.as_deref() == Some("9999999999"));
        }
        for (name, etag) in rows(app).await {
            let (_, body) = all.iter().find(|(path, _)| path.ends_with(&name)).unwrap();
            assert_eq!(etag, md5(body), "{name}");
        }
    }
}

/// A POST replaces the metadata of the one before: the kept keys must survive that.
#[tokio::test]
async fn a_clients_post_keeps_the_keys() {
    let store = Store::default();
    let (before, both, after) = (
        sealing(&store, &BEFORE),
        sealing(&store, &BOTH),
        sealing(&store, &AFTER),
    );
    let body = content(100_000);
    put(&before, "/v1/a/c/o", &[("x-object-meta-a", "1")], &body).await;
    put(&before, "/v1/a/c/never", &[], &body).await;
    assert_eq!(order(&both, "/v1/a/c/o", false).await, Rekeyed::Done);
    for (app, value) in [(&both, "2"), (&after, "3"), (&after, "4")] {
        let posted = ask(app, "POST", "/v1/a/c/o", &[("x-object-meta-b", value)]).await;
        assert_eq!(posted.status(), 202);
        for reader in [&both, &after] {
            let b = header_of(reader, "/v1/a/c/o", "x-object-meta-b").await;
            assert_eq!(b.as_deref(), Some(value));
            assert_eq!(
                header_of(reader, "/v1/a/c/o", "x-object-meta-a").await,
                None
            );
            reads_all(reader, "/v1/a/c/o", &body).await;
        }
    }
    // A client's POST re-keys an object that has not been: it may have begun before the tool came.
    let posted = ask(&both, "POST", "/v1/a/c/never", &[("x-object-meta-b", "5")]).await;
    assert_eq!(posted.status(), 202);
    reads_all(&after, "/v1/a/c/never", &body).await;
    assert_eq!(order(&both, "/v1/a/c/never", false).await, Rekeyed::Active);
    // Keys are kept even if encryption of new objects is disabled.
    let is_off = [("disable_encryption", "true")];
    for (secrets, options) in [
        (&BOTH[..], &is_off[..]),
        (&BOTH, &[]),
        (&AFTER, &is_off),
        (&AFTER, &[]),
    ] {
        let app = with(store.handler(), secrets, options);
        let posted = ask(&app, "POST", "/v1/a/c/o", &[("x-object-meta-b", "6")]).await;
        assert_eq!(posted.status(), 202);
        reads_all(&after, "/v1/a/c/o", &body).await;
    }
    // Keys that cannot be derived cannot be kept: the POST is refused instead of losing the object.
    put(&before, "/v1/a/c/unknown", &[], &body).await;
    let posted = ask(&after, "POST", "/v1/a/c/unknown", &[]).await;
    assert_eq!(posted.status(), 500);
    reads_all(&before, "/v1/a/c/unknown", &body).await;
}

/// Filters that run a client's request, of this method, after their first HEAD.
fn with_a_client_meanwhile(store: &Store, method: &'static str) -> Handler {
    let (inner, client) = (store.handler(), sealing(store, &BOTH));
    let is_first = Arc::new(AtomicBool::new(true));
    let handler = handler_fn(move |asked: Request| {
        let (inner, client, is_first) = (inner.clone(), client.clone(), is_first.clone());
        async move {
            let is_head = asked.method() == "HEAD";
            let answer = inner.call(asked).await;
            if is_head && is_first.swap(false, Ordering::SeqCst) {
                let headers = [("x-object-meta-a", "2")];
                let theirs = request(method, "/v1/a/c/o", &headers, b"new");
                assert!(client.call(theirs).await.status().is_success());
            }
            answer
        }
    });
    with(handler, &BOTH, &[("authenticated", "true")])
}

/// A client that writes while the tool processes the object keeps what it wrote.
#[tokio::test]
async fn what_is_written_meanwhile_is_not_lost() {
    let body = content(1000);
    for (method, expected) in [("POST", &body[..]), ("PUT", b"new")] {
        let store = Store::default();
        let before = sealing(&store, &BEFORE);
        put(&before, "/v1/a/c/o", &[("x-object-meta-a", "1")], &body).await;
        let app = with_a_client_meanwhile(&store, method);
        assert_eq!(order(&app, "/v1/a/c/o", false).await, Rekeyed::Done);
        let after = sealing(&store, &AFTER);
        let a = header_of(&after, "/v1/a/c/o", "x-object-meta-a").await;
        assert_eq!(a.as_deref(), Some("2"), "{method}");
        reads_all(&after, "/v1/a/c/o", expected).await;
    }
}

/// Keys kept for content that a PUT has replaced since have no effect.
#[tokio::test]
async fn what_was_kept_for_other_content_does_no_harm() {
    for secrets in [&BEFORE[..], &BOTH] {
        let store = Store::default();
        let (before, both) = (sealing(&store, &BEFORE), sealing(&store, &BOTH));
        let body = content(90_000);
        put(&before, "/v1/a/c/o", &[], &body).await;
        assert_eq!(order(&both, "/v1/a/c/o", false).await, Rekeyed::Done);
        let (kept, _) = store.get("/v1/a/c/o").unwrap();
        // A PUT with an earlier timestamp whose content arrived later: the POST's metadata is
        // newer, and stays.
        let new = content(80_000);
        put(&sealing(&store, secrets), "/v1/a/c/o", &[], &new).await;
        let (mut headers, sealed) = store.get("/v1/a/c/o").unwrap();
        for name in [KEPT, KEPT_MAC] {
            headers.insert(name, kept[name].clone());
        }
        insert(&store, "/v1/a/c/o", &headers, sealed);
        reads_all(&both, "/v1/a/c/o", &new).await;
        let old = [("if-none-match", md5(&body))];
        let old = [(old[0].0, old[0].1.as_str())];
        assert_eq!(read(&both, "/v1/a/c/o", &old).await.0, 200);
        let expected = match secrets.len() {
            1 => Rekeyed::Done,
            _ => Rekeyed::Active,
        };
        assert_eq!(order(&both, "/v1/a/c/o", false).await, expected);
        reads_all(&sealing(&store, &AFTER), "/v1/a/c/o", &new).await;
    }
}

fn insert(store: &Store, path: &str, headers: &HeaderMap, body: Vec<u8>) {
    let headers = headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.to_str().unwrap()));
    store.insert(path, headers, body);
}

/// The value with one bit of its sealed bytes changed.
fn changed(value: &http::HeaderValue) -> http::HeaderValue {
    let mut text = value.to_str().unwrap().to_owned();
    let first = if text.starts_with('A') { "B" } else { "A" };
    text.replace_range(..1, first);
    text.parse().unwrap()
}

#[tokio::test]
async fn changed_keys_are_refused() {
    let store = Store::default();
    let (before, both, after) = (
        sealing(&store, &BEFORE),
        sealing(&store, &BOTH),
        sealing(&store, &AFTER),
    );
    let body = content(90_000);
    for name in ["o", "p"] {
        let path = format!("/v1/a/c/{name}");
        put(&before, &path, &[], &body).await;
        assert_eq!(order(&both, &path, false).await, Rekeyed::Done);
    }
    order(&both, "/v1/a/c", false).await;
    let (good, sealed) = store.get("/v1/a/c/o").unwrap();
    let (others, _) = store.get("/v1/a/c/p").unwrap();
    for value in [
        changed(&good[KEPT]),
        others[KEPT].clone(),
        "x".parse().unwrap(),
    ] {
        let mut bad = good.clone();
        bad.insert(KEPT, value);
        insert(&store, "/v1/a/c/o", &bad, sealed.clone());
        assert_eq!(read(&after, "/v1/a/c/o", &[]).await.0, 500);
        assert_eq!(ask(&after, "HEAD", "/v1/a/c/o", &[]).await.status(), 500);
        assert_eq!(ask(&after, "POST", "/v1/a/c/o", &[]).await.status(), 500);
        // As long as the old secret is there, nothing is lost, and the tool repairs it.
        reads_all(&both, "/v1/a/c/o", &body).await;
        assert_eq!(order(&both, "/v1/a/c/o", false).await, Rekeyed::Done);
        reads_all(&after, "/v1/a/c/o", &body).await;
    }
    // Only the MAC: conditions are compared with the other one.
    let mut bad = good.clone();
    bad.insert(KEPT_MAC, "AAAA".parse().unwrap());
    insert(&store, "/v1/a/c/o", &bad, sealed.clone());
    reads_all(&after, "/v1/a/c/o", &body).await;
    assert_eq!(
        order(&both, "/v1/a/c/o", true).await,
        Rekeyed::Remains(None, Reason::NotYet)
    );
    // The container's.
    let mut bad = store.container("/v1/a/c");
    let value = changed(&bad[ROWS]);
    bad.insert(ROWS, value);
    store.set_container("/v1/a/c", bad);
    assert!(
        rows(&after)
            .await
            .iter()
            .all(|(_, etag)| etag == "<unknown>")
    );
    order(&both, "/v1/a/c", false).await;
    assert!(
        rows(&after)
            .await
            .iter()
            .all(|(_, etag)| *etag == md5(&body))
    );
}

#[tokio::test]
async fn a_second_time() {
    let store = Store::default();
    let body = content(150_000);
    let apps = [&BEFORE[..], &BOTH, &NEXT, &LAST].map(|secrets| sealing(&store, secrets));
    let [before, both, next, last] = &apps;
    put(before, "/v1/a/c/old", &[("x-object-meta-a", "1")], &body).await;
    put(both, "/v1/a/c/new", &[("x-object-meta-a", "1")], &body).await;
    for app in [both, next] {
        for path in ["/v1/a/c", "/v1/a/c/old", "/v1/a/c/new"] {
            order(app, path, false).await;
        }
    }
    for name in ["old", "new"] {
        let path = format!("/v1/a/c/{name}");
        reads_all(last, &path, &body).await;
        let a = header_of(last, &path, "x-object-meta-a").await;
        assert_eq!(a.as_deref(), Some("1"));
    }
    assert!(rows(last).await.iter().all(|(_, etag)| *etag == md5(&body)));
    assert_eq!(store.time_of("/v1/a/c/old").offset(), 2);
}

/// Plain values are unchanged; without content there may be only metadata, or only a row's ETag.
#[tokio::test]
async fn other_objects() {
    let store = Store::default();
    let (before, both, after) = (
        sealing(&store, &BEFORE),
        sealing(&store, &BOTH),
        sealing(&store, &AFTER),
    );
    let swifts = with(store.handler(), &BEFORE, &[]);
    let metadata = [("x-object-meta-a", "1")];
    put(&store.handler(), "/v1/a/c/plain", &metadata, b"content").await;
    put(&swifts, "/v1/a/c/swifts", &metadata, b"content").await;
    put(&swifts, "/v1/a/c/swifts-empty", &metadata, b"").await;
    put(&before, "/v1/a/c/empty", &metadata, b"").await;
    put(&before, "/v1/a/c/bare", &[], b"").await;
    let row = "x-object-sysmeta-container-update-override-etag";
    put(&before, "/v1/a/c/link", &[(row, "abc")], b"").await;
    let stored: Vec<_> = ["plain", "swifts", "swifts-empty", "bare"]
        .map(|name| store.get(&format!("/v1/a/c/{name}")))
        .into();
    for (name, outcome) in [
        ("plain", Rekeyed::NotEncrypted),
        ("bare", Rekeyed::NotEncrypted),
        ("swifts", Rekeyed::Remains(None, Reason::SwiftsFormat)),
        ("swifts-empty", Rekeyed::Remains(None, Reason::SwiftsFormat)),
        ("empty", Rekeyed::Done),
        ("link", Rekeyed::Done),
        ("none", Rekeyed::Gone),
    ] {
        let path = format!("/v1/a/c/{name}");
        assert_eq!(order(&both, &path, false).await, outcome, "{name}");
    }
    let now: Vec<_> = ["plain", "swifts", "swifts-empty", "bare"]
        .map(|name| store.get(&format!("/v1/a/c/{name}")))
        .into();
    assert_eq!(now, stored);
    let a = header_of(&after, "/v1/a/c/empty", "x-object-meta-a").await;
    assert_eq!(a.as_deref(), Some("1"));
    // The part of it that other filters read.
    assert_eq!(
        header_of(&after, "/v1/a/c/link", row).await.as_deref(),
        Some("abc")
    );
    // The secret is not in the conf, and no key is kept.
    put(&before, "/v1/a/c/late", &[], b"content").await;
    let lost = Rekeyed::Remains(None, Reason::NotConfigured);
    assert_eq!(order(&after, "/v1/a/c/late", false).await, lost);
}
