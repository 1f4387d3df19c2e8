//! Static large objects over an in-memory store.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use cairn_http::{Body, Handler, Request, Response};
use serde_json::Value;

use crate::fake_store::{FakeStore, md5_hex};
use crate::testing::{filter, header, request, text};

const MAN: &str = "/v1/a/c/man";

/// A store with one segment for each letter: `aaaaa`, `bbbbb`, …
fn store() -> FakeStore {
    FakeStore::with(&[
        ("/v1/a/segs/a", "aaaaa"),
        ("/v1/a/segs/b", "bbbbbbbbbb"),
        ("/v1/a/segs/c", "ccccc"),
        ("/v1/a/segs/empty", ""),
    ])
}

fn slo(store: &FakeStore) -> Handler {
    let options = [("rate_limit_segments_per_sec", "0")];
    filter("slo", &options, store.handler())
}

fn put_request(path: &str, json: &str, headers: &[(&str, &str)]) -> Request {
    let mut put = request("PUT", path, headers);
    let length = json.len().into();
    put.headers_mut().insert("content-length", length);
    *put.body_mut() = Body::full(json.to_owned());
    put
}

async fn put(app: &Handler, json: &str) -> Response {
    let path = format!("{MAN}?multipart-manifest=put");
    app.call(put_request(&path, json, &[])).await
}

async fn ask(app: &Handler, method: &str, path: &str, headers: &[(&str, &str)]) -> Response {
    app.call(request(method, path, headers)).await
}

async fn get(app: &Handler, headers: &[(&str, &str)]) -> Response {
    ask(app, "GET", MAN, headers).await
}

const PLAIN: &str = r#"[{"path": "/segs/a"}, {"path": "/segs/b"}, {"path": "/segs/c"}]"#;

fn plain_etag() -> String {
    let parts = [&b"aaaaa"[..], b"bbbbbbbbbb", b"ccccc"];
    let etags: String = parts.iter().map(|part| md5_hex(part)).collect();
    md5_hex(etags.as_bytes())
}

#[tokio::test]
async fn what_is_stored() {
    let store = store();
    let app = slo(&store);
    let response = put(&app, PLAIN).await;
    assert_eq!(response.status(), 201);
    let etag = plain_etag();
    assert_eq!(header(&response, "etag").unwrap(), format!("\"{etag}\""));
    let stored = store.get(MAN).unwrap();
    assert_eq!(stored.header("x-static-large-object"), "True");
    assert_eq!(stored.header("x-object-sysmeta-slo-etag"), etag);
    assert_eq!(stored.header("x-object-sysmeta-slo-size"), "20");
    assert_eq!(
        stored.header("content-type"),
        "application/octet-stream;swift_bytes=20"
    );
    let own = md5_hex(&stored.body);
    assert_eq!(
        stored.header("x-object-sysmeta-container-update-override-etag"),
        format!("{own}; slo_etag={etag}")
    );
    let entries: Vec<Value> = serde_json::from_slice(&stored.body).unwrap();
    assert_eq!(entries[1]["name"], "/segs/b");
    assert_eq!(entries[1]["bytes"], 10);
    assert_eq!(entries[1]["hash"], md5_hex(b"bbbbbbbbbb"));
    let heads: Vec<_> = store
        .log()
        .into_iter()
        .filter(|l| l.starts_with("HEAD"))
        .collect();
    assert_eq!(heads.len(), 3);
}

#[tokio::test]
async fn reading_all_and_ranges() {
    let store = store();
    let app = slo(&store);
    put(&app, PLAIN).await;
    store.log();
    let response = get(&app, &[]).await;
    assert_eq!(response.status(), 200);
    assert_eq!(header(&response, "content-length").unwrap(), "20");
    assert_eq!(
        header(&response, "etag").unwrap(),
        format!("\"{}\"", plain_etag())
    );
    let own = md5_hex(&store.get(MAN).unwrap().body);
    assert_eq!(header(&response, "x-manifest-etag").unwrap(), own);
    assert_eq!(text(response).await, "aaaaabbbbbbbbbbccccc");
    assert_eq!(
        store.log()[1..],
        [
            "GET /v1/a/segs/a?multipart-manifest=get",
            "GET /v1/a/segs/b?multipart-manifest=get",
            "GET /v1/a/segs/c?multipart-manifest=get"
        ]
    );
    let response = get(&app, &[("range", "bytes=4-15")]).await;
    assert_eq!(response.status(), 206);
    assert_eq!(header(&response, "content-range").unwrap(), "bytes 4-15/20");
    assert_eq!(text(response).await, "abbbbbbbbbbc");
    assert_eq!(
        store.log()[1..],
        [
            "GET /v1/a/segs/a?multipart-manifest=get bytes=4-4",
            "GET /v1/a/segs/b?multipart-manifest=get",
            "GET /v1/a/segs/c?multipart-manifest=get bytes=0-0"
        ]
    );
    let response = get(&app, &[("range", "bytes=-6")]).await;
    assert_eq!(text(response).await, "bccccc");
    let response = get(&app, &[("range", "bytes=20-")]).await;
    assert_eq!(response.status(), 416);
    assert_eq!(header(&response, "content-range").unwrap(), "bytes */20");
    let response = get(&app, &[("range", "bytes=0-5,14-16")]).await;
    assert_eq!(response.status(), 206);
    let length: usize = header(&response, "content-length")
        .unwrap()
        .parse()
        .unwrap();
    let body = text(response).await;
    assert_eq!(body.len(), length);
    assert!(body.contains("bytes 0-5/20\r\n\r\naaaaab\r\n--"), "{body}");
    assert!(body.contains("bytes 14-16/20\r\n\r\nbcc\r\n--"), "{body}");
    let response = ask(&app, "HEAD", MAN, &[]).await;
    assert_eq!(header(&response, "content-length").unwrap(), "20");
    assert_eq!(text(response).await, "");
}

#[tokio::test]
async fn inline_data_ranges_and_manifests_within() {
    let store = store();
    let app = slo(&store);
    put(&app, PLAIN).await;
    let outer = r#"[{"data": "PDw="}, {"path": "/c/man", "range": "3-16"}, {"data": "Pj4="},
        {"path": "/segs/b", "range": "-2"}, {"path": "/segs/a", "range": "0-4"}]"#;
    let path = "/v1/a/c/outer?multipart-manifest=put";
    let response = app.call(put_request(path, outer, &[])).await;
    assert_eq!(response.status(), 201);
    let all = "<<aabbbbbbbbbbcc>>bbaaaaa";
    let response = ask(&app, "GET", "/v1/a/c/outer", &[]).await;
    assert_eq!(text(response).await, all);
    for (first, last) in [(0, 0), (1, 2), (3, 16), (5, 24), (15, 18), (24, 24)] {
        let range = format!("bytes={first}-{last}");
        let response = ask(&app, "GET", "/v1/a/c/outer", &[("range", &range)]).await;
        assert_eq!(text(response).await, all[first..=last], "{range}");
    }
    let raw = "/v1/a/c/outer?multipart-manifest=get&format=raw";
    let response = ask(&app, "GET", raw, &[]).await;
    let body = text(response).await;
    let head = ask(&app, "HEAD", "/v1/a/c/outer", &[]).await;
    let stored = header(&head, "x-manifest-etag").unwrap().to_owned();
    for (name, value, status) in [
        ("if-match", stored.as_str(), 200),
        ("if-match", "x", 412),
        ("if-none-match", stored.as_str(), 304),
        ("if-none-match", "x", 200),
    ] {
        let response = ask(&app, "GET", raw, &[(name, value)]).await;
        assert_eq!(response.status(), status, "{name}: {value}");
    }
    let entries: Vec<Value> = serde_json::from_str(&body).unwrap();
    assert_eq!(entries[0]["data"], "PDw=");
    assert_eq!(entries[1]["range"], "3-16");
    // A range of the whole object is stored without a range.
    assert!(entries[4].get("range").is_none(), "{body}");
    // The raw form can be PUT again.
    let response = app.call(put_request(path, &body, &[])).await;
    assert_eq!(response.status(), 201);
}

#[tokio::test]
async fn too_deep_is_a_conflict() {
    let store = store();
    let app = slo(&store);
    let mut inner = "/segs/a".to_owned();
    for level in 1..=11 {
        let path = format!("/v1/a/c/level{level}?multipart-manifest=put");
        let json = format!(r#"[{{"path": "{inner}"}}]"#);
        assert_eq!(app.call(put_request(&path, &json, &[])).await.status(), 201);
        inner = format!("/c/level{level}");
    }
    let response = ask(&app, "GET", "/v1/a/c/level10", &[]).await;
    assert_eq!(text(response).await, "aaaaa");
    let response = ask(&app, "GET", "/v1/a/c/level11", &[]).await;
    assert_eq!(response.status(), 409);
}

#[tokio::test]
async fn segments_that_are_not_as_wanted() {
    let store = store();
    let app = slo(&store);
    let json = r#"[{"path": "/segs/a", "etag": "x"}, {"path": "/segs/b", "size_bytes": 9},
        {"path": "/segs/none"}, {"path": "/segs/empty"}, {"path": "/segs/c", "range": "5-"},
        {"path": "/segs/empty"}]"#;
    let response = put(&app, json).await;
    assert_eq!(response.status(), 400);
    assert_eq!(
        text(response).await,
        "Errors:\n/segs/a, Etag Mismatch\n/segs/b, Size Mismatch\n/segs/none, 404 Not Found\n\
         /segs/empty, Too small; each segment must be at least 1 byte.\n/segs/c, Unsatisfiable \
         Range\n"
    );
    assert!(store.get(MAN).is_none());
    let json = r#"[{"path": "/segs/a"}, {"path": "/segs/empty"}]"#;
    assert_eq!(put(&app, json).await.status(), 201);
    assert_eq!(text(get(&app, &[]).await).await, "aaaaa");
    let path = format!("{MAN}?multipart-manifest=put");
    let response = app
        .call(put_request(&path, PLAIN, &[("etag", "\"x\"")]))
        .await;
    assert_eq!(response.status(), 422);
    let etag = plain_etag();
    let response = app
        .call(put_request(&path, PLAIN, &[("etag", &etag)]))
        .await;
    assert_eq!(response.status(), 201);
}

#[tokio::test]
async fn limits() {
    let store = store();
    let options = [("max_manifest_segments", "2"), ("max_manifest_size", "70")];
    let app = filter("slo", &options, store.handler());
    let response = put(&app, PLAIN).await;
    assert_eq!(response.status(), 413);
    assert!(text(response).await.contains("must be <= 2"));
    let long = format!("{PLAIN}{}", " ".repeat(10));
    let response = put(&app, &long).await;
    assert_eq!(text(response).await, "Manifest File > 70 bytes");
    let path = format!("{MAN}?multipart-manifest=put");
    let mut endless = put_request(&path, &long, &[("transfer-encoding", "chunked")]);
    endless.headers_mut().remove("content-length");
    assert_eq!(app.call(endless).await.status(), 413);
    let mut unknown = put_request(&path, "[]", &[]);
    unknown.headers_mut().remove("content-length");
    assert_eq!(app.call(unknown).await.status(), 411);
    let marked = put_request("/v1/a/c/o", "x", &[("x-static-large-object", "true")]);
    assert_eq!(app.call(marked).await.status(), 400);
}

#[tokio::test]
async fn segments_that_change_later() {
    let store = store();
    let app = slo(&store);
    put(&app, PLAIN).await;
    // The first wanted segment is wrong: an error response. A later one: a body that breaks off.
    store.put("/v1/a/segs/b", &[], b"another");
    assert_eq!(get(&app, &[("range", "bytes=5-9")]).await.status(), 409);
    let response = get(&app, &[]).await;
    assert_eq!(response.status(), 200);
    let mut body = response.into_body();
    assert_eq!(body.next_chunk().await.unwrap().unwrap(), "aaaaa");
    assert!(body.next_chunk().await.unwrap().is_err());
    store.answer_instead("GET /v1/a/segs/a", 503);
    assert_eq!(get(&app, &[]).await.status(), 503);
    store.answer_instead("GET /v1/a/segs/a", 404);
    assert_eq!(get(&app, &[]).await.status(), 409);
    assert_eq!(get(&app, &[("range", "bytes=15-")]).await.status(), 206);
}

#[tokio::test]
async fn conditions_are_about_the_large_object() {
    let store = store();
    let app = slo(&store);
    put(&app, PLAIN).await;
    store.log();
    // As an old object server would return it: without marks except the first.
    let json = store.get(MAN).unwrap().body;
    store.put(MAN, &[("x-static-large-object", "True")], &json);
    let etag = plain_etag();
    let response = get(&app, &[]).await;
    assert_eq!(header(&response, "etag").unwrap(), format!("\"{etag}\""));
    for (name, value, status) in [
        ("if-match", etag.as_str(), 200),
        ("if-match", "x", 412),
        ("if-none-match", etag.as_str(), 304),
        ("if-none-match", "x", 200),
    ] {
        for method in ["GET", "HEAD"] {
            let response = ask(&app, method, MAN, &[(name, value)]).await;
            assert_eq!(response.status(), status, "{method} {name}: {value}");
        }
    }
    let response = ask(&app, "HEAD", MAN, &[]).await;
    assert_eq!(header(&response, "content-length").unwrap(), "20");
}

#[tokio::test]
async fn parts() {
    let store = store();
    let app = slo(&store);
    put(&app, PLAIN).await;
    let part = |n: &str| format!("{MAN}?part-number={n}");
    let response = ask(&app, "GET", &part("2"), &[]).await;
    assert_eq!(response.status(), 206);
    assert_eq!(header(&response, "x-parts-count").unwrap(), "3");
    assert_eq!(header(&response, "content-range").unwrap(), "bytes 5-14/20");
    assert_eq!(text(response).await, "bbbbbbbbbb");
    let response = ask(&app, "HEAD", &part("3"), &[]).await;
    assert_eq!(response.status(), 206);
    assert_eq!(header(&response, "content-length").unwrap(), "5");
    assert_eq!(ask(&app, "GET", &part("4"), &[]).await.status(), 416);
    assert_eq!(ask(&app, "GET", &part("0"), &[]).await.status(), 400);
    let ranged = ask(&app, "GET", &part("1"), &[("range", "bytes=0-1")]).await;
    assert_eq!(ranged.status(), 400);
    // The parameter has no meaning for other objects.
    let response = ask(&app, "GET", "/v1/a/segs/a?part-number=x", &[]).await;
    assert_eq!(text(response).await, "aaaaa");
}

#[tokio::test]
async fn heartbeats() {
    let store = store();
    let app = slo(&store);
    let path = format!("{MAN}?multipart-manifest=put&heartbeat=on");
    let json = [("accept", "application/json")];
    let response = app.call(put_request(&path, PLAIN, &json)).await;
    assert_eq!(response.status(), 202);
    let body = text(response).await;
    let (beats, report) = body.split_once("\r\n\r\n").unwrap();
    assert_eq!(beats, " ");
    let report: Value = serde_json::from_str(report).unwrap();
    assert_eq!(report["Response Status"], "201 Created");
    assert_eq!(report["Etag"], format!("\"{}\"", plain_etag()));
    let wrong = r#"[{"path": "/segs/none"}]"#;
    let response = app.call(put_request(&path, wrong, &json)).await;
    let body = text(response).await;
    let report: Value = serde_json::from_str(body.trim_start()).unwrap();
    assert_eq!(report["Response Status"], "400 Bad Request");
    assert_eq!(report["Errors"][0][1], "404 Not Found");
}

#[tokio::test]
async fn deleting_a_tree() {
    let store = store();
    let app = slo(&store);
    put(&app, PLAIN).await;
    let path = "/v1/a/c/outer?multipart-manifest=put";
    let json = r#"[{"path": "/c/man"}, {"data": "YQ=="}, {"path": "/segs/a"}]"#;
    app.call(put_request(path, json, &[])).await;
    store.answer_instead("DELETE /v1/a/segs/c", 403);
    let path = "/v1/a/c/outer?multipart-manifest=delete";
    let response = ask(&app, "DELETE", path, &[("accept", "application/json")]).await;
    assert_eq!(response.status(), 200);
    let report: Value = serde_json::from_str(&text(response).await).unwrap();
    // Segment a is referenced twice.
    assert_eq!(report["Number Deleted"], 4);
    assert_eq!(report["Number Not Found"], 1);
    assert_eq!(report["Errors"][0][1], "403 Forbidden");
    assert_eq!(report["Response Status"], "400 Bad Request");
    assert_eq!(store.paths(), ["/v1/a/segs/c", "/v1/a/segs/empty"]);
    let path = "/v1/a/segs/empty?multipart-manifest=delete";
    let body = text(ask(&app, "DELETE", path, &[]).await).await;
    assert!(body.contains("/segs/empty, Not an SLO manifest"), "{body}");
    let path = "/v1/a/segs/none?multipart-manifest=delete";
    let body = text(ask(&app, "DELETE", path, &[]).await).await;
    assert!(body.contains("Number Not Found: 1"), "{body}");
}

#[tokio::test]
async fn deleting_later() {
    let store = store();
    let app = slo(&store);
    put(&app, PLAIN).await;
    store.answer_instead("UPDATE /v1/.expiring_objects/1699919982", 202);
    store.log();
    let path = format!("{MAN}?multipart-manifest=delete&async=on");
    let response = ask(&app, "DELETE", &path, &[]).await;
    let log = store.log();
    let update = log
        .iter()
        .find(|l| l.starts_with("UPDATE /v1/.expiring_objects/"));
    let update = update.unwrap_or_else(|| panic!("{log:?}")).clone();
    if response.status() != 204 {
        // The queue's name depends only on the hash of the path.
        store.answer_instead(&update, 202);
        let response = ask(&app, "DELETE", &path, &[]).await;
        assert_eq!(response.status(), 204, "{update}");
    }
    assert!(store.get(MAN).is_none() && store.get("/v1/a/segs/a").is_some());
    let two = r#"[{"path": "/segs/a"}, {"path": "/c/x"}]"#;
    store.put("/v1/a/c/x", &[], b"x");
    put(&app, two).await;
    let response = ask(&app, "DELETE", &path, &[]).await;
    assert_eq!(response.status(), 400);
    assert!(
        text(response)
            .await
            .contains("All segments must be in one container")
    );
}

#[tokio::test(start_paused = true)]
async fn small_segments_are_paced() {
    let store = store();
    let options = [
        ("rate_limit_after_segment", "1"),
        ("rate_limit_segments_per_sec", "1"),
        ("rate_limit_under_size", "8"),
    ];
    let app = filter("slo", &options, store.handler());
    let json = r#"[{"path": "/segs/a"}, {"path": "/segs/b"}, {"path": "/segs/c"},
        {"path": "/segs/b"}, {"path": "/segs/a"}]"#;
    put(&app, json).await;
    let start = tokio::time::Instant::now();
    text(get(&app, &[]).await).await;
    // Three small segments: one without limit, one starts the interval, one waits.
    assert_eq!(start.elapsed(), Duration::from_secs(1));
}

/// Short ranges of a large object cause as many requests as small objects do.
#[tokio::test(start_paused = true)]
async fn short_ranges_of_large_segments_are_paced() {
    let store = store();
    store.put("/v1/a/segs/large", &[], &[b'x'; 100]);
    let options = [
        ("rate_limit_after_segment", "1"),
        ("rate_limit_segments_per_sec", "1"),
        ("rate_limit_under_size", "8"),
    ];
    let app = filter("slo", &options, store.handler());
    let json = r#"[{"path": "/segs/large", "range": "0-1"}, {"path": "/segs/large"},
        {"path": "/segs/large", "range": "4-5"}, {"path": "/segs/large", "range": "8-9"}]"#;
    put(&app, json).await;
    let start = tokio::time::Instant::now();
    assert_eq!(text(get(&app, &[]).await).await.len(), 106);
    assert_eq!(start.elapsed(), Duration::from_secs(1));
}
