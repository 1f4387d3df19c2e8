//! Cases beyond `golden.rs`, which compares with Swift's own filter: who gets pages, and signed
//! listings.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::signature::Digest;
use crate::testing::{self, OneOfEach, filter_in, header, recorder, request, text};
use cairn_http::context::{Authorize, AuthorizeFuture, Granted};
use cairn_http::{AccountInfo, ContainerInfo};

struct OnList;

impl Authorize for OnList {
    fn authorize<'a>(&'a self, _: &'a Parts, acl: Option<&'a str>) -> AuthorizeFuture<'a> {
        let denied = || respond::standard(StatusCode::UNAUTHORIZED);
        let granted = (acl == Some(".r:*,.rlistings")).then(Granted::default);
        Box::pin(std::future::ready(granted.ok_or_else(denied)))
    }
}

const LISTING: &str = r#"[{"subdir":"dir/é\"&/"},{"name":"dir/a.txt","bytes":5,"content_type":"text/plain","last_modified":"2026-11-22T00:00:00.000000"}]"#;

fn env(acl: Option<&str>) -> FilterEnv {
    let mut env = testing::env();
    env.info_source = Arc::new(OneOfEach {
        account: Arc::new(AccountInfo {
            meta: [("temp-url-key".to_owned(), "key".to_owned())].into(),
            ..AccountInfo::default()
        }),
        container: Arc::new(ContainerInfo {
            status: 204,
            read_acl: acl.map(str::to_owned),
            meta: [("web-listings".to_owned(), "true".to_owned())].into(),
            ..ContainerInfo::default()
        }),
    });
    env
}

fn site(env: &FilterEnv) -> Handler {
    let (inner, _) = recorder(|parts| match parts.uri.path() {
        "/v1/a/c" => respond::typed(StatusCode::OK, "application/json", LISTING),
        _ => respond::standard(StatusCode::NOT_FOUND),
    });
    filter_in(env, "staticweb", &[], inner)
}

fn visit(path: &str, headers: &[(&str, &str)], user: Option<&str>) -> Request {
    let mut asked = request("GET", path, headers);
    let context = Context {
        authorizer: Some(Arc::new(OnList)),
        ..Context::default()
    };
    if let Some(user) = user {
        context.notes.set_user(user);
    }
    asked.extensions_mut().insert(context);
    asked
}

#[tokio::test]
async fn who_gets_pages() {
    let public = Some(".r:*,.rlistings");
    let web = [("x-web-mode", "true")];
    for (acl, headers, user, path, status) in [
        (public, &[][..], None, "/v1/a/c/", 200),
        (public, &[], Some("a:b"), "/v1/a/c/", 404),
        (public, &web, Some("a:b"), "/v1/a/c/", 200),
        (None, &[], None, "/v1/a/c/", 401),
        (public, &[], None, "/v1/a/c", 301),
        (public, &[], None, "/v1/a", 404),
    ] {
        let answer = site(&env(acl)).call(visit(path, headers, user)).await;
        assert_eq!(answer.status(), status, "{acl:?} {user:?} {path}");
    }
    // Without authentication in the pipeline no request is anonymous.
    let answer = site(&env(public))
        .call(request("GET", "/v1/a/c/", &[]))
        .await;
    assert_eq!(answer.status(), 404);
}

#[tokio::test]
async fn a_signed_listing_links_on_with_the_signature() {
    let env = env(None);
    let app = filter_in(&env, "tempurl", &[], site(&env));
    let message = "GET\n1700000010\nprefix:/v1/a/c/dir/";
    let signature =
        cairn_types::hex::encode(Digest::Sha256.mac(b"key", message.as_bytes()).unwrap());
    let query =
        format!("temp_url_prefix=dir/&temp_url_expires=1700000010&temp_url_sig={signature}");
    let asked = visit(&format!("/v1/a/c/dir/?{query}&inline"), &[], None);
    let answer = app.call(asked).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(
        header(&answer, "content-disposition").as_deref(),
        Some("inline")
    );
    let page = text(answer).await;
    let signed = format!("?{}&amp;inline", query.replace('&', "&amp;"));
    assert!(
        page.contains(&format!("<a href=\"./a%2Etxt{signed}\">a.txt</a>")),
        "{page}"
    );
    let folder = format!("<a href=\"./%C3%A9%22%26/{signed}\">é&quot;&amp;/</a>");
    assert!(page.contains(&folder), "{page}");
    assert!(!page.contains("../"), "the parent is not signed for");
}
