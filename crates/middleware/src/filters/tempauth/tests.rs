//! The filter in front of a handler that calls the authorizer, as the proxy does once it knows the
//! container's ACL.

#![allow(clippy::unwrap_used)]

mod access_lists;
mod requests_for_tokens;

use std::time::Duration;

use cairn_http::{AccountInfo, ContainerInfo, SwiftInfo, handler_fn};
use http::StatusCode;

use super::*;
use crate::filters::memcache::client::{md5_text, tests::fake};
use crate::testing::{OneOfEach, env, filter_in, header, request, text};

const SAMPLE: [(&str, &str); 9] = [
    ("user_admin_admin", "admin .admin .reseller_admin"),
    ("user_admin_auditor", "admin_ro .reseller_reader"),
    ("user_test_tester", "testing .admin"),
    ("user_test_tester2", "testing2 .admin"),
    ("user_test_tester3", "testing3"),
    ("user_test2_tester2", "testing2 .admin"),
    ("user_test5_tester5", "testing5 service"),
    ("user_glance_glance", "glancepw .service"),
    (
        "user_admin_elsewhere",
        "pw .admin https://other.example:81/v1/AUTH_other",
    ),
];

/// A handler that responds 200 if the request is authorized, with the rights in `X-Owner`; 299 if
/// there was no authorizer.
fn proxy(acl: Option<&'static str>) -> Handler {
    handler_fn(move |request: Request| async move {
        let (parts, _) = request.into_parts();
        let context = Context::of(&parts);
        let Some(authorizer) = context.authorizer.filter(|_| !context.authorized) else {
            return respond::empty(respond::status(299));
        };
        match authorizer.authorize(&parts, acl).await {
            Err(response) => response,
            Ok(granted) => {
                let mut response = respond::empty(StatusCode::OK);
                let headers = response.headers_mut();
                respond::set(headers, "x-owner", granted.owner.to_string());
                respond::set(headers, "x-reseller", context.reseller.to_string());
                respond::set(headers, "x-user", context.notes.user().unwrap_or_default());
                for name in [ACCOUNT_ACL, ACCOUNT_ACL_SYSMETA] {
                    if let Some(value) = parts.headers.get(&name) {
                        headers.insert(name, value.clone());
                    }
                }
                response
            }
        }
    })
}

fn app_in(
    env: &FilterEnv,
    extra: &[(&'static str, &'static str)],
    acl: Option<&'static str>,
) -> Handler {
    let mut options = SAMPLE.to_vec();
    options.extend_from_slice(extra);
    filter_in(env, "tempauth", &options, proxy(acl))
}

fn app(acl: Option<&'static str>) -> Handler {
    app_in(&env(), &[], acl)
}

async fn token(app: &Handler, user: &str, key: &str) -> String {
    let headers = [("x-auth-user", user), ("x-auth-key", key)];
    let response = app.call(request("GET", "/auth/v1.0", &headers)).await;
    assert_eq!(response.status(), 200, "{user}");
    header(&response, "x-auth-token").unwrap()
}

/// The status, and whether the user is an owner.
async fn ask(app: &Handler, method: &str, path: &str, headers: &[(&str, &str)]) -> (u16, bool) {
    let response = app.call(request(method, path, headers)).await;
    (
        response.status().as_u16(),
        header(&response, "x-owner").as_deref() == Some("true"),
    )
}

async fn ask_as(app: &Handler, user: &str, key: &str, method: &str, path: &str) -> (u16, bool) {
    let token = token(app, user, key).await;
    ask(app, method, path, &[("x-auth-token", &token)]).await
}

#[tokio::test]
async fn urls() {
    let app = app_in(&env(), &[("storage_url_scheme", "https")], None);
    for (user, key, host, url) in [
        ("test:tester", "testing", "h:80", "https://h/v1/AUTH_test"),
        (
            "test:tester",
            "testing",
            "h:81",
            "https://h:81/v1/AUTH_test",
        ),
        (
            "admin:elsewhere",
            "pw",
            "h",
            "https://other.example:81/v1/AUTH_other",
        ),
    ] {
        let headers = [("x-auth-user", user), ("x-auth-key", key), ("host", host)];
        let response = app.call(request("GET", "/auth/v1.0", &headers)).await;
        assert_eq!(header(&response, "x-storage-url").unwrap(), url);
    }
}

#[tokio::test]
async fn accounts_and_their_administrators() {
    let app = app(None);
    let (forbidden, owner, user) = ((403, false), (200, true), (200, false));
    for (who, key, method, path, expected) in [
        ("test:tester", "testing", "GET", "/v1/AUTH_test", owner),
        ("test:tester", "testing", "POST", "/v1/AUTH_test", owner),
        ("test:tester", "testing", "PUT", "/v1/AUTH_test/c", owner),
        (
            "test:tester",
            "testing",
            "DELETE",
            "/v1/AUTH_test/c/o",
            owner,
        ),
        ("test:tester", "testing", "PUT", "/v1/AUTH_test", forbidden),
        (
            "test:tester",
            "testing",
            "DELETE",
            "/v1/AUTH_test",
            forbidden,
        ),
        ("test:tester", "testing", "GET", "/v1/AUTH_test2", forbidden),
        (
            "test:tester",
            "testing",
            "GET",
            "/v1/AUTH_testing",
            forbidden,
        ),
        ("test:tester", "testing", "GET", "/v1/test", forbidden),
        ("test:tester", "testing", "GET", "/v1", forbidden),
        (
            "test:tester3",
            "testing3",
            "GET",
            "/v1/AUTH_test",
            forbidden,
        ),
        (
            "test:tester3",
            "testing3",
            "OPTIONS",
            "/v1/AUTH_test/c",
            user,
        ),
        ("admin:elsewhere", "pw", "GET", "/v1/AUTH_other", owner),
        ("admin:elsewhere", "pw", "GET", "/v1/AUTH_admin", owner),
        ("admin:admin", "admin", "PUT", "/v1/AUTH_any", owner),
        ("admin:admin", "admin", "DELETE", "/v1/AUTH_any/c/o", owner),
        ("admin:admin", "admin", "GET", "/v1/AUTH_", forbidden),
        ("admin:admin", "admin", "GET", "/v1/AUTH_.auth", forbidden),
        ("admin:admin", "admin", "GET", "/v1/OTHER_any", forbidden),
        ("admin:auditor", "admin_ro", "GET", "/v1/AUTH_any/c/o", user),
        ("admin:auditor", "admin_ro", "HEAD", "/v1/AUTH_any", user),
        (
            "admin:auditor",
            "admin_ro",
            "POST",
            "/v1/AUTH_any",
            forbidden,
        ),
        (
            "admin:auditor",
            "admin_ro",
            "GET",
            "/v1/AUTH_.auth",
            forbidden,
        ),
    ] {
        assert_eq!(
            ask_as(&app, who, key, method, path).await,
            expected,
            "{who} {method} {path}"
        );
    }
}

#[tokio::test]
async fn what_the_proxy_learns_of_the_user() {
    let app = app(None);
    for (user, key, reseller) in [
        ("test:tester", "testing", "false"),
        ("admin:admin", "admin", "true"),
    ] {
        let token = token(&app, user, key).await;
        let path = format!("/v1/AUTH_{}", user.split(':').next().unwrap());
        let response = app
            .call(request("GET", &path, &[("x-auth-token", &token)]))
            .await;
        assert_eq!(header(&response, "x-reseller").unwrap(), reseller);
        assert_eq!(header(&response, "x-user").unwrap(), user);
    }
}

#[tokio::test]
async fn nobody_in_particular() {
    for (acl, referer, path, status) in [
        (None, None, "/v1/AUTH_test/c/o", 401),
        (Some(".r:*"), None, "/v1/AUTH_test/c/o", 200),
        (Some(".r:*"), None, "/v1/AUTH_test/c", 401),
        (Some(".r:*,.rlistings"), None, "/v1/AUTH_test/c", 200),
        (Some(".rlistings"), None, "/v1/AUTH_test/c", 401),
        (Some(".r:.example.com"), None, "/v1/AUTH_test/c/o", 401),
        (
            Some(".r:.example.com"),
            Some("http://www.example.com/i"),
            "/v1/AUTH_test/c/o",
            200,
        ),
        (
            Some(".r:*,.r:-.example.com"),
            Some("http://a.example.com"),
            "/v1/AUTH_test/c/o",
            401,
        ),
        (Some("test:tester"), None, "/v1/AUTH_test/c/o", 401),
        (Some("test,,x"), None, "/v1/AUTH_test/c/o", 401),
        (Some(".r:*"), None, "/v1/OTHER_test/c/o", 401),
    ] {
        let headers: Vec<_> = referer.iter().map(|r| ("referer", *r)).collect();
        let app = app(acl);
        assert_eq!(
            ask(&app, "GET", path, &headers).await,
            (status, false),
            "{acl:?} {path}"
        );
        // A text that is not one of our tokens is ignored.
        let headers = [&headers[..], &[("x-auth-token", "nonsense")]].concat();
        assert_eq!(
            ask(&app, "GET", path, &headers).await,
            (status, false),
            "{acl:?} {path}"
        );
    }
    let response = app(None)
        .call(request("GET", "/v1/AUTH_te%20st/c", &[]))
        .await;
    assert_eq!(
        header(&response, "www-authenticate").unwrap(),
        "Swift realm=\"AUTH_te%20st\""
    );
    let response = app(None).call(request("GET", "/v1", &[])).await;
    assert_eq!(
        header(&response, "www-authenticate").unwrap(),
        "Swift realm=\"unknown\""
    );
    assert_eq!(
        ask(&app(None), "OPTIONS", "/v1/AUTH_test/c", &[]).await,
        (200, false)
    );
}

#[tokio::test]
async fn sync_keys() {
    let container = ContainerInfo {
        sync_key: Some("secret".into()),
        ..ContainerInfo::default()
    };
    let info = OneOfEach {
        container: Arc::new(container),
        ..OneOfEach::default()
    };
    let environment = FilterEnv {
        info_source: Arc::new(info),
        ..env()
    };
    let app = app_in(&environment, &[], None);
    let time = ("x-timestamp", "123.45678");
    for (method, path, headers, status) in [
        (
            "PUT",
            "/v1/AUTH_cfa/c/o",
            vec![("x-container-sync-key", "secret"), time],
            200,
        ),
        (
            "DELETE",
            "/v1/AUTH_cfa/c/o",
            vec![("x-container-sync-key", "secret"), time],
            200,
        ),
        (
            "DELETE",
            "/v1/AUTH_cfa/c/o",
            vec![("x-container-sync-key", "other"), time],
            401,
        ),
        (
            "DELETE",
            "/v1/AUTH_cfa/c/o",
            vec![("x-container-sync-key", "secret")],
            401,
        ),
        ("DELETE", "/v1/AUTH_cfa/c/o", vec![time], 401),
        (
            "GET",
            "/v1/AUTH_cfa/c/o",
            vec![("x-container-sync-key", "secret"), time],
            401,
        ),
        (
            "PUT",
            "/v1/AUTH_cfa/c",
            vec![("x-container-sync-key", "secret"), time],
            401,
        ),
    ] {
        assert_eq!(
            ask(&app, method, path, &headers).await.0,
            status,
            "{method} {headers:?}"
        );
    }
    let without = [("x-container-sync-key", ""), time];
    let app = self::app(None);
    assert_eq!(ask(&app, "PUT", "/v1/AUTH_cfa/c/o", &without).await.0, 401);
}

#[tokio::test]
async fn several_prefixes_and_a_service() {
    let options = [
        ("reseller_prefix", "AUTH, SERVICE"),
        ("SERVICE_require_group", ".service"),
    ];
    let app = app_in(&env(), &options, None);
    let user = token(&app, "test:tester", "testing").await;
    let service = token(&app, "glance:glance", "glancepw").await;
    let other = token(&app, "test5:tester5", "testing5").await;
    for (path, auth, with, expected) in [
        ("/v1/AUTH_test", Some(&user), None, (200, true)),
        ("/v1/SERVICE_test", Some(&user), None, (403, false)),
        ("/v1/SERVICE_test", Some(&user), Some(&service), (200, true)),
        ("/v1/SERVICE_test", Some(&user), Some(&other), (403, false)),
        ("/v1/SERVICE_test", Some(&service), None, (403, false)),
        ("/v1/SERVICE_test", None, Some(&service), (401, false)),
        ("/v1/SERVICE_test", Some(&service), Some(&user), (200, true)),
    ] {
        let mut headers = Vec::new();
        headers.extend(auth.map(|t| ("x-auth-token", t.as_str())));
        headers.extend(with.map(|t| ("x-service-token", t.as_str())));
        assert_eq!(ask(&app, "GET", path, &headers).await, expected, "{path}");
    }
}

#[tokio::test]
async fn the_empty_prefix() {
    let app = app_in(&env(), &[("reseller_prefix", "''")], None);
    let headers = [
        ("x-auth-user", "test:tester"),
        ("x-auth-key", "testing"),
        ("host", "h"),
    ];
    let response = app.call(request("GET", "/auth/v1.0", &headers)).await;
    assert_eq!(
        header(&response, "x-storage-url").unwrap(),
        "http://h/v1/test"
    );
    let token = header(&response, "x-auth-token").unwrap();
    assert!(token.starts_with("tk"));
    let asked = ask(&app, "GET", "/v1/test/c", &[("x-auth-token", &token)]).await;
    assert_eq!(asked, (200, true));
    assert_eq!(ask(&app, "GET", "/v1/test/c", &[]).await.0, 401);
    assert_eq!(
        ask(&app, "GET", "/v1/test/c", &[("x-auth-token", "foreign")])
            .await
            .0,
        401
    );
}

#[tokio::test]
async fn overrides() {
    for (allow, status) in [("true", 299), ("false", 401)] {
        let app = app_in(&env(), &[("allow_overrides", allow)], None);
        let mut asked = request("GET", "/v1/AUTH_test/c/o", &[]);
        let context = Context {
            authorized: true,
            ..Context::default()
        };
        asked.extensions_mut().insert(context);
        assert_eq!(app.call(asked).await.status().as_u16(), status);
    }
}

#[tokio::test]
async fn another_filter_may_decide_where_this_one_does_not() {
    let app = app(None);
    for (path, status) in [("/v1/OTHER_test", 200), ("/v1/AUTH_test", 401)] {
        let mut asked = request("GET", path, &[]);
        let all: Arc<dyn Authorize> = Arc::new(Everybody);
        asked.extensions_mut().insert(Context {
            authorizer: Some(all),
            ..Context::default()
        });
        assert_eq!(app.call(asked).await.status().as_u16(), status);
    }
}

struct Everybody;
impl Authorize for Everybody {
    fn authorize<'a>(
        &'a self,
        _: &'a http::request::Parts,
        _: Option<&'a str>,
    ) -> cairn_http::AuthorizeFuture<'a> {
        Box::pin(async { Ok(cairn_http::Granted::default()) })
    }
}

#[tokio::test]
async fn other_auth_prefixes_and_info() {
    let info = Arc::new(SwiftInfo::default());
    let environment = FilterEnv {
        swift_info: info.clone(),
        ..env()
    };
    let headers = [("x-auth-user", "test:tester"), ("x-auth-key", "testing")];
    for (prefix, path) in [
        ("/", "/auth/v1.0"),
        ("tokens", "/tokens/v1.0"),
        ("/a/b/", "/a/b/v1.0"),
    ] {
        let app = app_in(&environment, &[("auth_prefix", prefix)], None);
        assert_eq!(
            app.call(request("GET", path, &headers)).await.status(),
            200,
            "{prefix}"
        );
    }
    assert_eq!(info.view(&[], false)["tempauth"]["account_acls"], true);
}

#[tokio::test]
async fn pages_of_other_origins_may_log_in() {
    let section = Section::from_pairs("app", &[("cors_allow_origin", "https://a.example")]);
    let environment = FilterEnv {
        cross_origin: CrossOrigin::read(&section),
        ..env()
    };
    let app = filter_in(&environment, "tempauth", &SAMPLE, proxy(None));
    let page = ("origin", "https://a.example");
    let asks = ("access-control-request-method", "GET");
    let names = ("access-control-request-headers", "x-auth-user, x-auth-key");
    let preflight = request("OPTIONS", "/auth/v1.0", &[page, asks, names]);
    let response = app.call(preflight).await;
    assert_eq!(response.status(), 200);
    let allowed = |response: &Response| header(response, "access-control-allow-origin");
    assert_eq!(allowed(&response).as_deref(), Some(page.1));
    let headers = header(&response, "access-control-allow-headers");
    assert_eq!(headers.as_deref(), Some(names.1));
    let other = ("origin", "https://b.example");
    let preflight = request("OPTIONS", "/auth/v1.0", &[other, asks, names]);
    assert_eq!(app.call(preflight).await.status(), 401);
    for (origin, key, status, told) in [
        (page, "testing", 200, Some(page.1)),
        (page, "wrong", 401, Some(page.1)),
        (other, "testing", 200, None),
    ] {
        let login = [origin, ("x-auth-user", "test:tester"), ("x-auth-key", key)];
        let response = app.call(request("GET", "/auth/v1.0", &login)).await;
        assert_eq!(response.status(), status);
        assert_eq!(allowed(&response).as_deref(), told);
        let exposed = header(&response, "access-control-expose-headers");
        let exposed = exposed.is_some_and(|names| names.contains("x-storage-url"));
        assert_eq!(exposed, told.is_some());
    }
}
