//! Fan-out: the same request to every replica at once; each part tries the next node until one
//! responds.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cairn_http::params::quote_path;
use cairn_http::{Body, Request, Response};
use cairn_types::Quorum;
use http::{HeaderMap, Method, StatusCode};
use tracing::debug;

use crate::backends::Backends;
use crate::gather::{Answer, Gather, Timeouts};
use crate::node::Node;
use crate::nodes::Nodes;

/// Maximum bytes kept of a replica's response body.
const ANSWER_MAX_BYTES: u64 = 1 << 20;

/// A request to all replicas; only the headers differ between them.
pub struct FanOut {
    pub method: Method,
    /// Decoded path, `/account/container/object`.
    pub path: String,
    pub query: Option<String>,
    pub body: Bytes,
    /// Extensions cloned into every request, for servers of this process.
    pub extensions: http::Extensions,
}

/// The URI of a backend request: the encoded path `/device/partition/account…`.
pub fn backend_uri(node: &Node, partition: u32, path: &str, query: Option<&str>) -> http::Uri {
    let mut text = String::with_capacity(path.len() + 32);
    text.push('/');
    text.push_str(&quote_path(&node.device.device));
    text.push('/');
    text.push_str(&partition.to_string());
    text.push_str(&quote_path(path));
    if let Some(query) = query.filter(|q| !q.is_empty()) {
        text.push('?');
        text.push_str(query);
    }
    text.parse().unwrap_or_else(|_| http::Uri::from_static("/"))
}

/// Sends one request for each of `headers` at once, and returns when `quorum` agrees and the others
/// have had their time ([`Gather::answers`]).
pub async fn fan_out(
    backends: &Arc<Backends>,
    nodes: &Arc<Nodes>,
    partition: u32,
    request: FanOut,
    headers: Vec<HeaderMap>,
    quorum: Quorum,
    timeouts: Timeouts,
) -> Vec<Answer> {
    let of_one_there = [Method::POST, Method::DELETE].contains(&request.method);
    let mut gather = Gather::new(backends, quorum, timeouts)
        .holding(request.body.len())
        .awaiting_the_one(of_one_there);
    let request = Arc::new(request);
    for head in headers {
        let (backends, nodes, request) = (backends.clone(), nodes.clone(), request.clone());
        gather.start(async move {
            one_replica(&backends, &nodes, partition, &request, head, timeouts.node).await
        });
    }
    drop(request);
    gather.answers().await
}

/// A handoff's 404 carries no information unless it has a tombstone.
fn is_useless(node: &Node, answer: &Response) -> bool {
    node.handoff
        && answer.status() == StatusCode::NOT_FOUND
        && !answer.headers().contains_key("x-backend-timestamp")
}

async fn one_replica(
    backends: &Backends,
    nodes: &Nodes,
    partition: u32,
    request: &FanOut,
    headers: HeaderMap,
    timeout: Duration,
) -> Option<Answer> {
    let mut was_useless = false;
    let next = |was_useless: bool| match was_useless {
        true => nodes.next_primary(),
        false => nodes.next(),
    };
    while let Some(node) = next(was_useless) {
        if node.handoff && backends.is_hung(node.address) {
            continue;
        }
        let uri = backend_uri(&node, partition, &request.path, request.query.as_deref());
        let mut message = Request::new(Body::full(request.body.clone()));
        *message.method_mut() = request.method.clone();
        *message.uri_mut() = uri;
        *message.headers_mut() = headers.clone();
        *message.extensions_mut() = request.extensions.clone();
        let call = backends.call(node.address, message, timeout);
        let answer = match backends.unless_hung(node.address, call).await {
            Some(Ok(answer)) => answer,
            other => {
                let error = other.and_then(Result::err).map(|error| error.to_string());
                let error = error.unwrap_or_else(|| "the server hangs".to_owned());
                debug!(node = %node.name(), error, "no answer");
                nodes.limiter().increment(&node, "no answer");
                continue;
            }
        };
        let status = answer.status().as_u16();
        let is_good = match request.method.is_safe() {
            true => check(&node, status, nodes),
            false => check_write(&node, status, nodes),
        };
        if !is_good {
            continue;
        }
        if is_useless(&node, &answer) {
            was_useless = true;
            continue;
        }
        let (parts, body) = answer.into_parts();
        let collected = tokio::time::timeout(timeout, body.collect(ANSWER_MAX_BYTES));
        let body = match backends.unless_hung(node.address, collected).await {
            Some(Ok(Ok(body))) => body,
            _ => {
                nodes.limiter().increment(&node, "answer broken off");
                continue;
            }
        };
        let status = parts.status.as_u16();
        return Some(Answer {
            status,
            headers: parts.headers,
            body,
            node: Some(node),
        });
    }
    None
}

/// Checks like [`check`], for the response to a write. A device without free space refuses writes
/// with the status of an unmounted one, but still serves reads and the deletions that free space,
/// so it is not suppressed.
pub fn check_write(node: &Node, status: u16, nodes: &Nodes) -> bool {
    match status {
        507 => false,
        _ => check(node, status, nodes),
    }
}

/// Reports a bad response to the error limiter. Returns false if another node should be tried
/// instead.
pub fn check(node: &Node, status: u16, nodes: &Nodes) -> bool {
    match status {
        507 => {
            nodes.limiter().limit_now(node, "insufficient storage");
            false
        }
        // The server is busy, not broken: this is not an error.
        503 | 529 => false,
        500..=599 => {
            nodes.limiter().increment(node, "server error");
            false
        }
        _ => true,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::Ordering;

    use cairn_http::{handler_fn, respond};
    use tokio::time::Instant;

    use super::*;
    use crate::error_limit::ErrorLimiter;
    use crate::gather::LEFT_BEHIND_MAX_BYTES;
    use crate::hosts::tests::ring_of;
    use crate::rings::LoadedRing;

    const TIMEOUTS: Timeouts = Timeouts {
        node: Duration::from_secs(10),
        post_quorum: Duration::from_millis(500),
    };
    /// Delay of the slow replica.
    const SLOW: Duration = Duration::from_secs(3);

    async fn put(backends: &Arc<Backends>, ring: &Arc<LoadedRing>, body: Bytes) -> Duration {
        let began = Instant::now();
        let mut all = ring.primaries(0);
        all.extend(ring.handoffs(0, 9));
        let limiter = Arc::new(ErrorLimiter::new(Duration::from_secs(60), 10));
        let nodes = Arc::new(Nodes::in_order(ring.clone(), 0, all, 3, limiter));
        let request = FanOut {
            method: Method::PUT,
            path: "/a/c/o".into(),
            query: None,
            body,
            extensions: http::Extensions::new(),
        };
        let headers = vec![HeaderMap::new(); 3];
        let quorum = Quorum::of_replicas(3);
        let answers = fan_out(backends, &nodes, 0, request, headers, quorum, TIMEOUTS).await;
        assert!(answers.iter().filter(|a| a.status == 201).count() >= 2);
        began.elapsed()
    }

    #[test]
    fn a_device_that_takes_no_write_is_still_asked() {
        let ring = Arc::new(LoadedRing::new(Arc::new(ring_of(&[(
            "127.0.0.1",
            "127.0.0.1",
        )]))));
        let node = ring.primaries(0).remove(0);
        let limiter = Arc::new(ErrorLimiter::new(Duration::from_secs(60), 10));
        let nodes = Nodes::in_order(ring, 0, vec![node.clone()], 1, limiter.clone());
        assert!(!check_write(&node, 507, &nodes) && !limiter.is_limited(&node));
        assert!(!check(&node, 507, &nodes) && limiter.is_limited(&node));
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_left_behind_are_bounded() {
        let hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.3"].map(|ip| (ip, ip));
        let ring = Arc::new(LoadedRing::new(Arc::new(ring_of(&hosts))));
        let backends = Backends::new(Duration::from_secs(1));
        let mut all = ring.primaries(0);
        all.extend(ring.handoffs(0, 9));
        for (i, node) in all.iter().enumerate() {
            let handler = handler_fn(move |_| async move {
                if i == 0 {
                    tokio::time::sleep(SLOW).await;
                }
                respond::empty(StatusCode::CREATED)
            });
            backends.register_local(node.address, handler);
        }
        let body = Bytes::from(vec![0; LEFT_BEHIND_MAX_BYTES / 2]);
        let quick = TIMEOUTS.post_quorum..TIMEOUTS.post_quorum * 2;
        assert!(quick.contains(&put(&backends, &ring, body.clone()).await));
        assert!(quick.contains(&put(&backends, &ring, body.clone()).await));
        // Two bodies are already held by the slow replica.
        let third = put(&backends, &ring, body.clone()).await;
        assert!((SLOW..SLOW * 2).contains(&third), "{third:?}");
        // The held bodies have been stored meanwhile; small bodies are never awaited.
        assert!(quick.contains(&put(&backends, &ring, body).await));
        assert!(quick.contains(&put(&backends, &ring, Bytes::new()).await));
        tokio::time::sleep(SLOW).await;
        assert_eq!(backends.left_behind.load(Ordering::Relaxed), 0);
    }
}
