//! Archives and lists over an in-memory store. Archives are written block by block, so that they
//! can contain false sizes.

#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use cairn_http::{Body, Handler, Request};
use cairn_types::Constraints;
use serde_json::Value;

use crate::FilterEnv;
use crate::fake_store::FakeStore;
use crate::testing::{env, filter, filter_in, request, text};

/// A tar archive under construction.
#[derive(Default)]
struct Tar(Vec<u8>);

impl Tar {
    fn member(self, name: &str, kind: u8, content: &[u8]) -> Tar {
        self.claiming(name, kind, content.len() as u64, content)
    }

    /// Adds a member whose header declares another size.
    fn claiming(mut self, name: &str, kind: u8, size: u64, content: &[u8]) -> Tar {
        let mut block = [0u8; 512];
        block[..name.len()].copy_from_slice(name.as_bytes());
        block[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
        block[156] = kind;
        block[257..265].copy_from_slice(b"ustar\x0000");
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
        block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        self.0.extend(block);
        self.0.extend(content);
        self.0.extend(vec![0; (512 - content.len() % 512) % 512]);
        self
    }

    fn file(self, name: &str, content: &[u8]) -> Tar {
        self.member(name, b'0', content)
    }

    fn end(mut self) -> Vec<u8> {
        self.0.extend([0; 1024]);
        self.0
    }
}

/// A record of an extended header, whose length includes itself.
fn record(name: &str, value: &str) -> String {
    let rest = name.len() + value.len() + 3;
    let mut length = rest + 1;
    while rest + length.to_string().len() != length {
        length += 1;
    }
    format!("{length} {name}={value}\n")
}

fn bulk(store: &FakeStore, options: &[(&str, &str)]) -> Handler {
    filter("bulk", options, store.handler())
}

fn upload(path: &str, body: impl Into<Body>) -> Request {
    let mut put = request("PUT", path, &[("accept", "application/json")]);
    *put.body_mut() = body.into();
    let length = put.body().length();
    match length {
        Some(length) => put.headers_mut().insert("content-length", length.into()),
        None => put
            .headers_mut()
            .insert("transfer-encoding", "chunked".parse().unwrap()),
    };
    put
}

async fn report(app: &Handler, request: Request) -> Value {
    let response = app.call(request).await;
    assert_eq!(response.status(), 200);
    serde_json::from_str(&text(response).await).unwrap()
}

/// Status, reason, and number of files created.
fn outcome(report: &Value) -> (&str, &str, u64) {
    (
        report["Response Status"].as_str().unwrap(),
        report["Response Body"].as_str().unwrap(),
        report["Number Files Created"].as_u64().unwrap(),
    )
}

async fn extract(store: &FakeStore, kind: &str, archive: Vec<u8>) -> Value {
    let path = format!("/v1/a?extract-archive={kind}");
    report(&bulk(store, &[]), upload(&path, archive)).await
}

#[tokio::test]
async fn every_kind_of_member() {
    let big: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
    let long = format!("c/{}", "long/".repeat(40));
    let pax = record("path", "c/pax name") + &record("SCHILY.xattr.user.mime_type", "x/y");
    let pax = pax + &record("LIBARCHIVE.xattr.user.meta.Color", "blue") + &record("mtime", "1.5");
    let tar = Tar::default()
        .member("./c/", b'5', b"")
        .file("./c/small", b"hello")
        .file("/c/big", &big)
        .file("c/empty", b"")
        .file("beside", b"no container")
        .member("c/link", b'2', b"")
        .member("././@LongLink", b'L', format!("{long}\0").as_bytes())
        .file("c/cut", b"gnu")
        .member("x", b'x', pax.as_bytes())
        .file("c/ascii", b"pax")
        .end();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&tar).unwrap();
    let mut bzip2 = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    bzip2.write_all(&tar).unwrap();
    for (kind, archive) in [
        ("tar", tar),
        ("tar.gz", gzip.finish().unwrap()),
        (".TAR.bz2", bzip2.finish().unwrap()),
    ] {
        let store = FakeStore::default();
        let report = extract(&store, kind, archive).await;
        assert_eq!(outcome(&report), ("201 Created", "", 5), "{kind}");
        let body = |path: &str| store.get(path).unwrap_or_else(|| panic!("{path}")).body;
        assert_eq!(body("/v1/a/c/small"), "hello");
        assert!(body("/v1/a/c/big") == big);
        assert_eq!(body("/v1/a/c/empty"), "");
        assert_eq!(body(&format!("/v1/a/{long}")), "gnu");
        let pax = store.get("/v1/a/c/pax name").unwrap();
        assert_eq!(pax.body, "pax");
        assert_eq!(pax.header("content-type"), "x/y");
        assert_eq!(pax.header("x-object-meta-color"), "blue");
    }
}

#[tokio::test]
async fn names_and_headers_for_all() {
    let store = FakeStore::default();
    store.answer_instead("HEAD /v1/a/c", 404);
    let tar = Tar::default().file("d/x", b"1").file("y", b"2").end();
    let mut put = upload("/v1/a/c/base/?extract-archive=tar", tar);
    for (name, value) in [
        ("x-object-meta-a", "b"),
        ("x-delete-after", "9"),
        ("x-other", "c"),
    ] {
        let headers = put.headers_mut();
        headers.insert(name, value.parse().unwrap());
    }
    let report = report(&bulk(&store, &[]), put).await;
    assert_eq!(outcome(&report), ("201 Created", "", 2));
    assert_eq!(store.paths(), ["/v1/a/c/base/d/x", "/v1/a/c/base/y"]);
    let object = store.get("/v1/a/c/base/y").unwrap();
    assert_eq!(
        (
            object.header("x-object-meta-a"),
            object.header("x-delete-after")
        ),
        ("b", "9")
    );
    assert_eq!(object.header("x-other"), "");
    assert_eq!(store.log()[..2], ["HEAD /v1/a/c", "PUT /v1/a/c"]);
}

#[tokio::test]
async fn archives_that_lie() {
    let good = Tar::default().file("c/good", b"good");
    let rest = b"four";
    let huge = (8 << 30) - 1;
    let cut = || Tar(good.0.clone());
    for (archive, told) in [
        (Vec::new(), "empty file"),
        (b"not a tar at all".to_vec(), "truncated header"),
        (vec![b'x'; 1024], "invalid number in a header"),
        (
            cut().claiming("c/x", b'0', 5000, rest).0,
            "unexpected end of data",
        ),
        (
            cut().claiming("c/x", b'0', 500_000, rest).0,
            "unexpected end of data",
        ),
        (
            cut().claiming("c/x", b'x', huge, rest).0,
            "an extended header is too large",
        ),
        (
            cut().claiming("c/x", b'L', huge, rest).0,
            "an extended header is too large",
        ),
        (
            cut().member("c/x", b'x', b"99 path=x\n").0,
            "malformed extended header",
        ),
        (
            cut().member("c/x", b'x', b"8 size=\n").file("c/y", b"").0,
            "invalid size in a header",
        ),
        (
            [cut().0, [b"x", &cut().0[1..]].concat()].concat(),
            "bad checksum",
        ),
    ] {
        let store = FakeStore::default();
        let report = extract(&store, "tar", archive).await;
        let (status, body, _) = outcome(&report);
        assert_eq!(status, "400 Bad Request", "{told}");
        assert_eq!(body, format!("Invalid Tar File: {told}"));
        assert!(store.get("/v1/a/c/x").is_none(), "{told}");
    }
    // A file larger than an object may be is reported and skipped; here its content is missing
    // altogether.
    let store = FakeStore::default();
    let claims = Tar::default().claiming("c/x", b'0', huge, rest).0;
    let report = extract(&store, "tar", claims).await;
    assert_eq!(report["Errors"][0][1], "413 Request Entity Too Large");
    let none = Tar::default().member("c/", b'5', b"").end();
    let report = extract(&store, "tar", none).await;
    let (_, body, _) = outcome(&report);
    assert_eq!(body, "Invalid Tar File: No Valid Files");
    let report = extract(&store, "tar.gz", b"plain".to_vec()).await;
    assert_eq!(outcome(&report).1, "Invalid Tar File: not a gzip file");
}

#[tokio::test]
async fn names_that_lie() {
    let store = FakeStore::default();
    let tar = Tar::default()
        .file("../other/x", b"1")
        .file("c/../../other/x", b"2")
        .file("c/..", b"3")
        .file("c/..fine", b"4")
        .member("c/holes", b'S', b"5")
        .end();
    let report = report(
        &bulk(&store, &[]),
        upload("/v1/a/d?extract-archive=tar", tar),
    )
    .await;
    assert_eq!(store.paths(), ["/v1/a/d/c/..fine"]);
    let errors = report["Errors"].as_array().unwrap();
    let told: Vec<(&str, &str)> = errors
        .iter()
        .map(|e| (e[0].as_str().unwrap(), e[1].as_str().unwrap()))
        .collect();
    assert_eq!(
        told,
        [
            ("d/../other/x", "400 Bad Request"),
            ("d/c/../../other/x", "400 Bad Request"),
            ("d/c/..", "400 Bad Request"),
            ("d/c/holes", "415 Unsupported Media Type")
        ]
    );
}

#[tokio::test]
async fn limits_and_refusals() {
    let tar = || {
        Tar::default()
            .file("c1/a", b"aaaaa")
            .file("c1/b", b"b")
            .file("c2/c", b"c")
            .end()
    };
    let path = "/v1/a?extract-archive=tar";
    let store = FakeStore::default();
    for container in ["c1", "c2"] {
        store.answer_instead(&format!("HEAD /v1/a/{container}"), 404);
    }
    let one = bulk(&store, &[("max_containers_per_extraction", "1")]);
    let told = report(&one, upload(path, tar())).await;
    assert_eq!(
        outcome(&told),
        (
            "400 Bad Request",
            "More than 1 containers to create from tar.",
            2
        )
    );
    let store = FakeStore::default();
    store.answer_instead("PUT /v1/a/c1/a", 400);
    let one = bulk(&store, &[("max_failed_extractions", "1")]);
    let told = report(&one, upload(path, tar())).await;
    assert_eq!(outcome(&told), ("400 Bad Request", "", 0));
    store.answer_instead("PUT /v1/a/c1/a", 503);
    let told = report(&bulk(&store, &[]), upload(path, tar())).await;
    assert_eq!(outcome(&told), ("502 Bad Gateway", "", 2));
    store.answer_instead("PUT /v1/a/c1/a", 401);
    let told = report(&bulk(&store, &[]), upload(path, tar())).await;
    assert_eq!(outcome(&told), ("401 Unauthorized", "", 0));
    assert_eq!(told["Errors"][0][0], "c1/a");
    store.answer_instead("HEAD /v1/a/c1", 401);
    let told = report(&bulk(&store, &[]), upload(path, tar())).await;
    assert_eq!(outcome(&told), ("401 Unauthorized", "", 0));
    assert_eq!(told["Errors"], Value::from(Vec::<Value>::new()));

    // A client that may not create the container may still write to it.
    let store = FakeStore::default();
    store.answer_instead("HEAD /v1/a/c1", 403);
    let told = report(&bulk(&store, &[]), upload(path, tar())).await;
    assert_eq!(outcome(&told), ("201 Created", "", 3));
    let constraints = Constraints {
        max_file_size: 4,
        ..Constraints::default()
    };
    let env = FilterEnv {
        constraints: Arc::new(constraints),
        ..env()
    };
    let small = filter_in(&env, "bulk", &[], store.handler());
    let told = report(&small, upload(path, tar())).await;
    assert_eq!(told["Errors"][0][1], "413 Request Entity Too Large");

    let mut unknown = upload(path, tar());
    unknown.headers_mut().remove("content-length");
    let told = report(&bulk(&store, &[]), unknown).await;
    assert_eq!(outcome(&told).0, "411 Length Required");
    let zip = upload("/v1/a?extract-archive=zip", tar());
    assert_eq!(bulk(&store, &[]).call(zip).await.status(), 400);
    let mut image = upload(path, tar());
    let accept = "image/png".parse().unwrap();
    image.headers_mut().insert("accept", accept);
    let response = bulk(&store, &[]).call(image).await;
    assert!(text(response).await.contains("406 Not Acceptable"));
}

#[tokio::test]
async fn a_refused_upload_is_skipped() {
    // Larger than what is read ahead: the PUT is refused before its body has been read.
    let big = vec![7; 300_000];
    let tar = Tar::default().file("c/no", &big).file("c/yes", &big).end();
    let store = FakeStore::default();
    store.answer_instead("PUT /v1/a/c/no", 403);
    let chunks: Vec<_> = tar
        .chunks(5000)
        .map(|c| Ok(Bytes::copy_from_slice(c)))
        .collect();
    let body = Body::from_stream(futures_util::stream::iter(chunks), None);
    let report = report(
        &bulk(&store, &[]),
        upload("/v1/a?extract-archive=tar", body),
    )
    .await;
    assert_eq!(outcome(&report).2, 1);
    assert!(store.get("/v1/a/c/yes").unwrap().body == big);
}

fn list(body: impl Into<Body>) -> Request {
    let mut post = upload("/v1/a?bulk-delete", body);
    *post.method_mut() = http::Method::POST;
    post
}

#[tokio::test]
async fn deleting() {
    let store = FakeStore::with(&[
        ("/v1/a/c/one", ""),
        ("/v1/a/c/two words", ""),
        ("/v1/a/c/☃", ""),
        ("/v1/a/c", ""),
        ("/v1/a/d", ""),
    ]);
    let app = bulk(&store, &[]);
    let names = "/c\n/c/one\r\nc/two%20words\n\n  /c/%E2%98%83  \n/c/none\n/d/\n/c/%ff";
    let told = report(&app, list(names)).await;
    assert_eq!(told["Number Deleted"], 4);
    assert_eq!(told["Number Not Found"], 2, "{told}");
    assert_eq!(told["Errors"][0][1], "412 Precondition Failed");
    assert_eq!(told["Errors"][0][0], "/c/%ff");
    // Containers come last.
    let log = store.log();
    let at = |line: &str| log.iter().position(|l| l == line).unwrap();
    assert!(at("DELETE /v1/a/c") > at("DELETE /v1/a/c/none"), "{log:?}");
}

#[tokio::test(start_paused = true)]
async fn lists_that_are_refused() {
    let store = FakeStore::with(&[("/v1/a/c/o", "")]);
    let options = [
        ("max_deletes_per_request", "3"),
        ("max_failed_deletes", "2"),
        ("delete_concurrency", "1"),
        ("delete_container_retry_count", "2"),
    ];
    let app = bulk(&store, &options);
    let status = |told: &Value| told["Response Status"].as_str().unwrap().to_owned();
    let told = report(&app, list("/c/o\n\n\n\n")).await;
    assert_eq!(status(&told), "413 Request Entity Too Large");
    assert_eq!(told["Response Body"], "Maximum Bulk Deletes: 3 per request");
    assert!(store.log().is_empty());
    let told = report(&app, list("c".repeat(10_000))).await;
    assert_eq!(told["Response Body"], "Invalid File Name");
    let told = report(&app, list("")).await;
    assert_eq!(told["Response Body"], "Invalid bulk delete.");
    let mut json = list("/c/o");
    let content_type = "application/json".parse().unwrap();
    json.headers_mut().insert("content-type", content_type);
    assert_eq!(status(&report(&app, json).await), "406 Not Acceptable");
    store.answer_instead("DELETE /v1/a/c/x", 401);
    store.answer_instead("DELETE /v1/a/c/y", 500);
    let told = report(&app, list("/c/x\n/c/y\n/c/o")).await;
    assert_eq!(told["Response Body"], "Max delete failures exceeded");
    assert_eq!(told["Errors"].as_array().unwrap().len(), 2);
    assert!(store.get("/v1/a/c/o").is_some());
    let told = report(&app, list("/c/y")).await;
    assert_eq!(status(&told), "502 Bad Gateway");
    // A container that is not empty yet is tried again.
    store.answer_instead("DELETE /v1/a/full", 409);
    store.log();
    let told = report(&app, list("/full")).await;
    assert_eq!(told["Errors"][0][1], "409 Conflict");
    assert_eq!(store.log().len(), 3);
}
