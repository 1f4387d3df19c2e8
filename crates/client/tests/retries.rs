//! Retries and token renewal, against a server with scripted responses.

#![allow(clippy::unwrap_used)]

mod script;

use std::time::Duration;

use bytes::Bytes;
use cairn_client::{Condition, GetQuery, ListQuery, ManifestEntry, Payload};
use http::HeaderMap;
use script::{BUSY, LOGIN, OK, script};

const EXPIRED: &str = "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n";

#[tokio::test]
async fn what_fails_in_passing_is_sent_again_with_its_body() {
    let script = script(vec![LOGIN, BUSY, "cut", OK]).await;
    let swift = script.swift().await;
    let body = Payload::Bytes(vec![
        Bytes::from_static(b"one "),
        Bytes::from_static(b"two"),
    ]);
    let info = swift
        .put("c", "a b/ü", HeaderMap::new(), body, Condition::None)
        .await
        .unwrap();
    assert_eq!(info.etag, "e");
    let seen = script.seen();
    assert_eq!(seen.len(), 4);
    for request in &seen[1..] {
        assert!(
            request.starts_with("PUT /v1/AUTH_a/c/a%20b/%C3%BC HTTP/1.1"),
            "{request}"
        );
        assert!(request.ends_with("one two"), "{request}");
    }
}

#[tokio::test]
async fn attempts_are_bounded_and_refusals_are_final() {
    let script = script(vec![
        LOGIN,
        BUSY,
        BUSY,
        BUSY,
        "HTTP/1.1 507 Full\r\nContent-Length: 4\r\n\r\nfull",
    ])
    .await;
    let swift = script.swift().await;
    let error = swift.head("c", "o").await.unwrap_err();
    assert_eq!(error.status().unwrap().as_u16(), 503);
    assert!(error.is_passing());
    let error = swift
        .put("c", "o", HeaderMap::new(), Payload::Empty, Condition::None)
        .await;
    let error = error.unwrap_err().into_inner();
    assert_eq!(error.status().unwrap().as_u16(), 507);
    assert!(
        error
            .to_string()
            .ends_with("507 Insufficient Storage (full)"),
        "{error}"
    );
    assert_eq!(script.seen().len(), 5);
}

#[tokio::test]
async fn an_expired_token_is_renewed_once() {
    const SECOND: &str = "HTTP/1.1 200 OK\r\nX-Auth-Token: SECOND\r\nX-Storage-Url: URL/v1/AUTH_a\r\n\
                          Content-Length: 0\r\n\r\n";
    let script = script(vec![LOGIN, EXPIRED, SECOND, OK, EXPIRED, SECOND, EXPIRED]).await;
    let swift = script.swift().await;
    let put = || swift.put("c", "o", HeaderMap::new(), Payload::Empty, Condition::None);
    put().await.unwrap();
    let seen = script.seen();
    assert!(seen[1].contains("TOKEN") && seen[3].contains("SECOND"));
    let error = put().await.unwrap_err().into_inner();
    assert_eq!(error.status().unwrap().as_u16(), 401);
    assert_eq!(script.seen().len(), 7);
}

#[tokio::test]
async fn calls_may_move_between_threads() {
    let script = script(vec![LOGIN, OK]).await;
    let swift = script.swift().await;
    let call = tokio::spawn(async move { swift.head("c", "o").await });
    call.await.unwrap().unwrap();
}

#[tokio::test]
async fn nothing_hangs() {
    let script = script(vec![LOGIN, "hang"]).await;
    let swift = script.swift().await;
    let start = std::time::Instant::now();
    assert!(swift.head("c", "o").await.unwrap_err().is_passing());
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn a_body_that_breaks_off_is_asked_for_again() {
    const HALF: &str = "HTTP/1.1 206 Partial\r\nX-CUT: 1\r\nContent-Length: 6\r\n\r\nabc";
    const WHOLE: &str = "HTTP/1.1 206 Partial\r\nContent-Length: 6\r\n\r\nabcdef";
    const ALL: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabcdef";
    let script = script(vec![LOGIN, HALF, WHOLE, ALL]).await;
    let swift = script.swift().await;
    let query = GetQuery {
        range: Some((2, 6)),
        condition: Condition::Matches("e"),
        is_newest: false,
    };
    let get = async || {
        let mut buffer = Vec::new();
        let read = swift.get_range("c", "o", query, &mut buffer).await;
        read.map(|()| buffer)
    };
    assert_eq!(get().await.unwrap(), b"abcdef");
    let head = script.seen()[2].to_lowercase();
    assert!(
        head.contains("range: bytes=2-7") && head.contains("if-match: \"e\""),
        "{head}"
    );
    // A response without the range has other bytes of the object.
    assert!(
        get()
            .await
            .unwrap_err()
            .to_string()
            .contains("a range was asked for")
    );
}

#[tokio::test]
async fn lists_and_writes_manifests() {
    const ROWS: &str = "HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n[{\"subdir\":\"d/\"}]\n";
    let script = script(vec![
        LOGIN,
        ROWS,
        OK,
        "HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n",
    ])
    .await;
    let swift = script.swift().await;
    let query = ListQuery {
        prefix: "a b/",
        delimiter: Some('/'),
        marker: "m&",
        limit: 5,
    };
    assert_eq!(swift.list("c", &query).await.unwrap().len(), 1);
    let entries = [ManifestEntry::part("/c/s".into(), 10, 2, 4)];
    let put = swift.put_manifest("c", "o", HeaderMap::new(), &entries, Condition::None);
    put.await.unwrap();
    assert!(!swift.delete("c", "o", Condition::None).await.unwrap());
    let lines = script.lines();
    assert_eq!(
        lines[1],
        "GET /v1/AUTH_a/c?format=json&prefix=a%20b%2F&delimiter=%2F&marker=m%26&limit=5 HTTP/1.1"
    );
    assert_eq!(
        lines[2],
        "PUT /v1/AUTH_a/c/o?multipart-manifest=put HTTP/1.1"
    );
    assert!(script.seen()[2].ends_with(r#"[{"path":"/c/s","size_bytes":10,"range":"2-5"}]"#));
}

/// The server ends a connection that is idle: the next request finds that before it is sent, and a
/// conditional write is not in doubt.
#[tokio::test]
async fn a_connection_that_ended_while_it_was_idle_is_not_used() {
    const LAST: &str = "HTTP/1.1 201 CUT\r\nETag: \"e\"\r\nContent-Length: 1\r\n\r\nx";
    let script = script(vec![LOGIN, LAST, LAST, OK]).await;
    let swift = script.swift().await;
    for _ in 0..3 {
        let put = swift.put(
            "c",
            "o",
            HeaderMap::new(),
            Payload::Empty,
            Condition::Absent,
        );
        put.await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(script.seen().len(), 4);
}

#[tokio::test]
async fn an_answer_with_odd_header_names_is_read_all_the_same() {
    const ODD: &str = "HTTP/1.1 200 OK\r\nX-Object-Meta-F\u{fc}r: 1\r\nContent-Length: 7\r\n\r\n";
    let script = script(vec![LOGIN, ODD, ODD, ODD]).await;
    let info = script.swift().await.head("c", "o").await.unwrap();
    assert_eq!(info.bytes, 7);
    let odd = info
        .headers
        .keys()
        .find(|name| name.as_str().contains("x-object-meta-f"));
    assert!(odd.is_some(), "{:?}", info.headers);
}
