//! A write to all replicas at once as whole messages, of which each replica's goes to the next node until one
//! responds.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cairn_http::{Body, Request};
use cairn_types::Quorum;
use http::{HeaderMap, Method, StatusCode};
use tracing::debug;

use crate::backends::Backends;
use crate::calls::{Answering, Called};
use crate::gather::{Answer, Gather, Timeouts};
use crate::node::{Node, backend_uri};
use crate::nodes::Nodes;
use crate::whole_write::WholeWrite;

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

/// The headers of a write's requests, one for each replica.
pub enum Heads {
    Each(Vec<HeaderMap>),
    /// Servers of this process may take it by a call.
    Of(Arc<WholeWrite>),
}

/// The headers of a replica's request.
enum Head {
    Made(HeaderMap),
    /// With the replica's number.
    Of(Arc<WholeWrite>, usize),
}

impl Heads {
    fn into_each(self) -> Vec<Head> {
        match self {
            Heads::Each(each) => each.into_iter().map(Head::Made).collect(),
            Heads::Of(write) => {
                let replicas = 0..write.heads.replicas;
                replicas
                    .map(|replica| Head::Of(write.clone(), replica))
                    .collect()
            }
        }
    }
}

impl Head {
    fn headers(&self) -> HeaderMap {
        match self {
            Head::Made(headers) => headers.clone(),
            Head::Of(write, replica) => write.heads.head(*replica),
        }
    }

    /// Has a server of this process take the write by a call; `None`: it wants the request.
    fn called(&self, backends: &Backends, node: &Node) -> Option<Answering> {
        match self {
            Head::Made(_) => None,
            Head::Of(write, replica) => backends.taker(node.address)?.write(write, *replica, node),
        }
    }
}

/// Sends one request for each of `heads` at once, and returns when `quorum` agrees and the others
/// have had their time ([`Gather::answers`]).
pub async fn fan_out(
    backends: &Arc<Backends>,
    nodes: &Arc<Nodes>,
    partition: u32,
    request: FanOut,
    heads: Heads,
    quorum: Quorum,
    timeouts: Timeouts,
) -> Vec<Answer> {
    let of_one_there = [Method::POST, Method::DELETE].contains(&request.method);
    let mut gather = Gather::new(backends, quorum, timeouts)
        .holding(request.body.len())
        .awaiting_the_one(of_one_there);
    let request = Arc::new(request);
    for head in heads.into_each() {
        let (backends, nodes, request) = (backends.clone(), nodes.clone(), request.clone());
        gather.start(async move {
            one_replica(&backends, &nodes, partition, &request, &head, timeouts.node).await
        });
    }
    drop(request);
    gather.answers().await
}

impl FanOut {
    /// The request for a node.
    fn message(&self, node: &Node, partition: u32, head: &Head) -> Request {
        let mut message = Request::new(Body::full(self.body.clone()));
        *message.method_mut() = self.method.clone();
        *message.uri_mut() = backend_uri(node, partition, &self.path, self.query.as_deref());
        *message.headers_mut() = head.headers();
        *message.extensions_mut() = self.extensions.clone();
        message
    }
}

/// A handoff's 404 carries no information unless it has a tombstone.
fn is_useless(node: &Node, answer: &Called) -> bool {
    node.handoff
        && answer.status == StatusCode::NOT_FOUND
        && !answer.headers.contains_key("x-backend-timestamp")
}

async fn one_replica(
    backends: &Backends,
    nodes: &Nodes,
    partition: u32,
    request: &FanOut,
    head: &Head,
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
        let answer = match head.called(backends, &node) {
            Some(answering) => tokio::time::timeout(timeout, answering)
                .await
                .map_err(|_| "no answer in time".to_owned()),
            // Boxed: calls are many, and must not carry the size of a request's future.
            None => Box::pin(send(backends, &node, partition, request, head, timeout)).await,
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                debug!(node = %node.name(), error, "no answer");
                nodes.limiter().increment(&node, "no answer");
                continue;
            }
        };
        let status = answer.status.as_u16();
        let is_good = match request.method.is_safe() {
            true => nodes.check(&node, status),
            false => nodes.check_write(&node, status),
        };
        if !is_good {
            continue;
        }
        if is_useless(&node, &answer) {
            was_useless = true;
            continue;
        }
        return Some(Answer {
            status,
            headers: answer.headers,
            body: answer.body,
            node: Some(node),
        });
    }
    None
}

/// Sends the request to a node, and reads the answer whole; the error says why there is none.
async fn send(
    backends: &Backends,
    node: &Node,
    partition: u32,
    request: &FanOut,
    head: &Head,
    timeout: Duration,
) -> Result<Called, String> {
    let hangs = || "the server hangs".to_owned();
    let call = backends.call(
        node.address,
        request.message(node, partition, head),
        timeout,
    );
    let answer = backends.unless_hung(node.address, call).await;
    let answer = answer.ok_or_else(hangs)?;
    let (parts, body) = answer.map_err(|error| error.to_string())?.into_parts();
    let collected = tokio::time::timeout(timeout, body.collect(ANSWER_MAX_BYTES));
    match backends.unless_hung(node.address, collected).await {
        Some(Ok(Ok(body))) => Ok(Called {
            status: parts.status,
            headers: parts.headers,
            body,
        }),
        Some(Ok(Err(error))) => Err(format!("answer broken off: {error}")),
        Some(Err(_)) => Err("the answer's end did not come in time".to_owned()),
        None => Err(hangs()),
    }
}
