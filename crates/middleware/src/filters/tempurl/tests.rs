//! Cases beyond `golden.rs`, which compares with Swift's own filter.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::signature::Digest;
use crate::testing::{self, OneOfEach, Seen, filter_in, header, recorder, request, text};
use cairn_http::{AccountInfo, ContainerInfo};

const NOW: u64 = 1_700_000_000;

fn env() -> FilterEnv {
    let meta = |key: &str| [("temp-url-key".to_owned(), key.to_owned())].into();
    let mut env = testing::env();
    env.info_source = Arc::new(OneOfEach {
        account: Arc::new(AccountInfo {
            meta: meta("account's key"),
            ..AccountInfo::default()
        }),
        container: Arc::new(ContainerInfo {
            meta: meta("container's key"),
            ..ContainerInfo::default()
        }),
    });
    env
}

fn app(options: &[(&str, &str)]) -> (Handler, Seen) {
    let (inner, seen) = recorder(|_| respond::text(StatusCode::OK, "inner"));
    (filter_in(&env(), "tempurl", options, inner), seen)
}

/// A signed URL of a path.
fn signed(method: &str, path: &str, key: &str, more: &str) -> String {
    let message = format!("{method}\n{}\n{path}", NOW + 10);
    let mac = Digest::Sha256
        .mac(key.as_bytes(), message.as_bytes())
        .unwrap();
    let signature = cairn_types::hex::encode(mac);
    format!(
        "{path}?temp_url_sig={signature}&temp_url_expires={}{more}",
        NOW + 10
    )
}

async fn status(app: &Handler, method: &str, url: &str) -> u16 {
    app.call(request(method, url, &[])).await.status().as_u16()
}

#[tokio::test]
async fn a_signature_is_for_its_request_alone() {
    let (app, seen) = app(&[]);
    let url = signed("GET", "/v1/a/c/o", "account's key", "");
    assert_eq!(status(&app, "GET", &url).await, 200);
    assert_eq!(status(&app, "HEAD", &url).await, 200);
    for (method, url) in [
        ("PUT", url.clone()),
        ("DELETE", url.clone()),
        ("GET", url.replace("/c/o", "/c/p")),
        ("GET", url.replace("/c/o", "/d/o")),
        ("GET", url.replace("/v1/", "/v1.0/")),
        (
            "GET",
            url.replace(&(NOW + 10).to_string(), &(NOW + 11).to_string()),
        ),
        ("GET", format!("{url}&temp_url_prefix=")),
        ("GET", format!("{url}&temp_url_ip_range=0.0.0.0/0")),
        ("GET", signed("GET", "/v1/a/c/o", "another key", "")),
        ("GET", signed("GET", "/v1/a/c/o", "", "")),
        (
            "GET",
            "/v1/a/c/o?temp_url_sig=%ff&temp_url_expires=1".to_owned(),
        ),
        ("GET", "/v1/a/c/o?%74emp_url_sig=x".to_owned()),
    ] {
        assert_eq!(status(&app, method, &url).await, 401, "{method} {url}");
    }
    assert_eq!(seen.lock().unwrap().len(), 2);
    // The signature for a HEAD does not allow a GET.
    let url = signed("HEAD", "/v1/a/c/o", "account's key", "");
    assert_eq!(status(&app, "GET", &url).await, 401);
}

#[tokio::test]
async fn unsigned_requests_pass_untouched() {
    let (app, seen) = app(&[]);
    for url in [
        "/v1/a/c/o",
        "/v1/a/c/o?temp_url_prefix=x",
        "/v1/a/c/%ff?a=%ff",
    ] {
        assert_eq!(status(&app, "GET", url).await, 200, "{url}");
        let (parts, _) = seen.lock().unwrap().pop().unwrap();
        assert_eq!(parts.uri.to_string(), url);
        assert!(!Context::of(&parts).authorized);
    }
    let url = signed("GET", "/v1/a/c/o", "wrong", "");
    assert_eq!(status(&app, "OPTIONS", &url).await, 200);
}

#[tokio::test]
async fn ends_with_its_time() {
    let env = env();
    let (inner, _) = recorder(|_| respond::empty(StatusCode::OK));
    let app = filter_in(&env, "tempurl", &[], inner);
    let url = signed("GET", "/v1/a/c/o", "account's key", "");
    for (seconds, expected) in [(10, 200), (1, 401)] {
        env.clock.advance(std::time::Duration::from_secs(seconds));
        assert_eq!(status(&app, "GET", &url).await, expected);
    }
}

/// CVE-2015-5223, CVE-2026-97149: no pointers to, and no copies of, data that the signature does
/// not cover; a container's key gives access to nothing beyond the container, whatever a manifest
/// references.
#[tokio::test]
async fn no_way_around_the_scope() {
    let (app, seen) = app(&[]);
    let url = signed("PUT", "/v1/a/c/o", "container's key", "");
    for name in [
        "X-Object-Manifest",
        "X-Symlink-Target",
        "X-Symlink-Target-Account",
        "X-Copy-From",
        "X-Copy-From-Account",
        "Destination",
        "Destination-Account",
    ] {
        let answer = app.call(request("PUT", &url, &[(name, "d/secret")])).await;
        assert_eq!(answer.status(), 400, "{name}");
        assert!(text(answer).await.contains(name));
    }
    assert!(seen.lock().unwrap().is_empty());
    for (key, reached) in [
        ("account's key", [true, true]),
        ("container's key", [true, false]),
    ] {
        let url = signed("GET", "/v1/a/c/o", key, "");
        assert_eq!(status(&app, "GET", &url).await, 200);
        let (parts, _) = seen.lock().unwrap().pop().unwrap();
        let context = Context::of(&parts);
        assert!(context.authorized && !context.owner && !context.is_pre_authorized());
        for (path, allowed) in ["/v1/a/c/segment", "/v1/a/d/segment"]
            .into_iter()
            .zip(reached)
        {
            let (segment, _) = request("GET", path, &[]).into_parts();
            let decision = context.authorize(&segment, Some(".r:*")).await;
            assert_eq!(decision.is_ok(), allowed, "{key} {path}");
        }
        let (other, _) = request("GET", "/v1/b/c/o", &[]).into_parts();
        let denied = context.authorize(&other, None).await.unwrap_err();
        let realm = header(&denied, "www-authenticate").unwrap();
        assert_eq!(
            (denied.status().as_u16(), realm.as_str()),
            (401, "Swift realm=\"b\"")
        );
    }
}

#[tokio::test]
async fn names_in_headers_break_no_line() {
    let (app, _) = app(&[]);
    let url = signed(
        "GET",
        "/v1/a/c/o",
        "account's key",
        "&filename=a%0D%0Ab%22.txt",
    );
    let answer = app.call(request("GET", &url, &[])).await;
    assert_eq!(
        header(&answer, "content-disposition").unwrap(),
        "attachment; filename=\"a%0D%0Ab%22.txt\"; filename*=UTF-8''a%0D%0Ab%22.txt"
    );
}

#[tokio::test]
async fn info() {
    let env = env();
    let (inner, _) = recorder(|_| respond::empty(StatusCode::OK));
    filter_in(&env, "tempurl", &[("methods", "GET HEAD")], inner);
    assert_eq!(
        env.swift_info.view(&[], false)["tempurl"],
        json!({
            "methods": ["GET", "HEAD"],
            "incoming_remove_headers": ["x-timestamp", "x-open-expired"],
            "incoming_allow_headers": [],
            "outgoing_remove_headers": ["x-object-meta-*"],
            "outgoing_allow_headers": ["x-object-meta-public-*"],
            "allowed_digests": ["sha1", "sha256", "sha512"],
            "deprecated_digests": ["sha1"],
        })
    );
}
