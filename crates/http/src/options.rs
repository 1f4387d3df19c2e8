//! Options of a listener: how it treats its clients.

use std::sync::Arc;
use std::time::Duration;

use crate::tls::ServerTls;

/// Limits and protocols of a listener.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The server's name in metrics: `proxy`, `object`, …
    pub server: &'static str,
    /// Connections served at once. One more takes the place of a connection that waits for its
    /// client (`places.rs`), or waits.
    pub max_connections: usize,
    /// A client that moves no byte for this long, while its request's body is waited for or its
    /// answer waits to be read, is cut off.
    pub stall_timeout: Duration,
    /// Within this time a request's head must have come, idle time included.
    pub header_timeout: Duration,
    /// Bytes in a request's head.
    pub max_head: usize,
    pub max_headers: usize,
    /// How long requests under way may take to finish after the end was asked for.
    pub grace: Duration,
    /// Who may read `/metrics` on this listener.
    pub metrics: MetricsAccess,
    /// Each connection begins with a line of the PROXY protocol (`proxy_line.rs`).
    pub proxy_protocol: bool,
    /// Connections are TLS.
    pub tls: Option<Arc<ServerTls>>,
}

/// Who may read `/metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsAccess {
    Nobody,
    Loopback,
    Everybody,
}

impl ServeOptions {
    pub fn new(server: &'static str) -> Self {
        ServeOptions {
            server,
            max_connections: 4096,
            stall_timeout: Duration::from_secs(60),
            header_timeout: Duration::from_secs(60),
            max_head: 64 * 1024,
            max_headers: 256,
            grace: Duration::from_secs(60),
            metrics: MetricsAccess::Loopback,
            proxy_protocol: false,
            tls: None,
        }
    }
}
