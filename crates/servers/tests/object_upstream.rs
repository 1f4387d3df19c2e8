//! The object server against OpenStack Swift's own: the same requests, the same answers; and
//! both in turns on one disk, each going on where the other left off.
//!
//! Needs a Python that has Swift: `CAIRN_SWIFT_PYTHON=/path/to/python`. Without it these tests
//! say so and pass.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use cairn_disk::{
    Devices, DevicesConfig, DiskFileConfig, DiskFileEngine, Engines, FallocateReserve,
};
use cairn_http::{Body, Service};
use cairn_peer::Backends;
use cairn_servers::object::{ObjectServer, ObjectServerConfig};
use cairn_types::{HashPath, PolicySet, SplitMix};
use serde_json::{Map, Value, json};

/// Swift's server on a directory of devices.
struct Swift {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Swift {
    fn start(devices: &Path) -> Option<Self> {
        let Ok(python) = std::env::var("CAIRN_SWIFT_PYTHON") else {
            println!("skipped: CAIRN_SWIFT_PYTHON names no Python with OpenStack Swift");
            return None;
        };
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/object_upstream.py");
        let mut child = Command::new(python)
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        writeln!(stdin, "{}", json!(devices)).unwrap();
        Some(Swift {
            stdin: Some(stdin),
            stdout: BufReader::new(child.stdout.take().unwrap()),
            child,
        })
    }

    fn ask(&mut self, asked: &Value) -> Value {
        writeln!(self.stdin.as_mut().unwrap(), "{asked}").unwrap();
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }
}

impl Drop for Swift {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.child.wait();
    }
}

fn ours(devices: &Path) -> Arc<ObjectServer> {
    let mut config = DevicesConfig::new(devices);
    config.mount_check = false;
    config.fallocate_reserve = FallocateReserve::Bytes(0);
    let (hash_path, policies) = (HashPath::new("", "endcap"), PolicySet::single());
    let diskfile = DiskFileConfig::default();
    let engine = DiskFileEngine::new(hash_path.clone(), &policies, diskfile);
    let engines = Engines::uniform(&policies, Arc::new(engine));
    ObjectServer::new(
        ObjectServerConfig::new(hash_path, policies),
        engines,
        Devices::new(config),
        Backends::new(Duration::from_secs(1)),
    )
}

async fn ask(server: &ObjectServer, asked: &Value) -> Value {
    let mut request = http::Request::builder()
        .method(asked["method"].as_str().unwrap())
        .uri(asked["path"].as_str().unwrap());
    let body = asked["body"].as_str().unwrap();
    for (name, value) in asked["headers"].as_object().unwrap() {
        request = request.header(name, value.as_str().unwrap());
    }
    if asked["method"] == "PUT" {
        request = request.header("content-length", body.len());
    }
    let body = Body::full(body.to_owned());
    let response = server.call(request.body(body).unwrap()).await;
    let (parts, body) = response.into_parts();
    let body = body.collect(1 << 26).await.unwrap();
    let headers: Map<String, Value> = parts
        .headers
        .iter()
        .map(|(name, value)| {
            let value = String::from_utf8(value.as_bytes().to_vec()).unwrap();
            (name.as_str().to_owned(), value.into())
        })
        .collect();
    json!({
        "status": parts.status.as_u16(),
        "headers": headers,
        "body": String::from_utf8(body.to_vec()).unwrap(),
    })
}

/// Parts of a response to compare: status, the headers that servers go by, and the body of a success. A
/// multipart body is known by its length: boundaries differ.
fn comparable(answer: &Value) -> Value {
    let mut answer = answer.clone();
    let status = answer["status"].as_u64().unwrap();
    let headers = answer["headers"].as_object_mut().unwrap();
    let is_multipart = headers.get("content-type").is_some_and(|v| {
        let text = v.as_str().unwrap();
        text.starts_with("multipart/byteranges")
    });
    if is_multipart {
        headers.remove("content-type");
    }
    let shows_object = matches!(status, 200 | 206 | 304 | 416);
    if !shows_object {
        headers.retain(|name, _| name.starts_with("x-") || name == "etag");
        // An object that is not there has no type.
        if headers.get("x-backend-content-type") == Some(&Value::from("")) {
            headers.remove("x-backend-content-type");
        }
    }
    if status == 416 {
        headers.remove("content-length");
    }
    if is_multipart || !matches!(status, 200 | 206) {
        answer["body"] = Value::Null;
    }
    answer
}

/// A generator of its own: the same numbers everywhere.
struct Dice(SplitMix);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0.number() % sides
    }

    fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.roll(of.len() as u64) as usize]
    }
}

const BASE: u64 = 4_000_000_000;

/// Some request for one of a few objects, at a time somewhat after the one before.
fn some_request(dice: &mut Dice, step: u64) -> Value {
    let path = format!("/sda1/7/a/c/{}", dice.one(&["o", "p", "q%20%C3%A9"]));
    let mut headers = Map::new();
    let mut set = |name: &str, value: String| headers.insert(name.into(), value.into());
    // Now and then, one that comes late.
    let late = if dice.roll(3) == 0 { 12 } else { 1 };
    let seconds = BASE + step * 2 - dice.roll(late).min(step);
    let fraction = dice.one(&["", ".50000", "_0000000000000001"]);
    let time = format!("{seconds}{fraction}");
    let method = *dice.one(&["PUT", "PUT", "POST", "DELETE", "GET", "GET", "HEAD", "GET"]);
    let mut body = String::new();
    if method != "GET" && method != "HEAD" {
        if dice.roll(20) > 0 {
            set("x-timestamp", time);
        }
    } else {
        set("x-timestamp", format!("{}", BASE + step * 2));
        let conditions: [(&str, &str); 12] = [
            ("range", "bytes=0-3"),
            ("range", "bytes=-2"),
            ("range", "bytes=2-"),
            ("range", "bytes=1-2,4-5"),
            ("range", "bytes=50-"),
            ("range", "bytes=x"),
            ("if-match", "*"),
            ("if-none-match", "*"),
            ("if-match", "d41d8cd98f00b204e9800998ecf8427e"),
            ("if-none-match", "\"d41d8cd98f00b204e9800998ecf8427e\""),
            ("if-modified-since", "Tue, 02 Oct 2096 07:06:41 GMT"),
            ("x-backend-open-expired", "true"),
        ];
        for _ in 0..dice.roll(3) {
            let (name, value) = *dice.one(&conditions);
            set(name, value.into());
        }
    }
    if method == "PUT" {
        body = dice.one(&["", "content", "more content"]).to_string();
        if dice.roll(20) > 0 {
            set(
                "content-type",
                dice.one(&["a/b", "text/plain;swift_bytes=9"]).to_string(),
            );
        }
        match dice.roll(12) {
            0 => drop(set("if-none-match", "*".into())),
            1 => drop(set("etag", "0".into())),
            2 => drop(set("x-object-sysmeta-x", "s".into())),
            _ => {}
        }
    }
    if method == "PUT" || method == "POST" {
        for name in [
            "x-object-meta-a",
            "x-object-transient-sysmeta-b",
            "content-language",
        ] {
            if dice.roll(3) == 0 {
                set(name, format!("v{step}"));
            }
        }
        match dice.roll(8) {
            0 => drop(set("x-delete-at", (seconds + dice.roll(9)).to_string())),
            1 => drop(set("x-delete-at", "x".into())),
            _ => {}
        }
    }
    if method == "POST" && dice.roll(2) == 0 {
        set("content-type", format!("c/{step}"));
        if dice.roll(2) == 0 {
            set(
                "content-type-timestamp",
                format!("{}", seconds - dice.roll(4)),
            );
        }
    }
    if method == "DELETE" && dice.roll(4) == 0 {
        set("x-if-delete-at", (seconds + dice.roll(9)).to_string());
    }
    json!({"method": method, "path": path, "headers": headers, "body": body})
}

fn devices() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("sda1")).unwrap();
    root
}

#[tokio::test]
async fn objects_answer_alike() {
    let (theirs, mine, shared) = (devices(), devices(), devices());
    let Some(mut swift) = Swift::start(theirs.path()) else {
        return;
    };
    let mut swift_on_shared = Swift::start(shared.path()).unwrap();
    let (server, server_on_shared) = (ours(mine.path()), ours(shared.path()));
    let mut dice = Dice(SplitMix::new(0x5eed));
    let mut history = Vec::new();
    let mut statuses = std::collections::BTreeMap::new();
    for step in 0..1500 {
        let asked = some_request(&mut dice, step);
        history.push(asked.clone());
        let same_object: Vec<&Value> = history
            .iter()
            .filter(|r| r["path"] == asked["path"])
            .rev()
            .take(6)
            .collect();
        let expected = comparable(&swift.ask(&asked));
        let got = comparable(&ask(&server, &asked).await);
        assert_eq!(got, expected, "step {step}, newest first: {same_object:#?}");
        let (who, got) = if dice.roll(2) == 0 {
            ("Swift", swift_on_shared.ask(&asked))
        } else {
            ("Cairn", ask(&server_on_shared, &asked).await)
        };
        let got = comparable(&got);
        assert_eq!(got, expected, "{who} at step {step}: {same_object:#?}");
        let method = asked["method"].as_str().unwrap().to_owned();
        *statuses
            .entry((method, expected["status"].as_u64().unwrap()))
            .or_insert(0) += 1;
    }
    println!("{statuses:?}");
    assert!(
        statuses.len() > 20,
        "the requests were too tame: {statuses:?}"
    );
}
