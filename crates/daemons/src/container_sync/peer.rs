//! Requests to the other cluster's proxy, signed with the realm's key or the container's: no
//! session of `cairn_client`, as there is no token, but calls over its transport.

use std::time::Duration;

use cairn_client::{
    Call, ClientError, LoginError, Options, Payload, Retries, StoreUrl, Transport, encode_path,
};
use cairn_formats::sync_realms::{Destination, Signed};
use cairn_http::tls::ClientTls;
use cairn_http::{Body, Response};
use http::header::{HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use http::{Method, StatusCode};
use thiserror::Error;

/// Timeout of a request without content.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout of a whole upload.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(3600);

#[derive(Debug, Error)]
pub(super) enum PeerError {
    #[error(transparent)]
    Url(LoginError),
    #[error("a value that no header may have")]
    Header,
    #[error(transparent)]
    Call(#[from] ClientError),
}

impl PeerError {
    /// The status of an answer other than 2xx.
    pub(super) fn status(&self) -> Option<StatusCode> {
        match self {
            PeerError::Call(error) => error.status(),
            PeerError::Url(_) | PeerError::Header => None,
        }
    }
}

/// A transport for all other clusters. Rows that fail are sent again by the next pass.
pub(super) fn transport(conn_timeout: Duration, tls: ClientTls) -> Transport {
    let options = Options {
        connect_timeout: conn_timeout,
        answer_timeout: REQUEST_TIMEOUT,
        retries: Retries::none(),
        idle_connections: 32,
        ..Options::default()
    };
    Transport::network_with_tls(&options, tls)
}

/// A container in another cluster.
pub(super) struct Peer {
    transport: Transport,
    /// URL of the container as written by the realm or the user.
    url: StoreUrl,
    realm: Option<(String, String)>,
    user_key: String,
}

impl Peer {
    pub(super) async fn find(
        transport: &Transport,
        destination: Destination,
        user_key: &str,
    ) -> Result<Peer, PeerError> {
        let url = StoreUrl::parse(&destination.url).map_err(PeerError::Url)?;
        transport.check(&url).await?;
        Ok(Peer {
            transport: transport.clone(),
            url,
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
        let url = self.url.below(&format!("/{}", encode_path(object)));
        self.sign(&method, &url.path, &mut headers)?;
        headers.insert(USER_AGENT, crate::calls::user_agent("container-sync"));
        let is_upload = method == Method::PUT;
        let mut call = Call {
            headers,
            timeout: is_upload.then_some(UPLOAD_TIMEOUT),
            payload: match is_upload {
                true => Payload::Stream(body),
                false => Payload::Empty,
            },
            ..Call::new(method)
        };
        Ok(self.transport.call(&url, &mut call).await?)
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use cairn_http::{Context, Request, handler_fn, respond};
    use parking_lot::Mutex;

    use super::*;

    #[tokio::test]
    async fn requests_are_signed_for_the_path_they_are_sent_to() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        let handler = handler_fn(move |request: Request| {
            let log = log.clone();
            async move {
                let (head, body) = request.into_parts();
                let header = |name: &str| respond::header(&head.headers, name).map(str::to_owned);
                let has_upload = head.method == Method::PUT;
                let body = body.collect(10).await.unwrap();
                log.lock().push((
                    head.method.clone(),
                    head.uri.to_string(),
                    header("host").unwrap(),
                    header("x-container-sync-auth"),
                    header("x-container-sync-key"),
                    body,
                ));
                respond::empty(match has_upload {
                    true => StatusCode::CREATED,
                    false => StatusCode::CONFLICT,
                })
            }
        });
        let options = Options::default();
        let transport = Transport::in_process(handler, Context::default(), &options);
        let destination = |realm| Destination {
            url: "http://b.example:8080/v1/a/c/".to_owned(),
            realm,
        };
        let mut headers = HeaderMap::new();
        headers.insert("x-timestamp", HeaderValue::from_static("1.00000"));
        let realm = Some(("r".to_owned(), "key".to_owned()));
        let peer = Peer::find(&transport, destination(realm), "u")
            .await
            .unwrap();
        let put = peer.ask(Method::PUT, "dir/ö/", headers.clone(), Body::full("abc"));
        put.await.unwrap();
        let peer = Peer::find(&transport, destination(None), "u")
            .await
            .unwrap();
        let head = peer.ask(Method::HEAD, "o", headers, Body::empty()).await;
        let status = head.err().and_then(|error| error.status());
        assert_eq!(status, Some(StatusCode::CONFLICT));

        let nowhere = Destination {
            url: "ftp://b.example/v1/a/c".to_owned(),
            realm: None,
        };
        assert!(Peer::find(&transport, nowhere, "u").await.is_err());

        let seen = seen.lock();
        assert_eq!(seen.len(), 2, "none is sent again");
        let (method, path, host, auth, key, body) = &seen[0];
        assert_eq!((method, &**path), (&Method::PUT, "/v1/a/c/dir/%C3%B6/"));
        assert_eq!((&**host, &body[..]), ("b.example:8080", &b"abc"[..]));
        let auth: Vec<&str> = auth.as_deref().unwrap().split(' ').collect();
        let signed = Signed {
            method: "PUT",
            path,
            timestamp: "1.00000",
            nonce: auth[1],
            user_key: "u",
        };
        assert_eq!((auth[0], auth[2]), ("r", &*signed.signature("key")));
        assert_eq!(*key, None);
        assert_eq!(
            (&*seen[1].1, seen[1].4.as_deref()),
            ("/v1/a/c/o", Some("u"))
        );
    }
}
