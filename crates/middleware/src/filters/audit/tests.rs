#![allow(clippy::unwrap_used)]

use cairn_http::{Body, handler_fn, respond};

use super::*;
use crate::testing::{answers, filter};

async fn lines_after(file: &std::path::Path, count: usize) -> Vec<Value> {
    for _ in 0..1000 {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        if text.ends_with('\n') && text.lines().count() >= count {
            let lines = text.lines();
            return lines
                .map(|line| serde_json::from_str(line).unwrap())
                .collect();
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("no {count} lines came");
}

fn request(method: &str, path: &str, headers: &[(&str, &str)]) -> Request {
    let mut request = http::Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut request = request.body(Body::empty()).unwrap();
    let mut context = Context::new("tx1");
    context.remote = Some("10.0.0.1:99".parse().unwrap());
    request.extensions_mut().insert(context);
    request
}

#[tokio::test]
async fn logins_and_changes_and_no_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit.log");
    let options = [("audit_file", file.to_str().unwrap())];
    let store = handler_fn(|request: Request| async move {
        let context = Context::of_request(&request);
        context.notes.set_user("test:tester");
        respond::empty(StatusCode::NO_CONTENT)
    });
    let tempauth = filter("tempauth", &[("user_test_tester", "testing .admin")], store);
    let pipeline = filter("audit", &options, tempauth);
    let user = ("x-auth-user", "test:tester");
    for key in ["testing", "hidden-guess"] {
        let login = request("GET", "/auth/v1.0", &[user, ("x-auth-key", key)]);
        pipeline.call(login).await;
    }
    let acl = ("x-container-read", ".r:hidden");
    let url_key = ("x-remove-account-meta-temp-url-key", "hidden");
    let path = "/v1/AUTH_test/c?temp_url_sig=hidden";
    pipeline.call(request("GET", path, &[acl])).await;
    pipeline
        .call(request("POST", path, &[("x-container-meta-a", "b")]))
        .await;
    pipeline.call(request("POST", path, &[acl, url_key])).await;
    let lines = lines_after(&file, 3).await;
    assert_eq!(lines.len(), 3, "{lines:?}");
    let outcomes: Vec<_> = lines.iter().map(|line| &line["outcome"]).collect();
    assert_eq!(outcomes[..2], ["accepted", "wrong"]);
    for line in &lines[..2] {
        assert_eq!(line["action"], "login");
        assert_eq!(line["user"], "test:tester");
    }
    assert_eq!(lines[2]["action"], "change");
    assert_eq!(lines[2]["path"], "/v1/AUTH_test/c");
    let headers = json!([url_key.0, acl.0]);
    let mut told = lines[2]["headers"].as_array().unwrap().clone();
    told.sort_by_key(|h| h != url_key.0);
    assert_eq!(Value::from(told), headers);
    for line in &lines {
        assert_eq!(line["address"], "10.0.0.1");
        assert_eq!(line["txid"], "tx1");
    }
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(
        !text.contains("hidden") && !text.contains("testing\""),
        "{text}"
    );
    use std::os::unix::fs::PermissionsExt;
    let mode = file.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn a_file_that_was_moved_is_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit.log");
    let options = [("audit_file", file.to_str().unwrap())];
    let pipeline = filter("audit", &options, answers(201));
    let quota = [("x-account-meta-quota-bytes", "5")];
    pipeline.call(request("POST", "/v1/AUTH_a", &quota)).await;
    lines_after(&file, 1).await;
    std::fs::rename(&file, folder.path().join("audit.log.1")).unwrap();
    pipeline.call(request("POST", "/v1/AUTH_b", &quota)).await;
    let lines = lines_after(&file, 1).await;
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0]["path"], "/v1/AUTH_b");
}

/// The request is dropped while it waits.
#[tokio::test]
async fn who_leaves_is_told_of() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit.log");
    let options = [("audit_file", file.to_str().unwrap())];
    let slow = handler_fn(|_| std::future::pending::<Response>());
    let pipeline = filter("audit", &options, slow);
    let quota = [("x-account-meta-quota-bytes", "5")];
    let call = pipeline.call(request("POST", "/v1/AUTH_a", &quota));
    let soon = std::time::Duration::from_millis(20);
    assert!(tokio::time::timeout(soon, call).await.is_err());
    let lines = lines_after(&file, 1).await;
    assert_eq!(lines[0]["outcome"], "unknown");
}

#[test]
fn a_file_that_cannot_be_is_named() {
    let section = Section::from_pairs("filter:audit", &[("audit_file", "/nowhere/at/all")]);
    let refused = make(&section, answers(200), &crate::testing::env());
    let refused = refused.map(|_| ()).unwrap_err().to_string();
    assert!(
        refused.contains("audit_file = /nowhere/at/all"),
        "{refused}"
    );
}

#[test]
fn which_headers_guard() {
    for name in [
        "x-container-read",
        "x-remove-container-write",
        "x-container-sync-key",
        "x-account-access-control",
        "x-container-meta-access-control-allow-origin",
        "x-account-meta-temp-url-key-2",
        "x-remove-container-meta-temp-url-key",
        "x-container-meta-quota-count",
        "x-account-quota-bytes-policy-gold",
    ] {
        assert!(guards(name), "{name}");
    }
    for name in [
        "x-container-meta-reader",
        "x-object-meta-quota-bytes",
        "x-auth-token",
        "read",
    ] {
        assert!(!guards(name), "{name}");
    }
}

#[tokio::test]
async fn clients_of_one_trusted_proxy_are_counted_each_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit.log");
    let options = [("audit_file", file.to_str().unwrap())];
    let tempauth = filter("tempauth", &[("user_test_tester", "testing")], answers(204));
    let pipeline = filter("audit", &options, tempauth);
    let log_in = async |client: &str, user: &str, key: &str| {
        let headers = [("x-auth-user", user), ("x-auth-key", key)];
        let mut request = request("GET", "/auth/v1.0", &headers);
        let context = request.extensions_mut().get_mut::<Context>().unwrap();
        context.forwarded_for = Some(client.parse().unwrap());
        pipeline.call(request).await.status().as_u16()
    };
    let mut guesses = 0;
    while log_in("192.0.2.1", &format!("test:{guesses}"), "guess").await == 401 {
        guesses += 1;
        assert!(guesses < 100, "nothing holds up who guesses");
    }
    assert_eq!(log_in("192.0.2.1", "test:tester", "testing").await, 429);
    assert_eq!(log_in("192.0.2.2", "test:tester", "testing").await, 200);
    let lines = lines_after(&file, guesses + 3).await;
    let addresses = [&lines[0]["address"], &lines[guesses + 2]["address"]];
    assert_eq!(addresses, ["192.0.2.1", "192.0.2.2"]);
}
