//! Options of a listener: limits and protocols for its clients.

use std::sync::Arc;
use std::time::Duration;

use crate::forwarded::TrustedProxies;
use crate::tls::ServerTls;

/// Limits and protocols of a listener.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The server's name in metrics: `proxy`, `object`, …
    pub server: &'static str,
    /// Maximum number of connections served at once. A further one takes the slot of a connection
    /// that waits for its client (`slots.rs`), or waits.
    pub max_connections: usize,
    /// Time after which a client is disconnected that moves no byte while more of its request's
    /// body is awaited or a response is ready for it.
    pub stall_timeout: Duration,
    /// Time within which a request's head must arrive, idle time included.
    pub header_timeout: Duration,
    /// Maximum bytes of a request's head.
    pub max_head: usize,
    pub max_headers: usize,
    /// Time for requests in progress to finish after a shutdown was requested.
    pub grace: Duration,
    /// Clients that may read `/metrics` on this listener.
    pub metrics: MetricsAccess,
    /// Each connection begins with a line of the PROXY protocol (`proxy_line.rs`).
    pub proxy_protocol: bool,
    /// HTTP proxies whose `X-Forwarded-For` is believed.
    pub trusted_proxies: TrustedProxies,
    /// TLS of the listener; `None`: plain.
    pub tls: Option<Arc<ServerTls>>,
}

/// Access to `/metrics`.
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
            trusted_proxies: TrustedProxies::default(),
            tls: None,
        }
    }
}
