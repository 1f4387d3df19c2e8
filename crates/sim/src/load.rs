//! Client load: concurrent writes and reads of a few objects through both proxies.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cairn_http::Body;
use cairn_types::Timestamp;
use futures_util::stream;
use http::Method;
use md5::{Digest, Md5};
use tokio::time::sleep;

use crate::client::{CONTAINER_MARK, MARK, ask, path};
use crate::cluster::Cluster;
use crate::manner::Manner;
use crate::model::{Change, Model, Name, Seen};
use crate::shared::PROXIES;

pub(crate) const CONTAINERS: [&str; 2] = ["c0", "c1"];
/// A transient container, created and deleted, without objects.
pub(crate) const TRANSIENT: &str = "d0";
/// Longer than clocks differ.
const PAUSE: Duration = Duration::from_secs(3);
const OBJECTS: u64 = 4;
/// Additional objects of each container, some of which expire.
const EXPIRING: u64 = 2;
/// Seconds within which objects expire, in ordinary runs and in expiring ones.
const SOON_SECS: u64 = 30;
const VERY_SOON_SECS: u64 = 8;
/// Concurrent clients that put one new object, or read and replace one that rots.
const CROWD_CLIENTS: u64 = 6;
/// Minimum size of half of all objects in runs with rot; the largest have twice as many bytes. Such
/// an object is read in several chunks, and so is a fragment of half its size.
const LARGE_BYTES: usize = 140_000;
const DAYS: u64 = 3 * 24 * 3600;

/// The state of an object by a GET; an error without a usable response, or for content that was
/// never sent.
pub(crate) async fn look(
    cluster: &Cluster,
    model: &Model,
    proxy: usize,
    name: &Name,
) -> Result<Option<Seen>, Trouble> {
    let path = path(&name.0, Some(&name.1));
    let answer = ask(cluster, proxy, Method::GET, &path, &[], Body::empty())
        .await
        .ok_or_else(|| Trouble::Unanswered("no answer".into()))?;
    match answer.status {
        404 => return Ok(None),
        200 => {}
        status => return Err(Trouble::Unanswered(format!("status {status}"))),
    }
    let body = answer
        .body
        .ok_or_else(|| Trouble::Unanswered("broken off".into()))?;
    let text = |name: &str| {
        let value = answer.headers.get(name).and_then(|v| v.to_str().ok());
        value.map(|v| v.trim_matches('"').to_owned())
    };
    let etag = hex(&body);
    if text("etag").as_deref() != Some(&*etag) || !model.knows(name, &etag) {
        let said = text("etag");
        return Err(Trouble::Wrong(format!(
            "{}/{}: read {} bytes with MD5 {etag} under ETag {said:?}, which nobody sent",
            name.0,
            name.1,
            body.len()
        )));
    }
    Ok(Some(Seen {
        etag,
        mark: text(MARK),
        delete_at: text("x-delete-at").and_then(|at| at.parse().ok()),
    }))
}

pub(crate) enum Trouble {
    Unanswered(String),
    Wrong(String),
}

fn hex(bytes: &[u8]) -> String {
    cairn_types::hex::encode(Md5::digest(bytes))
}

/// Runs operations, each started without waiting for the previous one's end.
pub(crate) async fn drive(cluster: &Arc<Cluster>, model: &Arc<Model>, count: u64) -> Vec<String> {
    let dice = &cluster.shared.load_dice;
    let mut under_way = tokio::task::JoinSet::new();
    let is_rotting = cluster.shared.manner.is_rotting;
    let crowds = cluster.shared.manner.is_crowded || is_rotting;
    let mut of_crowd: Option<Name> = None;
    for number in 0..count {
        let pause = match number % CROWD_CLIENTS {
            0 if crowds => dice.micros(1_500_000),
            _ if is_rotting => dice.micros(30_000),
            _ if crowds => dice.micros(3_000),
            _ => dice.micros(if dice.coin() { 1_500_000 } else { 30_000 }),
        };
        sleep(pause).await;
        let mut operation = Operation::draw(cluster, number);
        if is_rotting {
            if let Some(name) = of_crowd.take().filter(|_| number % CROWD_CLIENTS != 0) {
                (operation.name, operation.expires_in) = (name, None);
            }
            of_crowd = Some(operation.name.clone());
        }
        under_way.spawn(operation.run(cluster.clone(), model.clone()));
    }
    let mut wrong = Vec::new();
    while let Some(ended) = under_way.join_next().await {
        match ended {
            Ok(found) => wrong.extend(found),
            Err(error) => wrong.push(format!("an operation panicked: {error}")),
        }
    }
    wrong
}

struct Operation {
    number: u64,
    proxy: usize,
    name: Name,
    kind: u64,
    of_container: bool,
    size: usize,
    /// Seconds from the request to expiry.
    expires_in: Option<u64>,
}

impl Operation {
    fn draw(cluster: &Cluster, number: u64) -> Self {
        let dice = &cluster.shared.load_dice;
        let container = CONTAINERS[dice.index(CONTAINERS.len())].to_owned();
        let Manner {
            is_expiring,
            is_crowded,
            is_rotting,
            ..
        } = cluster.shared.manner;
        let may_expire = (dice.below(5) == 0) != is_expiring;
        let object = match may_expire {
            true => format!("x{}", dice.below(EXPIRING)),
            false if is_crowded => format!("b{}", number / CROWD_CLIENTS),
            false => format!("o{}", dice.below(OBJECTS)),
        };
        let expires_in = match may_expire {
            true if is_expiring => [None, Some(1 + dice.below(VERY_SOON_SECS))][dice.index(2)],
            true => [None, Some(2 + dice.below(SOON_SECS)), Some(DAYS)][dice.index(3)],
            false => None,
        };
        let size = match dice.below(10) {
            0..5 if is_rotting => LARGE_BYTES + dice.index(LARGE_BYTES),
            0 => 30_000 + dice.index(40_000),
            1 | 2 => 2_000 + dice.index(4_000),
            _ => 20 + dice.index(300),
        };
        Operation {
            number,
            proxy: dice.index(PROXIES),
            name: (container, object),
            kind: match dice.below(if is_crowded { 50 } else { 100 }) {
                // Most are PUTs and GETs.
                45..70 if is_rotting => 99,
                kind => kind,
            },
            of_container: dice.below(10) == 0,
            size,
            expires_in,
        }
    }

    /// Runs the operation; returns a violation, if any.
    async fn run(self, cluster: Arc<Cluster>, model: Arc<Model>) -> Option<String> {
        match self.kind {
            _ if self.of_container => self.make_or_delete(&cluster, &model).await,
            0..45 => self.put(&cluster, &model).await,
            45..65 => self.change(&cluster, &model, Change::Delete).await,
            65..75 => {
                let mark = format!("m{}", self.number);
                let delete_at = self.delete_at(&cluster);
                let change = Change::Post { mark, delete_at };
                self.change(&cluster, &model, change).await;
            }
            _ => {
                let seen = look(&cluster, &model, self.proxy, &self.name).await;
                cluster.shared.log(|| match &seen {
                    Ok(seen) => format!("op{} GET {:?} {seen:?}", self.number, self.name),
                    Err(Trouble::Unanswered(why)) => format!("op{} GET {why}", self.number),
                    Err(Trouble::Wrong(why)) => format!("op{} GET WRONG {why}", self.number),
                });
                if let Err(Trouble::Wrong(why)) = seen {
                    return Some(why);
                }
            }
        }
        None
    }

    fn time(&self, cluster: &Cluster) -> Timestamp {
        // Unique timestamps: the last digits are the operation's own.
        let now = cluster.proxy_clocks[self.proxy].now().ticks();
        Timestamp::from_ticks(now / 1000 * 1000 + self.number)
    }

    fn delete_at(&self, cluster: &Cluster) -> Option<u64> {
        let now = cluster.proxy_clocks[self.proxy].now().secs();
        self.expires_in.map(|seconds| now + seconds)
    }

    async fn put(&self, cluster: &Cluster, model: &Model) {
        let line = format!("{}/{} {} ", self.name.0, self.name.1, self.number);
        let text: Vec<u8> = line.bytes().cycle().take(self.size).collect();
        let body = Bytes::from(text);
        let etag = hex(&body);
        model.contents.lock().insert(etag.clone(), body.clone());
        let change = Change::Put {
            etag: etag.clone(),
            size: body.len(),
            delete_at: self.delete_at(cluster),
        };
        let mut headers = vec![("content-type", "text/plain".to_owned())];
        if self.number.is_multiple_of(2) {
            headers.push(("etag", etag));
        }
        let body = if self.size > 2_000 {
            let length = body.len() as u64;
            let chunks: Vec<_> = body.chunks(9_000).map(Bytes::copy_from_slice).collect();
            Body::from_stream(stream::iter(chunks.into_iter().map(Ok)), Some(length))
        } else {
            Body::full(body)
        };
        self.write(cluster, model, change, headers, body).await;
    }

    async fn change(&self, cluster: &Cluster, model: &Model, change: Change) {
        let mut headers = Vec::new();
        if let Change::Post { mark, .. } = &change {
            headers.push((MARK, mark.clone()));
        }
        self.write(cluster, model, change, headers, Body::empty())
            .await;
    }

    async fn make_or_delete(&self, cluster: &Cluster, model: &Model) {
        let _alone = model.one_by_one.lock().await;
        let name = (TRANSIENT.to_owned(), String::new());
        let at = cluster.proxy_clocks[0].now();
        let mark = format!("m{}", self.number);
        let (method, good, change) = match self.kind {
            0..60 => {
                let change = Change::Put {
                    etag: mark.clone(),
                    size: 0,
                    delete_at: None,
                };
                (Method::PUT, [201, 202], change)
            }
            _ => (Method::DELETE, [204; 2], Change::Delete),
        };
        let headers = match method {
            Method::PUT => vec![(CONTAINER_MARK, mark)],
            _ => Vec::new(),
        };
        let number = self.number;
        cluster
            .shared
            .log(|| format!("op{number} {method} {}: {change:?}", name.0));
        model.container.begin(&name, at, change);
        let path = path(&name.0, None);
        let answer = ask(cluster, self.proxy, method, &path, &headers, Body::empty()).await;
        let status = answer.map(|answer| answer.status);
        cluster
            .shared
            .log(|| format!("op{number} answered {status:?}"));
        if status.is_some_and(|status| good.contains(&status)) {
            model
                .container
                .acknowledge(&name, at, cluster.proxy_clocks[0].now());
        }
        sleep(PAUSE).await;
    }

    async fn write(
        &self,
        cluster: &Cluster,
        model: &Model,
        change: Change,
        mut headers: Vec<(&'static str, String)>,
        body: Body,
    ) {
        let at = self.time(cluster);
        headers.push(("x-timestamp", at.normal()));
        if let Some(end) = change.delete_at() {
            headers.push(("x-delete-at", end.to_string()));
        }
        let (method, good) = match change {
            Change::Put { .. } => (Method::PUT, 201),
            Change::Post { .. } => (Method::POST, 202),
            Change::Delete => (Method::DELETE, 204),
        };
        let (number, name) = (self.number, &self.name);
        cluster.shared.log(|| {
            format!(
                "op{number} {method} {name:?} at {}: {change:?}",
                at.normal()
            )
        });
        model.objects.begin(name, at, change);
        let path = path(&name.0, Some(&name.1));
        let answer = ask(cluster, self.proxy, method, &path, &headers, body).await;
        let status = answer.map(|answer| answer.status);
        cluster
            .shared
            .log(|| format!("op{number} answered {status:?}"));
        if status == Some(good) {
            let now = cluster.proxy_clocks[0].now();
            model.objects.acknowledge(name, at, now);
        }
    }
}
