//! GET and HEAD of an erasure-coded object. A HEAD asks any single server, since each has the
//! object's full metadata. A GET asks for as many archives as decoding needs, then asks further
//! servers until enough archives of one version are there, or beside slow ones (`peer/hedge.rs`).
//! With `X-Newest` both ask all servers: having enough fragments for decoding does not exclude a
//! tombstone or a newer version on the others.

use std::sync::Arc;

use cairn_formats::range::{self, ByteRanges, Multipart, Selection};
use cairn_http::{Body, Response, own_thread, respond};
use cairn_peer::{Node, OpenCalls, quorum};
use cairn_types::{Quorum, ServerKind};
use futures_util::stream::{FuturesUnordered, StreamExt};
use http::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderValue, RANGE,
};
use http::{HeaderMap, Method, StatusCode};
use tokio::time::Instant;
use tracing::warn;

use super::archive::{Archive, Archives, Fetch, FragmentResponse, Refusal, Spare};
use super::buckets::{Bucket, Buckets, Counts, refusal_timestamp};
use super::content::{multipart_body, range_body};
use super::layout::{Layout, archive_range};
use super::{EC_ETAG, EC_LENGTH, strip};
use crate::affinity::Affinity;
use crate::erasure::Erasure;
use crate::headers;
use crate::object::Location;
use crate::request::Incoming;
use crate::state::Proxy;
use crate::status;
use crate::write::answer_from;

/// Responses collected by a search.
struct Found {
    buckets: Buckets<Archive>,
    refusals: Vec<Refusal>,
    spare: Spare,
}

impl Proxy {
    pub(in crate::object) async fn read_fragments(
        &self,
        incoming: &mut Incoming,
        location: Location,
        erasure: Arc<Erasure>,
    ) -> Response {
        let is_at = "x-backend-etag-is-at";
        headers::append_csv(&mut incoming.parts.headers, is_at, EC_ETAG);
        let mut response = if *incoming.method() == Method::HEAD {
            let query = incoming.parts.uri.query().map(str::to_owned);
            let kind = ServerKind::Object;
            self.read(
                incoming,
                kind,
                location.ring,
                location.partition,
                query,
                None,
            )
            .await
        } else {
            self.get_fragments(incoming, location, erasure).await
        };
        adapt(incoming, &mut response);
        response
    }

    async fn get_fragments(
        &self,
        incoming: &Incoming,
        location: Location,
        erasure: Arc<Erasure>,
    ) -> Response {
        let primaries = location.ring.primaries(location.partition).len();
        let ranges = incoming.header(RANGE.as_str()).and_then(ByteRanges::parse);
        let range = ranges.map(|ranges| match ranges.specs() {
            [spec] => archive_range(&erasure, *spec),
            // First only to learn the object's length; then each range is requested by itself.
            _ => "bytes=0-0".to_owned(),
        });
        let mut base = headers::with_all(incoming);
        base.remove(RANGE);
        headers::insert(&mut base, headers::REFUSE_UNSOUND, "true");
        let affinity = self.affinities.of(Some(location.policy));
        let fetch = Fetch {
            client: incoming.context.remote.map(|remote| remote.ip()),
            backends: self.backends.clone(),
            nodes: self.nodes_of(location.ring, location.partition, Some(location.policy)),
            partition: location.partition,
            path: incoming.target.entity_path(),
            query: incoming.parts.uri.query().map(str::to_owned),
            headers: base,
            timeout: self.options.recoverable_node_timeout,
            timings: self.timings_of(affinity),
        };
        let newest = headers::wants_newest(incoming);
        let found = search(&fetch, &erasure, affinity, primaries, range, newest).await;
        if !found.buckets.is_enough() {
            let unheard_of = affinity.unheard_of.min(primaries.saturating_sub(1));
            return refusal(found, unheard_of, &fetch.path);
        }
        let Found { buckets, spare, .. } = found;
        let Some(best) = buckets.into_best() else {
            return status::unavailable();
        };
        let mut response = answer(incoming, fetch, erasure, best, spare);
        self.name_policy(&mut response);
        response
    }
}

/// Asks servers until one version can be served, or until it is certain that none can; asks all of
/// them if the `newest` version is requested.
async fn search(
    fetch: &Fetch,
    erasure: &Erasure,
    affinity: &Affinity,
    primaries: usize,
    range: Option<String>,
    newest: bool,
) -> Found {
    let scheme = &erasure.scheme;
    let counts = Counts {
        data: scheme.data(),
        parity: scheme.parity(),
        replicas: primaries,
    };
    let mut found = Found::new(counts);
    let ask = |node: Node, buckets: &Buckets<Archive>| {
        let (asked, preferences) = (node.clone(), buckets.preferences());
        let range = range.clone();
        async move { (asked, fetch.ask(node, preferences, range).await) }
    };
    let mut pending = FuturesUnordered::new();
    let mut calls = OpenCalls::new(fetch.backends.clone(), fetch.nodes.clone());
    let mut asked = 0;
    let at_once = match affinity.concurrent_gets {
        _ if newest => usize::MAX,
        true => scheme.data() + affinity.extra_fragments,
        false => scheme.data(),
    };
    while asked < at_once
        && let Some(node) = fetch.nodes.next()
    {
        calls.sent(&node);
        pending.push(ask(node, &found.buckets));
        asked += 1;
    }
    // For the newest version, servers may have to be asked twice, for older fragments.
    let most = match newest {
        true => asked + primaries,
        false => (2 * primaries).max(asked),
    };
    loop {
        let next = pending.next();
        let answer = if affinity.concurrent_gets && asked < primaries {
            match tokio::time::timeout(affinity.concurrency_timeout, next).await {
                Ok(answer) => answer,
                Err(_) => {
                    if let Some(node) = fetch.nodes.next() {
                        calls.sent(&node);
                        pending.push(ask(node, &found.buckets));
                    }
                    asked += 1;
                    continue;
                }
            }
        } else {
            tokio::select! {
                biased;
                answer = next => answer,
                () = calls.overdue() => {
                    fetch.note_overdue(&calls);
                    let is_found = newest && found.buckets.is_enough();
                    let is_settled = is_found || found.is_settled(counts);
                    if is_settled && calls.are_all_hung() {
                        break;
                    }
                    while asked < most && let Some(node) = calls.hedge() {
                        calls.sent(&node);
                        pending.push(ask(node, &found.buckets));
                        asked += 1;
                    }
                    calls.look_without_hedging();
                    continue;
                }
            }
        };
        let Some((node, answer)) = answer else { break };
        calls.ended(&node);
        let is_good = found.note(&node, answer);
        if found.buckets.is_enough() {
            if newest {
                continue;
            }
            break;
        }
        let is_short = found.buckets.shortfall() > pending.len();
        if asked < most && (is_short || !is_good) {
            let alternate = (asked >= scheme.data())
                .then(|| found.buckets.take_alternate())
                .flatten();
            if let Some(node) = alternate.or_else(|| fetch.nodes.next()) {
                calls.sent(&node);
                pending.push(ask(node, &found.buckets));
                asked += 1;
            }
        }
    }
    found.spare.given_up.extend(calls.nodes());
    found
}

impl Fetch {
    /// Records lower bounds of the response times of servers that have not responded: if the others
    /// are enough, these calls are dropped and never measured.
    fn note_overdue(&self, calls: &OpenCalls) {
        if let Some(timings) = &self.timings {
            for (address, waited) in calls.overdue_servers() {
                timings.note(address, waited, Instant::now());
            }
        }
    }
}

impl Found {
    fn new(counts: Counts) -> Found {
        Found {
            buckets: Buckets::new(counts),
            refusals: Vec::new(),
            spare: Spare::default(),
        }
    }

    /// Do so many primaries have no trace of the object, or its tombstone, that the others are too
    /// few to decode it?
    fn is_settled(&self, counts: Counts) -> bool {
        let missing = self
            .refusals
            .iter()
            .filter(|r| r.is_primary && r.status == 404);
        self.buckets.best().is_none() && missing.count() + counts.data > counts.replicas
    }

    /// Records a response; returns whether it was useful.
    fn note(&mut self, node: &Node, asked: FragmentResponse) -> bool {
        match asked {
            FragmentResponse::Archive(answer) => {
                let (headers, archive) = *answer;
                self.spare.answered.push(node.clone());
                if let Err(reason) = self.buckets.add(node, &headers, archive) {
                    warn!(node = %node.name(), ?reason, "a fragment that can't be used");
                }
                true
            }
            FragmentResponse::Refused(refusal) => {
                let status = refusal.status;
                self.buckets.refuse(status, &refusal.headers);
                self.refusals.push(refusal);
                (300..400).contains(&status) || status == 416
            }
        }
    }
}

/// The response on which most relevant servers agree. Up to `unheard_of` servers without any trace
/// of the object are ignored.
fn refusal(found: Found, mut unheard_of: usize, path: &str) -> Response {
    let best = found.buckets.best();
    let served = best.filter(|best| best.durable).map(|best| best.timestamp);
    let is_uncommitted = best.is_some_and(|best| !best.durable && !best.archives.is_empty());
    let counts = |refusal: &Refusal| {
        let stamp = refusal_timestamp(&refusal.headers);
        let data = respond::header_timestamp(&refusal.headers, "x-backend-data-timestamp");
        if served.is_some_and(|served| data.unwrap_or(stamp) <= served) {
            // The object exists, though not enough of it is available now.
            return false;
        }
        if refusal.is_void {
            return false;
        }
        if refusal.status == 404 && stamp.is_zero() && unheard_of > 0 {
            unheard_of -= 1;
            return false;
        }
        true
    };
    let refusals: Vec<Refusal> = found.refusals.into_iter().filter(counts).collect();
    let statuses: Vec<u16> = refusals.iter().map(|refusal| refusal.status).collect();
    if statuses.is_empty() && is_uncommitted {
        return status::no_such_object();
    }
    let quorum = Quorum::of_replicas(statuses.len());
    match quorum::best_index(&statuses, quorum).filter(|_| !statuses.is_empty()) {
        Some(i) => answer_from(statuses[i], &refusals[i].headers, refusals[i].body.clone()),
        None => {
            warn!(
                path,
                ?statuses,
                "too few servers have fragments of one version"
            );
            status::unavailable()
        }
    }
}

/// The response with the object, or the requested ranges of it.
fn answer(
    incoming: &Incoming,
    fetch: Fetch,
    erasure: Arc<Erasure>,
    best: Bucket<Archive>,
    spare: Spare,
) -> Response {
    let backend = best.headers;
    let length = respond::header(&backend, EC_LENGTH).and_then(|text| text.parse().ok());
    let Some(length) = length else {
        warn!(
            path = fetch.path,
            "a fragment archive does not tell the object's length"
        );
        return status::bad_metadata();
    };
    // Servers may have been asked to ignore the range.
    let selection = match backend.contains_key(CONTENT_RANGE) {
        true => range::select(incoming.header(RANGE.as_str()), length),
        false => Selection::Whole,
    };
    let mut headers = headers::from_backend(&backend);
    headers.remove(CONTENT_RANGE);
    if let Some(content_type) = backend.get(CONTENT_TYPE) {
        headers.insert(CONTENT_TYPE, content_type.clone());
    }
    let data = erasure.scheme.data();
    let archives = best.archives.into_values().take(data).collect();
    let archives = Archives::new(fetch, &backend, archives, spare);
    let layout = Layout::new(erasure, length);
    let (mut response, content_length) = match selection {
        Selection::Unsatisfiable => return unsatisfiable(headers),
        Selection::Whole => {
            let body = match length {
                0 => Body::empty(),
                _ => range_body(archives, layout, 0..length),
            };
            (status::whole(body), length)
        }
        Selection::One(range) => {
            let text = range::content_range(&range, length);
            respond::set(&mut headers, CONTENT_RANGE.as_str(), text);
            let content_length = range.end - range.start;
            let body = range_body(archives, layout, range);
            (status::part(body), content_length)
        }
        Selection::Several(ranges) => {
            let content_type = headers.get(CONTENT_TYPE).map_or(&b""[..], |v| v.as_bytes());
            let boundary = format!("{:016x}{:016x}", own_thread::random(), own_thread::random());
            let multipart = Multipart::new(boundary, content_type, layout.length());
            respond::set(
                &mut headers,
                CONTENT_TYPE.as_str(),
                multipart.content_type(),
            );
            let content_length = multipart.total_length(&ranges);
            let body = multipart_body(archives, layout, &ranges, &multipart);
            (status::part(body), content_length)
        }
    };
    headers.insert(CONTENT_LENGTH, HeaderValue::from(content_length));
    *response.headers_mut() = headers;
    response
}

/// The response if the servers' archives have the range but the object does not.
fn unsatisfiable(mut headers: HeaderMap) -> Response {
    let mut response = status::no_such_range();
    headers.remove(CONTENT_TYPE);
    response.headers_mut().extend(headers);
    response
}

/// Changes a response's headers to describe the object instead of a fragment archive.
fn adapt(incoming: &Incoming, response: &mut Response) {
    let status = response.status();
    let headers = response.headers_mut();
    match headers.get(EC_ETAG).cloned() {
        Some(etag) => headers.insert(ETAG, etag),
        None => headers.remove(ETAG),
    };
    let is_unsatisfiable = status == StatusCode::RANGE_NOT_SATISFIABLE;
    if status.is_success() || status.is_redirection() || is_unsatisfiable {
        headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    }
    if let Some(length) = headers.get(EC_LENGTH).cloned() {
        if status == StatusCode::OK && *incoming.method() == Method::HEAD {
            headers.insert(CONTENT_LENGTH, length);
        } else if is_unsatisfiable {
            let length = length.to_str().unwrap_or("0");
            let text = format!("bytes */{length}");
            respond::set(headers, CONTENT_RANGE.as_str(), text);
        }
    }
    strip(headers);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use cairn_erasure::Codec;
    use cairn_formats::ini::Section;
    use cairn_http::handler_fn;
    use cairn_peer::{Backends, ErrorLimiter, LoadedRing, Nodes};
    use cairn_ring::{Device, FormatVersion, Ring, RingData, Row};
    use cairn_types::{EcType, ErasureScheme};

    use super::super::EC_INDEX;
    use super::*;
    use crate::affinity::{Affinities, Timings};

    fn refused(status: u16, stamp: &str) -> Refusal {
        let mut headers = HeaderMap::new();
        if !stamp.is_empty() {
            respond::set(&mut headers, "x-backend-timestamp", stamp);
        }
        Refusal {
            status,
            headers,
            body: bytes::Bytes::new(),
            is_void: false,
            is_primary: true,
        }
    }

    fn outcome(refusals: Vec<Refusal>) -> u16 {
        let counts = Counts {
            data: 2,
            parity: 1,
            replicas: 3,
        };
        let mut buckets = Buckets::new(counts);
        for refusal in &refusals {
            buckets.refuse(refusal.status, &refusal.headers);
        }
        let found = Found {
            buckets,
            refusals,
            spare: Spare::default(),
        };
        refusal(found, 1, "/a/c/o").status().as_u16()
    }

    /// A ring of four devices on servers of this process: three primaries.
    fn ring() -> Arc<LoadedRing> {
        let device = |id: u16| {
            Some(Arc::new(Device::at(
                u32::from(id),
                ([127, 0, 0, 1], 6200 + id).into(),
            )))
        };
        let ring = Ring::from_data(RingData {
            devs: (0..4).map(device).collect(),
            part_power: 0,
            next_part_power: None,
            version: None,
            dev_id_bytes: 2,
            rows: (0..3).map(|id| Row::new(&[id], 2)).collect(),
            format_version: FormatVersion::V1,
        });
        Arc::new(LoadedRing::new(Arc::new(ring.unwrap())))
    }

    #[tokio::test(start_paused = true)]
    async fn parity_is_asked_for_beside_a_server_that_hangs() {
        let ring = ring();
        let backends = Backends::new(Duration::from_secs(1));
        let primaries = ring.primaries(0);
        let silent = primaries[0].address;
        let timings = Arc::new(Timings::new(Duration::from_secs(300)));
        for node in &primaries {
            let index = node.index;
            let handler = handler_fn(move |_| async move {
                if index == 0 {
                    return std::future::pending().await;
                }
                let mut response = respond::typed(StatusCode::OK, "text/plain", "fragment");
                let headers = response.headers_mut();
                respond::set(headers, EC_INDEX, index.to_string());
                respond::set(headers, "x-backend-timestamp", "0000000005.00000");
                response
            });
            backends.register_local(node.address, handler);
        }
        let scheme = ErasureScheme::new(EcType::LiberasurecodeRsVand, 2, 1).unwrap();
        let codec = Codec::new(&scheme);
        let erasure = Erasure { scheme, codec };
        let limiter = Arc::new(ErrorLimiter::new(Duration::from_secs(60), 10));
        let nodes = Nodes::new(ring, 0, primaries, 6, limiter);
        let fetch = Fetch {
            client: None,
            backends,
            nodes: Arc::new(nodes),
            partition: 0,
            path: "/a/c/o".into(),
            query: None,
            headers: HeaderMap::new(),
            timeout: Duration::from_secs(10),
            timings: Some(timings.clone()),
        };
        let app = Section::from_pairs("app:proxy-server", &[]);
        let affinities = Affinities::read(&app, &BTreeMap::new()).unwrap();
        let start = Instant::now();
        let found = search(&fetch, &erasure, affinities.of(None), 3, None, false).await;
        assert!(found.buckets.is_enough());
        assert!(start.elapsed() < Duration::from_secs(1));
        assert!(
            timings.of(silent, Instant::now()) > 0,
            "it is known as slow"
        );
    }

    #[test]
    fn refusals_are_weighed() {
        let unheard = || refused(404, "");
        assert_eq!(outcome(vec![unheard(), unheard(), unheard()]), 404);
        assert_eq!(outcome(vec![unheard()]), 503);
        assert_eq!(outcome(vec![refused(404, "0000000005.00000")]), 404);
        assert_eq!(outcome(vec![refused(416, ""), refused(416, "")]), 416);
        assert_eq!(outcome(vec![]), 503);
    }
}
