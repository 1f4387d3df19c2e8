//! `cairn up` and `cairn serve` as users have them: the program, its folder, its signals.

#![allow(clippy::expect_used)]

// Other tests use the rest of it.
#[allow(dead_code)]
mod common;

use std::io::{Read, Write};
use std::net::TcpStream;

use rustix::process::Signal;

use common::{Running, cairn, error_of};

const ANY_PORT: [&str; 4] = ["--bind", "127.0.0.1:0", "--part-power", "6"];

#[test]
fn a_store_outlives_its_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Running::up(folder.path(), &ANY_PORT);
    let health = store.call("GET", "/healthcheck", &[], b"");
    assert_eq!((health.status, health.body.as_slice()), (200, &b"OK"[..]));
    let (token, account) = store.log_in("test:tester", "testing");
    let auth = [("X-Auth-Token", token.as_str())];
    assert_eq!(
        store
            .call("PUT", &format!("{account}/c"), &auth, b"")
            .status,
        201
    );
    let object = format!("{account}/c/o");
    assert_eq!(store.call("PUT", &object, &auth, b"hello").status, 201);

    let output = cairn()
        .arg("up")
        .arg("--data")
        .arg(folder.path())
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error_of(&output).contains("another cairn is using this folder"),
        "{output:?}"
    );
    assert_eq!(store.stop(), Some(0));

    let store = Running::up(folder.path(), &[]);
    let answer = store.call("GET", &object, &auth, b"");
    assert_eq!(
        (answer.status, answer.body.as_slice()),
        (200, &b"hello"[..]),
        "{answer:?}"
    );
    let listing = store.call("GET", &format!("{account}/c"), &auth, b"");
    assert_eq!(listing.body, b"o\n", "{listing:?}");
    assert_eq!(store.stop(), Some(0));
}

#[test]
fn the_end_waits_for_requests_and_a_second_signal_does_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Running::up(folder.path(), &ANY_PORT);
    let (token, account) = store.log_in("test:tester", "testing");
    let auth = [("X-Auth-Token", token.as_str())];
    assert_eq!(
        store
            .call("PUT", &format!("{account}/c"), &auth, b"")
            .status,
        201
    );
    let object = format!("{account}/c/slow");
    let mut upload = store.begin_upload(&object, &token);
    store.signal(Signal::TERM);
    // Nobody is let in any more, and the upload goes on.
    while TcpStream::connect(store.address).is_ok() {}
    upload.write_all(b"0123456789").expect("the body is taken");
    let mut answer = String::new();
    upload.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    assert_eq!(store.wait(), Some(0));

    let store = Running::up(folder.path(), &[]);
    assert_eq!(store.call("GET", &object, &auth, b"").body, b"0123456789");
    let upload = store.begin_upload(&object, &token);
    store.signal(Signal::TERM);
    while TcpStream::connect(store.address).is_ok() {}
    store.signal(Signal::INT);
    assert_eq!(store.wait(), Some(130));
    drop(upload);
}

#[test]
fn a_lost_device_stays_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Running::up(folder.path(), &ANY_PORT);
    let (token, account) = store.log_in("test:tester", "testing");
    let auth = [("X-Auth-Token", token.as_str())];
    assert_eq!(
        store
            .call("PUT", &format!("{account}/c"), &auth, b"")
            .status,
        201
    );
    let device = folder.path().join("dev/d2");
    std::fs::remove_dir_all(&device).expect("it was there");
    for number in 0..8 {
        let object = format!("{account}/c/o{number}");
        assert_eq!(store.call("PUT", &object, &auth, b"x").status, 201);
        assert_eq!(store.call("GET", &object, &auth, b"").body, b"x");
    }
    assert!(!device.exists());
    assert_eq!(store.stop(), Some(0));
    let store = Running::up(folder.path(), &[]);
    assert_eq!(
        store
            .call("GET", &format!("{account}/c/o1"), &auth, b"")
            .body,
        b"x"
    );
    assert!(!device.exists());
    assert_eq!(store.stop(), Some(0));
}

#[test]
fn each_server_in_a_process_of_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = cairn();
    command
        .arg("up")
        .arg("--data")
        .arg(folder.path())
        .args(ANY_PORT)
        .arg("--write-only");
    assert!(command.status().expect("it runs").success());
    let conf = |server: &str| folder.path().join(format!("etc/{server}.conf"));
    let backends = ["account-server", "container-server", "object-server"]
        .map(|server| Running::serve(&conf(server), server));
    let output = cairn()
        .arg("serve")
        .arg(conf("object-server"))
        .output()
        .expect("it runs");
    let error = error_of(&output);
    assert!(
        error.contains("is served by another object process") && error.contains("swift-orphans"),
        "{error}"
    );

    let proxy = Running::serve(&conf("proxy-server"), "proxy-server");
    let output = cairn()
        .arg("serve")
        .arg(conf("proxy-server"))
        .output()
        .expect("it runs");
    let error = error_of(&output);
    assert!(
        error.contains("cannot listen on") && error.contains("swift-orphans"),
        "{error}"
    );
    let (token, account) = proxy.log_in("test:tester", "testing");
    let auth = [("X-Auth-Token", token.as_str())];
    assert_eq!(
        proxy
            .call("PUT", &format!("{account}/c"), &auth, b"")
            .status,
        201
    );
    let object = format!("{account}/c/o");
    let body = vec![7; 300_000];
    assert_eq!(proxy.call("PUT", &object, &auth, &body).status, 201);
    assert_eq!(proxy.call("GET", &object, &auth, b"").body, body);
    assert_eq!(proxy.stop(), Some(0));
    for backend in backends {
        assert_eq!(backend.stop(), Some(0));
    }
}

#[test]
fn by_the_names_of_swifts_programs() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = cairn();
    command
        .arg("up")
        .arg("--data")
        .arg(folder.path())
        .args(ANY_PORT)
        .arg("--write-only");
    assert!(command.status().expect("it runs").success());
    let run = |name: &str, arguments: &[&str]| {
        let link = folder.path().join(name);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_cairn"), &link).expect("a link");
        let output = std::process::Command::new(&link)
            .current_dir(folder.path().join("etc"))
            .args(arguments)
            .output()
            .expect("it runs");
        std::fs::remove_file(link).expect("it was there");
        output
    };
    assert!(
        run("swift-object-server", &["object-server.conf", "-t"])
            .status
            .success()
    );
    let wrong = run("swift-proxy-server", &["object-server.conf", "-t"]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(error_of(&wrong).contains("is the conf of object-server, not of proxy-server"));
    let ring = run("swift-ring-builder", &["object.builder"]);
    let text = String::from_utf8_lossy(&ring.stdout).into_owned();
    assert!(text.contains("64 partitions, 3.000000 replicas"), "{text}");
    assert_eq!(run("swift-proxy-server", &[]).status.code(), Some(2));
}

/// A file system without extended attributes, which would take the first write and fail.
#[test]
fn a_file_system_that_cannot_hold_objects() {
    let folder = tempfile::tempdir().expect("a folder");
    let inside = |script: &str| {
        let mut command = std::process::Command::new("unshare");
        command
            .args(["--mount", "--map-root-user", "sh", "-c"])
            .arg(format!("mount -t ramfs none \"$1\" && {script}"))
            .args(["sh", &folder.path().display().to_string()])
            .arg(env!("CARGO_BIN_EXE_cairn"))
            .env_remove("RUST_LOG");
        command.output().expect("util-linux is here")
    };
    if !inside("true").status.success() {
        println!("skipped: nothing may be mounted here");
        return;
    }
    let start = "\"$2\" up --write-only --bind 127.0.0.1:0 --data \"$1\"/store";
    let refused = inside(&format!("! {start} && ! ls \"$1\"/store >/dev/null 2>&1"));
    let error = error_of(&refused);
    assert!(refused.status.success(), "{error}");
    for named in [
        "/store",
        "(ramfs)",
        "an extended attribute",
        "XFS, ext4",
        "--data",
    ] {
        assert!(error.contains(named), "{error}");
    }
}
