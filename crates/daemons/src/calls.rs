//! How daemons call servers: over the replication network, and for a status and headers.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use cairn_http::Request;
use cairn_peer::{Backends, CallError, Node};
use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::time::timeout;

/// The largest answer that is read to its end.
const MAX_ANSWER: u64 = 64 * 1024;

/// Calls a node's server; `patience` is for the answer's head, and again for its body, which is
/// not kept.
pub(crate) async fn call(
    backends: &Backends,
    node: &Node,
    request: Request,
    patience: Duration,
) -> Result<(StatusCode, HeaderMap), CallError> {
    let address = replication_address(node);
    let (head, body) = backends
        .call(address, request, patience)
        .await?
        .into_parts();
    // Read to its end, so that the connection can be used again.
    let _ = timeout(patience, body.collect(MAX_ANSWER)).await;
    Ok((head.status, head.headers))
}

/// As [`call`], for an answer's body of at most `limit` bytes; `None` where it did not come whole.
pub(crate) async fn call_for_body(
    backends: &Backends,
    node: &Node,
    request: Request,
    patience: Duration,
    limit: u64,
) -> Result<(StatusCode, Option<Bytes>), CallError> {
    let address = replication_address(node);
    let (head, body) = backends
        .call(address, request, patience)
        .await?
        .into_parts();
    let body = timeout(patience, body.collect(limit)).await;
    Ok((head.status, body.ok().and_then(Result::ok)))
}

/// Daemons talk over the replication network, where there is one.
pub(crate) fn replication_address(node: &Node) -> SocketAddr {
    let device = &node.device;
    let ip = match device.replication_ip.parse::<IpAddr>() {
        Ok(ip) if device.replication_ip != device.ip => ip,
        _ => node.address.ip(),
    };
    SocketAddr::new(ip, device.replication_port)
}

/// `object-updater 4711`, as Swift's daemons call themselves.
pub(crate) fn user_agent(daemon: &'static str) -> HeaderValue {
    HeaderValue::from_str(&format!("{daemon} {}", std::process::id()))
        .unwrap_or(HeaderValue::from_static(daemon))
}
