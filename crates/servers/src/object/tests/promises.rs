//! PROMISE, and writes under promises.

use super::{Answer, Kind, World, answer, request, world_with};
use cairn_http::Clock;
use cairn_types::Timestamp;
use std::time::Duration;

const NOW: u64 = 4_000_000_000;

fn at(tenths: u64) -> String {
    Timestamp::from_ticks(Timestamp::from_secs(NOW).ticks() + tenths * 10_000).internal()
}

fn world(kind: Kind) -> World {
    world_with(kind, |config| {
        config.promise_grace = Duration::ZERO;
        config.clock = Clock::given(|| Timestamp::from_secs(NOW));
    })
}

async fn promise(world: &World, action: &str, token: &str, time: &str) -> Answer {
    let headers = [
        format!("x-timestamp: {time}"),
        format!("x-backend-promise-token: {token}"),
        format!("x-backend-promise-action: {action}"),
    ];
    let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
    world.send("PROMISE", "o", &headers, "").await
}

async fn write(world: &World, method: &str, token: &str, time: &str, body: &'static str) -> Answer {
    let headers = [
        format!("x-timestamp: {time}"),
        format!("x-backend-promise-token: {token}"),
        format!("content-length: {}", body.len()),
        "content-type: a/b".to_owned(),
    ];
    let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
    world.send(method, "o", &headers, body).await
}

async fn a_write_needs_its_promise(kind: Kind) {
    let world = world(kind);
    let looked = promise(&world, "look", "a", &at(0)).await;
    assert_eq!(
        (looked.status, looked.header("x-backend-promise")),
        (204, "none")
    );
    assert_eq!(
        looked.header("x-backend-data-timestamp"),
        "0000000000.00000"
    );
    let refused = write(&world, "PUT", "a", &at(0), "one").await;
    assert_eq!(
        (refused.status, refused.header("x-backend-promise")),
        (409, "lost")
    );
    for (token, word) in [("a", "given"), ("b", "busy")] {
        let answer = promise(&world, "give", token, &at(1)).await;
        assert_eq!(answer.header("x-backend-promise"), word);
    }
    let stolen = write(&world, "PUT", "b", &at(1), "two").await;
    assert_eq!(stolen.header("x-backend-promise"), "lost");
    let written = write(&world, "PUT", "a", &at(1), "one").await;
    assert_eq!(written.status, 201);
    // It comes once more: the time says that it is there.
    let again = write(&world, "PUT", "a", &at(1), "one").await;
    assert_eq!(
        (again.status, again.header("x-backend-timestamp")),
        (409, &*at(1))
    );
    let looked = promise(&world, "give", "b", &at(1)).await;
    assert_eq!(looked.header("x-backend-promise"), "older");
    assert_eq!(looked.header("etag"), written.header("etag"));
    assert_eq!(looked.header("x-backend-data-timestamp"), at(1));
    assert_eq!(promise(&world, "wish", "b", &at(2)).await.status, 400);
}

async fn posts_and_deletions_are_promised_too(kind: Kind) {
    let world = world(kind);
    promise(&world, "give", "a", &at(1)).await;
    assert_eq!(write(&world, "PUT", "a", &at(1), "one").await.status, 201);
    assert_eq!(write(&world, "POST", "b", &at(2), "").await.status, 409);
    promise(&world, "give", "b", &at(2)).await;
    assert_eq!(write(&world, "POST", "b", &at(2), "").await.status, 202);
    assert_eq!(write(&world, "DELETE", "c", &at(3), "").await.status, 409);
    let given = promise(&world, "give", "c", &at(2)).await;
    assert_eq!(given.header("x-backend-promise"), "older", "than the POST");
    promise(&world, "give", "c", &at(3)).await;
    assert_eq!(write(&world, "DELETE", "c", &at(3), "").await.status, 204);
    let looked = promise(&world, "look", "d", &at(4)).await;
    assert_eq!(looked.header("x-backend-data-timestamp"), at(3));
    assert!(!looked.headers.contains_key("etag"));
}

async fn a_streamed_upload_is_written_when_it_was_promised(kind: Kind) {
    let world = std::sync::Arc::new(world(kind));
    let (sender, body) = cairn_http::Body::channel(None, 1);
    let headers = [
        format!("x-timestamp: {}", at(1)),
        "x-backend-promise-token: a".to_owned(),
        "content-type: a/b".to_owned(),
        "transfer-encoding: chunked".to_owned(),
    ];
    let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
    let put = request("PUT", "/sda1/7/a/c/o", &headers, body);
    let upload = tokio::spawn({
        let world = world.clone();
        async move { answer(world.call(put).await).await }
    });
    assert!(sender.send("some content".into()).await);
    let given = promise(&world, "give", "a", &at(7)).await;
    assert_eq!(given.header("x-backend-promise"), "given");
    assert!(!given.headers.contains_key("etag"), "nothing is there yet");
    sender.finish().await;
    assert_eq!(upload.await.unwrap().status, 201);
    let looked = promise(&world, "look", "b", &at(8)).await;
    assert_eq!(
        looked.header("x-backend-data-timestamp"),
        at(7),
        "as promised"
    );
}

async fn a_refused_upload_leaves_no_doubt(kind: Kind) {
    let world = world(kind);
    promise(&world, "give", "a", &at(1)).await;
    let headers = [
        format!("x-timestamp: {}", at(1)),
        "x-backend-promise-token: a".to_owned(),
        "content-length: 3".to_owned(),
        "content-type: a/b".to_owned(),
        "etag: d41d8cd98f00b204e9800998ecf8427e".to_owned(),
    ];
    let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
    assert_eq!(world.send("PUT", "o", &headers, "one").await.status, 422);
    let given = promise(&world, "give", "b", &at(2)).await;
    assert_eq!(given.header("x-backend-promise"), "given");
    assert!(!given.headers.contains_key("x-backend-in-doubt"));
}

over_engines!(
    a_write_needs_its_promise,
    posts_and_deletions_are_promised_too,
    a_streamed_upload_is_written_when_it_was_promised,
    a_refused_upload_leaves_no_doubt,
);
