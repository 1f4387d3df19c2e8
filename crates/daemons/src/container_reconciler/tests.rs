use cairn_formats::ini::Section;
use cairn_http::service::handler_fn;
use cairn_types::PolicySet;
use serde_json::json;

use super::*;
use crate::testing::write_rings;

const NOW: u64 = 1_700_000_000;
const QUEUE: &str = "1699999200";

/// A cluster of two policies whose one queue holds one entry: what its objects answer, by policy,
/// and what it was asked.
struct Cluster {
    entry: Value,
    /// The container's policy, and the time it was set, on each of its three servers.
    claims: [(u32, u64); 3],
    /// Status and time at policy 0 and 1.
    objects: [(StatusCode, &'static str); 2],
    upload: StatusCode,
}

const GONE: (StatusCode, &str) = (StatusCode::NOT_FOUND, "0000000000.00000");

fn entry(operation: &str) -> Value {
    json!({
        "name": "0:/AUTH_a/c/o", "content_type": operation, "hash": "1699999990.00000",
        "last_modified": "2023-11-14T22:13:10.000000",
    })
}

fn put_entry() -> Cluster {
    Cluster {
        entry: entry(PUT_TYPE),
        claims: [(0, 9), (1, 5), (1, 5)],
        objects: [(StatusCode::OK, "1699999990.00000"), GONE],
        upload: StatusCode::CREATED,
    }
}

impl Cluster {
    /// One pass; its counts and the requests that change anything.
    async fn pass(self) -> (BTreeMap<&'static str, u64>, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        write_rings(folder.path());
        let ring = folder.path().join("object.ring.gz");
        std::fs::copy(ring, folder.path().join("object-1.ring.gz")).unwrap();
        let conf = "[swift-hash]\nswift_hash_path_suffix = x\n\
                    [storage-policy:0]\nname = gold\ndefault = yes\n\
                    [storage-policy:1]\nname = silver\n";
        let conf =
            cairn_formats::swift_conf::SwiftConf::parse("swift.conf", conf.as_bytes()).unwrap();
        let policies: PolicySet = conf.policies;
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let backends = Backends::new(Duration::from_secs(1));
        for (i, port) in [6201, 6202, 6203].into_iter().enumerate() {
            let (log, (policy, time)) = (asked.clone(), self.claims[i]);
            let server = handler_fn(move |request: Request| {
                let mut response = respond::text(StatusCode::NO_CONTENT, "");
                let headers = response.headers_mut();
                let time = Timestamp::from_secs(time).internal();
                respond::set(headers, "x-backend-status-changed-at", &time);
                respond::set(headers, "x-backend-put-timestamp", &time);
                respond::set(
                    headers,
                    "x-backend-storage-policy-index",
                    policy.to_string(),
                );
                if request.method() == Method::DELETE {
                    let time = respond::header(request.headers(), "x-timestamp").unwrap();
                    let path = request.uri().path();
                    let entry = path.rsplit_once(".misplaced_objects/").unwrap().1;
                    log.lock().push(format!("pop {entry} {time}"));
                }
                async { response }
            });
            backends.register_local(([127, 0, 0, 1], port).into(), server);
        }
        let (log, objects, upload) = (asked.clone(), self.objects, self.upload);
        let row = self.entry;
        let pipeline = handler_fn(move |request: Request| {
            let (uri, headers) = (request.uri().clone(), request.headers().clone());
            let first = uri.query().is_some_and(|q| q.ends_with("marker="));
            let header = |name: &str| respond::header(&headers, name).unwrap_or("").to_owned();
            let listing = |rows: Value| respond::text(StatusCode::OK, rows.to_string());
            let index: usize = header("x-backend-storage-policy-index")
                .parse()
                .unwrap_or(0);
            let response = match (request.method().as_str(), uri.path()) {
                ("GET", path) if path.starts_with("/v1/.misplaced_objects") && !first => {
                    listing(json!([]))
                }
                ("GET", "/v1/.misplaced_objects") => listing(json!([{ "name": QUEUE }])),
                ("GET", "/v1/.misplaced_objects/1699999200") => listing(json!([row])),
                ("GET" | "HEAD", "/v1/AUTH_a/c/o") => {
                    let (status, time) = objects[index];
                    let mut response = respond::text(status, "content");
                    respond::set(response.headers_mut(), "x-backend-timestamp", time);
                    respond::set(response.headers_mut(), "x-object-meta-colour", "blue");
                    response
                }
                (method, path) => {
                    let time = header("x-timestamp");
                    let colour = header("x-object-meta-colour");
                    let line = format!("{method} {path} {index} {time} {colour}");
                    log.lock().push(line.trim().to_owned());
                    let put = method == "PUT";
                    respond::text(if put { upload } else { StatusCode::NO_CONTENT }, "")
                }
            };
            async { response }
        });
        let parts = ReconcilerParts {
            client: InternalClient::new(pipeline, "Swift Container Reconciler", 1),
            hash_path: HashPath::new(b"".to_vec(), b"changeme".to_vec()),
            rings: Rings::open(folder.path(), &policies).unwrap(),
            backends,
            clock: Clock::manual(Timestamp::from_secs(NOW)),
        };
        let section = Section::from_pairs("container-reconciler", &[]);
        let config = ContainerReconcilerConfig::read(&section).unwrap();
        let stats = ContainerReconciler::new(config, parts).pass().await;
        let mut asked = asked.lock().clone();
        asked.dedup();
        (stats, asked)
    }
}

const POP: &str = "pop 1699999200/0%3A/AUTH_a/c/o 1699999990.00000_0000000000000002";
const CLEAN: &str = "DELETE /v1/AUTH_a/c/o 0 1699999990.00000_0000000000000001";

#[tokio::test]
async fn an_object_is_copied_and_its_entry_taken_off() {
    let (stats, asked) = put_entry().pass().await;
    let copy = "PUT /v1/AUTH_a/c/o 1 1699999990.00000_0000000000000003 blue";
    assert_eq!(asked, [copy, CLEAN, POP]);
    assert_eq!((stats["success"], stats["copy_success"]), (1, 1));
}

#[tokio::test]
async fn a_deletion_is_repeated_where_it_belongs() {
    let cluster = Cluster {
        entry: entry(DELETE_TYPE),
        objects: [GONE, (StatusCode::OK, "1699999980.00000")],
        ..put_entry()
    };
    let (_, asked) = cluster.pass().await;
    let delete = "DELETE /v1/AUTH_a/c/o 1 1699999990.00000_0000000000000003";
    assert_eq!(asked, [delete, CLEAN, POP]);
}

#[tokio::test]
async fn a_newer_object_stays() {
    for there in [StatusCode::OK, StatusCode::NOT_FOUND] {
        let cluster = Cluster {
            objects: [GONE, (there, "1699999991.00000")],
            ..put_entry()
        };
        assert_eq!(cluster.pass().await.1, [CLEAN, POP]);
    }
}

#[tokio::test]
async fn what_cannot_be_moved_stays_queued() {
    let stale = (StatusCode::OK, "1699999989.00000");
    for (source, upload, outcome) in [
        (GONE, StatusCode::CREATED, "unavailable_source"),
        (stale, StatusCode::CREATED, "unavailable_source"),
        (put_entry().objects[0], StatusCode::NOT_FOUND, "copy_failed"),
    ] {
        let cluster = Cluster {
            objects: [source, GONE],
            upload,
            ..put_entry()
        };
        let (stats, asked) = cluster.pass().await;
        assert_eq!((stats[outcome], stats["retry"]), (1, 1));
        assert!(!asked.iter().any(|line| line.starts_with("pop")));
    }
}

#[tokio::test]
async fn the_right_policy_needs_nothing() {
    let cluster = Cluster {
        claims: [(0, 4), (1, 5), (1, 5)],
        ..put_entry()
    };
    let (stats, asked) = cluster.pass().await;
    assert_eq!((asked, stats["noop_object"]), (vec![POP.to_owned()], 1));
}
