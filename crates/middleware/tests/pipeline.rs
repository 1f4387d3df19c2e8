//! The filters in the order of a proxy's pipeline, over a socket, around a fake proxy.

#![allow(clippy::expect_used, clippy::unwrap_used)]

mod common;

use cairn_http::{Context, Request, Response, handler_fn, respond};
use http::{Method, StatusCode};

use common::start;

const PIPELINE: [&str; 9] = [
    "catch_errors",
    "gatekeeper",
    "healthcheck",
    "proxy_logging",
    "memcache",
    "listing_formats",
    "tempauth",
    "copy",
    "proxy_logging",
];

/// A fake proxy that calls the authorizer; then lists, stores, or returns data.
async fn proxy(request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let authorizer = Context::of(&parts).authorizer.expect("tempauth sets it");
    if let Err(denied) = authorizer.authorize(&parts, Some("other:reader")).await {
        return denied;
    }
    let is_object = parts.uri.path().matches('/').count() > 3;
    let is_json = parts.uri.query().is_some_and(|q| q.contains("format=json"));
    match parts.method {
        Method::GET if is_object => respond::text(StatusCode::OK, "the object"),
        Method::GET if is_json && parts.uri.path().ends_with("/empty") => {
            respond::typed(StatusCode::OK, "application/json", "[]")
        }
        Method::GET if is_json => {
            respond::typed(StatusCode::OK, "application/json", r#"[{"name":"one"}]"#)
        }
        Method::PUT => {
            let body = body.collect(100).await.unwrap();
            let mut response = respond::empty(StatusCode::CREATED);
            respond::set(response.headers_mut(), "x-length", body.len().to_string());
            respond::set(response.headers_mut(), "x-object-sysmeta-secret", "1");
            response
        }
        Method::POST => panic!("on purpose"),
        _ => respond::standard(StatusCode::NOT_FOUND),
    }
}

fn header<'r>(response: &'r Response, name: &str) -> &'r str {
    respond::header(response.headers(), name).unwrap_or("")
}

async fn text(response: Response) -> String {
    String::from_utf8(response.into_body().collect(10_000).await.unwrap().to_vec()).unwrap()
}

#[tokio::test]
async fn a_client_meets_them_all() {
    let users = [("user_test_tester", "testing .admin")];
    let store = start(common::pipeline(&PIPELINE, &users, handler_fn(proxy)));

    let response = store.ask("GET", "/healthcheck", &[], "").await;
    assert_eq!(header(&response, "x-trans-id").len(), 34);
    assert_eq!(text(response).await, "OK");

    let response = store.ask("GET", "/v1/AUTH_test", &[], "").await;
    assert_eq!(response.status(), 401);
    assert_eq!(
        header(&response, "www-authenticate"),
        "Swift realm=\"AUTH_test\""
    );

    let login = [("x-auth-user", "test:tester"), ("x-auth-key", "testing")];
    let response = store.ask("GET", "/auth/v1.0", &login, "").await;
    assert!(header(&response, "x-storage-url").ends_with("/v1/AUTH_test"));
    let token = header(&response, "x-auth-token").to_owned();
    let auth = ("x-auth-token", token.as_str());

    let response = store.ask("GET", "/v1/AUTH_test/c", &[auth], "").await;
    assert_eq!(
        header(&response, "content-type"),
        "text/plain; charset=utf-8"
    );
    assert_eq!(text(response).await, "one\n");
    let response = store.ask("GET", "/v1/AUTH_test/empty", &[auth], "").await;
    assert_eq!(response.status(), 204);
    assert_eq!(text(response).await, "");
    let response = store
        .ask("GET", "/v1/AUTH_test/c?format=json", &[auth], "")
        .await;
    assert_eq!(text(response).await, r#"[{"name":"one"}]"#);

    let headers = [auth, ("destination", "c2/copied")];
    let response = store.ask("COPY", "/v1/AUTH_test/c/o", &headers, "").await;
    assert_eq!(response.status(), 201);
    assert_eq!(header(&response, "x-copied-from"), "c/o");
    assert_eq!(header(&response, "x-length"), "10");
    assert_eq!(header(&response, "x-object-sysmeta-secret"), "");

    let response = store.ask("POST", "/v1/AUTH_test/c/o", &[auth], "").await;
    assert_eq!(response.status(), 500);
    assert_eq!(header(&response, "x-trans-id").len(), 34);
    let response = store.ask("GET", "/v1/AUTH_other/c/o", &[auth], "").await;
    assert_eq!(response.status(), 403);

    store.stop().await;
}
