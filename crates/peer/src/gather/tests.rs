//! When a gather decides, and how long it waits for the rest, in virtual time.

use std::sync::atomic::AtomicBool;

use cairn_http::{Request, handler_fn, respond};
use cairn_types::{HashPath, ObjectHash, PolicyIndex, Timestamp};
use http::{Method, StatusCode};
use tokio::time::{Instant, sleep};

use super::*;
use crate::calls::{Answering, Called, Reading, TakesCalls};
use crate::error_limit::ErrorLimiter;
use crate::fan_out::{FanOut, Heads, fan_out};
use crate::heads::{ObjectHeads, Rows, Told};
use crate::hosts::tests::ring_of;
use crate::nodes::Nodes;
use crate::object_read::ObjectRead;
use crate::rings::LoadedRing;
use crate::whole_write::{Change, Prepared, WholeWrite};

const TIMEOUTS: Timeouts = Timeouts {
    node: Duration::from_secs(10),
    post_quorum: Duration::from_millis(500),
};
const SLOW: Duration = Duration::from_secs(3);

fn answer(status: u16) -> Option<Answer> {
    Some(Answer {
        status,
        ..Answer::none()
    })
}

fn gather_of(quorum: Quorum) -> Gather {
    Gather::new(&Backends::new(Duration::from_secs(1)), quorum, TIMEOUTS)
}

/// A gather of servers that answer with these statuses after these times; status 0 is no answer.
fn gather(quorum: Quorum, servers: &[(u16, Duration)]) -> Gather {
    let mut gather = gather_of(quorum);
    for (status, after) in servers.iter().copied() {
        gather.start(async move {
            sleep(after).await;
            answer(status).filter(|_| status != 0)
        });
    }
    gather
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// The statuses, and how long they took.
async fn statuses(gather: Gather) -> (Vec<u16>, Duration) {
    let began = Instant::now();
    let answers = gather.answers().await;
    let statuses = answers.iter().map(|answer| answer.status).collect();
    (statuses, began.elapsed())
}

fn is_about(took: Duration, expected: Duration) -> bool {
    took >= expected && took < expected + Duration::from_millis(50)
}

#[tokio::test(start_paused = true)]
async fn stragglers_have_their_time_and_no_more() {
    let three = Quorum::of_replicas(3);
    let quick = gather(three, &[(201, secs(0)), (201, secs(1)), (201, secs(1))]);
    let (answers, took) = statuses(quick).await;
    assert_eq!(answers, [201, 201, 201]);
    assert!(is_about(took, secs(1)), "{took:?}: nobody is missing");
    let slow = gather(three, &[(201, secs(0)), (201, secs(1)), (201, SLOW)]);
    let (answers, took) = statuses(slow).await;
    assert_eq!(answers, [201, 201, 503]);
    assert!(is_about(took, secs(1) + TIMEOUTS.post_quorum), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_straggler_goes_on_after_the_decision() {
    let stored = Arc::new(AtomicBool::new(false));
    let mut gather = gather(Quorum::of_replicas(2), &[(201, secs(0))]);
    let stores = stored.clone();
    gather.start(async move {
        sleep(SLOW).await;
        stores.store(true, Ordering::Relaxed);
        answer(201)
    });
    assert_eq!(statuses(gather).await.0, [201, 503]);
    assert!(!stored.load(Ordering::Relaxed));
    sleep(SLOW).await;
    assert!(stored.load(Ordering::Relaxed));
}

#[tokio::test(start_paused = true)]
async fn without_a_quorum_all_are_awaited() {
    let three = Quorum::of_replicas(3);
    let split = gather(three, &[(201, secs(0)), (404, secs(0)), (503, SLOW)]);
    let (answers, took) = statuses(split).await;
    assert_eq!(answers, [201, 404, 503]);
    assert!(is_about(took, SLOW), "{took:?}");
    let silent = gather(three, &[(201, secs(0)), (0, secs(0)), (0, SLOW)]);
    let (answers, took) = statuses(silent).await;
    assert_eq!(answers, [201, 503, 503]);
    assert!(is_about(took, SLOW), "{took:?}");
    let nobody = gather(three, &[]);
    assert_eq!(statuses(nobody).await, (vec![503, 503, 503], secs(0)));
}

#[tokio::test(start_paused = true)]
async fn a_conversation_that_panics_has_ended() {
    let (mut gather, committed) = coded([Some(secs(1)); 3]);
    gather.start(async { panic!("on purpose") });
    assert!(gather.commit().await.is_ok());
    let (answers, took) = statuses(gather).await;
    assert_eq!((answers, took), (vec![201, 201, 201, 503], secs(0)));
    assert_eq!(committed.load(Ordering::Relaxed), 3);
}

#[tokio::test(start_paused = true)]
async fn without_a_commit_nobody_is_told() {
    let (gather, committed) = coded([Some(secs(1)); 4]);
    assert_eq!(statuses(gather).await.0, [503; 4]);
    assert_eq!(committed.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn each_quorum_decides_at_its_size() {
    for servers in 1..=6 {
        let quorum = Quorum::of_replicas(servers);
        // The n-th server answers after n seconds.
        let at = |n: usize| secs(n as u64);
        let all: Vec<_> = (1..=servers).map(|n| (201, at(n))).collect();
        let (answers, took) = statuses(gather(quorum, &all)).await;
        let stored = answers.iter().filter(|status| **status == 201).count();
        assert_eq!(stored, quorum.size(), "of {servers}");
        let expected = match quorum.size() == servers {
            true => at(quorum.size()),
            false => at(quorum.size()) + TIMEOUTS.post_quorum,
        };
        assert!(is_about(took, expected), "{took:?} of {servers}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_one_that_has_the_object_is_awaited() {
    let servers = [(404, secs(0)), (404, secs(0)), (204, SLOW)];
    let gather = |awaits| gather(Quorum::of_replicas(3), &servers).awaiting_the_one(awaits);
    assert_eq!(statuses(gather(true)).await.0, [404, 404, 204]);
    assert_eq!(statuses(gather(false)).await.0, [404, 404, 503]);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_left_behind_is_counted_or_awaited() {
    let backends = Backends::new(Duration::from_secs(1));
    let put = async |bytes| {
        let mut gather = Gather::new(&backends, Quorum::of_replicas(2), TIMEOUTS).holding(bytes);
        gather.start(async { answer(201) });
        gather.start(async {
            sleep(SLOW).await;
            answer(201)
        });
        statuses(gather).await.1
    };
    let held = || backends.left_behind.load(Ordering::Relaxed);
    assert!(is_about(
        put(LEFT_BEHIND_MAX_BYTES).await,
        TIMEOUTS.post_quorum
    ));
    assert_eq!(held(), LEFT_BEHIND_MAX_BYTES);
    assert!(is_about(put(1).await, SLOW), "one byte too many");
    assert!(
        is_about(put(0).await, TIMEOUTS.post_quorum),
        "nothing to hold"
    );
    sleep(SLOW).await;
    assert_eq!(held(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_good_may_be_said() {
    let servers = [(409, secs(0)), (409, secs(0)), (201, secs(1)), (201, SLOW)];
    let gather = gather(Quorum::of_replicas(4).after(1), &servers);
    let began = Instant::now();
    let answers = gather.agreed_by(|answer| answer.status == 201);
    let answers = answers.answers_in_order().await;
    assert!(is_about(began.elapsed(), secs(1) + TIMEOUTS.post_quorum));
    let of = |n: usize| answers[n].as_ref().map(|answer| answer.status);
    assert_eq!(
        [of(0), of(1), of(2), of(3)],
        [Some(409), Some(409), Some(201), None]
    );
}

/// A gather of fragments of two data and two parity fragments, three a quorum, that are prepared after these
/// times, or refused with 507; and how many of them were committed.
fn coded<const N: usize>(prepared: [Option<Duration>; N]) -> (Gather, Arc<AtomicUsize>) {
    let committed = Arc::new(AtomicUsize::new(0));
    let mut gather = gather_of(Quorum::of_fragments(2, 2, 1));
    for after in prepared {
        let committed = committed.clone();
        gather.start_two_phase(|commit| async move {
            let Some(after) = after else {
                return answer(507);
            };
            sleep(after).await;
            if !commit.is_told().await {
                return None;
            }
            committed.fetch_add(1, Ordering::Relaxed);
            answer(201)
        });
    }
    (gather, committed)
}

#[tokio::test(start_paused = true)]
async fn a_quorum_that_is_prepared_is_told_to_commit() {
    let soon = Some(secs(1));
    let (mut gather, committed) = coded([soon, None, soon, soon]);
    let began = Instant::now();
    assert!(gather.commit().await.is_ok());
    assert!(is_about(began.elapsed(), secs(1)));
    let (mut answers, _) = statuses(gather).await;
    answers.sort_unstable();
    assert_eq!(answers, [201, 201, 201, 507]);
    assert_eq!(committed.load(Ordering::Relaxed), 3);
    // The commit does not wait for the fourth, which commits when it is prepared.
    let (mut gather, committed) = coded([soon, soon, soon, Some(SLOW)]);
    let began = Instant::now();
    assert!(gather.commit().await.is_ok());
    assert!(is_about(began.elapsed(), secs(1)));
    assert_eq!(statuses(gather).await.0, [201, 201, 201, 503]);
    sleep(SLOW).await;
    assert_eq!(committed.load(Ordering::Relaxed), 4);
}

#[tokio::test(start_paused = true)]
async fn with_too_few_prepared_nobody_commits() {
    let (mut gather, committed) = coded([Some(secs(1)), None, None, Some(secs(1))]);
    let refused = gather
        .commit()
        .await
        .expect_err("two of three are prepared");
    let refused: Vec<u16> = refused.iter().map(|answer| answer.status).collect();
    assert_eq!(refused, [507, 507]);
    sleep(SLOW).await;
    assert_eq!(committed.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_dropped_before_its_commit_is_given_up() {
    let (gather, committed) = coded([Some(secs(1)); 4]);
    sleep(SLOW).await;
    drop(gather);
    sleep(SLOW).await;
    assert_eq!(committed.load(Ordering::Relaxed), 0);
}

fn put_of(body: Bytes) -> FanOut {
    FanOut {
        method: Method::PUT,
        path: "/a/c/o".into(),
        query: None,
        body,
        extensions: http::Extensions::new(),
    }
}

async fn put(backends: &Arc<Backends>, ring: &Arc<LoadedRing>, body: Bytes) -> Duration {
    let began = Instant::now();
    let mut all = ring.primaries(0);
    all.extend(ring.handoffs(0, 9));
    let limiter = Arc::new(ErrorLimiter::new(Duration::from_secs(60), 10));
    let nodes = Arc::new(Nodes::in_order(ring.clone(), 0, all, 3, limiter));
    let request = put_of(body);
    let headers = vec![HeaderMap::new(); 3];
    let quorum = Quorum::of_replicas(3);
    let answers = fan_out(
        backends,
        &nodes,
        0,
        request,
        Heads::Each(headers),
        quorum,
        TIMEOUTS,
    )
    .await;
    assert!(answers.iter().filter(|a| a.status == 201).count() >= 2);
    began.elapsed()
}

#[tokio::test(start_paused = true)]
async fn bodies_left_behind_are_bounded() {
    let hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.3"].map(|ip| (ip, ip));
    let ring = Arc::new(LoadedRing::new(Arc::new(ring_of(&hosts))));
    let backends = Backends::new(Duration::from_secs(1));
    let mut all = ring.primaries(0);
    all.extend(ring.handoffs(0, 9));
    for (i, node) in all.iter().enumerate() {
        let handler = handler_fn(move |_| async move {
            if i == 0 {
                tokio::time::sleep(SLOW).await;
            }
            respond::empty(StatusCode::CREATED)
        });
        backends.register_local(node.address, handler);
    }
    let body = Bytes::from(vec![0; LEFT_BEHIND_MAX_BYTES / 2]);
    let quick = TIMEOUTS.post_quorum..TIMEOUTS.post_quorum * 2;
    assert!(quick.contains(&put(&backends, &ring, body.clone()).await));
    assert!(quick.contains(&put(&backends, &ring, body.clone()).await));
    // Two bodies are already held by the slow replica.
    let third = put(&backends, &ring, body.clone()).await;
    assert!((SLOW..SLOW * 2).contains(&third), "{third:?}");
    // The held bodies have been stored meanwhile; small bodies are never awaited.
    assert!(quick.contains(&put(&backends, &ring, body).await));
    assert!(quick.contains(&put(&backends, &ring, Bytes::new()).await));
    tokio::time::sleep(SLOW).await;
    assert_eq!(backends.left_behind.load(Ordering::Relaxed), 0);
}

/// A server that takes writes by a call, but for the first replica's, and counts them.
struct TakesMost(AtomicUsize);

impl TakesCalls for TakesMost {
    fn write(&self, _: &Arc<WholeWrite>, replica: usize, _: &Node) -> Option<Answering> {
        if replica == 0 {
            return None;
        }
        self.0.fetch_add(1, Ordering::Relaxed);
        // The last one's device is full.
        let status = match replica {
            1 => StatusCode::CREATED,
            _ => StatusCode::INSUFFICIENT_STORAGE,
        };
        let (headers, body) = (HeaderMap::new(), Bytes::new());
        Some(Box::pin(async move {
            Called {
                status,
                headers,
                body,
            }
        }))
    }

    fn read<'a>(&'a self, _: &'a ObjectRead<'a>, _: &Node) -> Option<Reading<'a>> {
        None
    }
}

#[tokio::test(start_paused = true)]
async fn a_put_is_called_where_it_can_be_and_else_sent() {
    let hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"].map(|ip| (ip, ip));
    let ring = Arc::new(LoadedRing::new(Arc::new(ring_of(&hosts))));
    let backends = Backends::new(Duration::from_secs(1));
    let mut all = ring.primaries(0);
    all.extend(ring.handoffs(0, 9));
    let (server, sent) = (
        Arc::new(TakesMost(AtomicUsize::new(0))),
        Arc::new(AtomicUsize::new(0)),
    );
    for node in &all {
        let sent = sent.clone();
        let handler = handler_fn(move |request: Request| {
            assert_eq!(request.headers()["x-shared"], "yes");
            assert_eq!(request.body().as_full().unwrap(), "body");
            sent.fetch_add(1, Ordering::Relaxed);
            async { respond::empty(StatusCode::CREATED) }
        });
        backends.register_local(node.address, handler);
    }
    for node in &all[..3] {
        backends.register_calls(node.address, server.clone());
    }
    let limiter = Arc::new(ErrorLimiter::new(Duration::from_secs(60), 10));
    let nodes = Arc::new(Nodes::in_order(ring.clone(), 0, all, 4, limiter));
    let mut shared = HeaderMap::new();
    shared.insert("x-shared", http::HeaderValue::from_static("yes"));
    let body = Bytes::from_static(b"body");
    let put = WholeWrite {
        hash_path: HashPath::default(),
        account: "a".into(),
        container: "c".into(),
        object: "o".into(),
        hash: ObjectHash([0; 16]),
        policy: PolicyIndex(0),
        partition: 0,
        timestamp: Timestamp::ZERO,
        change: Change::Put {
            body: body.clone(),
            md5: [0; 16],
        },
        heads: ObjectHeads {
            shared,
            replicas: 3,
            rows: Rows {
                told: Told {
                    partition: 0,
                    nodes: Vec::new(),
                    updates: 0,
                },
                db_state: String::new(),
                shard: None,
            },
            expiry: None,
        },
        prepared: Prepared::default(),
    };
    let request = put_of(body);
    let (quorum, heads) = (Quorum::of_replicas(3), Heads::Of(Arc::new(put)));
    let answers = fan_out(&backends, &nodes, 0, request, heads, quorum, TIMEOUTS).await;
    assert!(
        answers.iter().all(|answer| answer.status == 201),
        "{answers:?}"
    );
    // The first replica's was sent, and the last one's to the fourth node.
    let counts = (
        server.0.load(Ordering::Relaxed),
        sent.load(Ordering::Relaxed),
    );
    assert_eq!(counts, (2, 2));
}
