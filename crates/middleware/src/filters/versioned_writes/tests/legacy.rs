//! Versions in a container chosen by the user: stack and history.

use super::*;
use crate::testing::{answers, header};

const MARKER: &str = "application/x-deleted;swift_versions_deleted=1";

fn kept(mode: &str) -> FilterEnv {
    env_of(&[("versions-location", "v%20v"), ("versions-mode", mode)])
}

#[tokio::test]
async fn locations_are_stored_as_system_metadata() {
    let stored = "x-container-sysmeta-versions-location";
    let mode = "x-container-sysmeta-versions-mode";
    let own = "x-versions-location";
    for (headers, expected) in [
        (vec![(own, "v")], [Some("v"), Some("stack"), Some("")]),
        (
            vec![("x-history-location", "v")],
            [Some("v"), Some("history"), Some("")],
        ),
        (
            vec![(own, "v"), ("x-history-location", "")],
            [Some("v"), Some("stack"), Some("")],
        ),
        (
            vec![(own, ""), ("x-history-location", "v")],
            [Some("v"), Some("history"), Some("")],
        ),
        (vec![(own, "")], [Some(""), Some(""), Some("")]),
        (
            vec![("x-remove-versions-location", "x")],
            [Some(""), Some(""), Some("")],
        ),
        (
            vec![("x-remove-history-location", "x")],
            [Some(""), Some(""), Some("")],
        ),
        (
            vec![(own, "v"), ("x-remove-versions-location", "x")],
            [Some("v"), Some("stack"), Some("")],
        ),
        (vec![("x-remove-versions-location", "")], [None, None, None]),
        (vec![], [None, None, None]),
    ] {
        let (app, seen) = app(&env(), Vec::new());
        app.call(request("POST", "/v1/a/c", &headers)).await;
        let found = [stored, mode, own].map(|name| sent(&seen, 0, name));
        assert_eq!(
            found.each_ref().map(Option::as_deref),
            expected,
            "{headers:?}"
        );
        assert_eq!(sent(&seen, 0, "x-remove-versions-location"), None);
    }
    let (app, seen) = app(&env(), Vec::new());
    let both = [(own, "v"), ("x-history-location", "w")];
    assert_eq!(
        app.call(request("PUT", "/v1/a/c", &both)).await.status(),
        400
    );
    assert_eq!(
        app.call(request("PUT", "/v1/a/c", &[(own, "v/w")]))
            .await
            .status(),
        412
    );
    assert!(calls(&seen).is_empty());
}

#[tokio::test]
async fn locations_are_shown() {
    for (mode, shown) in [
        ("stack", "x-versions-location"),
        ("history", "x-history-location"),
        ("", "x-versions-location"),
    ] {
        let headers = [
            ("x-container-sysmeta-versions-location", "v"),
            ("x-container-sysmeta-versions-mode", mode),
        ];
        let (app, _) = app(&env(), row("HEAD /v1/a/c", 204, &headers, ""));
        let response = app.call(request("HEAD", "/v1/a/c", &[])).await;
        assert_eq!(header(&response, shown).unwrap(), "v");
    }
}

#[tokio::test]
async fn options_of_the_operator() {
    let asked =
        |allowed: &[(&str, &str)]| filter_in(&env(), "versioned_writes", allowed, answers(200));
    let headers = [("x-versions-location", "v")];
    let off = asked(&[("allow_versioned_writes", "false")]);
    assert_eq!(
        off.call(request("PUT", "/v1/a/c", &headers)).await.status(),
        412
    );
    assert_eq!(
        off.call(request("GET", "/v1/a/c", &headers)).await.status(),
        200
    );
    // Without the option the container server decides, as before.
    assert_eq!(
        asked(&[])
            .call(request("PUT", "/v1/a/c", &headers))
            .await
            .status(),
        200
    );

    let oldest = env_with(ContainerInfo {
        status: 204,
        versions: Some("v".into()),
        ..ContainerInfo::default()
    });
    for (options, env, count) in [
        (&[][..], &oldest, 2),
        (&[("allow_versioned_writes", "true")], &oldest, 2),
        (&[("allow_versioned_writes", "false")], &oldest, 1),
        (&[], &kept("stack"), 1),
    ] {
        let (inner, seen) = recorder(|_| respond::standard(StatusCode::NOT_FOUND));
        let app = filter_in(env, "versioned_writes", options, inner);
        app.call(request("PUT", "/v1/a/c/o", &[])).await;
        assert_eq!(calls(&seen).len(), count);
    }
}

#[tokio::test]
async fn a_put_keeps_what_was_there() {
    let headers = [
        ("x-timestamp", "0000000060.00000"),
        ("x-object-meta-a", "b"),
        ("etag", "e"),
    ];
    let current = row("GET /v1/a/c/%C3%A9", 200, &headers, "hello");
    for mode in ["stack", "history"] {
        let (app, seen) = app(&kept(mode), current.clone());
        app.call(request("PUT", "/v1/a/c/%C3%A9", &[])).await;
        assert_eq!(
            calls(&seen),
            [
                "GET /v1/a/c/%C3%A9?symlink=get",
                "PUT /v1/a/v%20v/002%C3%A9/0000000060.00000",
                "PUT /v1/a/c/%C3%A9"
            ]
        );
        assert_eq!(sent(&seen, 1, "x-object-meta-a").unwrap(), "b");
        assert_eq!(sent(&seen, 1, "x-timestamp"), None);
        assert!(context(&seen, 1).authorized && !context(&seen, 2).authorized);
        assert_eq!(seen.lock().unwrap()[1].1, "hello");
    }
    for (status, told) in [(403, 412), (500, 503)] {
        let pushed = row(
            "PUT /v1/a/v%20v/002%C3%A9/0000000060.00000",
            status,
            &[],
            "",
        );
        let (app, seen) = app(&kept("stack"), table([current.clone(), pushed]));
        let response = app.call(request("PUT", "/v1/a/c/%C3%A9", &[])).await;
        assert_eq!((response.status().as_u16(), calls(&seen).len()), (told, 2));
    }
    let (app, seen) = app(&kept("stack"), current);
    let response = app.call(denied("PUT", "/v1/a/c/%C3%A9", &[])).await;
    assert_eq!((response.status().as_u16(), calls(&seen).len()), (403, 0));
}

#[tokio::test]
async fn history_leaves_a_marker() {
    let current = row(
        "GET /v1/a/c/o",
        200,
        &[("x-timestamp", "0000000060.00000")],
        "hello",
    );
    let (app, seen) = app(&kept("history"), current);
    app.call(request("DELETE", "/v1/a/c/o", &[])).await;
    assert_eq!(
        calls(&seen),
        [
            "GET /v1/a/c/o?symlink=get",
            "PUT /v1/a/v%20v/001o/0000000060.00000",
            "PUT /v1/a/v%20v/001o/1700000000.00001",
            "DELETE /v1/a/c/o"
        ]
    );
    assert_eq!(sent(&seen, 2, "content-type").unwrap(), MARKER);
    assert!(context(&seen, 2).content_type_overridden);
}

/// A store of versions `2` and `1` of `o`, listed in pages of one.
fn stack(types: &'static [(&'static str, &'static str)], current: bool) -> (Handler, Seen) {
    let (inner, seen) = recorder(move |parts| {
        let path = parts.uri.path();
        if parts.method == Method::GET && path == "/v1/a/v%20v" {
            let query = parts.uri.query().unwrap_or("");
            let next = types.iter().find(|(name, _)| {
                query.contains("marker=&")
                    || query.contains("marker=001o%2F3&") && *name < "3"
                    || query.contains("marker=001o%2F2&") && *name < "2"
            });
            let rows: Vec<_> = next
                .map(|(name, content_type)| {
                    serde_json::json!({"name": format!("001o/{name}"), "content_type": content_type})
                })
                .into_iter()
                .collect();
            return respond::typed(
                StatusCode::OK,
                "application/json",
                serde_json::Value::from(rows).to_string(),
            );
        }
        match parts.method {
            Method::HEAD if !current => respond::standard(StatusCode::NOT_FOUND),
            Method::GET | Method::HEAD => respond::text(StatusCode::OK, "old"),
            Method::PUT => respond::empty(StatusCode::CREATED),
            _ => respond::empty(StatusCode::NO_CONTENT),
        }
    });
    let options = [("allow_versioned_writes", "true")];
    (
        filter_in(&kept("stack"), "versioned_writes", &options, inner),
        seen,
    )
}

async fn popped(types: &'static [(&'static str, &'static str)], current: bool) -> Vec<String> {
    let (app, seen) = stack(types, current);
    let headers = [("x-if-delete-at", "1")];
    let response = app.call(request("DELETE", "/v1/a/c/o", &headers)).await;
    assert_eq!(response.status(), 204);
    calls(&seen)
        .into_iter()
        .filter(|call| !call.contains("prefix="))
        .collect()
}

#[tokio::test]
async fn a_delete_brings_the_last_version_back() {
    assert_eq!(
        popped(&[("2", "a/b"), ("1", "a/b")], true).await,
        [
            "GET /v1/a/v%20v/001o/2?symlink=get",
            "PUT /v1/a/c/o",
            "DELETE /v1/a/v%20v/001o/2"
        ]
    );
    assert_eq!(popped(&[], true).await, ["DELETE /v1/a/c/o"]);
}

#[tokio::test]
async fn a_delete_and_markers() {
    // There is an object: it is removed, and the marker stays the newest version.
    assert_eq!(
        popped(&[("2", MARKER), ("1", "a/b")], true).await,
        ["HEAD /v1/a/c/o", "DELETE /v1/a/c/o"]
    );
    // There is none: the DELETE that added the marker is undone.
    assert_eq!(
        popped(&[("2", MARKER), ("1", "a/b")], false).await,
        [
            "HEAD /v1/a/c/o",
            "GET /v1/a/v%20v/001o/1?symlink=get",
            "PUT /v1/a/c/o",
            "DELETE /v1/a/v%20v/001o/1",
            "DELETE /v1/a/v%20v/001o/2"
        ]
    );
    assert_eq!(
        popped(&[("3", MARKER), ("2", MARKER), ("1", "a/b")], false).await,
        ["HEAD /v1/a/c/o", "DELETE /v1/a/v%20v/001o/3"]
    );
}

#[tokio::test]
async fn who_may_not_write_pops_nothing() {
    let (app, seen) = stack(&[("2", "a/b")], true);
    let response = app.call(denied("DELETE", "/v1/a/c/o", &[])).await;
    assert_eq!((response.status().as_u16(), calls(&seen).len()), (403, 0));
}

#[tokio::test]
async fn a_listing_that_does_not_end_is_an_error() {
    let (inner, seen) = recorder(|parts| {
        if parts.uri.path() == "/v1/a/v%20v" {
            let rows = r#"[{"name":"001o/1","content_type":"a/b"}]"#;
            return respond::typed(StatusCode::OK, "application/json", rows);
        }
        respond::standard(StatusCode::NOT_FOUND)
    });
    let options = [("allow_versioned_writes", "true")];
    let app = filter_in(&kept("stack"), "versioned_writes", &options, inner);
    let response = app.call(request("DELETE", "/v1/a/c/o", &[])).await;
    assert_eq!((response.status().as_u16(), calls(&seen).len()), (500, 3));
}
