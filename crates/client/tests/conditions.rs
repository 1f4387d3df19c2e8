//! Conditional writes, against a server with scripted responses.

#![allow(clippy::unwrap_used)]

mod script;

use cairn_client::{Condition, ManifestEntry, Payload, WriteError};
use http::HeaderMap;
use script::{BUSY, LOGIN, OK, script};

const LOST: &str = "HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n";
const OTHERS: &str = "HTTP/1.1 409 Conflict\r\nContent-Length: 0\r\n\r\n";
const UNKNOWN: &str = "HTTP/1.1 501 Not Implemented\r\nContent-Length: 0\r\n\r\n";
const DENIED: &str = "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n";
const SLOW_DOWN: &str = "HTTP/1.1 498 Rate Limited\r\nContent-Length: 0\r\n\r\n";

#[tokio::test]
async fn the_condition_is_sent_with_every_kind_of_write() {
    let script = script(vec![LOGIN, OK, OK, OK, OK, OK]).await;
    let swift = script.swift().await;
    let (none, matches) = (Condition::Absent, Condition::Matches("e1"));
    let headers = HeaderMap::new;
    let put = swift.put("c", "o", headers(), Payload::Empty, none);
    put.await.unwrap();
    let entries = [ManifestEntry::part("/c/s".into(), 10, 0, 10)];
    let put = swift.put_manifest("c", "o", headers(), &entries, matches);
    put.await.unwrap();
    swift.post("c", "o", headers(), matches).await.unwrap();
    assert!(swift.delete("c", "o", matches).await.unwrap());
    swift.copy("c", "o", "p", matches).await.unwrap();
    let seen: Vec<String> = script.seen().iter().map(|r| r.to_lowercase()).collect();
    assert!(seen[1].contains("if-none-match: *"));
    for request in &seen[2..] {
        assert!(request.contains("if-match: \"e1\""), "{request}");
    }
}

#[tokio::test]
async fn a_write_that_may_have_taken_place_is_not_sent_again_on_a_condition() {
    for doubtful in ["cut", "hang", BUSY] {
        let script = script(vec![LOGIN, doubtful, LOST]).await;
        let swift = script.swift().await;
        let (condition, body) = (Condition::Matches("e"), Payload::from(b"x".to_vec()));
        let put = swift.put("c", "o", HeaderMap::new(), body, condition);
        let error = put.await.unwrap_err();
        assert!(
            matches!(error, WriteError::InDoubt(_)),
            "{doubtful}: {error:?}"
        );
        assert_eq!(script.seen().len(), 2, "{doubtful}");
    }
}

#[tokio::test]
async fn a_write_that_has_not_taken_place_says_so() {
    let script = script(vec![LOGIN, SLOW_DOWN, LOST, OTHERS, DENIED, UNKNOWN]).await;
    let swift = script.swift().await;
    let delete = || swift.delete("c", "o", Condition::Matches("e"));
    for _ in 0..2 {
        let error = delete().await.unwrap_err();
        assert!(matches!(error, WriteError::Lost(_)), "{error:?}");
    }
    for _ in 0..2 {
        let error = delete().await.unwrap_err();
        assert!(matches!(error, WriteError::Failed(_)), "{error:?}");
    }
    // A rate limit responds before the store did anything, so that request was repeated.
    assert_eq!(script.seen().len(), 6);
}

#[tokio::test]
async fn abilities_are_read_from_info() {
    const INFO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 44\r\n\r\n\
                        {\"conditional_writes\":{\"policies\":[\"gold\"]}}";
    let script = script(vec![
        LOGIN,
        INFO,
        DENIED,
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno",
    ])
    .await;
    let swift = script.swift().await;
    assert!(
        swift
            .capabilities()
            .await
            .unwrap()
            .has_conditional_writes("gold")
    );
    assert_eq!(script.lines()[1], "GET /info HTTP/1.1");
    let hidden = swift.capabilities().await.unwrap();
    assert!(!hidden.has_conditional_writes("gold"));
    assert!(swift.capabilities().await.is_err());
}
