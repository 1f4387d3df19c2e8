//! Regression tests for vulnerabilities of upstream: expensive `Accept` headers (CVE-2026-71190),
//! update headers that make servers call arbitrary hosts (CVE-2026-50221), downloads that continue
//! without their reader (CVE-2016-0738), names that terminate a header (CVE-2014-3497). Secrets in
//! logs (CVE-2017-8761): `secrets.rs`. Temporary URLs with too broad access (CVE-2015-5223):
//! `src/tempurl/tests.rs`.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use cairn_http::{Body, Request, Response, handler_fn, respond};
use http::{HeaderMap, StatusCode};
use tokio::sync::mpsc;

use common::{proxy, secured, start};

/// Headers for which upstream's parser backtracked for seconds each. This test has no clock: with
/// such a parser it would not end.
#[tokio::test]
async fn costly_accept_headers() {
    let server = start(secured(proxy()));
    let long = 7000;
    let costly = [
        format!("text/plain{}!", " ".repeat(long)),
        format!("text/plain{}!", ";a=b".repeat(long / 4)),
        format!("text/plain;a=\"{}", "\\".repeat(long)),
        format!("text/plain;a=\"{}", "\\\"".repeat(long / 2)),
        format!("text/plain{};", "; a = \"b\" ".repeat(long / 10)),
        format!("{}/", "a".repeat(long)),
        ",".repeat(long),
        "a/b,".repeat(long / 4),
    ];
    for _ in 0..50 {
        for accept in &costly {
            let answer = server.get("/v1/AUTH_test/c", &[("accept", accept)]).await;
            assert!(answer.status().is_client_error(), "{}", &accept[..20]);
        }
    }
}

/// Headers by which the proxy names servers to update: from a client they would redirect an object
/// server's updates to arbitrary hosts.
#[tokio::test]
async fn clients_name_no_servers_to_call() {
    let seen = Arc::new(Mutex::new(HeaderMap::new()));
    let into = seen.clone();
    let server = start(secured(handler_fn(move |request: Request| {
        *into.lock().unwrap() = request.headers().clone();
        async { respond::empty(StatusCode::CREATED) }
    })));
    let mut sent = vec![
        ("x-object-meta-host", "kept"),
        ("x-container-meta-device", "kept"),
    ];
    let blocked = [
        "X-Account-Host",
        "X-Account-Device",
        "X-Account-Partition",
        "X-Container-Host",
        "X-Container-Device",
        "X-Container-Partition",
        "X-Container-Root-Db-State",
        "X-Delete-At-Host",
        "X-Delete-At-Device",
        "X-Delete-At-Partition",
        "X-Delete-At-Container",
        "X-Backend-Container-Path",
        "X-Backend-Replication-Headers",
        "X-Object-Sysmeta-Container-Update-Override-Etag",
        "X-Object-Transient-Sysmeta-Crypto-Meta",
        "X-Container-Sysmeta-Shard-Root",
    ];
    sent.extend(blocked.map(|name| (name, "169.254.169.254:80")));
    let answer = server.ask("PUT", "/v1/AUTH_test/c/o", &sent, "x").await;
    assert_eq!(answer.status(), 201);
    let seen = seen.lock().unwrap();
    for name in blocked {
        assert!(!seen.contains_key(name), "{name}");
    }
    assert!(
        seen.contains_key("x-object-meta-host") && seen.contains_key("x-container-meta-device")
    );
    assert!(seen.values().all(|value| value != "169.254.169.254:80"));
}

/// An account's name in a response header can terminate neither the quoted text nor the header.
#[tokio::test]
async fn names_stay_in_their_header() {
    let server = start(secured(proxy()));
    for (name, realm) in [
        ("AUTH_%22%3Cb%3E", "AUTH_%22%3Cb%3E"),
        ("AUTH_a%0D%0AX-Evil:%201", "AUTH_a%0D%0AX-Evil%3A%201"),
    ] {
        let answer = server.get(&format!("/v1/{name}/c"), &[]).await;
        assert_eq!(answer.status(), 401);
        let header = respond::header(answer.headers(), "www-authenticate");
        assert_eq!(header.unwrap(), format!("Swift realm=\"{realm}\""));
        assert!(!answer.headers().contains_key("x-evil"));
    }
}

/// Reports when it is dropped.
struct Dropped(mpsc::UnboundedSender<()>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

/// A client that disconnects during a download releases the download's resources.
#[tokio::test]
async fn downloads_end_with_their_reader() {
    let (told, mut dropped) = mpsc::unbounded_channel();
    let endless = handler_fn(move |_| {
        let held = Dropped(told.clone());
        async move {
            let chunks = futures_util::stream::repeat_with(move || {
                let _ = &held;
                Ok(Bytes::from_static(&[0; 65536]))
            });
            Response::new(Body::from_stream(chunks, None))
        }
    });
    let server = start(secured(endless));
    let answer = server.get("/v1/AUTH_test/c/o", &[]).await;
    let mut body = answer.into_body();
    assert!(body.next_chunk().await.unwrap().is_ok());
    drop(body);
    drop(server.client);
    dropped.recv().await.unwrap();
}
