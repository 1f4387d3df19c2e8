//! Objects in containers with versions. The clock shows 1700000000: a version made now has the id
//! 1700000000.00001, inverted 8299999999.99998.

use cairn_http::Body;

use super::*;
use crate::testing::{header, text};

const NEW: &str = "/v1/a/%00versions%00c/%00o%008299999999.99998";
const NEW_ID: &str = "1700000000.00001";
/// Path of version 0000000060.00000.
const OLD: &str = "/v1/a/%00versions%00c/%00o%009999999939.99999";
const OLD_ID: &str = "0000000060.00000";
const OLD_TARGET: &str = "%00versions%00c/%00o%009999999939.99999";
const TARGET: &str = "x-object-sysmeta-symlink-target";
const MARK: &str = "x-object-sysmeta-versions-symlink";
const MARKER: &str = "application/x-deleted;swift_versions_deleted=1";

fn link_to_old(method: &str) -> Table {
    let headers = [(TARGET, OLD_TARGET), (MARK, "true")];
    row(&format!("{method} /v1/a/c/o"), 200, &headers, "")
}

#[tokio::test]
async fn a_put_makes_a_version_and_a_link() {
    let created = row(
        &format!("PUT {NEW}"),
        201,
        &[
            ("etag", "the-etag"),
            ("x-backend-content-type", "text/plain; charset=x"),
        ],
        "",
    );
    let (app, seen) = app(&versioned("True"), created);
    let headers = [
        ("x-delete-at", "9999999999"),
        ("etag", "e"),
        ("x-object-meta-a", "b"),
        ("content-length", "5"),
        ("x-object-manifest", "c/p"),
    ];
    let mut put = request("PUT", "/v1/a/c/o?x=y", &headers);
    *put.body_mut() = Body::full("hello");
    let response = app.call(put).await;
    assert_eq!(response.status(), 201);
    assert_eq!(header(&response, "etag").unwrap(), "the-etag");
    assert_eq!(header(&response, "x-object-version-id").unwrap(), NEW_ID);
    assert_eq!(
        calls(&seen),
        [
            "GET /v1/a/c/o?symlink=get".to_owned(),
            format!("PUT {NEW}"),
            "PUT /v1/a/c/o?x=y".into()
        ]
    );
    assert_eq!(sent(&seen, 0, "x-newest").unwrap(), "True");
    for (name, version, link) in [
        (
            "x-timestamp",
            Some(NEW_ID),
            Some("1700000000.00001_0000000000000001"),
        ),
        ("x-delete-at", None, Some("9999999999")),
        ("etag", Some("e"), None),
        ("x-object-manifest", Some("c/p"), None),
        ("x-object-meta-a", Some("b"), Some("b")),
        ("content-length", Some("5"), Some("0")),
        ("content-type", None, Some("text/plain")),
        (
            TARGET,
            None,
            Some("%00versions%00c/%00o%008299999999.99998"),
        ),
        (
            "x-object-sysmeta-symlink-target-etag",
            None,
            Some("the-etag"),
        ),
        ("x-object-sysmeta-symlink-target-bytes", None, Some("5")),
        (MARK, None, Some("true")),
        ("x-object-sysmeta-symloop-extend", None, Some("true")),
        ("x-object-sysmeta-allow-reserved-names", None, Some("true")),
        ("x-backend-allow-reserved-names", Some("true"), Some("true")),
    ] {
        assert_eq!(sent(&seen, 1, name).as_deref(), version, "version's {name}");
        assert_eq!(sent(&seen, 2, name).as_deref(), link, "link's {name}");
    }
    assert!(context(&seen, 1).authorized && !context(&seen, 2).authorized);
    let seen = seen.lock().unwrap();
    assert_eq!((&seen[1].1[..], &seen[2].1[..]), (&b"hello"[..], &b""[..]));
}

#[tokio::test]
async fn a_put_that_its_condition_refuses_leaves_no_version() {
    for (status, is_undone) in [(201, false), (412, true), (409, true), (503, false)] {
        let link = row("PUT /v1/a/c/o", status, &[], "");
        let (app, seen) = app(&versioned("True"), link);
        let put = request("PUT", "/v1/a/c/o", &[("if-none-match", "*")]);
        assert_eq!(app.call(put).await.status(), status);
        let undone = calls(&seen).contains(&format!("DELETE {NEW}"));
        assert_eq!(undone, is_undone, "{status}");
    }
    // Without a condition it stays, as in OpenStack Swift.
    let (app, seen) = app(&versioned("True"), row("PUT /v1/a/c/o", 409, &[], ""));
    app.call(request("PUT", "/v1/a/c/o", &[])).await;
    assert!(!calls(&seen).contains(&format!("DELETE {NEW}")));
}

#[tokio::test]
async fn bytes_of_a_chunked_upload_are_counted() {
    let (app, seen) = app(&versioned("True"), Vec::new());
    let mut put = request("PUT", "/v1/a/c/o", &[("transfer-encoding", "chunked")]);
    let chunks = [Ok("hel".into()), Ok("lo, you".into())];
    *put.body_mut() = Body::from_stream(futures_util::stream::iter(chunks), None);
    app.call(put).await;
    let bytes = sent(&seen, 2, "x-object-sysmeta-symlink-target-bytes");
    assert_eq!(bytes.unwrap(), "10");
    assert_eq!(sent(&seen, 2, "transfer-encoding"), None);
}

#[tokio::test]
async fn what_was_there_before_versions_is_kept() {
    let current = row(
        "GET /v1/a/c/o",
        200,
        &[
            ("x-backend-timestamp", "0000000060.00000_000000000000000f"),
            ("x-timestamp", "0000000061.00000"),
            ("x-object-meta-a", "b"),
            ("x-object-sysmeta-slo-size", "99"),
            ("etag", "e"),
        ],
        "hello",
    );
    let (app, seen) = app(&versioned("True"), current);
    let response = app
        .call(request("PUT", "/v1/a/c/o", &[("content-length", "0")]))
        .await;
    assert_eq!(response.status(), 201);
    let copied = format!("PUT {OLD}");
    assert_eq!(
        calls(&seen)[..2],
        ["GET /v1/a/c/o?symlink=get".to_owned(), copied]
    );
    assert_eq!(calls(&seen).len(), 4);
    for (name, value) in [
        ("x-timestamp", None),
        ("x-backend-timestamp", None),
        ("x-object-meta-a", Some("b")),
        ("etag", Some("e")),
        ("content-length", Some("5")),
        (
            "content-type",
            Some("text/plain; charset=UTF-8; swift_bytes=99"),
        ),
    ] {
        assert_eq!(sent(&seen, 1, name).as_deref(), value, "{name}");
    }
    assert!(context(&seen, 1).content_type_overridden);
    assert_eq!(seen.lock().unwrap()[1].1, "hello");
}

#[tokio::test]
async fn nothing_is_overwritten_that_is_not_kept() {
    let gets = |status| row("GET /v1/a/c/o", status, &[("x-timestamp", "60")], "x");
    let puts = |status| row(&format!("PUT {OLD}"), status, &[], "");
    let news = |status| row(&format!("PUT {NEW}"), status, &[], "");
    for (rows, status, count) in [
        (vec![gets(500)], 503, 1),
        (vec![gets(403)], 403, 1),
        (vec![gets(200), puts(404)], 500, 2),
        (vec![gets(200), puts(507)], 503, 2),
        (vec![gets(200), puts(413)], 413, 2),
        (vec![news(404)], 500, 2),
        (vec![news(422)], 422, 2),
        (vec![news(503)], 503, 2),
    ] {
        let (app, seen) = app(&versioned("True"), table(rows));
        let response = app.call(request("PUT", "/v1/a/c/o", &[])).await;
        assert_eq!(response.status().as_u16(), status);
        assert_eq!(calls(&seen).len(), count, "{status}");
    }
    let big = row(
        "GET /v1/a/c/o",
        200,
        &[("content-length", "5368709123")],
        "",
    );
    let (app, seen) = app(&versioned("True"), big);
    let response = app.call(request("PUT", "/v1/a/c/o", &[])).await;
    assert_eq!((response.status().as_u16(), calls(&seen).len()), (413, 1));
}

#[tokio::test]
async fn who_may_not_write_makes_nothing_happen() {
    for method in ["PUT", "DELETE"] {
        let (app, seen) = app(&versioned("True"), Vec::new());
        let response = app.call(denied(method, "/v1/a/c/o", &[])).await;
        assert_eq!(response.status(), 403);
        assert!(calls(&seen).is_empty());
    }
}

#[tokio::test]
async fn a_delete_leaves_a_marker() {
    for gone in [204, 404] {
        let deleted = row("DELETE /v1/a/c/o", gone, &[], "");
        let (app, seen) = app(&versioned("True"), table([link_to_old("GET"), deleted]));
        let response = app.call(request("DELETE", "/v1/a/c/o", &[])).await;
        assert_eq!(response.status().as_u16(), gone);
        assert_eq!(header(&response, "x-object-version-id").unwrap(), NEW_ID);
        assert_eq!(
            calls(&seen),
            [
                "GET /v1/a/c/o?symlink=get".to_owned(),
                format!("PUT {NEW}"),
                "DELETE /v1/a/c/o".into()
            ]
        );
        assert_eq!(sent(&seen, 1, "content-type").unwrap(), MARKER);
        assert_eq!(sent(&seen, 1, "x-timestamp").unwrap(), NEW_ID);
        assert_eq!(sent(&seen, 2, "x-timestamp").unwrap(), NEW_ID);
        assert!(context(&seen, 1).content_type_overridden);
        assert!(!context(&seen, 2).content_type_overridden);
    }
}

#[tokio::test]
async fn suspended_versions_are_left_alone() {
    for (method, env) in [("PUT", versioned("False")), ("DELETE", versioned("False"))] {
        let (app, seen) = app(&env, link_to_old("GET"));
        app.call(request(method, "/v1/a/c/o", &[])).await;
        assert_eq!(calls(&seen), [format!("{method} /v1/a/c/o")]);
    }
}

#[tokio::test]
async fn posts_go_to_the_version() {
    let link = row(
        "POST /v1/a/c/o",
        202,
        &[(TARGET, OLD_TARGET), (MARK, "true")],
        "",
    );
    let (app, seen) = app(&versioned("False"), link);
    let headers = [("x-object-meta-a", "b"), ("x-delete-after", "1")];
    let response = app.call(request("POST", "/v1/a/c/o", &headers)).await;
    assert_eq!(response.status(), 204);
    assert_eq!(
        calls(&seen),
        ["POST /v1/a/c/o".to_owned(), format!("POST {OLD}")]
    );
    assert_eq!(sent(&seen, 1, "x-object-meta-a").unwrap(), "b");
    assert_eq!(sent(&seen, 1, "x-delete-after"), None);
}

#[tokio::test]
async fn posts_to_other_links_do_not() {
    for headers in [
        &[(TARGET, "d/o")][..],
        &[(TARGET, OLD_TARGET)],
        &[(TARGET, "d/o"), (MARK, "true")],
    ] {
        let (app, seen) = app(&versioned("True"), row("POST /v1/a/c/o", 202, headers, ""));
        let response = app.call(request("POST", "/v1/a/c/o", &[])).await;
        assert_eq!((response.status().as_u16(), calls(&seen).len()), (307, 1));
    }
}

#[tokio::test]
async fn reads_tell_the_version() {
    let rows = table([
        row(
            "GET /v1/a/c/o",
            200,
            &[
                (TARGET, OLD_TARGET),
                ("x-object-sysmeta-allow-reserved-names", "true"),
            ],
            "",
        ),
        row(&format!("GET {OLD}"), 200, &[("etag", "e")], "data"),
        row("GET /v1/a/c/plain", 200, &[], "data"),
    ]);
    let (app, _) = app(&versioned("True"), rows);
    let response = app.call(request("GET", "/v1/a/c/o", &[])).await;
    assert_eq!(header(&response, "x-object-version-id").unwrap(), OLD_ID);
    let location = header(&response, "content-location").unwrap();
    assert_eq!(location, format!("/v1/a/c/o?version-id={OLD_ID}"));
    let response = app.call(request("GET", "/v1/a/c/o?symlink=get", &[])).await;
    assert_eq!(header(&response, "x-object-version-id").unwrap(), OLD_ID);
    let target = header(&response, "x-symlink-target").unwrap();
    assert_eq!(target, format!("c/o?version-id={OLD_ID}"));
    for (name, status) in [("plain", 200), ("none", 404)] {
        let response = app
            .call(request("GET", &format!("/v1/a/c/{name}"), &[]))
            .await;
        assert_eq!(response.status().as_u16(), status);
        assert_eq!(header(&response, "x-object-version-id").unwrap(), "null");
    }
}

#[tokio::test]
async fn reads_of_one_version() {
    let hex = "/v1/a/%00versions%00c/%00o%009999999939.99998_d123456789edcbaa";
    let rows = table([
        row(&format!("GET {OLD}"), 200, &[], "data"),
        row(&format!("GET {hex}"), 200, &[], "hex"),
        row(&format!("HEAD {OLD}"), 200, &[("content-type", MARKER)], ""),
    ]);
    let (app, seen) = app(&versioned("False"), rows);
    let response = app
        .call(request("GET", "/v1/a/c/o?version-id=60", &[]))
        .await;
    assert_eq!(header(&response, "x-object-version-id").unwrap(), "60");
    assert_eq!(text(response).await, "data");
    assert!(!context(&seen, 0).authorized);
    assert_eq!(
        context(&seen, 0).original_path.as_deref(),
        Some("/v1/a/c/o")
    );
    let path = "/v1/a/c/o?version-id=0000000060.00000_2edcba9876123456";
    assert_eq!(text(app.call(request("GET", path, &[])).await).await, "hex");
    let response = app
        .call(request("HEAD", "/v1/a/c/o?version-id=60", &[]))
        .await;
    assert_eq!(response.status(), 404);
    assert_eq!(header(&response, "content-type").unwrap(), MARKER);
    assert_eq!(header(&response, "x-object-version-id").unwrap(), "60");
    let response = app
        .call(request("GET", "/v1/a/c/o?version-id=61", &[]))
        .await;
    assert_eq!(header(&response, "x-object-version-id"), None);
}

#[tokio::test]
async fn reads_of_the_null_version() {
    let rows = table([
        row(
            "GET /v1/a/c/o",
            200,
            &[
                (TARGET, OLD_TARGET),
                ("x-object-sysmeta-allow-reserved-names", "true"),
            ],
            "",
        ),
        row(&format!("GET {OLD}"), 200, &[], "data"),
        row("GET /v1/a/c/plain", 200, &[], "data"),
    ]);
    let (app, _) = app(&versioned("True"), rows);
    let response = app
        .call(request("GET", "/v1/a/c/o?version-id=null", &[]))
        .await;
    assert_eq!(response.status(), 404);
    let response = app
        .call(request("GET", "/v1/a/c/plain?version-id=null", &[]))
        .await;
    assert_eq!(header(&response, "x-object-version-id").unwrap(), "null");
    let response = app
        .call(request("GET", "/v1/a/c/none?version-id=null", &[]))
        .await;
    assert_eq!(response.status(), 404);
    assert_eq!(header(&response, "x-object-version-id"), None);
}

#[tokio::test]
async fn deletes_of_one_version() {
    let newer = [
        (TARGET, "%00versions%00c/%00o%009999999938.99999"),
        (MARK, "true"),
    ];
    for (current, link_goes, id) in [
        (link_to_old("HEAD"), true, "null"),
        (
            row("HEAD /v1/a/c/o", 200, &newer, ""),
            false,
            "0000000061.00000",
        ),
        (row("HEAD /v1/a/c/o", 200, &[], ""), false, "null"),
        (row("HEAD /v1/a/c/o", 404, &[], ""), false, "null"),
    ] {
        let (app, seen) = app(&versioned("False"), current);
        let path = format!("/v1/a/c/o?version-id={OLD_ID}");
        let response = app.call(request("DELETE", &path, &[])).await;
        assert_eq!(response.status(), 204);
        assert_eq!(header(&response, "x-object-version-id").unwrap(), OLD_ID);
        assert_eq!(
            header(&response, "x-object-current-version-id").unwrap(),
            id
        );
        let mut expected = vec!["HEAD /v1/a/c/o?symlink=get".to_owned()];
        expected.extend(link_goes.then(|| "DELETE /v1/a/c/o".into()));
        expected.push(format!("DELETE {OLD}?version-id={OLD_ID}"));
        assert_eq!(calls(&seen), expected);
        assert!(!context(&seen, expected.len() - 1).authorized);
    }
    let (app, seen) = app(&versioned("True"), Vec::new());
    app.call(request("DELETE", "/v1/a/c/o?version-id=null", &[]))
        .await;
    assert_eq!(calls(&seen), ["DELETE /v1/a/c/o?version-id=null"]);
}

#[tokio::test]
async fn a_version_is_made_the_latest() {
    let version = row(
        &format!("HEAD {OLD}"),
        200,
        &[
            ("etag", "e"),
            ("content-type", "a/b"),
            ("content-length", "10"),
        ],
        "",
    );
    let (app, seen) = app(&versioned("False"), version);
    let path = format!("/v1/a/c/o?version-id={OLD_ID}");
    let response = app
        .call(request("PUT", &path, &[("content-length", "0")]))
        .await;
    assert_eq!(response.status(), 201);
    assert_eq!(header(&response, "x-object-version-id").unwrap(), OLD_ID);
    assert_eq!(header(&response, "etag").unwrap(), "e");
    assert_eq!(
        calls(&seen),
        [format!("HEAD {OLD}?symlink=get"), format!("PUT {path}")]
    );
    assert_eq!(sent(&seen, 1, TARGET).unwrap(), OLD_TARGET);
    assert_eq!(
        sent(&seen, 1, "x-object-sysmeta-symlink-target-bytes").unwrap(),
        "10"
    );
    assert_eq!(sent(&seen, 1, "content-type").unwrap(), "a/b");
}

#[tokio::test]
async fn refusals_with_a_version_id() {
    for (method, path, headers, status) in [
        ("POST", "/v1/a/c/o?version-id=60", vec![], 400),
        ("GET", "/v1/a/c/o?version-id=x", vec![], 400),
        ("OPTIONS", "/v1/a/c/o?version-id=x", vec![], 400),
        (
            "PUT",
            "/v1/a/c/o?version-id=null",
            vec![("content-length", "0")],
            400,
        ),
        (
            "PUT",
            "/v1/a/c/o?version-id=60",
            vec![("content-length", "1")],
            400,
        ),
        ("PUT", "/v1/a/c/o?version-id=60", vec![], 411),
        (
            "PUT",
            "/v1/a/c/o?version-id=60",
            vec![("content-length", "0")],
            404,
        ),
    ] {
        let (app, seen) = app(&versioned("True"), Vec::new());
        let response = app.call(request(method, path, &headers)).await;
        assert_eq!(
            response.status().as_u16(),
            status,
            "{method} {path} {headers:?}"
        );
        assert!(calls(&seen).iter().all(|call| call.starts_with("HEAD")));
    }
    let (app, seen) = app(&env_of(&[]), Vec::new());
    let response = app
        .call(request("GET", "/v1/a/c/o?version-id=60", &[]))
        .await;
    assert_eq!((response.status().as_u16(), calls(&seen).len()), (400, 0));
    let response = app
        .call(request("GET", "/v1/a/c/o?version-id=null", &[]))
        .await;
    assert_eq!((response.status().as_u16(), calls(&seen).len()), (404, 1));
}

/// An unauthorized client learns neither whether a version exists, nor which is the latest, nor
/// whether the container has versions; nothing is requested on its behalf.
#[tokio::test]
async fn who_may_not_ask_is_told_nothing_of_versions() {
    let version = row(&format!("HEAD {OLD}"), 200, &[("etag", "e")], "");
    for env in [versioned("True"), versioned("False"), env_of(&[])] {
        for method in ["GET", "HEAD", "PUT", "DELETE"] {
            let rows = table([version.clone(), link_to_old("HEAD")]);
            let (app, seen) = app(&env, rows);
            let path = format!("/v1/a/c/o?version-id={OLD_ID}");
            let asked = denied(method, &path, &[("content-length", "0")]);
            let response = app.call(asked).await;
            assert_eq!(response.status(), 403, "{method}");
            let current = header(&response, "x-object-current-version-id");
            assert_eq!(current, None, "{method}");
            assert!(calls(&seen).is_empty(), "{method}: {:?}", calls(&seen));
        }
    }
}

/// A client's static link in a container with versions: its target is checked with the client's
/// authority, although the version is written with the filter's.
#[tokio::test]
async fn targets_of_links_are_looked_at_for_the_client() {
    let target = row("HEAD /v1/b/priv/secret", 200, &[("etag", "real")], "");
    let (app, seen) = app(&versioned("True"), target);
    let headers = [
        ("x-symlink-target", "priv/secret"),
        ("x-symlink-target-account", "b"),
        ("x-symlink-target-etag", "guess"),
        ("content-length", "0"),
    ];
    app.call(request("PUT", "/v1/a/c/o", &headers)).await;
    let at = calls(&seen)
        .iter()
        .position(|call| call.starts_with("HEAD /v1/b/"))
        .unwrap();
    assert!(!context(&seen, at).authorized);
    assert_eq!(sent(&seen, at, "x-backend-allow-reserved-names"), None);
}

/// A static link is saved unchanged, without checking its target.
#[tokio::test]
async fn links_are_kept_unseen() {
    let link = [
        ("x-object-sysmeta-symlink-target", "priv/secret"),
        ("x-object-sysmeta-symlink-target-account", "b"),
        ("x-object-sysmeta-symlink-target-etag", "old"),
        ("x-object-sysmeta-symlink-target-bytes", "7"),
        ("x-object-sysmeta-allow-reserved-names", "true"),
        ("x-timestamp", "60"),
    ];
    let current = row("GET /v1/a/c/o", 200, &link, "");
    let (app, seen) = app(&versioned("True"), current);
    let put = request("PUT", "/v1/a/c/o", &[("content-length", "0")]);
    assert_eq!(app.call(put).await.status(), 201);
    assert_eq!(calls(&seen)[1], format!("PUT {OLD}"));
    for (name, value) in [
        ("x-object-sysmeta-symlink-target", Some("priv/secret")),
        ("x-object-sysmeta-symlink-target-etag", Some("old")),
        ("x-object-sysmeta-symlink-target-bytes", Some("7")),
        ("x-object-sysmeta-allow-reserved-names", None),
    ] {
        assert_eq!(sent(&seen, 1, name).as_deref(), value, "{name}");
    }
}
