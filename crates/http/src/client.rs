//! The pooled client to other servers: one per process, connections kept per address.

mod own_connection;

use std::net::SocketAddr;
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client as HyperClient, Error as HyperError};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use thiserror::Error;

use crate::body::Body;
use crate::heads;
use crate::interim::Interim;
use crate::service::{Request, Response};

/// Why a call brought no response. Whether the server saw the request decides who may retry.
#[derive(Debug, Error)]
pub enum CallError {
    /// Not connected: the request was not sent.
    #[error("cannot connect to {address}: {reason}")]
    Connect { address: SocketAddr, reason: String },
    /// No answer in time; the request may have been carried out.
    #[error("no answer from {address} within {after:?}")]
    Timeout {
        address: SocketAddr,
        after: Duration,
    },
    /// The connection broke after the request, or part of it, was sent.
    #[error("connection to {address} broke: {reason}")]
    Broken { address: SocketAddr, reason: String },
    /// The request cannot be sent as it is.
    #[error("request cannot be sent: {0}")]
    BadRequest(String),
}

/// A client with a pool of connections. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    pool: HyperClient<HttpConnector, Body>,
    connect_timeout: Duration,
}

/// Lines in an answer's head.
const MAX_HEADERS: usize = 256;

impl Client {
    /// `idle_per_host`: kept open without use, for `idle_timeout`.
    pub fn new(connect_timeout: Duration, idle_per_host: usize, idle_timeout: Duration) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(connect_timeout));
        let pool = HyperClient::builder(TokioExecutor::new())
            .pool_max_idle_per_host(idle_per_host)
            .pool_idle_timeout(idle_timeout)
            .pool_timer(TokioTimer::new())
            .http1_title_case_headers(true)
            .http1_max_headers(MAX_HEADERS)
            .set_host(true)
            .build(connector);
        Client {
            pool,
            connect_timeout,
        }
    }

    /// Sends a request whose URI is a path (and query) to `address`; answers with the response's
    /// head as soon as it is there. An [`Interim`] among its extensions hears of each
    /// `100 Continue` before that.
    pub async fn call(
        &self,
        address: SocketAddr,
        mut request: Request,
        timeout: Duration,
    ) -> Result<Response, CallError> {
        if heads::has_escapes(request.headers()) {
            let connect = self.connect_timeout;
            return own_connection::call(address, request, connect, timeout).await;
        }
        let again = own_connection::copy(&request);
        let path = request.uri().path_and_query().map_or("/", |p| p.as_str());
        let uri: Uri = format!("http://{address}{path}")
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
                Some(again) => {
                    own_connection::call(address, again, self.connect_timeout, timeout).await
                }
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

/// The innermost cause: hyper's own words are "client error (Connect)".
fn reason(error: &HyperError) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
