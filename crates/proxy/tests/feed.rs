//! The change feed over container servers that know it, do not know it, or do not respond.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cairn_formats::ini::Section;
use cairn_http::{
    Authorize, AuthorizeFuture, Body, Context, Granted, Request, Response, Service, ServiceFuture,
    respond,
};
use cairn_peer::Backends;
use cairn_proxy::Proxy;
use cairn_types::Constraints;
use http::StatusCode;
use tokio::sync::watch;

const REPLICAS: u16 = 3;
const SHARDS: &str = r#"[{"name": ".shards_AUTH_a/s1", "lower": "", "upper": "m"},
    {"name": ".shards_AUTH_a/s2", "lower": "m", "upper": ""}]"#;

/// State of the container's servers.
#[derive(Clone, Default)]
struct World {
    /// Devices that do not respond.
    dead: Vec<u16>,
    /// Devices whose servers are OpenStack Swift's.
    swift: Vec<u16>,
    is_missing: bool,
    is_sharded: bool,
    /// Names in the order of their ROWIDs, by container.
    rows: Vec<(&'static str, &'static str)>,
    read_acl: &'static str,
}

struct Fake {
    device: u16,
    world: watch::Sender<World>,
    /// Device and query of each request for changes.
    heard: Arc<Mutex<Vec<(u16, String)>>>,
}

impl Service for Fake {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        Box::pin(self.answer(request))
    }
}

impl Fake {
    async fn answer(&self, request: Request) -> Response {
        let path: Vec<&str> = request.uri().path().split('/').skip(3).collect();
        let container = match path[..] {
            [_] => return respond::empty(StatusCode::NO_CONTENT),
            [_, container] => container.to_owned(),
            _ => return respond::standard(StatusCode::NOT_FOUND),
        };
        let world = self.world.borrow().clone();
        if world.dead.contains(&self.device) {
            return respond::standard(StatusCode::SERVICE_UNAVAILABLE);
        }
        if world.is_missing {
            return respond::standard(StatusCode::NOT_FOUND);
        }
        let query = request.uri().query().unwrap_or_default().to_owned();
        let param = |name: &str| {
            let mut params = query.split('&').filter_map(|param| param.split_once('='));
            params.find(|(is, _)| *is == name).map(|(_, value)| value)
        };
        let json = |text: String| respond::typed(StatusCode::OK, "application/json", text);
        if respond::header(request.headers(), "x-backend-record-type") == Some("shard") {
            let mut response = json(SHARDS.to_owned());
            respond::set(response.headers_mut(), "x-backend-record-type", "shard");
            return response;
        }
        let Some(cursor) = param("changes").filter(|_| !world.swift.contains(&self.device)) else {
            return json("[]".to_owned());
        };
        self.heard
            .lock()
            .unwrap()
            .push((self.device, query.clone()));
        // The token stands for the replica.
        let token = format!("{:012x}", self.device);
        let known = cursor.split_once('.').filter(|(is, _)| *is == token);
        let known = known.map(|(_, row)| row.parse::<usize>().unwrap());
        let mine = |world: &World| {
            let rows = world.rows.iter().filter(|(at, _)| *at == container);
            rows.map(|(_, name)| *name).collect::<Vec<_>>()
        };
        if let (Some(row), Some(wait)) = (known, param("wait")) {
            let wait = Duration::from_secs_f64(wait.parse().unwrap());
            let mut world = self.world.subscribe();
            let news = world.wait_for(|world| mine(world).len() > row);
            let _ = tokio::time::timeout(wait, news).await;
        }
        let world = self.world.borrow().clone();
        let rows = mine(&world);
        let from = known.unwrap_or(rows.len());
        let row = |name: &&str| format!(r#"{{"name": "{name}", "hash": "e", "bytes": 1}}"#);
        let told: Vec<String> = rows[from..].iter().map(row).collect();
        let mut response = json(format!("[{}]", told.join(", ")));
        let headers = response.headers_mut();
        let cursor = format!("{token}.{}", rows.len());
        respond::set(headers, "x-backend-changes-cursor", cursor);
        respond::set(headers, "x-container-read", world.read_acl);
        respond::set(headers, "x-container-object-count", "7");
        if known.is_none() {
            respond::set(headers, "x-backend-changes-reset", "true");
        }
        let state = match world.is_sharded && container == "c" {
            true => "sharded",
            false => "unsharded",
        };
        respond::set(headers, "x-backend-sharding-state", state);
        response
    }
}

struct Cluster {
    proxy: Arc<Proxy>,
    world: watch::Sender<World>,
    heard: Arc<Mutex<Vec<(u16, String)>>>,
    _dir: tempfile::TempDir,
}

#[derive(Debug)]
struct Got {
    status: u16,
    cursor: String,
    is_reset: bool,
    names: Vec<String>,
    text: String,
}

impl Cluster {
    fn new(options: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        common::save_rings(dir.path(), &common::ring(REPLICAS, REPLICAS));
        let backends = Backends::new(Duration::from_millis(200));
        let (world, heard) = (watch::Sender::new(World::default()), Arc::default());
        for device in 0..REPLICAS {
            let address = common::address(device);
            let fake = Fake {
                device,
                world: world.clone(),
                heard: Arc::clone(&heard),
            };
            backends.register_local(address, Arc::new(fake));
        }
        let options: Vec<_> = [("node_timeout", "0.3")]
            .iter()
            .chain(options)
            .copied()
            .collect();
        let proxy = common::proxy(dir.path(), common::one_policy(), &options, backends);
        Cluster {
            proxy,
            world,
            heard,
            _dir: dir,
        }
    }

    fn change(&self, change: impl FnOnce(&mut World)) {
        self.world.send_modify(change);
    }

    async fn get(&self, query: &str) -> Got {
        self.get_as(query, Context::default()).await
    }

    async fn get_as(&self, query: &str, context: Context) -> Got {
        let request = http::Request::get(format!("/v1/AUTH_a/c{query}")).extension(context);
        let response = self.proxy.call(request.body(Body::empty()).unwrap()).await;
        let (parts, body) = response.into_parts();
        let text = body.collect(1 << 20).await.unwrap();
        let text = String::from_utf8_lossy(&text).into_owned();
        let header = |name: &str| respond::header(&parts.headers, name).unwrap_or_default();
        assert_eq!(header("x-container-object-count"), "");
        let rows: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap_or_default();
        let name = |row: &serde_json::Value| row["name"].as_str().unwrap().to_owned();
        Got {
            status: parts.status.as_u16(),
            cursor: header("x-container-changes-cursor").to_owned(),
            is_reset: header("x-container-changes-reset") == "true",
            names: rows.iter().map(name).collect(),
            text,
        }
    }

    async fn changes(&self, cursor: &str, wait: &str) -> Got {
        self.get(&format!("?changes={cursor}&wait={wait}")).await
    }

    /// Devices that were asked since the last time.
    fn asked(&self) -> Vec<u16> {
        let heard = std::mem::take(&mut *self.heard.lock().unwrap());
        heard.into_iter().map(|(device, _)| device).collect()
    }
}

/// The number of the device that a cursor is of.
fn device(got: &Got) -> u16 {
    got.cursor.split('.').nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn one_replica_is_followed_and_another_begins_anew() {
    let cluster = Cluster::new(&[]);
    let start = cluster.changes("", "50").await;
    assert!(start.is_reset && start.names.is_empty(), "{start:?}");
    let pinned = device(&start);
    cluster.asked();
    cluster.change(|world| world.rows.push(("c", "x")));
    let first = cluster.changes(&start.cursor, "50").await;
    assert_eq!((first.names, first.is_reset), (vec!["x".to_owned()], false));
    let (next, ()) = tokio::join!(cluster.changes(&first.cursor, "50"), async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        cluster.change(|world| world.rows.push(("c", "y")));
    });
    assert_eq!((next.names, next.is_reset), (vec!["y".to_owned()], false));
    assert_eq!(cluster.asked(), [pinned; 3]);
    cluster.change(|world| world.dead.push(pinned));
    let moved = cluster.changes(&next.cursor, "50").await;
    assert!(moved.is_reset && moved.names.is_empty(), "{moved:?}");
    assert_ne!(device(&moved), pinned);
    let still = cluster.changes(&moved.cursor, "0.01").await;
    assert!(!still.is_reset && still.cursor == moved.cursor, "{still:?}");
    cluster.change(|world| world.dead = vec![0, 1, 2]);
    assert_eq!(cluster.changes(&still.cursor, "50").await.status, 503);
}

#[tokio::test]
async fn servers_of_openstack_swift_are_not_mistaken() {
    let cluster = Cluster::new(&[]);
    cluster.change(|world| world.swift = vec![0, 2]);
    for _ in 0..5 {
        assert_eq!(device(&cluster.changes("", "0").await), 1);
    }
    cluster.change(|world| world.swift = vec![0, 1, 2]);
    let none = cluster.changes("", "50").await;
    assert_eq!(none.status, 501);
    assert!(none.text.contains("know no change feed"), "{}", none.text);
    // Turned off, the parameter means as little as there.
    let off = Cluster::new(&[("change_feed", "no")]);
    let listed = off.changes("", "50").await;
    assert_eq!((listed.status, &*listed.cursor), (200, ""));
    assert!(off.asked().is_empty(), "servers do not see it");
}

#[tokio::test]
async fn all_parts_of_a_sharded_container_are_followed() {
    let cluster = Cluster::new(&[]);
    let before = cluster.changes("", "0").await;
    cluster.change(|world| world.is_sharded = true);
    let start = cluster.changes(&before.cursor, "50").await;
    assert!(start.is_reset, "other parts than before");
    assert_eq!(start.cursor.split('~').count(), 3);
    cluster.change(|world| world.rows.extend([("s1", "a"), ("s2", "z"), ("c", "late")]));
    let got = cluster.changes(&start.cursor, "50").await;
    assert_eq!(got.names, ["late", "a", "z"]);
    let (got, ()) = tokio::join!(cluster.changes(&got.cursor, "50"), async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        cluster.change(|world| world.rows.push(("s2", "zz")));
    });
    assert_eq!((got.names, got.is_reset), (vec!["zz".to_owned()], false));
    let end = cluster.changes(&got.cursor, "0").await;
    assert!(end.names.is_empty() && end.cursor == got.cursor);
    cluster.change(|world| world.is_sharded = false);
    assert!(cluster.changes(&end.cursor, "50").await.is_reset);
}

#[tokio::test]
async fn waits_are_bounded_and_left_by_those_who_leave() {
    let cluster = Cluster::new(&[("change_feed_waiters", "1"), ("change_feed_max_wait", "20")]);
    let start = cluster.changes("", "0").await;
    let first = cluster.changes(&start.cursor, "20");
    let mut first = Box::pin(first);
    let begun = tokio::time::timeout(Duration::from_millis(50), &mut first).await;
    assert!(begun.is_err(), "it waits");
    let second = cluster.changes(&start.cursor, "20").await;
    assert_eq!(second.status, 503, "{}", second.text);
    assert_eq!(cluster.changes(&start.cursor, "0").await.status, 200);
    drop(first);
    assert_eq!(cluster.changes(&start.cursor, "0.01").await.status, 200);
    for (query, text) in [
        (
            "?changes=&wait=20.5",
            "wait=\"20.5\": expected seconds, 0 to 20",
        ),
        (
            "?changes=nonsense",
            "changes=\"nonsense\": expected nothing, or",
        ),
        ("?changes=&marker=a", "marker: the change feed has no such"),
    ] {
        let refused = cluster.get(query).await;
        assert_eq!(refused.status, 400, "{query}");
        assert!(refused.text.starts_with(text), "{}", refused.text);
    }
    cluster.change(|world| world.is_missing = true);
    assert_eq!(cluster.changes(&start.cursor, "20").await.status, 404);
}

/// Lets in who is in the ACL, which is one user.
struct InAcl;

impl Authorize for InAcl {
    fn authorize<'a>(
        &'a self,
        _: &'a http::request::Parts,
        acl: Option<&'a str>,
    ) -> AuthorizeFuture<'a> {
        let answer = match acl {
            Some("me") => Ok(Granted { owner: false }),
            _ => Err(respond::standard(StatusCode::FORBIDDEN)),
        };
        Box::pin(std::future::ready(answer))
    }
}

#[tokio::test]
async fn who_may_not_list_is_told_nothing_also_after_a_wait() {
    let cluster = Cluster::new(&[]);
    let me = || Context {
        authorizer: Some(Arc::new(InAcl)),
        ..Context::default()
    };
    assert_eq!(cluster.get_as("?changes=", me()).await.status, 403);
    cluster.change(|world| world.is_missing = true);
    assert_eq!(cluster.get_as("?changes=", me()).await.status, 403);
    cluster.change(|world| {
        world.is_missing = false;
        world.read_acl = "me";
    });
    let start = cluster.get_as("?changes=", me()).await;
    assert_eq!(start.status, 200);
    let query = format!("?changes={}&wait=50", start.cursor);
    let (got, ()) = tokio::join!(cluster.get_as(&query, me()), async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        cluster.change(|world| {
            world.read_acl = "";
            world.rows.push(("c", "secret"));
        });
    });
    assert_eq!(got.status, 403);
    assert!(
        got.names.is_empty() && !got.text.contains("secret"),
        "{got:?}"
    );
    assert_eq!(got.cursor, "");
}

#[test]
fn options_have_bounds() {
    for bad in ["0", "61", "1.5", "long"] {
        let section = Section::from_pairs("app:proxy-server", &[("change_feed_max_wait", bad)]);
        let read = cairn_proxy::ProxyOptions::read(&section, &Constraints::default());
        let error = read.map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("change_feed_max_wait"), "{error}");
    }
}
