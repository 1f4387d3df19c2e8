//! Copies over an inner handler that has every source object.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::testing::{Seen, answers, filter, header, recorder, request, text};
use cairn_http::handler_fn;

/// A handler that responds to GET with `hello` and the given headers and status, and to PUT with
/// 201.
fn store(status: u16, headers: &'static [(&'static str, &'static str)]) -> (Handler, Seen) {
    let (inner, seen) = recorder(move |parts| {
        if parts.method != Method::GET {
            let mut response = respond::empty(StatusCode::CREATED);
            respond::set(response.headers_mut(), "etag", "put-etag");
            return response;
        }
        let mut response = respond::text(respond::status(status), "hello");
        for (name, value) in headers {
            respond::set(response.headers_mut(), name, value);
        }
        response
    });
    (filter("copy", &[], inner), seen)
}

fn sent<'s>(parts: &'s Parts, name: &str) -> Option<&'s str> {
    respond::header(&parts.headers, name)
}

#[tokio::test]
async fn a_put_with_copy_from() {
    let (app, seen) = store(
        200,
        &[
            ("etag", "\"e\""),
            ("content-type", "text/html"),
            ("last-modified", "Thu, 01 Jan 1970 00:00:00 GMT"),
            ("x-object-meta-a", "source"),
            ("x-object-meta-b", "source"),
            ("x-object-sysmeta-s", "sys"),
            ("x-delete-at", "9"),
            ("x-timestamp", "5"),
            ("x-backend-timestamp", "5"),
            ("content-encoding", "gzip"),
        ],
    );
    let headers = [
        ("x-copy-from", "c%20d/o/p"),
        ("content-length", "0"),
        ("x-object-meta-b", "new"),
        ("x-auth-token", "t"),
    ];
    let response = app.call(request("PUT", "/v1/a/c/o?x=y", &headers)).await;
    assert_eq!(response.status(), 201);
    for (name, value) in [
        ("x-copied-from-account", "a"),
        ("x-copied-from", "c%20d/o/p"),
        (
            "x-copied-from-last-modified",
            "Thu, 01 Jan 1970 00:00:00 GMT",
        ),
        ("x-object-meta-a", "source"),
        ("x-object-meta-b", "new"),
        ("x-delete-at", "9"),
        ("etag", "put-etag"),
    ] {
        assert_eq!(header(&response, name).as_deref(), Some(value), "{name}");
    }
    let seen = seen.lock().unwrap();
    let (get, put) = (&seen[0].0, &seen[1].0);
    assert_eq!(
        (get.method.as_str(), get.uri.to_string()),
        ("GET", "/v1/a/c%20d/o/p?x=y".into())
    );
    assert_eq!(
        (sent(get, "x-newest"), sent(get, "x-auth-token")),
        (Some("true"), Some("t"))
    );
    assert_eq!(Context::of(get).source, Some("SSC"));
    assert_eq!(
        (put.method.as_str(), put.uri.to_string()),
        ("PUT", "/v1/a/c/o?x=y".into())
    );
    assert_eq!(seen[1].1, "hello");
    for (name, value) in [
        ("etag", Some("e")),
        ("content-length", Some("5")),
        ("content-type", Some("text/html")),
        ("content-encoding", Some("gzip")),
        ("x-object-meta-a", Some("source")),
        ("x-object-meta-b", Some("new")),
        ("x-object-sysmeta-s", Some("sys")),
        ("x-delete-at", Some("9")),
        ("x-copy-from", None),
        ("x-timestamp", None),
        ("x-backend-timestamp", None),
        ("last-modified", None),
    ] {
        assert_eq!(sent(put, name), value, "{name}");
    }
}

#[tokio::test]
async fn a_copy_with_destination() {
    let (app, seen) = store(200, &[("etag", "e")]);
    for (destination, account, path) in [
        ("c/o", None, "/v1/a/c/o"),
        ("/c/o/p%20q", None, "/v1/a/c/o/p%20q"),
        ("c/o", Some("b%20b"), "/v1/b%20b/c/o"),
    ] {
        seen.lock().unwrap().clear();
        let mut headers = vec![("destination", destination)];
        headers.extend(account.map(|a| ("destination-account", a)));
        let response = app.call(request("COPY", "/v1/a/sc/so", &headers)).await;
        assert_eq!(response.status(), 201);
        assert_eq!(header(&response, "x-copied-from").unwrap(), "sc/so");
        assert_eq!(header(&response, "x-copied-from-account").unwrap(), "a");
        let seen = seen.lock().unwrap();
        assert_eq!(seen[0].0.uri.path(), "/v1/a/sc/so");
        assert_eq!(seen[1].0.uri.path(), path);
        assert_eq!(
            Context::of(&seen[1].0).original_path.as_deref(),
            Some("/v1/a/sc/so")
        );
        for name in ["destination", "destination-account", "x-copy-from-account"] {
            assert_eq!(sent(&seen[1].0, name), None);
        }
    }
}

#[tokio::test]
async fn a_put_from_another_account() {
    let (app, seen) = store(200, &[]);
    let headers = [("x-copy-from", "/c/o"), ("x-copy-from-account", "other")];
    let response = app.call(request("PUT", "/v1/a/c/o", &headers)).await;
    assert_eq!(header(&response, "x-copied-from-account").unwrap(), "other");
    assert_eq!(seen.lock().unwrap()[0].0.uri.path(), "/v1/other/c/o");
}

#[tokio::test]
async fn refusals() {
    let (app, seen) = store(200, &[]);
    for (method, headers, status, body) in [
        ("COPY", vec![], 412, "Destination header required"),
        (
            "COPY",
            vec![("destination", "c")],
            412,
            "Destination header must be of the form <container name>/<object name>",
        ),
        (
            "COPY",
            vec![("destination", "c/o"), ("destination-account", "a/b")],
            412,
            "Account name cannot contain slashes",
        ),
        (
            "COPY",
            vec![("destination", "c/o"), ("destination-account", "")],
            412,
            "Account name cannot be empty",
        ),
        (
            "PUT",
            vec![("x-copy-from", "c")],
            412,
            "X-Copy-From header must be of the form <container name>/<object name>",
        ),
        ("PUT", vec![("x-copy-from", "c//")], 201, ""),
        (
            "PUT",
            vec![("x-copy-from", "//o")],
            412,
            "X-Copy-From header must be of the form <container name>/<object name>",
        ),
        (
            "PUT",
            vec![("x-copy-from", "c/o"), ("content-length", "5")],
            400,
            "Copy requests require a zero byte body",
        ),
    ] {
        let response = app.call(request(method, "/v1/a/c/o", &headers)).await;
        assert_eq!(response.status().as_u16(), status, "{headers:?}");
        assert_eq!(text(response).await, body);
    }
    assert_eq!(seen.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn a_failing_source_is_the_answer() {
    let (app, seen) = store(404, &[]);
    let response = app
        .call(request("PUT", "/v1/a/c/o", &[("x-copy-from", "c/o")]))
        .await;
    assert_eq!(
        (response.status().as_u16(), seen.lock().unwrap().len()),
        (404, 1)
    );
    for length in [None, Some("5368709123")] {
        let inner = handler_fn(move |_| async move {
            let mut response = Response::new(Body::channel(None, 1).1);
            if let Some(length) = length {
                respond::set(response.headers_mut(), "content-length", length);
            }
            response
        });
        let app = filter("copy", &[], inner);
        let response = app
            .call(request("PUT", "/v1/a/c/o", &[("x-copy-from", "c/o")]))
            .await;
        assert_eq!(response.status(), 413);
    }
}

#[tokio::test]
async fn fresh_metadata_keeps_sysmeta_alone() {
    let (app, seen) = store(
        200,
        &[
            ("x-object-meta-a", "1"),
            ("x-object-sysmeta-s", "1"),
            ("content-type", "a/b"),
        ],
    );
    let headers = [
        ("x-copy-from", "c/o"),
        ("x-fresh-metadata", "true"),
        ("x-object-meta-c", "2"),
    ];
    app.call(request("PUT", "/v1/a/c/o", &headers)).await;
    let seen = seen.lock().unwrap();
    assert_eq!(sent(&seen[1].0, "x-object-meta-a"), None);
    assert_eq!(sent(&seen[1].0, "x-object-meta-c"), Some("2"));
    assert_eq!(sent(&seen[1].0, "x-object-sysmeta-s"), Some("1"));
    assert_eq!(sent(&seen[1].0, "content-type"), Some("a/b"));
}

#[tokio::test]
async fn ranges_and_large_objects_are_not_verified() {
    const OVERRIDE: &str = "x-object-sysmeta-container-update-override-etag";
    for (status, manifest, kept) in [
        (206, None, false),
        (200, Some(("x-static-large-object", "True")), false),
        (200, Some(("x-object-manifest", "c/p")), false),
        (200, None, true),
    ] {
        let (inner, seen) = recorder(move |parts| {
            if parts.method != Method::GET {
                return respond::empty(StatusCode::CREATED);
            }
            let mut response = respond::text(respond::status(status), "hell");
            respond::set(response.headers_mut(), "etag", "e");
            respond::set(response.headers_mut(), OVERRIDE, "o");
            if let Some((name, value)) = manifest {
                respond::set(response.headers_mut(), name, value);
            }
            response
        });
        let app = filter("copy", &[], inner);
        let headers = [("x-copy-from", "c/o"), ("range", "bytes=0-3")];
        app.call(request("PUT", "/v1/a/c/o", &headers)).await;
        let seen = seen.lock().unwrap();
        assert_eq!(sent(&seen[0].0, "range"), Some("bytes=0-3"));
        assert_eq!(sent(&seen[1].0, "etag").is_some(), kept);
        assert_eq!(sent(&seen[1].0, OVERRIDE).is_some(), kept);
        assert_eq!(sent(&seen[1].0, "x-object-manifest"), None);
        assert_eq!(sent(&seen[1].0, "x-static-large-object"), None);
    }
}

#[tokio::test]
async fn manifests_are_copied_on_demand() {
    let path = "/v1/a/c/o?multipart-manifest=get&version-id=7";
    let (app, seen) = store(200, &[("x-static-large-object", "True"), ("etag", "e")]);
    app.call(request("PUT", path, &[("x-copy-from", "c/o")]))
        .await;
    {
        let seen = seen.lock().unwrap();
        assert_eq!(
            seen[0].0.uri.query(),
            Some("multipart-manifest=get&version-id=7&format=raw")
        );
        assert_eq!(seen[1].0.uri.query(), Some("multipart-manifest=put"));
        assert_eq!(sent(&seen[1].0, "etag"), None);
    }
    let (app, seen) = store(200, &[("x-object-manifest", "c/p"), ("etag", "e")]);
    app.call(request("PUT", path, &[("x-copy-from", "c/o")]))
        .await;
    let seen = seen.lock().unwrap();
    assert_eq!(seen[1].0.uri.query(), None);
    assert_eq!(sent(&seen[1].0, "x-object-manifest"), Some("c/p"));
    assert_eq!(sent(&seen[1].0, "etag"), Some("e"));
}

#[tokio::test]
async fn content_type_of_the_request_wins() {
    let (app, seen) = store(200, &[("content-type", "a/b")]);
    let headers = [("x-copy-from", "c/o"), ("content-type", "c/d")];
    app.call(request("PUT", "/v1/a/c/o", &headers)).await;
    assert_eq!(
        sent(&seen.lock().unwrap()[1].0, "content-type"),
        Some("c/d")
    );
}

#[tokio::test(start_paused = true)]
async fn heartbeats() {
    let inner = |code: u16| {
        handler_fn(move |request: Request| async move {
            if request.method() == Method::GET {
                return respond::text(StatusCode::OK, "hello");
            }
            tokio::time::sleep(Duration::from_secs(25)).await;
            let mut response = respond::text(respond::status(code), "said");
            respond::set(response.headers_mut(), "x-object-sysmeta-hidden", "1");
            response
        })
    };
    let headers = [("x-copy-from", "c/o"), ("accept", "application/json")];
    let app = filter("copy", &[], inner(201));
    let response = app
        .call(request("PUT", "/v1/a/c/o?heartbeat=on", &headers))
        .await;
    assert_eq!(response.status(), 202);
    assert_eq!(
        header(&response, "content-type").unwrap(),
        "application/json"
    );
    let body = text(response).await;
    assert!(body.starts_with("   {"), "{body}");
    let report: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(report["Response Status"], "201 Created");
    assert_eq!(report["Response Body"], "said");
    assert_eq!(report["X-Copied-From"], "c/o");
    assert_eq!(report["Errors"], serde_json::json!([]));
    assert!(!body.contains("Hidden"));

    let app = filter("copy", &[("yield_frequency", "1")], inner(507));
    let response = app
        .call(request(
            "PUT",
            "/v1/a/c/o?heartbeat=on",
            &[("x-copy-from", "c/o")],
        ))
        .await;
    let body = text(response).await;
    assert_eq!(body.len() - body.trim_start().len(), 25);
    assert!(
        body.contains("Response Status: 507 Insufficient Storage\n"),
        "{body}"
    );
    assert!(
        body.ends_with("Errors:\nc/o, 507 Insufficient Storage\n"),
        "{body}"
    );
}

#[tokio::test]
async fn options_tell_of_copy() {
    let (inner, _) = recorder(|_| {
        let mut response = respond::empty(StatusCode::OK);
        respond::set(response.headers_mut(), "allow", "GET, PUT");
        respond::set(
            response.headers_mut(),
            "access-control-allow-methods",
            "GET, COPY",
        );
        response
    });
    let app = filter("copy", &[], inner);
    let response = app.call(request("OPTIONS", "/v1/a/c/o", &[])).await;
    assert_eq!(header(&response, "allow").unwrap(), "GET, PUT, COPY");
    assert_eq!(
        header(&response, "access-control-allow-methods").unwrap(),
        "GET, COPY"
    );
    let response = app.call(request("OPTIONS", "/v1/a/c", &[])).await;
    assert_eq!(header(&response, "allow").unwrap(), "GET, PUT");
}

#[tokio::test]
async fn others_pass() {
    let app = filter("copy", &[], answers(202));
    for (method, path, headers) in [
        ("COPY", "/v1/a/c", vec![]),
        ("PUT", "/v1/a/c/o", vec![]),
        ("PUT", "/v1/a/c", vec![("x-copy-from", "c/o")]),
        ("GET", "/v1/a/c/o", vec![("x-copy-from", "c/o")]),
    ] {
        let response = app.call(request(method, path, &headers)).await;
        assert_eq!(response.status(), 202);
    }
}

/// Metadata that makes a symlink trusted is not copied, with or without the source's other
/// metadata.
#[tokio::test]
async fn trust_is_not_copied() {
    const MARKS: [&str; 3] = [
        "x-object-sysmeta-allow-reserved-names",
        "x-object-sysmeta-symloop-extend",
        "x-object-sysmeta-versions-symlink",
    ];
    let (app, seen) = store(
        200,
        &[
            ("etag", "e"),
            (MARKS[0], "true"),
            (MARKS[1], "true"),
            (MARKS[2], "true"),
            ("x-object-sysmeta-s", "sys"),
        ],
    );
    for fresh in ["true", "false"] {
        for (method, name) in [("COPY", "destination"), ("PUT", "x-copy-from")] {
            seen.lock().unwrap().clear();
            let headers = [
                (name, "d/o"),
                ("content-length", "0"),
                ("x-fresh-metadata", fresh),
            ];
            let response = app.call(request(method, "/v1/a/c/o", &headers)).await;
            assert_eq!(response.status(), 201);
            let seen = seen.lock().unwrap();
            let put = &seen[1].0;
            assert_eq!(sent(put, "x-object-sysmeta-s"), Some("sys"));
            for mark in MARKS {
                assert_eq!(sent(put, mark), None, "{method} {mark}");
                assert_eq!(header(&response, mark), None);
            }
        }
    }
}
