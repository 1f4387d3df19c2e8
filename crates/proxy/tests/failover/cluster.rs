//! Fake servers of a cluster, each with its own kind of failure.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use cairn_http::{Body, BodyError, Request, Response, Service, ServiceFuture, respond};
use cairn_peer::calls::{Answering, Reading};
use cairn_peer::{Backends, Node, ObjectRead, TakesCalls, WholeWrite};
use cairn_proxy::Proxy;
use cairn_ring::{Device, FormatVersion, Ring, RingData, Row};
use cairn_types::{HashPath, PolicyIndex, PolicyKind, PolicySet, StoragePolicy};
use http::StatusCode;

pub(crate) const DEVICES: u16 = 5;
pub(crate) const REPLICAS: u16 = 3;
pub(crate) const POLICY_INDEX: &str = "x-backend-storage-policy-index";

/// Behaviour of a fake server towards objects.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mood {
    Well,
    /// Responds 507 to everything.
    Unmounted,
    /// Has nothing.
    Empty,
    /// Breaks off in the middle of a GET.
    BreaksOff,
    /// Reads an upload's first bytes, then fails.
    FailsUploads,
    /// Never responds.
    Silent,
    /// Responds after two seconds.
    Slow,
    /// Has a newer tombstone.
    Deleted,
    /// Responds correctly, but after the others.
    Late,
    /// Has an object of second five that expires in second seven.
    Expiring,
    /// Has an object of second six that does not expire.
    Lasting,
    /// Has an object newer than every write.
    Newer,
    /// Has a POST of second seven that the others have missed.
    Posted,
}

pub(crate) struct Fake {
    device: String,
    moods: Arc<Mutex<BTreeMap<String, Mood>>>,
    seen: Arc<Mutex<Vec<(String, String, Bytes)>>>,
    /// Policy of the container with the objects.
    policy: Arc<AtomicU32>,
    asked_for_info: Arc<AtomicU32>,
    /// Reads by a call.
    called: Arc<AtomicU32>,
    object: Bytes,
}

impl Service for Fake {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        Box::pin(self.answer(request))
    }
}

/// Reads by a call are answered as requests are.
impl TakesCalls for Fake {
    fn write(&self, _: &Arc<WholeWrite>, _: usize, _: &Node) -> Option<Answering> {
        None
    }

    fn read<'a>(&'a self, read: &'a ObjectRead<'a>, node: &Node) -> Option<Reading<'a>> {
        assert_eq!(node.device.device, self.device);
        let method = if read.is_head { "HEAD" } else { "GET" };
        let uri = format!("/{}/{}{}", self.device, read.partition, read.path);
        let request = http::Request::builder().method(method).uri(uri);
        let mut request = request.body(Body::empty()).unwrap();
        *request.headers_mut() = read.headers.clone();
        self.called.fetch_add(1, Ordering::Relaxed);
        Some(Box::pin(self.answer(request)))
    }
}

impl Fake {
    async fn answer(&self, request: Request) -> Response {
        let (parts, mut body) = request.into_parts();
        let path = parts.uri.path().to_owned();
        let is_object = path.split('/').count() > 5;
        let policy = self.policy.load(Ordering::Relaxed).to_string();
        if !is_object {
            self.asked_for_info.fetch_add(1, Ordering::Relaxed);
            let mut response = respond::empty(StatusCode::NO_CONTENT);
            respond::set(response.headers_mut(), POLICY_INDEX, policy);
            return response;
        }
        if respond::header(&parts.headers, POLICY_INDEX) != Some(policy.as_str()) {
            return respond::standard(StatusCode::NOT_FOUND);
        }
        let mood = self
            .moods
            .lock()
            .unwrap()
            .get(&self.device)
            .copied()
            .unwrap_or(Mood::Well);
        if mood == Mood::Slow {
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        match (mood, parts.method.as_str()) {
            (Mood::Unmounted, _) => respond::standard(StatusCode::INSUFFICIENT_STORAGE),
            (Mood::Silent, _) => std::future::pending().await,
            (Mood::Newer, "PUT" | "POST" | "DELETE") => respond::standard(StatusCode::CONFLICT),
            (Mood::Empty, "GET" | "HEAD" | "DELETE" | "POST") => {
                respond::standard(StatusCode::NOT_FOUND)
            }
            (Mood::Deleted, "GET") => {
                let mut response = respond::standard(StatusCode::NOT_FOUND);
                respond::set(
                    response.headers_mut(),
                    "x-backend-timestamp",
                    "0000000009.00000",
                );
                response
            }
            (Mood::Expiring | Mood::Lasting, "HEAD") => {
                let mut response = respond::empty(StatusCode::OK);
                let is_expiring = mood == Mood::Expiring;
                let second = if is_expiring { 5 } else { 6 };
                let headers = response.headers_mut();
                respond::set(
                    headers,
                    "x-backend-timestamp",
                    format!("{second:010}.00000"),
                );
                if is_expiring {
                    respond::set(headers, "x-delete-at", "7");
                }
                response
            }
            (Mood::FailsUploads, "PUT") => {
                let _ = body.next_chunk().await;
                respond::standard(StatusCode::INTERNAL_SERVER_ERROR)
            }
            (_, "GET") => self.get(mood, &parts),
            (_, method) => {
                if mood == Mood::Late {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                let all = match body.collect(1 << 24).await {
                    Ok(all) => all,
                    Err(_) => return respond::standard(respond::status(499)),
                };
                let note = (self.device.clone(), method.to_owned(), all);
                self.seen.lock().unwrap().push(note);
                let code = match method {
                    "PUT" => StatusCode::CREATED,
                    "POST" => StatusCode::ACCEPTED,
                    _ => StatusCode::NO_CONTENT,
                };
                respond::empty(code)
            }
        }
    }

    pub(crate) fn get(&self, mood: Mood, parts: &http::request::Parts) -> Response {
        let start = respond::header(&parts.headers, "range").and_then(|r| {
            r.strip_prefix("bytes=")?
                .split('-')
                .next()?
                .parse::<usize>()
                .ok()
        });
        let (total, from) = (self.object.len(), start.unwrap_or(0));
        let rest = self.object.slice(from..);
        let length = rest.len() as u64;
        let chunks: Vec<Result<Bytes, BodyError>> = if mood == Mood::BreaksOff {
            let cut = rest.len() / 3;
            vec![
                Ok(rest.slice(..cut)),
                Err(BodyError::Source("bit rot".into())),
            ]
        } else {
            rest.chunks(1000)
                .map(|c| Ok(Bytes::copy_from_slice(c)))
                .collect()
        };
        let stream = futures_util::stream::iter(chunks);
        let mut response = Response::new(Body::from_stream(stream, Some(length)));
        let headers = response.headers_mut();
        respond::set(headers, "etag", "\"abc\"");
        respond::set(headers, "content-length", length.to_string());
        respond::set(headers, "content-type", "text/plain");
        let data = "0000000005.00000";
        let posted = (mood == Mood::Posted).then_some("0000000007.00000");
        respond::set(headers, "x-backend-data-timestamp", data);
        respond::set(headers, "x-backend-timestamp", posted.unwrap_or(data));
        if start.is_some() {
            let range = format!("bytes {from}-{}/{total}", total - 1);
            respond::set(headers, "content-range", range);
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        }
        response
    }
}

pub(crate) fn policies() -> PolicySet {
    let policy = |index, name: &str, is_default| StoragePolicy {
        index: PolicyIndex(index),
        name: name.to_owned(),
        aliases: Vec::new(),
        is_default,
        deprecated: false,
        kind: PolicyKind::Replication,
    };
    PolicySet::new(vec![policy(0, "zero", true), policy(1, "one", false)]).unwrap()
}

pub(crate) struct Cluster {
    pub(crate) proxy: Arc<Proxy>,
    pub(crate) moods: Arc<Mutex<BTreeMap<String, Mood>>>,
    pub(crate) seen: Arc<Mutex<Vec<(String, String, Bytes)>>>,
    pub(crate) policy: Arc<AtomicU32>,
    pub(crate) asked_for_info: Arc<AtomicU32>,
    pub(crate) called: Arc<AtomicU32>,
    _dir: tempfile::TempDir,
}

/// Sixteen partitions, each on three consecutive devices.
pub(crate) fn ring() -> Ring {
    ring_with(None)
}

/// The ring with one of the devices moved to another port, alone in the first region.
pub(crate) fn ring_with(moved: Option<(u16, u16)>) -> Ring {
    let port = |id: u16| match moved {
        Some((device, port)) if device == id => port,
        _ => 10_000 + id,
    };
    let is_moved = |id: u16| moved.is_some_and(|(device, _)| device == id);
    let device = |id: u16| {
        Some(Arc::new(Device {
            region: if is_moved(id) { 1 } else { 2 },
            ..Device::at(u32::from(id), ([127, 0, 0, 1], port(id)).into())
        }))
    };
    let rows = (0..REPLICAS)
        .map(|r| {
            let ids: Vec<u32> = (0..16)
                .map(|part| u32::from((r + part) % DEVICES))
                .collect();
            Row::new(&ids, 2)
        })
        .collect();
    Ring::from_data(RingData {
        devs: (0..DEVICES).map(device).collect(),
        part_power: 4,
        next_part_power: None,
        version: None,
        dev_id_bytes: 2,
        rows,
        format_version: FormatVersion::V1,
    })
    .unwrap()
}

impl Cluster {
    pub(crate) fn new(object: &[u8]) -> Self {
        Cluster::with(object, "0.3", None)
    }

    pub(crate) fn with(object: &[u8], node_timeout: &str, moved: Option<(u16, u16)>) -> Self {
        Cluster::with_options(object, node_timeout, moved, &[])
    }

    /// A cluster whose proxy has these options of its conf, too.
    pub(crate) fn with_options(
        object: &[u8],
        node_timeout: &str,
        moved: Option<(u16, u16)>,
        options: &[(&str, &str)],
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["account", "container", "object", "object-1"] {
            let path = dir.path().join(format!("{name}.ring.gz"));
            let ring = ring_with(moved);
            ring.save(path, FormatVersion::V1).unwrap();
        }
        let backends = Backends::new(Duration::from_millis(200));
        let (moods, seen) = (Arc::default(), Arc::default());
        let (policy, asked_for_info) = (Arc::default(), Arc::default());
        let called: Arc<AtomicU32> = Arc::default();
        for id in 0..DEVICES {
            let address: SocketAddr = format!("127.0.0.1:{}", 10_000 + id).parse().unwrap();
            let fake = Arc::new(Fake {
                device: format!("d{id}"),
                moods: Arc::clone(&moods),
                seen: Arc::clone(&seen),
                policy: Arc::clone(&policy),
                asked_for_info: Arc::clone(&asked_for_info),
                called: Arc::clone(&called),
                object: Bytes::copy_from_slice(object),
            });
            backends.register_local(address, fake.clone());
            // Some of the servers take reads by a call.
            if id % 2 == 0 {
                backends.register_calls(address, fake);
            }
        }
        let mut pairs = vec![
            ("node_timeout", node_timeout),
            ("post_quorum_timeout", "0.1"),
            ("sorting_method", "affinity"),
            ("read_affinity", "r1=1"),
        ];
        pairs.extend_from_slice(options);
        let proxy = crate::common::proxy(dir.path(), policies(), &pairs, backends);
        Cluster {
            proxy,
            moods,
            seen,
            policy,
            asked_for_info,
            called,
            _dir: dir,
        }
    }

    pub(crate) fn set(&self, device: u16, mood: Mood) {
        self.moods
            .lock()
            .unwrap()
            .insert(format!("d{device}"), mood);
    }

    pub(crate) fn set_primaries(&self, moods: [Mood; 3]) {
        for (i, mood) in moods.into_iter().enumerate() {
            self.set(primaries()[i], mood);
        }
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        headers: &[(&str, &str)],
        body: Body,
    ) -> Response {
        let mut request = http::Request::builder().method(method).uri(PATH);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.proxy.call(request.body(body).unwrap()).await
    }

    pub(crate) async fn get(&self, headers: &[(&str, &str)]) -> (u16, Result<Bytes, BodyError>) {
        let response = self.send("GET", headers, Body::empty()).await;
        (
            response.status().as_u16(),
            response.into_body().collect(1 << 24).await,
        )
    }

    /// The devices that received a request of this method, sorted.
    pub(crate) fn took(&self, method: &str) -> Vec<String> {
        let seen = self.seen.lock().unwrap();
        let mut devices: Vec<_> = seen
            .iter()
            .filter(|(_, m, _)| m == method)
            .map(|(d, _, _)| d.clone())
            .collect();
        devices.sort();
        devices
    }
}

pub(crate) const PATH: &str = "/v1/AUTH_a/c/o";

/// The object's primaries, by the partition of its name.
pub(crate) fn primaries() -> [u16; 3] {
    let hash = HashPath::new("", "test").hash("AUTH_a", Some("c"), Some("o"));
    let ring = ring();
    let devices: Vec<u16> = ring
        .primaries(ring.partition(hash))
        .iter()
        .map(|primary| primary.device.id as u16)
        .collect();
    devices.try_into().unwrap()
}

pub(crate) fn handoffs() -> Vec<u16> {
    (0..DEVICES)
        .filter(|id| !primaries().contains(id))
        .collect()
}

pub(crate) fn names(ids: &[u16]) -> Vec<String> {
    let mut names: Vec<_> = ids.iter().map(|id| format!("d{id}")).collect();
    names.sort();
    names
}

pub(crate) fn object() -> Vec<u8> {
    (0..10_000_u32).map(|i| (i % 251) as u8).collect()
}
