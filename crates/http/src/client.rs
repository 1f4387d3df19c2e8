//! Pooled HTTP client to other servers: one per process, with connections kept per address.

mod connector;
mod own_connection;

use std::net::SocketAddr;
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::{Client as HyperClient, Error as HyperError};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use thiserror::Error;

use crate::body::Body;
use crate::heads;
use crate::interim::Interim;
use crate::service::{Request, Response};
use crate::tls::ClientTls;

use connector::Connector;
pub use connector::{Stream, dial, over};

/// Reasons why a call brought no response. Whether the server can have seen the request decides
/// about retries.
#[derive(Debug, Error)]
pub enum CallError {
    /// The connection failed: the request was not sent.
    #[error("cannot connect to {address}: {reason}")]
    Connect { address: SocketAddr, reason: String },
    /// No response in time; the request may have been carried out.
    #[error("no answer from {address} within {after:?}")]
    Timeout {
        address: SocketAddr,
        after: Duration,
    },
    /// The connection broke after at least a part of the request was sent.
    #[error("connection to {address} broke: {reason}")]
    Broken { address: SocketAddr, reason: String },
    /// The request cannot be sent as it is.
    #[error("request cannot be sent: {0}")]
    BadRequest(String),
}

/// A client with a pool of connections. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    pool: HyperClient<Connector, Body>,
    tls: Option<ClientTls>,
    connect_timeout: Duration,
}

/// Maximum number of header lines of a response.
const HEADERS_MAX: usize = 256;

impl Client {
    /// Makes a client that keeps `idle_per_host` idle connections per address, each for
    /// `idle_timeout`.
    pub fn new(connect_timeout: Duration, idle_per_host: usize, idle_timeout: Duration) -> Self {
        Client::with_tls(connect_timeout, idle_per_host, idle_timeout, None)
    }

    /// Makes a client that uses TLS for all servers if `tls` is given.
    pub fn with_tls(
        connect_timeout: Duration,
        idle_per_host: usize,
        idle_timeout: Duration,
        tls: Option<ClientTls>,
    ) -> Self {
        let connector = Connector::new(connect_timeout, tls.clone());
        let pool = HyperClient::builder(TokioExecutor::new())
            .pool_max_idle_per_host(idle_per_host)
            .pool_idle_timeout(idle_timeout)
            .pool_timer(TokioTimer::new())
            .http1_title_case_headers(true)
            .http1_max_headers(HEADERS_MAX)
            .set_host(true)
            .build(connector);
        Client {
            pool,
            tls,
            connect_timeout,
        }
    }

    /// Sends a request whose URI is a path (and query) to `address`, and returns when the
    /// response's head has arrived. An [`Interim`] among the request's extensions is called for
    /// each `100 Continue` before that.
    ///
    /// # Errors
    /// `Connect` if there is no connection, `Timeout` without a response's head in time, `Broken`
    /// for a lost connection or an unreadable response, `BadRequest` if the URI is none.
    pub async fn call(
        &self,
        address: SocketAddr,
        request: Request,
        timeout: Duration,
    ) -> Result<Response, CallError> {
        self.send(address, None, request, timeout).await
    }

    /// Calls like [`Client::call`]; with TLS the server's certificate must be valid for `host`, the
    /// name of `address`.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn call_by_name(
        &self,
        host: &str,
        address: SocketAddr,
        request: Request,
        timeout: Duration,
    ) -> Result<Response, CallError> {
        self.send(address, Some(host), request, timeout).await
    }

    async fn send(
        &self,
        address: SocketAddr,
        host: Option<&str>,
        mut request: Request,
        timeout: Duration,
    ) -> Result<Response, CallError> {
        let own = Own {
            address,
            host: host.map(str::to_owned),
            tls: self.tls.as_ref(),
            connect_timeout: self.connect_timeout,
        };
        if heads::has_escapes(request.headers()) {
            return Box::pin(own_connection::call(own, request, timeout)).await;
        }
        let again = own_connection::copy(&request);
        let path = request.uri().path_and_query().map_or("/", |p| p.as_str());
        let uri = match (&self.tls, host) {
            (None, _) => format!("http://{address}{path}"),
            (Some(_), None) => format!("https://{address}{path}"),
            (Some(_), Some(host)) => format!("https://{host}:{}{path}", address.port()),
        };
        let uri: Uri = uri
            .parse()
            .map_err(|e: http::uri::InvalidUri| CallError::BadRequest(e.to_string()))?;
        *request.uri_mut() = uri;
        *request.version_mut() = http::Version::HTTP_11;
        if let Some(interim) = request.extensions_mut().remove::<Interim>() {
            hyper::ext::on_informational(&mut request, move |answer| {
                if answer.status() == http::StatusCode::CONTINUE {
                    interim.send(answer.headers());
                }
            });
        }
        match tokio::time::timeout(timeout, self.pool.request(request)).await {
            Ok(Ok(response)) => Ok(response.map(Body::incoming)),
            Ok(Err(error)) if error.is_connect() => Err(CallError::Connect {
                address,
                reason: reason(&error),
            }),
            Ok(Err(error)) => match again.filter(|_| own_connection::is_parse(&error)) {
                Some(again) => Box::pin(own_connection::call(own, again, timeout)).await,
                None => Err(CallError::Broken {
                    address,
                    reason: reason(&error),
                }),
            },
            Err(_) => Err(CallError::Timeout {
                address,
                after: timeout,
            }),
        }
    }
}

/// Parameters of a connection outside of the pool.
struct Own<'a> {
    address: SocketAddr,
    host: Option<String>,
    tls: Option<&'a ClientTls>,
    connect_timeout: Duration,
}

/// The text of the innermost cause: hyper's own is "client error (Connect)".
fn reason(error: &HyperError) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
