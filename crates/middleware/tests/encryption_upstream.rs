//! `keymaster` and `encryption` compared with OpenStack Swift's own: data that those wrote (samples
//! in `golden/middleware`) is shown alike, and they show data that ours wrote as ours do.
//!
//! The second needs a Python that has Swift: `CAIRN_SWIFT_PYTHON=/path/to/python`. Without it that
//! test is skipped.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cairn_http::params::quote_path;
use cairn_http::{Body, Handler, Request, Response, respond};
use common::pipeline;
use common::store::Store;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use md5::{Digest, Md5};
use serde_json::{Map, Value, json};

const RANGES: [&str; 6] = [
    "",
    "bytes=0-0",
    "bytes=16-31",
    "bytes=-5",
    "bytes=1-2,20-40,15-16",
    "bytes=100000-",
];
const SHOWN: [&str; 5] = [
    "etag",
    "content-length",
    "content-type",
    "content-range",
    "x-object-sysmeta-container-update-override-etag",
];

fn golden(name: &str) -> Value {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../golden/middleware");
    let text = std::fs::read_to_string(format!("{folder}/{name}")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Our filters, with the root secrets of the samples.
fn filters(secrets: &Value, active: &str, version: &str, store: &Store) -> Handler {
    let secrets = secrets.as_object().unwrap();
    let mut options: Vec<(&str, &str)> = secrets
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str().unwrap()))
        .collect();
    options.push(("active_root_secret_id", active));
    options.push(("meta_version_to_write", version));
    pipeline(&["keymaster", "encryption"], &options, store.handler())
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
    *request.uri_mut() = quote_path(path).parse().unwrap();
    for (name, value) in headers {
        respond::set(request.headers_mut(), name, value);
    }
    app.call(request).await
}

fn latin1(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}

fn shown_headers(headers: &HeaderMap) -> Map<String, Value> {
    let is_shown = |name: &str| name.starts_with("x-object-") || SHOWN.contains(&name);
    let headers = headers.iter().filter(|(name, _)| is_shown(name.as_str()));
    headers
        .map(|(name, value)| (name.to_string(), latin1(value.as_bytes()).into()))
        .collect()
}

async fn shown_range(app: &Handler, path: &str, range: &str) -> Value {
    let headers = [("range", range)];
    let headers = if range.is_empty() { &[][..] } else { &headers };
    let response = ask(app, "GET", path, headers, b"").await;
    let status = response.status().as_u16();
    let kind = respond::header(response.headers(), CONTENT_TYPE.as_str()).unwrap_or("");
    let boundary = kind
        .split_once("boundary=")
        .map(|(_, b)| b.as_bytes().to_vec());
    let body = response.into_body().collect(1 << 20).await.unwrap();
    let body = match boundary {
        Some(boundary) => replaced(&body, &boundary, b"EDGE"),
        None => body.to_vec(),
    };
    let body = if status < 300 { body } else { Vec::new() };
    json!([status, STANDARD.encode(body)])
}

fn replaced(text: &[u8], what: &[u8], by: &[u8]) -> Vec<u8> {
    let (mut out, mut at) = (Vec::new(), 0);
    while at < text.len() {
        if text[at..].starts_with(what) {
            out.extend_from_slice(by);
            at += what.len();
        } else {
            out.push(text[at]);
            at += 1;
        }
    }
    out
}

async fn shown_object(app: &Handler, path: &str) -> Value {
    let head = ask(app, "HEAD", path, &[], b"").await;
    let headers = shown_headers(head.headers());
    let etag = headers["etag"]
        .as_str()
        .unwrap()
        .trim_matches('"')
        .to_owned();
    let mut ranges = Map::new();
    for range in RANGES {
        ranges.insert(range.to_owned(), shown_range(app, path, range).await);
    }
    let mut conditions = Vec::new();
    for name in ["if-match", "if-none-match"] {
        let tags = [
            etag.clone(),
            format!("\"{etag}\""),
            format!("\"no\", \"{etag}\""),
            "\"no\"".to_owned(),
            "*".to_owned(),
        ];
        for tag in tags {
            let response = ask(app, "GET", path, &[(name, &tag)], b"").await;
            conditions.push(response.status().as_u16());
        }
    }
    json!({
        "status": head.status().as_u16(),
        "headers": headers,
        "ranges": ranges,
        "conditions": conditions,
    })
}

/// All stored data as seen by clients.
async fn shown(app: &Handler, store: &Store) -> Value {
    let mut all = Map::new();
    for path in store.paths() {
        all.insert(path.clone(), shown_object(app, &path).await);
        let container = path.splitn(5, '/').take(4).collect::<Vec<_>>().join("/");
        if all.contains_key(&container) {
            continue;
        }
        let listing = ask(app, "GET", &container, &[], b"").await;
        let listing = listing.into_body().collect(1 << 20).await.unwrap();
        let rows: Vec<Value> = serde_json::from_slice(&listing).unwrap();
        let hashes = rows
            .iter()
            .map(|row| {
                (
                    row["name"].as_str().unwrap().to_owned(),
                    row["hash"].clone(),
                )
            })
            .collect();
        all.insert(container, Value::Object(hashes));
    }
    Value::Object(all)
}

async fn is_shown_as_by_swift(name: &str) {
    let golden = golden(name);
    let store = Store::default();
    for (path, object) in golden["objects"].as_object().unwrap() {
        let body = STANDARD.decode(object["body"].as_str().unwrap()).unwrap();
        let headers = object["headers"].as_object().unwrap();
        let headers = headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str().unwrap()));
        store.insert(path, headers, body);
    }
    let app = filters(&golden["secrets"], "2026", "3", &store);
    let ours = shown(&app, &store).await;
    let theirs = golden["shown"].as_object().unwrap();
    assert!(theirs.len() > 3);
    for (path, expected) in theirs {
        // Swift's container paths end before a name with a slash.
        if ours.get(path).is_some() {
            assert_eq!(&ours[path], expected, "{path}");
        } else {
            assert!(expected.get("status").is_none(), "{path} is not shown");
        }
    }
}

#[tokio::test]
async fn swifts_objects_are_shown_as_by_swift() {
    is_shown_as_by_swift("encryption.json").await;
}

#[tokio::test]
async fn objects_of_swifts_s3api_are_shown_as_by_swift() {
    is_shown_as_by_swift("encryption-s3.json").await;
}

/// Writes samples of all kinds through our filters.
async fn written(secrets: &Value) -> Store {
    let store = Store::default();
    let metadata = [
        ("content-type", "text/plain"),
        ("x-object-meta-color", "blue"),
        ("x-object-meta-utf", "ä 😀"),
        ("x-object-meta-empty", ""),
    ];
    for (number, (active, version)) in [("", "1"), ("2026", "2"), ("2026", "3"), ("long", "2")]
        .into_iter()
        .enumerate()
    {
        let app = filters(secrets, active, version, &store);
        let account = if version == "1" {
            "AUTH_test"
        } else {
            "AUTH_tést"
        };
        let container = format!("/v1/{account}/c{number}");
        for (name, size) in [
            ("plain", 5),
            ("empty", 0),
            ("large", 1000),
            ("ü中😀/n", 70),
            ("/slash", 9),
        ] {
            if version == "1" && !name.is_ascii() {
                continue;
            }
            let body: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
            let path = format!("{container}/{name}");
            let put = ask(&app, "PUT", &path, &metadata, &body).await;
            assert_eq!(put.status(), 201, "{path}");
            let etag = cairn_types::hex::encode(Md5::digest(&body));
            let answered = respond::header(put.headers(), "etag").unwrap();
            assert_eq!(answered.trim_matches('"'), etag);
            let stored = store.get(&path).unwrap().1;
            assert_eq!(stored == body, size == 0, "{path} is not encrypted");
        }
        let app = filters(secrets, "2026", "3", &store);
        let row = "d41d8cd98f00b204e9800998ecf8427e; symlink_target=c/o; symlink_target_etag=x";
        let link = [
            ("content-type", "application/symlink"),
            ("x-object-sysmeta-container-update-override-etag", row),
        ];
        let path = format!("{container}/link");
        assert_eq!(ask(&app, "PUT", &path, &link, b"").await.status(), 201);
        let app = filters(secrets, "long", "3", &store);
        let path = format!("{container}/posted");
        assert_eq!(
            ask(&app, "PUT", &path, &metadata, b"posted").await.status(),
            201
        );
        let app = filters(secrets, "", "2", &store);
        let later = [("x-object-meta-later", "yes")];
        assert_eq!(ask(&app, "POST", &path, &later, b"").await.status(), 202);
    }
    store
}

#[tokio::test]
async fn swift_shows_our_objects_as_we_do() {
    let Ok(python) = std::env::var("CAIRN_SWIFT_PYTHON") else {
        println!("skipped: CAIRN_SWIFT_PYTHON names no Python with OpenStack Swift");
        return;
    };
    let secrets = golden("encryption.json")["secrets"].clone();
    let store = written(&secrets).await;
    let ours = shown(&filters(&secrets, "2026", "3", &store), &store).await;
    let objects: Map<String, Value> = store
        .paths()
        .into_iter()
        .map(|path| {
            let (headers, body) = store.get(&path).unwrap();
            let headers: Map<String, Value> = headers
                .iter()
                .map(|(name, value)| (name.to_string(), latin1(value.as_bytes()).into()))
                .collect();
            let object = json!({"headers": headers, "body": STANDARD.encode(body)});
            (path, object)
        })
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("objects.json");
    std::fs::write(&file, json!({ "objects": objects }).to_string()).unwrap();
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../golden/middleware/encryption.py"
    );
    let output = Command::new(python)
        .arg(script)
        .arg("read")
        .arg(&file)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let theirs: Value = serde_json::from_slice(&output.stdout).unwrap();
    for (path, expected) in theirs.as_object().unwrap() {
        if let Some(ours) = ours.get(path) {
            assert_eq!(ours, expected, "{path}");
        } else {
            assert!(expected.get("status").is_none(), "{path} is not shown");
        }
    }
}
