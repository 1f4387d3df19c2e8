//! A node of a ring: a device and its server.

use std::net::SocketAddr;
use std::sync::Arc;

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
