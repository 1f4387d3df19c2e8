//! Which node next: primaries in an order of the caller's choice, then handoffs, leaving out
//! those that failed too often of late, and at most so many in all.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use cairn_ring::Device;

use crate::error_limit::ErrorLimiter;
use crate::rings::LoadedRing;

/// A device of the ring and where its server listens.
#[derive(Clone, Debug)]
pub struct Node {
    pub device: Arc<Device>,
    pub address: SocketAddr,
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

/// The nodes to try for one request, shared by its concurrent parts: each is given out once.
pub struct Nodes {
    ring: Arc<LoadedRing>,
    partition: u32,
    limiter: Arc<ErrorLimiter>,
    state: Mutex<State>,
}

struct State {
    primaries: std::vec::IntoIter<Node>,
    handoffs: Option<std::vec::IntoIter<Node>>,
    left: usize,
}

impl Nodes {
    /// `primaries`: as the caller wants them tried. `most`: nodes tried in all
    /// (`request_node_count`).
    pub fn new(
        ring: Arc<LoadedRing>,
        partition: u32,
        primaries: Vec<Node>,
        most: usize,
        limiter: Arc<ErrorLimiter>,
    ) -> Self {
        let state = Mutex::new(State {
            primaries: primaries.into_iter(),
            handoffs: None,
            left: most,
        });
        Nodes {
            ring,
            partition,
            limiter,
            state,
        }
    }

    /// The next node that is not error limited; `None` when all have been given out.
    pub fn next(&self) -> Option<Node> {
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        if state.left == 0 {
            return None;
        }
        while let Some(node) = state.primaries.next() {
            if !self.limiter.is_limited(&node) {
                state.left -= 1;
                return Some(node);
            }
        }
        if state.handoffs.is_none() {
            // Limited ones are passed over without being counted: look at all there are.
            let handoffs = self
                .ring
                .handoffs(self.partition, self.ring.ring().device_count());
            state.handoffs = Some(handoffs.into_iter());
        }
        let State { handoffs, left, .. } = &mut *state;
        let node = handoffs
            .as_mut()?
            .find(|node| !self.limiter.is_limited(node))?;
        *left -= 1;
        Some(node)
    }

    pub fn limiter(&self) -> &ErrorLimiter {
        &self.limiter
    }
}
