//! The container and account servers against OpenStack Swift's own: the same requests, the same
//! answers.
//!
//! Needs a Python that has Swift: `CAIRN_SWIFT_PYTHON=/path/to/python`. Without it these tests
//! say so and pass.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use cairn_http::{Body, Handler};
use cairn_index::{IndexConfig, IndexPool};
use cairn_peer::Backends;
use cairn_servers::account::{AccountServer, AccountServerConfig};
use cairn_servers::container::{ContainerServer, ContainerServerConfig};
use cairn_types::{HashPath, PolicyIndex, PolicyKind, PolicySet, SplitMix, StoragePolicy};
use serde_json::{Value, json};

fn swift(server: &str, devices: &Path, requests: &[Value]) -> Option<Vec<Value>> {
    let Ok(python) = std::env::var("CAIRN_SWIFT_PYTHON") else {
        println!("skipped: CAIRN_SWIFT_PYTHON names no Python with OpenStack Swift");
        return None;
    };
    let mut child = Command::new(python)
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/index_upstream.py"
        ))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let command = json!({"server": server, "devices": devices, "requests": requests});
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(command.to_string().as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "the Swift side failed");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

fn policies() -> Arc<PolicySet> {
    let policy = |index, name: &str| StoragePolicy {
        index: PolicyIndex(index),
        name: name.into(),
        aliases: vec![],
        is_default: index == 0,
        deprecated: false,
        kind: PolicyKind::Replication,
    };
    Arc::new(PolicySet::new(vec![policy(0, "gold"), policy(1, "silver")]).unwrap())
}

fn ours(server: &str, devices: &Path) -> Handler {
    let pool = IndexPool::new(IndexConfig::new(devices));
    let hash_path = HashPath::new("", "endcap");
    if server == "container" {
        let mut config = ContainerServerConfig::new(hash_path, policies());
        config.mount_check = false;
        config.fallocate_reserve = None;
        ContainerServer::new(config, pool, Backends::new(Duration::from_secs(1)))
    } else {
        let mut config = AccountServerConfig::new(hash_path, policies());
        config.mount_check = false;
        config.fallocate_reserve = None;
        AccountServer::new(config, pool)
    }
}

async fn ask(server: &Handler, asked: &Value) -> Value {
    let mut request = http::Request::builder()
        .method(asked["method"].as_str().unwrap())
        .uri(asked["path"].as_str().unwrap());
    for (name, value) in asked["headers"].as_object().unwrap() {
        request = request.header(name, value.as_str().unwrap());
    }
    let body = Body::full(asked["body"].as_str().unwrap().to_owned());
    let response = server.call(request.body(body).unwrap()).await;
    let (parts, body) = response.into_parts();
    let body = body.collect(1 << 26).await.unwrap();
    let headers: serde_json::Map<String, Value> = parts
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

/// Parts of a response to compare: the status; of a success the body, and all headers but the times at which
/// the two made their databases; of a refusal the headers that servers go by.
fn comparable(answer: &Value) -> Value {
    let mut answer = answer.clone();
    let status = answer["status"].as_u64().unwrap();
    let success = status < 300;
    let headers = answer["headers"].as_object_mut().unwrap();
    for name in [
        "x-timestamp",
        "x-backend-timestamp",
        "date",
        "content-length",
    ] {
        headers.remove(name);
    }
    let empty = matches!(status, 201 | 202 | 204);
    if !success || status == 201 || status == 202 {
        headers.retain(|name, _| name.starts_with("x-"));
    }
    if headers.get("content-type").is_some() && empty && !headers.contains_key("x-put-timestamp") {
        headers.remove("content-type");
    }
    if !success || empty {
        answer["body"] = Value::Null;
    }
    answer
}

fn request(method: &str, path: &str, headers: &[(&str, &str)]) -> Value {
    let headers: serde_json::Map<String, Value> = headers
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).into()))
        .collect();
    json!({"method": method, "path": path, "headers": headers, "body": ""})
}

/// A generator of its own: the same numbers everywhere.
struct Dice(SplitMix);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0.number() % sides
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.roll(from.len() as u64) as usize]
    }

    fn time(&mut self) -> String {
        format!("{:010}.0000{}", 1000 + self.roll(200), self.roll(3))
    }
}

const QUERIES: &[&str] = &[
    "",
    "?format=json",
    "?format=xml",
    "?format=json&delimiter=/",
    "?limit=2&format=json",
    "?prefix=b/&delimiter=/&format=xml",
    "?format=json&reverse=true",
    "?marker=b&format=plain",
    "?format=json&path=b",
    "?limit=0",
    "?limit=99999",
    "?format=json&end_marker=c&marker=a",
    "?limit=x&format=json",
    "?delimiter=x/&format=json",
    "?prefix=%C3%A9",
];

fn container_requests(dice: &mut Dice) -> Vec<Value> {
    let mut requests = Vec::new();
    for _ in 0..300 {
        let time = dice.time();
        let container = format!(
            "/sda/7/{}/{}",
            dice.pick(&["a", "a", ".auto"]),
            dice.pick(&["c", "d"])
        );
        let mut headers = vec![("x-timestamp", time.as_str())];
        if dice.roll(4) == 0 {
            headers.push((
                "x-backend-storage-policy-index",
                dice.pick(&["0", "1", "1", "9", "x"]),
            ));
        }
        if dice.roll(9) == 0 {
            headers[0].1 = "yesterday";
        }
        let object = dice.pick(&[
            "b", "b/1", "b/2", "b/x/3", "%C3%A9", "c%3C%26", "z", "b/", "%00x",
        ]);
        let size = dice.roll(100).to_string();
        let is_object = |method| (method, format!("{container}/{object}"));
        let (method, path) = match dice.roll(10) {
            0 => ("PUT", container),
            1 => ("POST", container),
            2 => ("DELETE", container),
            3 => (
                "HEAD",
                format!(
                    "{container}{}",
                    dice.pick(&["", "?format=json", "?format=xml"])
                ),
            ),
            4..=6 => ("GET", format!("{container}{}", dice.pick(QUERIES))),
            7 | 8 => is_object("PUT"),
            _ => is_object("DELETE"),
        };
        match method {
            "PUT" | "POST" => {
                if dice.roll(2) == 0 {
                    headers.push(("x-container-meta-color", dice.pick(&["red", "", "blue"])));
                    headers.push(("x-container-sysmeta-a", "b"));
                    headers.push(("x-container-write", dice.pick(&["a:b", ""])));
                }
                headers.push(("x-size", &size));
                headers.push(("x-etag", dice.pick(&["e1", "e2"])));
                let types = ["text/plain", "t/u; v=w;swift_bytes=77", "x"];
                headers.push(("x-content-type", dice.pick(&types)));
            }
            "GET" | "HEAD" => {
                let accepts = [
                    "*/*",
                    "application/json",
                    "text/xml",
                    "image/png",
                    "nonsense",
                ];
                if dice.roll(3) == 0 {
                    headers.push(("accept", dice.pick(&accepts)));
                }
                if dice.roll(5) == 0 {
                    headers.push((
                        "x-backend-record-type",
                        dice.pick(&["shard", "auto", "object"]),
                    ));
                }
                if dice.roll(4) == 0 {
                    headers.push(("x-backend-allow-reserved-names", "true"));
                }
            }
            _ => {}
        }
        requests.push(request(method, &path, &headers));
    }
    requests
}

fn account_requests(dice: &mut Dice) -> Vec<Value> {
    let mut requests = Vec::new();
    for _ in 0..300 {
        let (time, put, delete) = (dice.time(), dice.time(), dice.time());
        let account = format!("/sda/7/{}", dice.pick(&["a", "a", "b", "c", ".auto"]));
        let mut headers = vec![("x-timestamp", time.as_str())];
        let (count, bytes) = (dice.roll(4).to_string(), dice.roll(100).to_string());
        let (method, path) = match dice.roll(24) {
            0..=2 => ("PUT", account),
            3 => ("POST", account),
            4 => ("DELETE", account),
            5..=7 => ("HEAD", account),
            8..=13 => ("GET", format!("{account}{}", dice.pick(QUERIES))),
            _ => (
                "PUT",
                format!(
                    "{account}/{}",
                    dice.pick(&["b", "b/", "%C3%A9", "c&", "z", "y"])
                ),
            ),
        };
        if method == "PUT" || method == "POST" {
            headers.push(("x-account-meta-color", dice.pick(&["red", "", "blue"])));
            headers.push(("x-put-timestamp", &put));
            headers.push((
                "x-delete-timestamp",
                if dice.roll(3) == 0 { &delete } else { "0" },
            ));
            headers.push(("x-object-count", &count));
            headers.push(("x-bytes-used", &bytes));
            headers.push((
                "x-backend-storage-policy-index",
                dice.pick(&["0", "0", "1"]),
            ));
            if dice.roll(5) == 0 {
                headers.push(("x-account-override-deleted", "yes"));
            }
        }
        requests.push(request(method, &path, &headers));
    }
    requests
}

async fn compare(server: &str, requests: &[Value]) {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for dir in [&here, &there] {
        std::fs::create_dir(dir.path().join("sda")).unwrap();
    }
    let Some(theirs) = swift(server, there.path(), requests) else {
        return;
    };
    let service = ours(server, here.path());
    for (number, (asked, theirs)) in requests.iter().zip(&theirs).enumerate() {
        let ours = ask(&service, asked).await;
        assert_eq!(
            comparable(&ours),
            comparable(theirs),
            "\nrequest {number}: {asked}\nours: {ours}\ntheirs: {theirs}"
        );
    }
}

#[tokio::test]
async fn containers_answer_alike() {
    for seed in 1..6 {
        compare(
            "container",
            &container_requests(&mut Dice(SplitMix::new(seed))),
        )
        .await;
    }
}

#[tokio::test]
async fn accounts_answer_alike() {
    for seed in 1..6 {
        compare("account", &account_requests(&mut Dice(SplitMix::new(seed)))).await;
    }
}
