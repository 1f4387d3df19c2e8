//! Authenticated encryption: written data is read again, in ranges too, and every change on the way
//! is detected before any of it is passed on.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cairn_http::{Body, Handler, Request, Response, respond};
use common::pipeline;
use common::store::Store;
use proptest::prelude::*;
use serde_json::Value;

const SECRET: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const OTHER_SECRET: &str = "ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8=";
const SEALED_SEGMENT: usize = 65536 + 16;

fn filters(store: &Store, options: &[(&str, &str)]) -> Handler {
    let secrets = [
        ("encryption_root_secret", SECRET),
        ("encryption_root_secret_2", OTHER_SECRET),
    ];
    let options = [&secrets[..], options].concat();
    pipeline(&["keymaster", "encryption"], &options, store.handler())
}

fn sealing(store: &Store) -> Handler {
    filters(store, &[("authenticated", "true")])
}

async fn ask(
    app: &Handler,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Response {
    let mut request = Request::new(Body::full(body.to_vec()));
    *request.method_mut() = method.parse().unwrap();
    *request.uri_mut() = path.parse().unwrap();
    if method == "PUT" {
        respond::set(
            request.headers_mut(),
            "content-length",
            body.len().to_string(),
        );
    }
    for (name, value) in headers {
        respond::set(request.headers_mut(), name, value);
    }
    app.call(request).await
}

fn content(size: usize) -> Vec<u8> {
    (0..size).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// Status and body; `None` if the body broke off.
async fn read(app: &Handler, path: &str, range: &str) -> (u16, Option<Vec<u8>>) {
    let headers = [("range", range)];
    let headers = if range.is_empty() { &[][..] } else { &headers };
    let response = ask(app, "GET", path, headers, b"").await;
    let status = response.status().as_u16();
    let body = response.into_body().collect(1 << 30).await;
    (status, body.ok().map(|body| body.to_vec()))
}

#[tokio::test]
async fn what_is_written_is_read() {
    let store = Store::default();
    let app = sealing(&store);
    for size in [0, 1, 100, 65535, 65536, 65537, 131_072, 200_000, 1_500_000] {
        let body = content(size);
        let metadata = [("x-object-meta-color", "blue"), ("content-type", "a/b")];
        let put = ask(&app, "PUT", "/v1/a/c/o", &metadata, &body).await;
        assert_eq!(put.status(), 201, "{size}");
        let stored = store.get("/v1/a/c/o").unwrap().1;
        assert_eq!(stored.len(), size + size.div_ceil(65536) * 16);
        assert!(size < 16 || !stored.windows(16).any(|w| w == &body[..16]));
        let head = ask(&app, "HEAD", "/v1/a/c/o", &[], b"").await;
        let header = |name| respond::header(head.headers(), name).map(str::to_owned);
        assert_eq!(header("content-length"), Some(size.to_string()));
        assert_eq!(header("x-object-meta-color").as_deref(), Some("blue"));
        let names: Vec<_> = head
            .headers()
            .keys()
            .map(|n| n.as_str().to_owned())
            .collect();
        assert!(
            !names
                .iter()
                .any(|n| n.contains("crypto-") && !n.starts_with("x-backend"))
        );
        let etag = header("etag").unwrap();
        let answered = respond::header(put.headers(), "etag").unwrap();
        assert_eq!(answered.trim_matches('"'), etag);
        assert_eq!(read(&app, "/v1/a/c/o", "").await, (200, Some(body)));
        let listing = ask(&app, "GET", "/v1/a/c", &[], b"").await;
        let listing = listing.into_body().collect(1 << 20).await.unwrap();
        let rows: Vec<Value> = serde_json::from_slice(&listing).unwrap();
        assert_eq!(rows[0]["hash"], etag.as_str());
        assert_eq!(rows[0]["bytes"], size);
        let same = ask(&app, "GET", "/v1/a/c/o", &[("if-none-match", &etag)], b"").await;
        assert_eq!(same.status(), 304);
        let other = ask(&app, "GET", "/v1/a/c/o", &[("if-match", "\"x\"")], b"").await;
        assert_eq!(other.status(), 412);
    }
}

#[tokio::test]
async fn ranges_are_those_of_the_content() {
    let store = Store::default();
    let app = sealing(&store);
    for size in [10, 65536, 140_000, 1_200_000] {
        let body = content(size);
        ask(&app, "PUT", "/v1/a/c/o", &[], &body).await;
        let last = size - 1;
        for (range, expected) in [
            ("bytes=0-0".to_owned(), &body[..1]),
            (format!("bytes={last}-"), &body[last..]),
            ("bytes=-5".to_owned(), &body[size - 5..]),
            (format!("bytes=3-{}", last - 1), &body[3..last]),
            (
                format!("bytes={}-{}", size / 2, size / 2),
                &body[size / 2..=size / 2],
            ),
        ] {
            let found = read(&app, "/v1/a/c/o", &range).await;
            assert_eq!(found, (206, Some(expected.to_vec())), "{range} of {size}");
        }
        assert_eq!(read(&app, "/v1/a/c/o", "bytes=9999999-").await.0, 416);
        // Several ranges, in the same form as from a store without encryption except for the
        // boundary.
        let (status, several) = read(&app, "/v1/a/c/o", "bytes=0-1,5-8,-1").await;
        let plain = Store::default();
        ask(&plain.handler(), "PUT", "/v1/a/c/o", &[], &body).await;
        let (_, expected) = read(&plain.handler(), "/v1/a/c/o", "bytes=0-1,5-8,-1").await;
        let parts = |body: Option<Vec<u8>>| {
            let text: String = body.unwrap().iter().map(|b| char::from(*b)).collect();
            let boundary = text
                .lines()
                .next()
                .unwrap()
                .trim_start_matches("--")
                .to_owned();
            text.replace(&boundary, "EDGE")
        };
        assert_eq!(status, 206);
        assert_eq!(parts(several), parts(expected));
    }
}

/// Changes of a stored object, each with whether it is detected before the first byte.
#[tokio::test]
async fn changes_are_noticed() {
    let store = Store::default();
    let app = sealing(&store);
    let body = content(200_000);
    ask(
        &app,
        "PUT",
        "/v1/a/c/o",
        &[("x-object-meta-color", "blue")],
        &body,
    )
    .await;
    ask(
        &app,
        "PUT",
        "/v1/a/c/other",
        &[("x-object-meta-color", "red")],
        &body,
    )
    .await;
    let (headers, sealed) = store.get("/v1/a/c/o").unwrap();
    let put = |body: Vec<u8>| {
        let headers = headers
            .iter()
            .map(|(n, v)| (n.as_str(), v.to_str().unwrap()));
        store.insert("/v1/a/c/o", headers, body);
    };
    let mut cases: Vec<(&str, Vec<u8>)> = Vec::new();
    for at in [0, 65535, 65540, SEALED_SEGMENT, sealed.len() - 1] {
        let mut changed = sealed.clone();
        changed[at] ^= 1;
        cases.push(("a bit", changed));
    }
    let segments: Vec<&[u8]> = sealed.chunks(SEALED_SEGMENT).collect();
    cases.push(("no last segment", segments[..3].concat()));
    cases.push(("no first segment", segments[1..].concat()));
    cases.push((
        "swapped",
        [segments[1], segments[0], segments[2], segments[3]].concat(),
    ));
    cases.push((
        "repeated",
        [segments[0], segments[0], segments[2], segments[3]].concat(),
    ));
    cases.push(("longer", [&sealed[..], segments[3]].concat()));
    cases.push(("shorter", sealed[..sealed.len() - 1].to_vec()));
    cases.push(("nothing", Vec::new()));
    cases.push(("another object's", store.get("/v1/a/c/other").unwrap().1));
    for (what, changed) in cases {
        put(changed);
        let (status, found) = read(&app, "/v1/a/c/o", "").await;
        assert!(status == 500 || found.is_none(), "{what}: {status}");
        let (status, _) = read(&app, "/v1/a/c/o", "bytes=0-199999").await;
        assert_eq!(status, 500, "{what}");
    }
    put(sealed);
    assert_eq!(read(&app, "/v1/a/c/o", "").await, (200, Some(body)));
}

#[tokio::test]
async fn what_belongs_to_another_object_is_noticed() {
    let store = Store::default();
    let app = sealing(&store);
    for (path, color) in [("/v1/a/c/one", "blue"), ("/v1/a/c/two", "red")] {
        let metadata = [
            ("x-object-meta-color", color),
            ("x-object-meta-shape", "round"),
        ];
        ask(&app, "PUT", path, &metadata, b"content").await;
    }
    let (one, _) = store.get("/v1/a/c/one").unwrap();
    let (two, body) = store.get("/v1/a/c/two").unwrap();
    // All headers of the other object.
    let headers = two.iter().map(|(n, v)| (n.as_str(), v.to_str().unwrap()));
    store.insert("/v1/a/c/one", headers, body.clone());
    assert_eq!(read(&app, "/v1/a/c/one", "").await.0, 500);
    assert_eq!(
        ask(&app, "HEAD", "/v1/a/c/one", &[], b"").await.status(),
        500
    );
    // A value under another name.
    let prefix = "x-object-transient-sysmeta-crypto-meta-";
    let mut swapped = two.clone();
    swapped.insert(
        "x-object-transient-sysmeta-crypto-meta-shape",
        two[&format!("{prefix}color")].clone(),
    );
    let headers = swapped
        .iter()
        .map(|(n, v)| (n.as_str(), v.to_str().unwrap()));
    store.insert("/v1/a/c/two", headers, body.clone());
    assert_eq!(read(&app, "/v1/a/c/two", "").await.0, 500);
    // One object's row under the name of the other.
    let row = "x-object-sysmeta-container-update-override-etag";
    let mut swapped = two.clone();
    swapped.insert(row, one[row].clone());
    let headers = swapped
        .iter()
        .map(|(n, v)| (n.as_str(), v.to_str().unwrap()));
    store.insert("/v1/a/c/two", headers, body);
    let listing = ask(&app, "GET", "/v1/a/c", &[], b"").await;
    let listing = listing.into_body().collect(1 << 20).await.unwrap();
    let rows: Vec<Value> = serde_json::from_slice(&listing).unwrap();
    assert_eq!(rows[1]["hash"], "<unknown>");
}

#[tokio::test]
async fn both_kinds_and_plain_objects_are_read_by_all() {
    let store = Store::default();
    let (sealing, swifts) = (sealing(&store), filters(&store, &[]));
    let second = filters(
        &store,
        &[("active_root_secret_id", "2"), ("authenticated", "yes")],
    );
    let body = content(70_000);
    for (name, app) in [
        ("s", &sealing),
        ("c", &swifts),
        ("2", &second),
        ("p", &store.handler()),
    ] {
        assert_eq!(
            ask(app, "PUT", &format!("/v1/a/c/{name}"), &[], &body)
                .await
                .status(),
            201
        );
    }
    for app in [&sealing, &swifts, &second] {
        for name in ["s", "c", "2", "p"] {
            let path = format!("/v1/a/c/{name}");
            assert_eq!(
                read(app, &path, "").await,
                (200, Some(body.clone())),
                "{name}"
            );
            let part = Some(body[65530..65540].to_vec());
            assert_eq!(
                read(app, &path, "bytes=65530-65539").await,
                (206, part),
                "{name}"
            );
        }
    }
    // New metadata, written by a filter with the other setting.
    ask(
        &swifts,
        "POST",
        "/v1/a/c/s",
        &[("x-object-meta-a", "b")],
        b"",
    )
    .await;
    let head = ask(&sealing, "HEAD", "/v1/a/c/s", &[], b"").await;
    assert_eq!(
        respond::header(head.headers(), "x-object-meta-a"),
        Some("b")
    );
    // Without the root secret nothing is shown.
    let options = [("encryption_root_secret", OTHER_SECRET)];
    let stranger = pipeline(&["keymaster", "encryption"], &options, store.handler());
    assert_eq!(read(&stranger, "/v1/a/c/s", "").await.0, 500);
    assert_eq!(read(&stranger, "/v1/a/c/2", "").await.0, 500);
}

#[tokio::test]
async fn a_wrong_etag_stores_nothing() {
    let store = Store::default();
    for app in [sealing(&store), filters(&store, &[])] {
        let wrong = [("etag", "00000000000000000000000000000000")];
        assert_eq!(
            ask(&app, "PUT", "/v1/a/c/o", &wrong, b"content")
                .await
                .status(),
            422
        );
        assert!(store.get("/v1/a/c/o").is_none());
        let right = [("etag", "\"9a0364b9e99bb480dd25e1f0284c8555\"")];
        assert_eq!(
            ask(&app, "PUT", "/v1/a/c/p", &right, b"content")
                .await
                .status(),
            201
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_range_of_any_content(size in 1usize..300_000, from in 0usize..300_000, to in 0usize..300_000) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store = Store::default();
            let app = sealing(&store);
            let body = content(size);
            ask(&app, "PUT", "/v1/a/c/o", &[], &body).await;
            let (from, to) = (from.min(to) % size, from.max(to));
            let (_, found) = read(&app, "/v1/a/c/o", &format!("bytes={from}-{to}")).await;
            let expected = if from <= to { &body[from..(to + 1).min(size)] } else { &body[..] };
            assert_eq!(found.as_deref(), Some(expected));
        });
    }
}
