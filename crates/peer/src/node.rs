//! A node of a ring: a device and the server that has it.

use std::net::SocketAddr;
use std::sync::Arc;

use cairn_ring::Device;

/// A device of the ring and where its server listens.
#[derive(Clone, Debug)]
pub struct Node {
    pub device: Arc<Device>,
    pub address: SocketAddr,
    /// Where other servers reach it over the replication network.
    pub replication_address: SocketAddr,
    /// Replica number of a primary, position of a handoff.
    pub index: usize,
    pub handoff: bool,
}

impl Node {
    /// `ip:port/device`, for logs.
    pub fn name(&self) -> String {
        format!("{}/{}", self.address, self.device.device)
    }

    /// The `ip:port` other servers are told.
    pub fn host(&self) -> String {
        if self.device.ip.contains(':') {
            format!("[{}]:{}", self.device.ip, self.device.port)
        } else {
            format!("{}:{}", self.device.ip, self.device.port)
        }
    }
}
