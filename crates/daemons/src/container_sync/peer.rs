//! Requests to the other cluster's proxy, signed with the realm's key or the container's.

use std::net::SocketAddr;
use std::time::Duration;

use cairn_formats::sync_realms::{Destination, Signed};
use cairn_http::client::{CallError, Client};
use cairn_http::params::quote_path;
use cairn_http::tls::ClientTls;
use cairn_http::{Body, Request, Response};
use http::header::{HOST, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use http::{Method, StatusCode, Uri};
use thiserror::Error;
use tokio::net::lookup_host;

/// Timeout of a request without content.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout of a whole upload.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(3600);

#[derive(Debug, Error)]
pub(super) enum PeerError {
    #[error("{0}: expected a URL that begins with http:// or https://")]
    Url(String),
    #[error("no address of {0}")]
    NoAddress(String),
    #[error("a value that no header may have")]
    Header,
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("answered with {0}")]
    Status(StatusCode),
}

/// Clients for other clusters, without and with TLS.
pub(super) struct Clients {
    plain: Client,
    tls: Client,
}

impl Clients {
    pub(super) fn new(conn_timeout: Duration, tls: ClientTls) -> Clients {
        let client = |tls| Client::with_tls(conn_timeout, 32, Duration::from_secs(30), tls);
        Clients {
            plain: client(None),
            tls: client(Some(tls)),
        }
    }
}

/// A container in another cluster.
pub(super) struct Peer {
    client: Client,
    address: SocketAddr,
    /// Name that its certificate must have.
    name: String,
    host: HeaderValue,
    /// Path of the container as written by the realm or the user.
    path: String,
    realm: Option<(String, String)>,
    user_key: String,
}

impl Peer {
    pub(super) async fn find(
        clients: &Clients,
        destination: Destination,
        user_key: &str,
    ) -> Result<Peer, PeerError> {
        let url = destination.url;
        let uri: Uri = url.parse().map_err(|_| PeerError::Url(url.clone()))?;
        let (client, default_port) = match uri.scheme_str() {
            Some("http") => (&clients.plain, 80),
            Some("https") => (&clients.tls, 443),
            _ => return Err(PeerError::Url(url)),
        };
        let authority = uri.authority().ok_or_else(|| PeerError::Url(url.clone()))?;
        let port = authority.port_u16().unwrap_or(default_port);
        let name = authority.host().trim_matches(['[', ']']);
        let no_address = || PeerError::NoAddress(authority.host().to_owned());
        let mut found = lookup_host((name, port)).await.map_err(|_| no_address())?;
        Ok(Peer {
            client: client.clone(),
            address: found.next().ok_or_else(no_address)?,
            name: authority.host().to_owned(),
            host: HeaderValue::from_str(authority.as_str()).map_err(|_| PeerError::Header)?,
            path: uri.path().to_owned(),
            realm: destination.realm,
            user_key: user_key.to_owned(),
        })
    }

    /// Sends a request; `headers` must include `X-Timestamp`. Statuses other than 2xx are errors.
    pub(super) async fn ask(
        &self,
        method: Method,
        object: &str,
        mut headers: HeaderMap,
        body: Body,
    ) -> Result<Response, PeerError> {
        let path = format!("{}/{}", self.path, quote_path(object));
        self.sign(&method, &path, &mut headers)?;
        headers.insert(HOST, self.host.clone());
        headers.insert(USER_AGENT, crate::calls::user_agent("container-sync"));
        let patience = match method {
            Method::PUT => UPLOAD_TIMEOUT,
            _ => REQUEST_TIMEOUT,
        };
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().map_err(|_| PeerError::Url(path.clone()))?;
        *request.headers_mut() = headers;
        let (client, name) = (&self.client, &self.name);
        let call = client.call_by_name(name, self.address, request, patience);
        let answer = call.await?;
        match answer.status() {
            status if status.is_success() => Ok(answer),
            status => Err(PeerError::Status(status)),
        }
    }

    fn sign(&self, method: &Method, path: &str, headers: &mut HeaderMap) -> Result<(), PeerError> {
        let (name, value) = match &self.realm {
            None => ("x-container-sync-key", self.user_key.clone()),
            Some((realm, key)) => {
                let time = headers.get("x-timestamp").and_then(|v| v.to_str().ok());
                let nonce = format!("{:032x}", rand::random::<u128>());
                let signed = Signed {
                    method: method.as_str(),
                    path,
                    timestamp: time.unwrap_or("0"),
                    nonce: &nonce,
                    user_key: &self.user_key,
                };
                let signature = signed.signature(key);
                (
                    "x-container-sync-auth",
                    format!("{realm} {nonce} {signature}"),
                )
            }
        };
        let value = HeaderValue::from_str(&value).map_err(|_| PeerError::Header)?;
        headers.insert(HeaderName::from_static(name), value);
        Ok(())
    }
}
