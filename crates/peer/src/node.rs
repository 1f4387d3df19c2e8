//! A node of a ring: a device and its server.

use std::net::SocketAddr;
use std::sync::Arc;

use cairn_http::params::quote_path;
use cairn_ring::Device;

/// A device of the ring, with its server's address.
#[derive(Clone, Debug)]
pub struct Node {
    pub device: Arc<Device>,
    pub address: SocketAddr,
    /// Address of the server on the replication network.
    pub replication_address: SocketAddr,
    /// Replica number of a primary, or position of a handoff.
    pub index: usize,
    pub handoff: bool,
}

impl Node {
    /// `ip:port/device`, for log messages.
    pub fn name(&self) -> String {
        format!("{}/{}", self.address, self.device.device)
    }

    /// `ip:port`, for headers that name this server to others.
    pub fn host(&self) -> String {
        if self.device.ip.contains(':') {
            format!("[{}]:{}", self.device.ip, self.device.port)
        } else {
            format!("{}:{}", self.device.ip, self.device.port)
        }
    }
}

/// The URI of a backend request: the encoded path `/device/partition/account…`.
pub fn backend_uri(node: &Node, partition: u32, path: &str, query: Option<&str>) -> http::Uri {
    let mut text = String::with_capacity(path.len() + 32);
    text.push('/');
    text.push_str(&quote_path(&node.device.device));
    text.push('/');
    text.push_str(&partition.to_string());
    text.push_str(&quote_path(path));
    if let Some(query) = query.filter(|q| !q.is_empty()) {
        text.push('?');
        text.push_str(query);
    }
    text.parse().unwrap_or_else(|_| http::Uri::from_static("/"))
}
