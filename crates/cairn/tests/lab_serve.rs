//! `cairn lab serve`: the console alone, by TLS, and what its start prints.

#![allow(clippy::unwrap_used, clippy::expect_used)]

// Other tests use the rest of them.
#[allow(dead_code)]
mod common;
#[allow(dead_code)]
#[path = "common/tls.rs"]
mod tls;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{cairn, error_of};
use http::StatusCode;
use tls::{Authority, ask, client, plain};

const PASSWORD: &str = "known-to-its-owner";

fn lab_serve(runs: &Path) -> Command {
    let mut command = cairn();
    command.args(["lab", "serve", "--bind", "127.0.0.1:0", "--dir"]);
    command.arg(runs).env_remove("CAIRN_CONSOLE_PASSWORD");
    command
}

/// A running console, and the lines that its start printed.
struct Console(Child, Vec<String>);

impl Console {
    fn start(command: &mut Command) -> Console {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut said = Vec::new();
        for line in lines.map_while(Result::ok) {
            said.push(line);
            if said.last().unwrap().starts_with("  password") {
                break;
            }
        }
        Console(child, said)
    }

    fn address(&self, scheme: &str) -> SocketAddr {
        let start = format!("console ready on {scheme}://");
        let address = self.1[0].strip_prefix(&start);
        address
            .unwrap_or_else(|| panic!("{:?}", self.1))
            .parse()
            .unwrap()
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn it_speaks_tls_and_prints_no_password_that_was_given() {
    let runs = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let (cert, key) = authority.sign("console", "127.0.0.1");
    let file = runs.path().join("password");
    std::fs::write(&file, format!("{PASSWORD}\n")).unwrap();
    let mut command = lab_serve(runs.path());
    command
        .arg("--tls-cert")
        .arg(&cert)
        .arg("--tls-key")
        .arg(&key);
    let console = Console::start(command.arg("--password-file").arg(&file));
    let address = console.address("https");
    let trusting = client(&authority.path("ca.pem"), None);
    let (status, page, _) = ask(&trusting, address, "GET", "/", &[]).unwrap();
    assert_eq!(status, StatusCode::OK);
    assert!(page.starts_with(b"<!doctype html>"));
    let (status, ..) = ask(&plain(), address, "GET", "/", &[]).unwrap();
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let said = console.1.join("\n");
    let shown = cairn_http::tls::fingerprint(&cert).unwrap();
    assert!(said.contains(&shown) && !said.contains(PASSWORD), "{said}");
}

#[test]
fn without_tls_it_is_as_before() {
    let runs = tempfile::tempdir().unwrap();
    let console = Console::start(&mut lab_serve(runs.path()));
    let (status, ..) = ask(&plain(), console.address("http"), "GET", "/", &[]).unwrap();
    assert_eq!(status, StatusCode::OK);
    assert_eq!(console.1.len(), 3, "{:?}", console.1);
}

#[test]
fn what_it_cannot_serve_by_is_told_before_it_says_that_it_is_ready() {
    let runs = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let (cert, _) = authority.sign("console", "127.0.0.1");
    let (_, other) = authority.sign("other", "127.0.0.1");
    let refused = |key: Option<&Path>, why: &str| {
        let mut command = lab_serve(runs.path());
        command.arg("--tls-cert").arg(&cert);
        if let Some(key) = key {
            command.arg("--tls-key").arg(key);
        }
        let output = command.output().unwrap();
        assert!(!output.status.success() && output.stdout.is_empty());
        let error = error_of(&output);
        assert!(error.contains(why), "{error}");
    };
    refused(None, "--tls-key");
    refused(Some(&other), "other.key: not the key of");
}
