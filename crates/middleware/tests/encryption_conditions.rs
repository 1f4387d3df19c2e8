//! Conditional writes of encrypted objects: clients send the ETags that they see, and the servers
//! compare others.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cairn_http::{Body, Handler, Request, Response, handler_fn, respond};
use common::pipeline;
use common::store::Store;
use http::{Method, StatusCode};

const PATH: &str = "/v1/a/c/o";
const OLD: (&str, &str) = (
    "encryption_root_secret",
    "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
);
const NEW: [(&str, &str); 2] = [
    (
        "encryption_root_secret_new",
        "ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8=",
    ),
    ("active_root_secret_id", "new"),
];
const CONDITIONS: [&str; 3] = ["if-match", "if-none-match", "x-backend-etag-is-at"];
/// The ETag of `hello` as clients see it.
const ETAG: &str = "\"5d41402abc4b2a76b9719d911017c592\"";

/// The store behind a handler that evaluates conditions of writes, as of reads.
fn deciding(store: &Store) -> Handler {
    let inner = store.handler();
    handler_fn(move |request: Request| {
        let inner = inner.clone();
        async move {
            let is_write = [Method::PUT, Method::POST, Method::DELETE].contains(request.method());
            if is_write {
                let mut probe = Request::new(Body::empty());
                *probe.method_mut() = Method::HEAD;
                *probe.uri_mut() = request.uri().clone();
                for name in CONDITIONS {
                    if let Some(value) = request.headers().get(name) {
                        probe.headers_mut().insert(name, value.clone());
                    }
                }
                let status = inner.call(probe).await.status();
                if [StatusCode::PRECONDITION_FAILED, StatusCode::NOT_MODIFIED].contains(&status) {
                    return respond::standard(StatusCode::PRECONDITION_FAILED);
                }
            }
            match *request.method() == Method::DELETE {
                true => respond::empty(StatusCode::NO_CONTENT),
                false => inner.call(request).await,
            }
        }
    })
}

async fn ask(
    app: &Handler,
    method: &str,
    headers: &[(&str, &str)],
    body: &'static str,
) -> Response {
    let mut request = Request::new(Body::full(body));
    *request.method_mut() = method.parse().unwrap();
    *request.uri_mut() = PATH.parse().unwrap();
    respond::set(
        request.headers_mut(),
        "content-length",
        body.len().to_string(),
    );
    for (name, value) in headers {
        respond::set(request.headers_mut(), name, value);
    }
    app.call(request).await
}

#[tokio::test]
async fn clients_give_the_etags_that_they_see() {
    let is_off = ("disable_encryption", "true");
    for is_sealed in ["true", "false"] {
        for later in [vec![], NEW.to_vec(), vec![is_off]] {
            let store = Store::default();
            let decides = deciding(&store);
            let make = |more: &[(&str, &str)]| {
                let options = [&[OLD, ("authenticated", is_sealed)], more].concat();
                pipeline(&["keymaster", "encryption"], &options, decides.clone())
            };
            let written = ask(&make(&[]), "PUT", &[], "hello").await;
            assert_eq!(written.status(), 201);
            let app = make(&later);
            let other = "\"5d41402abc4b2a76b9719d911017c593\"";
            for (name, tag, holds) in [
                ("if-match", other, false),
                ("if-none-match", ETAG, false),
                ("if-none-match", "*", false),
                ("if-match", ETAG, true),
                ("if-match", "*", true),
                ("if-none-match", other, true),
            ] {
                for method in ["DELETE", "POST", "PUT"] {
                    let status = ask(&app, method, &[(name, tag)], "hello").await.status();
                    let is_done = status.is_success();
                    let case = format!("{is_sealed} {later:?} {method} {name}: {tag}");
                    assert_eq!(is_done, holds, "{case}: {status}");
                    assert!(is_done || status == 412, "{case}: {status}");
                }
            }
        }
    }
}
