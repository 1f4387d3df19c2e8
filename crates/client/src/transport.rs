//! HTTP requests over pooled connections, repeated a bounded number of times after transient
//! failures. Without authentication.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use cairn_http::client::{CallError, Client};
use cairn_http::tls::{ClientTls, Trust};
use cairn_http::{Request, Response};
use http::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderValue};
use http::{Method, StatusCode};
use rand::RngExt;

use crate::error::{ClientError, LoginError};
use crate::payload::Payload;
use crate::url::StoreUrl;

/// Timeouts and limits of calls.
#[derive(Clone, Debug)]
pub struct Options {
    pub connect_timeout: Duration,
    /// Time from a request's first byte to its response's head; uploads have more, at a rate of
    /// [`UPLOAD_BYTES_PER_SECOND`].
    pub answer_timeout: Duration,
    /// Time between two pieces of a response's body.
    pub stall_timeout: Duration,
    /// Maximum number of times that a request is sent if it fails transiently.
    pub attempts: u32,
    /// Maximum number of idle connections kept.
    pub idle_connections: usize,
    /// A PEM file of certificate authorities that are trusted instead of the system's.
    pub authorities: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            connect_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(30),
            attempts: 4,
            idle_connections: 64,
            authorities: None,
        }
    }
}

/// The failures after which a request is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// All transient failures. The request may then be carried out twice.
    Passing,
    /// Only failures before which the store has done nothing: a conditional write that succeeded
    /// would fail when repeated.
    Unsent,
}

impl Repeat {
    fn covers(self, error: &ClientError) -> bool {
        error.is_passing() && (self == Repeat::Passing || !error.is_in_doubt())
    }
}

/// Minimum speed of an upload; a slower one times out.
const UPLOAD_BYTES_PER_SECOND: u64 = 1 << 20;

const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause before the second attempt; doubled for each further one.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Maximum bytes read of an error response's body.
const REASON_MAX_BYTES: u64 = 16 << 10;
const REASON_MAX_CHARS: usize = 200;

/// Pooled connections, and requests over them with retries; without authentication.
#[derive(Clone)]
pub(crate) struct Transport {
    plain: Client,
    tls: Client,
    pub(crate) options: Options,
}

impl Transport {
    pub(crate) fn new(options: &Options, needs_tls: bool) -> Result<Transport, LoginError> {
        let tls = match needs_tls {
            false => None,
            true => {
                let trust = options
                    .authorities
                    .clone()
                    .map_or(Trust::System, Trust::File);
                let wrong = |error: cairn_http::tls::TlsError| LoginError::Url {
                    url: "https://".to_owned(),
                    reason: error.to_string(),
                };
                Some(ClientTls::new(&trust, None).map_err(wrong)?)
            }
        };
        let client = |tls| {
            Client::with_tls(
                options.connect_timeout,
                options.idle_connections,
                IDLE_TIMEOUT,
                tls,
            )
        };
        Ok(Transport {
            plain: client(None),
            tls: client(tls),
            options: options.clone(),
        })
    }

    /// Sends a request to `url`, with `query` (`?…`, or empty) appended, until the response does
    /// not ask for a retry.
    pub(crate) async fn call(
        &self,
        url: &StoreUrl,
        method: Method,
        query: &str,
        headers: &HeaderMap,
        payload: &mut Payload,
        repeat: Repeat,
    ) -> Result<Response, ClientError> {
        let mut pause = PAUSE_MIN;
        let mut attempt = 1;
        loop {
            let result = self.attempt(url, &method, query, headers, payload).await;
            let error = match result {
                Ok(answer) if answer.status().is_success() => return Ok(answer),
                // The response to a conditional GET of unchanged content.
                Ok(answer) if answer.status() == StatusCode::NOT_MODIFIED => return Ok(answer),
                Ok(answer) => ClientError::Status {
                    method: method.clone(),
                    path: url.path.clone(),
                    status: answer.status(),
                    reason: reason(answer).await,
                },
                Err(error) => error,
            };
            let is_last = attempt >= self.options.attempts || !payload.can_repeat();
            if is_last || !repeat.covers(&error) {
                return Err(error);
            }
            tracing::debug!(attempt, %error, "a request failed, it is sent again");
            // Random, so that clients that were disconnected together do not all return together.
            let jitter = rand::rng().random_range(0.5..1.0);
            tokio::time::sleep(pause.mul_f64(jitter)).await;
            pause = (pause * 2).min(PAUSE_MAX);
            attempt += 1;
        }
    }

    async fn attempt(
        &self,
        url: &StoreUrl,
        method: &Method,
        query: &str,
        headers: &HeaderMap,
        payload: &mut Payload,
    ) -> Result<Response, ClientError> {
        let broken = |reason: String| ClientError::Broken {
            method: method.clone(),
            path: url.path.clone(),
            host: url.authority(),
            reason,
        };
        let length = payload.len();
        let body = payload.attempt();
        let body = body.ok_or_else(|| broken("a stream is sent once".to_owned()))?;
        let path = if url.path.is_empty() { "/" } else { &url.path };
        let invalid = |error: http::Error| ClientError::Invalid(format!("{path}: {error}"));
        let mut request: Request = http::Request::builder()
            .method(method.clone())
            .uri(format!("{path}{query}"))
            .body(body)
            .map_err(invalid)?;
        *request.headers_mut() = headers.clone();
        let host = HeaderValue::from_str(&url.authority());
        let host = host.map_err(|error| ClientError::Invalid(error.to_string()))?;
        request.headers_mut().insert(HOST, host);
        if let (Some(length), &Method::PUT | &Method::POST) = (length, method) {
            request.headers_mut().insert(CONTENT_LENGTH, length.into());
        }
        let address = self.resolve(url, method).await?;
        let upload = Duration::from_secs(length.unwrap_or(0) / UPLOAD_BYTES_PER_SECOND);
        let timeout = self.options.answer_timeout + upload;
        let called = match url.tls {
            true => {
                self.tls
                    .call_by_name(&url.host, address, request, timeout)
                    .await
            }
            false => self.plain.call(address, request, timeout).await,
        };
        called.map_err(|error| match error {
            CallError::Connect { reason, .. } => ClientError::Connect {
                method: method.clone(),
                path: url.path.clone(),
                host: url.authority(),
                reason,
            },
            CallError::Timeout { after, .. } => ClientError::Timeout {
                method: method.clone(),
                path: url.path.clone(),
                host: url.authority(),
                after,
            },
            CallError::Broken { reason, .. } => broken(reason),
            CallError::BadRequest(reason) => ClientError::Invalid(format!("{path}: {reason}")),
        })
    }

    async fn resolve(&self, url: &StoreUrl, method: &Method) -> Result<SocketAddr, ClientError> {
        if let Ok(ip) = url.host.parse() {
            return Ok(SocketAddr::new(ip, url.port));
        }
        let failed = |reason: String| ClientError::Connect {
            method: method.clone(),
            path: url.path.clone(),
            host: url.authority(),
            reason,
        };
        let looking = tokio::net::lookup_host((url.host.as_str(), url.port));
        match tokio::time::timeout(self.options.connect_timeout, looking).await {
            Ok(Ok(mut addresses)) => {
                let first = addresses.next();
                first.ok_or_else(|| failed("the name has no address".to_owned()))
            }
            Ok(Err(error)) => Err(failed(error.to_string())),
            Err(_) => Err(failed("the name was not resolved in time".to_owned())),
        }
    }
}

/// The first line of an error response's body.
async fn reason(answer: Response) -> String {
    let reading = answer.into_body().collect(REASON_MAX_BYTES);
    let Ok(Ok(body)) = tokio::time::timeout(Duration::from_secs(1), reading).await else {
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
