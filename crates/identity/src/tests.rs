//! The service and its tokens, in the pipeline that `cairn up` configures: identity, keystoneauth,
//! tempauth, around a proxy that calls the authorizer.

#![allow(clippy::unwrap_used)]

mod ends_of_tokens;

use super::*;
use cairn_http::context::Context;
use cairn_http::{AccountInfo, Body, handler_fn};
use cairn_middleware::testing::{OneOfEach, env, filter_in, header, request};
use http::StatusCode;
use serde_json::{Value, json};

const FILE: &str = "\
[project:photos]
id = 3f2a
[user:alice]
password = wonderland
roles = photos: swiftoperator, films: member
default_project = photos
[user:bob]
password = {pbkdf2-sha256}1000$c2FsdHNhbHQ=$HASH
roles = films: swiftoperator
[user:root]
password = toor
roles = films: admin
[user:glance]
password = glance
roles = services: service
";

const USERS: [(&str, &str); 4] = [
    ("user_test_tester", "testing .admin"),
    ("user_test_tester3", "testing3"),
    ("user_test2_tester", "testing .admin"),
    ("user_admin_admin", "admin .admin .reseller_admin"),
];

struct Store {
    app: Handler,
    environment: FilterEnv,
    _folder: Arc<tempfile::TempDir>,
}

impl Store {
    fn new() -> Store {
        Store::again(&Arc::new(tempfile::tempdir().unwrap()), FILE)
    }

    /// A store after a restart with that file.
    fn again(folder: &Arc<tempfile::TempDir>, file: &str) -> Store {
        // hashlib.pbkdf2_hmac("sha256", b"builder", b"saltsalt", 1000)
        let file = file.replace("HASH", "aZ7ubcD5p9dKOFoGcwXN9F5CVc9aSUl79D3N3MeF15U=");
        std::fs::write(folder.path().join("identity.conf"), file).unwrap();
        let there = AccountInfo {
            status: 204,
            ..AccountInfo::default()
        };
        let info = OneOfEach {
            account: Arc::new(there),
            ..OneOfEach::default()
        };
        let environment = FilterEnv {
            info_source: Arc::new(info),
            ..env()
        };
        let proxy = handler_fn(|request: Request| async move {
            let (parts, _) = request.into_parts();
            let authorizer = Context::of(&parts).authorizer.unwrap();
            let acl = respond::header(&parts.headers, "acl").map(str::to_owned);
            match authorizer.authorize(&parts, acl.as_deref()).await {
                Ok(granted) if granted.owner => respond::empty(StatusCode::CREATED),
                Ok(_) => respond::empty(StatusCode::OK),
                Err(denied) => denied,
            }
        });
        let dir = folder.path().to_str().unwrap();
        let prefixes = ("reseller_prefix", "AUTH, SERVICE");
        let tempauth: Vec<_> = USERS.into_iter().chain([prefixes]).collect();
        let keystoneauth = [prefixes, ("SERVICE_service_roles", "service")];
        let mut app = filter_in(&environment, "tempauth", &tempauth, proxy);
        app = filter_in(&environment, "keystoneauth", &keystoneauth, app);
        let section = Section::from_pairs("filter:identity", &[prefixes, ("swift_dir", dir)]);
        app = make(&section, app, &environment).unwrap();
        Store {
            app,
            environment,
            _folder: folder.clone(),
        }
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> (Response, Value) {
        let mut sent = request(method, path, headers);
        sent.headers_mut()
            .insert("host", "store.example:8080".parse().unwrap());
        if let Some(body) = body {
            *sent.body_mut() = Body::full(body.to_string());
        }
        let response = self.app.call(sent).await;
        let (parts, body) = response.into_parts();
        let body = body.collect(1 << 20).await.unwrap();
        let value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        (Response::from_parts(parts, Body::empty()), value)
    }

    async fn v3(&self, user: &str, password: &str, project: Option<&str>) -> (u16, String, Value) {
        let mut login = json!({ "auth": { "identity": {
            "methods": ["password"],
            "password": { "user": {
                "name": user, "password": password, "domain": { "id": "default" },
            }},
        }}});
        if let Some(project) = project {
            let domain = json!({ "name": "Default" });
            login["auth"]["scope"] = json!({ "project": { "name": project, "domain": domain } });
        }
        self.login(&login).await
    }

    async fn login(&self, login: &Value) -> (u16, String, Value) {
        let (response, body) = self.send("POST", "/v3/auth/tokens", &[], Some(login)).await;
        let token = header(&response, "x-subject-token").unwrap_or_default();
        (response.status().as_u16(), token, body)
    }

    async fn token(&self, user: &str, password: &str, project: &str) -> String {
        let (status, token, _) = self.v3(user, password, Some(project)).await;
        assert_eq!(status, 201, "{user} {project}");
        token
    }

    async fn v2(&self, user: &str, password: &str, tenant: Option<&str>) -> (u16, Value) {
        let mut login = json!({ "auth": { "passwordCredentials": {
            "username": user, "password": password,
        }}});
        if let Some(tenant) = tenant {
            login["auth"]["tenantName"] = tenant.into();
        }
        let (response, body) = self.send("POST", "/v2.0/tokens", &[], Some(&login)).await;
        (response.status().as_u16(), body)
    }

    async fn get(&self, token: &str, path: &str) -> (u16, Value) {
        let (response, body) = self
            .send("GET", path, &[("x-auth-token", token)], None)
            .await;
        (response.status().as_u16(), body)
    }

    async fn may(&self, token: &str, method: &str, path: &str, acl: &str) -> u16 {
        let headers = [("x-auth-token", token), ("acl", acl)];
        self.send(method, path, &headers, None)
            .await
            .0
            .status()
            .as_u16()
    }
}

fn url(catalog: &Value, kind: &str) -> String {
    let services = catalog.as_array().unwrap();
    let service = services.iter().find(|s| s["type"] == kind).unwrap();
    let endpoint = &service["endpoints"][0];
    let url = endpoint.get("url").unwrap_or(&endpoint["publicURL"]);
    url.as_str().unwrap().to_owned()
}

#[tokio::test]
async fn v3_logins() {
    let store = Store::new();
    let (status, token, body) = store.v3("alice", "wonderland", Some("photos")).await;
    assert_eq!(status, 201);
    let described = &body["token"];
    assert_eq!(described["project"]["id"], "3f2a");
    assert_eq!(described["roles"][0]["name"], "swiftoperator");
    assert_eq!(described["expires_at"], "2023-11-15T22:13:20.000000Z");
    let catalog = &described["catalog"];
    assert_eq!(
        url(catalog, "object-store"),
        "http://store.example:8080/v1/AUTH_3f2a"
    );
    assert_eq!(url(catalog, "identity"), "http://store.example:8080/v3");
    assert!(!body.to_string().contains("wonderland"));

    for (user, password, project, expected) in [
        ("alice", "wonderland", Some("films"), "films"),
        ("alice", "wonderland", None, "3f2a"),
        ("bob", "builder", Some("films"), "films"),
        ("tester", "testing", Some("test"), "test"),
        ("tester", "testing", Some("test2"), "test2"),
        ("test2:tester", "testing", None, "test2"),
        ("tester3", "testing3", None, "test"),
    ] {
        let (status, _, body) = store.v3(user, password, project).await;
        assert_eq!(status, 201, "{user} {project:?}");
        assert_eq!(
            body["token"]["project"]["id"], expected,
            "{user} {project:?}"
        );
    }
    for (user, password, project) in [
        ("alice", "wrong", Some("photos")),
        ("alice", "", Some("photos")),
        ("alice", "wonderland", Some("test")),
        ("alice", "wonderland", Some("nothing")),
        ("bob", "wrong", Some("films")),
        ("bob", "", None),
        ("nobody", "x", None),
        // Two testers with the same key: the project is missing.
        ("tester", "testing", None),
        ("tester3", "testing", Some("test")),
    ] {
        let (status, _, body) = store.v3(user, password, project).await;
        assert_eq!(status, 401, "{user} {project:?}");
        assert_eq!(body["error"]["code"], 401);
    }
    let again = json!({ "auth": {
        "identity": { "methods": ["token"], "token": { "id": token } },
        "scope": { "project": { "id": "films" } },
    }});
    let (status, _, body) = store.login(&again).await;
    assert_eq!(
        (status, &body["token"]["roles"][0]["name"]),
        (201, &json!("member"))
    );
    let unscoped = json!({ "auth": {
        "identity": { "methods": ["token"], "token": { "id": token } },
        "scope": "unscoped",
    }});
    let (status, unscoped, body) = store.login(&unscoped).await;
    assert!(status == 201 && body["token"].get("project").is_none());
    assert_eq!(store.may(&unscoped, "GET", "/v1/AUTH_3f2a", "").await, 403);
}

#[tokio::test]
async fn v2_logins_and_names_with_tenants() {
    let store = Store::new();
    for (user, password, tenant, expected) in [
        ("alice", "wonderland", Some("photos"), "3f2a"),
        ("alice", "wonderland", None, "3f2a"),
        ("alice:films", "wonderland", None, "films"),
        ("films:alice", "wonderland", None, "films"),
        ("films", "wonderland", Some("alice"), "films"),
        ("tester:test", "testing", None, "test"),
        ("test:tester", "testing", None, "test"),
        ("tester:test2", "testing", None, "test2"),
        ("test2", "testing", Some("tester"), "test2"),
    ] {
        let (status, body) = store.v2(user, password, tenant).await;
        assert_eq!(status, 200, "{user} {tenant:?}");
        let access = &body["access"];
        assert_eq!(
            access["token"]["tenant"]["id"], expected,
            "{user} {tenant:?}"
        );
        let storage = format!("http://store.example:8080/v1/AUTH_{expected}");
        assert_eq!(url(&access["serviceCatalog"], "object-store"), storage);
        let token = access["token"]["id"].as_str().unwrap();
        let (status, tenants) = store.get(token, "/v2.0/tenants").await;
        assert!(status == 200 && !tenants["tenants"].as_array().unwrap().is_empty());
    }
    for (user, password, tenant) in [
        ("tester:test", "wrong", None),
        ("tester:test3", "testing", None),
        (":", "", None),
        ("alice", "wonderland", Some("test")),
    ] {
        assert_eq!(
            store.v2(user, password, tenant).await.0,
            401,
            "{user} {tenant:?}"
        );
    }
}

#[tokio::test]
async fn tokens_open_accounts() {
    let store = Store::new();
    let alice = store.token("alice", "wonderland", "photos").await;
    let member = store.token("alice", "wonderland", "films").await;
    let bob = store.token("bob", "builder", "films").await;
    let tester = store.token("tester", "testing", "test").await;
    let admin = store.token("admin", "admin", "admin").await;
    for (token, method, path, acl, expected) in [
        (&alice, "PUT", "/v1/AUTH_3f2a/c", "", 201),
        (&alice, "PUT", "/v1/AUTH_films/c", "", 403),
        (&member, "GET", "/v1/AUTH_films/c", "", 403),
        (&member, "GET", "/v1/AUTH_films/c", "films:alice", 200),
        (&bob, "GET", "/v1/AUTH_films", "", 201),
        (&bob, "GET", "/v1/AUTH_test/c/o", "films:bob", 200),
        (&bob, "GET", "/v1/AUTH_test/c/o", "films:*", 200),
        (&tester, "PUT", "/v1/AUTH_test/c", "", 201),
        (&tester, "PUT", "/v1/AUTH_test2/c", "", 403),
        (&tester, "PUT", "/v1/SERVICE_test/c", "", 403),
        (&admin, "PUT", "/v1/AUTH_3f2a/c", "", 201),
    ] {
        assert_eq!(
            store.may(token, method, path, acl).await,
            expected,
            "{method} {path} {acl}"
        );
    }
    // TempAuth's own tokens and anonymous requests work as before.
    let login = [("x-auth-user", "test:tester"), ("x-auth-key", "testing")];
    let (response, _) = store.send("GET", "/auth/v1.0", &login, None).await;
    let v1 = header(&response, "x-auth-token").unwrap();
    assert_eq!(store.may(&v1, "PUT", "/v1/AUTH_test/c", "").await, 201);
    assert_eq!(
        store
            .may(&v1, "GET", "/v1/AUTH_3f2a/c/o", "test:tester")
            .await,
        200
    );
    assert_eq!(
        store.may("gAAAAno", "GET", "/v1/AUTH_test/c", "").await,
        401
    );
    assert_eq!(store.may("", "GET", "/v1/AUTH_test/c/o", ".r:*").await, 200);
    // A service with a user's token.
    let glance = store.token("glance", "glance", "services").await;
    for (service, expected) in [(glance.as_str(), 201), (&bob, 401), ("gAAAAno", 401)] {
        let headers = [
            ("x-auth-token", tester.as_str()),
            ("x-service-token", service),
        ];
        let (response, _) = store
            .send("PUT", "/v1/SERVICE_test/c", &headers, None)
            .await;
        assert_eq!(response.status(), expected);
    }
}

#[tokio::test]
async fn lists() {
    let store = Store::new();
    let alice = store.token("alice", "wonderland", "photos").await;
    let root = store.token("root", "toor", "films").await;
    let names = |body: &Value, many: &str| -> Vec<String> {
        let all = body[many].as_array().unwrap().iter();
        all.map(|one| one["name"].as_str().unwrap().to_owned())
            .collect()
    };
    for (token, path, many, expected) in [
        (
            &alice,
            "/v3/auth/projects",
            "projects",
            &["photos", "films"][..],
        ),
        (&alice, "/v3/projects", "projects", &["photos", "films"]),
        (&alice, "/v3/projects?name=films", "projects", &["films"]),
        (&alice, "/v3/users", "users", &["alice"]),
        (&root, "/v3/projects?name=test2", "projects", &["test2"]),
        (
            &root,
            "/v3/users?name=tester",
            "users",
            &["tester", "tester"],
        ),
        (
            &alice,
            "/v3/roles?name=swiftoperator",
            "roles",
            &["swiftoperator"],
        ),
        (&alice, "/v3/domains", "domains", &["Default"]),
        (&alice, "/v3/services", "services", &["swift", "keystone"]),
        (&alice, "/v3/groups", "groups", &[]),
    ] {
        let (status, body) = store.get(token, path).await;
        assert_eq!(status, 200, "{path}");
        let mut found = names(&body, many);
        let mut expected: Vec<String> = expected.iter().map(|n| (*n).to_owned()).collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{path}");
    }
    let (_, users) = store.get(&alice, "/v3/users").await;
    let id = users["users"][0]["id"].as_str().unwrap();
    assert_eq!(store.get(&alice, &format!("/v3/users/{id}")).await.0, 200);
    let (_, bobs) = store.get(&root, "/v3/users?name=bob").await;
    let bob = bobs["users"][0]["id"].as_str().unwrap();
    assert_eq!(store.get(&alice, &format!("/v3/users/{bob}")).await.0, 404);
    let (_, assigned) = store
        .get(&alice, "/v3/role_assignments?include_names=1")
        .await;
    assert_eq!(assigned["role_assignments"].as_array().unwrap().len(), 2);
    let (_, catalog) = store.get(&alice, "/v3/auth/catalog").await;
    assert!(url(&catalog["catalog"], "object-store").ends_with("/v1/AUTH_3f2a"));
    assert_eq!(store.get("", "/v3/projects").await.0, 401);
    assert_eq!(store.get(&alice, "/v3/nothing").await.0, 404);
    let headers = [("x-auth-token", root.as_str())];
    let (response, body) = store
        .send("POST", "/v3/projects", &headers, Some(&json!({})))
        .await;
    assert_eq!(response.status(), 403);
    assert!(
        body["error"]["message"]
            .as_str()
            .unwrap()
            .contains("identity.conf")
    );
}

#[tokio::test]
async fn versions_and_other_paths() {
    let store = Store::new();
    for (path, accept, status) in [
        ("/v3", "*/*", 200),
        ("/v3/", "*/*", 200),
        ("/v2.0", "*/*", 200),
        ("/", "application/json", 300),
        ("/", "text/html,application/json", 404),
        ("/", "*/*", 404),
        ("/v30", "*/*", 401),
        ("/v1/AUTH_test", "*/*", 401),
        ("/v3.0/x", "*/*", 401),
        ("/v2/x", "*/*", 401),
    ] {
        let (response, _) = store.send("GET", path, &[("accept", accept)], None).await;
        assert_eq!(response.status(), status, "{path} {accept}");
    }
    let (_, version) = store.send("GET", "/v3", &[], None).await;
    assert_eq!(
        version["version"]["links"][0]["href"],
        "http://store.example:8080/v3/"
    );
    for body in [
        json!([]),
        json!({}),
        json!({ "auth": { "identity": { "methods": ["password"] } } }),
    ] {
        assert_eq!(store.login(&body).await.0, 400, "{body}");
    }
    let totp = json!({ "auth": { "identity": { "methods": ["totp"] } } });
    assert_eq!(store.login(&totp).await.0, 401);
    let long = json!({ "auth": "x".repeat(200_000) });
    assert_eq!(store.login(&long).await.0, 413);
}

#[tokio::test]
async fn the_audit_log_hears_of_logins_tokens_and_their_ends() {
    let store = Store::new();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit.log");
    let options = [("audit_file", file.to_str().unwrap())];
    let store = Store {
        app: filter_in(&store.environment, "audit", &options, store.app.clone()),
        ..store
    };
    let token = store.token("alice", "wonderland", "photos").await;
    assert_eq!(store.v3("alice", "hidden", Some("photos")).await.0, 401);
    assert_eq!(store.v2("bob", "builder", Some("films")).await.0, 200);
    let again = json!({ "auth": { "identity": {
        "methods": ["token"], "token": { "id": token },
    }}});
    assert_eq!(store.login(&again).await.0, 201);
    let bob = store.token("bob", "builder", "films").await;
    for (asker, status) in [(&bob, 403), (&token, 204)] {
        let headers = [("x-auth-token", &**asker), ("x-subject-token", &token)];
        let (response, _) = store
            .send("DELETE", "/v3/auth/tokens", &headers, None)
            .await;
        assert_eq!(response.status(), status);
    }
    let expected = [
        "login alice accepted",
        "login alice wrong",
        "login bob accepted",
        "token alice accepted",
        "login bob accepted",
        "revocation bob refused",
        "revocation alice accepted",
    ];
    let mut text = String::new();
    for _ in 0..1000 {
        text = std::fs::read_to_string(&file).unwrap_or_default();
        if text.lines().count() == expected.len() && text.ends_with('\n') {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let told = text.lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        ["action", "user", "outcome"]
            .map(|name| line[name].as_str().unwrap().to_owned())
            .join(" ")
    });
    assert_eq!(told.collect::<Vec<_>>(), expected);
    assert!(!text.contains("hidden") && !text.contains(&token), "{text}");
}

#[tokio::test]
async fn pages_of_other_origins_may_log_in() {
    let store = Store::new();
    let page = ("origin", "https://a.example");
    let asks = ("access-control-request-method", "POST");
    let names = ("access-control-request-headers", "content-type");
    for path in ["/v3/auth/tokens", "/v2.0/tokens"] {
        let (response, _) = store
            .send("OPTIONS", path, &[page, asks, names], None)
            .await;
        assert_eq!(response.status(), 200, "{path}");
        for (name, value) in [
            ("access-control-allow-origin", "*"),
            ("access-control-allow-headers", "content-type"),
            (
                "access-control-allow-methods",
                "GET, HEAD, POST, DELETE, OPTIONS",
            ),
        ] {
            assert_eq!(header(&response, name).as_deref(), Some(value), "{path}");
        }
        let (response, _) = store.send("POST", path, &[page], Some(&json!({}))).await;
        assert_eq!(response.status(), 400);
        let exposed = header(&response, "access-control-expose-headers").unwrap();
        assert!(exposed.contains("x-subject-token"), "{exposed}");
    }
}
