//! Two-phase upload to one backend, as erasure-coded policies need it. First the content and the
//! metadata known at its end (the footers) are sent, which the backend writes; when enough backends
//! have acknowledged that, the commit is sent, which makes the write durable.
//!
//! The body is a MIME document of three parts: object body, object metadata (JSON with its MD5),
//! put commit. After the second part the backend sends another `100 Continue`. Over a socket the
//! chunked body ends there and another one follows (`wire.rs`); in this process it is one stream.

#[cfg(any(test, fuzzing))]
pub mod fuzzing;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cairn_http::client::CallError;
use cairn_http::{Body, BodySender, Interim, Request, Response, params, respond};
use http::header::{CONTENT_LENGTH, EXPECT, HeaderValue};
use http::{HeaderMap, Method, Uri};
use thiserror::Error;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::backends::Backends;
use crate::documents;
use crate::gather::Answer;
use crate::node::Node;
use wire::Piece;

/// Maximum number of chunks queued for one backend.
const QUEUED_CHUNKS_MAX: usize = 1;
/// Maximum bytes kept of a backend's response body.
const ANSWER_MAX_BYTES: u64 = 1 << 20;

/// A response of the backend, interim or final.
enum Event {
    Continue(HeaderMap),
    Answer(Box<Response>),
}

/// Reasons why no upload was opened.
#[derive(Debug, Error)]
pub enum OpenError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("it broke off before it answered")]
    Broken,
    #[error("it does not know uploads with footers and a commit")]
    Unsupported,
}

/// An open two-phase upload to one node.
pub struct TwoPhasePut {
    pub node: Node,
    backends: Arc<Backends>,
    /// The final response, if the backend sent one before it read the body.
    pub early: Option<Answer>,
    boundary: String,
    feed: Feed,
    events: mpsc::UnboundedReceiver<Event>,
    task: JoinHandle<()>,
    has_begun: bool,
    failed: bool,
}

enum Feed {
    Here(BodySender),
    Wire(mpsc::Sender<Piece>),
}

impl Feed {
    /// Returns false if the backend has disconnected.
    async fn send(&self, chunk: Bytes) -> bool {
        match self {
            Feed::Here(sender) => sender.send(chunk).await,
            Feed::Wire(sender) => sender.send(Piece::Data(chunk)).await.is_ok(),
        }
    }
}

impl Drop for TwoPhasePut {
    /// Dropping aborts the upload: the backend sees a disconnected client.
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl TwoPhasePut {
    /// Sends the head and waits until the backend requests the body or responds without it. `uri`
    /// is a path; `boundary` must not occur in the content.
    ///
    /// # Errors
    /// `Timeout` without an answer in time, or from a server known to be lost or to hang; `Broken`
    /// where it refuses the connection or breaks off; `Unsupported` where it does not know footers
    /// and a commit.
    pub async fn open(
        backends: &Arc<Backends>,
        node: Node,
        uri: Uri,
        mut headers: HeaderMap,
        boundary: String,
        timeout: Duration,
    ) -> Result<TwoPhasePut, OpenError> {
        headers.remove(CONTENT_LENGTH);
        headers.insert(EXPECT, HeaderValue::from_static("100-continue"));
        for (name, value) in [
            ("x-backend-obj-multipart-mime-boundary", boundary.as_str()),
            ("x-backend-obj-metadata-footer", "yes"),
            ("x-backend-obj-multiphase-commit", "yes"),
        ] {
            respond::set(&mut headers, name, value);
        }
        let (told, events) = mpsc::unbounded_channel();
        let (feed, task) = if backends.is_in_process(node.address) {
            call_here(backends, &node, uri, headers, told)
        } else {
            let (feed, pieces) = mpsc::channel(QUEUED_CHUNKS_MAX);
            let head = wire::head(node.address, &uri, &headers);
            let (backends, address) = (backends.clone(), node.address);
            let conversation = async move {
                let connecting = backends.connect(address);
                let spoken = wire::converse(address, connecting, head, pieces, told);
                backends.unless_lost(address, spoken).await;
            };
            (Feed::Wire(feed), tokio::spawn(conversation))
        };
        let mut put = TwoPhasePut {
            node,
            backends: backends.clone(),
            early: None,
            boundary,
            feed,
            events,
            task,
            has_begun: false,
            failed: false,
        };
        match put.next_event(timeout).await {
            None => Err(OpenError::Timeout(timeout)),
            Some(None) => Err(OpenError::Broken),
            Some(Some(Event::Continue(headers))) => {
                let can = |name| respond::header(&headers, name).is_some_and(params::is_true);
                if !can("x-obj-metadata-footer") || !can("x-obj-multiphase-commit") {
                    return Err(OpenError::Unsupported);
                }
                Ok(put)
            }
            Some(Some(Event::Answer(response))) => {
                put.early = Some(put.taken(*response, timeout).await);
                Ok(put)
            }
        }
    }

    pub fn failed(&self) -> bool {
        self.failed
    }

    /// The next response of the backend; `Some(None)` if it has disconnected; `None` if nothing
    /// came within `timeout`, or before its server is known to hang.
    async fn next_event(&mut self, timeout: Duration) -> Option<Option<Event>> {
        let event = tokio::time::timeout(timeout, self.events.recv());
        let event = self.backends.unless_hung(self.node.address, event).await?;
        event.ok()
    }

    /// Sends content; a backend that takes none within `timeout`, has disconnected, or hangs, has
    /// failed.
    pub async fn send(&mut self, chunk: Bytes, timeout: Duration) {
        if self.early.is_some() {
            return;
        }
        if !std::mem::replace(&mut self.has_begun, true) {
            let head = documents::head(&self.boundary);
            self.feed(head, timeout).await;
        }
        self.feed(chunk, timeout).await;
    }

    /// Ends the content and sends the footers, a JSON object of headers.
    pub async fn end_content(&mut self, footers: &str, timeout: Duration) {
        if self.early.is_some() {
            return;
        }
        let text = documents::footers(&self.boundary, footers) + "\r\n";
        self.send(text.into(), timeout).await;
        self.end_body(timeout).await;
    }

    /// Waits until the backend has written the content and awaits the commit: returns `None`.
    /// Otherwise returns its final response; a backend without a response has failed, and counts as
    /// 503.
    pub async fn prepared(&mut self, timeout: Duration) -> Option<Answer> {
        if let Some(early) = self.early.take() {
            return Some(early);
        }
        let event = match self.failed {
            true => None,
            false => self.next_event(timeout).await.flatten(),
        };
        match event {
            Some(Event::Continue(_)) => None,
            Some(Event::Answer(response)) => Some(self.taken(*response, timeout).await),
            None => {
                self.failed = true;
                Some(Answer::none())
            }
        }
    }

    /// Sends the commit and waits for the response; 503 if there is none.
    pub async fn commit(mut self, timeout: Duration) -> Answer {
        let text = format!(
            "X-Document: put commit\r\n\r\nput_commit_confirmation\r\n--{}--",
            self.boundary
        );
        self.feed(text.into(), timeout).await;
        self.end_body(timeout).await;
        if let Feed::Here(sender) = &self.feed {
            let _ = tokio::time::timeout(timeout, sender.clone().finish()).await;
        }
        loop {
            match self.next_event(timeout).await.flatten() {
                Some(Event::Answer(response)) => return self.taken(*response, timeout).await,
                Some(Event::Continue(_)) => {}
                None => return Answer::none(),
            }
        }
    }

    async fn feed(&mut self, chunk: Bytes, timeout: Duration) {
        if self.failed || chunk.is_empty() {
            return;
        }
        let sent = tokio::time::timeout(timeout, self.feed.send(chunk));
        let sent = self.backends.unless_hung(self.node.address, sent).await;
        self.failed = !matches!(sent, Some(Ok(true)));
    }

    async fn end_body(&mut self, timeout: Duration) {
        if self.failed {
            return;
        }
        if let Feed::Wire(sender) = &self.feed {
            let sent = tokio::time::timeout(timeout, sender.send(Piece::End));
            let sent = self.backends.unless_hung(self.node.address, sent).await;
            self.failed = !matches!(sent, Some(Ok(Ok(()))));
        }
    }

    async fn taken(&self, response: Response, timeout: Duration) -> Answer {
        let (parts, body) = response.into_parts();
        let body = tokio::time::timeout(timeout, body.collect(ANSWER_MAX_BYTES)).await;
        Answer {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: body.ok().and_then(Result::ok).unwrap_or_default(),
            node: Some(self.node.clone()),
        }
    }
}

/// Calls a service of this process.
fn call_here(
    backends: &Arc<Backends>,
    node: &Node,
    uri: Uri,
    headers: HeaderMap,
    told: mpsc::UnboundedSender<Event>,
) -> (Feed, JoinHandle<()>) {
    let (sender, body) = Body::channel(None, QUEUED_CHUNKS_MAX);
    let mut request = Request::new(body);
    *request.method_mut() = Method::PUT;
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    let interim = told.clone();
    request
        .extensions_mut()
        .insert(Interim::new(move |headers| {
            let _ = interim.send(Event::Continue(headers.clone()));
        }));
    let (backends, address) = (backends.clone(), node.address);
    // The whole upload may take long; inactivity is bounded for each chunk.
    let whole = Duration::from_secs(24 * 3600);
    let task = tokio::spawn(Box::pin(async move {
        if let Ok(response) = backends.call(address, request, whole).await {
            let _ = told.send(Event::Answer(Box::new(response)));
        }
    }));
    (Feed::Here(sender), task)
}
