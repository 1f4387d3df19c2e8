//! Another root secret for a running store: `cairn rekey` as an operator has it, and what clients see
//! before, meanwhile and when the first secret is gone.

#![allow(clippy::expect_used)]

// Other tests use the rest of it.
#[allow(dead_code)]
mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Output;

use common::{Answer, Running, cairn, error_of};

const OLD: (&str, &str) = (
    "encryption_root_secret",
    "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
);
const NEW: (&str, &str) = (
    "encryption_root_secret_2027",
    "ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8=",
);
const ACTIVE: (&str, &str) = ("active_root_secret_id", "2027");

/// The store's conf, with these options of `keymaster`.
fn encrypt(folder: &Path, original: &str, options: &[(&str, &str)]) {
    let line = original
        .lines()
        .find(|line| line.starts_with("pipeline = "))
        .expect("a pipeline");
    let (filters, app) = line.rsplit_once(' ').expect("an application");
    let with = format!("{filters} keymaster encryption {app}");
    let mut text = original.replacen(line, &with, 1);
    text += "\n[filter:encryption]\nuse = egg:swift#encryption\nauthenticated = true\n";
    text += "\n[filter:keymaster]\nuse = egg:swift#keymaster\n";
    for (name, value) in options {
        text += &format!("{name} = {value}\n");
    }
    std::fs::write(conf(folder), text).expect("a conf");
}

fn conf(folder: &Path) -> PathBuf {
    folder.join("etc/proxy-server.conf")
}

fn rekey(folder: &Path, options: &[&str]) -> (Option<i32>, String) {
    let output: Output = cairn()
        .args(["rekey", "AUTH_test", "--request-tries", "1", "--config"])
        .arg(conf(folder))
        .args(options)
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code(), format!("{said}{}", error_of(&output)))
}

/// All files of content below a folder.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else if path.extension().is_some_and(|end| end == "data") {
            let bytes = std::fs::read(&path).expect("a file");
            found.insert(path, bytes);
        }
    }
    found
}

struct Client {
    store: Running,
    token: String,
}

impl Client {
    fn start(folder: &Path, options: &[&str]) -> Client {
        let store = Running::up(folder, options);
        let (token, account) = store.log_in("test:tester", "testing");
        assert_eq!(account, "/v1/AUTH_test");
        Client { store, token }
    }

    fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let headers = [&[("X-Auth-Token", self.token.as_str())], headers].concat();
        let path = format!("/v1/AUTH_test/{path}");
        self.store.call(method, &path, &headers, body)
    }

    /// The ETag that the store answers.
    fn put(&self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> String {
        let answer = self.ask("PUT", path, headers, body);
        assert_eq!(answer.status, 201, "{path}: {answer:?}");
        let etag = answer.headers.get("etag").map_or("", String::as_str);
        etag.trim_matches('"').to_owned()
    }

    fn get(&self, path: &str, headers: &[(&str, &str)]) -> (u16, Vec<u8>) {
        let answer = self.ask("GET", path, headers, b"");
        (answer.status, answer.body)
    }

    fn header(&self, path: &str, name: &str) -> Option<String> {
        let answer = self.ask("GET", path, &[("Range", "bytes=0-0")], b"");
        assert_eq!(answer.status, 206, "{path}: {answer:?}");
        answer.headers.get(name).cloned()
    }

    fn stop(self) {
        assert_eq!(self.store.stop(), Some(0));
    }
}

/// A store that has not been started.
fn new_store() -> tempfile::TempDir {
    let data = tempfile::tempdir().expect("a folder");
    let port = ["--bind", "127.0.0.1:0", "--part-power", "4"];
    let mut command = cairn();
    command.arg("up").arg("--data").arg(data.path()).args(port);
    // It looks whether files of objects change.
    command.args(["--engine", "files"]);
    assert!(
        command
            .arg("--write-only")
            .status()
            .expect("it runs")
            .success()
    );
    data
}

/// The current content of the store and its ETags.
struct Stored {
    small: Vec<u8>,
    large: Vec<u8>,
    small_etag: String,
    large_etag: String,
}

/// Content, ranges, conditions, metadata, listings and versions, through every way they are read.
fn all_is_read(client: &Client, round: &str, stored: &Stored) {
    assert_eq!(
        client.get("c/o", &[]),
        (200, stored.small.clone()),
        "{round}"
    );
    assert_eq!(client.get("segments/1", &[]), (200, stored.large.clone()));
    assert_eq!(
        client.get("segments/posted", &[]),
        (200, stored.large.clone())
    );
    assert_eq!(client.get("segments/large", &[]).1.len(), 600_000);
    let part = client.get("segments/1", &[("Range", "bytes=65530-65539")]);
    assert_eq!(part, (206, vec![7; 10]));
    let same = [("If-None-Match", stored.large_etag.as_str())];
    assert_eq!(client.get("segments/1", &same).0, 304);
    let head = client.ask("HEAD", "c/o", &[], b"");
    assert_eq!(head.status, 200);
    assert_eq!(head.headers["etag"].trim_matches('"'), stored.small_etag);
    assert_eq!(head.headers["x-object-meta-color"], "blue");
    let expires = client.ask("HEAD", "segments/expires", &[], b"");
    assert!(expires.headers.contains_key("x-delete-at"), "{expires:?}");
    assert_eq!(
        client.header("segments/1", "content-type").as_deref(),
        Some("c/d")
    );
    assert_eq!(
        client
            .header("segments/posted", "x-object-meta-a")
            .as_deref(),
        Some(if round == "before" { "b" } else { "c" })
    );
    for (container, etag) in [("c", &stored.small_etag), ("segments", &stored.large_etag)] {
        let (_, listing) = client.get(&format!("{container}?format=json"), &[]);
        let listing = String::from_utf8_lossy(&listing).into_owned();
        let is_whole = listing.contains(etag) && !listing.contains("unknown");
        assert!(is_whole, "{listing}");
    }
    let (_, versions) = client.get("c?versions&format=json", &[]);
    let versions = String::from_utf8_lossy(&versions).into_owned();
    assert!(!versions.contains("unknown"), "{versions}");
    let ids = versions.split("\"version_id\"").skip(1);
    let mut bodies: Vec<Vec<u8>> = ids
        .filter_map(|rest| rest.split('"').nth(1))
        .map(|id| client.get(&format!("c/o?version-id={id}"), &[]).1)
        .collect();
    bodies.sort();
    assert_eq!(
        bodies,
        [b"an older version".to_vec(), stored.small.clone()],
        "{versions}"
    );
}

#[test]
fn a_secret_goes_and_every_object_stays() {
    let data = new_store();
    let folder = data.path();
    let original = std::fs::read_to_string(conf(folder)).expect("a conf");
    encrypt(folder, &original, &[OLD]);

    let client = Client::start(folder, &[]);
    let (small, large) = (b"hello".to_vec(), vec![7u8; 300_000]);
    client.put("c", &[("X-Versions-Enabled", "true")], b"");
    client.put("segments", &[], b"");
    client.put(
        "c/o",
        &[("X-Object-Meta-Color", "red")],
        b"an older version",
    );
    let small_etag = client.put("c/o", &[("X-Object-Meta-Color", "blue")], &small);
    client.put("segments/expires", &[("X-Delete-After", "9999")], &small);
    let large_etag = client.put("segments/1", &[("Content-Type", "a/b")], &large);
    let posted = client.ask("POST", "segments/1", &[("Content-Type", "c/d")], b"");
    assert_eq!(posted.status, 202);
    let manifest = br#"[{"path": "/segments/1"}, {"path": "/segments/1"}]"#;
    client.put("segments/large?multipart-manifest=put", &[], manifest);
    client.put("segments/posted", &[], &large);
    client.stop();

    encrypt(folder, &original, &[OLD, NEW, ACTIVE]);
    let client = Client::start(folder, &[]);
    let before = contents(folder);
    assert!(before.len() >= 15, "{}", before.len());
    let (code, said) = rekey(folder, &["--dry-run"]);
    assert_eq!(code, Some(1), "{said}");
    for line in [
        "remain under encryption_root_secret: 7 objects, to be re-keyed",
        "remain under encryption_root_secret: 7 ETags in listings",
    ] {
        assert!(said.contains(line), "{said}");
    }
    let note = folder.join("note");
    let progress = ["--progress", note.to_str().expect("a path")];
    let (code, said) = rekey(folder, &progress);
    assert!(
        code == Some(0) && said.contains(" 7 re-keyed"),
        "{code:?} {said}"
    );
    assert!(said.contains("nothing remains"), "{said}");
    assert!(!note.exists());
    let (code, said) = rekey(folder, &[]);
    assert!(
        code == Some(0) && said.contains(" 0 re-keyed"),
        "{code:?} {said}"
    );
    assert!(contents(folder) == before, "content was written again");
    let posted = client.ask("POST", "segments/posted", &[("X-Object-Meta-A", "b")], b"");
    assert_eq!(posted.status, 202);
    client.stop();

    encrypt(folder, &original, &[NEW, ACTIVE]);
    let stored = Stored {
        small,
        large: large.clone(),
        small_etag,
        large_etag,
    };
    let client = Client::start(folder, &[]);
    for round in ["before", "after"] {
        all_is_read(&client, round, &stored);
        if round == "before" {
            let posted = client.ask("POST", "segments/posted", &[("X-Object-Meta-A", "c")], b"");
            assert_eq!(posted.status, 202);
        }
    }
    let (code, said) = rekey(folder, &[]);
    assert_eq!(code, Some(0), "{said}");
    client.stop();

    // New objects are not sealed any more, and there is one secret: that a POST has to keep the keys,
    // the container says alone.
    let text = std::fs::read_to_string(conf(folder)).expect("a conf");
    let text = text.replace("authenticated = true", "authenticated = false");
    std::fs::write(conf(folder), text).expect("a conf");
    let client = Client::start(folder, &[]);
    let posted = client.ask("POST", "segments/1", &[("X-Object-Meta-A", "d")], b"");
    assert_eq!(posted.status, 202);
    assert_eq!(client.get("segments/1", &[]), (200, large.clone()));
    client.stop();
}
