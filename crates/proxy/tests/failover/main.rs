//! The proxy over failing backends: the response to the client, and the devices that it comes from.
#![allow(clippy::unwrap_used)]

mod cluster;
#[path = "../common/mod.rs"]
mod common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use cairn_http::{Body, Footers, Request, Response, Service, Trailer, respond};
use http::StatusCode;

use cluster::*;

/// Options with which a GET asks one more server every 50 ms.
const AT_ONCE: [(&str, &str); 2] = [("concurrent_gets", "on"), ("concurrency_timeout", "0.05")];

#[tokio::test]
async fn a_read_goes_on_with_another_replica_where_one_broke_off() {
    let cluster = Cluster::new(&object());
    // Two of three break off: in any order the client gets the whole object.
    cluster.set_primaries([Mood::BreaksOff, Mood::BreaksOff, Mood::Well]);
    for _ in 0..20 {
        let (status, body) = cluster.get(&[]).await;
        assert!(status == 200 && body.unwrap() == object(), "{status}");
    }
}

/// Half of the servers take calls: it begins at one, and goes on by a request.
#[tokio::test]
async fn a_read_by_a_call_goes_on_by_a_request() {
    let cluster = Cluster::new(&object());
    cluster.set_primaries([Mood::BreaksOff; 3]);
    for id in handoffs() {
        cluster.set(id, Mood::Well);
    }
    for _ in 0..20 {
        let (status, body) = cluster.get(&[("range", "bytes=10-")]).await;
        assert!(status == 206 && body.unwrap() == object()[10..], "{status}");
    }
    let called = cluster.called.load(Ordering::Relaxed);
    assert!((1..=20).contains(&called), "{called}");
}

#[tokio::test]
async fn a_read_that_nobody_can_finish_is_broken_off() {
    let cluster = Cluster::new(&object());
    for id in 0..DEVICES {
        cluster.set(id, Mood::BreaksOff);
    }
    let (status, body) = cluster.get(&[]).await;
    assert_eq!(status, 200);
    assert!(body.is_err(), "a short body must not look whole");
}

#[tokio::test]
async fn reads_pass_over_the_unmounted_the_empty_and_the_silent() {
    let cluster = Cluster::new(&object());
    cluster.set_primaries([Mood::Unmounted, Mood::Empty, Mood::Silent]);
    for id in handoffs() {
        cluster.set(id, Mood::Well);
    }
    let (status, body) = cluster.get(&[]).await;
    assert!(status == 200 && body.unwrap() == object(), "{status}");
}

#[tokio::test]
async fn a_newer_tombstone_hides_older_data() {
    let cluster = Cluster::new(&object());
    cluster.set_primaries([Mood::Deleted, Mood::Well, Mood::Well]);
    let (status, _) = cluster.get(&[("x-newest", "true")]).await;
    assert_eq!(status, 404);
}

#[tokio::test]
async fn the_newest_of_the_same_data_is_that_with_the_latest_post() {
    let cluster = Cluster::new(&object());
    for place in 0..3 {
        let mut moods = [Mood::Well; 3];
        moods[place] = Mood::Posted;
        cluster.set_primaries(moods);
        let headers = [("x-newest", "true")];
        let response = cluster.send("GET", &headers, Body::empty()).await;
        let time = respond::header(response.headers(), "x-backend-timestamp");
        assert_eq!(time, Some("0000000007.00000"), "{place}");
    }
}

#[tokio::test]
async fn nobody_has_it() {
    let cluster = Cluster::new(&object());
    for id in 0..DEVICES {
        cluster.set(id, Mood::Empty);
    }
    assert_eq!(cluster.get(&[]).await.0, 404);
    for id in 0..DEVICES {
        cluster.set(id, Mood::Unmounted);
    }
    assert_eq!(cluster.get(&[]).await.0, 503);
}

#[tokio::test(start_paused = true)]
async fn an_object_is_found_in_the_policy_it_was_moved_to() {
    let cluster = Cluster::new(&object());
    assert_eq!(cluster.get(&[]).await.0, 200);
    cluster.policy.store(1, Ordering::Relaxed);
    assert_eq!(cluster.get(&[]).await.0, 404, "the container is not asked");

    tokio::time::advance(Duration::from_secs(7)).await;
    let told = [(POLICY_INDEX, "0")];
    assert_eq!(cluster.get(&told).await.0, 404, "who says where is obeyed");
    let (status, body) = cluster.get(&[]).await;
    assert!(status == 200 && body.unwrap() == object(), "{status}");
}

#[tokio::test(start_paused = true)]
async fn what_is_nowhere_makes_few_ask_the_container() {
    let cluster = Cluster::new(&object());
    for id in 0..DEVICES {
        cluster.set(id, Mood::Empty);
    }
    assert_eq!(cluster.get(&[]).await.0, 404);
    let asked = || cluster.asked_for_info.load(Ordering::Relaxed);
    let before = asked();
    tokio::time::advance(Duration::from_secs(7)).await;
    for _ in 0..10 {
        assert_eq!(cluster.get(&[]).await.0, 404);
    }
    assert_eq!(asked(), before + 1);
}

#[tokio::test]
async fn small_writes_go_to_the_primaries_and_fall_to_handoffs() {
    let cluster = Cluster::new(b"");
    let response = cluster
        .send("PUT", &[("content-length", "3")], Body::full("abc"))
        .await;
    assert_eq!(response.status(), StatusCode::CREATED);
    assert_eq!(cluster.took("PUT"), names(&primaries()));
    cluster.seen.lock().unwrap().clear();

    cluster.set_primaries([Mood::Unmounted, Mood::Unmounted, Mood::Well]);
    let response = cluster
        .send("PUT", &[("content-length", "3")], Body::full("abc"))
        .await;
    assert_eq!(response.status(), StatusCode::CREATED);
    let mut expected = handoffs();
    expected.push(primaries()[2]);
    assert_eq!(cluster.took("PUT"), names(&expected));
}

#[tokio::test]
async fn a_streamed_write_survives_one_failing_replica_and_not_two() {
    let payload: Vec<u8> = object().repeat(120);
    let body = || {
        let chunks: Vec<_> = payload
            .chunks(7_000)
            .map(|c| Ok(Bytes::copy_from_slice(c)))
            .collect();
        Body::from_stream(
            futures_util::stream::iter(chunks),
            Some(payload.len() as u64),
        )
    };
    let length = payload.len().to_string();
    let headers = [("content-length", length.as_str())];
    let cluster = Cluster::new(b"");
    cluster.set_primaries([Mood::FailsUploads, Mood::Well, Mood::Well]);
    let response = cluster.send("PUT", &headers, body()).await;
    assert_eq!(response.status(), StatusCode::CREATED);
    assert!(
        cluster
            .seen
            .lock()
            .unwrap()
            .iter()
            .all(|(_, _, got)| got.as_ref() == payload)
    );

    cluster.set_primaries([Mood::FailsUploads, Mood::FailsUploads, Mood::Well]);
    let response = cluster.send("PUT", &headers, body()).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
}

/// A body of up to 1 MiB without conditions is in memory, and goes to handoffs in its turn.
#[tokio::test]
async fn a_write_that_is_read_whole_survives_two_failing_replicas() {
    let payload: Vec<u8> = object().repeat(20);
    let chunks: Vec<_> = payload
        .chunks(90_000)
        .map(|chunk| Ok(Bytes::copy_from_slice(chunk)))
        .collect();
    let length = payload.len();
    let body = Body::from_stream(futures_util::stream::iter(chunks), Some(length as u64));
    let length = length.to_string();
    let headers = [("content-length", length.as_str())];
    let cluster = Cluster::new(b"");
    cluster.set_primaries([Mood::FailsUploads, Mood::FailsUploads, Mood::Well]);
    let response = cluster.send("PUT", &headers, body).await;
    assert_eq!(response.status(), StatusCode::CREATED);
    let seen = cluster.seen.lock().unwrap();
    let stored = seen.iter().filter(|(_, _, got)| got.as_ref() == payload);
    assert!(stored.count() >= 3);
}

#[tokio::test]
async fn an_upload_that_ends_early_is_not_stored() {
    let cluster = Cluster::new(b"");
    for length in ["100", "200000", "2000000"] {
        let chunks = [Ok(Bytes::from_static(b"only this"))];
        let length_value = length.parse().unwrap();
        let body = Body::from_stream(futures_util::stream::iter(chunks), Some(length_value));
        let response = cluster
            .send("PUT", &[("content-length", length)], body)
            .await;
        assert_eq!(response.status().as_u16(), 499);
    }
    assert_eq!(cluster.took("PUT"), Vec::<String>::new());
}

#[tokio::test]
async fn what_a_filter_refuses_at_the_end_of_an_upload_is_not_stored() {
    let refuses: fn(u64) -> Result<Trailer, Response> =
        |_| Err(respond::standard(StatusCode::UNPROCESSABLE_ENTITY));
    // Another filter has replaced its body.
    let was_replaced: fn(u64) -> Result<Trailer, Response> = |length| trailer(length + 1);
    let agrees: fn(u64) -> Result<Trailer, Response> = trailer;
    for length in [100, 200_000, 2_000_000] {
        for (concludes, status) in [(refuses, 422), (was_replaced, 500), (agrees, 201)] {
            let cluster = Cluster::new(b"");
            let chunks = vec![7; length as usize];
            let chunks: Vec<_> = chunks.chunks(7_000).map(Bytes::copy_from_slice).collect();
            let chunks = futures_util::stream::iter(chunks.into_iter().map(Ok));
            let mut request = Request::new(Body::from_stream(chunks, Some(length)));
            *request.method_mut() = http::Method::PUT;
            *request.uri_mut() = PATH.parse().unwrap();
            request
                .headers_mut()
                .insert("content-length", length.into());
            let footers = Footers::new(move || concludes(length));
            request.extensions_mut().insert(footers);
            let response = cluster.proxy.call(request).await;
            assert_eq!(response.status().as_u16(), status, "{length}");
            let stored = if status == 201 { 3 } else { 0 };
            assert_eq!(cluster.took("PUT").len(), stored, "{length} {status}");
        }
    }
}

fn trailer(length: u64) -> Result<Trailer, Response> {
    Ok(Trailer {
        headers: http::HeaderMap::new(),
        md5: [7; 16],
        length,
    })
}

#[tokio::test]
async fn a_delete_needs_a_quorum_and_a_404_counts_for_it() {
    let cluster = Cluster::new(b"");
    cluster.set_primaries([Mood::Empty, Mood::Well, Mood::Well]);
    let response = cluster.send("DELETE", &[], Body::empty()).await;
    assert_eq!(response.status(), StatusCode::NO_CONTENT);
    for id in 0..DEVICES {
        cluster.set(id, Mood::Unmounted);
    }
    let response = cluster.send("DELETE", &[], Body::empty()).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn a_post_that_most_replicas_missed_waits_for_who_has_the_object() {
    let cluster = Cluster::new(b"");
    // The other copies are on handoffs, as after an upload during a network partition.
    cluster.set_primaries([Mood::Empty, Mood::Empty, Mood::Late]);
    let response = cluster.send("POST", &[], Body::empty()).await;
    assert_eq!(response.status(), StatusCode::ACCEPTED);
    for id in handoffs() {
        cluster.set(id, Mood::Empty);
    }
    cluster.set_primaries([Mood::Empty; 3]);
    let response = cluster.send("POST", &[], Body::empty()).await;
    assert_eq!(response.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_post_reaches_primaries_that_had_errors_where_handoffs_know_nothing() {
    let cluster = Cluster::new(&object());
    for id in handoffs() {
        cluster.set(id, Mood::Empty);
    }
    // One device was unmounted and is back; another one is still unmounted.
    cluster.set_primaries([Mood::Unmounted, Mood::Well, Mood::Well]);
    let response = cluster
        .send("PUT", &[("content-length", "3")], Body::from("new"))
        .await;
    assert_eq!(response.status(), StatusCode::CREATED);
    cluster.set_primaries([Mood::Well, Mood::Unmounted, Mood::Well]);
    let response = cluster.send("POST", &[], Body::empty()).await;
    assert_eq!(response.status(), StatusCode::ACCEPTED);
}

#[tokio::test]
async fn requests_that_are_refused_before_any_backend_is_asked() {
    let cluster = Cluster::new(b"");
    let long = "x".repeat(300);
    type Headers<'a> = &'a [(&'a str, &'a str)];
    let cases: [(&str, Headers<'_>, u16); 8] = [
        ("PUT", &[], 411),
        ("PUT", &[("content-length", "6000000000")], 413),
        (
            "PUT",
            &[("content-length", "0"), ("if-none-match", "\"a\"")],
            400,
        ),
        (
            "PUT",
            &[("content-length", "0"), ("x-delete-at", "12")],
            400,
        ),
        (
            "PUT",
            &[("content-length", "0"), ("x-object-meta-a", &long)],
            400,
        ),
        (
            "PUT",
            &[("content-length", "0"), ("x-timestamp", "now")],
            400,
        ),
        ("POST", &[("x-delete-after", "soon")], 400),
        ("PATCH", &[], 405),
    ];
    for (method, headers, status) in cases {
        let response = cluster.send(method, headers, Body::empty()).await;
        assert_eq!(response.status().as_u16(), status, "{method} {headers:?}");
    }
    assert!(cluster.seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn what_expires_is_deleted_where_enough_say_so() {
    use Mood::{Empty, Expiring, Lasting, Silent};
    for (moods, handoff, expected) in [
        // Handoffs are not asked if the primaries agree.
        ([Expiring, Expiring, Expiring], Lasting, 204),
        ([Expiring, Expiring, Silent], Empty, 204),
        ([Expiring, Expiring, Lasting], Empty, 412),
        ([Expiring, Expiring, Silent], Lasting, 412),
        ([Expiring, Silent, Silent], Empty, 503),
        ([Expiring, Expiring, Silent], Silent, 503),
    ] {
        let cluster = Cluster::new(&object());
        cluster.set_primaries(moods);
        for id in handoffs() {
            cluster.set(id, handoff);
        }
        let headers = [
            ("x-timestamp", "0000000007.00000"),
            ("x-if-delete-at", "0000000007.00000"),
        ];
        let answer = cluster.send("DELETE", &headers, Body::empty()).await;
        let what = format!("{moods:?} {handoff:?}");
        assert_eq!(answer.status().as_u16(), expected, "{what}");
        assert_eq!(cluster.took("DELETE").is_empty(), expected != 204, "{what}");
    }
}

#[tokio::test]
async fn writes_that_are_too_old_are_counted() {
    let counted = || {
        let text = cairn_http::metrics::Metrics::new().encode();
        let name = "cairn_writes_without_effect_total ";
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().parse::<u64>().unwrap()
    };
    let cluster = Cluster::new(&object());
    cluster.set_primaries([Mood::Newer; 3]);
    let length = ("content-length", "3");
    let given = ("x-timestamp", "0000000007.00000");
    for (method, headers, status, count) in [
        ("PUT", &[length][..], 202, 1),
        ("POST", &[], 409, 1),
        ("DELETE", &[], 409, 1),
        // The timestamp is of another host's clock.
        ("PUT", &[length, given], 202, 0),
        ("DELETE", &[given], 409, 0),
    ] {
        let before = counted();
        let body = if method == "PUT" { "new" } else { "" };
        let response = cluster.send(method, headers, Body::from(body)).await;
        assert_eq!(response.status().as_u16(), status, "{method}");
        assert_eq!(counted() - before, count, "{method} {headers:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_replica_is_asked_beside_a_slow_one() {
    let cluster = Cluster::with(&object(), "10", None);
    cluster.set_primaries([Mood::Silent, Mood::Well, Mood::Well]);
    for method in ["GET", "HEAD"] {
        // No more reads than the hedging budget allows, whichever server is asked first.
        for _ in 0..5 {
            let start = tokio::time::Instant::now();
            let response = cluster.send(method, &[], Body::empty()).await;
            assert_eq!(response.status().as_u16() / 100, 2);
            assert!(start.elapsed() < Duration::from_secs(1), "{method}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_replica_that_alone_has_the_object_is_waited_for() {
    let cluster = Cluster::with(&object(), "10", None);
    cluster.set_primaries([Mood::Slow, Mood::Empty, Mood::Empty]);
    for id in handoffs() {
        cluster.set(id, Mood::Empty);
    }
    for _ in 0..8 {
        assert_eq!(cluster.get(&[]).await.0, 200);
    }
}

/// The slow one has the only intact copy: it was asked first, and dropped in favour of one that
/// breaks off.
#[tokio::test(start_paused = true)]
async fn a_read_goes_on_with_a_replica_that_was_too_slow_at_first() {
    for options in [&[][..], &AT_ONCE] {
        for _ in 0..8 {
            let cluster = Cluster::with_options(&object(), "10", None, options);
            cluster.set_primaries([Mood::Slow, Mood::BreaksOff, Mood::BreaksOff]);
            for id in handoffs() {
                cluster.set(id, Mood::Empty);
            }
            let (status, body) = cluster.get(&[]).await;
            assert_eq!((status, body.unwrap().as_ref()), (200, object().as_slice()));
        }
    }
}

/// Written while two of its primaries were away: a primary that hangs now and a handoff have it.
#[tokio::test]
async fn the_handoffs_of_a_hanging_primary_are_asked() {
    for options in [&[][..], &AT_ONCE] {
        let frozen = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = frozen.local_addr().unwrap().port();
        let moved = Some((primaries()[0], port));
        let cluster = Cluster::with_options(&object(), "30", moved, options);
        cluster.set_primaries([Mood::Well, Mood::Empty, Mood::Empty]);
        for _ in 0..4 {
            let start = std::time::Instant::now();
            let (status, body) = cluster.get(&[]).await;
            assert_eq!((status, body.unwrap().as_ref()), (200, object().as_slice()));
            assert!(start.elapsed() < Duration::from_secs(5), "{options:?}");
        }
    }
}

/// A server whose process was stopped: it accepts connections and does not respond.
#[tokio::test]
async fn a_server_that_hangs_holds_nobody_up() {
    for options in [&[][..], &AT_ONCE] {
        hangs(options).await;
    }
}

async fn hangs(options: &[(&str, &str)]) {
    let frozen = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = frozen.local_addr().unwrap().port();
    let moved = Some((primaries()[0], port));
    let cluster = Cluster::with_options(&object(), "30", moved, options);
    // A third of the time-out: whoever waits for that server takes longer, and on a busy machine nobody else.
    let limit = Duration::from_secs(10);
    let timed = async |method: &str, headers: &[(&str, &str)]| {
        let start = std::time::Instant::now();
        let response = cluster.send(method, headers, Body::empty()).await;
        let status = response.status().as_u16();
        let _ = response.into_body().collect(1 << 24).await;
        (status, start.elapsed())
    };
    // It is asked first, until it is known to hang.
    let reads = (0..16).map(|_| timed("GET", &[]));
    for (status, took) in futures_util::future::join_all(reads).await {
        assert!(status == 200 && took < limit, "{status} after {took:?}");
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    for (method, headers, expected) in [
        ("GET", &[][..], 200),
        ("HEAD", &[], 204),
        ("GET", &[("x-newest", "true")], 200),
        ("POST", &[], 202),
        ("PUT", &[("content-length", "0")], 201),
        ("DELETE", &[], 204),
    ] {
        for _ in 0..3 {
            let (status, took) = timed(method, headers).await;
            let words = format!("{method} {headers:?}: {status} after {took:?}");
            assert!(status == expected && took < limit, "{words}");
        }
    }
    // Reads of an object that does not exist do not wait either.
    for id in 0..DEVICES {
        cluster.set(id, Mood::Empty);
    }
    for method in ["GET", "HEAD", "POST", "DELETE"] {
        for _ in 0..3 {
            let (status, took) = timed(method, &[]).await;
            let words = format!("{method}: {status} after {took:?}");
            assert!(status == 404 && took < limit, "{words}");
        }
    }
}
