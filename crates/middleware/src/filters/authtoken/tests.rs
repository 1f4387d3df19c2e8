//! Tests against a fake Keystone over a socket: the requests it gets, and the use of its responses.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use super::*;
use crate::testing::{Certificate, Seen, env, header, recorder, request};
use cairn_http::metrics::Metrics;
use cairn_http::serve::{ServeOptions, bind, serve};
use cairn_http::{SwiftInfo, handler_fn};
use serde_json::{Value, json};
use tokio::sync::watch;

/// A fake Keystone: the tokens it knows, and the requests it got.
#[derive(Default)]
struct Keystone {
    tokens: HashMap<String, Value>,
    logins: u32,
    asked: Vec<String>,
    /// Number of its own tokens that it will revoke.
    forgets: u32,
    is_broken: bool,
}

type Shared = Arc<Mutex<Keystone>>;

fn token(user: &str, roles: &[&str], expires: &str) -> Value {
    let roles: Vec<Value> = roles
        .iter()
        .map(|r| json!({ "id": "x", "name": r }))
        .collect();
    json!({ "token": {
        "user": { "id": format!("{user}_id"), "name": user,
                  "domain": { "id": "default", "name": "Default" } },
        "project": { "id": "p_id", "name": "p", "domain": { "id": "d", "name": "D" } },
        "roles": roles,
        "expires_at": expires,
        "catalog": [{ "type": "object-store", "name": "swift", "id": "1", "endpoints": [
            { "interface": "public", "region": "R", "url": "http://s/v1/AUTH_p_id", "id": "2" },
            { "interface": "admin", "region": "R", "url": "http://a/v1", "id": "3" },
        ]}],
    }})
}

const LATER: &str = "2099-01-01T00:00:00.000000Z";

async fn answer(keystone: Shared, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = body.collect(10_000).await.unwrap();
    let mut keystone = keystone.lock().unwrap();
    if keystone.is_broken {
        return respond::empty(StatusCode::BAD_GATEWAY);
    }
    keystone.asked.push(parts.uri.to_string());
    if parts.method == http::Method::POST {
        let login: Value = serde_json::from_slice(&body).unwrap();
        let user = &login["auth"]["identity"]["password"]["user"];
        if user["password"] != "swiftpw" {
            return respond::empty(StatusCode::UNAUTHORIZED);
        }
        keystone.logins += 1;
        let mut response = respond::typed(
            StatusCode::CREATED,
            "application/json",
            token("swift", &["admin"], LATER).to_string(),
        );
        respond::set(
            response.headers_mut(),
            "x-subject-token",
            format!("own{}", keystone.logins),
        );
        return response;
    }
    let own = respond::header(&parts.headers, "x-auth-token").unwrap_or("");
    if own != format!("own{}", keystone.logins) || keystone.forgets > 0 {
        keystone.forgets = keystone.forgets.saturating_sub(1);
        return respond::empty(StatusCode::UNAUTHORIZED);
    }
    let subject = respond::header(&parts.headers, "x-subject-token").unwrap_or("");
    match keystone.tokens.get(subject) {
        Some(token) => respond::typed(StatusCode::OK, "application/json", token.to_string()),
        None => respond::empty(StatusCode::NOT_FOUND),
    }
}

struct Setup {
    keystone: Shared,
    environment: FilterEnv,
    app: Handler,
    seen: Seen,
    _stop: watch::Sender<bool>,
}

async fn setup(options: &[(&str, &str)]) -> Setup {
    setup_with(options, None).await
}

async fn setup_with(options: &[(&str, &str)], tls: Option<&Certificate>) -> Setup {
    let keystone = Shared::default();
    let listener = bind("127.0.0.1:0".parse().unwrap(), 16).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (stop, stopping) = watch::channel(false);
    let shared = keystone.clone();
    tokio::spawn(serve(
        tokio::net::TcpListener::from_std(listener).unwrap(),
        handler_fn(move |request| answer(shared.clone(), request)),
        ServeOptions {
            tls: tls.map(Certificate::served),
            ..ServeOptions::new("keystone")
        },
        Metrics::new(),
        stopping,
    ));
    let scheme = if tls.is_some() { "https" } else { "http" };
    let auth_url = format!("{scheme}://localhost:{port}/identity/v3/");
    let mut all = vec![
        ("auth_url", auth_url.as_str()),
        ("username", "swift"),
        ("password", "swiftpw"),
        ("project_name", "service"),
        ("www_authenticate_uri", "http://public:5000"),
    ];
    for option in options {
        all.retain(|(name, _)| *name != option.0);
        all.push(*option);
    }
    let environment = FilterEnv {
        swift_info: Arc::new(SwiftInfo::default()),
        ..env()
    };
    let (proxy, seen) = recorder(|parts| {
        let public = parts.uri.path() == "/public";
        respond::empty(respond::status(if public { 401 } else { 200 }))
    });
    let section = Section::from_pairs("filter:authtoken", &all);
    let app = make(&section, proxy, &environment).unwrap();
    Setup {
        keystone,
        environment,
        app,
        seen,
        _stop: stop,
    }
}

impl Setup {
    fn knows(&self, text: &str, token: Value) {
        let mut keystone = self.keystone.lock().unwrap();
        keystone.tokens.insert(text.into(), token);
    }

    async fn ask(&self, headers: &[(&str, &str)]) -> Response {
        self.app
            .call(request("GET", "/v1/AUTH_p_id", headers))
            .await
    }

    /// The last request that reached the proxy.
    fn last(&self) -> (HeaderMap, Option<Confirmed>) {
        let seen = self.seen.lock().unwrap();
        let (parts, _) = seen.last().unwrap();
        (parts.headers.clone(), parts.extensions.get().cloned())
    }
}

#[tokio::test]
async fn a_token_becomes_an_identity() {
    let setup = setup(&[]).await;
    setup.knows("good", token("alice", &["member", "Reader"], LATER));
    let forged = [
        ("x-auth-token", "good"),
        ("x-roles", "admin"),
        ("x-service-roles", "service"),
        ("x-domain-id", "forged"),
        ("x-tenant", "forged"),
    ];
    assert_eq!(setup.ask(&forged).await.status(), 200);
    let (headers, confirmed) = setup.last();
    for (name, value) in [
        ("x-identity-status", "Confirmed"),
        ("x-user-id", "alice_id"),
        ("x-user-name", "alice"),
        ("x-user-domain-id", "default"),
        ("x-project-id", "p_id"),
        ("x-project-name", "p"),
        ("x-project-domain-name", "D"),
        ("x-roles", "member,Reader"),
        ("x-role", "member,Reader"),
        ("x-tenant", "p"),
        ("x-is-admin-project", "True"),
    ] {
        assert_eq!(respond::header(&headers, name), Some(value), "{name}");
    }
    for name in [
        "x-service-roles",
        "x-domain-id",
        "x-service-identity-status",
    ] {
        assert!(!headers.contains_key(name), "{name}");
    }
    let catalog: Value =
        serde_json::from_str(respond::header(&headers, "x-service-catalog").unwrap()).unwrap();
    assert_eq!(
        catalog[0]["endpoints"][0]["publicURL"],
        "http://s/v1/AUTH_p_id"
    );
    assert_eq!(catalog[0]["endpoints"][0]["adminURL"], "http://a/v1");
    let confirmed = confirmed.unwrap();
    assert_eq!(confirmed.user.roles, ["member", "Reader"]);
    assert!(confirmed.service.is_none() && !confirmed.built_in);
    let asked = setup.keystone.lock().unwrap().asked.clone();
    assert_eq!(
        asked,
        [
            "/identity/v3/auth/tokens?nocatalog=1",
            "/identity/v3/auth/tokens"
        ]
    );
}

#[tokio::test]
async fn refused_at_once_or_left_to_others() {
    let strict = setup(&[]).await;
    for headers in [
        &[][..],
        &[("x-auth-token", "unknown")],
        &[("x-auth-token", "")],
    ] {
        let response = strict.ask(headers).await;
        assert_eq!(response.status(), 401);
        let wanted = header(&response, "www-authenticate");
        assert_eq!(
            wanted.as_deref(),
            Some("Keystone uri=\"http://public:5000\"")
        );
    }
    assert!(strict.seen.lock().unwrap().is_empty());
    let lenient = setup(&[("delay_auth_decision", "true")]).await;
    for headers in [&[("x-roles", "admin")][..], &[("x-auth-token", "unknown")]] {
        assert_eq!(lenient.ask(headers).await.status(), 200);
        let (headers, confirmed) = lenient.last();
        assert_eq!(
            respond::header(&headers, "x-identity-status"),
            Some("Invalid")
        );
        assert!(!headers.contains_key("x-roles") && confirmed.is_none());
    }
    let refused = lenient.app.call(request("GET", "/public", &[])).await;
    assert_eq!(refused.status(), 401);
    assert!(header(&refused, "www-authenticate").is_some());
}

#[tokio::test]
async fn remembered_for_a_while() {
    let setup = setup(&[
        ("token_cache_time", "10"),
        ("include_service_catalog", "no"),
    ])
    .await;
    setup.knows("good", token("alice", &["member"], LATER));
    setup.knows(
        "brief",
        token("alice", &["member"], "2023-11-14T22:13:25.000000Z"),
    );
    let status = |token: &'static str| {
        let setup = &setup;
        async move {
            setup
                .ask(&[("x-auth-token", token)])
                .await
                .status()
                .as_u16()
        }
    };
    assert_eq!((status("good").await, status("brief").await), (200, 200));
    assert!(!setup.last().0.contains_key("x-service-catalog"));
    // The token was revoked, which is noticed when the cache entry expires.
    setup.keystone.lock().unwrap().tokens.clear();
    setup.environment.clock.advance(Duration::from_secs(9));
    assert_eq!(status("good").await, 200);
    assert_eq!(status("brief").await, 401, "expired, though remembered");
    setup.environment.clock.advance(Duration::from_secs(1));
    assert_eq!(status("good").await, 401);
    let asked = setup.keystone.lock().unwrap().asked.clone();
    assert!(asked[1].ends_with("/tokens?nocatalog=1"), "{asked:?}");
    assert_eq!(asked.len(), 4);

    let always = self::setup(&[("token_cache_time", "-1")]).await;
    always.knows("good", token("alice", &["member"], LATER));
    assert_eq!(always.ask(&[("x-auth-token", "good")]).await.status(), 200);
    always.keystone.lock().unwrap().tokens.clear();
    assert_eq!(always.ask(&[("x-auth-token", "good")]).await.status(), 401);
}

#[tokio::test]
async fn service_tokens() {
    let setup = setup(&[("service_token_roles", "service, glance")]).await;
    setup.knows("user", token("alice", &["member"], LATER));
    setup.knows("old", token("alice", &["member"], "2020-01-01T00:00:00Z"));
    setup.knows("service", token("glance", &["glance"], LATER));
    setup.knows("other", token("bob", &["member"], LATER));
    for (user, service, expected) in [
        ("user", "service", 200),
        ("user", "other", 401),
        ("user", "unknown", 401),
        ("old", "service", 200),
        ("old", "other", 401),
        ("unknown", "service", 401),
    ] {
        let headers = [("x-auth-token", user), ("x-service-token", service)];
        assert_eq!(
            setup.ask(&headers).await.status(),
            expected,
            "{user} {service}"
        );
    }
    setup
        .ask(&[("x-auth-token", "user"), ("x-service-token", "service")])
        .await;
    let (headers, confirmed) = setup.last();
    assert_eq!(respond::header(&headers, "x-service-roles"), Some("glance"));
    assert_eq!(
        respond::header(&headers, "x-service-identity-status"),
        Some("Confirmed")
    );
    assert_eq!(confirmed.unwrap().service.unwrap().roles, ["glance"]);
    let asked = setup.keystone.lock().unwrap().asked.clone();
    assert!(asked.iter().any(|a| a.ends_with("allow_expired=1")));

    let lax = self::setup(&[("service_token_roles_required", "false")]).await;
    lax.knows("user", token("alice", &["member"], LATER));
    lax.knows("other", token("bob", &["member"], LATER));
    let headers = [("x-auth-token", "user"), ("x-service-token", "other")];
    assert_eq!(lax.ask(&headers).await.status(), 200);
}

#[tokio::test]
async fn keystone_in_trouble() {
    let setup = setup(&[]).await;
    setup.knows("good", token("alice", &["member"], LATER));
    setup.knows("other", token("bob", &["member"], LATER));
    assert_eq!(setup.ask(&[("x-auth-token", "good")]).await.status(), 200);
    // Our own token is no longer accepted: another login follows.
    setup.keystone.lock().unwrap().forgets = 1;
    assert_eq!(setup.ask(&[("x-auth-token", "other")]).await.status(), 200);
    assert_eq!(setup.keystone.lock().unwrap().logins, 2);
    setup.keystone.lock().unwrap().is_broken = true;
    assert_eq!(
        setup.ask(&[("x-auth-token", "good")]).await.status(),
        200,
        "remembered"
    );
    assert_eq!(setup.ask(&[("x-auth-token", "new")]).await.status(), 503);

    let gone = [
        ("auth_url", "http://127.0.0.1:1"),
        ("http_request_max_retries", "0"),
    ];
    let absent = self::setup(&gone).await;
    assert_eq!(absent.ask(&[("x-auth-token", "good")]).await.status(), 503);
    let wrong = self::setup(&[("password", "wrong")]).await;
    assert_eq!(wrong.ask(&[("x-auth-token", "good")]).await.status(), 503);
    let mut delayed = gone.to_vec();
    delayed.push(("delay_auth_decision", "true"));
    let delayed = self::setup(&delayed).await;
    assert_eq!(delayed.ask(&[("x-auth-token", "good")]).await.status(), 200);
    assert!(delayed.last().1.is_none());
}

#[tokio::test]
async fn bound_and_restricted_tokens() {
    let setup = setup(&[("service_type", "object-store")]).await;
    let mut bound = token("alice", &["member"], LATER);
    bound["token"]["bind"] = json!({ "kerberos": "alice" });
    setup.knows("bound", bound);
    let mut restricted = token("alice", &["member"], LATER);
    restricted["token"]["application_credential"] = json!({ "access_rules": [
        { "service": "object-store", "method": "GET", "path": "/v1/AUTH_p_id/**" },
        { "service": "object-store", "method": "HEAD", "path": "/v1/AUTH_p_id/*" },
        { "service": "object-store", "method": "HEAD", "path": "/v1/AUTH_p_id/c/a%20b!" },
    ]});
    setup.knows("restricted", restricted.clone());
    assert_eq!(setup.ask(&[("x-auth-token", "bound")]).await.status(), 401);
    let ask = |method: &'static str, path: &'static str| {
        let sent = request(method, path, &[("x-auth-token", "restricted")]);
        setup.app.call(sent)
    };
    assert_eq!(ask("GET", "/v1/AUTH_p_id/c/o").await.status(), 200);
    assert_eq!(ask("PUT", "/v1/AUTH_p_id/c/o").await.status(), 401);
    assert_eq!(ask("GET", "/v1/AUTH_other/c").await.status(), 401);
    // A rule matches the decoded path: an object is not taken for a container because its slash is
    // encoded.
    for (path, status) in [
        ("/v1/AUTH_p_id/c", 200),
        ("/v1/AUTH_p_id/c/o", 401),
        ("/v1/AUTH_p_id/c%2Fo", 401),
        ("/v1/AUTH_p_id%2fc%2fo", 401),
        ("/v1/AUTH_p_id/c/a%20b%21", 200),
        ("/v1/AUTH_p_id/c/a%20%62!", 200),
        ("/v1/AUTH_p_id/%ff", 401),
    ] {
        assert_eq!(ask("HEAD", path).await.status().as_u16(), status, "{path}");
    }
    let untyped = self::setup(&[]).await;
    untyped.knows("restricted", restricted);
    assert_eq!(
        untyped
            .ask(&[("x-auth-token", "restricted")])
            .await
            .status(),
        401
    );
}

#[test]
fn tls_is_never_unchecked() {
    let (next, _) = recorder(|_| respond::empty(StatusCode::OK));
    let options = [
        ("auth_url", "https://127.0.0.1:5000"),
        ("username", "swift"),
        ("password", "secret"),
    ];
    let made = |more: (&str, &str)| {
        let options: Vec<_> = options.into_iter().chain([more]).collect();
        let section = Section::from_pairs("filter:authtoken", &options);
        make(&section, next.clone(), &env())
            .map(|_| ())
            .map_err(|e| e.to_string())
    };
    made(("cafile", "")).unwrap();
    assert!(made(("insecure", "true")).unwrap_err().contains("cafile"));
    assert!(made(("cafile", "/none")).unwrap_err().contains("/none"));
    assert!(made(("keyfile", "/none")).unwrap_err().contains("certfile"));
}

/// The certificate must be valid for the name in `auth_url`.
#[tokio::test]
async fn keystone_over_tls() {
    let certificate = Certificate::of("localhost");
    let ca = certificate.cert.to_str().unwrap();
    let setup = self::setup_with(&[("cafile", ca)], Some(&certificate)).await;
    setup.knows("good", token("u", &["member"], LATER));
    let status = setup.ask(&[("x-auth-token", "good")]).await.status();
    assert_eq!(status, 200);
    let other = Certificate::of("other.example");
    let ca = other.cert.to_str().unwrap();
    let setup = self::setup_with(&[("cafile", ca)], Some(&other)).await;
    setup.knows("good", token("u", &["member"], LATER));
    let status = setup.ask(&[("x-auth-token", "good")]).await.status();
    assert_eq!(status, 503);
}

#[test]
fn mistakes_are_named_without_the_password() {
    let good = [
        ("auth_url", "http://127.0.0.1:5000"),
        ("username", "swift"),
        ("password", "secret"),
    ];
    let (next, _) = recorder(|_| respond::empty(StatusCode::OK));
    let made = |options: &[(&str, &str)]| {
        let section = Section::from_pairs("filter:authtoken", options);
        make(&section, next.clone(), &env())
            .map(|_| ())
            .map_err(|e| e.to_string())
    };
    made(&good).unwrap();
    for (option, value, part) in [
        ("auth_url", "keystone", "http://"),
        ("auth_url", "", "auth_url"),
        ("username", "", "username"),
        ("password", "", "password"),
        ("auth_type", "v3kerberos", "auth_type"),
        ("token_cache_time", "soon", "token_cache_time"),
        ("http_connect_timeout", "x", "http_connect_timeout"),
    ] {
        let mut options: Vec<_> = good.into_iter().filter(|(o, _)| *o != option).collect();
        options.push((option, value));
        let error = made(&options).unwrap_err();
        assert!(error.contains(part) && !error.contains("secret"), "{error}");
    }
}

/// Arbitrary JSON, as a faulty or hostile Keystone may send.
fn any_json() -> impl proptest::strategy::Strategy<Value = Value> {
    use proptest::prelude::*;
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z0-9:TZ.-]{0,30}".prop_map(Value::from),
    ];
    let names = prop_oneof![
        Just("token"),
        Just("user"),
        Just("project"),
        Just("domain"),
        Just("roles"),
        Just("id"),
        Just("name"),
        Just("expires_at"),
        Just("bind"),
        Just("catalog"),
    ];
    leaf.prop_recursive(5, 60, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(names.clone().prop_map(str::to_owned), inner, 0..6)
                .prop_map(Value::from_iter),
        ]
    })
}

proptest::proptest! {
    #[test]
    fn any_answer_is_read_or_refused(body in any_json()) {
        if let Some(described) = server::described(&json!({ "token": body })) {
            assert!(!described.holder.user.id.is_empty());
            let mut all = HeaderMap::new();
            headers::set_user(&mut all, &described.holder);
            headers::set_catalog(&mut all, described.catalog.as_ref());
        }
    }
}
