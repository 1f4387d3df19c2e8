use std::fs;

use cairn_http::ContainerInfo;

use super::*;
use crate::testing::{OneOfEach, env, filter_in, header, recorder, request, text};

const REALMS: &str = "[us]\nkey = realmkey\nkey2 = newkey\ncluster_dfw = http://dfw/v1/\n";

fn environment(sync_key: Option<&str>, versions: Option<&str>) -> FilterEnv {
    let mut container = ContainerInfo {
        sync_key: sync_key.map(str::to_owned),
        ..ContainerInfo::default()
    };
    if let Some(versions) = versions {
        let name = "versions-container".to_owned();
        container.sysmeta.insert(name, versions.to_owned());
    }
    let info = OneOfEach {
        container: Arc::new(container),
        ..OneOfEach::default()
    };
    FilterEnv {
        info_source: Arc::new(info),
        ..env()
    }
}

/// A signature for a PUT of `/v1/a/c/o p` at time 5.
fn auth(key: &str, user_key: &str) -> String {
    let signed = Signed {
        method: "PUT",
        path: "/v1/a/c/o%20p",
        timestamp: "5",
        nonce: "n",
        user_key,
    };
    format!("US n {}", signed.signature(key))
}

#[tokio::test]
async fn only_what_is_signed_gets_in() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("container-sync-realms.conf"), REALMS).unwrap();
    let options = [("swift_dir", folder.path().to_str().unwrap())];
    let environment = environment(Some("userkey"), None);
    let (inner, seen) = recorder(|_| respond::empty(StatusCode::CREATED));
    let app = filter_in(&environment, "container_sync", &options, inner);
    for (auth, status) in [
        (auth("realmkey", "userkey"), 201),
        (auth("newkey", "userkey"), 201),
        (auth("realmkey", "other"), 401),
        (auth("other", "userkey"), 401),
        ("US n".to_owned(), 401),
        ("UK n abc".to_owned(), 401),
    ] {
        let headers = [
            ("x-container-sync-auth", auth.as_str()),
            ("x-backend-inbound-x-timestamp", "5"),
        ];
        let response = app.call(request("PUT", "/v1/a/c/o%20p", &headers)).await;
        assert_eq!(response.status(), status, "{auth}");
        if status == 401 {
            let realm = header(&response, "www-authenticate").unwrap();
            assert_eq!(realm, "SwiftContainerSync realm=\"a\"");
            assert!(text(response).await.contains("contact cluster operator"));
        }
    }
    let (parts, _) = {
        let mut seen = seen.lock().unwrap();
        assert_eq!(seen.len(), 2);
        seen.remove(0)
    };
    let context = Context::of(&parts);
    assert!(context.authorized && context.slo_override && context.symlink_override);
    assert_eq!(parts.headers["x-timestamp"], "5");
    // The signature gives access to its container and no other, by any indirection.
    for (path, allowed) in [
        ("/v1/a/c/o%20p", true),
        ("/v1/a/c/other", true),
        ("/v1/a/d/o", false),
        ("/v1/b/c/o", false),
    ] {
        let (asked, _) = request("GET", path, &[]).into_parts();
        let decision = match &context.authorizer {
            Some(authorizer) => authorizer.authorize(&asked, None).await.is_ok(),
            None => true,
        };
        assert_eq!(decision, allowed, "{path}");
    }
}

/// Clusters never send copies, and the signature does not cover their source.
#[tokio::test]
async fn copies_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("container-sync-realms.conf"), REALMS).unwrap();
    let options = [("swift_dir", folder.path().to_str().unwrap())];
    let environment = environment(Some("userkey"), None);
    let (inner, seen) = recorder(|_| respond::empty(StatusCode::CREATED));
    let app = filter_in(&environment, "container_sync", &options, inner);
    for name in ["x-copy-from", "x-copy-from-account", "destination"] {
        let headers = [
            ("x-container-sync-auth", &*auth("realmkey", "userkey")),
            ("x-backend-inbound-x-timestamp", "5"),
            (name, "priv/secret"),
        ];
        let response = app.call(request("PUT", "/v1/a/c/o%20p", &headers)).await;
        assert_eq!(response.status(), 400, "{name}");
    }
    assert!(seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn what_may_not_be_set() {
    let (inner, _) = recorder(|_| respond::empty(StatusCode::CREATED));
    let no_urls = [("allow_full_urls", "no")];
    for (environment, options, to, status) in [
        (
            environment(None, None),
            &no_urls[..],
            "http://x/v1/a/c",
            400,
        ),
        (environment(None, None), &no_urls[..], "//us/dfw/a/c", 201),
        (environment(None, None), &[][..], "http://x/v1/a/c", 201),
        (environment(None, Some("v")), &[][..], "//us/dfw/a/c", 400),
    ] {
        let app = filter_in(&environment, "container_sync", options, inner.clone());
        let headers = [("x-container-sync-to", to)];
        let response = app.call(request("PUT", "/v1/a/c", &headers)).await;
        assert_eq!(response.status(), status, "{to}");
    }
}

#[test]
fn info_tells_of_realms() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("container-sync-realms.conf"), REALMS).unwrap();
    let dir = folder.path().to_str().unwrap();
    let environment = env();
    let (inner, _) = recorder(|_| respond::empty(StatusCode::OK));
    let options = [("swift_dir", dir), ("current", "//us/dfw")];
    filter_in(&environment, "container_sync", &options, inner);
    let info = environment.swift_info.view(&[], false);
    let realms = json!({"US": {"clusters": {"DFW": {"current": true}}}});
    assert_eq!(info["container_sync"]["realms"], realms);
}
