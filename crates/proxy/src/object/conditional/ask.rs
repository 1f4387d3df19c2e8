//! Requests to all primaries of an object at once, for promises and conditional writes.

use std::time::Duration;

use cairn_formats::conditional::normalize_etag;
use cairn_http::respond::{header, header_timestamp};
use cairn_http::{Body, Request};
use cairn_peer::backend_uri;
use cairn_peer::gather::{Answer, Gather};
use cairn_peer::{Backends, Node};
use cairn_types::{Quorum, Timestamp};
use http::header::{CONTENT_LENGTH, ETAG, HeaderValue};
use http::{HeaderMap, Method};
use tracing::debug;

use super::judge::{ObjectState, PromiseReply, ServerReply};
use super::{Promised, Swap, TOKEN};
use crate::headers;
use crate::state::Proxy;
use crate::write::Write;

const ACTION: &str = "x-backend-promise-action";
/// Maximum bytes kept of a response's body.
const ANSWER_MAX_BYTES: u64 = 64 << 10;

/// Action of a PROMISE request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Look,
    Give,
    Release,
}

impl Action {
    fn name(self) -> &'static str {
        match self {
            Action::Look => "look",
            Action::Give => "give",
            Action::Release => "release",
        }
    }
}

impl Proxy {
    /// Sends a PROMISE to all primaries and returns all their responses.
    pub(super) async fn ask_primaries(
        &self,
        swap: &Swap,
        action: Action,
        timestamp: Timestamp,
    ) -> Vec<ServerReply> {
        let requests = swap.questions(action, timestamp);
        let is_known = |answer: &Answer| matches!(heard(answer), ServerReply::State(_));
        let answers = self.ask_all(requests, 0, swap.majority(), is_known).await;
        let heard = answers.iter().map(|answer| match answer {
            Some(answer) => heard(answer),
            None => ServerReply::Silent,
        });
        heard.collect()
    }

    /// Sends the write to the promised nodes with these indexes. Returns when `quorum` has committed
    /// it and the others have had their time.
    pub(super) async fn write_promised(
        &self,
        swap: &Swap,
        promised: &Promised,
        write: &Write,
        numbers: &[usize],
        quorum: Quorum,
    ) -> Vec<Option<Answer>> {
        let requests = numbers.iter().map(|number| {
            let node = promised.nodes[*number].clone();
            let sets = &write.headers;
            let head = sets.get(node.index % sets.len().max(1)).cloned();
            let mut head = head.unwrap_or_default();
            headers::insert(&mut head, "x-timestamp", &promised.timestamp.internal());
            headers::insert(&mut head, TOKEN, swap.token());
            if write.method == Method::PUT {
                head.insert(CONTENT_LENGTH, HeaderValue::from(write.body.len()));
            }
            let uri = backend_uri(&node, write.partition, &write.path, None);
            let body = Body::full(write.body.clone());
            let mut request = request(write.method.clone(), uri, head, body);
            *request.extensions_mut() = write.extensions.clone();
            (node, request)
        });
        let requests = requests.collect();
        let method = write.method.clone();
        let timestamp = promised.timestamp;
        let is_done = move |answer: &Answer| {
            super::outcome(&method, Some(answer), timestamp) == super::Outcome::Done
        };
        let bytes = write.body.len();
        self.ask_all(requests, bytes, quorum, is_done).await
    }

    /// Sends all requests, which share a body of `bytes` bytes, at once. Returns responses in the
    /// requests' order, when those of `quorum` are good and the others have had their time.
    async fn ask_all(
        &self,
        requests: Vec<(Node, Request)>,
        bytes: usize,
        quorum: Quorum,
        is_good: impl Fn(&Answer) -> bool + Send + Sync + 'static,
    ) -> Vec<Option<Answer>> {
        let timeout = self.options.node_timeout;
        let gather = Gather::new(&self.backends, quorum, self.timeouts());
        let mut gather = gather.holding(bytes).agreed_by(is_good);
        for (node, request) in requests {
            let (backends, limiter) = (self.backends.clone(), self.limiter.clone());
            gather.start(async move {
                let asked = ask(&backends, &node, request, timeout);
                let asked = backends.unless_hung(node.address, asked).await;
                match asked.unwrap_or_else(|| Err("the server hangs".to_owned())) {
                    Ok(answer) => Some(answer),
                    Err(error) => {
                        debug!(node = %node.name(), error, "no answer to a conditional write");
                        limiter.increment(&node, "no answer to a conditional write");
                        None
                    }
                }
            });
        }
        gather.answers_in_order().await
    }
}

async fn ask(
    backends: &Backends,
    node: &Node,
    request: Request,
    timeout: Duration,
) -> Result<Answer, String> {
    let answer = backends.call(node.address, request, timeout).await;
    let (parts, body) = answer.map_err(|error| error.to_string())?.into_parts();
    match tokio::time::timeout(timeout, body.collect(ANSWER_MAX_BYTES)).await {
        Ok(Ok(body)) => Ok(Answer {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body,
            node: Some(node.clone()),
        }),
        _ => Err("answer broken off".to_owned()),
    }
}

impl Swap {
    /// Releases promises under which nothing was written, without waiting for the responses.
    pub(super) fn release(&self, timestamp: Timestamp) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        for (node, request) in self.questions(Action::Release, timestamp) {
            let (backends, timeout) = (self.backends.clone(), self.timeout);
            runtime.spawn(async move {
                // If this fails, the promises expire.
                drop(backends.call(node.address, request, timeout).await);
            });
        }
    }

    fn questions(&self, action: Action, timestamp: Timestamp) -> Vec<(Node, Request)> {
        let question = |node: &Node| {
            let mut head = self.head.clone();
            headers::insert(&mut head, "x-timestamp", &timestamp.internal());
            headers::insert(&mut head, ACTION, action.name());
            head.insert(CONTENT_LENGTH, HeaderValue::from(0));
            let uri = backend_uri(node, self.partition, &self.path, None);
            let method = Method::from_bytes(b"PROMISE").unwrap_or(Method::TRACE);
            (node.clone(), request(method, uri, head, Body::empty()))
        };
        self.primaries.iter().map(question).collect()
    }
}

fn request(method: Method, uri: http::Uri, head: HeaderMap, body: Body) -> Request {
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    *request.headers_mut() = head;
    request
}

/// Parses a server's response to PROMISE.
pub(super) fn heard(answer: &Answer) -> ServerReply {
    let time = |name| header_timestamp(&answer.headers, name);
    let reply = match header(&answer.headers, "x-backend-promise") {
        Some("given") => PromiseReply::Given,
        Some("none") => PromiseReply::None,
        Some("busy") => PromiseReply::Busy,
        Some("older") => PromiseReply::Older,
        Some("clock") => PromiseReply::Clock,
        Some("started") => PromiseReply::Started,
        _ if answer.status >= 500 && answer.status != 501 => return ServerReply::Silent,
        _ => return ServerReply::Unsupported,
    };
    let etag = header(&answer.headers, ETAG.as_str());
    ServerReply::State(ObjectState {
        reply,
        data: time("x-backend-data-timestamp").unwrap_or(Timestamp::ZERO),
        newest: time("x-backend-timestamp").unwrap_or(Timestamp::ZERO),
        etag: etag.map(|etag| normalize_etag(etag).to_owned()),
        in_doubt: time("x-backend-in-doubt"),
    })
}
