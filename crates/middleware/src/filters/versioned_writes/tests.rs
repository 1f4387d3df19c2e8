//! Both kinds of versions over an inner handler with a table of responses.

#![allow(clippy::unwrap_used)]

mod containers;
mod legacy;
mod objects;

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_http::context::{Authorize, AuthorizeFuture, Context};
use cairn_http::{ContainerInfo, Handler, Request, Response, respond};
use http::request::Parts;
use http::{Method, StatusCode};

use crate::FilterEnv;
use crate::testing::{OneOfEach, Seen, env, filter_in, recorder, request};

/// Responses of the inner handler: `METHOD path` (without its query), status, headers, body. Paths
/// not in the table are 404 for GET and HEAD, and success for other methods.
type Table = Vec<(String, u16, Vec<(&'static str, String)>, String)>;

fn row(what: &str, status: u16, headers: &[(&'static str, &str)], body: &str) -> Table {
    let headers = headers.iter().map(|(n, v)| (*n, (*v).to_owned())).collect();
    vec![(what.to_owned(), status, headers, body.to_owned())]
}

fn table(rows: impl IntoIterator<Item = Table>) -> Table {
    rows.into_iter().flatten().collect()
}

/// An environment in which every container has this system metadata.
fn env_of(sysmeta: &[(&str, &str)]) -> FilterEnv {
    env_with(ContainerInfo {
        status: 204,
        sysmeta: sysmeta
            .iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
            .collect(),
        ..ContainerInfo::default()
    })
}

fn env_with(container: ContainerInfo) -> FilterEnv {
    FilterEnv {
        info_source: Arc::new(OneOfEach {
            container: Arc::new(container),
            ..OneOfEach::default()
        }),
        ..env()
    }
}

/// A container with versions in `\0versions\0c`, enabled or suspended.
fn versioned(enabled: &str) -> FilterEnv {
    env_of(&[
        ("versions-container", "%00versions%00c"),
        ("versions-enabled", enabled),
    ])
}

fn app(env: &FilterEnv, table: Table) -> (Handler, Seen) {
    let (inner, seen) = recorder(move |parts| answer(parts, &table));
    let links = filter_in(env, "symlink", &[], inner);
    let options = [
        ("allow_versioned_writes", "true"),
        ("allow_object_versioning", "true"),
    ];
    (filter_in(env, "versioned_writes", &options, links), seen)
}

fn answer(parts: &Parts, table: &Table) -> Response {
    let what = format!("{} {}", parts.method, parts.uri.path());
    let Some((_, status, headers, body)) = table.iter().find(|(w, ..)| *w == what) else {
        let reads = parts.method == Method::GET || parts.method == Method::HEAD;
        let status = match parts.method {
            _ if reads => StatusCode::NOT_FOUND,
            Method::PUT => StatusCode::CREATED,
            _ => StatusCode::NO_CONTENT,
        };
        let mut response = respond::standard(status);
        if parts.method == Method::PUT {
            respond::set(response.headers_mut(), "etag", "new-etag");
        }
        return response;
    };
    let mut response = respond::text(respond::status(*status), body.as_str());
    for (name, value) in headers {
        respond::set(response.headers_mut(), name, value);
    }
    response
}

fn calls(seen: &Seen) -> Vec<String> {
    let seen = seen.lock().unwrap();
    seen.iter()
        .map(|(parts, _)| format!("{} {}", parts.method, parts.uri))
        .collect()
}

fn sent(seen: &Seen, at: usize, name: &str) -> Option<String> {
    let seen = seen.lock().unwrap();
    respond::header(&seen[at].0.headers, name).map(str::to_owned)
}

fn context(seen: &Seen, at: usize) -> Context {
    Context::of(&seen.lock().unwrap()[at].0)
}

/// An authorizer that refuses everything.
struct Nobody;

impl Authorize for Nobody {
    fn authorize<'a>(&'a self, _: &'a Parts, _: Option<&'a str>) -> AuthorizeFuture<'a> {
        Box::pin(async { Err(respond::standard(StatusCode::FORBIDDEN)) })
    }
}

fn denied(method: &str, path: &str, headers: &[(&str, &str)]) -> Request {
    let mut request = request(method, path, headers);
    request.extensions_mut().insert(Context {
        authorizer: Some(Arc::new(Nobody)),
        ..Context::default()
    });
    request
}

#[tokio::test]
async fn announced() {
    let env = env();
    app(&env, Vec::new());
    let info = env.swift_info.view(&[], false);
    assert_eq!(
        info["versioned_writes"],
        serde_json::json!({"allowed_flags": ["x-versions-location", "x-history-location"]})
    );
    assert_eq!(info["object_versioning"], serde_json::json!({}));
    let info: BTreeMap<String, serde_json::Value> = {
        let env = crate::testing::env();
        filter_in(&env, "versioned_writes", &[], crate::testing::answers(200));
        serde_json::from_value(env.swift_info.view(&[], false)).unwrap()
    };
    assert!(info.is_empty());
}

#[tokio::test]
async fn needs_symlink() {
    let section = cairn_formats::ini::Section::from_pairs(
        "filter:versioned_writes",
        &[("allow_object_versioning", "true")],
    );
    let made = crate::build(
        "versioned_writes",
        &section,
        crate::testing::answers(200),
        &env(),
    );
    let error = made.map(|_| ()).unwrap_err().to_string();
    assert!(
        error.contains("symlink") && error.contains("allow_object_versioning"),
        "{error}"
    );
}

/// A condition over several requests cannot be decided atomically: none of them is started.
#[tokio::test]
async fn conditions_are_refused_where_versions_are_kept() {
    let stack = env_of(&[("versions-location", "v"), ("versions-mode", "stack")]);
    let history = env_of(&[("versions-location", "v"), ("versions-mode", "history")]);
    for (env, query) in [
        (versioned("True"), ""),
        (versioned("True"), "?version-id=0000000060.00000"),
        (versioned("False"), "?version-id=0000000060.00000"),
        (stack, ""),
        (history, ""),
    ] {
        for (method, name, tags) in [
            ("PUT", "if-match", "*"),
            ("PUT", "if-none-match", "\"a\""),
            ("DELETE", "if-match", "\"a\""),
            ("DELETE", "if-none-match", "*"),
        ] {
            let path = format!("/v1/a/c/o{query}");
            let headers = [(name, tags), ("content-length", "0")];
            let (app, seen) = self::app(&env, Vec::new());
            let response = app.call(request(method, &path, &headers)).await;
            assert_eq!(response.status(), 501, "{method} {path} {name}");
            let response = app.call(denied(method, &path, &headers)).await;
            assert_eq!(response.status(), 403, "{method} {path} {name}");
            assert!(calls(&seen).is_empty(), "{:?}", calls(&seen));
        }
    }
    // A new object replaces none; and while versioning is suspended there is a single object.
    let (app, seen) = self::app(&versioned("True"), Vec::new());
    let headers = [("if-none-match", "*"), ("content-length", "0")];
    let response = app.call(request("PUT", "/v1/a/c/o", &headers)).await;
    assert_eq!(response.status(), 201);
    let conditions = |at| sent(&seen, at, "if-none-match");
    let last = calls(&seen).len() - 1;
    assert_eq!(
        (conditions(last - 1), conditions(last)),
        (None, Some("*".into()))
    );
    let (app, _) = self::app(&versioned("False"), Vec::new());
    let headers = [("if-match", "\"a\""), ("content-length", "0")];
    let response = app.call(request("PUT", "/v1/a/c/o", &headers)).await;
    assert_eq!(response.status(), 201);
}
