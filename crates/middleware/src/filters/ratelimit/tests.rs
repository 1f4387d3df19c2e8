#![allow(clippy::unwrap_used)]

use super::*;
use crate::testing::{self, OneOfEach, answers, filter_in, request, text};
use cairn_http::ContainerInfo;

fn app(options: &[(&str, &str)], global: Option<&str>) -> (Handler, FilterEnv) {
    let mut account = AccountInfo::default();
    if let Some(value) = global {
        account.sysmeta.insert(GLOBAL.into(), value.into());
    }
    let mut env = testing::env();
    env.info_source = Arc::new(OneOfEach {
        account: Arc::new(account),
        container: Arc::new(ContainerInfo {
            object_count: 10,
            ..ContainerInfo::default()
        }),
    });
    (filter_in(&env, "ratelimit", options, answers(200)), env)
}

/// The responses to two simultaneous requests, if a second one must not be delayed.
async fn two(options: &[(&str, &str)], global: Option<&str>, method: &str, path: &str) -> [u16; 2] {
    let mut all = vec![("max_sleep_time_seconds", "0.1")];
    all.extend_from_slice(options);
    let (app, _) = app(&all, global);
    let mut codes = [0; 2];
    for code in &mut codes {
        *code = app.call(request(method, path, &[])).await.status().as_u16();
    }
    codes
}

#[tokio::test(start_paused = true)]
async fn what_is_limited() {
    let account = &[("account_ratelimit", "1")][..];
    let container = &[("container_ratelimit_5", "1")][..];
    let listing = &[("container_listing_ratelimit_5", "1")][..];
    let free = [200, 200];
    let limited = [200, 498];
    for (options, global, method, path, expected) in [
        (account, None, "PUT", "/v1/a/c", limited),
        (account, None, "DELETE", "/v1/a/c", limited),
        (account, None, "POST", "/v1/a/c", free),
        (account, None, "GET", "/v1/a/c", free),
        (account, None, "PUT", "/v1/a/c/o", free),
        (account, None, "PUT", "/v9/a/c", free),
        (container, None, "PUT", "/v1/a/c/o", limited),
        (container, None, "DELETE", "/v1/a/c/o", limited),
        (container, None, "POST", "/v1/a/c/o", limited),
        (container, None, "COPY", "/v1/a/c/o", limited),
        (container, None, "GET", "/v1/a/c/o", free),
        (container, None, "GET", "/v1/a/c", free),
        (listing, None, "GET", "/v1/a/c", limited),
        (listing, None, "GET", "/v1/a/c/o", free),
        (
            &[("container_ratelimit_11", "1")],
            None,
            "PUT",
            "/v1/a/c/o",
            free,
        ),
        (&[], Some("1"), "PUT", "/v1/a/c/o", limited),
        (&[], Some("1"), "POST", "/v1/a", limited),
        (&[], Some("1"), "GET", "/v1/a/c/o", free),
        (&[], Some("nonsense"), "PUT", "/v1/a/c/o", free),
        (account, Some("WHITELIST"), "PUT", "/v1/a/c", free),
        (&[], Some("BLACKLIST"), "GET", "/v1/a", [497, 497]),
        (
            &[("account_blacklist", "b, a")],
            None,
            "GET",
            "/v1/a",
            [497, 497],
        ),
        (
            &[("account_ratelimit", "1"), ("account_whitelist", "a")],
            None,
            "PUT",
            "/v1/a/c",
            free,
        ),
    ] {
        let codes = two(options, global, method, path).await;
        assert_eq!(codes, expected, "{options:?} {global:?} {method} {path}");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_wait_their_turn() {
    let (app, _) = app(&[("account_ratelimit", "2")], None);
    let began = tokio::time::Instant::now();
    for _ in 0..3 {
        let answer = app.call(request("PUT", "/v1/a/c", &[])).await;
        assert_eq!(answer.status(), 200);
    }
    // The filter's own clock stands still: the third waits for two shares of a second.
    assert_eq!(began.elapsed().as_millis(), 500 + 1000);
}

#[tokio::test(start_paused = true)]
async fn texts_and_info() {
    let options = [
        ("account_ratelimit", "1"),
        ("max_sleep_time_seconds", "0.5"),
        ("container_ratelimit_100", "5"),
    ];
    let (app, env) = app(&options, None);
    app.call(request("PUT", "/v1/a/c", &[])).await;
    let answer = app.call(request("PUT", "/v1/a/c", &[])).await;
    assert_eq!(text(answer).await, "Slow down");
    assert_eq!(
        env.swift_info.view(&[], false)["ratelimit"],
        json!({
            "account_ratelimit": 1.0,
            "max_sleep_time_seconds": 0.5,
            "container_ratelimits": [[100, 5.0]],
            "container_listing_ratelimits": [],
        })
    );
}
