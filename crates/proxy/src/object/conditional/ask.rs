//! Questions and writes to an object's primaries, all at once, and their answers.

use std::sync::Arc;

use bytes::Bytes;
use cairn_formats::conditional::normalize_etag;
use cairn_http::respond::{header, header_timestamp};
use cairn_http::{Body, Request};
use cairn_peer::Node;
use cairn_peer::fan_out::{Answer, LeftBehind, backend_uri};
use cairn_types::Timestamp;
use http::header::{CONTENT_LENGTH, ETAG, HeaderValue};
use http::{HeaderMap, Method};
use tokio::sync::mpsc;
use tracing::debug;

use super::judge::{Heard, Seen, Word, majority};
use super::{Promised, Swap, TOKEN};
use crate::app::Proxy;
use crate::headers;
use crate::write::Write;

const ACTION: &str = "x-backend-promise-action";
/// The largest answer that is kept of a server.
const ANSWER_MAX: u64 = 64 << 10;

/// A question to a server.
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
    /// All primaries' answers.
    pub(super) async fn ask_primaries(
        &self,
        swap: &Swap,
        action: Action,
        timestamp: Timestamp,
    ) -> Vec<Heard> {
        let requests = swap.questions(action, timestamp);
        let enough = majority(swap.primaries.len());
        let is_known = |answer: &Answer| matches!(heard(answer), Heard::Seen(_));
        let answers = self.ask_all(requests, 0, enough, is_known).await;
        let heard = answers.iter().map(|answer| match answer {
            Some(answer) => heard(answer),
            None => Heard::Silent,
        });
        heard.collect()
    }

    /// Sends the write to those of the promised nodes that are numbered; until `enough` have done it,
    /// and the others have had their time after a quorum.
    pub(super) async fn write_promised(
        &self,
        swap: &Swap,
        promised: &Promised,
        write: &Write,
        numbers: &[usize],
        enough: usize,
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
        self.ask_all(requests, bytes, enough, is_done).await
    }

    /// Sends all requests, which share a body of so many bytes, at once. Answers, in the requests'
    /// order, once all are there, or `enough` good ones and the others have had their time after a
    /// quorum; those go on unobserved, unless too much does already.
    async fn ask_all(
        &self,
        requests: Vec<(Node, Request)>,
        bytes: usize,
        enough: usize,
        is_good: impl Fn(&Answer) -> bool,
    ) -> Vec<Option<Answer>> {
        let mut answers: Vec<Option<Answer>> = requests.iter().map(|_| None).collect();
        let (tx, mut rx) = mpsc::channel(requests.len().max(1));
        let left = Arc::new(LeftBehind::new(self.backends.clone(), bytes));
        for (number, (node, request)) in requests.into_iter().enumerate() {
            let (tx, backends, limiter) = (tx.clone(), self.backends.clone(), self.limiter.clone());
            let (timeout, left) = (self.options.node_timeout, left.clone());
            tokio::spawn(Box::pin(async move {
                let _left = left;
                let asked = async {
                    let answer = backends.call(node.address, request, timeout).await;
                    let (parts, body) = answer.map_err(|e| e.to_string())?.into_parts();
                    let body = tokio::time::timeout(timeout, body.collect(ANSWER_MAX)).await;
                    let body: Bytes = match body {
                        Ok(Ok(body)) => body,
                        _ => return Err("answer broken off".to_owned()),
                    };
                    Ok((parts, body))
                };
                let asked = backends.unless_hung(node.address, asked).await;
                let answer = match asked.unwrap_or_else(|| Err("the server hangs".to_owned())) {
                    Ok((parts, body)) => Some(Answer {
                        status: parts.status.as_u16(),
                        headers: parts.headers,
                        body,
                        node: Some(node),
                    }),
                    Err(error) => {
                        debug!(node = %node.name(), error, "no answer to a conditional write");
                        limiter.increment(&node, "no answer to a conditional write");
                        None
                    }
                };
                let _ = tx.send((number, answer)).await;
            }));
        }
        drop(tx);
        let mut good = 0;
        while let Some((number, answer)) = rx.recv().await {
            good += usize::from(answer.as_ref().is_some_and(&is_good));
            answers[number] = answer;
            if good >= enough {
                break;
            }
        }
        {
            let mut rest = std::pin::pin!(async {
                while let Some((number, answer)) = rx.recv().await {
                    answers[number] = answer;
                }
            });
            let in_time = tokio::time::timeout(self.options.post_quorum_timeout, rest.as_mut());
            if in_time.await.is_err() && !left.may_be() {
                let _ = tokio::time::timeout(self.options.node_timeout, rest).await;
            }
        }
        answers
    }
}

impl Swap {
    /// Gives promises back that nothing was written under. Nobody waits for it.
    pub(super) fn release(&self, timestamp: Timestamp) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        for (node, request) in self.questions(Action::Release, timestamp) {
            let (backends, timeout) = (self.backends.clone(), self.timeout);
            runtime.spawn(async move {
                // Otherwise they run out.
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

/// A server's answer to PROMISE, read.
pub(super) fn heard(answer: &Answer) -> Heard {
    let time = |name| header_timestamp(&answer.headers, name);
    let word = match header(&answer.headers, "x-backend-promise") {
        Some("given") => Word::Given,
        Some("none") => Word::None,
        Some("busy") => Word::Busy,
        Some("older") => Word::Older,
        Some("clock") => Word::Clock,
        Some("started") => Word::Started,
        _ if answer.status >= 500 && answer.status != 501 => return Heard::Silent,
        _ => return Heard::Unsupported,
    };
    let etag = header(&answer.headers, ETAG.as_str());
    Heard::Seen(Seen {
        word,
        data: time("x-backend-data-timestamp").unwrap_or(Timestamp::ZERO),
        newest: time("x-backend-timestamp").unwrap_or(Timestamp::ZERO),
        etag: etag.map(|etag| normalize_etag(etag).to_owned()),
        in_doubt: time("x-backend-in-doubt"),
    })
}
