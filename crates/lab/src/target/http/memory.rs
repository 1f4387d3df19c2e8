//! Connections to a store within a test: no socket, and no time but the runtime's.

use std::sync::Arc;

use tokio::io::DuplexStream;

use super::Endpoint;
use crate::target::url::Url;

/// Connects: the client's end of a new connection.
pub(crate) type Dial = Box<dyn Fn() -> DuplexStream + Send + Sync>;

impl Endpoint {
    pub(in crate::target) fn in_memory(url: Url, dial: Dial) -> Arc<Self> {
        Arc::new(Self {
            url,
            addresses: Vec::new(),
            tls: None,
            memory: Some(dial),
        })
    }
}
