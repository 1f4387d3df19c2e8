//! The container server in this process, on a temporary device.
#![allow(clippy::unwrap_used)]

mod changes;

use std::net::SocketAddr;

use cairn_http::Body;

use super::*;
use cairn_http::handler_fn;
use cairn_index::IndexConfig;
use cairn_types::{PolicyIndex, PolicyKind, StoragePolicy};
use http::StatusCode;
use std::sync::Mutex;
use tempfile::TempDir;

struct Node {
    dir: TempDir,
    server: Arc<ContainerServer>,
    backends: Arc<Backends>,
    pool: Arc<IndexPool>,
}

fn policy(index: u32, name: &str) -> StoragePolicy {
    StoragePolicy {
        index: PolicyIndex(index),
        name: name.into(),
        aliases: vec![],
        is_default: index == 0,
        deprecated: false,
        kind: PolicyKind::Replication,
    }
}

fn server(
    pool: &Arc<IndexPool>,
    backends: &Arc<Backends>,
    reserve: Option<Reserve>,
) -> Arc<ContainerServer> {
    let policies = PolicySet::new(vec![policy(0, "gold"), policy(1, "silver")]).unwrap();
    let mut config = ContainerServerConfig::new(HashPath::new("", "endcap"), Arc::new(policies));
    config.mount_check = false;
    config.fallocate_reserve = reserve;
    ContainerServer::new(config, pool.clone(), backends.clone())
}

fn node() -> Node {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("sda")).unwrap();
    let pool = IndexPool::new(IndexConfig::new(dir.path()));
    let backends = Backends::new(Duration::from_millis(100));
    let server = server(&pool, &backends, None);
    Node {
        dir,
        server,
        backends,
        pool,
    }
}

struct Got {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl Got {
    fn header(&self, name: &str) -> &str {
        text(&self.headers, name).unwrap_or("")
    }
}

impl Node {
    async fn call(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Got {
        self.send(method, path, headers, Body::empty()).await
    }

    async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Body) -> Got {
        let mut request = http::Request::builder()
            .method(method)
            .uri(format!("/sda/p/{path}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.server.call(request.body(body).unwrap()).await;
        let (parts, body) = response.into_parts();
        let body = body.collect(1 << 24).await.unwrap();
        Got {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: String::from_utf8(body.to_vec()).unwrap(),
        }
    }

    async fn put_object(&self, path: &str, time: &str, size: u64) -> u16 {
        let size = size.to_string();
        let headers = [
            ("x-timestamp", time),
            ("x-size", size.as_str()),
            ("x-content-type", "text/plain"),
            ("x-etag", "e"),
        ];
        self.call("PUT", path, &headers).await.status
    }
}

const T1: (&str, &str) = ("x-timestamp", "0000000001.00000");
const T2: (&str, &str) = ("x-timestamp", "0000000002.00000");
const T3: (&str, &str) = ("x-timestamp", "0000000003.00000");

#[tokio::test]
async fn below_the_reserve_rows_and_deletions_go_on() {
    let mut node = node();
    let put = [T1, ("x-backend-storage-policy-index", "0")];
    for path in ["a/c", "a/d"] {
        assert_eq!(node.call("PUT", path, &put).await.status, 201);
    }
    let reserve = Some(Reserve::Percent(100.1));
    node.server = server(&node.pool, &node.backends, reserve);
    let meta = [T2, ("x-container-meta-a", "b")];
    for (method, path, headers, status) in [
        ("PUT", "a/new", &put[..], 507),
        ("PUT", "a/c", &meta, 507),
        ("POST", "a/c", &meta, 507),
        ("HEAD", "a/c", &[], 204),
        ("GET", "a/c", &[], 204),
        ("DELETE", "a/d", &[T2], 204),
    ] {
        let got = node.call(method, path, headers).await;
        assert_eq!(got.status, status, "{method} {path}");
    }
    let size = "0000000002.00000";
    assert_eq!(node.put_object("a/c/o", size, 3).await, 201);
    let listed = node.call("GET", "a/c", &[]).await;
    assert_eq!((listed.status, &*listed.body), (200, "o\n"));
    let gone = node.call("DELETE", "a/c/o", &[T3]).await;
    assert_eq!(gone.status, 204);
    assert_eq!(node.call("DELETE", "a/c", &[T3]).await.status, 204);
}

#[tokio::test]
async fn a_life() {
    let node = node();
    let gone = node.call("HEAD", "a/c", &[]).await;
    assert_eq!(gone.status, 404);
    assert_eq!(gone.header("x-backend-timestamp"), "0000000000.00000");
    assert_eq!(node.call("POST", "a/c", &[T1]).await.status, 404);
    assert_eq!(node.call("DELETE", "a/c", &[T1]).await.status, 404);

    let meta = [
        T1,
        ("x-container-meta-color", "ré"),
        ("x-container-read", ".r:*"),
    ];
    let put = node.call("PUT", "a/c", &meta).await;
    assert_eq!(put.status, 201);
    assert_eq!(put.header("x-backend-storage-policy-index"), "0");
    assert_eq!(node.call("PUT", "a/c", &[T2]).await.status, 202);

    let head = node.call("HEAD", "a/c", &[]).await;
    assert_eq!(head.status, 204);
    assert_eq!(head.header("x-container-meta-color"), "ré");
    assert_eq!(head.header("x-container-read"), ".r:*");
    assert_eq!(head.header("x-container-object-count"), "0");
    assert_eq!(head.header("x-put-timestamp"), "0000000002.00000");
    assert_eq!(
        head.header("last-modified"),
        "Thu, 01 Jan 1970 00:00:02 GMT"
    );
    assert_eq!(head.header("content-type"), "text/plain; charset=utf-8");

    let post = node
        .call("POST", "a/c", &[T3, ("x-container-meta-color", "")])
        .await;
    assert_eq!(post.status, 204);
    let head = node.call("HEAD", "a/c", &[]).await;
    assert_eq!(head.header("x-container-meta-color"), "");
    assert_eq!(head.header("x-backend-put-timestamp"), "0000000003.00000");

    assert_eq!(node.put_object("a/c/o", "0000000003.00000", 5).await, 201);
    let time = ("x-timestamp", "0000000004.00000");
    assert_eq!(node.call("DELETE", "a/c", &[time]).await.status, 409);
    assert_eq!(node.call("DELETE", "a/c/o", &[time]).await.status, 204);
    assert_eq!(node.call("DELETE", "a/c", &[T2]).await.status, 409);
    assert_eq!(node.call("DELETE", "a/c", &[time]).await.status, 204);
    assert_eq!(node.call("DELETE", "a/c", &[time]).await.status, 404);
    let gone = node.call("GET", "a/c", &[]).await;
    assert_eq!(gone.status, 404);
    assert_eq!(
        gone.header("x-backend-delete-timestamp"),
        "0000000004.00000"
    );
    assert_eq!(gone.header("x-container-object-count"), "");
    assert_eq!(node.call("POST", "a/c", &[time]).await.status, 404);
    // Before its deletion it can't be made, after it can.
    assert_eq!(node.call("PUT", "a/c", &[T3]).await.status, 409);
    let later = ("x-timestamp", "0000000005.00000");
    let again = node.call("PUT", "a/c", &[later]).await;
    assert_eq!(again.status, 201);
}

#[tokio::test]
async fn policies() {
    let node = node();
    let silver = ("x-backend-storage-policy-index", "1");
    let default = ("x-backend-storage-policy-default", "1");
    let put = node.call("PUT", "a/c", &[T1, default]).await;
    assert_eq!(put.header("x-backend-storage-policy-index"), "1");
    assert_eq!(node.call("PUT", "a/c", &[T2, silver]).await.status, 202);
    let gold = node
        .call("PUT", "a/c", &[T3, ("x-backend-storage-policy-index", "0")])
        .await;
    assert_eq!(gold.status, 409);
    assert_eq!(gold.header("x-backend-storage-policy-index"), "1");
    let unknown = node
        .call("PUT", "a/c", &[T3, ("x-backend-storage-policy-index", "7")])
        .await;
    assert_eq!(unknown.status, 400);
    // A deleted container may come back with another.
    assert_eq!(node.call("DELETE", "a/c", &[T2]).await.status, 409);
    assert_eq!(node.call("DELETE", "a/c", &[T3]).await.status, 204);
    let later = ("x-timestamp", "0000000009.00000");
    let put = node
        .call(
            "PUT",
            "a/c",
            &[later, ("x-backend-storage-policy-index", "0")],
        )
        .await;
    assert_eq!(
        (put.status, put.header("x-backend-storage-policy-index")),
        (201, "0")
    );
}

#[tokio::test]
async fn refused() {
    let node = node();
    assert_eq!(
        node.call("PUT", "a/c", &[]).await.body,
        "Missing X-Timestamp header"
    );
    assert_eq!(
        node.call("PUT", "a/c", &[("x-timestamp", "x")])
            .await
            .status,
        400
    );
    assert_eq!(node.call("POST", "a/c/o", &[T1]).await.status, 400);
    assert_eq!(node.call("PUT", "a/%ff", &[T1]).await.status, 412);
    assert_eq!(node.call("PUT", "a/c%00", &[T1]).await.status, 400);
    assert_eq!(node.call("COPY", "a/c", &[T1]).await.status, 405);
    assert_eq!(node.call("GET", "a/c?limit=10001", &[]).await.status, 412);
    assert_eq!(node.call("GET", "a/c?prefix=%ff", &[]).await.status, 400);
    assert_eq!(
        node.call("GET", "a/c", &[("accept", "image/png")])
            .await
            .status,
        406
    );
    assert_eq!(node.put_object("a/c/o", "0000000003.00000", 5).await, 404);
    node.call("PUT", "a/c", &[T1]).await;
    let long = "x".repeat(5000);
    let too_large = node
        .call("POST", "a/c", &[T2, ("x-container-meta-a", &long)])
        .await;
    assert_eq!(too_large.status, 400);
    let sync = ("x-container-sync-to", "http://example.com/v1/a/c");
    assert_eq!(node.call("PUT", "a/c", &[T2, sync]).await.status, 400);
    let size = [
        T2,
        ("x-size", "many"),
        ("x-content-type", "t"),
        ("x-etag", "e"),
    ];
    assert_eq!(node.call("PUT", "a/c/o", &size).await.status, 400);
    std::fs::remove_dir_all(node.dir.path().join("sda")).unwrap();
    for method in ["PUT", "POST", "DELETE", "HEAD", "GET"] {
        assert_eq!(
            node.call(method, "a/c", &[T3]).await.status,
            507,
            "{method}"
        );
    }
}

#[tokio::test]
async fn listings() {
    let node = node();
    node.call("PUT", "a/c", &[T1]).await;
    assert_eq!(node.call("GET", "a/c", &[]).await.status, 204);
    let json = node.call("GET", "a/c?format=json", &[]).await;
    assert_eq!((json.status, json.body.as_str()), (200, "[]"));
    let xml = node.call("GET", "a/c?format=xml", &[]).await;
    assert_eq!(
        xml.body,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<container name=\"c\" />"
    );
    node.put_object("a/c/b%C3%A9%26", "0000000002.00000", 5)
        .await;
    node.put_object("a/c/d/1", "0000000002.00000", 6).await;
    let headers = [
        T2,
        ("x-size", "1"),
        ("x-etag", "m"),
        ("x-content-type", "a/b; c=d;swift_bytes=99"),
    ];
    node.call("PUT", "a/c/z", &headers).await;
    let plain = node.call("GET", "a/c", &[]).await;
    assert_eq!(plain.body, "bé&\nd/1\nz\n");
    assert_eq!(plain.header("content-length"), "11");
    assert_eq!(plain.header("x-container-bytes-used"), "12");
    assert_eq!(plain.header("x-backend-record-type"), "object");
    let json = node.call("GET", "a/c?format=json&delimiter=/", &[]).await;
    assert_eq!(
        json.body,
        "[{\"bytes\": 5, \"hash\": \"e\", \"name\": \"b\\u00e9&\", \"content_type\": \
         \"text/plain\", \"last_modified\": \"1970-01-01T00:00:02.000000\"}, \
         {\"subdir\": \"d/\"}, \
         {\"bytes\": 99, \"hash\": \"m\", \"name\": \"z\", \"content_type\": \"a/b;c=d\", \
         \"last_modified\": \"1970-01-01T00:00:02.000000\"}]"
    );
    assert_eq!(
        json.header("content-type"),
        "application/json; charset=utf-8"
    );
    let xml = node
        .call(
            "GET",
            "a/c?delimiter=/&end_marker=e",
            &[("accept", "text/xml")],
        )
        .await;
    assert_eq!(
        xml.body,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<container name=\"c\"><object>\
         <name>bé&amp;</name><hash>e</hash><bytes>5</bytes><content_type>text/plain\
         </content_type><last_modified>1970-01-01T00:00:02.000000</last_modified></object>\
         <subdir name=\"d/\"><name>d/</name></subdir></container>"
    );
    let shards = [("x-backend-record-type", "shard")];
    let shards = node.call("GET", "a/c?format=json", &shards).await;
    assert_eq!((shards.status, shards.body.as_str()), (200, "[]"));
    assert_eq!(shards.header("x-backend-record-type"), "shard");
}

#[tokio::test]
async fn long_listings_come_in_pieces() {
    let node = node();
    node.call("PUT", "a/c", &[T1]).await;
    let rows: Vec<_> = (0..2500)
        .map(|i| {
            serde_json::json!({
                "name": format!("o{i:05}"), "created_at": "0000000002.00000", "size": 1,
                "content_type": "text/plain", "etag": "e", "deleted": 0,
                "storage_policy_index": 0, "ctype_timestamp": null, "meta_timestamp": null,
            })
        })
        .collect();
    let body = Body::full(serde_json::to_vec(&rows).unwrap());
    assert_eq!(node.send("UPDATE", "a/c", &[T2], body).await.status, 202);
    let json = node.call("GET", "a/c?format=json", &[]).await;
    let listed: Vec<serde_json::Value> = serde_json::from_str(&json.body).unwrap();
    assert_eq!(listed.len(), 2500);
    assert_eq!(listed[2499]["name"], "o02499");
    assert_eq!(json.header("content-length"), "");
    let page = node.call("GET", "a/c?limit=1500&marker=o00999", &[]).await;
    assert_eq!(page.body.lines().count(), 1500);
    assert_eq!(page.body.lines().next(), Some("o01000"));
    let xml = node.call("GET", "a/c?format=xml&reverse=true", &[]).await;
    assert_eq!(xml.body.matches("<object>").count(), 2500);
    assert!(xml.body.ends_with("</container>"));
}

#[tokio::test]
async fn hidden_containers_come_with_their_first_row() {
    let node = node();
    assert_eq!(node.put_object("a/c/o", "0000000003.00000", 5).await, 404);
    assert_eq!(
        node.put_object(".a/c/o", "0000000003.00000_1", 5).await,
        201
    );
    let head = node.call("HEAD", ".a/c", &[]).await;
    assert_eq!(head.header("x-container-object-count"), "1");
    assert_eq!(head.header("x-backend-put-timestamp"), "0000000003.00000");
    assert_eq!(
        node.put_object(".shards_a/c/o", "0000000003.00000", 5)
            .await,
        404
    );
    let deleted = node.call("DELETE", ".b/c/o", &[T1]).await;
    assert_eq!(deleted.status, 204);
    let auto = ("x-backend-auto-create", "true");
    assert_eq!(node.call("DELETE", "a/d/o", &[T1, auto]).await.status, 204);
    assert_eq!(node.call("HEAD", "a/d", &[]).await.status, 204);
}

#[tokio::test]
async fn the_account_is_told() {
    let node = node();
    let (known, unknown): (SocketAddr, SocketAddr) = (
        "127.0.0.1:1".parse().unwrap(),
        "127.0.0.1:2".parse().unwrap(),
    );
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = seen.clone();
    node.backends.register_local(
        known,
        handler_fn(move |request: Request| {
            let facts = (
                request.uri().path().to_owned(),
                text(request.headers(), "x-put-timestamp")
                    .unwrap_or("")
                    .to_owned(),
                text(request.headers(), "x-delete-timestamp")
                    .unwrap_or("")
                    .to_owned(),
            );
            told.lock().unwrap().push(facts);
            async { cairn_http::respond::standard(StatusCode::CREATED) }
        }),
    );
    node.backends.register_local(
        unknown,
        handler_fn(|_| async { cairn_http::respond::standard(StatusCode::NOT_FOUND) }),
    );
    let hosts = |hosts: &'static str, devices: &'static str| {
        [
            T1,
            ("x-account-host", hosts),
            ("x-account-device", devices),
            ("x-account-partition", "9"),
        ]
    };
    let put = node
        .call(
            "PUT",
            "a/c%20d",
            &hosts("127.0.0.1:1, 127.0.0.1:2", "sdx,sdy"),
        )
        .await;
    assert_eq!(put.status, 201);
    let put = node.call("PUT", "a/c", &hosts("127.0.0.1:2", "sdx")).await;
    assert_eq!(put.status, 404);
    let put = node
        .call("PUT", "a/c", &hosts("127.0.0.1:1,127.0.0.1:2", "sdx"))
        .await;
    assert_eq!(put.status, 400);
    let mut delete = hosts("127.0.0.1:1", "sdx");
    delete[0] = T2;
    assert_eq!(node.call("DELETE", "a/c%20d", &delete).await.status, 204);
    let path = "/sdx/9/a/c%20d".to_owned();
    let one = "0000000001.00000".to_owned();
    assert_eq!(
        *seen.lock().unwrap(),
        [
            (path.clone(), one.clone(), "0".to_owned()),
            (path, one, "0000000002.00000".to_owned())
        ]
    );
}

#[tokio::test]
async fn a_closed_index_is_unavailable() {
    let node = node();
    node.call("PUT", "a/c", &[T1]).await;
    node.pool.close_all();
    assert_eq!(node.call("HEAD", "a/c", &[]).await.status, 503);
}
