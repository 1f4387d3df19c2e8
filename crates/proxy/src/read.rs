//! Reads with failover: asks one replica after the other, and the next one beside a slow one
//! (`peer/hedge.rs`); uses the first good response or, with `X-Newest`, the newest of all.
//! `body.rs` streams an object's content, from several replicas if necessary.

mod body;
mod calls;
mod refusals;

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use cairn_http::{Body, Request, Response, own_thread, respond};
use cairn_peer::{Backends, CallError, LoadedRing, Node, Nodes, ObjectRead, backend_uri};
use cairn_types::{ObjectHash, PolicyIndex, ServerKind, Timestamp};
use futures_util::stream::{FuturesUnordered, StreamExt};
use http::header::{ACCEPT_RANGES, RANGE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::affinity::{Affinity, Sorting, Timings};
use crate::headers;
use crate::request::{Incoming, Target};
use crate::state::Proxy;

use body::{Wanted, bare_etag, passed_on};
use calls::Calls;
use refusals::{Refusals, refusal};

/// Maximum bytes passed on of a replica's error body.
const ERROR_BODY_MAX_BYTES: u64 = 64 * 1024;

/// Parameters of a read from one of several nodes.
struct Read<'i> {
    backends: Arc<Backends>,
    nodes: Arc<Nodes>,
    /// Nodes that `nodes` returned and that were not needed: they can continue if another breaks
    /// off.
    spare: Mutex<Vec<Node>>,
    kind: ServerKind,
    partition: u32,
    method: Method,
    path: Arc<str>,
    query: Option<String>,
    /// The headers of its requests, once one is sent: servers of this process are called without.
    headers: OnceLock<HeaderMap>,
    /// The client's request, until the response's body begins.
    incoming: Option<&'i Incoming>,
    /// The read as servers of this process may take it by a call.
    called: Option<ObjectRead<'i>>,
    timeout: Duration,
    /// Measured response times, if nodes are sorted by them.
    timings: Option<Arc<Timings>>,
}

/// One replica's good response.
struct Source {
    node: Node,
    response: Response,
    timestamp: Timestamp,
}

enum Tried {
    Good(Box<Source>),
    Refused {
        status: u16,
        headers: HeaderMap,
        body: Bytes,
        tombstone: Timestamp,
        is_primary: bool,
        /// The node has no trace of the requested entity.
        is_unheard_of: bool,
    },
    Nothing,
}

impl Proxy {
    /// GET or HEAD of an account or a container.
    pub(crate) async fn read_index(&self, incoming: &Incoming, kind: ServerKind) -> Response {
        let ring = incoming.network_of(match kind {
            ServerKind::Account => self.rings.account(),
            _ => self.rings.container(),
        });
        let target = &incoming.target;
        let partition = ring.partition(&self.hash_path, target.account(), target.container(), None);
        let query = incoming.params.encode();
        self.read(incoming, kind, ring, partition, Some(query), None)
            .await
    }

    /// GET or HEAD of any entity, with failover. `hash`: of an object, which servers of this process may read by a
    /// call.
    pub(crate) async fn read(
        &self,
        incoming: &Incoming,
        kind: ServerKind,
        ring: Arc<LoadedRing>,
        partition: u32,
        query: Option<String>,
        hash: Option<ObjectHash>,
    ) -> Response {
        let index = incoming.header(headers::POLICY_INDEX);
        let policy = index
            .filter(|_| kind == ServerKind::Object)
            .and_then(|text| text.parse().ok().map(PolicyIndex));
        let affinity = self.affinities.of(policy);
        let path: Arc<str> = incoming.target.entity_path().into();
        let called = match (hash, policy) {
            (Some(hash), Some(policy)) => self.to_call(incoming, &path, hash, policy, partition),
            _ => None,
        };
        let read = Read {
            backends: self.backends.clone(),
            nodes: self.nodes_of(ring.clone(), partition, policy),
            spare: Mutex::default(),
            timings: self.timings_of(affinity),
            kind,
            partition,
            method: incoming.method().clone(),
            path: path.clone(),
            query,
            headers: OnceLock::new(),
            incoming: Some(incoming),
            called,
            timeout: self.options.recoverable_node_timeout,
        };
        let primaries = ring.ring().replica_count().ceil() as usize;
        let mut refusals = Refusals::new(primaries, affinity.unheard_of);
        let source = if headers::wants_newest(incoming) {
            Box::pin(read.newest(&mut refusals)).await
        } else if affinity.concurrent_gets {
            let stagger = affinity.concurrency_timeout;
            Box::pin(read.staggered(&mut refusals, primaries, stagger)).await
        } else {
            read.first(&mut refusals).await
        };
        let mut response = match source {
            Some(source) => working_response(read, source),
            None => refusal(&refusals, &path),
        };
        self.name_policy(&mut response);
        response
    }

    /// A read as servers of this process may take it by a call; `None` of what is no object.
    fn to_call<'i>(
        &'i self,
        incoming: &'i Incoming,
        path: &Arc<str>,
        hash: ObjectHash,
        policy: PolicyIndex,
        partition: u32,
    ) -> Option<ObjectRead<'i>> {
        let Target::Object {
            account,
            container,
            object,
        } = &incoming.target
        else {
            return None;
        };
        Some(ObjectRead {
            hash_path: &self.hash_path,
            account,
            container,
            object,
            path: path.clone(),
            hash,
            policy,
            partition,
            is_head: incoming.method() == Method::HEAD,
            timestamp: incoming.timestamp,
            headers: incoming.headers(),
        })
    }

    /// The response times to update, if nodes are sorted by them.
    pub(crate) fn timings_of(&self, affinity: &Affinity) -> Option<Arc<Timings>> {
        (affinity.sorting == Sorting::Timing).then(|| self.timings.clone())
    }

    /// Nodes for an account, a container, or an object regardless of its policy.
    pub(crate) fn nodes(&self, ring: Arc<LoadedRing>, partition: u32) -> Arc<Nodes> {
        self.nodes_of(ring, partition, None)
    }

    /// Primaries in the order of `sorting_method`. By default those in this process come first, in
    /// ring order, so that the page cache holds one copy of frequently read objects; the others are
    /// shuffled, so that no server gets all readers of a name.
    pub(crate) fn primaries(
        &self,
        ring: &LoadedRing,
        partition: u32,
        policy: Option<PolicyIndex>,
    ) -> Vec<Node> {
        let mut primaries = ring.primaries(partition);
        self.sort(&mut primaries, policy);
        primaries
    }

    /// Sorts any nodes like [`Proxy::primaries`].
    pub(crate) fn sort(&self, nodes: &mut [Node], policy: Option<PolicyIndex>) {
        own_thread::shuffle(nodes);
        // Servers of this process come first, shuffled among themselves: a replica that missed a
        // write must not be the one that is always asked first.
        nodes.sort_by_key(|node| !self.backends.is_local(node.address));
        let affinity = self.affinities.of(policy);
        match affinity.sorting {
            Sorting::Shuffle => {}
            Sorting::Affinity => nodes.sort_by_key(|node| affinity.distance(node)),
            Sorting::Timing => {
                let now = Instant::now();
                nodes.sort_by_key(|node| self.timings.of(node.address, now));
            }
        }
    }

    /// Primaries, then handoffs.
    pub(crate) fn nodes_of(
        &self,
        ring: Arc<LoadedRing>,
        partition: u32,
        policy: Option<PolicyIndex>,
    ) -> Arc<Nodes> {
        let primaries = self.primaries(&ring, partition, policy);
        let most = self
            .options
            .request_node_count
            .for_replicas(primaries.len());
        Arc::new(Nodes::new(
            ring,
            partition,
            primaries,
            most,
            self.limiter.clone(),
        ))
    }

    /// Adds the policy's name if a backend returned its index.
    pub(crate) fn name_policy(&self, response: &mut Response) {
        if !response.status().is_success() {
            return;
        }
        let index = respond::header(response.headers(), headers::POLICY_INDEX)
            .and_then(|text| text.parse().ok());
        let Some(index) = index else { return };
        match self.policies.by_index(cairn_types::PolicyIndex(index)) {
            Some(policy) => respond::set(response.headers_mut(), "x-storage-policy", &policy.name),
            None => warn!(
                index,
                "a backend named a storage policy that is not configured here"
            ),
        }
    }
}

impl Read<'_> {
    /// The headers of its requests.
    fn headers(&self) -> &HeaderMap {
        self.headers.get_or_init(|| {
            let mut headers = self.incoming.map(headers::with_all).unwrap_or_default();
            // Content that does not match its ETag is useless: another replica is asked instead.
            headers::insert(&mut headers, headers::REFUSE_UNSOUND, "true");
            headers
        })
    }

    /// The same, to go on after the client's request has gone.
    fn into_owned(self) -> Read<'static> {
        self.headers();
        Read {
            incoming: None,
            called: None,
            backends: self.backends,
            nodes: self.nodes,
            spare: self.spare,
            kind: self.kind,
            partition: self.partition,
            method: self.method,
            path: self.path,
            query: self.query,
            headers: self.headers,
            timeout: self.timeout,
            timings: self.timings,
        }
    }

    /// The next node to try.
    fn next_node(&self) -> Option<Node> {
        let spare = self.spare_nodes().pop();
        spare.or_else(|| self.nodes.next())
    }

    fn spare_nodes(&self) -> MutexGuard<'_, Vec<Node>> {
        self.spare.lock()
    }

    /// The next node that may change the outcome: once it is settled, nodes that hang are left out.
    fn next_worth_asking(&self, refusals: &Refusals) -> Option<Node> {
        loop {
            let node = self.nodes.next()?;
            if !(refusals.is_settled() && self.backends.is_hung(node.address)) {
                return Some(node);
            }
        }
    }

    async fn first(&self, refusals: &mut Refusals) -> Option<Source> {
        while let Some(node) = self.next_worth_asking(refusals) {
            let delay = self.backends.hedging().delay(node.address);
            let mut asked = std::pin::pin!(self.ask(node.clone(), None));
            let source = match tokio::time::timeout(delay, asked.as_mut()).await {
                Ok(tried) => refusals.note(tried),
                Err(_) => {
                    // A lower bound of its response time: if another responds first, this call is
                    // dropped and never measured.
                    if let Some(timings) = &self.timings {
                        timings.note(node.address, delay, Instant::now());
                    }
                    return Box::pin(self.hedged(refusals, node, asked)).await;
                }
            };
            if source.is_some() {
                return source;
            }
        }
        None
    }

    /// Continues when `first` is overdue: asks the next node beside a slow one, or instead of one
    /// without the data. Hanging nodes are not awaited once the others prove that the data does not
    /// exist.
    async fn hedged(
        &self,
        refusals: &mut Refusals,
        node: Node,
        first: Pin<&mut (impl Future<Output = Tried> + Send)>,
    ) -> Option<Source> {
        let mut calls = Calls::new(self, None);
        calls.open.sent_before(&node);
        calls
            .asked
            .push(Box::pin(async move { (node, first.await) }));
        loop {
            tokio::select! {
                biased;
                answer = calls.asked.next() => {
                    let (node, tried) = answer?;
                    if let Some(source) = calls.note(node, tried, refusals) {
                        return Some(source);
                    }
                    if let Some(node) = self.next_worth_asking(refusals) {
                        calls.start(node);
                    }
                }
                () = calls.open.overdue() => {
                    while let Some(node) = calls.open.hedge() {
                        calls.start(node);
                    }
                }
            };
            if calls.are_vain(refusals) {
                calls.start(self.next_worth_asking(refusals)?);
            }
        }
    }

    /// Asks all nodes; a tombstone newer than all data means that there is none.
    async fn newest(&self, refusals: &mut Refusals) -> Option<Source> {
        let mut asked = FuturesUnordered::new();
        while let Some(node) = self.nodes.next() {
            asked.push(async {
                let address = node.address;
                let tried = self.backends.unless_hung(address, self.ask(node, None));
                tried.await.unwrap_or(Tried::Nothing)
            });
        }
        let mut best: Option<Source> = None;
        while let Some(tried) = asked.next().await {
            let Some(source) = refusals.note(tried) else {
                continue;
            };
            // The newest POST decides between copies of the same data; Swift uses any of them.
            let time = |source: &Source| {
                let headers = source.response.headers();
                let of_metadata = respond::header_timestamp(headers, "x-backend-timestamp");
                (source.timestamp, of_metadata.unwrap_or(source.timestamp))
            };
            let is_newer = best.as_ref().is_none_or(|b| time(&source) > time(b));
            let other = match is_newer {
                true => best.replace(source),
                false => Some(source),
            };
            self.spare_nodes().extend(other.map(|other| other.node));
        }
        best.filter(|source| source.timestamp >= refusals.newest_tombstone)
    }

    /// Asks the next node whenever one has not responded for `stagger`, up to `concurrency` at
    /// once. As in [`Read::hedged`], nodes still being asked are spare ones afterwards, and hanging
    /// ones are not awaited once the outcome is settled.
    async fn staggered(
        &self,
        refusals: &mut Refusals,
        concurrency: usize,
        stagger: Duration,
    ) -> Option<Source> {
        let mut calls = Calls::new(self, Some(stagger));
        // Time at which the next node is asked; `None` once there is none left.
        let mut next_at = Some(Instant::now());
        loop {
            let has_room = calls.asked.len() < concurrency.max(1);
            let is_due = has_room && next_at.is_some_and(|at| at <= Instant::now());
            if is_due || calls.are_vain(refusals) {
                let node = self.next_worth_asking(refusals);
                if node.is_none() && calls.are_vain(refusals) {
                    return None;
                }
                next_at = node.map(|node| {
                    calls.start(node);
                    Instant::now() + stagger
                });
                continue;
            }
            let next = next_at.filter(|_| has_room);
            tokio::select! {
                biased;
                answer = calls.asked.next() => {
                    let (node, tried) = answer?;
                    if let Some(source) = calls.note(node, tried, refusals) {
                        return Some(source);
                    }
                    next_at = next_at.map(|_| Instant::now());
                }
                () = calls.open.overdue() => calls.open.look_without_hedging(),
                () = tokio::time::sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            }
        }
    }

    /// Asks one node. `wanted` describes what another node has begun to send, which this one must
    /// match.
    async fn ask(&self, node: Node, wanted: Option<&Wanted>) -> Tried {
        let asked = Instant::now();
        let called = self.called.as_ref().filter(|_| wanted.is_none());
        let taker = called.and_then(|read| Some((read, self.backends.taker(node.address)?)));
        let reading = taker
            .as_ref()
            .and_then(|(read, taker)| taker.read(read, &node));
        let answered = match reading {
            Some(reading) => tokio::time::timeout(self.timeout, reading)
                .await
                .map_err(|_| CallError::Timeout {
                    address: node.address,
                    after: self.timeout,
                }),
            // Boxed: calls are many, and must not carry the size of a request's future.
            None => Box::pin(self.send(&node, wanted)).await,
        };
        let response = match answered {
            Ok(response) => response,
            Err(error) => {
                debug!(node = %node.name(), %error, "no answer");
                self.nodes.limiter().increment(&node, "no answer");
                return Tried::Nothing;
            }
        };
        self.backends.hedging().note(node.address, asked.elapsed());
        if let Some(timings) = &self.timings {
            timings.note(node.address, asked.elapsed(), Instant::now());
        }
        let status = response.status();
        let ranged = self.kind == ServerKind::Object && status == StatusCode::RANGE_NOT_SATISFIABLE;
        if status.is_success() || status.is_redirection() || ranged {
            return self.good_answer(node, response, wanted);
        }
        Box::pin(self.bad_answer(node, response)).await
    }

    /// Sends the request to a node.
    async fn send(&self, node: &Node, wanted: Option<&Wanted>) -> Result<Response, CallError> {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = backend_uri(node, self.partition, &self.path, self.query.as_deref());
        *request.headers_mut() = self.headers().clone();
        if let Some(range) = wanted.and_then(Wanted::range_header) {
            request.headers_mut().insert(RANGE, range);
        }
        let call = self.backends.call(node.address, request, self.timeout);
        call.await
    }

    fn good_answer(&self, node: Node, response: Response, wanted: Option<&Wanted>) -> Tried {
        let put_zero = respond::header(response.headers(), "x-put-timestamp")
            .and_then(|text| Timestamp::parse(text).ok())
            .is_some_and(Timestamp::is_zero);
        let other = wanted.is_some_and(|w| bare_etag(response.headers()) != w.etag());
        if put_zero || other {
            // The database was never created, or this is another version than the one being sent.
            return Tried::Refused {
                status: 404,
                headers: HeaderMap::new(),
                body: Bytes::new(),
                tombstone: Timestamp::ZERO,
                is_primary: !node.handoff,
                is_unheard_of: false,
            };
        }
        let timestamp = headers::source_timestamp(response.headers());
        Tried::Good(Box::new(Source {
            node,
            response,
            timestamp,
        }))
    }

    async fn bad_answer(&self, node: Node, response: Response) -> Tried {
        let status = response.status().as_u16();
        self.nodes.check(&node, status);
        let stamp = respond::header_timestamp(response.headers(), "x-backend-timestamp")
            .unwrap_or(Timestamp::ZERO);
        if node.handoff && (status >= 500 || status == 404) && stamp.is_zero() {
            return Tried::Nothing;
        }
        let tombstone = if status == 404 && self.kind == ServerKind::Object {
            stamp
        } else {
            Timestamp::ZERO
        };
        let (parts, body) = response.into_parts();
        let body = tokio::time::timeout(self.timeout, body.collect(ERROR_BODY_MAX_BYTES)).await;
        let body = body.ok().and_then(Result::ok).unwrap_or_default();
        Tried::Refused {
            status,
            headers: parts.headers,
            body,
            tombstone,
            is_primary: !node.handoff,
            is_unheard_of: status == 404 && stamp.is_zero(),
        }
    }
}

fn working_response(read: Read<'_>, source: Source) -> Response {
    let Source { node, response, .. } = source;
    let (parts, mut body) = response.into_parts();
    if read.method != Method::GET {
        body = Body::empty();
    } else {
        // A body that is completely in memory needs no failover, unless it must be verified against
        // the ETag.
        let wanted = match (read.kind, body.as_full()) {
            (ServerKind::Object, None) => Wanted::of(&parts),
            (ServerKind::Object, Some(_)) => Wanted::of_unchecked(&parts),
            _ => None,
        };
        body = match wanted {
            Some(wanted) => passed_on(read.into_owned(), node, &parts.headers, body, wanted),
            None => body,
        };
    }
    let mut answer = Response::new(body);
    *answer.status_mut() = parts.status;
    let mut headers = headers::for_client(parts.headers);
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    *answer.headers_mut() = headers;
    answer
}
