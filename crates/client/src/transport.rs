//! Carries requests to a store over pooled connections, or to a service of this process, and
//! repeats them a bounded number of times after failures. Without authentication.

mod direct;
mod lines;
mod network;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cairn_http::tls::{ClientTls, Trust};
use cairn_http::{Body, BodyError, Context, Handler, Request, Response};
use tokio::time::{Instant, timeout, timeout_at};

use crate::call::Call;
use crate::error::ClientError;
use crate::retries::Retries;
use crate::url::StoreUrl;
use network::Network;

/// Timeouts and limits of calls.
#[derive(Clone, Debug)]
pub struct Options {
    pub connect_timeout: Duration,
    /// Time from a request's first byte to its response's head; uploads have more, at a rate of
    /// [`UPLOAD_BYTES_PER_SECOND`].
    pub answer_timeout: Duration,
    /// Time between two pieces of a response's body.
    pub stall_timeout: Duration,
    pub retries: Retries,
    /// Maximum number of idle connections kept to one address.
    pub idle_connections: usize,
    /// Certificates of `https` stores that are accepted.
    pub trust: Trust,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            connect_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(30),
            retries: Retries::default(),
            idle_connections: 64,
            trust: Trust::System,
        }
    }
}

/// Minimum speed of an upload; a slower one times out.
const UPLOAD_BYTES_PER_SECOND: u64 = 1 << 20;
/// Maximum bytes read of an error response's body.
const REASON_MAX_BYTES: u64 = 16 << 10;
const REASON_MAX_CHARS: usize = 200;

/// A way to a store. Cheap to clone; all clones share connections.
#[derive(Clone)]
pub struct Transport {
    carrier: Carrier,
    pub(crate) options: Options,
    repeats: Arc<AtomicU64>,
}

#[derive(Clone)]
enum Carrier {
    Network(Arc<Network>),
    Process {
        handler: Handler,
        /// Template of the context of each request.
        context: Arc<Context>,
    },
}

impl Transport {
    /// HTTP, with TLS to those whose URL begins with `https`.
    pub fn network(options: &Options) -> Transport {
        let network = Network::new(options, None);
        Transport::over(Carrier::Network(Arc::new(network)), options)
    }

    /// HTTP, with this TLS instead of one made from [`Options::trust`].
    pub fn network_with_tls(options: &Options, tls: ClientTls) -> Transport {
        let network = Network::new(options, Some(tls));
        Transport::over(Carrier::Network(Arc::new(network)), options)
    }

    /// Calls of `handler`, a store (or a pipeline of one) in this process. Each attempt has its own
    /// copy of `context`, with notes of its own. Hosts of URLs are ignored, but for the header.
    pub fn in_process(handler: Handler, context: Context, options: &Options) -> Transport {
        let context = Arc::new(context);
        Transport::over(Carrier::Process { handler, context }, options)
    }

    fn over(carrier: Carrier, options: &Options) -> Transport {
        Transport {
            carrier,
            options: options.clone(),
            repeats: Arc::default(),
        }
    }

    /// Number of requests so far that were sent again.
    pub fn repeats(&self) -> u64 {
        self.repeats.load(Ordering::Relaxed)
    }

    /// Checks that a store can be addressed: its host has an address, and for `https` the trusted
    /// certificates can be read. Nothing is sent to it.
    ///
    /// # Errors
    /// [`ClientError::Connect`] or [`ClientError::Tls`].
    pub async fn check(&self, url: &StoreUrl) -> Result<(), ClientError> {
        match &self.carrier {
            Carrier::Network(network) => network.check(url).await,
            Carrier::Process { .. } => Ok(()),
        }
    }

    /// Sends a request until the answer is one that it accepts, or one after which it is not sent
    /// again. The body of the answer is not read.
    ///
    /// # Errors
    /// [`ClientError`] of the last attempt.
    pub async fn call(&self, url: &StoreUrl, call: &mut Call<'_>) -> Result<Response, ClientError> {
        self.send(url, call, None).await
    }

    /// Sends a request like [`Transport::call`], and reads the answer's body, of at most `limit`
    /// bytes; a body that breaks off is a failure like others. The timeout is for both.
    ///
    /// # Errors
    /// [`ClientError`] of the last attempt.
    pub async fn fetch(
        &self,
        url: &StoreUrl,
        call: &mut Call<'_>,
        limit: u64,
    ) -> Result<http::Response<Bytes>, ClientError> {
        let answer = self.send(url, call, Some(limit)).await?;
        Ok(answer.map(|body| body.as_full().unwrap_or_default()))
    }

    /// Makes one attempt to read a range into an empty buffer, without a copy on the way. `None` if it has
    /// to be called for as others are: without a connection, or for an answer that is no plain one.
    pub(crate) async fn read_range(
        &self,
        url: &StoreUrl,
        call: &mut Call<'_>,
        length: usize,
        buffer: &mut Vec<u8>,
    ) -> Option<Result<(), ClientError>> {
        match &self.carrier {
            Carrier::Network(network) => network.read_range(url, call, length, buffer).await,
            Carrier::Process { .. } => None,
        }
    }

    async fn send(
        &self,
        url: &StoreUrl,
        call: &mut Call<'_>,
        limit: Option<u64>,
    ) -> Result<Response, ClientError> {
        let retries = &self.options.retries;
        let mut attempt = 1;
        loop {
            let error = match self.attempt(url, call, limit).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let is_last = attempt >= retries.attempts || !call.payload.can_repeat();
            if is_last || !retries.covers(&error, call.repeat) {
                return Err(error);
            }
            tracing::debug!(attempt, %error, "a request failed, it is sent again");
            self.repeats.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(retries.pause(attempt)).await;
            attempt += 1;
        }
    }

    async fn attempt(
        &self,
        url: &StoreUrl,
        call: &mut Call<'_>,
        limit: Option<u64>,
    ) -> Result<Response, ClientError> {
        let upload = call.payload.len().unwrap_or(0) / UPLOAD_BYTES_PER_SECOND;
        let patience = call.timeout.unwrap_or(self.options.answer_timeout);
        let patience = patience + Duration::from_secs(upload);
        let deadline = Instant::now() + patience;
        let answer = match &self.carrier {
            Carrier::Network(network) => network.call(url, call, patience).await?,
            Carrier::Process { handler, context } => {
                let mut request = call.request(url)?;
                add_context(&mut request, context);
                let called = timeout(patience, handler.call(request)).await;
                called.map_err(|_| late(url, call, patience))?
            }
        };
        if !call.accepts.covers(&answer) {
            return Err(ClientError::Status {
                method: call.method.clone(),
                path: url.path.clone(),
                status: answer.status(),
                reason: reason(answer).await,
            });
        }
        let Some(limit) = limit else {
            return Ok(answer);
        };
        let (head, body) = answer.into_parts();
        let body = match timeout_at(deadline, body.collect(limit)).await {
            Ok(Ok(body)) => body,
            Ok(Err(error @ BodyError::TooLarge(_))) => {
                return Err(ClientError::Protocol {
                    method: call.method.clone(),
                    path: url.path.clone(),
                    reason: error.to_string(),
                });
            }
            Ok(Err(error)) => {
                return Err(ClientError::Broken {
                    method: call.method.clone(),
                    path: url.path.clone(),
                    host: url.authority(),
                    reason: error.to_string(),
                });
            }
            Err(_) => return Err(late(url, call, patience)),
        };
        Ok(Response::from_parts(head, Body::full(body)))
    }
}

/// Gives a request its context. Notes are shared by all clones of a context, so each has new ones.
fn add_context(request: &mut Request, context: &Context) {
    request.extensions_mut().insert(Context {
        notes: Arc::default(),
        ..context.clone()
    });
}

fn late(url: &StoreUrl, call: &Call<'_>, after: Duration) -> ClientError {
    ClientError::Timeout {
        method: call.method.clone(),
        path: url.path.clone(),
        host: url.authority(),
        after,
    }
}

/// The first line of an error response's body.
async fn reason(answer: Response) -> String {
    let reading = answer.into_body().collect(REASON_MAX_BYTES);
    let Ok(Ok(body)) = timeout(Duration::from_secs(1), reading).await else {
        return String::new();
    };
    let text = String::from_utf8_lossy(&body);
    let line = text.trim().lines().next().unwrap_or_default();
    // A page of HTML only repeats the status.
    match line.starts_with('<') {
        true => String::new(),
        false => line.chars().take(REASON_MAX_CHARS).collect(),
    }
}
