//! The proxy over object servers whose disks changed a byte: no client gets a complete body with
//! wrong content. And over servers that are sound, for one address after another.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use cairn_erasure::Codec;
use cairn_formats::ini::Section;
use cairn_formats::range::{Selection, content_range, select};
use cairn_http::context::Context;
use cairn_http::unsent::Reserved;
use cairn_http::{
    Body, BodyError, Clock, Request, Response, Service, ServiceFuture, SwiftInfo, respond,
};
use cairn_peer::{Backends, Rings};
use cairn_proxy::{Proxy, ProxySettings};
use cairn_ring::{Device, FormatVersion, Ring, RingData, Row};
use cairn_types::{
    Constraints, EcType, ErasureScheme, HashPath, ObjectHash, PolicyIndex, PolicyKind, PolicySet,
    StoragePolicy,
};
use http::StatusCode;
use md5::{Digest, Md5};

const DEVICES: u16 = 6;
const CODED: u32 = 1;
const SEGMENT: usize = 10_000;
const CHUNK: usize = 1000;
const STAMP: &str = "0000000005.00000";
const LATER: &str = "0000000006.00000";

/// A server's handling of content that does not match its ETag.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Manner {
    /// Sends it to its end, as Swift's server does.
    Completes,
    /// Withholds the last chunk, without having announced it.
    Withholds,
    /// Withholds the last chunk, as announced.
    Promises,
    /// Sends it in one piece, unverified, as a server of the same process may.
    InOnePiece,
}

/// A server's copy of the object.
#[derive(Clone)]
struct Copy {
    content: Bytes,
    /// ETag of the original content.
    etag: String,
    /// The fragment's index, the object's ETag and length.
    fragment: Option<(usize, String, usize)>,
}

struct Fake {
    device: String,
    manner: Manner,
    policy: u32,
    copies: Arc<Mutex<BTreeMap<String, Copy>>>,
    /// Devices with a tombstone newer than all content.
    deleted: Arc<Mutex<BTreeSet<String>>>,
    /// Devices whose server takes two seconds.
    slow: Arc<Mutex<BTreeSet<String>>>,
}

impl Service for Fake {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        Box::pin(async move {
            if self.slow.lock().unwrap().contains(&self.device) {
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
            self.answer(&request)
        })
    }
}

impl Fake {
    fn answer(&self, request: &Request) -> Response {
        if request.uri().path().split('/').count() <= 5 {
            let mut response = respond::empty(StatusCode::NO_CONTENT);
            let name = "x-backend-storage-policy-index";
            respond::set(response.headers_mut(), name, self.policy.to_string());
            return response;
        }
        if self.deleted.lock().unwrap().contains(&self.device) {
            let mut response = respond::standard(StatusCode::NOT_FOUND);
            respond::set(response.headers_mut(), "x-backend-timestamp", LATER);
            return response;
        }
        let copies = self.copies.lock().unwrap();
        let Some(copy) = copies.get(&self.device) else {
            return respond::standard(StatusCode::NOT_FOUND);
        };
        let size = copy.content.len() as u64;
        let selection = select(respond::header(request.headers(), "range"), size);
        let (status, range) = match selection {
            Selection::One(range) => (StatusCode::PARTIAL_CONTENT, range),
            _ => (StatusCode::OK, 0..size),
        };
        let is_checked =
            range == (0..size) && ![Manner::Completes, Manner::InOnePiece].contains(&self.manner);
        let withholds = is_checked && md5(&copy.content) != copy.etag;
        let wanted = copy.content.slice(range.start as usize..range.end as usize);
        let mut chunks: Vec<Result<Bytes, BodyError>> = wanted
            .chunks(CHUNK)
            .map(|chunk| Ok(Bytes::copy_from_slice(chunk)))
            .collect();
        if withholds {
            chunks.pop();
            chunks.push(Err(BodyError::Disconnected));
        }
        let length = range.end - range.start;
        let body = match self.manner {
            Manner::InOnePiece => Body::full(wanted),
            _ => Body::from_stream(futures_util::stream::iter(chunks), Some(length)),
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        let headers = response.headers_mut();
        let mut set = |name, value: String| respond::set(headers, name, value);
        if status == StatusCode::PARTIAL_CONTENT {
            set("content-range", content_range(&range, size));
        }
        if self.manner == Manner::Promises {
            set("x-backend-refuse-unsound", "true".into());
        }
        set("content-length", length.to_string());
        set("etag", format!("\"{}\"", copy.etag));
        set("x-backend-timestamp", STAMP.into());
        if let Some((index, etag, length)) = &copy.fragment {
            set("x-backend-data-timestamp", STAMP.into());
            set("x-backend-durable-timestamp", STAMP.into());
            set("x-object-sysmeta-ec-frag-index", index.to_string());
            set("x-object-sysmeta-ec-etag", etag.clone());
            set("x-object-sysmeta-ec-content-length", length.to_string());
        }
        response
    }
}

fn md5(content: &[u8]) -> String {
    ObjectHash(Md5::digest(content).into()).hex()
}

fn scheme() -> ErasureScheme {
    let scheme = ErasureScheme::new(EcType::IsaLRsVand, 3, 2).unwrap();
    scheme.with_segment_size(SEGMENT).unwrap()
}

fn policies() -> PolicySet {
    let policy = |index, kind| StoragePolicy {
        index: PolicyIndex(index),
        name: format!("p{index}"),
        aliases: Vec::new(),
        is_default: index == 0,
        deprecated: false,
        kind,
    };
    PolicySet::new(vec![
        policy(0, PolicyKind::Replication),
        policy(CODED, PolicyKind::ErasureCoding(scheme())),
    ])
    .unwrap()
}

fn ring(replicas: u16) -> Ring {
    let device = |id: u16| {
        Some(Arc::new(Device::at(
            u32::from(id),
            ([127, 0, 0, 1], 10_000 + id).into(),
        )))
    };
    let row = |replica| {
        let ids: Vec<u32> = (0..16)
            .map(|part| u32::from((replica + part) % DEVICES))
            .collect();
        Row::new(&ids, 2)
    };
    Ring::from_data(RingData {
        devs: (0..DEVICES).map(device).collect(),
        part_power: 4,
        next_part_power: None,
        version: None,
        dev_id_bytes: 2,
        rows: (0..replicas).map(row).collect(),
        format_version: FormatVersion::V1,
    })
    .unwrap()
}

struct Cluster {
    proxy: Arc<Proxy>,
    /// The object's devices, in ring order.
    devices: Vec<String>,
    copies: Arc<Mutex<BTreeMap<String, Copy>>>,
    deleted: Arc<Mutex<BTreeSet<String>>>,
    slow: Arc<Mutex<BTreeSet<String>>>,
    _dir: tempfile::TempDir,
}

impl Cluster {
    fn new(policy: u32, manner: Manner) -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        for (name, replicas) in [
            ("account", 3),
            ("container", 3),
            ("object", 3),
            ("object-1", 5),
        ] {
            let path = dir.path().join(format!("{name}.ring.gz"));
            ring(replicas).save(path, FormatVersion::V1).unwrap();
        }
        let backends = Backends::new(Duration::from_millis(200));
        let (copies, deleted, slow) = (Arc::default(), Arc::default(), Arc::default());
        for id in 0..DEVICES {
            let fake = Fake {
                device: format!("d{id}"),
                manner,
                policy,
                copies: Arc::clone(&copies),
                deleted: Arc::clone(&deleted),
                slow: Arc::clone(&slow),
            };
            let address = SocketAddr::from(([127, 0, 0, 1], 10_000 + id));
            backends.register_local(address, Arc::new(fake));
        }
        let policies = Arc::new(policies());
        let hash_path = HashPath::new("", "test");
        let object_ring = ring(if policy == CODED { 5 } else { 3 });
        let partition = object_ring.partition(hash_path.hash("AUTH_a", Some("c"), Some("o")));
        let devices = object_ring.primaries(partition);
        // The primaries are asked in ring order.
        let near = devices.iter().enumerate();
        let near: Vec<_> = near
            .map(|(i, d)| format!("r1z{}={i}", d.device.zone))
            .collect();
        let options = [
            ("node_timeout", "5"),
            ("sorting_method", "affinity"),
            ("read_affinity", &near.join(", ")),
        ];
        let settings = ProxySettings {
            policy_sections: Default::default(),
            section: Section::from_pairs("app:proxy-server", &options),
            constraints: Arc::new(Constraints::default()),
            policies: policies.clone(),
            hash_path,
            rings: Rings::open(dir.path(), &policies).unwrap(),
            swift_info: Arc::new(SwiftInfo::default()),
            clock: Clock::system(),
        };
        Cluster {
            proxy: Proxy::new(settings, backends).unwrap(),
            devices: devices.iter().map(|d| d.device.device.clone()).collect(),
            copies,
            deleted,
            slow,
            _dir: dir,
        }
    }

    /// Stores whole copies on all primaries.
    fn replicas(&self, content: &[u8]) {
        let copy = Copy {
            content: Bytes::copy_from_slice(content),
            etag: md5(content),
            fragment: None,
        };
        let all = self.devices.iter().map(|d| (d.clone(), copy.clone()));
        *self.copies.lock().unwrap() = all.collect();
    }

    /// Stores a fragment archive on each primary.
    fn archives(&self, codec: &Codec, content: &[u8]) {
        let mut archives = vec![Vec::new(); self.devices.len()];
        for segment in content.chunks(SEGMENT) {
            for (archive, fragment) in archives.iter_mut().zip(codec.encode(segment)) {
                archive.extend(fragment);
            }
        }
        let copies = archives.into_iter().enumerate().map(|(index, archive)| {
            let copy = Copy {
                etag: md5(&archive),
                content: archive.into(),
                fragment: Some((index, md5(content), content.len())),
            };
            (self.devices[index].clone(), copy)
        });
        *self.copies.lock().unwrap() = copies.collect();
    }

    /// Changes a byte on the `i`-th primary's disk; `at` is in thousandths of the content.
    fn damage(&self, i: usize, at: usize) {
        let mut copies = self.copies.lock().unwrap();
        let copy = copies.get_mut(&self.devices[i]).unwrap();
        let mut content = copy.content.to_vec();
        let at = content.len() * at / 1000;
        content[at] ^= 0x55;
        copy.content = content.into();
    }

    async fn get(&self, headers: &[(&str, &str)]) -> Result<Bytes, BodyError> {
        let response = self.ask(headers).await;
        let status = response.status().as_u16();
        assert!([200, 206].contains(&status), "{status}");
        response.into_body().collect(1 << 24).await
    }

    async fn ask(&self, headers: &[(&str, &str)]) -> Response {
        let mut request = http::Request::builder().uri("/v1/AUTH_a/c/o");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).unwrap();
        self.proxy.call(request).await
    }
}

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + i / 256) as u8).collect()
}

const MANNERS: [Manner; 4] = [
    Manner::Completes,
    Manner::Withholds,
    Manner::Promises,
    Manner::InOnePiece,
];

#[tokio::test]
async fn a_body_known_to_be_wrong_is_not_completed() {
    for manner in MANNERS {
        let cluster = Cluster::new(0, manner);
        for length in [700, 10_000, 25_500] {
            let content = content(length);
            for at in [0, 500, 999] {
                cluster.replicas(&content);
                // The replica that is asked first.
                cluster.damage(0, at);
                for newest in [&[][..], &[("x-newest", "true")], &[("range", "bytes=0-")]] {
                    let got = cluster.get(newest).await;
                    let what = format!("{manner:?}, {length} bytes, {at}, {newest:?}");
                    match got {
                        Ok(got) => assert!(got == content, "wrong, as if whole: {what}"),
                        // Bytes already sent cannot be recalled.
                        Err(_) => assert!(length > CHUNK && at < 999, "broken off: {what}"),
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn what_is_wrong_everywhere_is_broken_off() {
    for manner in MANNERS {
        let cluster = Cluster::new(0, manner);
        cluster.replicas(&content(25_500));
        (0..3).for_each(|i| cluster.damage(i, 500));
        assert!(cluster.get(&[]).await.is_err(), "{manner:?}");
    }
}

#[tokio::test]
async fn a_range_does_not_go_on_with_other_bytes_than_it_began_with() {
    // A server that reads to the end of what a failing disk returns.
    let cluster = Cluster::new(0, Manner::Withholds);
    let content = content(25_500);
    cluster.replicas(&content);
    cluster.damage(0, 0);
    let whole = [("range", "bytes=0-25499")];
    assert!(cluster.get(&whole).await.is_err());
    let part = [("range", "bytes=100-20000")];
    assert_eq!(cluster.get(&part).await.unwrap(), content[100..=20_000]);
}

#[tokio::test]
async fn a_wrong_fragment_with_a_checksum_is_replaced() {
    let codec = Codec::new(&scheme()).with_checksums();
    for manner in MANNERS {
        let cluster = Cluster::new(CODED, manner);
        for length in [1000, SEGMENT, 35_500] {
            let content = content(length);
            for bad in 0..5 {
                for at in [0, 300, 999] {
                    cluster.archives(&codec, &content);
                    cluster.damage(bad, at);
                    cluster.damage((bad + 2) % 5, at);
                    let what = format!("{manner:?}, {length} bytes, {bad}, {at}");
                    assert!(cluster.get(&[]).await.unwrap() == content, "{what}");
                    let range = [("range", "bytes=100-900")];
                    let got = cluster.get(&range).await.unwrap();
                    assert!(got == content[100..=900], "{what}");
                }
            }
        }
    }
}

#[tokio::test]
async fn fragments_without_checksums_make_no_wrong_object() {
    let codec = Codec::new(&scheme());
    for manner in MANNERS {
        let cluster = Cluster::new(CODED, manner);
        for length in [1000, SEGMENT, 35_500] {
            let content = content(length);
            for bad in 0..5 {
                for at in [0, 300, 999] {
                    cluster.archives(&codec, &content);
                    cluster.damage(bad, at);
                    let got = cluster.get(&[]).await;
                    let what = format!("{manner:?}, {length} bytes, {bad}, {at}");
                    match got {
                        Ok(got) => assert!(got == content, "wrong, as if whole: {what}"),
                        Err(_) => assert!(length > SEGMENT, "broken off: {what}"),
                    }
                }
            }
        }
    }
}

/// A DELETE that reached too few servers to make decoding impossible, with its tombstones on other
/// servers than those asked first.
#[tokio::test]
async fn the_newest_of_fragments_is_no_older_than_a_tombstone() {
    let newest = [("x-newest", "true")];
    let cluster = Cluster::new(CODED, Manner::Promises);
    let content = content(25_500);
    cluster.archives(&Codec::new(&scheme()).with_checksums(), &content);
    assert_eq!(cluster.get(&newest).await.unwrap(), content);
    let handoff = (0..DEVICES).map(|id| format!("d{id}"));
    let handoff = handoff.filter(|d| !cluster.devices.contains(d)).collect();
    for deleted in [vec![cluster.devices[4].clone()], handoff] {
        *cluster.deleted.lock().unwrap() = deleted.into_iter().collect();
        assert_eq!(cluster.ask(&newest).await.status(), StatusCode::NOT_FOUND);
        let part = [newest[0], ("range", "bytes=5-9")];
        assert_eq!(cluster.ask(&part).await.status(), StatusCode::NOT_FOUND);
    }
}

/// The servers of two of five fragments are asked first and not used; of the other three, two are
/// damaged.
#[tokio::test(start_paused = true)]
async fn a_read_goes_on_with_servers_that_were_asked_before() {
    let codec = Codec::new(&scheme()).with_checksums();
    let content = content(35_500);
    for manner in MANNERS {
        for (slow, bad, newest) in [(Some(0), [3, 4], false), (None, [0, 1], true)] {
            let cluster = Cluster::new(CODED, manner);
            cluster.archives(&codec, &content);
            bad.iter().for_each(|i| cluster.damage(*i, 500));
            let slow = slow.map(|i: usize| cluster.devices[i].clone());
            cluster.slow.lock().unwrap().extend(slow);
            let headers = [("x-newest", if newest { "true" } else { "false" })];
            let got = cluster.get(&headers).await;
            assert!(got.is_ok_and(|got| got == content), "{manner:?}, {newest}");
        }
    }
}

#[tokio::test]
async fn an_address_that_holds_its_memory_waits_and_others_do_not() {
    let cluster = Cluster::new(CODED, Manner::Completes);
    let content = content(35_500);
    cluster.archives(&Codec::new(&scheme()).with_checksums(), &content);
    let get = async |remote: Option<&str>| {
        let context = Context {
            remote: remote.map(|remote| remote.parse().unwrap()),
            ..Context::default()
        };
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = "/v1/AUTH_a/c/o".parse().unwrap();
        request.extensions_mut().insert(context);
        let response = cluster.proxy.call(request).await;
        assert_eq!(response.status(), StatusCode::OK);
        response.into_body().collect(1 << 24).await.unwrap()
    };
    let all = Reserved::take(Some([192, 0, 2, 1].into()), usize::MAX).await;
    let waits = tokio::time::timeout(Duration::from_millis(500), get(Some("192.0.2.1:99")));
    assert!(waits.await.is_err());
    // Others, and callers within the process.
    for remote in [Some("192.0.2.2:99"), None] {
        let answered = tokio::time::timeout(Duration::from_secs(20), get(remote));
        assert!(answered.await.is_ok_and(|got| got == content));
    }
    drop(all);
    assert!(get(Some("192.0.2.1:99")).await == content);
}
