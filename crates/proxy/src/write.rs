//! Writes to all replicas at once, answered when a quorum agrees; and the choice of the answer.

use std::sync::Arc;

use bytes::Bytes;
use cairn_http::{Response, respond};
use cairn_peer::fan_out::{FanOut, Heads, fan_out};
use cairn_peer::gather::{Answer, Timeouts};
use cairn_peer::{LoadedRing, Nodes, quorum};
use cairn_types::Quorum;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Method};
use tracing::error;

use crate::headers;
use crate::state::Proxy;
use crate::status;

/// A write to the replicas of one partition.
pub(crate) struct Write {
    pub(crate) ring: Arc<LoadedRing>,
    pub(crate) partition: u32,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) body: Bytes,
    pub(crate) extensions: http::Extensions,
    /// One set of headers per replica.
    pub(crate) headers: Vec<HeaderMap>,
    pub(crate) quorum: Quorum,
}

impl Write {
    /// A write to an account or a container. For objects, the policy gives the quorum
    /// ([`needing`](Self::needing)).
    pub(crate) fn new(
        ring: Arc<LoadedRing>,
        partition: u32,
        method: Method,
        path: String,
        headers: Vec<HeaderMap>,
    ) -> Self {
        let (body, extensions) = (Bytes::new(), http::Extensions::new());
        Write {
            ring,
            partition,
            method,
            path,
            body,
            extensions,
            quorum: Quorum::of_replicas(headers.len()),
            headers,
        }
    }

    pub(crate) fn needing(self, quorum: Quorum) -> Self {
        Write { quorum, ..self }
    }
}

impl Proxy {
    pub(crate) fn timeouts(&self) -> Timeouts {
        Timeouts {
            node: self.options.node_timeout,
            post_quorum: self.options.post_quorum_timeout,
        }
    }

    /// Sends a write and returns the response of a quorum.
    pub(crate) async fn write(&self, write: Write) -> Response {
        let nodes = self.nodes(write.ring.clone(), write.partition);
        let what = format!("{} {}", write.method, write.path);
        let quorum = write.quorum;
        let answers = self.write_answers(write, &nodes).await;
        best_response(&answers, quorum, &what)
    }

    /// Sends a write and returns all responses.
    pub(crate) async fn write_answers(&self, write: Write, nodes: &Arc<Nodes>) -> Vec<Answer> {
        let request = FanOut {
            method: write.method,
            path: write.path,
            query: None,
            body: write.body,
            extensions: write.extensions,
        };
        fan_out(
            &self.backends,
            nodes,
            write.partition,
            request,
            Heads::Each(write.headers),
            write.quorum,
            self.timeouts(),
        )
        .await
    }
}

/// The response that a quorum agrees on, or 503.
pub(crate) fn best_response(answers: &[Answer], quorum: Quorum, what: &str) -> Response {
    respond_by(answers, quorum, quorum::best_index, what)
}

/// The response that `choose` picks by the statuses, or 503.
pub(crate) fn respond_by(
    answers: &[Answer],
    quorum: Quorum,
    choose: impl FnOnce(&[u16], Quorum) -> Option<usize>,
    what: &str,
) -> Response {
    let statuses: Vec<u16> = answers.iter().map(|a| a.status).collect();
    match choose(&statuses, quorum) {
        Some(i) => {
            quorum::assert_acknowledged(&statuses, quorum, statuses[i]);
            answer_from(statuses[i], &answers[i].headers, answers[i].body.clone())
        }
        None => {
            error!(what, ?statuses, "no quorum; answering 503");
            status::no_quorum()
        }
    }
}

/// Converts a backend's response for the client: its headers, and its body as HTML (as in Swift).
pub(crate) fn answer_from(status: u16, backend: &HeaderMap, body: Bytes) -> Response {
    let status = respond::status(status);
    let mut response = respond::standard(status);
    if !body.is_empty() {
        response = respond::typed(status, "text/html; charset=UTF-8", body);
    }
    for (name, value) in &headers::from_backend(backend) {
        response.headers_mut().append(name, value.clone());
    }
    response
        .headers_mut()
        .entry(CONTENT_TYPE)
        .or_insert(HeaderValue::from_static("text/html; charset=UTF-8"));
    response
}
