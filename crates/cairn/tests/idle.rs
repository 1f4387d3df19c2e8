//! A node of six disks at rest: its threads and its memory, after load.

#![allow(clippy::expect_used)]

// Other tests use the rest of it.
#[allow(dead_code)]
mod common;

use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{Running, cairn};

const THREADS_MAX: usize = 100;
const RESIDENT_MAX_KB: usize = 150 << 10;
/// Threads end and memory goes back some seconds after the last request.
const PATIENCE: Duration = Duration::from_secs(60);
const CLIENTS: usize = 24;
const OBJECTS: usize = 24;

/// A number of proc(5)'s `status`.
fn status_of(pid: u32, name: &str) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let mut lines = status.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(n, _)| *n == name).expect("it is there");
    let number = value.split_whitespace().next().expect("a number");
    number.parse().expect("a number")
}

/// All servers and daemons by their conf files in one process, databases shared with other programs.
fn node(folder: &std::path::Path) -> Running {
    let made = cairn()
        .args(["up", "--write-only", "--bind", "127.0.0.1:0"])
        .args(["--part-power", "6", "--devices", "6", "--data"])
        .arg(folder)
        .stdout(Stdio::null())
        .status();
    assert!(made.expect("cairn runs").success());
    let mut serve = cairn();
    serve.args(["serve", "--log-level", "warn"]);
    for server in ["account", "container", "object", "proxy"] {
        let conf = folder.join(format!("etc/{server}-server.conf"));
        let text = std::fs::read_to_string(&conf).expect("a conf");
        let shared = text.replace("exclusive_databases = yes", "exclusive_databases = no");
        std::fs::write(&conf, shared).expect("a conf");
        serve.arg(conf);
    }
    Running::start(&mut serve, "proxy-server")
}

/// Small and large objects, read, listed and some of them deleted again.
fn one_client(store: &Running, token: &str, container: &str) {
    let auth = [("X-Auth-Token", token)];
    assert_eq!(store.call("PUT", container, &auth, b"").status, 201);
    let large = vec![b'x'; 300 << 10];
    for number in 0..OBJECTS {
        let body = match number % 4 {
            0 => &large[..],
            _ => &large[..1000],
        };
        let object = format!("{container}/{number}");
        assert_eq!(store.call("PUT", &object, &auth, body).status, 201);
        let read = store.call("GET", &object, &auth, b"");
        assert_eq!((read.status, read.body.len()), (200, body.len()));
        if number % 3 == 0 {
            assert_eq!(store.call("DELETE", &object, &auth, b"").status, 204);
        }
        let listed = store.call("GET", container, &auth, b"").status;
        assert!(listed == 200 || listed == 204, "{listed}");
    }
}

#[test]
fn threads_and_memory_of_a_node_of_six_disks_after_load() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = node(folder.path());
    let (token, account) = store.log_in("test:tester", "testing");
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (store, token) = (&store, &token);
            let container = format!("{account}/c{client}");
            scope.spawn(move || one_client(store, token, &container));
        }
    });
    let used = || {
        let of = |name| status_of(store.id(), name);
        (of("Threads"), of("VmRSS"))
    };
    let busy = used();
    let begun = Instant::now();
    loop {
        let (threads, resident) = used();
        if threads <= THREADS_MAX && resident <= RESIDENT_MAX_KB {
            println!("at work {busy:?}, at rest {threads} threads and {resident} kB");
            break;
        }
        assert!(
            begun.elapsed() < PATIENCE,
            "at work {busy:?}, still {threads} threads and {resident} kB"
        );
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(store.stop(), Some(0));
}
