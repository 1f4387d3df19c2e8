//! Logins as counted in `/metrics`. In a test program of its own, since the counters are per
//! process.

#![allow(clippy::unwrap_used)]

mod common;

use common::{PASSWORD, proxy, secured, start};

#[tokio::test]
async fn logins_are_counted_by_outcome() {
    let server = start(secured(proxy()));
    let counts = async || {
        let answer = server.get("/metrics", &[]).await;
        assert_eq!(answer.status(), 200);
        let text = answer.into_body().collect(1 << 20).await.unwrap();
        let text = String::from_utf8(text.to_vec()).unwrap();
        ["Accepted", "Wrong", "HeldUp"].map(|outcome| {
            let name = format!("cairn_logins_total{{outcome=\"{outcome}\"}} ");
            let count = text.lines().find_map(|line| line.strip_prefix(&name));
            count.map_or(0, |count| count.parse::<u64>().unwrap())
        })
    };
    let log_in = async |key: &str| {
        let headers = [("x-auth-user", "test:tester"), ("x-auth-key", key)];
        server.get("/auth/v1.0", &headers).await.status().as_u16()
    };
    assert_eq!(counts().await, [0, 0, 0]);
    assert_eq!(log_in(PASSWORD).await, 200);
    assert_eq!(counts().await, [1, 0, 0]);
    assert_eq!(log_in("wrong").await, 401);
    assert_eq!(counts().await, [1, 1, 0]);
    let mut wrong = 1;
    while log_in("wrong").await == 401 {
        wrong += 1;
        assert!(wrong < 100, "nobody holds it up");
    }
    assert_eq!(counts().await, [1, wrong, 1]);
}
