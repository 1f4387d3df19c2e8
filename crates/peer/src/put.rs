//! Upload of an object to one backend, its body sent chunk by chunk after the backend has requested
//! it (`Expect: 100-continue` over a socket; the first poll of the body in this process).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cairn_http::client::CallError;
use cairn_http::{Body, BodySender, Request, Response, params, respond};
use http::HeaderMap;
use http::header::{EXPECT, HeaderValue};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::backends::Backends;
use crate::documents;
use crate::node::Node;

/// Header with the boundary of a MIME document of content and footers.
const BOUNDARY: &str = "x-backend-obj-multipart-mime-boundary";

/// Maximum number of chunks queued for one backend.
const QUEUED_CHUNKS_MAX: usize = 1;

/// An open PUT to one node.
pub struct Putter {
    pub node: Node,
    backends: Arc<Backends>,
    sender: Option<BodySender>,
    pending: Pending,
    /// The final response, if the backend sent one before it read the body.
    pub early: Option<(u16, HeaderMap)>,
    /// Boundary of an upload with footers after the content.
    boundary: Option<String>,
    has_begun: bool,
    failed: bool,
}

enum Pending {
    Answer(JoinHandle<Result<Response, CallError>>),
    Here(Box<Response>),
}

/// Reasons why no PUT was opened.
#[derive(Debug)]
pub enum OpenError {
    Call(CallError),
    Timeout,
    /// The server does not support footers: it would store them as content.
    NoFooters,
}

impl Putter {
    /// Sends the head and waits until the backend requests the body or responds without it.
    /// `length` is the body's, if known.
    ///
    /// # Errors
    /// `Timeout` if it does neither in time or its host hangs, `NoFooters` if the body ends with
    /// footers and the server takes none, `Call` if the request fails.
    pub async fn open(
        backends: &Arc<Backends>,
        node: Node,
        mut request: http::request::Builder,
        headers: HeaderMap,
        length: Option<u64>,
        extensions: http::Extensions,
        timeout: Duration,
    ) -> Result<Putter, OpenError> {
        let boundary = respond::header(&headers, BOUNDARY).map(str::to_owned);
        let wants_footers = boundary.is_some();
        let (ready_tx, ready) = oneshot::channel();
        let signal = ReadySignal(Arc::new(Mutex::new(Some(ready_tx))));
        let (sender, body) = Body::channel(length, QUEUED_CHUNKS_MAX);
        let local = backends.is_in_process(node.address);
        let body = if local {
            signal.on_first_poll(body, length)
        } else {
            body
        };
        if let Some(own) = request.headers_mut() {
            *own = headers;
            own.insert(EXPECT, HeaderValue::from_static("100-continue"));
        }
        let mut request: Request = request
            .body(body)
            .map_err(|e| OpenError::Call(CallError::BadRequest(e.to_string())))?;
        *request.extensions_mut() = extensions;
        if !local {
            let signal = signal.clone();
            hyper::ext::on_informational(&mut request, move |informational| {
                if informational.status() == http::StatusCode::CONTINUE {
                    let told = respond::header(informational.headers(), "x-obj-metadata-footer");
                    signal.fire(!wants_footers || told.is_some_and(params::is_true));
                }
            });
        }
        let (calling, address) = (backends.clone(), node.address);
        // The whole upload may take long; inactivity is bounded for each chunk.
        let whole = Duration::from_secs(24 * 3600);
        let mut response = tokio::spawn(Box::pin(async move {
            calling.call(address, request, whole).await
        }));
        let hung = async {
            match local {
                true => std::future::pending().await,
                false => backends.reach().until_hung_call(address).await,
            }
        };
        let ready = tokio::select! {
            biased;
            ready = ready => match ready {
                Ok(false) => {
                    response.abort();
                    return Err(OpenError::NoFooters);
                }
                _ => None,
            },
            answer = &mut response => Some(answer),
            () = tokio::time::sleep(timeout) => {
                response.abort();
                return Err(OpenError::Timeout);
            }
            () = hung => {
                response.abort();
                return Err(OpenError::Timeout);
            }
        };
        match ready {
            None => Ok(Putter {
                node,
                backends: backends.clone(),
                sender: Some(sender),
                pending: Pending::Answer(response),
                early: None,
                boundary,
                has_begun: false,
                failed: false,
            }),
            Some(Ok(Ok(answer))) => Ok(Putter {
                node,
                backends: backends.clone(),
                sender: None,
                early: Some((answer.status().as_u16(), answer.headers().clone())),
                pending: Pending::Here(Box::new(answer)),
                boundary: None,
                has_begun: false,
                failed: false,
            }),
            Some(Ok(Err(error))) => Err(OpenError::Call(error)),
            Some(Err(_)) => Err(OpenError::Timeout),
        }
    }

    pub fn failed(&self) -> bool {
        self.failed
    }

    /// Sends a chunk; a backend that takes none within `timeout`, or has disconnected, has failed.
    pub async fn send(&mut self, chunk: Bytes, timeout: Duration) {
        if !std::mem::replace(&mut self.has_begun, true)
            && let Some(boundary) = &self.boundary
        {
            let head = documents::head(boundary);
            self.feed(head, timeout).await;
        }
        self.feed(chunk, timeout).await;
    }

    /// Ends the content and sends the footers, a JSON object of headers.
    pub async fn end_content(&mut self, footers: &str, timeout: Duration) {
        if let Some(boundary) = &self.boundary {
            let text = documents::footers(boundary, footers) + "--";
            self.send(text.into(), timeout).await;
        }
    }

    async fn feed(&mut self, chunk: Bytes, timeout: Duration) {
        if self.failed {
            return;
        }
        let Some(sender) = &self.sender else { return };
        let sent = tokio::time::timeout(timeout, sender.send(chunk));
        let sent = self.backends.unless_hung(self.node.address, sent).await;
        if !matches!(sent, Some(Ok(true))) {
            self.fail();
        }
    }

    /// Ends the body successfully. A backend that has already stopped reading may have received
    /// everything: its response decides.
    pub async fn finish(&mut self, timeout: Duration) {
        let Some(sender) = self.sender.take().filter(|_| !self.failed) else {
            return;
        };
        let finished = tokio::time::timeout(timeout, sender.finish());
        let finished = self.backends.unless_hung(self.node.address, finished).await;
        if !matches!(finished, Some(Ok(_))) {
            self.fail();
        }
    }

    /// Waits for the response after the end of the body. If this is dropped, a commit in progress
    /// still completes.
    pub async fn answer(self, timeout: Duration) -> Option<Response> {
        match self.pending {
            Pending::Here(response) => Some(*response),
            Pending::Answer(response) => match tokio::time::timeout(timeout, response).await {
                Ok(Ok(Ok(response))) => Some(response),
                _ => None,
            },
        }
    }

    /// Aborts the upload: the backend sees a disconnected client.
    fn fail(&mut self) {
        self.failed = true;
        self.sender = None;
        if let Pending::Answer(response) = &self.pending {
            response.abort();
        }
    }
}

/// Signals once that the body is requested, and whether footers are supported.
#[derive(Clone)]
struct ReadySignal(Arc<Mutex<Option<oneshot::Sender<bool>>>>);

impl ReadySignal {
    fn fire(&self, as_it_comes: bool) {
        if let Some(tx) = self.0.lock().take() {
            let _ = tx.send(as_it_comes);
        }
    }

    fn on_first_poll(&self, mut body: Body, length: Option<u64>) -> Body {
        let (signal, mut fired) = (self.clone(), false);
        let stream = futures_util::stream::poll_fn(move |cx| {
            if !fired {
                fired = true;
                signal.fire(true);
            }
            let frame = http_body::Body::poll_frame(std::pin::Pin::new(&mut body), cx);
            frame.map(|frame| frame.map(|frame| frame.map(|f| f.into_data().unwrap_or_default())))
        });
        Body::from_stream(stream, length)
    }
}
