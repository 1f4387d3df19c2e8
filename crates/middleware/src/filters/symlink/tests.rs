//! Symlinks over an inner handler with a few objects.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::testing::{Seen, env, filter, filter_in, header, recorder, request, text};

const STORED: &str = "x-object-sysmeta-symlink-target";
const STATIC: &str = "x-object-sysmeta-symlink-target-etag";
const EXTEND: &str = "x-object-sysmeta-symloop-extend";
const RESERVED: &str = "x-object-sysmeta-allow-reserved-names";
const LATEST: &str = "x-object-sysmeta-versions-symlink";
const OTHER_ACCOUNT: &str = "x-object-sysmeta-symlink-target-account";
const EMPTY: &str = "d41d8cd98f00b204e9800998ecf8427e";

type Objects = &'static [(&'static str, u16, &'static [(&'static str, &'static str)])];

/// A handler with objects by path; others are 404, and a PUT is 201.
fn store(objects: Objects) -> (Handler, Seen) {
    let (inner, seen) = recorder(move |parts| {
        if parts.method == Method::PUT {
            return respond::empty(StatusCode::CREATED);
        }
        let found = objects
            .iter()
            .find(|(path, _, _)| parts.uri.path() == *path);
        let Some((_, status, headers)) = found else {
            return respond::standard(StatusCode::NOT_FOUND);
        };
        let mut response = respond::text(respond::status(*status), "data");
        for (name, value) in *headers {
            respond::set(response.headers_mut(), name, value);
        }
        response
    });
    (filter("symlink", &[], inner), seen)
}

fn sent(seen: &Seen, at: usize, name: &str) -> Option<String> {
    let seen = seen.lock().unwrap();
    respond::header(&seen[at].0.headers, name).map(str::to_owned)
}

fn paths(seen: &Seen) -> Vec<String> {
    let seen = seen.lock().unwrap();
    seen.iter()
        .map(|(parts, _)| format!("{} {}", parts.method, parts.uri))
        .collect()
}

#[tokio::test]
async fn announced() {
    let env = env();
    filter_in(
        &env,
        "symlink",
        &[("symloop_max", "0")],
        crate::testing::answers(200),
    );
    let info = env.swift_info.view(&[], false);
    assert_eq!(
        info["symlink"],
        json!({"symloop_max": 2, "static_links": true})
    );
}

#[tokio::test]
async fn reads_are_of_the_target() {
    let (app, seen) = store(&[
        (
            "/v1/a/c/l",
            200,
            &[(STORED, "d%20e/o%2Fp"), ("x-object-meta-of", "link")],
        ),
        ("/v1/a/d%20e/o%2Fp", 200, &[("x-object-meta-of", "target")]),
    ]);
    let headers = [
        ("range", "bytes=1-2"),
        ("x-auth-token", "t"),
        ("x-backend-storage-policy-index", "1"),
    ];
    let response = app.call(request("GET", "/v1/a/c/l?x=y", &headers)).await;
    assert_eq!(header(&response, "x-object-meta-of").unwrap(), "target");
    assert_eq!(
        header(&response, "content-location").unwrap(),
        "/v1/a/d%20e/o%2Fp"
    );
    assert_eq!(
        paths(&seen),
        ["GET /v1/a/c/l?x=y", "GET /v1/a/d%20e/o%2Fp?x=y"]
    );
    assert_eq!(sent(&seen, 1, "range").unwrap(), "bytes=1-2");
    assert_eq!(sent(&seen, 1, "x-auth-token").unwrap(), "t");
    assert_eq!(sent(&seen, 1, "x-backend-storage-policy-index"), None);
    assert_eq!(
        sent(&seen, 0, "x-backend-ignore-range-if-metadata-present").unwrap(),
        STORED
    );
    assert_eq!(Context::of(&seen.lock().unwrap()[1].0).source, Some("SYM"));
}

#[tokio::test]
async fn reads_of_the_link_itself() {
    let (app, seen) = store(&[(
        "/v1/a/c/l",
        200,
        &[
            (STORED, "c/o"),
            ("x-object-sysmeta-symlink-target-account", "b"),
            (STATIC, "e"),
            ("x-object-sysmeta-symlink-target-bytes", "4"),
        ],
    )]);
    let response = app
        .call(request("HEAD", "/v1/a/c/l?symlink=get", &[]))
        .await;
    for (name, value) in [
        ("x-symlink-target", "c/o"),
        ("x-symlink-target-account", "b"),
        ("x-symlink-target-etag", "e"),
        ("x-symlink-target-bytes", "4"),
    ] {
        assert_eq!(header(&response, name).as_deref(), Some(value), "{name}");
    }
    assert_eq!(header(&response, STORED), None);
    assert_eq!(seen.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn missing_and_conditional_targets() {
    let (app, _) = store(&[
        ("/v1/a/c/l", 200, &[(STORED, "c/none")]),
        // A condition that the link itself does not meet is evaluated for the target.
        ("/v1/a/c/m", 412, &[(STORED, "c/o")]),
        ("/v1/a/c/n", 416, &[(STORED, "c/o")]),
        ("/v1/a/c/o", 206, &[]),
    ]);
    let response = app.call(request("GET", "/v1/a/c/l", &[])).await;
    assert_eq!(response.status(), 404);
    assert_eq!(
        header(&response, "content-location").unwrap(),
        "/v1/a/c/none"
    );
    for link in ["/v1/a/c/m", "/v1/a/c/n"] {
        assert_eq!(app.call(request("GET", link, &[])).await.status(), 206);
    }
}

const CHAIN: Objects = &[
    ("/v1/a/c/1", 200, &[(STORED, "c/2")]),
    ("/v1/a/c/2", 200, &[(STORED, "c/3")]),
    (
        "/v1/a/c/3",
        200,
        &[
            (STORED, "c/4"),
            ("x-object-sysmeta-symlink-target-account", "b"),
        ],
    ),
    ("/v1/b/c/4", 200, &[(STORED, "c/5")]),
    ("/v1/b/c/5", 200, &[]),
    ("/v1/a/c/loop", 200, &[(STORED, "c/loop")]),
    (
        "/v1/a/c/free",
        200,
        &[
            (STORED, "%00versions%00c/%00free%0060"),
            (EXTEND, "true"),
            (RESERVED, "true"),
        ],
    ),
    (
        "/v1/a/%00versions%00c/%00free%0060",
        200,
        &[(STORED, "c/2")],
    ),
];

#[tokio::test]
async fn chains_have_an_end() {
    let (app, seen) = store(CHAIN);
    let response = app.call(request("GET", "/v1/a/c/2", &[])).await;
    assert_eq!(response.status(), 409);
    let told = "Too many levels of symbolic links, maximum allowed is 2";
    assert_eq!(text(response).await, told);
    let response = app.call(request("GET", "/v1/a/c/3", &[])).await;
    assert_eq!(response.status(), 200);
    assert_eq!(header(&response, "content-location").unwrap(), "/v1/b/c/5");
    seen.lock().unwrap().clear();
    let response = app.call(request("GET", "/v1/a/c/loop", &[])).await;
    assert_eq!(response.status(), 409);
    assert_eq!(seen.lock().unwrap().len(), 3);
    // Four steps of which one does not count: one too many.
    let response = app.call(request("GET", "/v1/a/c/free", &[])).await;
    assert_eq!(response.status(), 409);
}

#[tokio::test]
async fn static_links_say_what_they_expect() {
    let (app, _) = store(&[
        ("/v1/a/c/good", 200, &[(STORED, "c/o"), (STATIC, "e")]),
        ("/v1/a/c/bad", 200, &[(STORED, "c/o"), (STATIC, "f")]),
        ("/v1/a/c/on", 200, &[(STORED, "c/good"), (STATIC, "f")]),
        ("/v1/a/c/o", 200, &[("etag", "e")]),
    ]);
    let response = app.call(request("GET", "/v1/a/c/good", &[])).await;
    assert_eq!(response.status(), 200);
    let response = app.call(request("GET", "/v1/a/c/bad", &[])).await;
    assert_eq!(response.status(), 409);
    assert_eq!(header(&response, "content-location").unwrap(), "/v1/a/c/o");
    let told = "Object Etag 'e' does not match X-Symlink-Target-Etag header 'f'";
    assert_eq!(text(response).await, told);
    let response = app.call(request("GET", "/v1/a/c/on", &[])).await;
    assert_eq!(
        text(response).await,
        "X-Symlink-Target-Etag headers do not match"
    );
}

/// For each request: was it made with the proxy's authority, and for reserved names?
fn trusted(seen: &Seen) -> Vec<(bool, bool)> {
    let seen = seen.lock().unwrap();
    let of = |parts: &http::request::Parts| {
        let reserved = parts.headers.contains_key(BACKEND_ALLOW_RESERVED);
        (Context::of(parts).authorized, reserved)
    };
    seen.iter().map(|(parts, _)| of(parts)).collect()
}

#[tokio::test]
async fn trust_is_for_one_step() {
    let (app, seen) = store(&[
        (
            "/v1/a/c/l",
            200,
            &[(STORED, "%00versions%00c/%00l%0060"), (RESERVED, "true")],
        ),
        ("/v1/a/%00versions%00c/%00l%0060", 200, &[(STORED, "d/1")]),
        ("/v1/a/d/1", 200, &[]),
    ]);
    assert_eq!(
        app.call(request("GET", "/v1/a/c/l", &[])).await.status(),
        200
    );
    assert_eq!(
        trusted(&seen),
        [(false, false), (true, true), (false, false)]
    );
    // A client that may read the version itself may not read that version's target.
    seen.lock().unwrap().clear();
    let headers = [("x-backend-allow-reserved-names", "true")];
    let version = "/v1/a/%00versions%00c/%00l%0060";
    app.call(request("GET", version, &headers)).await;
    assert_eq!(trusted(&seen), [(false, true), (false, false)]);
}

/// The metadata of a trusted link is effective only if it points to a version of that very object;
/// any other is the client's own link, whoever stored it.
#[tokio::test]
async fn other_links_are_never_trusted() {
    const VERSION: &str = "%00versions%00c/%00l%0060";
    for (from, target, account) in [
        ("/v1/a/c/l", "priv/secret", Some("b")),
        ("/v1/a/c/l", "priv/secret", None),
        ("/v1/a/c/l", VERSION, Some("b")),
        ("/v1/a/c/l", VERSION, Some("%61%00")),
        ("/v1/a/c/l", VERSION, Some("b/priv")),
        ("/v1/a/c/l", VERSION, Some("b%2Fpriv")),
        ("/v1/a/c/l", "%00versions%00d/%00l%0060", None),
        ("/v1/a/c/l", "%00versions%00c/%00other%0060", None),
        ("/v1/a/c/l", "%00versions%00c/%00l%00x", None),
        ("/v1/a/c/l", "%00versions%00c/l", None),
        ("/v1/a/c/l", "%00versions%00c%2F%00x/%00l%0060", None),
        ("/v1/a/c/l", "%00versions%00c?/%00l%0060", None),
        ("/v1/a/d/l", VERSION, None),
        ("/v1/a/%00versions%00c/%00l%0061", VERSION, None),
        ("/v1/a/%00versions%00c/l", VERSION, None),
    ] {
        let (inner, seen) = recorder(move |parts| {
            let mut response = respond::text(StatusCode::OK, "data");
            if parts.uri.path() == from {
                let headers = response.headers_mut();
                respond::set(headers, STORED, target);
                for name in [EXTEND, RESERVED, LATEST] {
                    respond::set(headers, name, "true");
                }
                if let Some(account) = account {
                    respond::set(headers, OTHER_ACCOUNT, account);
                }
            }
            response
        });
        let app = filter("symlink", &[], inner);
        app.call(request("GET", from, &[])).await;
        let what = format!("{from} to {account:?} {target}");
        assert_eq!(trusted(&seen), [(false, false), (false, false)], "{what}");
    }
    // The same name in another encoding.
    for (target, account) in [(VERSION, "a"), ("%00%76ersions%00c/%00l%0060", "%61")] {
        let (inner, seen) = recorder(move |parts| {
            let mut response = respond::text(StatusCode::OK, "data");
            if parts.uri.path() == "/v1/a/c/l" {
                respond::set(response.headers_mut(), STORED, target);
                respond::set(response.headers_mut(), OTHER_ACCOUNT, account);
                respond::set(response.headers_mut(), RESERVED, "true");
            }
            response
        });
        let app = filter("symlink", &[], inner);
        app.call(request("GET", "/v1/a/c/l", &[])).await;
        assert_eq!(trusted(&seen), [(false, false), (true, true)], "{target}");
    }
}

/// Links marked as not counting that point at each other: the walk ends all the same.
#[tokio::test]
async fn links_that_do_not_count_are_no_loop() {
    let marks = |target| [(STORED, target), (EXTEND, "true"), (RESERVED, "true")];
    let (one, two) = (marks("c/2"), marks("c/1"));
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let (inner, seen) = recorder(move |parts| {
        let before = asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        assert!(before < 100, "the walk has an end");
        let mut response = respond::text(StatusCode::OK, "");
        let headers = if parts.uri.path() == "/v1/a/c/1" {
            one
        } else {
            two
        };
        for (name, value) in headers {
            respond::set(response.headers_mut(), name, value);
        }
        response
    });
    let app = filter("symlink", &[], inner);
    let response = app.call(request("GET", "/v1/a/c/1", &[])).await;
    assert_eq!(response.status(), 409);
    let told = "Too many levels of symbolic links, maximum allowed is 2";
    assert_eq!(text(response).await, told);
    assert!(seen.lock().unwrap().len() <= 5);
}

/// The marks of a trusted link are written only for the filter that makes such links.
#[tokio::test]
async fn marks_are_not_taken_from_headers() {
    let marks = [EXTEND, RESERVED, LATEST];
    let put = |link: bool| {
        let mut headers = vec![("content-length", "0")];
        headers.extend(marks.map(|name| (name, "true")));
        if link {
            headers.push(("x-symlink-target", "d/o"));
        }
        request("PUT", "/v1/a/c/l", &headers)
    };
    for link in [true, false] {
        let (app, seen) = store(&[]);
        assert_eq!(app.call(put(link)).await.status(), 201);
        assert!(marks.iter().all(|name| sent(&seen, 0, name).is_none()));
    }
    let (app, seen) = store(&[]);
    let mut own = request(
        "PUT",
        "/v1/a/c/l",
        &[("content-length", "0"), ("x-symlink-target", "d/o")],
    );
    own.extensions_mut().insert(crate::trust::LatestVersionLink);
    app.call(own).await;
    for name in marks {
        assert_eq!(sent(&seen, 0, name).as_deref(), Some("true"));
    }
    // A daemon moves an object with all its metadata.
    let (app, seen) = store(&[]);
    let mut moved = put(false);
    moved.extensions_mut().insert(Context {
        allow_reserved: true,
        ..Context::default()
    });
    app.call(moved).await;
    assert_eq!(sent(&seen, 0, RESERVED).as_deref(), Some("true"));
}

#[tokio::test]
async fn dynamic_links_are_made_of_anything() {
    let (app, seen) = store(&[]);
    for (path, headers, target, account, hash) in [
        (
            "/v1/a/c/l",
            vec![("x-symlink-target", "d e/o/p")],
            "d%20e/o/p",
            None,
            "; symlink_target=d%20e/o/p",
        ),
        (
            "/v1/a/c/l",
            vec![
                ("x-symlink-target", "d%20e/o%2Fp"),
                ("x-symlink-target-account", "b%20b"),
            ],
            "d%20e/o/p",
            Some("b%20b"),
            "; symlink_target=d%20e/o/p; symlink_target_account=b%20b",
        ),
    ] {
        seen.lock().unwrap().clear();
        let mut headers = headers;
        headers.push(("content-length", "0"));
        let response = app.call(request("PUT", path, &headers)).await;
        assert_eq!(response.status(), 201);
        assert_eq!(paths(&seen), [format!("PUT {path}")]);
        assert_eq!(sent(&seen, 0, STORED).unwrap(), target);
        assert_eq!(
            sent(&seen, 0, "x-object-sysmeta-symlink-target-account").as_deref(),
            account
        );
        assert_eq!(sent(&seen, 0, "x-symlink-target"), None);
        assert_eq!(
            sent(&seen, 0, "content-type").unwrap(),
            "application/symlink"
        );
        let update = sent(&seen, 0, "x-object-sysmeta-container-update-override-etag");
        assert_eq!(update.unwrap(), format!("{EMPTY}{hash}"));
    }
}

#[tokio::test]
async fn static_links_are_made_of_what_is_there() {
    const OVERRIDE: &str = "x-object-sysmeta-container-update-override-etag";
    let (app, seen) = store(&[
        ("/v1/a/c/o", 200, &[("etag", "e"), ("content-type", "a/b")]),
        (
            "/v1/a/c/slo",
            200,
            &[
                ("etag", "m"),
                (OVERRIDE, "m; slo_etag=s"),
                ("x-object-sysmeta-slo-size", "99"),
            ],
        ),
        (
            "/v1/a/c/old-slo",
            200,
            &[("etag", "m"), ("x-object-sysmeta-slo-etag", "s")],
        ),
        ("/v1/a/c/secret", 403, &[]),
    ]);
    let put = |target: &'static str, etag: &'static str| {
        request(
            "PUT",
            "/v1/a/c/l",
            &[
                ("x-symlink-target", target),
                ("x-symlink-target-etag", etag),
                ("content-length", "0"),
            ],
        )
    };
    let response = app.call(put("c/o", "\"e\"")).await;
    assert_eq!(response.status(), 201);
    assert_eq!(paths(&seen), ["HEAD /v1/a/c/o", "PUT /v1/a/c/l"]);
    assert_eq!(sent(&seen, 1, "content-type").unwrap(), "a/b");
    assert_eq!(sent(&seen, 1, STATIC).unwrap(), "e");
    assert_eq!(
        sent(&seen, 1, OVERRIDE).unwrap(),
        format!("{EMPTY}; symlink_target=c/o; symlink_target_etag=e; symlink_target_bytes=4")
    );
    for (target, bytes) in [("c/slo", "99"), ("c/old-slo", "4")] {
        seen.lock().unwrap().clear();
        assert_eq!(app.call(put(target, "m")).await.status(), 201);
        assert_eq!(
            sent(&seen, 1, OVERRIDE).unwrap(),
            format!(
                "{EMPTY}; slo_etag=s; symlink_target={target}; symlink_target_etag=m; \
                 symlink_target_bytes={bytes}"
            )
        );
    }
    for (target, etag, status) in [
        ("c/o", "other", 409),
        ("c/none", "e", 409),
        ("c/secret", "e", 403),
        ("c/o", "a;b", 400),
        ("c/o", "a\\b", 400),
    ] {
        let response = app.call(put(target, etag)).await;
        assert_eq!(response.status().as_u16(), status, "{target} {etag}");
    }
}

#[tokio::test]
async fn refusals() {
    let (app, seen) = store(&[]);
    const FORM: &str = "X-Symlink-Target header must be of the form <container name>/<object name>";
    for (target, account, length, status, told) in [
        ("/c/o", "a", "0", 412, FORM),
        ("%2Fc/o", "a", "0", 412, FORM),
        ("c", "a", "0", 412, FORM),
        ("%ff/o", "a", "0", 412, FORM),
        (
            "c/o",
            "a/b",
            "0",
            412,
            "Account name cannot contain slashes",
        ),
        ("c/o", "", "0", 412, "Account name cannot be empty"),
        ("c/l", "a", "0", 400, "Symlink cannot target itself"),
        (
            "c/o",
            "a",
            "1",
            400,
            "Symlink requests require a zero byte body",
        ),
        ("c/l", "b", "0", 201, ""),
    ] {
        let headers = [
            ("x-symlink-target", target),
            ("x-symlink-target-account", account),
            ("content-length", length),
        ];
        let response = app.call(request("PUT", "/v1/a/c/l", &headers)).await;
        assert_eq!(response.status().as_u16(), status, "{target} {account}");
        assert_eq!(text(response).await, told);
    }
    assert_eq!(seen.lock().unwrap().len(), 1);
    let mut chunked = request(
        "PUT",
        "/v1/a/c/l",
        &[
            ("x-symlink-target", "c/o"),
            ("transfer-encoding", "chunked"),
        ],
    );
    *chunked.body_mut() = Body::full("x");
    assert_eq!(app.call(chunked).await.status(), 400);
}

#[tokio::test]
async fn posts_are_told_where_to_go() {
    let (app, _) = store(&[
        ("/v1/a%20a/c/l", 202, &[(STORED, "d/o"), (STATIC, "e")]),
        ("/v1/a/c/o", 202, &[]),
    ]);
    let response = app.call(request("POST", "/v1/a%20a/c/l", &[])).await;
    assert_eq!(response.status(), 307);
    assert_eq!(header(&response, "location").unwrap(), "/v1/a%20a/d/o");
    assert_eq!(header(&response, "x-symlink-target-etag").unwrap(), "e");
    assert_eq!(header(&response, STORED).unwrap(), "d/o");
    let response = app.call(request("POST", "/v1/a/c/o", &[])).await;
    assert_eq!(response.status(), 202);
    let response = app
        .call(request("POST", "/v1/a/c/o", &[("x-symlink-target", "c/o")]))
        .await;
    assert_eq!(response.status(), 400);
}

#[tokio::test]
async fn listings_tell_of_links() {
    let inner = |json: &'static str| {
        let (inner, _) =
            recorder(move |_| respond::typed(StatusCode::OK, "application/json", json));
        filter("symlink", &[], inner)
    };
    let app = inner(
        r#"[{"name":"o","hash":"e","bytes":1},{"subdir":"s/"},
            {"name":"l","hash":"h; slo_etag=s; symlink_target=c/o; symlink_target_account=b; symlink_target_etag=e; symlink_target_bytes=9","bytes":0},
            {"name":"d","hash":"h; symlink_target=c/o","bytes":0}]"#,
    );
    let response = app
        .call(request("GET", "/v1/a%20a/c?format=json", &[]))
        .await;
    let told: serde_json::Value = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!(
        told,
        json!([
            {"name": "o", "hash": "e", "bytes": 1},
            {"subdir": "s/"},
            {"name": "l", "hash": "h; slo_etag=s", "bytes": 0, "symlink_etag": "e",
             "symlink_bytes": 9, "symlink_path": "/v1/b/c/o"},
            {"name": "d", "hash": "h", "bytes": 0, "symlink_path": "/v1/a%20a/c/o"},
        ])
    );
    for json in ["{\"symlink_target\":1}", "symlink_target", "[]"] {
        let response = inner(json).call(request("GET", "/v1/a/c", &[])).await;
        assert_eq!(
            header(&response, "content-length").unwrap(),
            json.len().to_string()
        );
        assert_eq!(text(response).await, json);
    }
}
