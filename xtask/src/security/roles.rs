//! Roles and their limits: a service's role, a TempAuth group named like a powerful role, and the
//! apparent source address of a request passed on by a proxy.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{Options, Store, all_held};
use cairn_testkit::wire::{Account, Connection, Response};

/// A user of TempAuth besides those of `testkit/users.txt`: its groups have the names of roles
/// that reach beyond an account.
pub(super) const BOSS: (&str, &str) = (
    "user_boss_boss",
    "bossing admin Admin ResellerAdmin swiftoperator system_reader service",
);

/// Logs in by v3; returns the token and its description.
fn log_in(store: &Store, name: &str, key: &str, project: &str) -> Result<(String, Value)> {
    let body = json!({"auth": {
        "identity": {"methods": ["password"], "password": {"user": {
            "name": name, "domain": {"name": "Default"}, "password": key}}},
        "scope": {"project": {"name": project, "domain": {"name": "Default"}}}}});
    let kind = [("Content-Type", "application/json")];
    let body = body.to_string();
    let mut connection = Connection::new(store.port);
    let answer = connection.call("POST", "/v3/auth/tokens", &kind, body.as_bytes())?;
    let (status, text) = (answer.status, answer.text());
    ensure!(status == 201, "login as {name}: {status} {text}");
    let token = answer.header("x-subject-token").context("no token")?;
    Ok((token.to_owned(), serde_json::from_slice(&answer.body)?))
}

fn ask(store: &Store, method: &str, path: &str, headers: &[(&str, &str)]) -> Result<Response> {
    Connection::new(store.port).call(method, path, headers, b"")
}

/// A service sees the tokens that users bring it, and may not revoke them.
pub(super) fn service(store: &Store, _: &Options) -> Result<String> {
    let (owners, _) = log_in(store, "tester", "testing", "test")?;
    let (services, _) = log_in(store, "tester5", "testing5", "test5")?;
    let both = [("X-Auth-Token", &*services), ("X-Subject-Token", &*owners)];
    let seen = ask(store, "GET", "/v3/auth/tokens", &both)?.status;
    ensure!(seen == 200, "a service cannot see a token: {seen}");
    let mut broken = Vec::new();
    for path in [
        "/v3/auth/tokens",
        "/v3/auth/tokens/",
        "//v3/auth/tokens",
        "/v3//auth/tokens",
    ] {
        let status = ask(store, "DELETE", path, &both)?.status;
        let opens = ask(store, "HEAD", "/v1/AUTH_test", &[("X-Auth-Token", &owners)])?;
        if status / 100 == 2 || !opens.is_success() {
            broken.push(format!(
                "DELETE {path}: {status}, the token then: {}",
                opens.status
            ));
        }
    }
    // An account that also needs a service's role is not open to a service alone.
    let alone = [("X-Auth-Token", &*services)];
    for path in ["/v1/AUTH_test", "/v1/SERVICE_test"] {
        let status = ask(store, "GET", path, &alone)?.status;
        if status / 100 == 2 {
            broken.push(format!("a service alone reads {path}: {status}"));
        }
    }
    all_held(broken, "it sees tokens and ends none".to_owned())
}

/// Groups named like roles: with TempAuth's token and, if the store logs in by v3, with that one.
pub(super) fn groups(store: &Store, _: &Options) -> Result<String> {
    let owner = super::tenants::owner(store)?;
    let by_group = Account::login_as(store.port, "boss:boss", "bossing")?;
    let mut tokens = vec![("TempAuth's", by_group.token.clone())];
    let mut broken = Vec::new();
    if store.is_cairn {
        let (token, said) = log_in(store, "boss", "bossing", "boss")?;
        let roles = said["token"]["roles"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let mut names = roles.iter().filter_map(|role| role["name"].as_str());
        let is_powerful = |name: &&str| !["service", "member"].contains(name);
        if let Some(name) = names.find(is_powerful) {
            broken.push(format!("the role {name:?} of a group"));
        }
        let headers = [("X-Auth-Token", &*token)];
        let listed = ask(store, "GET", "/v3/users", &headers)?.text();
        if listed.contains("\"tester\"") {
            broken.push("it lists other users".to_owned());
        }
        let subject = [headers[0], ("X-Subject-Token", &*owner.token)];
        let ended = ask(store, "DELETE", "/v3/auth/tokens", &subject)?.status;
        if ended / 100 == 2 {
            broken.push(format!("it ends another's token: {ended}"));
        }
        tokens.push(("v3's", token));
    }
    for (kind, token) in &tokens {
        let headers = [("X-Auth-Token", &**token)];
        for (method, path) in [
            ("GET", "/v1/AUTH_test"),
            ("GET", "/v1/AUTH_test/private/secret"),
            ("PUT", "/v1/AUTH_test/private/more"),
            ("GET", "/v1/SERVICE_test"),
            ("PUT", "/v1/AUTH_boss/made"),
            ("DELETE", "/v1/AUTH_test"),
        ] {
            let status = ask(store, method, path, &headers)?.status;
            if status / 100 == 2 {
                broken.push(format!("{kind} token, {method} {path}: {status}"));
            }
        }
    }
    all_held(broken, format!("{} kinds of tokens", tokens.len()))
}

/// `/metrics` is for local requests: a request passed on by a local proxy is not local, whichever
/// header it has and whatever address is in it.
pub(super) fn metrics(store: &Store, _: &Options) -> Result<String> {
    let plain = ask(store, "GET", "/metrics", &[])?;
    ensure!(
        plain.status == 200,
        "not even from this host: {}",
        plain.status
    );
    let tries = [
        ("X-Forwarded-For", "192.0.2.7"),
        ("X-Forwarded-For", "127.0.0.1"),
        ("X-Forwarded-For", ""),
        ("x-forwarded-for", "127.0.0.1, 192.0.2.7"),
        ("X-Forwarded-Host", "store.example.com"),
        ("X-Forwarded-Proto", "https"),
        ("X-Real-IP", "127.0.0.1"),
        ("X-Cluster-Client-Ip", "127.0.0.1"),
        ("Forwarded", "for=127.0.0.1"),
        ("Via", "1.1 proxy"),
    ];
    let mut broken = Vec::new();
    for header in tries {
        for path in ["/metrics", "/metrics?x=1"] {
            let answer = ask(store, "GET", path, &[header])?;
            if answer.status == 200 || answer.text().contains("# TYPE") {
                broken.push(format!("GET {path} with {header:?}: {}", answer.status));
            }
        }
    }
    all_held(broken, format!("{} headers tried", tries.len()))
}
