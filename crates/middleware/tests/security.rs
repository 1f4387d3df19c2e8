//! What upstream had to fix, as tests of ours: costly `Accept` headers (CVE-2026-71190), update
//! headers that make servers call strangers (CVE-2026-50221), secrets in logs (CVE-2017-8761),
//! downloads that go on without their reader (CVE-2016-0738), names that end a header
//! (CVE-2014-3497). Temporary URLs that reach too far (CVE-2015-5223): `src/tempurl/tests.rs`.

#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use cairn_formats::ini::Section;
use cairn_http::client::Client;
use cairn_http::context::Context;
use cairn_http::metrics::Metrics;
use cairn_http::serve::{ServeOptions, bind, serve};
use cairn_http::{
    AccountInfo, Body, Clock, ContainerInfo, Handler, InfoFuture, InfoSource, Request, Response,
    SwiftInfo, handler_fn, respond,
};
use cairn_middleware::{FilterEnv, Random, build};
use cairn_types::{Constraints, HashPath, PolicySet};
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, Method, StatusCode};
use sha2::Sha256;
use tokio::sync::{mpsc, watch};

const PIPELINE: [&str; 13] = [
    "catch_errors",
    "gatekeeper",
    "healthcheck",
    "proxy_logging",
    "memcache",
    "listing_formats",
    "ratelimit",
    "tempurl",
    "formpost",
    "tempauth",
    "staticweb",
    "copy",
    "proxy_logging",
];

const PASSWORD: &str = "pass-word-1";
const URL_KEY: &str = "url-key-1";

/// One account, whose key for temporary URLs is known.
struct Accounts;

impl InfoSource for Accounts {
    fn account<'a>(&'a self, _: &'a Context, _: &'a str) -> InfoFuture<'a, AccountInfo> {
        let info = AccountInfo {
            status: 204,
            meta: [("temp-url-key".to_owned(), URL_KEY.to_owned())].into(),
            ..AccountInfo::default()
        };
        Box::pin(std::future::ready(Arc::new(info)))
    }
    fn container<'a>(
        &'a self,
        _: &'a Context,
        _: &'a str,
        _: &'a str,
    ) -> InfoFuture<'a, ContainerInfo> {
        Box::pin(std::future::ready(Arc::default()))
    }
}

fn pipeline(proxy: Handler) -> Handler {
    let env = FilterEnv {
        info_source: Arc::new(Accounts),
        swift_info: Arc::new(SwiftInfo::default()),
        constraints: Arc::new(Constraints::default()),
        policies: Arc::new(PolicySet::single()),
        hash_path: HashPath::new("", "changeme"),
        clock: Clock::system(),
        random: Random::system(),
        logins: cairn_middleware::Logins::default(),
    };
    let user = format!("{PASSWORD} .admin");
    let options = [
        ("user_test_tester", user.as_str()),
        ("access_log_headers", "true"),
    ];
    let section = Section::from_pairs("filter:any", &options);
    PIPELINE.iter().rev().fold(proxy, |next, name| {
        build(name, &section, next, &env).unwrap()
    })
}

/// A proxy that lets in whom the pipeline does, and stores nothing.
fn proxy() -> Handler {
    handler_fn(|request: Request| async move {
        let (parts, body) = request.into_parts();
        let context = Context::of(&parts);
        if let Err(denied) = context.authorize(&parts, None).await {
            return denied;
        }
        let _ = body.collect(1 << 20).await;
        let code = if parts.method == Method::PUT {
            201
        } else {
            200
        };
        respond::text(respond::status(code), "done")
    })
}

struct Server {
    address: SocketAddr,
    client: Client,
    metrics: Arc<Metrics>,
    _stop: watch::Sender<bool>,
}

fn start(app: Handler) -> Server {
    let listener = bind("127.0.0.1:0".parse().unwrap(), 16).unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopping) = watch::channel(false);
    let metrics = Metrics::new();
    tokio::spawn(serve(
        tokio::net::TcpListener::from_std(listener).unwrap(),
        app,
        ServeOptions::new("proxy"),
        metrics.clone(),
        stopping,
    ));
    Server {
        address,
        client: Client::new(Duration::from_secs(5), 4, Duration::from_secs(5)),
        metrics,
        _stop: stop,
    }
}

impl Server {
    async fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Response {
        let mut request = http::Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body.to_owned())).unwrap();
        let call = self
            .client
            .call(self.address, request, Duration::from_secs(60));
        call.await.unwrap()
    }

    async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Response {
        self.ask("GET", path, headers, "").await
    }
}

/// Headers for which upstream's parser went back and forth for seconds, each. There is no clock
/// in this test: with such a parser it would not end.
#[tokio::test]
async fn costly_accept_headers() {
    let server = start(pipeline(proxy()));
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

/// Headers by which servers tell each other whom to update: from a client they would send an
/// object server's updates anywhere.
#[tokio::test]
async fn clients_name_no_servers_to_call() {
    let seen = Arc::new(Mutex::new(HeaderMap::new()));
    let into = seen.clone();
    let server = start(pipeline(handler_fn(move |request: Request| {
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

/// An account's name in the answer's header ends neither the text it is in nor the header.
#[tokio::test]
async fn names_stay_in_their_header() {
    let server = start(pipeline(proxy()));
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

/// Tells when it is dropped.
struct Dropped(mpsc::UnboundedSender<()>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

/// A client that leaves in the middle of a download frees what the download held.
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
    let server = start(pipeline(endless));
    let answer = server.get("/v1/AUTH_test/c/o", &[]).await;
    let mut body = answer.into_body();
    assert!(body.next_chunk().await.unwrap().is_ok());
    drop(body);
    drop(server.client);
    dropped.recv().await.unwrap();
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn sign(message: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(URL_KEY.as_bytes()).unwrap();
    mac.update(message.as_bytes());
    let mac = mac.finalize().into_bytes();
    mac.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Everything that is logged, down to the least, with all headers, and the metrics: no password,
/// key, token or signature is in it.
#[tokio::test]
async fn secrets_reach_neither_logs_nor_metrics() {
    let lines = Lines::default();
    let into = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || into.clone())
        .with_ansi(false)
        .with_env_filter("trace")
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let server = start(pipeline(proxy()));

    let login = [("x-auth-user", "test:tester"), ("x-auth-key", PASSWORD)];
    let answer = server.get("/auth/v1.0", &login).await;
    let token = respond::header(answer.headers(), "x-auth-token")
        .unwrap()
        .to_owned();
    let wrong = [
        ("x-storage-user", "test:tester"),
        ("x-storage-pass", "wrong-pass-2"),
    ];
    assert_eq!(server.get("/auth/v1.0", &wrong).await.status(), 401);

    let auth = ("x-auth-token", token.as_str());
    for name in [
        "X-Account-Meta-Temp-URL-Key",
        "X-Account-Meta-Temp-URL-Key-2",
    ] {
        let headers = [auth, (name, "new-url-key-3")];
        let answer = server.ask("POST", "/v1/AUTH_test", &headers, "").await;
        assert_eq!(answer.status(), 200);
    }
    for name in ["X-Container-Meta-Temp-URL-Key", "X-Container-Sync-Key"] {
        let headers = [("x-storage-token", token.as_str()), (name, "new-url-key-3")];
        let answer = server.ask("PUT", "/v1/AUTH_test/c", &headers, "").await;
        assert_eq!(answer.status(), 201);
    }
    let service = [auth, ("x-service-token", token.as_str())];
    assert_eq!(
        server.get("/v1/AUTH_test/c/o", &service).await.status(),
        200
    );

    let until = Clock::system().now().secs() + 100;
    let path = "/v1/AUTH_test/c/o";
    let signature = sign(&format!("GET\n{until}\n{path}"));
    let url = format!("{path}?temp_url_sig={signature}&temp_url_expires={until}");
    let referer = format!("http://store.example{url}");
    let answer = server.get(&url, &[("referer", &referer)]).await;
    assert_eq!(answer.status(), 200);
    let refused = server.get(&url.replace("/o?", "/p?"), &[]).await;
    assert_eq!(refused.status(), 401);

    let form_signature = sign(&format!("/v1/AUTH_test/c/\n\n10\n1\n{until}"));
    let until = until.to_string();
    let fields = [
        ("max_file_size", "10"),
        ("max_file_count", "1"),
        ("expires", &until),
        ("signature", &form_signature),
    ];
    let mut form = fields
        .map(|(name, value)| {
            format!("--B\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
        })
        .concat();
    form.push_str(
        "--B\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f\"\r\n\r\nx\r\n--B--",
    );
    let headers = [("content-type", "multipart/form-data; boundary=B")];
    let answer = server
        .ask("POST", "/v1/AUTH_test/c/", &headers, &form)
        .await;
    assert_eq!(answer.status(), 201);

    let metrics = server.metrics.encode();
    let log = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    assert!(
        log.contains("temp_url_sig") && log.contains("X-Auth-Key"),
        "the log is empty: {log}"
    );
    for (what, secret) in [
        ("the password", PASSWORD),
        ("a wrong password", "wrong-pass-2"),
        ("the account's key", URL_KEY),
        ("a new key", "new-url-key-3"),
        // Its end may be padding, which lines have escaped.
        ("the token", &token[..60]),
        ("the URL's signature", &signature),
        ("the form's signature", &form_signature),
    ] {
        for (place, text) in [("log", &log), ("metrics", &metrics)] {
            let line = text.lines().find(|line| line.contains(secret));
            assert!(line.is_none(), "{what} is in the {place}: {line:?}");
        }
    }
    // The wanted beginning, by which tokens are told apart, and no more.
    assert!(log.contains(&token[..16]) && !log.contains(&token[..17]));
    assert!(log.contains(&signature[..16]) && !log.contains(&signature[..17]));
}
