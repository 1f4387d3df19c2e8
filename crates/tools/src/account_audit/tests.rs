//! Three servers that disagree, and the report about them; it equals that of Swift's own tool, if
//! `CAIRN_SWIFT_PYTHON` names a Python that has it.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Stdio};

use cairn_http::metrics::Metrics;
use cairn_http::serve::{ServeOptions, bind, serve};
use cairn_http::{Body, Request, Response, handler_fn};
use cairn_ring::{FormatVersion, NewDevice, RingBuilder};
use http::{Method, StatusCode};
use serde_json::json;
use tokio::sync::watch;

use super::*;

const OF_HELLO: &str = "5d41402abc4b2a76b9719d911017c592";

const PYTHON: &str = "
import sys
from swift.common.utils import set_swift_dir
set_swift_dir(sys.argv[1])
from swift.cli import account_audit
sys.argv = ['audit', '-r'] + sys.argv[1:]
account_audit.main()
";

/// The response of the server with device `d<number>`.
fn answer(number: usize, request: &Request) -> Response {
    let path = request.uri().path().to_owned();
    let name = path.splitn(4, '/').nth(3).unwrap();
    let is_later_page = request
        .uri()
        .query()
        .is_some_and(|q| !q.ends_with("marker="));
    let listing = |headers: &[(&str, &str)], rows: serde_json::Value| {
        let rows = if is_later_page { json!([]) } else { rows };
        let mut response = Response::new(Body::full(rows.to_string()));
        for (name, value) in headers {
            let name = http::HeaderName::try_from(*name).unwrap();
            response.headers_mut().insert(name, value.parse().unwrap());
        }
        response
    };
    let status = |status: StatusCode| {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = status;
        response
    };
    let row = |name: &str, hash: &str, time: u32| json!({"name": name, "hash": hash, "last_modified": format!("2026-11-2{time}T00:00:00.0")});
    let object = |etag: &str, content: &'static str| {
        let content = if *request.method() == Method::HEAD {
            ""
        } else {
            content
        };
        let mut response = Response::new(Body::full(content));
        let etag = format!("\"{etag}\"").parse().unwrap();
        response.headers_mut().insert("etag", etag);
        response
    };
    match (name, number) {
        ("a", 2) => status(StatusCode::INSUFFICIENT_STORAGE),
        ("a", _) => listing(
            &[
                ("x-account-container-count", ["2", "1"][number]),
                ("x-account-object-count", "3"),
            ],
            json!([{"name": "c"}, {"name": if number == 0 { "d" } else { "c" }}]),
        ),
        ("a/c", 1) => listing(
            &[("x-container-object-count", "1")],
            json!([row("o1", "one", 2)]),
        ),
        ("a/c", _) => listing(
            &[("x-container-object-count", "2")],
            json!([row("o1", "one", 1), row("o2", OF_HELLO, 1)]),
        ),
        ("a/c/o1", 0) => object("one", "x"),
        ("a/c/o1", 2) => object("another", "x"),
        ("a/c/o2", 2) => object(OF_HELLO, "jello"),
        ("a/c/o2", _) => object(OF_HELLO, "hello"),
        _ => status(StatusCode::NOT_FOUND),
    }
}

fn write_rings(folder: &Path, ports: &[u16]) {
    let conf = "[swift-hash]\nswift_hash_path_suffix = changeme\n";
    std::fs::write(folder.join("swift.conf"), conf).unwrap();
    let devices = ports.iter().enumerate().map(|(number, port)| NewDevice {
        zone: number as u32 + 1,
        ..NewDevice::at(format!("d{number}"), ([127, 0, 0, 1], *port).into())
    });
    let ring = RingBuilder::balanced(3, 3.0, devices).unwrap();
    for name in ["account", "container", "object"] {
        let path = folder.join(format!("{name}.ring.gz"));
        ring.save(path, FormatVersion::V1).unwrap();
    }
}

fn sorted(text: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(text);
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

async fn ours(folder: &Path, deep: bool, paths: &[&str]) -> Vec<String> {
    let options = Options {
        concurrency: 3,
        swift_dir: folder.to_owned(),
        error_file: Some(folder.join("errors")),
        deep,
        paths: Vec::new(),
    };
    let (send, receive) = mpsc::channel(paths.len());
    for path in paths {
        send.send(Ok((*path).to_owned())).await.unwrap();
    }
    drop(send);
    let mut out = Vec::new();
    audit(&options, receive, &mut out).await.unwrap();
    sorted(&out)
}

async fn swifts(python: &str, folder: &Path, deep: bool, paths: &[&str]) -> Vec<String> {
    let mut command = Command::new(python);
    command.arg("-c").arg(PYTHON).arg(folder);
    command.args(deep.then_some("-d")).args(paths);
    command.stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap());
    let output = output.await.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the Swift side failed: {errors}");
    sorted(&output.stdout)
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_do_not_agree() {
    let folder = tempfile::tempdir().unwrap();
    let (stop, stopped) = watch::channel(false);
    let mut ports = Vec::new();
    for number in 0..3 {
        let listener = bind("127.0.0.1:0".parse().unwrap(), 64).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        ports.push(listener.local_addr().unwrap().port());
        let handler = handler_fn(move |request: Request| async move { answer(number, &request) });
        let options = ServeOptions::new("test");
        tokio::spawn(serve(
            listener,
            handler,
            options,
            Metrics::new(),
            stopped.clone(),
        ));
    }
    write_rings(folder.path(), &ports);
    for (deep, paths) in [
        (false, &["a"][..]),
        (true, &["/a/c"]),
        (false, &["a/c/o3\n", "a/nothing"]),
    ] {
        let lines = ours(folder.path(), deep, paths).await;
        if let Ok(python) = std::env::var("CAIRN_SWIFT_PYTHON") {
            let paths: Vec<&str> = paths.iter().map(|path| path.trim()).collect();
            let expected = swifts(&python, folder.path(), deep, &paths).await;
            assert_eq!(lines, expected, "{paths:?}");
        }
        let said = |text: &str| lines.iter().any(|line| line.trim() == text);
        assert!(said("Auditing account \"a\""), "{lines:?}");
        assert!(said(
            "Account databases for 'a' don't agree on number of containers."
        ));
        match paths {
            ["a"] => {
                assert!(said("Failed to fetch container /a/d at all!"), "{lines:?}");
                assert!(said("Different versions of c/o1 in container dbs."));
                assert!(said("ETag mismatch for \"/a/c/o1\" on 127.0.0.1/d2"));
                assert!(said("Objects checked: 2") && said("Containers checked: 2"));
            }
            ["/a/c"] => {
                assert!(said(
                    "MD5 does not match etag for \"/a/c/o2\" on 127.0.0.1/d2"
                ));
            }
            _ => assert!(said("Object /a/c/o3 missing in container listing!")),
        }
    }
    let noted = std::fs::read_to_string(folder.path().join("errors")).unwrap();
    let noted: std::collections::BTreeSet<&str> = noted.lines().collect();
    let expected = [
        "/a",
        "/a/c",
        "/a/c/o1",
        "/a/c/o2",
        "/a/c/o3",
        "/a/d",
        "/a/nothing",
    ];
    assert!(noted.into_iter().eq(expected));
    stop.send_replace(true);
}
