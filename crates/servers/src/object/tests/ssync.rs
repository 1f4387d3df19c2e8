//! SSYNC, spoken to the receiver line by line.

use cairn_formats::ssync::{Offer, Wanted};
use cairn_types::{ObjectHash, Timestamp};

use super::*;

/// Says all of this at once; what the answer says.
async fn run_session(world: &World, said: impl Into<Bytes>) -> String {
    let request = http::Request::builder()
        .method("SSYNC")
        .uri("/sda1/7")
        .body(Body::full(said));
    let response = world.server.call(request.unwrap()).await;
    assert_eq!(response.status(), StatusCode::OK);
    let answer = response.into_body().collect(1 << 20).await.unwrap();
    String::from_utf8(answer.to_vec()).unwrap()
}

fn hash(object: &str) -> ObjectHash {
    HashPath::new("", "endcap").hash("a", Some("c"), Some(object))
}

fn offer(object: &str, time: &str) -> String {
    let time = Timestamp::parse(time).unwrap();
    let offer = Offer {
        hash: hash(object),
        data: time,
        meta: time,
        content_type: time,
        is_durable: true,
    };
    format!("{}\r\n", offer.encode())
}

fn wanted(object: &str) -> String {
    let wanted = Wanted {
        data: true,
        meta: true,
    };
    format!("{}\r\n", wanted.encode(hash(object)))
}

fn put(object: &str, time: &str, etag: &str) -> String {
    format!(
        "PUT /a/c/{object}\r\nContent-Length: 7\r\nETag: {etag}\r\nX-Timestamp: {time}\r\n\
         Content-Type: a/b\r\nX-Object-Meta-A: b\r\n\r\ncontent"
    )
}

const CHECK: &str = ":MISSING_CHECK: START\r\n";
const CHECKED: &str = ":MISSING_CHECK: END\r\n";
const UPDATES: &str = ":UPDATES: START\r\n";
const UPDATED: &str = ":UPDATES: END\r\n";
const ETAG: &str = "9a0364b9e99bb480dd25e1f0284c8555";

async fn what_is_missing_is_wanted_and_taken(kind: Kind) {
    let world = world(kind);
    let large = vec![b'x'; 200_000];
    let mut said = format!(
        "{CHECK}{}{}{CHECKED}{UPDATES}",
        offer("o", T[1]),
        offer("p", T[1])
    );
    said.push_str(&put("o", T[1], ETAG));
    said.push_str(&format!("DELETE /a/c/p\r\nX-Timestamp: {}\r\n\r\n", T[1]));
    said.push_str(&format!(
        "POST /a/c/o\r\nX-Timestamp: {}\r\nX-Object-Meta-A: c\r\n\r\n",
        T[2]
    ));
    said.push_str(&format!(
        "PUT /a/c/large\r\nContent-Length: {}\r\nX-Timestamp: {}\r\nContent-Type: a/b\r\n\r\n",
        large.len(),
        T[1]
    ));
    let mut said = said.into_bytes();
    said.extend_from_slice(&large);
    said.extend_from_slice(UPDATED.as_bytes());
    let answer = run_session(&world, said).await;
    let expected = format!(
        "\r\n{CHECK}{}{}{CHECKED}{UPDATES}{UPDATED}",
        wanted("o"),
        wanted("p")
    );
    assert_eq!(answer.replace("\r\n\r\n", "\r\n"), expected);
    let get = world.get("o", &[]).await;
    assert_eq!((get.status, &get.body[..]), (200, &b"content"[..]));
    assert_eq!(get.header("x-object-meta-a"), "c");
    assert_eq!(world.get("large", &[]).await.body.len(), large.len());
    assert_eq!(
        world.get("p", &[]).await.header("x-backend-timestamp"),
        T[1]
    );
    // Now it is all here.
    let said = format!(
        "{CHECK}{}{}{CHECKED}{UPDATES}{UPDATED}",
        offer("o", T[1]),
        offer("p", T[1])
    );
    let answer = run_session(&world, said).await;
    assert_eq!(
        answer.replace("\r\n\r\n", "\r\n"),
        format!("\r\n{CHECK}{CHECKED}{UPDATES}{UPDATED}")
    );
}

async fn what_goes_wrong_is_told(kind: Kind) {
    let world = world_with(kind, |config| config.replication_failure_threshold = 2);
    let check = format!("{CHECK}{CHECKED}{UPDATES}");
    let bad = put("o", T[1], "0");
    for (said, expected) in [
        ("hello\r\n".to_owned(), ":ERROR: 0 'Looking for"),
        (
            format!("{CHECK}nonsense\r\n"),
            ":ERROR: 0 'not a line of ssync",
        ),
        (
            format!("{check}{bad}{UPDATED}"),
            ":ERROR: 500 'ERROR: With :UPDATES: 1 failures to 0",
        ),
        (
            format!("{check}{bad}{bad}{bad}{UPDATED}"),
            ":ERROR: 0 '2 failures to 0 successes'",
        ),
        (
            format!("{check}GET /a/c/o\r\n\r\n"),
            ":ERROR: 0 'Invalid subrequest method",
        ),
        (
            format!("{check}PUT /a/c/o\r\nX: y\r\n\r\n"),
            ":ERROR: 0 'No content-length sent",
        ),
        (
            format!("{check}POST /a/c/o\r\nContent-Length: 3\r\n\r\n"),
            ":ERROR: 0 'subrequest with content-length",
        ),
    ] {
        let answer = run_session(&world, said.clone()).await;
        assert!(answer.contains(expected), "{said:?}: {answer}");
        assert!(!answer.contains(UPDATED), "{said:?}: {answer}");
    }
    // Cut off: nothing of it is kept, and nobody is told.
    let request = http::Request::builder().method("SSYNC").uri("/sda1/7");
    let half = put("half", T[1], ETAG);
    let said = format!("{check}{}", &half[..half.len() - 2]);
    let response = world
        .server
        .call(request.body(Body::full(said)).unwrap())
        .await;
    assert!(response.into_body().collect(1 << 20).await.is_err());
    assert_eq!(world.get("half", &[]).await.status, 404);
}

#[tokio::test]
async fn below_the_reserve_objects_are_refused_and_tombstones_are_not() {
    let world = world_of(WorldOptions {
        reserve: FallocateReserve::Percent(100.0),
        ..WorldOptions::default()
    });
    let check = format!("{CHECK}{CHECKED}{UPDATES}");
    let gone = format!("DELETE /a/c/o\r\nX-Timestamp: {}\r\n\r\n", T[2]);
    let answer = run_session(&world, format!("{check}{gone}{UPDATED}")).await;
    assert!(
        answer.contains(UPDATED) && !answer.contains("ERROR"),
        "{answer}"
    );
    let known = world.get("o", &[]).await;
    assert_eq!(
        (known.status, known.header("x-backend-timestamp")),
        (404, T[2])
    );
    let said = format!("{check}{}{UPDATED}", put("p", T[1], ETAG));
    let answer = run_session(&world, said).await;
    assert!(
        answer.contains(":ERROR: 500 'ERROR: With :UPDATES: 1 failures"),
        "{answer}"
    );
    assert_eq!(world.get("p", &[]).await.status, 404);
}

async fn only_so_many_at_once(kind: Kind) {
    let world = world_with(kind, |config| {
        config.replication_concurrency = 2;
        config.replication_concurrency_per_device = 1;
        config.replication_lock_timeout = Duration::from_millis(50);
    });
    let begin = |partition: u32| {
        let (sender, body) = Body::channel(None, 4);
        let request = http::Request::builder()
            .method("SSYNC")
            .uri(format!("/sda1/{partition}"));
        (sender, request.body(body).unwrap())
    };
    let (_first, request) = begin(7);
    let holding = world.server.call(request).await;
    // So that a sender does not come with more.
    assert_eq!(holding.headers()["x-backend-ssync-at-once"], "1");
    let mut holding = holding.into_body();
    assert_eq!(holding.next_chunk().await.unwrap().unwrap(), "\r\n");
    tokio::time::sleep(Duration::from_millis(100)).await;
    // The partition is locked; so is the device, for another.
    for (partition, what) in [(7, "the partition"), (8, "the device")] {
        let (_second, request) = begin(partition);
        let answer = world.server.call(request).await.into_body();
        let answer = answer.collect(1 << 10).await.unwrap();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.contains(&format!("{what} is locked")), "{answer}");
    }
}

async fn what_daemons_ask_for_goes_behind_clients(kind: Kind) {
    let world = world(kind);
    let device = world.devices.get("sda1").unwrap();
    let said = [CHECK, CHECKED, UPDATES].concat() + &put("o", "0000000001.00000", ETAG) + UPDATED;
    let answer = run_session(&world, said).await;
    assert!(answer.ends_with(UPDATED), "{answer}");
    // A job is counted after its result was taken.
    let counted = async || {
        tokio::time::sleep(Duration::from_millis(200)).await;
        device.background_share().done
    };
    let of_daemons = counted().await;
    assert!(of_daemons >= 2, "{of_daemons}");
    let get = http::Request::builder().uri("/sda1/7/a/c/o");
    let response = world.server.call(get.body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), StatusCode::OK);
    let replicate = || http::Request::builder().method("REPLICATE").uri("/sda1/7");
    let before = counted().await;
    assert!((of_daemons..=of_daemons + 1).contains(&before), "{before}");
    for _ in 0..3 {
        let request = replicate().body(Body::empty()).unwrap();
        world.server.call(request).await;
    }
    assert!(device.background_share().done > before);
}

async fn a_sender_waits_for_its_turn(kind: Kind) {
    let world = world_with(kind, |config| {
        config.replication_concurrency = 1;
        config.replication_lock_timeout = Duration::from_millis(500);
    });
    let begin = |partition: u32| {
        let (sender, body) = Body::channel(None, 4);
        let request = http::Request::builder()
            .method("SSYNC")
            .uri(format!("/sda1/{partition}"));
        (sender, request.body(body).unwrap())
    };
    let (first, request) = begin(7);
    let mut holding = world.server.call(request).await.into_body();
    assert_eq!(holding.next_chunk().await.unwrap().unwrap(), "\r\n");
    tokio::time::sleep(Duration::from_millis(50)).await;
    let (_second, request) = begin(8);
    let answer = world.server.call(request).await.into_body();
    let answer = answer.collect(1 << 10).await.unwrap();
    assert!(answer.starts_with(b"\r\n:ERROR: 503"), "{answer:?}");
    // The next one gets the turn of the first, which ends meanwhile.
    let (third, request) = begin(9);
    let answer = world.server.call(request).await.into_body();
    drop((first, holding));
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(third);
    let answer = answer.collect(1 << 10).await;
    let refused = |answer: &[u8]| String::from_utf8_lossy(answer).contains("503");
    assert!(!answer.is_ok_and(|answer| refused(&answer)));
}

async fn refused_before_it_begins(kind: Kind) {
    let world = world(kind);
    for (path, frag_index, expected) in [
        ("/sdb1/7", "", 507),
        ("/sda1/x", "", 400),
        ("/sda1/7/abc", "", 400),
        ("/sda1/7", "two", 400),
    ] {
        let request = http::Request::builder()
            .method("SSYNC")
            .uri(path)
            .header("x-backend-ssync-frag-index", frag_index)
            .body(Body::empty());
        let response = world.server.call(request.unwrap()).await;
        assert_eq!(response.status(), expected, "{path}");
    }
}

over_engines!(
    what_is_missing_is_wanted_and_taken,
    what_goes_wrong_is_told,
    only_so_many_at_once,
    what_daemons_ask_for_goes_behind_clients,
    a_sender_waits_for_its_turn,
    refused_before_it_begins,
);
