//! Requests of daemons to servers over the replication network, for a status and headers.

use std::time::Duration;

use bytes::Bytes;
use cairn_http::{Body, Request};
use cairn_peer::{Backends, CallError, Node};
use cairn_types::PolicyIndex;
use http::header::{CONTENT_LENGTH, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use tokio::time::timeout;

/// Maximum bytes read of a response's body.
const RESPONSE_MAX_BYTES: u64 = 64 * 1024;

/// Calls a node's server; the timeout applies to the response's head, and again to its body, which
/// is discarded.
pub(crate) async fn call(
    backends: &Backends,
    node: &Node,
    request: Request,
    call_timeout: Duration,
) -> Result<(StatusCode, HeaderMap), CallError> {
    let address = node.replication_address;
    let (head, body) = backends
        .call(address, request, call_timeout)
        .await?
        .into_parts();
    // Drained, so that the connection can be reused.
    let _ = timeout(call_timeout, body.collect(RESPONSE_MAX_BYTES)).await;
    Ok((head.status, head.headers))
}

/// As [`call`], for a body of at most `limit` bytes; `None` if it is incomplete.
pub(crate) async fn call_for_body(
    backends: &Backends,
    node: &Node,
    request: Request,
    call_timeout: Duration,
    limit: u64,
) -> Result<(StatusCode, Option<Bytes>), CallError> {
    let address = node.replication_address;
    let (head, body) = backends
        .call(address, request, call_timeout)
        .await?
        .into_parts();
    let body = timeout(call_timeout, body.collect(limit)).await;
    Ok((head.status, body.ok().and_then(Result::ok)))
}

/// A REPLICATE request for a partition's suffix hashes; `suffixes` are those to recompute
/// (`abc-def`), or empty.
pub(crate) fn hashes_of(
    node: &Node,
    partition: u32,
    suffixes: &str,
    policy: PolicyIndex,
    daemon: &'static str,
) -> Request {
    let mut request = Request::new(Body::empty());
    *request.method_mut() = Method::from_bytes(b"REPLICATE").unwrap_or_default();
    *request.uri_mut() = cairn_peer::backend_uri(node, partition, suffixes, None);
    let headers = request.headers_mut();
    headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    headers.insert(USER_AGENT, user_agent(daemon));
    headers.insert(
        "x-backend-storage-policy-index",
        HeaderValue::from(policy.0),
    );
    request
}

/// User agent in the form of Swift's daemons: `object-updater 4711`.
pub(crate) fn user_agent(daemon: &'static str) -> HeaderValue {
    HeaderValue::from_str(&format!("{daemon} {}", std::process::id()))
        .unwrap_or(HeaderValue::from_static(daemon))
}
