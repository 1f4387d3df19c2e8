//! The reader alone: time, and missing bytes.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use cairn_formats::ini::Section;

use super::*;
use crate::fake_store::FakeStore;
use crate::testing::request;

struct Pieces(std::vec::IntoIter<Piece>);

impl Listing for Pieces {
    fn next<'a>(&'a mut self) -> NextPiece<'a> {
        let next = self.0.next();
        Box::pin(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(next)
        })
    }
}

fn piece(path: &str, first: u64, last: Option<u64>) -> Piece {
    Piece::Segment(Segment {
        path: path.to_owned(),
        first,
        last,
        etag: None,
        size: None,
        is_limited: false,
    })
}

async fn start(
    store: &FakeStore,
    pieces: Vec<Piece>,
    max_time: Duration,
) -> Result<Reading, Response> {
    let (parts, _) = request("GET", "/v1/a/c/man", &[]).into_parts();
    let options = ReadOptions {
        next: store.handler(),
        requests: Subrequests::of(&parts, "SLO", "test"),
        rate: RateLimit::read(&Section::from_pairs("filter:x", &[])).unwrap(),
        max_time,
        name: "man".into(),
    };
    Reading::start(Pieces(pieces.into_iter()), options).await
}

#[tokio::test(start_paused = true)]
async fn no_longer_than_allowed() {
    let store = FakeStore::with(&[("/v1/a/c/o", "abc")]);
    let pieces = vec![piece("/v1/a/c/o", 0, None); 5];
    let reading = start(&store, pieces, Duration::from_secs(3)).await.unwrap();
    let mut body = reading.into_body(None);
    let mut whole = 0;
    while let Some(Ok(_)) = body.next_chunk().await {
        whole += 1;
    }
    assert_eq!(whole, 4);
}

#[tokio::test(start_paused = true)]
async fn a_range_must_be_answered_with_one() {
    let store = FakeStore::with(&[("/v1/a/c/o", "abc"), ("/v1/a/c/empty", "")]);
    let long = Duration::from_secs(60);
    let reading = start(&store, vec![piece("/v1/a/c/o", 1, Some(2))], long).await;
    assert_eq!(
        reading
            .unwrap()
            .into_body(Some(2))
            .collect(9)
            .await
            .unwrap(),
        "bc"
    );
    // Shorter than in the listing.
    let reading = start(&store, vec![piece("/v1/a/c/o", 1, Some(5))], long).await;
    assert_eq!(reading.err().unwrap().status(), 409);
    let reading = start(&store, vec![piece("/v1/a/c/o", 3, Some(5))], long).await;
    assert_eq!(reading.err().unwrap().status(), 409);
    let reading = start(&store, vec![piece("/v1/a/c/empty", 0, None)], long).await;
    let body = reading.unwrap().into_body(Some(0));
    assert_eq!(body.collect(9).await.unwrap(), "");
}
