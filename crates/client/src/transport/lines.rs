//! Short requests over connections that their callers drive: a connection is part of the call that has it, and no
//! task of its own, which would be woken for the request and again for the answer. For requests and answers that
//! are short, since whoever waits for one has its connection for so long.

use std::collections::HashMap;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cairn_http::client::{CallError, Stream, dial};
use cairn_http::{Body, Request, Response};
use cairn_types::header_name::has_escapes;
use futures_util::FutureExt;
use http::{HeaderName, Method};
use http_body_util::{BodyExt, Limited};
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::call::Call;
use crate::payload::Payload;

/// Maximum size of a request's body.
const REQUEST_MAX_BYTES: u64 = 1 << 20;
/// Maximum size of an answer's body.
const ANSWER_MAX_BYTES: usize = 1 << 20;
const HEADERS_MAX: usize = 256;
/// Maximum number of idle connections to one address.
const IDLE_MAX: usize = 64;

/// A connection between two calls.
struct Line {
    sender: SendRequest<Body>,
    connection: Connection<TokioIo<Stream>, Body>,
    since: Instant,
}

/// Connections of calls, by address.
pub(super) struct Lines {
    idle: Mutex<HashMap<SocketAddr, Vec<Line>>>,
    connect_timeout: Duration,
    idle_timeout: Duration,
}

/// Outcome of an exchange.
enum Exchange {
    Answered(http::Response<Bytes>),
    /// The server has closed the connection before the request was sent.
    Unsent(Request),
    /// The answer has header names that are no tokens.
    Unreadable,
    Failed(String),
}

/// Is a call short enough, whatever the answer? Header names that are no tokens need a connection of
/// their own.
pub(super) fn covers(call: &Call<'_>) -> bool {
    let has_escapes = |name: &HeaderName| has_escapes(name.as_str());
    if call.headers.keys().any(has_escapes) {
        return false;
    }
    let is_short = |payload: &Payload| payload.len().is_some_and(|len| len <= REQUEST_MAX_BYTES);
    let has_short_answer = matches!(call.method, Method::HEAD | Method::PUT | Method::DELETE);
    has_short_answer && call.payload.can_repeat() && is_short(&call.payload)
}

impl Lines {
    pub(super) fn new(connect_timeout: Duration, idle_timeout: Duration) -> Lines {
        Lines {
            idle: Mutex::default(),
            connect_timeout,
            idle_timeout,
        }
    }

    /// Sends a request, and returns the answer with its body; `None` for one that cannot be read here, to
    /// a request that may be sent again.
    pub(super) async fn call(
        &self,
        address: SocketAddr,
        request: Request,
        patience: Duration,
    ) -> Result<Option<Response>, CallError> {
        match timeout(patience, self.call_patiently(address, request)).await {
            Ok(answer) => Ok(answer?.map(|answer| answer.map(Body::full))),
            Err(_) => Err(CallError::Timeout {
                address,
                after: patience,
            }),
        }
    }

    async fn call_patiently(
        &self,
        address: SocketAddr,
        mut request: Request,
    ) -> Result<Option<http::Response<Bytes>>, CallError> {
        let is_read = request.method() == Method::HEAD;
        loop {
            let (mut line, is_new) = match self.take(address) {
                Some(line) => (line, false),
                None => (self.open(address).await?, true),
            };
            let reason = match line.exchange(request).await {
                Exchange::Answered(answer) => {
                    self.put_back(address, line);
                    return Ok(Some(answer));
                }
                Exchange::Unsent(again) if !is_new => {
                    request = again;
                    continue;
                }
                Exchange::Unreadable if is_read => return Ok(None),
                Exchange::Unreadable => "the answer cannot be read".to_owned(),
                Exchange::Unsent(_) => "it was closed before the request was sent".to_owned(),
                Exchange::Failed(reason) => reason,
            };
            return Err(CallError::Broken { address, reason });
        }
    }

    async fn open(&self, address: SocketAddr) -> Result<Line, CallError> {
        let failed = |reason: String| CallError::Connect { address, reason };
        let stream = dial(address, "", None, self.connect_timeout).await;
        let stream = stream.map_err(|error| failed(error.to_string()))?;
        let (sender, connection) = http1::Builder::new()
            .title_case_headers(true)
            .max_headers(HEADERS_MAX)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| failed(error.to_string()))?;
        Ok(Line {
            sender,
            connection,
            since: Instant::now(),
        })
    }

    /// An idle connection that the server has not closed; the last one first, so that those that are not
    /// needed grow old.
    fn take(&self, address: SocketAddr) -> Option<Line> {
        loop {
            let mut line = self.idle.lock().get_mut(&address)?.pop()?;
            let is_young = line.since.elapsed() < self.idle_timeout;
            // Reads what has come since, which may be the end.
            let is_open = line.connection.poll_once_idle();
            if is_young && is_open && line.sender.is_ready() {
                return Some(line);
            }
        }
    }

    fn put_back(&self, address: SocketAddr, mut line: Line) {
        if !line.sender.is_ready() {
            return;
        }
        line.since = Instant::now();
        let mut idle = self.idle.lock();
        let lines = idle.entry(address).or_default();
        lines.retain(|line| line.since.elapsed() < self.idle_timeout);
        if lines.len() < IDLE_MAX {
            lines.push(line);
        }
    }
}

/// A connection that can be looked at between two calls.
trait Idle {
    fn poll_once_idle(&mut self) -> bool;
}

impl Idle for Connection<TokioIo<Stream>, Body> {
    /// Lets the connection notice what has come; false if it has ended.
    fn poll_once_idle(&mut self) -> bool {
        self.now_or_never().is_none()
    }
}

impl Line {
    /// Sends a request and reads the answer, while it drives the connection.
    async fn exchange(&mut self, request: Request) -> Exchange {
        let Line {
            sender, connection, ..
        } = self;
        let mut answering = pin!(async {
            let answer = match sender.try_send_request(request).await {
                Ok(answer) => answer,
                Err(mut error) => {
                    return match error.take_message() {
                        Some(request) => Exchange::Unsent(request),
                        None if error.error().is_parse() => Exchange::Unreadable,
                        None => Exchange::Failed(reason(error.error())),
                    };
                }
            };
            let (head, body) = answer.into_parts();
            match Limited::new(body, ANSWER_MAX_BYTES).collect().await {
                Ok(body) => Exchange::Answered(http::Response::from_parts(head, body.to_bytes())),
                Err(error) => Exchange::Failed(error.to_string()),
            }
        });
        let mut has_ended = false;
        poll_fn(|context| {
            loop {
                if let Poll::Ready(outcome) = answering.as_mut().poll(context) {
                    return Poll::Ready(outcome);
                }
                if has_ended {
                    return Poll::Ready(Exchange::Failed("the connection has ended".to_owned()));
                }
                // Here the request that is queued is sent, and the answer that came reaches the call.
                match connection.poll_unpin(context) {
                    Poll::Ready(_) => has_ended = true,
                    Poll::Pending => match answering.as_mut().poll(context) {
                        Poll::Ready(outcome) => return Poll::Ready(outcome),
                        Poll::Pending => return Poll::Pending,
                    },
                }
            }
        })
        .await
    }
}

/// The text of the innermost cause.
fn reason(error: &hyper::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
