//! The account server in this process, on a temporary device.
#![allow(clippy::unwrap_used)]

use cairn_http::Body;

use super::*;
use crate::index_server::text;
use cairn_index::IndexConfig;
use tempfile::TempDir;

struct Node {
    _dir: TempDir,
    server: Arc<AccountServer>,
    pool: Arc<IndexPool>,
}

fn server(pool: &Arc<IndexPool>, reserve: Option<Reserve>) -> Arc<AccountServer> {
    let policies = Arc::new(PolicySet::single());
    let mut config = AccountServerConfig::new(HashPath::new("", "endcap"), policies);
    config.mount_check = false;
    config.fallocate_reserve = reserve;
    AccountServer::new(config, pool.clone())
}

fn node() -> Node {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("sda")).unwrap();
    let pool = IndexPool::new(IndexConfig::new(dir.path()));
    let server = server(&pool, None);
    Node {
        _dir: dir,
        server,
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
        let mut request = http::Request::builder()
            .method(method)
            .uri(format!("/sda/p/{path}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.server.call(request.body(Body::empty()).unwrap()).await;
        let (parts, body) = response.into_parts();
        let body = body.collect(1 << 24).await.unwrap();
        Got {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: String::from_utf8(body.to_vec()).unwrap(),
        }
    }

    async fn put_container(&self, path: &str, put: &str, delete: &str, count: &str) -> u16 {
        let headers = [
            ("x-put-timestamp", put),
            ("x-delete-timestamp", delete),
            ("x-object-count", count),
            ("x-bytes-used", count),
        ];
        self.call("PUT", path, &headers).await.status
    }
}

const T1: (&str, &str) = ("x-timestamp", "0000000001.00000");
const T2: (&str, &str) = ("x-timestamp", "0000000002.00000");
const ONE: &str = "0000000001.00000";
const TWO: &str = "0000000002.00000";

#[tokio::test]
async fn below_the_reserve_rows_and_deletions_go_on() {
    let mut node = node();
    let time = ("x-timestamp", "0000000001.00000");
    let later = ("x-timestamp", "0000000004.00000");
    for path in ["a", "b"] {
        assert_eq!(node.call("PUT", path, &[time]).await.status, 201);
    }
    node.server = server(&node.pool, Some(Reserve::Percent(100.1)));
    let meta = [later, ("x-account-meta-a", "b")];
    for (method, path, headers, status) in [
        ("PUT", "new", &[time][..], 507),
        ("PUT", "a", &meta, 507),
        ("POST", "a", &meta, 507),
        ("HEAD", "a", &[], 204),
        ("GET", "a", &[], 204),
        ("DELETE", "b", &[later], 204),
    ] {
        let got = node.call(method, path, headers).await;
        assert_eq!(got.status, status, "{method} {path}");
    }
    // Reports of containers are not asked for again, should they be refused.
    let (put, none) = ("0000000002.00000", "0000000000.00000");
    assert_eq!(node.put_container("a/c", put, none, "3").await, 201);
    let listed = node.call("GET", "a", &[]).await;
    assert_eq!((listed.status, &*listed.body), (200, "c\n"));
}

#[tokio::test]
async fn a_life() {
    let node = node();
    assert_eq!(node.call("HEAD", "a", &[]).await.status, 404);
    assert_eq!(node.call("POST", "a", &[T1]).await.status, 404);
    assert_eq!(node.put_container("a/c", ONE, "0", "1").await, 404);
    assert_eq!(
        node.call("PUT", "a", &[T1, ("x-account-meta-a", "b")])
            .await
            .status,
        201
    );
    assert_eq!(node.call("PUT", "a", &[T2]).await.status, 202);
    assert_eq!(
        node.call("POST", "a", &[T2, ("x-account-sysmeta-s", "t")])
            .await
            .status,
        204
    );
    assert_eq!(node.put_container("a/c", ONE, "0", "3").await, 201);
    assert_eq!(node.put_container("a/d", ONE, "0", "4").await, 201);
    assert_eq!(node.put_container("a/d", ONE, TWO, "0").await, 204);
    let head = node.call("HEAD", "a", &[]).await;
    assert_eq!(head.status, 204);
    for (name, value) in [
        ("x-account-container-count", "1"),
        ("x-account-object-count", "3"),
        ("x-account-bytes-used", "3"),
        ("x-account-storage-policy-policy-0-container-count", "1"),
        ("x-account-meta-a", "b"),
        ("x-account-sysmeta-s", "t"),
        ("x-put-timestamp", TWO),
    ] {
        assert_eq!(head.header(name), value, "{name}");
    }
    let deleted = node
        .call("DELETE", "a", &[("x-timestamp", "0000000009.00000")])
        .await;
    assert_eq!(deleted.status, 204);
    assert_eq!(deleted.header("x-account-status"), "Deleted");
    let gone = node.call("GET", "a", &[]).await;
    assert_eq!(
        (gone.status, gone.header("x-account-status")),
        (404, "Deleted")
    );
    let put = node
        .call("PUT", "a", &[("x-timestamp", "0000000010.00000")])
        .await;
    assert_eq!((put.status, put.body.as_str()), (403, "Recently deleted"));
    assert_eq!(node.put_container("a/c", ONE, "0", "1").await, 404);
    let even_deleted = [
        ("x-put-timestamp", ONE),
        ("x-delete-timestamp", TWO),
        ("x-object-count", "0"),
        ("x-bytes-used", "0"),
        ("x-account-override-deleted", "yes"),
    ];
    assert_eq!(node.call("PUT", "a/c", &even_deleted).await.status, 204);
}

#[tokio::test]
async fn listings() {
    let node = node();
    node.call("PUT", "a", &[T1]).await;
    assert_eq!(node.call("GET", "a", &[]).await.status, 204);
    let xml = node.call("GET", "a?format=xml", &[]).await;
    assert_eq!(
        xml.body,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<account name=\"a\">\n</account>"
    );
    node.put_container("a/b-1", ONE, "0", "3").await;
    node.put_container("a/c", ONE, "0", "4").await;
    assert_eq!(node.call("GET", "a", &[]).await.body, "b-1\nc\n");
    let json = node.call("GET", "a?delimiter=-&format=json", &[]).await;
    assert_eq!(
        json.body,
        "[{\"subdir\": \"b-\"}, {\"name\": \"c\", \"count\": 4, \"bytes\": 4, \
         \"last_modified\": \"1970-01-01T00:00:01.000000\", \"storage_policy\": \"Policy-0\"}]"
    );
    let xml = node.call("GET", "a?delimiter=-&format=xml", &[]).await;
    assert_eq!(
        xml.body,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<account name=\"a\">\n<subdir name=\"b-\" />\n\
         <container><name>c</name><count>4</count><bytes>4</bytes><last_modified>\
         1970-01-01T00:00:01.000000</last_modified><storage_policy>Policy-0</storage_policy>\
         </container>\n</account>"
    );
    assert_eq!(
        node.call("GET", "a?reverse=on&limit=1", &[]).await.body,
        "c\n"
    );
}

#[tokio::test]
async fn refused() {
    let node = node();
    assert_eq!(node.call("PUT", "a", &[]).await.status, 400);
    assert_eq!(node.call("GET", "a/c", &[]).await.status, 400);
    assert_eq!(node.call("PUT", "a/c/o", &[T1]).await.status, 400);
    assert_eq!(node.call("PUT", "%ff", &[T1]).await.status, 412);
    assert_eq!(node.call("GET", "a?limit=10001", &[]).await.status, 412);
    assert_eq!(node.call("COPY", "a", &[]).await.status, 405);
    node.call("PUT", "a", &[T1]).await;
    assert_eq!(node.call("PUT", "a/c", &[T1]).await.status, 400);
    assert_eq!(node.put_container("a/c", ONE, "0", "x").await, 400);
    assert_eq!(node.put_container(".auto/c", ONE, "0", "1").await, 201);
    let many: Vec<String> = (0..91).map(|i| format!("x-account-meta-{i}")).collect();
    let mut headers = vec![T2];
    headers.extend(many.iter().map(|name| (name.as_str(), "v")));
    let refused = node.call("POST", "a", &headers).await;
    assert_eq!(refused.body, "Too many metadata items; max 90");
}
