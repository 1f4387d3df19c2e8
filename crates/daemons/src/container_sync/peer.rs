//! The other cluster's side: requests to its proxy, signed by the realm's key or with the
//! container's.

use std::net::SocketAddr;
use std::time::Duration;

use cairn_formats::sync_realms::{Destination, Signed};
use cairn_http::client::{CallError, Client};
use cairn_http::params::quote_path;
use cairn_http::{Body, Request, Response};
use http::header::{HOST, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use http::{Method, StatusCode, Uri};
use thiserror::Error;
use tokio::net::lookup_host;

/// For an answer to a request without content.
const PATIENCE: Duration = Duration::from_secs(60);
/// For the whole of an upload.
const UPLOAD_PATIENCE: Duration = Duration::from_secs(3600);

#[derive(Debug, Error)]
pub(super) enum PeerError {
    #[error("{0}: expected a URL that begins with http:// (TLS is for a proxy on the way)")]
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

/// A container elsewhere.
pub(super) struct Peer {
    client: Client,
    address: SocketAddr,
    host: HeaderValue,
    /// Of the container, as the realm or the user wrote it.
    path: String,
    realm: Option<(String, String)>,
    user_key: String,
}

impl Peer {
    pub(super) async fn find(
        client: &Client,
        destination: Destination,
        user_key: &str,
    ) -> Result<Peer, PeerError> {
        let url = destination.url;
        let uri: Uri = url.parse().map_err(|_| PeerError::Url(url.clone()))?;
        let (Some("http"), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(PeerError::Url(url));
        };
        let port = authority.port_u16().unwrap_or(80);
        let name = authority.host().trim_matches(['[', ']']);
        let no_address = || PeerError::NoAddress(authority.host().to_owned());
        let mut found = lookup_host((name, port)).await.map_err(|_| no_address())?;
        Ok(Peer {
            client: client.clone(),
            address: found.next().ok_or_else(no_address)?,
            host: HeaderValue::from_str(authority.as_str()).map_err(|_| PeerError::Header)?,
            path: uri.path().to_owned(),
            realm: destination.realm,
            user_key: user_key.to_owned(),
        })
    }

    /// `headers` with an `X-Timestamp`; good are 2xx, what else came is an error.
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
            Method::PUT => UPLOAD_PATIENCE,
            _ => PATIENCE,
        };
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().map_err(|_| PeerError::Url(path.clone()))?;
        *request.headers_mut() = headers;
        let answer = self.client.call(self.address, request, patience).await?;
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
