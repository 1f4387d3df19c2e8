//! Dynamic large objects over an in-memory store whose listings have pages of three.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use cairn_http::{Handler, Response};
use cairn_types::Constraints;

use crate::FilterEnv;
use crate::fake_store::{FakeStore, md5_hex};
use crate::testing::{env, filter_in, header, request, text};

const MAN: &str = "/v1/a/c/man";

fn dlo(store: &FakeStore) -> Handler {
    let constraints = Constraints {
        container_listing_limit: 3,
        ..Constraints::default()
    };
    let env = FilterEnv {
        constraints: Arc::new(constraints),
        ..env()
    };
    let options = [("rate_limit_segments_per_sec", "0")];
    filter_in(&env, "dlo", &options, store.handler())
}

/// A store with `segments` segments of five bytes each, `aaaaa`, `bbbbb`, …, and other objects.
fn store(segments: usize) -> FakeStore {
    let store = FakeStore::with(&[("/v1/a/segs/x1", "xxxxx"), ("/v1/a/segs/rest", "y")]);
    for i in 0..segments {
        let letter = char::from(b'a' + i as u8).to_string();
        let path = format!("/v1/a/segs/seg {letter}");
        store.put(&path, &[], letter.repeat(5).as_bytes());
    }
    let manifest = [
        ("x-object-manifest", "segs/seg%20"),
        ("x-object-meta-color", "blue"),
    ];
    store.put(MAN, &manifest, b"manifest-contents");
    store
}

async fn ask(app: &Handler, method: &str, headers: &[(&str, &str)]) -> Response {
    app.call(request(method, MAN, headers)).await
}

#[tokio::test]
async fn of_one_page() {
    let store = store(2);
    let app = dlo(&store);
    let etag = format!("{}{}", md5_hex(b"aaaaa"), md5_hex(b"bbbbb"));
    let etag = format!("\"{}\"", md5_hex(etag.as_bytes()));
    for method in ["GET", "HEAD"] {
        let response = ask(&app, method, &[]).await;
        assert_eq!(response.status(), 200);
        assert_eq!(header(&response, "content-length").unwrap(), "10");
        assert_eq!(header(&response, "etag").unwrap(), etag);
        assert_eq!(header(&response, "x-object-meta-color").unwrap(), "blue");
        assert_eq!(
            header(&response, "x-object-manifest").unwrap(),
            "segs/seg%20"
        );
        let body = text(response).await;
        assert_eq!(body, if method == "GET" { "aaaaabbbbb" } else { "" });
    }
    let response = ask(&app, "GET", &[("range", "bytes=3-6")]).await;
    assert_eq!(response.status(), 206);
    assert_eq!(header(&response, "content-range").unwrap(), "bytes 3-6/10");
    assert_eq!(text(response).await, "aabb");
    let response = ask(&app, "GET", &[("range", "bytes=-3")]).await;
    assert_eq!(text(response).await, "bbb");
    let response = ask(&app, "GET", &[("range", "bytes=10-")]).await;
    assert_eq!(response.status(), 416);
    assert_eq!(header(&response, "content-range").unwrap(), "bytes */10");
    let response = ask(&app, "GET", &[("range", "bytes=0-1,3-4")]).await;
    assert_eq!(response.status(), 200);
    assert_eq!(text(response).await, "aaaaabbbbb");
    assert_eq!(
        ask(&app, "GET", &[("if-none-match", &etag)]).await.status(),
        304
    );
    assert_eq!(ask(&app, "GET", &[("if-match", "x")]).await.status(), 412);
    let raw = request("GET", &format!("{MAN}?multipart-manifest=get"), &[]);
    assert_eq!(text(app.call(raw).await).await, "manifest-contents");
}

#[tokio::test]
async fn of_many_pages() {
    let store = store(7);
    let app = dlo(&store);
    store.log();
    let response = ask(&app, "GET", &[]).await;
    assert_eq!(header(&response, "content-length"), None);
    // The ETag of all segments is unknown: the manifest's own stays.
    assert_eq!(
        header(&response, "etag").unwrap(),
        md5_hex(b"manifest-contents")
    );
    assert_eq!(text(response).await, "aaaaabbbbbcccccdddddeeeeefffffggggg");
    let listings = store
        .log()
        .into_iter()
        .filter(|l| l.contains("prefix="))
        .count();
    assert_eq!(listings, 3);
    // Ranges on the first page, across its end, and from the end.
    let response = ask(&app, "GET", &[("range", "bytes=4-11")]).await;
    assert_eq!(response.status(), 206);
    assert_eq!(text(response).await, "abbbbbcc");
    for range in ["bytes=4-15", "bytes=-2", "bytes=5-"] {
        let response = ask(&app, "GET", &[("range", range)]).await;
        assert_eq!(response.status(), 200, "{range}");
        assert_eq!(text(response).await.len(), 35, "{range}");
    }
    let response = ask(&app, "HEAD", &[]).await;
    assert_eq!(header(&response, "content-length"), None);
}

#[tokio::test]
async fn of_none() {
    let store = store(0);
    let app = dlo(&store);
    let response = ask(&app, "GET", &[]).await;
    assert_eq!(response.status(), 200);
    assert_eq!(header(&response, "content-length").unwrap(), "0");
    assert_eq!(
        header(&response, "etag").unwrap(),
        format!("\"{}\"", md5_hex(b""))
    );
}

#[tokio::test]
async fn failures() {
    let store = store(3);
    let app = dlo(&store);
    store.answer_instead("GET /v1/a/segs/seg b", 403);
    let mut body = ask(&app, "GET", &[]).await.into_body();
    assert_eq!(body.next_chunk().await.unwrap().unwrap(), "aaaaa");
    assert!(body.next_chunk().await.unwrap().is_err());
    let response = ask(&app, "GET", &[("range", "bytes=5-6")]).await;
    assert_eq!(response.status(), 409);
    store.break_off("/v1/a/segs/seg a");
    let response = ask(&app, "GET", &[]).await;
    assert!(response.into_body().collect(100).await.is_err());
    store.answer_instead("GET /v1/a/segs", 403);
    assert_eq!(ask(&app, "GET", &[]).await.status(), 403);
}

#[tokio::test]
async fn manifests_that_name_nothing() {
    let app = dlo(&store(0));
    for (value, status) in [
        ("c/prefix", 201),
        ("c/a/b", 201),
        ("c", 400),
        ("c/", 400),
        ("/prefix", 400),
        ("c//x", 400),
        ("c/x?y=z", 400),
        ("c/x&y", 400),
        ("", 400),
    ] {
        let response = ask(&app, "PUT", &[("x-object-manifest", value)]).await;
        assert_eq!(response.status(), status, "{value}");
    }
}
