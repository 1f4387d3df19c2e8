//! Order of the servers asked, and the network used, as recorded by the servers: for
//! `read_affinity`, `write_affinity`, `sorting_method` and `concurrent_gets`, globally and per
//! policy.
//!
//! The orders are compared with OpenStack Swift's if `CAIRN_SWIFT_PYTHON=/path/to/python` names a
//! Python that has it; otherwise that test is skipped.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cairn_formats::ini::Section;
use cairn_http::{Body, Clock, Request, Response, Service, ServiceFuture, SwiftInfo, respond};
use cairn_peer::{Backends, Rings};
use cairn_proxy::{Proxy, ProxySettings};
use cairn_ring::{Device, FormatVersion, Ring, RingData, Row};
use cairn_types::{Constraints, HashPath, PolicyIndex, PolicyKind, PolicySet, StoragePolicy};
use http::StatusCode;
use tokio::time::Instant;

const DEVICES: u32 = 12;
const REPLICAS: u32 = 3;
const PARTITIONS: u32 = 16;

type Options<'a> = &'a [(&'a str, &'a str)];

/// Behaviour of servers towards objects; they have everything else.
#[derive(Clone, Copy, Default)]
enum Mood {
    #[default]
    Empty,
    /// Refuses everything for the moment.
    Busy,
    Unmounted,
    Silent,
    /// Has the object, and responds after this many milliseconds.
    Has(u64),
}

#[derive(Default)]
struct Shared {
    moods: BTreeMap<u32, Mood>,
    others: Mood,
    /// Devices asked for an object, in order.
    asked: Vec<u32>,
    /// For each of them: was it over the replication network, and which container server it must
    /// update.
    asked_how: Vec<(bool, String)>,
}

struct Fake {
    device: u32,
    over_replication: bool,
    shared: Arc<Mutex<Shared>>,
}

impl Service for Fake {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        Box::pin(self.answer(request))
    }
}

impl Fake {
    async fn answer(&self, request: Request) -> Response {
        let path = request.uri().path();
        if path.split('/').count() <= 5 {
            let mut response = respond::empty(StatusCode::NO_CONTENT);
            let policy = if path.ends_with("one") { "1" } else { "0" };
            let name = "x-backend-storage-policy-index";
            respond::set(response.headers_mut(), name, policy);
            return response;
        }
        let mood = {
            let mut shared = self.shared.lock().unwrap();
            shared.asked.push(self.device);
            let told = respond::header(request.headers(), "x-container-host").unwrap_or("");
            let how = (self.over_replication, told.to_owned());
            shared.asked_how.push(how);
            let mood = shared.moods.get(&self.device);
            *mood.unwrap_or(&shared.others)
        };
        match mood {
            Mood::Empty => respond::standard(StatusCode::NOT_FOUND),
            Mood::Busy => respond::standard(StatusCode::SERVICE_UNAVAILABLE),
            Mood::Unmounted => respond::standard(StatusCode::INSUFFICIENT_STORAGE),
            Mood::Silent => std::future::pending().await,
            Mood::Has(after) => {
                tokio::time::sleep(Duration::from_millis(after)).await;
                let mut response = Response::new(Body::full("x"));
                respond::set(response.headers_mut(), "content-length", "1");
                respond::set(response.headers_mut(), "etag", "\"abc\"");
                response
            }
        }
    }
}

/// Two regions with two zones each; devices of a partition are not adjacent.
fn ring() -> Ring {
    let device = |id: u32| {
        let ip = format!("127.0.{}.{}", 1 + id % 2, 1 + id);
        Some(Arc::new(Device {
            id,
            region: 1 + id % 2,
            zone: 1 + id / 2 % 2,
            weight: 1.0,
            ip,
            port: 6200,
            device: format!("d{id}"),
            replication_ip: format!("127.1.{}.{}", 1 + id % 2, 1 + id),
            replication_port: 6300,
            meta: String::new(),
        }))
    };
    let row = |replica: u32| {
        let ids: Vec<u32> = (0..PARTITIONS)
            .map(|part| (part * 7 + replica * (part % 3 * 2 + 1)) % DEVICES)
            .collect();
        Row::new(&ids, 2)
    };
    Ring::from_data(RingData {
        devs: (0..DEVICES).map(device).collect(),
        part_power: PARTITIONS.ilog2(),
        next_part_power: None,
        version: None,
        dev_id_bytes: 2,
        rows: (0..REPLICAS).map(row).collect(),
        format_version: FormatVersion::V1,
    })
    .unwrap()
}

fn hash_path() -> HashPath {
    HashPath::new("", "test")
}

/// An object in each partition, in a container with this policy.
fn names(container: &str) -> Vec<(u32, String)> {
    let ring = ring();
    let of = |n: u32| ring.partition(hash_path().hash("a", Some(container), Some(&n.to_string())));
    (0..PARTITIONS)
        .map(|partition| {
            let n = (0..).find(|n| of(*n) == partition).unwrap();
            (partition, format!("/v1/a/{container}/{n}"))
        })
        .collect()
}

struct Cluster {
    proxy: Arc<Proxy>,
    shared: Arc<Mutex<Shared>>,
    dir: tempfile::TempDir,
}

impl Cluster {
    fn new(options: Options<'_>, of_policy_one: Options<'_>) -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        for name in ["account", "container", "object", "object-1"] {
            let path = dir.path().join(format!("{name}.ring.gz"));
            ring().save(path, FormatVersion::V1).unwrap();
        }
        let policy = |index, name: &str| StoragePolicy {
            index: PolicyIndex(index),
            name: name.into(),
            aliases: Vec::new(),
            is_default: index == 0,
            deprecated: false,
            kind: PolicyKind::Replication,
        };
        let policies = Arc::new(PolicySet::new(vec![policy(0, "zero"), policy(1, "one")]).unwrap());
        let backends = Backends::new(Duration::from_millis(200));
        let shared = Arc::new(Mutex::new(Shared::default()));
        let rings = Rings::open(dir.path(), &policies).unwrap();
        for device in ring().devices() {
            let of = |ip: &str, port: u16, over_replication| {
                let fake = Fake {
                    device: device.id,
                    over_replication,
                    shared: Arc::clone(&shared),
                };
                let address = format!("{ip}:{port}").parse().unwrap();
                backends.register_local(address, Arc::new(fake));
            };
            of(&device.ip, device.port, false);
            of(&device.replication_ip, device.replication_port, true);
        }
        let basic = [("node_timeout", "1"), ("error_suppression_limit", "1000")];
        let all: Vec<_> = basic.iter().chain(options).copied().collect();
        let own = Section::from_pairs("proxy-server:policy:1", of_policy_one);
        let settings = ProxySettings {
            policy_sections: BTreeMap::from([(PolicyIndex(1), own)]),
            section: Section::from_pairs("app:proxy-server", &all),
            constraints: Arc::new(Constraints::default()),
            policies,
            hash_path: hash_path(),
            rings,
            swift_info: Arc::new(SwiftInfo::default()),
            clock: Clock::system(),
        };
        Cluster {
            proxy: Proxy::new(settings, backends).unwrap(),
            shared,
            dir,
        }
    }

    fn set(&self, device: u32, mood: Mood) {
        self.shared.lock().unwrap().moods.insert(device, mood);
    }

    /// The response's status, and the devices that the proxy asked for it.
    async fn send(&self, method: &str, path: &str) -> (u16, Vec<u32>) {
        self.send_with(method, path, ("x-none", "")).await
    }

    async fn send_with(&self, method: &str, path: &str, header: (&str, &str)) -> (u16, Vec<u32>) {
        self.shared.lock().unwrap().asked_how.clear();
        self.shared.lock().unwrap().asked.clear();
        let (body, length) = match method {
            "PUT" => (Body::full("x"), "1"),
            _ => (Body::empty(), "0"),
        };
        let request = http::Request::builder().method(method).uri(path);
        let request = request
            .header("content-length", length)
            .header(header.0, header.1);
        let response = self.proxy.call(request.body(body).unwrap()).await;
        let asked = std::mem::take(&mut self.shared.lock().unwrap().asked);
        (response.status().as_u16(), asked)
    }
}

fn regions(devices: &[u32]) -> Vec<u32> {
    let ring = ring();
    let region = |id: &u32| ring.devices().find(|d| d.id == *id).unwrap().region;
    devices.iter().map(region).collect()
}

/// The object in partition 0, in a container with this policy.
fn object(container: &str) -> String {
    names(container).swap_remove(0).1
}

fn primaries_of_0() -> Vec<u32> {
    let primaries = ring().primaries(0);
    primaries.iter().map(|primary| primary.device.id).collect()
}

const NEAR: Options<'static> = &[
    ("sorting_method", "affinity"),
    ("read_affinity", "r2=1, r1=2"),
    ("write_affinity", "r2"),
];

/// A server that missed a write is asked first for some requests but not all, also within one
/// process.
#[tokio::test]
async fn the_first_asked_is_not_always_the_same() {
    let cluster = Cluster::new(&[], &[]);
    let mut first = std::collections::BTreeSet::new();
    for _ in 0..64 {
        let (_, asked) = cluster.send("HEAD", &object("zero")).await;
        first.insert(asked[0]);
    }
    assert!(first.len() > 1, "{first:?}");
}

#[tokio::test]
async fn reads_begin_near_and_uploads_go_near() {
    let cluster = Cluster::new(NEAR, &[]);
    for (_, path) in names("zero") {
        let (status, asked) = cluster.send("GET", &path).await;
        assert_eq!((status, asked.len()), (404, 6));
        assert!(regions(&asked[..3]).is_sorted_by(|a, b| a >= b));
        let (_, asked) = cluster.send("PUT", &path).await;
        assert_eq!(regions(&asked[..3]), [2, 2, 2]);
    }
}

#[tokio::test]
async fn a_policy_has_its_own() {
    let cluster = Cluster::new(NEAR, &[("read_affinity", "r1=1"), ("write_affinity", "r1")]);
    for (_, path) in names("one") {
        let (_, asked) = cluster.send("GET", &path).await;
        assert!(regions(&asked[..3]).is_sorted());
        let (_, asked) = cluster.send("PUT", &path).await;
        assert_eq!(regions(&asked[..3]), [1, 1, 1]);
    }
}

#[tokio::test]
async fn what_an_upload_left_near_is_deleted() {
    let cluster = Cluster::new(NEAR, &[("write_affinity_handoff_delete_count", "2")]);
    for (container, most) in [("zero", None), ("one", Some(2))] {
        for (partition, path) in names(container) {
            cluster.shared.lock().unwrap().others = Mood::Has(0);
            let (_, asked) = cluster.send("DELETE", &path).await;
            let primaries = ring().primaries(partition);
            let far = primaries.iter().filter(|p| p.device.region == 1).count();
            assert_eq!(asked.len(), 3 + most.unwrap_or(far));
            assert!(regions(&asked[3..]).iter().all(|region| *region == 2));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_quickest_is_asked_first() {
    let cluster = Cluster::new(&[("sorting_method", "timing")], &[]);
    let (path, primaries) = (object("zero"), primaries_of_0());
    for (device, after) in primaries.iter().zip([60, 5, 30]) {
        cluster.set(*device, Mood::Has(after));
    }
    let mut first = Vec::new();
    for _ in 0..3 {
        // Servers without a measured time come first.
        first.extend(cluster.send("GET", &path).await.1);
    }
    first.sort_unstable();
    let mut all = primaries.clone();
    all.sort_unstable();
    assert_eq!(first, all);
    for _ in 0..3 {
        assert_eq!(cluster.send("GET", &path).await, (200, vec![primaries[1]]));
    }
    cluster.set(primaries[1], Mood::Has(90));
    cluster.send("GET", &path).await;
    assert_eq!(cluster.send("GET", &path).await.1, [primaries[2]]);
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_not_waited_for_where_gets_are_concurrent() {
    let at_once = [("concurrent_gets", "on"), ("concurrency_timeout", "0.05")];
    let near = [("sorting_method", "affinity"), ("read_affinity", "r2=1")];
    let cluster = Cluster::new(&near, &at_once);
    cluster.shared.lock().unwrap().others = Mood::Has(0);
    for device in ring().devices().filter(|device| device.region == 2) {
        cluster.set(device.id, Mood::Silent);
    }
    let nears = |partition| {
        let primaries = ring().primaries(partition);
        primaries.iter().filter(|p| p.device.region == 2).count()
    };
    let partition = (0..PARTITIONS).find(|p| nears(*p) == 1).unwrap();
    let path = |container| names(container).swap_remove(partition as usize).1;
    let began = Instant::now();
    let (status, asked) = cluster.send("GET", &path("one")).await;
    assert_eq!((status, regions(&asked)), (200, vec![2, 1]));
    assert!(began.elapsed() < Duration::from_secs(1));
    let began = Instant::now();
    let (status, asked) = cluster.send("GET", &path("zero")).await;
    assert_eq!((status, regions(&asked)), (200, vec![2, 1]));
    // Even without it the next server is asked beside a slow one.
    assert!(began.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn devices_that_are_not_mounted_do_not_use_up_the_tries() {
    let cluster = Cluster::new(&[("request_node_count", "3")], &[]);
    let path = object("zero");
    for device in primaries_of_0() {
        cluster.set(device, Mood::Unmounted);
    }
    let (status, asked) = cluster.send("GET", &path).await;
    assert_eq!((status, asked.len()), (503, 6));
    let handoff = asked[5];
    cluster.set(handoff, Mood::Has(0));
    assert_eq!(cluster.send("GET", &path).await.0, 200);
}

#[tokio::test]
async fn one_primary_that_has_never_heard_of_it_says_nothing() {
    let none = [("rebalance_missing_suppression_count", "0")];
    let cluster = Cluster::new(&[], &none);
    cluster.shared.lock().unwrap().others = Mood::Busy;
    cluster.set(primaries_of_0()[1], Mood::Empty);
    assert_eq!(cluster.send("GET", &object("zero")).await.0, 503);
    let cluster = Cluster::new(&[("request_node_count", "1")], &none);
    assert_eq!(cluster.send("GET", &object("zero")).await.0, 503);
    assert_eq!(cluster.send("GET", &object("one")).await.0, 404);
}

#[tokio::test]
async fn what_daemons_ask_goes_over_the_replication_network() {
    let cluster = Cluster::new(&[], &[]);
    let path = object("zero");
    for (value, over) in [("true", true), ("no", false)] {
        let header = ("x-backend-use-replication-network", value);
        for method in ["GET", "PUT", "DELETE"] {
            let (_, asked) = cluster.send_with(method, &path, header).await;
            let how = std::mem::take(&mut cluster.shared.lock().unwrap().asked_how);
            assert_eq!(how.len(), asked.len());
            assert!(
                how.iter()
                    .all(|(over_replication, _)| *over_replication == over)
            );
            let told = how
                .iter()
                .map(|(_, told)| told)
                .filter(|told| !told.is_empty());
            let port = if over { ":6300" } else { ":6200" };
            let told: Vec<&String> = told.collect();
            assert!(told.iter().all(|told| told.ends_with(port)), "{told:?}");
            assert_eq!(told.is_empty(), method == "GET");
        }
    }
    // The same servers in the same order.
    let plain = ring();
    let other = plain.over_replication().unwrap();
    for partition in 0..PARTITIONS {
        let order = |ring: &Ring| {
            let handoffs = ring.handoffs(partition).map(|h| h.device.id);
            handoffs.collect::<Vec<_>>()
        };
        assert_eq!(order(&plain), order(&other));
    }
}

/// A process of OpenStack Swift's proxy, killed when dropped.
struct Swift(Child);

impl Swift {
    fn start(ring: &Path) -> Option<Swift> {
        let Ok(python) = std::env::var("CAIRN_SWIFT_PYTHON") else {
            println!("skipped: CAIRN_SWIFT_PYTHON names no Python with OpenStack Swift");
            return None;
        };
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/affinity_upstream.py");
        let mut command = Command::new(python);
        command.arg(script).arg(ring);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Some(Swift(command.spawn().unwrap()))
    }

    fn ask(&mut self, question: &serde_json::Value) -> Vec<Vec<[Vec<u32>; 3]>> {
        writeln!(self.0.stdin.as_mut().unwrap(), "{question}").unwrap();
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        serde_json::from_str(&line).unwrap()
    }
}

impl Drop for Swift {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The first nodes, which are shuffled, sorted by distance and then id; the others unchanged.
fn comparable(order: &[u32], distance: impl Fn(u32) -> u32) -> Vec<(u32, u32)> {
    let mut order: Vec<(u32, u32)> = order.iter().map(|id| (distance(*id), *id)).collect();
    let first = order.len().min(REPLICAS as usize);
    assert!(order[..first].is_sorted_by_key(|(distance, _)| *distance));
    order[..first].sort_unstable();
    order
}

#[tokio::test]
async fn the_orders_are_openstack_swifts() {
    let cases: [(Options<'static>, Options<'static>); 6] = [
        (&[], &[("request_node_count", "9")]),
        (NEAR, &[("write_affinity_node_count", "4")]),
        (
            &[
                ("write_affinity", "r1z1, r2z2"),
                ("request_node_count", "7"),
            ],
            &[
                ("write_affinity", "r9"),
                ("write_affinity_handoff_delete_count", "1"),
            ],
        ),
        (
            &[
                ("write_affinity", "r1"),
                ("request_node_count", "4 * replicas"),
            ],
            &[
                ("write_affinity", ""),
                ("sorting_method", "Affinity"),
                ("read_affinity", "r2z1=5"),
            ],
        ),
        (
            &[("write_affinity", "r1"), ("write_affinity_node_count", "1")],
            &[("write_affinity_node_count", "3 * replicas")],
        ),
        (
            &[("request_node_count", "4"), ("write_affinity", "r2")],
            &[("write_affinity_handoff_delete_count", "5")],
        ),
    ];
    let near_of = |own: Options<'_>, all: Options<'_>, id: u32| {
        let option = |name| {
            let found = own.iter().chain(all).find(|(option, _)| *option == name);
            found.map_or("", |(_, value)| *value)
        };
        if option("sorting_method").to_lowercase() != "affinity" {
            return 0;
        }
        let (region, zone) = (1 + id % 2, 1 + id / 2 % 2);
        let words = option("read_affinity")
            .split(',')
            .map(|w| w.trim().split_once('='));
        let fits =
            |place: &str| place == format!("r{region}") || place == format!("r{region}z{zone}");
        let fitting = words.flatten().filter(|(place, _)| fits(place));
        fitting
            .map(|(_, n)| n.parse().unwrap())
            .min()
            .unwrap_or(u32::MAX)
    };
    for (all, own) in cases {
        let cluster = Cluster::new(all, own);
        let Some(mut swift) = Swift::start(&cluster.dir.path().join("object.ring.gz")) else {
            return;
        };
        let map = |pairs: Options<'static>| pairs.iter().copied().collect::<BTreeMap<_, _>>();
        let partitions: Vec<u32> = (0..PARTITIONS).collect();
        let theirs = swift.ask(&serde_json::json!({
            "options": map(all), "policy_options": map(own), "partitions": partitions,
        }));
        for (container, policy, of_policy) in [("zero", 0, &[][..]), ("one", 1, own)] {
            for (partition, path) in names(container) {
                for (i, method) in ["GET", "PUT", "DELETE"].into_iter().enumerate() {
                    // The nodes intended for a deletion. Later ones differ from Swift's, which
                    // skips others for good while it looks for near handoffs.
                    let is_delete = method == "DELETE";
                    let mood = if is_delete { Mood::Has(0) } else { Mood::Busy };
                    cluster.shared.lock().unwrap().others = mood;
                    let mut theirs = theirs[partition as usize][policy][i].clone();
                    let (_, mut ours) = cluster.send(method, &path).await;
                    if is_delete {
                        theirs.truncate(ours.len());
                        ours.truncate(theirs.len());
                    }
                    let distance = |id| near_of(of_policy, all, id);
                    assert_eq!(
                        comparable(&ours, distance),
                        comparable(&theirs, distance),
                        "{method} of partition {partition}, {all:?} {of_policy:?}"
                    );
                }
            }
        }
    }
}
