//! The change feed of a container: `GET /v1/a/c?changes=CURSOR&wait=SECONDS`.
//!
//! One replica of the container is asked for its rows beyond the cursor, always the same one: the others
//! count their rows otherwise. A container in shards is asked in all its parts, the container itself and
//! each shard. Where another replica must be asked, or the parts are others than before, the answer is a
//! cursor at the present end and says so (`X-Container-Changes-Reset`).
//!
//! First all parts are asked what they have; only if that is nothing they are asked to wait, all at once,
//! and the first that has something ends the wait. Who may read the container is looked at before the
//! wait and after it. `docs/change-feed.md`

mod cursor;

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use cairn_formats::shard::{Bounded, Namespace};
use cairn_http::ending::Ending;
use cairn_http::params::Params;
use cairn_http::{Body, Request, Response, respond};
use cairn_peer::{Node, backend_uri};
use futures_util::StreamExt;
use futures_util::stream::{self, FuturesUnordered};
use http::{HeaderMap, Method};
use serde_json::json;
use tokio::time::Instant;

use crate::headers;
use crate::request::{Incoming, Target};
use crate::shards::{RECORD_TYPE, SHARD_FORMAT, namespaces_of};
use crate::state::Proxy;
use crate::status;
use cursor::{Asked, PARTS_MAX, Place, digest};

const BACKEND_CURSOR: &str = "x-backend-changes-cursor";
const BACKEND_RESET: &str = "x-backend-changes-reset";
/// Header of the next cursor, by which a client recognises an answer of the feed.
const CURSOR: &str = "x-container-changes-cursor";
const RESET: &str = "x-container-changes-reset";

/// Maximum bytes of one part's rows.
const ROWS_BYTES_MAX: u64 = 32 << 20;
/// Number of parts that are asked at once what they have.
const ASKED_AT_ONCE: usize = 16;

/// One part of a container: itself, or a shard.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    account: String,
    container: String,
}

/// The answer of a part.
struct News {
    part: Part,
    place: Place,
    is_reset: bool,
    /// A JSON list of rows.
    rows: Bytes,
    headers: HeaderMap,
}

impl News {
    fn has_rows(&self) -> bool {
        self.rows.len() > 2
    }

    fn is_in_shards(&self) -> bool {
        let state = respond::header(&self.headers, "x-backend-sharding-state");
        matches!(state, Some("sharding" | "sharded"))
    }
}

/// Reasons why a part told nothing.
enum Silence {
    /// With the headers of a 404.
    NotFound(HeaderMap),
    /// Only servers answered that do not know the feed.
    Unknown,
    Unavailable,
}

impl Silence {
    fn refusal(&self) -> Response {
        match self {
            Silence::NotFound(_) => status::no_such_container(),
            Silence::Unknown => status::unsupported(
                "The servers of this container know no change feed (OpenStack Swift's do not); list \
                 it instead",
            ),
            Silence::Unavailable => status::try_again(
                "The change feed is not available now, or as many requests wait as may; try again \
                 later",
            ),
        }
    }
}

/// The state of a request for changes.
struct Feed {
    /// The container itself comes first.
    parts: Vec<News>,
    is_reset: bool,
}

impl Feed {
    fn has_news(&self) -> bool {
        self.is_reset || self.parts.iter().any(News::has_rows)
    }

    /// The headers of the container's own answer.
    fn headers(&self) -> HeaderMap {
        let first = self.parts.first();
        first.map_or_else(HeaderMap::new, |news| headers::from_backend(&news.headers))
    }

    fn response(&self) -> Response {
        let mut json = vec![b'['];
        let rows = self.parts.iter().filter(|news| news.has_rows());
        for news in rows.filter(|_| !self.is_reset) {
            if json.len() > 1 {
                json.extend_from_slice(b", ");
            }
            json.extend_from_slice(&news.rows[1..news.rows.len() - 1]);
        }
        json.push(b']');
        let mut response = status::known("application/json; charset=utf-8", json);
        let head = response.headers_mut();
        for (name, value) in &self.headers() {
            let is_own = matches!(name.as_str(), BACKEND_CURSOR | BACKEND_RESET)
                || matches!(
                    name.as_str(),
                    "x-container-object-count" | "x-container-bytes-used"
                );
            if !is_own {
                head.append(name, value.clone());
            }
        }
        let places = self.parts.iter().map(|news| &news.place);
        respond::set(head, CURSOR, cursor::text(places));
        respond::set(head, "cache-control", "no-store");
        if self.is_reset {
            respond::set(head, RESET, "true");
        }
        response
    }
}

impl Proxy {
    /// Whether a request asks for changes, and gets them.
    pub(crate) fn asks_for_changes(&self, incoming: &Incoming) -> bool {
        self.options.change_feed
            && incoming.method() == Method::GET
            && incoming.params.contains("changes")
    }

    /// Its entry in `/info`.
    pub(crate) fn change_feed_info(&self) -> serde_json::Value {
        json!({
            "max_wait": self.options.change_feed_max_wait.as_secs(),
            "limit": self.constraints.container_listing_limit,
            "max_shards": PARTS_MAX - 1,
        })
    }

    pub(crate) async fn container_changes(
        &self,
        incoming: &mut Incoming,
        account: &str,
        container: &str,
    ) -> Response {
        let most = self.constraints.container_listing_limit;
        let wait_max = self.options.change_feed_max_wait;
        let asked = match Asked::of(&incoming.params, wait_max, most) {
            Ok(asked) => asked,
            Err(reason) => return status::malformed(reason),
        };
        let deadline = Instant::now() + asked.wait;
        let root = Part {
            account: account.to_owned(),
            container: container.to_owned(),
        };
        let found = self.feed_of(incoming, &asked, root).await;
        let may = match &found {
            Ok(feed) => self.may_follow(incoming, 200, &feed.headers()).await,
            Err(Silence::NotFound(headers)) => self.may_follow(incoming, 404, headers).await,
            Err(_) => self.may_follow(incoming, 503, &HeaderMap::new()).await,
        };
        if let Err(denied) = may {
            return denied;
        }
        let mut feed = match found {
            Ok(feed) => feed,
            Err(silence) => return silence.refusal(),
        };
        if !feed.has_news() && Instant::now() < deadline {
            if let Err(silence) = self
                .wait_for_news(incoming, &asked, &mut feed, deadline)
                .await
            {
                return silence.refusal();
            }
            // Whoever may read it has perhaps been changed meanwhile.
            let info = self
                .container_info(&incoming.context, account, container)
                .await;
            let acl = info.read_acl.clone();
            if let Err(denied) = self.authorize(incoming, acl.as_deref()).await {
                return denied;
            }
        }
        let mut response = feed.response();
        if !incoming.context.owner {
            let owner_headers = &self.options.swift_owner_headers;
            headers::strip_owner_headers(response.headers_mut(), owner_headers);
        }
        response
    }

    /// Notes what a server said of the container, and asks the authorizer whether it may be read.
    async fn may_follow(
        &self,
        incoming: &mut Incoming,
        status: u16,
        headers: &HeaderMap,
    ) -> Result<(), Response> {
        let account = incoming.target.account().to_owned();
        let container = incoming.target.container().unwrap_or_default().to_owned();
        let info = self.remember_container(&account, &container, status, headers);
        self.authorize(incoming, info.read_acl.as_deref()).await
    }

    /// Asks all parts what they have beyond the cursor.
    async fn feed_of(
        &self,
        incoming: &Incoming,
        asked: &Asked,
        root: Part,
    ) -> Result<Feed, Silence> {
        let mut known: BTreeSet<Part> = [root.clone()].into();
        let (mut next, mut parts) = (vec![root.clone()], Vec::new());
        while !next.is_empty() {
            let limit = asked.limit.div_ceil(next.len() + parts.len());
            let ask = |part: Part| self.ask_part(incoming, asked, part, limit);
            let answers = stream::iter(std::mem::take(&mut next)).map(ask);
            let answers: Vec<_> = answers.buffered(ASKED_AT_ONCE).collect().await;
            for answer in answers {
                let news = match answer {
                    Ok(news) => news,
                    // A shard that has gone: its range is in another, which is a change of the parts.
                    Err(Silence::NotFound(_)) if !parts.is_empty() => continue,
                    Err(silence) => return Err(silence),
                };
                if news.is_in_shards() {
                    let ranges = self.ranges_of(incoming, &news.part).await?;
                    next.extend(ranges.into_iter().filter(|part| known.insert(part.clone())));
                }
                parts.push(news);
            }
            if parts.len() + next.len() > PARTS_MAX {
                return Err(Silence::Unknown);
            }
        }
        let is_same = parts.len() == asked.places.len()
            && parts
                .iter()
                .all(|news| asked.place(&news.place.container).is_some());
        let is_reset = !is_same || parts.iter().any(|news| news.is_reset);
        Ok(Feed { parts, is_reset })
    }

    /// The shards of a part, also those that get rows and are not listed yet.
    async fn ranges_of(&self, incoming: &Incoming, part: &Part) -> Result<Vec<Part>, Silence> {
        let mut params = Params::default();
        params.set("format", "json");
        params.set("states", "listing,updating");
        let target = Target::Container {
            account: part.account.clone(),
            container: part.container.clone(),
        };
        let mut asked = self.subrequest(incoming, target, params);
        asked.parts.headers = HeaderMap::new();
        headers::insert(&mut asked.parts.headers, RECORD_TYPE, "shard");
        headers::insert(&mut asked.parts.headers, SHARD_FORMAT, "namespace");
        let response = self
            .read_index(&asked, cairn_types::ServerKind::Container)
            .await;
        let is_shard = respond::header(response.headers(), RECORD_TYPE) == Some("shard");
        if !response.status().is_success() || !is_shard {
            return Err(Silence::Unavailable);
        }
        let (_, ranges) = self.records(response, &part.container, namespaces_of).await;
        let ranges: Vec<Namespace> = ranges.ok_or(Silence::Unavailable)?;
        let part = |range: &Namespace| {
            let (account, container) = range.place();
            Part {
                account: account.to_owned(),
                container: container.to_owned(),
            }
        };
        Ok(ranges.iter().map(part).collect())
    }

    /// Asks a part what it has: the replica that the cursor is of, or, if that does not answer, another.
    async fn ask_part(
        &self,
        incoming: &Incoming,
        asked: &Asked,
        part: Part,
        limit: usize,
    ) -> Result<News, Silence> {
        let name = digest(&part.account, &part.container);
        let place = asked.place(&name);
        let ring = incoming.network_of(self.rings.container());
        let partition = ring.partition(&self.hash_path, &part.account, Some(&part.container), None);
        let mut nodes = self.primaries(&ring, partition, None);
        nodes.sort_by_key(|node| place.is_none_or(|place| place.device != node.device.id));
        let mut silence = Silence::Unavailable;
        let (mut missing, count) = (0, nodes.len());
        for node in nodes {
            let at = place.filter(|place| place.device == node.device.id);
            let at = at.map_or("", |place| &place.at);
            let call = self.call_part(incoming, &part, &node, at, (Duration::ZERO, limit));
            match self.backends.unless_hung(node.address, call).await {
                Some(Ok(news)) => return Ok(news),
                Some(Err(Silence::NotFound(headers))) => {
                    missing += 1;
                    if 2 * missing > count {
                        return Err(Silence::NotFound(headers));
                    }
                }
                Some(Err(Silence::Unknown)) => silence = Silence::Unknown,
                Some(Err(Silence::Unavailable)) | None => {}
            }
        }
        Err(silence)
    }

    /// Asks one replica of a part.
    async fn call_part(
        &self,
        incoming: &Incoming,
        part: &Part,
        node: &Node,
        at: &str,
        (wait, limit): (Duration, usize),
    ) -> Result<News, Silence> {
        let mut params = Params::default();
        params.set("format", "json");
        params.set("changes", at);
        params.set("limit", limit.to_string());
        if !wait.is_zero() {
            params.set("wait", format!("{:.3}", wait.as_secs_f64()));
        }
        let ring = incoming.network_of(self.rings.container());
        let partition = ring.partition(&self.hash_path, &part.account, Some(&part.container), None);
        let path = format!("/{}/{}", part.account, part.container);
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = backend_uri(node, partition, &path, Some(&params.encode()));
        *request.headers_mut() = headers::with_all(incoming);
        let timeout = self.options.recoverable_node_timeout;
        let response = self
            .backends
            .call(node.address, request, wait + timeout)
            .await;
        let response = response.map_err(|error| {
            tracing::debug!(node = %node.name(), %error, "no changes");
            Silence::Unavailable
        })?;
        let (parts, body) = response.into_parts();
        if parts.status == http::StatusCode::NOT_FOUND {
            return Err(Silence::NotFound(parts.headers));
        }
        if !parts.status.is_success() {
            return Err(Silence::Unavailable);
        }
        // A server without the feed lists all that it has, which is not read.
        let at = respond::header(&parts.headers, BACKEND_CURSOR).ok_or(Silence::Unknown)?;
        let place = Place {
            container: digest(&part.account, &part.container),
            device: node.device.id,
            at: at.to_owned(),
        };
        let body = tokio::time::timeout(timeout, body.collect(ROWS_BYTES_MAX)).await;
        let rows = body.ok().and_then(Result::ok);
        let rows = rows.filter(|rows| rows.starts_with(b"[") && rows.ends_with(b"]"));
        Ok(News {
            part: part.clone(),
            place,
            is_reset: parts.headers.contains_key(BACKEND_RESET),
            rows: rows.ok_or(Silence::Unavailable)?,
            headers: parts.headers,
        })
    }

    /// Waits in all parts until one has something, or the deadline, or the end of this server.
    async fn wait_for_news(
        &self,
        incoming: &Incoming,
        asked: &Asked,
        feed: &mut Feed,
        deadline: Instant,
    ) -> Result<(), Silence> {
        let Ok(_waits) = self.feed_waits.try_acquire() else {
            return Err(Silence::Unavailable);
        };
        let ring = incoming.network_of(self.rings.container());
        let left = deadline.saturating_duration_since(Instant::now());
        let mut waiting = FuturesUnordered::new();
        for (number, news) in feed.parts.iter().enumerate() {
            let (part, place) = (news.part.clone(), news.place.clone());
            let partition =
                ring.partition(&self.hash_path, &part.account, Some(&part.container), None);
            let nodes = ring.primaries(partition);
            let node = nodes.into_iter().find(|n| n.device.id == place.device);
            let node = node.ok_or(Silence::Unavailable)?;
            waiting.push(async move {
                let bounds = (left, asked.limit);
                let call = self.call_part(incoming, &part, &node, &place.at, bounds);
                let answer = self.backends.unless_hung(node.address, call).await;
                (number, answer.unwrap_or(Err(Silence::Unavailable)))
            });
        }
        let (number, answer) = tokio::select! {
            answer = waiting.next() => match answer {
                Some(answer) => answer,
                None => return Ok(()),
            },
            () = Ending::begun(&incoming.parts.extensions) => return Ok(()),
        };
        drop(waiting);
        let news = match answer {
            // A shard that has gone: the next request finds other parts.
            Err(Silence::NotFound(_)) if number > 0 => return Ok(()),
            answer => answer?,
        };
        feed.is_reset |= news.is_reset;
        if let Some(before) = feed.parts.get_mut(number) {
            *before = news;
        }
        let info = feed.headers();
        let (account, container) = (
            incoming.target.account(),
            incoming.target.container().unwrap_or_default(),
        );
        match number {
            0 => _ = self.remember_container(account, container, 200, &info),
            // A shard knows nothing of the container's ACLs, which are asked for again.
            _ => self.containers.remove(&format!("{account}/{container}")),
        }
        Ok(())
    }
}
