//! Access lists of containers and accounts.

use super::*;

#[tokio::test]
async fn container_lists() {
    for (acl, who, key, status) in [
        ("test:tester3", "test:tester3", "testing3", 200),
        ("test", "test:tester3", "testing3", 200),
        ("test2", "test:tester3", "testing3", 403),
        ("service", "test5:tester5", "testing5", 200),
        ("test2:tester2", "test2:tester2", "testing2", 200),
        ("AUTH_test2", "test2:tester2", "testing2", 200),
        (".r:*", "test2:tester2", "testing2", 200),
    ] {
        let app = app(Some(acl));
        let asked = ask_as(&app, who, key, "GET", "/v1/AUTH_test/c/o").await;
        assert_eq!(asked, (status, false), "{acl} {who}");
    }
}

#[tokio::test]
async fn account_lists() {
    let stored = r#"{"admin":["test2:tester2"],"read-write":["test5"],"read-only":["test3"]}"#;
    let mut account = AccountInfo {
        status: 204,
        ..AccountInfo::default()
    };
    account
        .sysmeta
        .insert("core-access-control".into(), stored.into());
    let info = OneOfEach {
        account: Arc::new(account),
        ..OneOfEach::default()
    };
    let environment = FilterEnv {
        info_source: Arc::new(info),
        ..env()
    };
    let app = app_in(&environment, &[("user_test3_reader", "reading")], None);
    let (no, admin, user) = ((403, false), (200, true), (200, false));
    for (who, key, method, path, expected) in [
        ("test2:tester2", "testing2", "POST", "/v1/AUTH_test", admin),
        ("test5:tester5", "testing5", "GET", "/v1/AUTH_test", user),
        ("test5:tester5", "testing5", "POST", "/v1/AUTH_test", no),
        ("test5:tester5", "testing5", "PUT", "/v1/AUTH_test/c", user),
        (
            "test5:tester5",
            "testing5",
            "DELETE",
            "/v1/AUTH_test/c/o",
            user,
        ),
        ("test3:reader", "reading", "HEAD", "/v1/AUTH_test", user),
        ("test3:reader", "reading", "GET", "/v1/AUTH_test/c/o", user),
        ("test3:reader", "reading", "PUT", "/v1/AUTH_test/c/o", no),
        ("test:tester3", "testing3", "GET", "/v1/AUTH_test", no),
    ] {
        assert_eq!(
            ask_as(&app, who, key, method, path).await,
            expected,
            "{who} {method} {path}"
        );
    }
    assert_eq!(ask(&app, "GET", "/v1/AUTH_test", &[]).await, (401, false));
}

#[tokio::test]
async fn account_lists_are_checked_on_the_way_in() {
    let app = app(None);
    let token = token(&app, "test:tester", "testing").await;
    let post = |path: &str, acl: &str| {
        let headers = [
            ("x-auth-token", token.as_str()),
            ("x-account-access-control", acl),
        ];
        app.call(request("POST", path, &headers))
    };
    let good = r#"{"admin":["a"]}"#;
    let response = post("/v1/AUTH_test", good).await;
    assert_eq!(
        header(&response, ACCOUNT_ACL_SYSMETA.as_str()).unwrap(),
        good
    );
    assert_eq!(header(&response, ACCOUNT_ACL.as_str()), None);
    let response = post("/v1/AUTH_test", "").await;
    assert_eq!(header(&response, ACCOUNT_ACL_SYSMETA.as_str()).unwrap(), "");
    let response = post("/v1/AUTH_test", r#"{"other":[]}"#).await;
    assert_eq!(response.status(), 400);
    assert_eq!(
        text(response).await,
        "X-Account-Access-Control invalid: Key \"other\" not recognized\n\n\
         Input: {\"other\":[]}\n"
    );
    assert_eq!(post("/v1/AUTH_test2", good).await.status(), 403);
}
