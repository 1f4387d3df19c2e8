//! Container sync to a cluster whose URL begins with `https`: `swift-container-sync CONF once` beside one
//! store, and another one that is served by TLS.

#![allow(clippy::unwrap_used, clippy::expect_used)]

// Other tests use the rest of them.
#[allow(dead_code)]
mod common;
#[allow(dead_code)]
#[path = "common/tls.rs"]
mod tls;

use std::os::unix::process::CommandExt;
use std::path::Path;

use common::{Running, cairn, error_of};
use http::StatusCode;
use tls::{Authority, ask, client};

const KEY: &str = "sync-key";

/// The conf of a server of this store, changed.
fn edit(data: &Path, server: &str, change: impl Fn(&str) -> String) {
    let path = data.join(format!("etc/{server}.conf"));
    let text = std::fs::read_to_string(&path).unwrap();
    let changed = change(&text);
    assert_ne!(changed, text, "{server}");
    std::fs::write(path, changed).unwrap();
}

/// A store that has not been started, its databases open to other processes.
fn store(options: &[&str]) -> tempfile::TempDir {
    let data = tempfile::tempdir().unwrap();
    let mut up = cairn();
    up.args(["up", "--write-only", "--bind", "127.0.0.1:0"]);
    up.args(["--part-power", "4", "--devices", "1", "--data"]);
    let made = up.arg(data.path()).args(options).output().unwrap();
    assert!(made.status.success(), "{}", error_of(&made));
    let shared = |text: &str| text.replace("exclusive_databases = yes\n", "");
    edit(data.path(), "account-server", shared);
    edit(data.path(), "container-server", shared);
    edit(data.path(), "proxy-server", |text| {
        let filter = "\n[filter:container_sync]\nuse = egg:swift#container_sync\n";
        text.replacen(" bulk ", " bulk container_sync ", 1) + filter
    });
    data
}

/// The port that the store's proxy will listen at.
fn port_of(data: &Path) -> String {
    let conf = std::fs::read_to_string(data.join("etc/proxy-server.conf")).unwrap();
    let mut lines = conf.lines();
    let port = lines.find_map(|line| line.strip_prefix("bind_port = "));
    port.unwrap().to_owned()
}

/// A pass of the daemon of the store in `data`, which trusts the authorities of a file; its log.
fn sync_once(data: &Path, ca: Option<&Path>) -> String {
    let conf = data.join("etc/container-sync.conf");
    let server = std::fs::read_to_string(data.join("etc/container-server.conf")).unwrap();
    let trusted = ca.map_or(String::new(), |ca| {
        format!("sync_ca_file = {}\n", ca.display())
    });
    let section = format!("\n[container-sync]\n{trusted}");
    std::fs::write(&conf, server + &section).unwrap();
    let pass = cairn()
        .arg0("swift-container-sync")
        .arg("-v")
        .arg(&conf)
        .arg("once")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&pass.stdout).into_owned() + &error_of(&pass);
    assert!(pass.status.success(), "{said}");
    said
}

#[test]
fn objects_go_to_a_cluster_whose_certificate_is_trusted() {
    let (here, there) = (store(&[]), store(&["--tls"]));
    let port = port_of(there.path());
    let realm =
        format!("[world]\nkey = of-the-realm\ncluster_there = https://127.0.0.1:{port}/v1/\n");
    for data in [&here, &there] {
        std::fs::write(data.path().join("etc/container-sync-realms.conf"), &realm).unwrap();
    }
    let there_ca = there.path().join("etc/tls-cert.pem");
    let source = Running::up(here.path(), &[]);
    let target = Running::up(there.path(), &[]);
    let at_target = |method: &str, path: &str, headers: &[(&str, &str)]| {
        let client = client(&there_ca, None);
        ask(&client, target.address, method, path, headers).unwrap()
    };

    let credentials = [("X-Auth-User", "test:tester"), ("X-Auth-Key", "testing")];
    let (status, _, headers) = at_target("GET", "/auth/v1.0", &credentials);
    assert_eq!(status, StatusCode::OK);
    let token = headers["x-auth-token"].to_str().unwrap();
    let token = ("X-Auth-Token", token);
    let made = at_target(
        "PUT",
        "/v1/AUTH_test/copy",
        &[token, ("X-Container-Sync-Key", KEY)],
    );
    assert_eq!(made.0, StatusCode::CREATED);
    let is_there = || at_target("GET", "/v1/AUTH_test/copy/o", &[token]);

    let (own, account) = source.log_in("test:tester", "testing");
    let headers = [
        ("X-Auth-Token", own.as_str()),
        ("X-Container-Sync-To", "//world/there/AUTH_test/copy"),
        ("X-Container-Sync-Key", KEY),
    ];
    let answer = source.call("PUT", &format!("{account}/c"), &headers, b"");
    assert_eq!(answer.status, 201, "{answer:?}");
    let answer = source.call("PUT", &format!("{account}/c/o"), &headers[..1], b"hello");
    assert_eq!(answer.status, 201, "{answer:?}");

    // Neither one's own authority nor those of the system are the other cluster's.
    let stranger = Authority::new();
    for ca in [Some(stranger.path("ca.pem")), None] {
        let said = sync_once(here.path(), ca.as_deref());
        assert!(said.contains("certificate"), "{said}");
        assert_eq!(is_there().0, StatusCode::NOT_FOUND, "{said}");
    }
    let said = sync_once(here.path(), Some(&there_ca));
    let (status, body, _) = is_there();
    assert_eq!(
        (status, &body[..]),
        (StatusCode::OK, &b"hello"[..]),
        "{said}"
    );
}
