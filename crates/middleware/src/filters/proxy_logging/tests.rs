//! Lines as they are written, attributed to tests by their threads.

#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::io::Write;
use std::sync::{Mutex, Once};
use std::time::Duration;

use bytes::Bytes;
use cairn_http::context::Context;
use cairn_http::{Body, BodyError, Handler, Response, handler_fn, respond};
use http::StatusCode;

use crate::testing::{env, filter, filter_in, recorder, request};

thread_local! {
    /// Log output of this thread's test so far.
    static WRITTEN: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// One subscriber for all tests: whether a target is enabled is decided for all threads together,
/// so a subscriber of one thread may miss lines. The thread identifies the test.
static SUBSCRIBER: Once = Once::new();

struct OwnThread;

impl Write for OwnThread {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        WRITTEN.with_borrow_mut(|written| written.extend_from_slice(bytes));
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

struct Lines;

impl Lines {
    fn catch() -> Lines {
        SUBSCRIBER.call_once(|| {
            tracing_subscriber::fmt()
                .with_writer(|| OwnThread)
                .with_ansi(false)
                .with_env_filter("access=info")
                .without_time()
                .with_level(false)
                .with_target(false)
                .init();
        });
        WRITTEN.take();
        Lines
    }

    #[allow(clippy::unused_self)]
    fn take(&self) -> Vec<String> {
        let bytes = WRITTEN.take();
        String::from_utf8(bytes)
            .unwrap()
            .lines()
            .map(|l| l.trim().to_owned())
            .collect()
    }
}

fn logging(template: &str, next: Handler) -> Handler {
    filter("proxy_logging", &[("log_msg_template", template)], next)
}

fn streamed(parts: Vec<Result<Bytes, BodyError>>) -> Handler {
    let parts = Mutex::new(Some(parts));
    handler_fn(move |_| {
        let parts = parts.lock().unwrap().take().unwrap();
        async move { Response::new(Body::from_stream(futures_util::stream::iter(parts), None)) }
    })
}

#[tokio::test]
async fn the_default_line() {
    let lines = Lines::catch();
    let environment = env();
    let clock = environment.clock.clone();
    let next = handler_fn(move |request| {
        let clock = clock.clone();
        async move {
            Context::of_request(&request).notes.set_user("test:tester");
            request.into_body().collect(100).await.unwrap();
            clock.advance(Duration::from_millis(250));
            let mut response = respond::text(StatusCode::CREATED, "made");
            respond::set(
                response.headers_mut(),
                "x-backend-storage-policy-index",
                "1",
            );
            response
        }
    });
    let app = filter_in(&environment, "proxy_logging", &[], next);
    let headers = [
        ("x-auth-token", "AUTH_tk0123456789abcdef"),
        ("user-agent", "curl/8 x"),
        ("etag", "e"),
        ("referer", "http://r"),
    ];
    let mut asked = request(
        "PUT",
        "/v1/a/c/o%20o?temp_url_sig=0123456789abcdefghi&x=y",
        &headers,
    );
    let mut context = Context::new("tx1");
    context.remote = Some("10.0.0.1:99".parse().unwrap());
    context.notes.add("one");
    context.notes.add("two");
    asked.extensions_mut().insert(context);
    *asked.body_mut() = Body::full("hello");
    app.call(asked).await;
    assert_eq!(
        lines.take(),
        ["10.0.0.1 10.0.0.1 14/Nov/2023/22/13/20 PUT \
          /v1/a/c/o%2520o%3Ftemp_url_sig%3D0123456789abcdef...%26x%3Dy HTTP/1.1 201 http://r \
          curl/8%20x AUTH_tk012345678... 5 4 e tx1 - 0.2500 - one%2Ctwo 1700000000.000000000 \
          1700000000.250000000 1 test:tester"]
    );
}

#[tokio::test]
async fn status_and_bytes_tell_how_the_body_ended() {
    let lines = Lines::catch();
    let template = "{status_int} {wire_status_int} {bytes_sent}";
    let two = || vec![Ok(Bytes::from_static(b"ab")), Ok(Bytes::from_static(b"c"))];

    let app = logging(template, streamed(two()));
    let response = app.call(request("GET", "/v1/a/c/o", &[])).await;
    assert!(lines.take().is_empty(), "not before the body has gone");
    response.into_body().collect(10).await.unwrap();
    assert_eq!(lines.take(), ["200 200 3"]);

    let app = logging(template, streamed(two()));
    let mut body = app.call(request("GET", "/v1/a/c/o", &[])).await.into_body();
    body.next_chunk().await.unwrap().unwrap();
    drop(body);
    assert_eq!(lines.take(), ["499 200 2"]);

    let broken = vec![Ok(Bytes::from_static(b"ab")), Err(BodyError::Disconnected)];
    let app = logging(template, streamed(broken));
    let body = app.call(request("GET", "/v1/a/c/o", &[])).await.into_body();
    assert!(body.collect(10).await.is_err());
    assert_eq!(lines.take(), ["500 200 2"]);

    let app = logging(template, handler_fn(|_| std::future::pending()));
    drop(tokio::time::timeout(Duration::ZERO, app.call(request("GET", "/", &[]))).await);
    assert_eq!(lines.take(), ["499 499 -"]);
}

#[tokio::test]
async fn an_upload_broken_off_is_499() {
    let lines = Lines::catch();
    let next = handler_fn(|request| async move {
        assert!(request.into_body().collect(100).await.is_err());
        respond::standard(StatusCode::REQUEST_TIMEOUT)
    });
    let app = logging("{status_int} {wire_status_int} {bytes_recvd}", next);
    let (sender, body) = Body::channel(Some(10), 2);
    sender.send(Bytes::from_static(b"abc")).await;
    drop(sender);
    let mut asked = request("PUT", "/v1/a/c/o", &[]);
    *asked.body_mut() = body;
    app.call(asked).await;
    assert_eq!(lines.take(), ["499 408 3"]);
}

#[tokio::test]
async fn the_inner_one_logs_subrequests_alone() {
    let lines = Lines::catch();
    let template = "{path} {source}";
    let (last, _) = recorder(|_| respond::empty(StatusCode::OK));
    let inner = logging(template, last);
    let middle = handler_fn(move |asked| {
        let inner = inner.clone();
        async move {
            let mut sub = request("GET", "/v1/a/c/sub", &[]);
            let context = Context::of_request(&asked);
            sub.extensions_mut().insert(context.subrequest("SSC"));
            inner.call(sub).await;
            inner.call(asked).await
        }
    });
    let app = logging(template, middle);
    app.call(request("GET", "/v1/a/c/o", &[])).await;
    assert_eq!(lines.take(), ["/v1/a/c/sub SSC", "/v1/a/c/o -"]);
}

#[tokio::test]
async fn headers_are_logged_on_demand_and_redacted() {
    let lines = Lines::catch();
    let headers = [
        ("x-auth-token", "secret-token"),
        ("x-auth-key", "secret-key"),
        ("x-object-meta-a", "1"),
    ];
    for (only, line) in [
        ("", "X-Auth-Token: se...|X-Auth-Key: ...|X-Object-Meta-A: 1"),
        ("X-Object-Meta-A", "X-Object-Meta-A: 1"),
    ] {
        let (last, _) = recorder(|_| respond::empty(StatusCode::OK));
        let options = [
            ("log_msg_template", "{headers}"),
            ("access_log_headers", "yes"),
            ("access_log_headers_only", only),
            ("reveal_sensitive_prefix", "2"),
        ];
        filter("proxy_logging", &options, last)
            .call(request("GET", "/", &headers))
            .await;
        let quoted = line.replace(' ', "%20").replace('|', "%0A");
        assert_eq!(lines.take(), [quoted]);
    }
}

#[tokio::test]
async fn referers_of_signed_pages_are_cut() {
    let lines = Lines::catch();
    let (last, _) = recorder(|_| respond::empty(StatusCode::OK));
    let options = [
        ("log_msg_template", "{referer}"),
        ("reveal_sensitive_prefix", "2"),
    ];
    let app = filter("proxy_logging", &options, last);
    for (referer, line) in [
        ("http://a/b", "http://a/b"),
        (
            "http://a/b?temp_url_sig=0123&temp_url_expires=1",
            "http://a/b?temp_url_sig=01...&temp_url_expires=1",
        ),
    ] {
        app.call(request("GET", "/", &[("referer", referer)])).await;
        let quoted = line.replace('?', "%3F").replace('=', "%3D");
        let quoted = quoted.replace('&', "%26");
        assert_eq!(lines.take(), [quoted]);
    }
}

#[tokio::test]
async fn who_asked() {
    let lines = Lines::catch();
    for (headers, line) in [
        (vec![("x-forwarded-for", "1.1.1.1, 2.2.2.2")], "1.1.1.1 -"),
        (
            vec![
                ("x-cluster-client-ip", "3.3.3.3"),
                ("x-forwarded-for", "1.1.1.1"),
            ],
            "3.3.3.3 -",
        ),
        (vec![("host", "store.example:8080")], "- store.example"),
    ] {
        let (last, _) = recorder(|_| respond::empty(StatusCode::OK));
        logging("{client_ip} {domain}", last)
            .call(request("GET", "/", &headers))
            .await;
        assert_eq!(lines.take(), [line]);
    }
}

#[tokio::test]
async fn account_container_object() {
    let lines = Lines::catch();
    for (path, line) in [
        ("/v1/a/c/o/p", "a c o/p"),
        ("/v1/a%20b", "a%20b - -"),
        ("/v9/a/c/o", "- - -"),
        ("/info", "- - -"),
    ] {
        let (last, _) = recorder(|_| respond::empty(StatusCode::OK));
        logging("{account} {container} {object}", last)
            .call(request("GET", path, &[]))
            .await;
        assert_eq!(lines.take(), [line]);
    }
}
