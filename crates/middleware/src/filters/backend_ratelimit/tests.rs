#![allow(clippy::unwrap_used)]

use super::*;
use crate::build;
use crate::testing::{self, request};

struct Server {
    app: Handler,
    clock: Clock,
    folder: tempfile::TempDir,
}

fn server(options: &[(&str, &str)], file: Option<&str>) -> Server {
    let folder = tempfile::tempdir().unwrap();
    if let Some(text) = file {
        std::fs::write(folder.path().join("backend-ratelimit.conf"), text).unwrap();
    }
    let env = testing::env();
    let mut pairs = options.to_vec();
    pairs.push(("swift_dir", folder.path().to_str().unwrap()));
    let section = Section::from_pairs("filter:backend_ratelimit", &pairs);
    let app = build("backend_ratelimit", &section, testing::answers(200), &env).unwrap();
    let clock = env.clock.clone();
    Server { app, clock, folder }
}

impl Server {
    async fn ask(&self, method: &str, path: &str) -> u16 {
        let answer = self.app.call(request(method, path, &[])).await;
        answer.status().as_u16()
    }

    /// Number of `count` requests sent at this moment that pass.
    async fn passed(&self, method: &str, device: &str, count: usize) -> usize {
        let mut passed = 0;
        for _ in 0..count {
            passed += usize::from(self.ask(method, &format!("/{device}/1/a/c")).await == 200);
        }
        passed
    }
}

#[tokio::test]
async fn no_rate_no_limit() {
    let server = server(&[], None);
    assert_eq!(server.passed("PUT", "sda1", 1000).await, 1000);
}

#[tokio::test]
async fn devices_and_methods_have_their_own() {
    let options = [
        ("put_requests_per_device_per_second", "10"),
        ("requests_per_device_rate_buffer", "0.5"),
    ];
    let server = server(&options, None);
    // The accumulated half second's worth, and the one that is due now.
    assert_eq!(server.passed("PUT", "sda1", 20).await, 6);
    assert_eq!(server.ask("PUT", "/sda1/1/a/c").await, 529);
    assert_eq!(server.passed("PUT", "sdb1", 20).await, 6);
    assert_eq!(server.passed("GET", "sda1", 20).await, 20);
    assert_eq!(server.passed("SSYNC", "sda1", 20).await, 20);
    for path in ["/healthcheck", "/recon/async", "/sda1", "/sda1/x/a"] {
        assert_eq!(server.ask("PUT", path).await, 200, "{path}");
    }
    server.clock.advance(Duration::from_millis(300));
    assert_eq!(server.passed("PUT", "sda1", 20).await, 3);
    server.clock.advance(Duration::from_secs(100));
    assert_eq!(server.passed("PUT", "sda1", 20).await, 6);
}

#[tokio::test]
async fn all_methods_together() {
    let options = [
        ("requests_per_device_per_second", "10"),
        ("put_requests_per_device_per_second", "100"),
        ("requests_per_device_rate_buffer", "0"),
    ];
    let server = server(&options, None);
    assert_eq!(server.passed("GET", "sda1", 5).await, 1);
    assert_eq!(server.passed("PUT", "sda1", 5).await, 0);
    server.clock.advance(Duration::from_millis(100));
    assert_eq!(server.passed("PUT", "sda1", 5).await, 1);
}

#[tokio::test]
async fn a_file_goes_before_and_is_read_again() {
    let options = [
        ("requests_per_device_per_second", "10"),
        ("requests_per_device_rate_buffer", "0"),
        ("config_reload_interval", "60"),
    ];
    let text = "[backend_ratelimit]\nrequests_per_device_per_second = 0\n";
    let server = server(&options, Some(text));
    assert_eq!(server.passed("PUT", "sda1", 5).await, 5);
    let path = server.folder.path().join("backend-ratelimit.conf");
    for (text, passed) in [
        (
            "[backend_ratelimit]\nput_requests_per_device_per_second = 1\n",
            1,
        ),
        (
            "[backend_ratelimit]\nrequests_per_device_per_second = -1\n",
            1,
        ),
        ("[other]\n", 1),
        (
            "[backend_ratelimit]\nrequests_per_device_per_second = 0.0\n",
            5,
        ),
    ] {
        std::fs::write(&path, text).unwrap();
        server.clock.advance(Duration::from_secs(61));
        server.ask("PUT", "/healthcheck").await; // starts the reload
        tokio::task::spawn_blocking(|| ()).await.unwrap();
        for _ in 0..50 {
            // The reload runs in the background; it has finished when it has released the file.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(server.passed("PUT", "sdx", 5).await, passed, "{text}");
    }
}

#[test]
fn bad_rates_are_refused_at_start() {
    for option in [
        "get_requests_per_device_per_second",
        "requests_per_device_rate_buffer",
    ] {
        let section = Section::from_pairs("filter:backend_ratelimit", &[(option, "-1")]);
        let made = make(&section, testing::answers(200), &testing::env());
        let error = made.map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(option), "{error}");
    }
}
