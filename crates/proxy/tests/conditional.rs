//! Conditional writes, over backends that promise, refuse, do not support promises, or do not
//! respond.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use cairn_http::{Body, Request, Response, Service, ServiceFuture, respond};
use cairn_peer::Backends;
use cairn_proxy::Proxy;

use http::{HeaderMap, StatusCode};

/// Number of primaries of every object; other devices are handoffs.
const PRIMARIES: u16 = 3;
const DEVICES: u16 = 5;
const PATH: &str = "/v1/AUTH_a/c/o";
const NOT_KNOWN: &str = "It is not known whether";

/// A server's decision on a promise.
#[derive(Clone, Copy, Debug, PartialEq)]
enum PromiseReply {
    Given,
    /// Another write holds the promise.
    Busy,
    /// Promises, and has an object with the ETag `there`.
    There,
    /// Responds 405, as OpenStack Swift's server does.
    Unknown,
    Silent,
    /// May lack a write that another server has.
    Doubting,
}

/// A server's response to the write.
#[derive(Clone, Copy, Debug, PartialEq)]
enum WriteReply {
    Done,
    /// The promise has expired.
    Lost,
    /// 422: the content does not match its ETag.
    Refused,
}

/// A request that a server received.
#[derive(Clone)]
struct ReceivedRequest {
    device: u16,
    method: String,
    headers: HeaderMap,
    /// `None` if the body broke off.
    body: Option<Bytes>,
}

impl ReceivedRequest {
    fn header(&self, name: &str) -> &str {
        respond::header(&self.headers, name).unwrap_or_default()
    }
}

struct Fake {
    device: u16,
    mood: Arc<Mutex<(PromiseReply, WriteReply)>>,
    heard: Arc<Mutex<Vec<ReceivedRequest>>>,
}

impl Service for Fake {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        Box::pin(self.answer(request))
    }
}

impl Fake {
    async fn answer(&self, request: Request) -> Response {
        let (parts, body) = request.into_parts();
        if parts.uri.path().split('/').count() <= 5 {
            return respond::empty(StatusCode::NO_CONTENT);
        }
        let body = body.collect(1 << 24).await.ok();
        let is_whole = body.is_some();
        let method = parts.method.as_str().to_owned();
        let is_question = method == "PROMISE";
        self.heard.lock().unwrap().push(ReceivedRequest {
            device: self.device,
            method,
            headers: parts.headers,
            body,
        });
        let (word, deed) = *self.mood.lock().unwrap();
        match is_question {
            true => promise(word).await,
            false if !is_whole => respond::standard(respond::status(499)),
            false => written(deed),
        }
    }
}

async fn promise(word: PromiseReply) -> Response {
    let mut response = respond::empty(StatusCode::NO_CONTENT);
    let headers = response.headers_mut();
    let said = match word {
        PromiseReply::Unknown => return respond::standard(StatusCode::METHOD_NOT_ALLOWED),
        PromiseReply::Silent => std::future::pending().await,
        PromiseReply::Busy => "busy",
        PromiseReply::Given | PromiseReply::There | PromiseReply::Doubting => "given",
    };
    respond::set(headers, "x-backend-promise", said);
    if word == PromiseReply::There {
        respond::set(headers, "etag", "\"there\"");
        respond::set(headers, "x-backend-data-timestamp", "0000000005.00000");
    }
    if word == PromiseReply::Doubting {
        respond::set(headers, "x-backend-in-doubt", "0000000007.00000");
    }
    response
}

fn written(deed: WriteReply) -> Response {
    match deed {
        WriteReply::Done => respond::empty(StatusCode::CREATED),
        WriteReply::Refused => respond::standard(StatusCode::UNPROCESSABLE_ENTITY),
        WriteReply::Lost => {
            let mut response = respond::standard(StatusCode::CONFLICT);
            respond::set(response.headers_mut(), "x-backend-promise", "lost");
            response
        }
    }
}

struct Cluster {
    proxy: Arc<Proxy>,
    moods: Vec<Arc<Mutex<(PromiseReply, WriteReply)>>>,
    heard: Arc<Mutex<Vec<ReceivedRequest>>>,
    _dir: tempfile::TempDir,
}

impl Cluster {
    fn new(words: [PromiseReply; 3]) -> Self {
        Cluster::with(words, &[])
    }

    fn with(words: [PromiseReply; 3], options: &[(&str, &str)]) -> Self {
        // The clock stands still only while nothing waits for another thread, as hashing would.
        cairn_http::own_thread::take_over(Some(1));
        let dir = tempfile::tempdir().unwrap();
        common::save_rings(dir.path(), &common::ring(DEVICES, PRIMARIES));
        let backends = Backends::new(Duration::from_millis(200));
        let heard: Arc<Mutex<Vec<ReceivedRequest>>> = Arc::default();
        let words = words.into_iter().chain([PromiseReply::Given; 2]);
        let moods: Vec<_> = words
            .map(|word| Arc::new(Mutex::new((word, WriteReply::Done))))
            .collect();
        for (device, mood) in (0..DEVICES).zip(&moods) {
            let address = common::address(device);
            let (mood, heard) = (mood.clone(), heard.clone());
            let fake = Fake {
                device,
                mood,
                heard,
            };
            backends.register_local(address, Arc::new(fake));
        }
        let common = [("node_timeout", "0.3"), ("post_quorum_timeout", "0.1")];
        let options: Vec<_> = common.iter().chain(options).copied().collect();
        let proxy = common::proxy(dir.path(), common::one_policy(), &options, backends);
        Cluster {
            proxy,
            moods,
            heard,
            _dir: dir,
        }
    }

    fn deeds(self, deeds: [WriteReply; 3]) -> Self {
        for (mood, deed) in self.moods.iter().zip(deeds) {
            mood.lock().unwrap().1 = deed;
        }
        self
    }

    /// Status, whether the response states a commit, and its text.
    async fn send(&self, method: &str, header: (&str, &str), body: Body) -> (u16, bool, String) {
        let request = http::Request::builder().method(method).uri(PATH);
        let length = match body.length() {
            Some(length) => ("content-length", length.to_string()),
            None => ("transfer-encoding", "chunked".to_owned()),
        };
        let request = request
            .header("content-type", "a/b")
            .header(length.0, length.1)
            .header(header.0, header.1);
        let response = self.proxy.call(request.body(body).unwrap()).await;
        let status = response.status().as_u16();
        let is_committed = response.headers().contains_key("x-conditional-write");
        let text = response.into_body().collect(1 << 20).await.unwrap();
        let text = String::from_utf8_lossy(&text).into_owned();
        (status, is_committed, text)
    }

    async fn put(&self, header: (&str, &str)) -> (u16, bool, String) {
        self.send("PUT", header, Body::full("one")).await
    }

    fn writes(&self) -> Vec<ReceivedRequest> {
        let heard = self.heard.lock().unwrap();
        let writes = heard.iter().filter(|heard| heard.method != "PROMISE");
        writes.cloned().collect()
    }

    /// The devices that received a write.
    fn wrote(&self) -> Vec<u16> {
        let mut devices: Vec<u16> = self.writes().iter().map(|heard| heard.device).collect();
        devices.sort_unstable();
        devices
    }

    /// Requests for promises by action: look, give, release.
    fn actions(&self) -> (usize, usize, usize) {
        let heard = self.heard.lock().unwrap();
        let named = |name| {
            let is_it = |h: &&ReceivedRequest| h.header("x-backend-promise-action") == name;
            heard.iter().filter(is_it).count()
        };
        (named("look"), named("give"), named("release"))
    }

    fn asked(&self) -> usize {
        let heard = self.heard.lock().unwrap();
        heard.iter().filter(|h| h.method == "PROMISE").count()
    }
}

const NEW: (&str, &str) = ("if-none-match", "*");

fn in_pieces(bytes: usize) -> Body {
    let piece = || Ok(Bytes::from(vec![b'x'; 1000]));
    let pieces: Vec<_> = (0..bytes / 1000).map(|_| piece()).collect();
    Body::from_stream(futures_util::stream::iter(pieces), Some(bytes as u64))
}

#[tokio::test(start_paused = true)]
async fn a_write_without_a_condition_asks_nobody() {
    let cluster = Cluster::new([PromiseReply::Given; 3]);
    let (status, is_committed, _) = cluster.put(("x-object-meta-a", "b")).await;
    assert_eq!((status, is_committed), (201, false));
    assert_eq!((cluster.asked(), cluster.wrote()), (0, vec![0, 1, 2]));
    let token = "x-backend-promise-token";
    assert!(cluster.writes().iter().all(|w| w.header(token).is_empty()));
}

#[tokio::test(start_paused = true)]
async fn a_majority_of_primaries_writes() {
    for third in [PromiseReply::Silent, PromiseReply::Busy] {
        let cluster = Cluster::new([PromiseReply::Given, PromiseReply::Given, third]);
        let (status, is_committed, _) = cluster.put(NEW).await;
        assert_eq!((status, is_committed), (201, true), "{third:?}");
        assert_eq!(
            cluster.wrote(),
            [0, 1],
            "no handoff, nor who has not promised"
        );
        let writes = cluster.writes();
        let token = writes[0].header("x-backend-promise-token");
        assert!(!token.is_empty() && token == writes[1].header("x-backend-promise-token"));
        assert!(writes.iter().all(|w| w.header("if-none-match").is_empty()));
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_majority_nothing_is_written() {
    let words = [
        PromiseReply::Given,
        PromiseReply::Silent,
        PromiseReply::Silent,
    ];
    for (words, expected) in [
        (words, 503),
        (
            [PromiseReply::Given, PromiseReply::Busy, PromiseReply::Busy],
            409,
        ),
        (
            [
                PromiseReply::Given,
                PromiseReply::Doubting,
                PromiseReply::Silent,
            ],
            503,
        ),
    ] {
        let cluster = Cluster::new(words);
        let (status, is_committed, text) = cluster.put(NEW).await;
        assert_eq!((status, is_committed), (expected, false), "{words:?}");
        assert!(!text.contains(NOT_KNOWN), "{words:?}: {text}");
        assert!(cluster.wrote().is_empty(), "{words:?}");
    }
    // All have promised, so no other server can have the write.
    let cluster = Cluster::new([
        PromiseReply::Given,
        PromiseReply::Doubting,
        PromiseReply::Given,
    ]);
    assert_eq!(cluster.put(NEW).await.0, 201);
}

#[tokio::test(start_paused = true)]
async fn the_condition_is_of_the_newest() {
    let words = [
        PromiseReply::Given,
        PromiseReply::There,
        PromiseReply::Given,
    ];
    for (header, expected) in [
        (NEW, 412),
        (("if-match", "\"there\""), 201),
        (("if-match", "\"other\""), 412),
        // OpenStack Swift supports no other condition for a PUT.
        (("if-none-match", "\"other\""), 400),
    ] {
        let cluster = Cluster::new(words);
        let (status, is_committed, _) = cluster.put(header).await;
        let is_written = expected == 201;
        assert_eq!((status, is_committed), (expected, is_written), "{header:?}");
        assert_eq!(cluster.wrote().is_empty(), !is_written, "{header:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_write_is_not_taken_for_done() {
    let in_doubt = [WriteReply::Done, WriteReply::Lost, WriteReply::Lost];
    for method in ["PUT", "POST", "DELETE"] {
        let cluster = Cluster::new([PromiseReply::There; 3]).deeds(in_doubt);
        let condition = ("if-match", "\"there\"");
        let (status, is_committed, text) = cluster.send(method, condition, Body::full("")).await;
        assert_eq!((status, is_committed), (503, false), "{method}");
        assert!(text.contains(NOT_KNOWN), "{method}: {text}");
    }
    let cluster = Cluster::new([PromiseReply::Given; 3]).deeds(in_doubt);
    let (status, _, text) = cluster.send("PUT", NEW, in_pieces(100_000)).await;
    assert!(status == 503 && text.contains(NOT_KNOWN), "{status} {text}");
    let cluster = Cluster::new([PromiseReply::Given; 3]).deeds([WriteReply::Refused; 3]);
    assert_eq!(cluster.put(NEW).await.0, 422);
    let cluster = Cluster::new([PromiseReply::Given; 3]).deeds([
        WriteReply::Done,
        WriteReply::Done,
        WriteReply::Lost,
    ]);
    assert_eq!(cluster.put(NEW).await.0, 201);
    // The outcome is known although one server does not respond.
    let words = [
        PromiseReply::Given,
        PromiseReply::Given,
        PromiseReply::Silent,
    ];
    let cluster = Cluster::new(words).deeds([WriteReply::Refused; 3]);
    let (status, _, text) = cluster.send("PUT", NEW, in_pieces(100_000)).await;
    assert_eq!(status, 422, "{text}");
}

#[tokio::test(start_paused = true)]
async fn promises_are_given_back_when_the_client_leaves() {
    let cluster = Cluster::new([
        PromiseReply::Given,
        PromiseReply::Silent,
        PromiseReply::Silent,
    ]);
    // Promises are requested at once, and servers have node_timeout to respond.
    let left = tokio::time::timeout(Duration::from_millis(100), cluster.put(NEW)).await;
    assert!(left.is_err());
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(cluster.actions(), (0, 3, 3));
}

#[tokio::test(start_paused = true)]
async fn a_write_without_content_to_send_in_vain_asks_for_promises_at_once() {
    for (method, body) in [("PUT", "one"), ("PUT", ""), ("POST", ""), ("DELETE", "")] {
        let cluster = Cluster::new([PromiseReply::There; 3]);
        let there = ("if-match", "\"there\"");
        let (status, is_committed, _) = cluster.send(method, there, Body::full(body)).await;
        assert_eq!((status, is_committed), (201, true), "{method}");
        assert_eq!(cluster.actions(), (0, 3, 0), "{method}");
        // The promises are given back where the condition does not hold.
        let cluster = Cluster::new([PromiseReply::There; 3]);
        let other = ("if-match", "\"other\"");
        assert_eq!(cluster.send(method, other, Body::full(body)).await.0, 412);
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert_eq!(cluster.actions(), (0, 3, 3), "{method}");
        assert!(cluster.wrote().is_empty(), "{method}");
    }
    let cluster = Cluster::new([PromiseReply::There; 3]);
    let there = ("if-match", "\"there\"");
    let (status, is_committed, _) = cluster.send("PUT", there, in_pieces(100_000)).await;
    assert_eq!((status, is_committed), (201, true));
    assert_eq!(cluster.actions(), (3, 3, 0));
}

#[tokio::test(start_paused = true)]
async fn a_slow_body_holds_no_promises() {
    let cluster = Cluster::new([PromiseReply::Given; 3]);
    let (sender, body) = Body::channel(Some(3), 1);
    let client = async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(cluster.asked(), 0);
        assert!(sender.send(Bytes::from_static(b"one")).await);
        sender.finish().await;
    };
    let ((status, is_committed, _), ()) = tokio::join!(cluster.send("PUT", NEW, body), client);
    assert_eq!((status, is_committed), (201, true));
    assert_eq!(cluster.actions(), (0, 3, 0));
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_large_upload_waits_for_the_promises() {
    let cluster = Cluster::new([PromiseReply::Given; 3]);
    let (status, is_committed, _) = cluster.send("PUT", NEW, in_pieces(100_000)).await;
    assert_eq!((status, is_committed), (201, true));
    let writes = cluster.writes();
    let whole = |w: &ReceivedRequest| w.body.as_ref().is_some_and(|body| body.len() == 100_000);
    assert!(writes.len() == 3 && writes.iter().all(whole));
    // The condition held at first, but no longer when all content had arrived.
    let cluster = Cluster::new([PromiseReply::Given; 3]);
    let (sender, body) = Body::channel(None, 1);
    let moods = cluster.moods.clone();
    let client = async move {
        assert!(sender.send(Bytes::from(vec![b'x'; 100_000])).await);
        moods
            .iter()
            .for_each(|mood| mood.lock().unwrap().0 = PromiseReply::There);
        sender.finish().await;
    };
    let ((status, is_committed, _), ()) = tokio::join!(cluster.send("PUT", NEW, body), client);
    assert_eq!((status, is_committed), (412, false));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let writes = cluster.writes();
    // A request that was aborted may be gone before it is recorded.
    assert!(!writes.iter().any(|w| w.body.is_some()), "none is whole");
}

#[tokio::test(start_paused = true)]
async fn servers_of_openstack_swift_do_not_decide() {
    for words in [
        [PromiseReply::Unknown; 3],
        [
            PromiseReply::Given,
            PromiseReply::Given,
            PromiseReply::Unknown,
        ],
    ] {
        let cluster = Cluster::new(words);
        for (method, condition) in [
            ("PUT", ("if-match", "\"there\"")),
            ("POST", ("if-match", "\"there\"")),
            ("DELETE", ("if-none-match", "*")),
        ] {
            let (status, is_committed, text) = cluster.send(method, condition, Body::empty()).await;
            assert_eq!((status, is_committed), (501, false), "{words:?} {method}");
            assert!(text.contains("not available"), "{text}");
        }
        assert!(cluster.wrote().is_empty(), "{words:?}");
        // The one condition that these servers evaluate themselves.
        let (status, is_committed, _) = cluster.put(NEW).await;
        assert_eq!((status, is_committed), (201, false), "{words:?}");
        let writes = cluster.writes();
        assert!(writes.len() == 3 && writes.iter().all(|w| w.header("if-none-match") == "*"));
    }
}

#[tokio::test(start_paused = true)]
async fn it_can_be_turned_off() {
    let off = [("conditional_writes", "no")];
    let cluster = Cluster::with([PromiseReply::There; 3], &off);
    let (status, is_committed, _) = cluster.put(("if-match", "\"other\"")).await;
    assert_eq!((status, is_committed, cluster.asked()), (201, false, 0));
    assert_eq!(cluster.put(("if-none-match", "\"other\"")).await.0, 400);
}
