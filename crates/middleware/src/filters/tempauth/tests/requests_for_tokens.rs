//! Requests for tokens, and the life of tokens.

use super::*;

#[tokio::test]
async fn tokens_are_shared_with_swifts_proxies() {
    let (name, values) = fake().await;
    let env = env();
    let servers = [("memcache_servers", name.as_str())];
    let app = filter_in(&env, "memcache", &servers, app_in(&env, &[], None));
    let now = env.clock.now().secs();
    let own = token(&app, "test:tester", "testing").await;
    let value = values.lock()[&md5_text(&format!("AUTH_/token/{own}"))].clone();
    let value: serde_json::Value = serde_json::from_slice(&value).unwrap();
    assert_eq!(value[1], "test,test:tester,AUTH_test");
    assert!(value[0].as_u64().unwrap() >= now + 86_400);
    let value = values.lock()[&md5_text("AUTH_/user/test:tester")].clone();
    assert_eq!(value, serde_json::to_vec(&own).unwrap());

    let put = |token: &str, expires: u64| {
        let value = format!("[{expires}.5, \"test,test:tester,AUTH_test\"]");
        let key = md5_text(&format!("AUTH_/token/{token}"));
        values.lock().insert(key, value.into_bytes());
    };
    put("AUTH_tkswifts", now + 1000);
    put("AUTH_tkexpired", now - 1);
    for (token, status) in [
        ("AUTH_tkswifts", 200),
        ("AUTH_tkexpired", 401),
        ("AUTH_tkother", 401),
    ] {
        let headers = [("x-auth-token", token)];
        let (answer, _) = ask(&app, "GET", "/v1/AUTH_test/c", &headers).await;
        assert_eq!(answer, status, "{token}");
    }

    // Swift's proxies drop their cache of a container that is changed here.
    let key = md5_text("container/AUTH_test/c");
    for (method, stays) in [("GET", true), ("POST", false)] {
        values.lock().insert(key.clone(), b"{}".to_vec());
        let headers = [("x-auth-token", own.as_str())];
        assert_eq!(ask(&app, method, "/v1/AUTH_test/c", &headers).await.0, 200);
        assert_eq!(values.lock().contains_key(&key), stays, "{method}");
    }
}

#[tokio::test]
async fn tokens_are_given_in_every_form() {
    let app = app(None);
    for (path, headers) in [
        (
            "/auth/v1.0",
            [("x-auth-user", "test:tester"), ("x-auth-key", "testing")],
        ),
        (
            "/auth/v1.0/",
            [
                ("x-storage-user", "test:tester"),
                ("x-storage-pass", "testing"),
            ],
        ),
        (
            "/auth/auth",
            [("x-auth-user", "test:tester"), ("x-auth-key", "testing")],
        ),
        (
            "/auth/v1/test/auth",
            [("x-storage-user", "tester"), ("x-storage-pass", "testing")],
        ),
        (
            "/auth/v1/test/auth",
            [("x-auth-user", "test:tester"), ("x-auth-key", "testing")],
        ),
    ] {
        let headers = [&headers[..], &[("host", "store.example:8080")]].concat();
        let response = app.call(request("GET", path, &headers)).await;
        assert_eq!(response.status(), 200, "{path}");
        let token = header(&response, "x-auth-token").unwrap();
        assert!(token.starts_with("AUTH_tk"));
        assert_eq!(header(&response, "x-storage-token").unwrap(), token);
        assert_eq!(header(&response, "x-auth-token-expires").unwrap(), "86400");
        let url = header(&response, "x-storage-url").unwrap();
        assert_eq!(url, "http://store.example:8080/v1/AUTH_test");
        let asked = ask(&app, "GET", "/v1/AUTH_test", &[("x-auth-token", &token)]).await;
        assert_eq!(asked, (200, true));
        let asked = ask(&app, "GET", "/v1/AUTH_test", &[("x-storage-token", &token)]).await;
        assert_eq!(asked, (200, true));
    }
}

#[tokio::test]
async fn tokens_are_refused() {
    let app = app(None);
    let good = ("x-auth-key", "testing");
    for (method, path, headers, status, realm) in [
        ("POST", "/auth/v1.0", vec![], 405, None),
        ("HEAD", "/auth/v1.0", vec![], 405, None),
        ("GET", "/auth/", vec![], 404, None),
        ("GET", "/auth/v2.0", vec![], 400, None),
        ("GET", "/auth/v1", vec![], 400, None),
        ("GET", "/auth/v1/test/other", vec![], 400, None),
        ("GET", "/auth/v1.0", vec![], 401, Some("unknown")),
        (
            "GET",
            "/auth/v1.0",
            vec![("x-auth-user", "test"), good],
            401,
            Some("unknown"),
        ),
        (
            "GET",
            "/auth/v1.0",
            vec![("x-auth-user", ":tester"), good],
            401,
            Some("unknown"),
        ),
        (
            "GET",
            "/auth/v1.0",
            vec![("x-auth-user", "test:tester")],
            401,
            Some("test"),
        ),
        (
            "GET",
            "/auth/v1.0",
            vec![("x-auth-user", "test:nobody"), good],
            401,
            Some("test"),
        ),
        (
            "GET",
            "/auth/v1.0",
            vec![("x-auth-user", "test:tester2"), good],
            401,
            Some("test"),
        ),
        (
            "GET",
            "/auth/v1.0",
            vec![("x-auth-user", "a b\":u"), good],
            401,
            Some("a%20b%22"),
        ),
        (
            "GET",
            "/auth/v1/test/auth",
            vec![("x-auth-user", "act:tester"), good],
            401,
            Some("test"),
        ),
        ("GET", "/auth/v1/test/auth", vec![good], 401, Some("test")),
    ] {
        let response = app.call(request(method, path, &headers)).await;
        assert_eq!(response.status().as_u16(), status, "{path} {headers:?}");
        let expected = realm.map(|r| format!("Swift realm=\"{r}\""));
        assert_eq!(header(&response, "www-authenticate"), expected, "{path}");
    }
}

#[tokio::test]
async fn tokens_of_nobody_are_refused_at_once() {
    let app = app(Some(".r:*"));
    for token in ["AUTH_tkAAAA", "AUTH_ftkx", "AUTH_"] {
        let headers = [("x-auth-token", token)];
        let response = app
            .call(request("GET", "/v1/AUTH_test/c/o", &headers))
            .await;
        assert_eq!(response.status(), 401);
        assert_eq!(
            header(&response, "www-authenticate").unwrap(),
            "Swift realm=\"AUTH_test\""
        );
    }
}

#[tokio::test]
async fn tokens_expire_and_survive_a_restart() {
    let environment = env();
    let first = app_in(&environment, &[("token_life", "100")], None);
    let token = token(&first, "test:tester", "testing").await;
    let headers = [("x-auth-token", token.as_str())];
    let restarted = app_in(&environment, &[("token_life", "100")], None);
    for app in [&first, &restarted, &first] {
        assert_eq!(
            ask(app, "GET", "/v1/AUTH_test", &headers).await,
            (200, true)
        );
    }
    environment.clock.advance(Duration::from_secs(101));
    for app in [&first, &restarted] {
        assert_eq!(
            ask(app, "GET", "/v1/AUTH_test", &headers).await,
            (401, false)
        );
    }
}
