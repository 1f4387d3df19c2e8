//! Containers with versions, and listings of containers, versions and accounts.

use cairn_types::{PolicyIndex, PolicyKind, PolicySet, StoragePolicy};
use serde_json::{Value, json};

use super::*;
use crate::testing::{header, text};

const VERSIONS: &str = "/v1/a/%00versions%00c";
const MARKER: &str = "application/x-deleted;swift_versions_deleted=1";
const STORED: &str = "x-container-sysmeta-versions-container";
const ENABLED: &str = "x-container-sysmeta-versions-enabled";

fn policies() -> PolicySet {
    let policy = |index: u32, deprecated| StoragePolicy {
        index: PolicyIndex(index),
        name: format!("p{index}"),
        aliases: Vec::new(),
        is_default: index == 0,
        deprecated,
        kind: PolicyKind::Replication,
    };
    PolicySet::new(vec![policy(0, false), policy(1, false), policy(2, true)]).unwrap()
}

fn in_policy(status: u16, index: u32) -> FilterEnv {
    FilterEnv {
        policies: Arc::new(policies()),
        ..env_with(ContainerInfo {
            status,
            policy: PolicyIndex(index),
            ..ContainerInfo::default()
        })
    }
}

const ON: [(&str, &str); 2] = [("x-versions-enabled", "yes"), ("x-storage-policy", "p0")];

#[tokio::test]
async fn enabling_makes_the_hidden_container() {
    for (method, status, policy) in [
        ("POST", 204, Some("p1")),
        ("PUT", 404, Some("p0")),
        ("POST", 404, None),
    ] {
        let (app, seen) = app(&in_policy(status, 1), Vec::new());
        let response = app.call(request(method, "/v1/a/c", &ON)).await;
        assert!(response.status().is_success());
        assert_eq!(
            calls(&seen),
            [format!("PUT {VERSIONS}"), format!("{method} /v1/a/c")]
        );
        assert_eq!(sent(&seen, 0, "x-storage-policy").as_deref(), policy);
        assert_eq!(
            sent(&seen, 0, "x-backend-allow-reserved-names").unwrap(),
            "true"
        );
        assert!(context(&seen, 0).authorized && !context(&seen, 1).authorized);
        assert_eq!(sent(&seen, 1, STORED).unwrap(), "%00versions%00c");
        assert_eq!(sent(&seen, 1, ENABLED).unwrap(), "True");
    }
    let (app, seen) = app(&in_policy(204, 1), Vec::new());
    app.call(request("POST", "/v1/a/c", &[("x-versions-enabled", "off")]))
        .await;
    assert_eq!(calls(&seen), ["POST /v1/a/c"]);
    assert_eq!(sent(&seen, 0, ENABLED).unwrap(), "False");
    assert_eq!(sent(&seen, 0, STORED), None);
}

#[tokio::test]
async fn enabling_is_refused() {
    let with = |info: ContainerInfo| {
        env_with(ContainerInfo {
            status: 204,
            ..info
        })
    };
    let sysmeta = [("versions-location".to_owned(), "v".to_owned())];
    for env in [
        in_policy(204, 2),
        with(ContainerInfo {
            sysmeta: sysmeta.into(),
            ..ContainerInfo::default()
        }),
        with(ContainerInfo {
            versions: Some("v".into()),
            ..ContainerInfo::default()
        }),
        with(ContainerInfo {
            sync_to: Some("x".into()),
            ..ContainerInfo::default()
        }),
    ] {
        let (app, seen) = app(&env, Vec::new());
        let response = app.call(request("POST", "/v1/a/c", &ON)).await;
        assert_eq!((response.status().as_u16(), calls(&seen).len()), (400, 0));
        let response = app.call(denied("POST", "/v1/a/c", &ON)).await;
        assert_eq!((response.status().as_u16(), calls(&seen).len()), (403, 0));
    }
}

#[tokio::test]
async fn enabling_that_fails_leaves_nothing() {
    let (filter, seen) = app(&in_policy(404, 0), row("POST /v1/a/c", 404, &[], ""));
    let response = filter.call(request("POST", "/v1/a/c", &ON)).await;
    assert_eq!(response.status(), 404);
    assert_eq!(calls(&seen)[2..], [format!("DELETE {VERSIONS}")]);
    let (filter, seen) = app(
        &in_policy(404, 0),
        row(&format!("PUT {VERSIONS}"), 507, &[], ""),
    );
    let response = filter.call(request("PUT", "/v1/a/c", &ON)).await;
    assert_eq!((response.status().as_u16(), calls(&seen).len()), (500, 1));
    assert_eq!(text(response).await, "Error enabling object versioning");
    let (filter, _) = app(
        &in_policy(404, 0),
        row(&format!("PUT {VERSIONS}"), 409, &[], ""),
    );
    let response = filter.call(request("PUT", "/v1/a/c", &ON)).await;
    assert_eq!(response.status(), 201);
}

#[tokio::test]
async fn heads_count_the_versions_bytes() {
    let rows = table([
        row(
            "HEAD /v1/a/c",
            204,
            &[
                (STORED, "%00versions%00c"),
                (ENABLED, "True"),
                ("x-container-bytes-used", "3"),
            ],
            "",
        ),
        row(
            &format!("HEAD {VERSIONS}"),
            204,
            &[("x-container-bytes-used", "4")],
            "",
        ),
    ]);
    let (app, _) = app(&versioned("True"), rows);
    let response = app.call(request("HEAD", "/v1/a/c", &[])).await;
    assert_eq!(header(&response, "x-versions-enabled").unwrap(), "True");
    assert_eq!(header(&response, "x-container-bytes-used").unwrap(), "7");
}

#[tokio::test]
async fn a_container_goes_after_its_versions() {
    let head = |status, count| {
        let headers = [("x-container-object-count", count)];
        row(&format!("HEAD {VERSIONS}"), status, &headers, "")
    };
    let deletes = |status| row(&format!("DELETE {VERSIONS}"), status, &[], "");
    for (rows, status, last) in [
        (vec![head(204, "0")], 204, "DELETE /v1/a/c".to_owned()),
        (
            vec![head(404, "0"), deletes(404)],
            204,
            "DELETE /v1/a/c".into(),
        ),
        (vec![head(204, "1")], 409, format!("HEAD {VERSIONS}")),
        (vec![head(503, "0")], 500, format!("HEAD {VERSIONS}")),
        (
            vec![head(204, "0"), deletes(409)],
            500,
            format!("DELETE {VERSIONS}"),
        ),
    ] {
        let (app, seen) = app(&versioned("False"), table(rows));
        let response = app.call(request("DELETE", "/v1/a/c", &[])).await;
        assert_eq!(response.status().as_u16(), status);
        assert_eq!(calls(&seen).last(), Some(&last));
    }
    let (app, seen) = app(&versioned("False"), head(204, "0"));
    let response = app.call(denied("DELETE", "/v1/a/c", &[])).await;
    assert_eq!((response.status().as_u16(), calls(&seen).len()), (403, 0));
}

/// A row of the user's container that is a link to a version.
fn link(name: &str, inverse: &str, hash: &str) -> Value {
    let target = format!("%00versions%00c/%00{name}%00{inverse}");
    json!({
        "name": name, "bytes": 0, "content_type": "a/b", "last_modified": "t",
        "hash": format!("{hash}; symlink_target={target}; symlink_target_etag=e; symlink_target_bytes=9"),
    })
}

fn version(name: &str, inverse: &str, content_type: &str) -> Value {
    json!({
        "name": format!("\0{name}\0{inverse}"), "bytes": 9, "hash": "e",
        "content_type": content_type, "last_modified": "t",
    })
}

fn listings(current: Value, versions: Option<Value>) -> Table {
    let meta = [
        (STORED, "%00versions%00c"),
        (ENABLED, "True"),
        ("content-type", "application/json"),
    ];
    let versions = match versions {
        Some(rows) => row(&format!("GET {VERSIONS}"), 200, &[], &rows.to_string()),
        None => row(&format!("GET {VERSIONS}"), 404, &[], ""),
    };
    table([
        row("GET /v1/a/c", 200, &meta, &current.to_string()),
        versions,
    ])
}

async fn listed(response: Response) -> Value {
    assert_eq!(response.status(), 200);
    let length = header(&response, "content-length").unwrap();
    let body = text(response).await;
    assert_eq!(length, body.len().to_string());
    serde_json::from_str(&body).unwrap()
}

/// Name, id and `is_latest` of every row.
async fn ids(response: Response) -> Vec<(String, String, bool)> {
    let rows = listed(response).await;
    let text = |row: &Value, name: &str| row[name].as_str().unwrap_or("-").to_owned();
    rows.as_array()
        .unwrap()
        .iter()
        .map(|row| {
            let name = row["subdir"].as_str().map(str::to_owned);
            let latest = row["is_latest"].as_bool().unwrap_or(false);
            (
                name.unwrap_or_else(|| text(row, "name")),
                text(row, "version_id"),
                latest,
            )
        })
        .collect()
}

fn id(name: &str, id: &str, latest: bool) -> (String, String, bool) {
    (name.into(), id.into(), latest)
}

#[tokio::test]
async fn listings_show_versions_as_objects() {
    let current = json!([
        link("o", "9999999939.99999", "h; slo_etag=s"),
        {"name": "plain", "bytes": 1, "hash": "p", "content_type": "a/b", "last_modified": "t"},
        {"name": "other", "bytes": 0, "hash": "h; symlink_target=d/o; symlink_target_etag=e; symlink_target_bytes=9"},
    ]);
    let (app, seen) = app(&versioned("True"), listings(current, None));
    let rows = listed(app.call(request("GET", "/v1/a/c?format=json", &[])).await).await;
    assert_eq!(
        rows,
        json!([
            {"name": "o", "bytes": 9, "hash": "e; slo_etag=s", "content_type": "a/b",
             "last_modified": "t", "version_symlink": true,
             "symlink_path": "/v1/a/c/o?version-id=0000000060.00000"},
            {"name": "plain", "bytes": 1, "hash": "p", "content_type": "a/b", "last_modified": "t"},
            {"name": "other", "bytes": 0, "hash": "h", "symlink_bytes": 9, "symlink_etag": "e",
             "symlink_path": "/v1/a/d/o"},
        ])
    );
    assert_eq!(calls(&seen).len(), 1);
}

#[tokio::test]
async fn versions_are_merged() {
    let current = json!([
        link("a", "9999999939.99999", "h"),
        {"name": "null", "bytes": 1, "hash": "p", "content_type": "a/b", "last_modified": "t"},
        {"subdir": "s/"},
        link("lost", "9999999939.99999", "h"),
    ]);
    let versions = json!([
        version("a", "9999999938.99999", MARKER),
        version("a", "9999999939.99999", "a/b"),
        version("a", "9999999940.99999", "a/b"),
        version("gone", "9999999939.99999", MARKER),
        version("gone", "9999999940.99999", "a/b"),
        version("null", "9999999940.99999", MARKER),
        {"subdir": "\u{0}s/"},
        {"subdir": "\u{0}z/"},
        {"name": "no version", "content_type": "a/b"},
    ]);
    let (app, seen) = app(&versioned("True"), listings(current, Some(versions)));
    let expected = vec![
        // The newest is a marker, newer than the link.
        id("a", "0000000061.00000", true),
        id("a", "0000000060.00000", true),
        id("a", "0000000059.00000", false),
        id("gone", "0000000060.00000", true),
        id("gone", "0000000059.00000", false),
        id("null", "null", true),
        id("null", "0000000059.00000", false),
        id("s/", "-", false),
        id("z/", "-", false),
    ];
    let path = "/v1/a/c?versions&format=json&limit=20&prefix=p";
    assert_eq!(
        ids(app.call(request("GET", path, &[])).await).await,
        expected
    );
    let asked = &calls(&seen)[1];
    assert!(
        asked.contains("prefix=%00p") && asked.contains("limit=20"),
        "{asked}"
    );
    let response = app
        .call(request("GET", "/v1/a/c?versions&limit=2", &[]))
        .await;
    assert_eq!(ids(response).await.len(), 2);
    let response = app
        .call(request("GET", "/v1/a/c?versions&reverse=1", &[]))
        .await;
    let names: Vec<String> = ids(response)
        .await
        .into_iter()
        .map(|(name, ..)| name)
        .collect();
    assert_eq!(
        names,
        ["z/", "s/", "null", "null", "gone", "gone", "a", "a", "a"]
    );
}

#[tokio::test]
async fn versions_without_their_container() {
    let current = json!([
        link("a", "9999999939.99999", "h"),
        {"name": "null", "bytes": 1, "hash": "p", "content_type": "a/b", "last_modified": "t"},
    ]);
    let (filter, _) = app(&versioned("True"), listings(current.clone(), None));
    let response = filter.call(request("GET", "/v1/a/c?versions", &[])).await;
    let expected = vec![id("a", "0000000060.00000", true), id("null", "null", true)];
    assert_eq!(ids(response).await, expected);
    // Known not to exist: not requested at all.
    let nowhere = env_with(ContainerInfo {
        status: 404,
        ..ContainerInfo::default()
    });
    let (filter, seen) = app(&nowhere, listings(current, None));
    filter.call(request("GET", "/v1/a/c?versions", &[])).await;
    assert_eq!(calls(&seen).len(), 1);
}

#[tokio::test]
async fn markers_among_versions() {
    let (app, seen) = app(&versioned("True"), listings(json!([]), Some(json!([]))));
    for (query, marker) in [
        ("marker=o", "%00o%00%3A"),
        ("marker=o&version_marker=null", "%00o%00"),
        ("marker=o&version_marker=60", "%00o%009999999939.99999"),
        (
            "marker=o&version_marker=0000000060.00000_2edcba9876123456",
            "%00o%009999999939.99998_d123456789edcbaa",
        ),
    ] {
        seen.lock().unwrap().clear();
        let path = format!("/v1/a/c?versions&{query}");
        let response = app.call(request("GET", &path, &[])).await;
        assert_eq!(response.status(), 200);
        let asked = calls(&seen).pop().unwrap();
        assert!(asked.contains(&format!("marker={marker}&")), "{asked}");
    }
    for query in [
        "version_marker=1",
        "marker=o&version_marker=x",
        "delimiter=1",
        "delimiter=a.",
        "prefix=%00",
    ] {
        let path = format!("/v1/a/c?versions&{query}");
        let response = app.call(request("GET", &path, &[])).await;
        assert_eq!(response.status(), 400, "{query}");
    }
}

#[tokio::test]
async fn versions_are_listed_in_json_alone() {
    let env = versioned("True");
    let (inner, _) = app(
        &env,
        listings(
            json!([]),
            Some(json!([version("o", "9999999939.99999", "a/b")])),
        ),
    );
    let app = filter_in(&env, "listing_formats", &[], inner);
    for (path, accept, status) in [
        ("/v1/a/c?versions", "", 200),
        ("/v1/a/c?versions&format=json", "text/plain", 200),
        ("/v1/a/c?versions&format=xml", "", 406),
        ("/v1/a/c?versions", "text/plain", 406),
        ("/v1/a/c?versions", "*/*", 200),
    ] {
        let headers: Vec<_> = [("accept", accept)]
            .into_iter()
            .filter(|(_, v)| !v.is_empty())
            .collect();
        let response = app.call(request("GET", path, &headers)).await;
        assert_eq!(response.status().as_u16(), status, "{path} {accept}");
        if status == 200 {
            assert_eq!(ids(response).await, [id("o", "0000000060.00000", false)]);
        }
    }
}

#[tokio::test]
async fn errors_of_the_versions_listing_are_told() {
    let failing = table([
        row(&format!("GET {VERSIONS}"), 503, &[], ""),
        row(
            "GET /v1/a/c",
            200,
            &[("content-type", "application/json")],
            "[]",
        ),
    ]);
    let (app, _) = app(&versioned("True"), failing);
    let response = app.call(request("GET", "/v1/a/c?versions", &[])).await;
    assert_eq!(response.status(), 503);
}

#[tokio::test]
async fn accounts_count_versions() {
    let env = env();
    let (inner, seen) = recorder(|parts| {
        let container = |name: &str, bytes: u64| json!({"name": name, "bytes": bytes, "count": 2});
        let rows = if parts.headers.contains_key("x-backend-allow-reserved-names") {
            json!([
                container("\0versions\0b", 10),
                container("\0versions\0orphan", 5)
            ])
        } else {
            json!([container("a", 1), container("b", 2), {"subdir": "s/"}])
        };
        respond::typed(StatusCode::OK, "application/json", rows.to_string())
    });
    let links = filter_in(&env, "symlink", &[], inner);
    let app = filter_in(
        &env,
        "versioned_writes",
        &[("allow_object_versioning", "true")],
        links,
    );
    let rows = listed(app.call(request("GET", "/v1/a?format=json", &[])).await).await;
    assert_eq!(
        rows,
        json!([
            {"name": "a", "bytes": 1, "count": 2},
            {"name": "b", "bytes": 12, "count": 2},
            {"name": "orphan", "bytes": 5, "count": 0},
            {"subdir": "s/"},
        ])
    );
    app.call(request(
        "GET",
        "/v1/a?prefix=b&marker=a&end_marker=&limit=3",
        &[],
    ))
    .await;
    let calls = calls(&seen);
    assert_eq!(calls[1], "GET /v1/a?format=json&prefix=%00versions%00");
    assert_eq!(
        calls[3],
        "GET /v1/a?end_marker=&limit=3&prefix=%00versions%00b&marker=%00versions%00a"
    );
}
