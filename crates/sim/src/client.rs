//! Requests of the simulated clients to a proxy, and the names that they use.

use std::time::Duration;

use bytes::Bytes;
use cairn_http::{Body, Request};
use http::{HeaderMap, Method};
use tokio::time::timeout;

use crate::cluster::Cluster;

pub(crate) const ACCOUNT: &str = "AUTH_sim";
/// Headers that say which of the writes of a name is the present one.
pub(crate) const CONTAINER_MARK: &str = "x-container-meta-mark";
pub(crate) const MARK: &str = "x-object-meta-mark";
/// Timeout of a client's request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A response: status, headers, and the body if it is complete.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Option<Bytes>,
}

pub(crate) fn path(container: &str, object: Option<&str>) -> String {
    match object {
        Some(object) => format!("/v1/{ACCOUNT}/{container}/{object}"),
        None => format!("/v1/{ACCOUNT}/{container}"),
    }
}

/// Sends a request to a proxy; `None` without a timely response.
pub(crate) async fn ask(
    cluster: &Cluster,
    proxy: usize,
    method: Method,
    path: &str,
    headers: &[(&'static str, String)],
    body: Body,
) -> Option<Answer> {
    let length = body.length();
    let mut request = Request::new(body);
    *request.method_mut() = method.clone();
    *request.uri_mut() = path.parse().ok()?;
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().ok()?);
    }
    if let Some(length) = length.filter(|_| method == Method::PUT) {
        request
            .headers_mut()
            .insert("content-length", length.into());
    }
    let asked = async {
        let (head, body) = cluster.proxies[proxy].call(request).await.into_parts();
        let body = body.collect(1 << 20).await.ok();
        (head, body)
    };
    let (head, body) = timeout(REQUEST_TIMEOUT, asked).await.ok()?;
    Some(Answer {
        status: head.status.as_u16(),
        headers: head.headers,
        body,
    })
}
