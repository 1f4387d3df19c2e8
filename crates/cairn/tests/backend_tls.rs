//! A cluster whose servers are called by TLS alone: a proxy, account, container and object servers, each a
//! process, and a daemon of its own.

#![allow(clippy::unwrap_used, clippy::expect_used)]

// Other tests use the rest of it.
#[allow(dead_code)]
mod common;
#[path = "common/tls.rs"]
mod tls;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use common::{Running, cairn, error_of};
use http::StatusCode;
use tls::{Authority, ask, client, plain};

const SERVERS: [&str; 3] = ["account-server", "container-server", "object-server"];

fn conf(data: &Path, server: &str) -> PathBuf {
    data.join(format!("etc/{server}.conf"))
}

/// A store that has not been started: storage ports for holders of a certificate of `authority` alone, and
/// no daemon beside the servers. The daemon's conf is `object-replicator.conf`.
fn cluster(authority: &Authority) -> tempfile::TempDir {
    let data = tempfile::tempdir().unwrap();
    let mut up = cairn();
    up.args(["up", "--write-only", "--bind", "127.0.0.1:0"]);
    // It looks for files of objects.
    up.args(["--engine", "files"]);
    up.args(["--part-power", "4", "--devices", "3", "--data"]);
    up.arg(data.path());
    let made = up.output().unwrap();
    assert!(made.status.success(), "{}", error_of(&made));

    authority.sign("server", "127.0.0.1");
    authority.sign("member", "member.cluster");
    let file = |name: &str| authority.path(name).display().to_string();
    let calls = format!(
        "conn_timeout = 10\nbackend_ca_file = {}\nbackend_cert_file = {}\nbackend_key_file = {}\n",
        file("ca.pem"),
        file("member.pem"),
        file("member.key")
    );
    let listens = format!(
        "cert_file = {}\nkey_file = {}\nrequire_client_cert = true\nclient_ca_file = {}\n",
        file("server.pem"),
        file("server.key"),
        file("ca.pem")
    );
    let edit = |from: &str, to: &str, options: &str, daemons: bool| {
        let text = std::fs::read_to_string(conf(data.path(), from)).unwrap();
        let text = text.replacen("[DEFAULT]\n", &format!("[DEFAULT]\n{options}"), 1);
        let first = text.find("\n[object-").or(text.find("\n[container-"));
        let first = first.or(text.find("\n[account-")).unwrap_or(text.len());
        let text = if daemons { &text } else { &text[..first] };
        std::fs::write(conf(data.path(), to), text).unwrap();
    };
    edit("object-server", "object-replicator", &calls, true);
    edit("proxy-server", "proxy-server", &calls, true);
    for server in SERVERS {
        edit(server, server, &format!("{listens}{calls}"), false);
    }
    data
}

/// Files of objects' content on a device.
fn contents(folder: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    let count = |path: PathBuf| match path.is_dir() {
        true => contents(&path),
        false => usize::from(path.extension().is_some_and(|end| end == "data")),
    };
    entries.map(|entry| count(entry.unwrap().path())).sum()
}

fn replicate_once(data: &Path) -> Output {
    cairn()
        .arg0("swift-object-replicator")
        .arg("-v")
        .arg(conf(data, "object-replicator"))
        .arg("once")
        .output()
        .unwrap()
}

#[test]
fn a_cluster_talks_by_tls_and_with_nobody_else() {
    let (authority, other) = (Authority::new(), Authority::new());
    let data = cluster(&authority);
    let storage = SERVERS.map(|server| Running::serve(&conf(data.path(), server), server));
    let proxy = Running::serve(&conf(data.path(), "proxy-server"), "proxy-server");

    let (token, account) = proxy.log_in("test:tester", "testing");
    let token = [("X-Auth-Token", token.as_str())];
    let call = |method: &str, path: &str, body: &[u8]| {
        let answer = proxy.call(method, &format!("{account}{path}"), &token, body);
        (answer.status, answer.body)
    };
    assert_eq!(call("PUT", "/c", b"").0, 201);
    assert_eq!(call("PUT", "/c/o", b"hello").0, 201);
    assert_eq!(call("GET", "/c/o", b""), (200, b"hello".to_vec()));
    // The row came from an object server.
    assert_eq!(call("GET", "/c", b""), (200, b"o\n".to_vec()));

    let member = (authority.path("member.pem"), authority.path("member.key"));
    let foreigner = other.sign("member", "member.cluster");
    for server in &storage {
        let ask = |client| ask(&client, server.address, "GET", "/healthcheck", &[]);
        let answered = ask(client(&authority.path("ca.pem"), Some(&member)));
        assert_eq!(answered.unwrap().0, StatusCode::OK);
        for stranger in [None, Some(&foreigner)] {
            let answered = ask(client(&authority.path("ca.pem"), stranger));
            assert!(answered.is_err(), "{stranger:?}: {answered:?}");
        }
        let (status, said, _) = ask(plain()).unwrap();
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(said.ends_with(b"ask by https://\n"));
    }

    let devices = data.path().join("dev");
    assert_eq!(contents(&devices), 3);
    let lost = devices.join("d1/objects");
    std::fs::remove_dir_all(&lost).unwrap();
    let pass = replicate_once(data.path());
    assert!(pass.status.success(), "{}", error_of(&pass));
    assert_eq!(contents(&lost), 1, "{}", error_of(&pass));
    assert_eq!(call("GET", "/c/o", b""), (200, b"hello".to_vec()));
}
