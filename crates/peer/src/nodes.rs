//! Which node next: primaries in an order of the caller's choice, then handoffs, at most so many
//! in all. Those that failed too often of late come last: a store whose every device refused one
//! oversized upload must still answer.

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
    /// Passed over because of their errors, in the order they would have had.
    limited: std::collections::VecDeque<Node>,
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
            limited: std::collections::VecDeque::new(),
            left: most,
        });
        Nodes {
            ring,
            partition,
            limiter,
            state,
        }
    }

    /// These, in this order, and no others.
    pub fn in_order(
        ring: Arc<LoadedRing>,
        partition: u32,
        nodes: Vec<Node>,
        most: usize,
        limiter: Arc<ErrorLimiter>,
    ) -> Self {
        let nodes = Nodes::new(ring, partition, nodes, most, limiter);
        nodes
            .state
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .handoffs = Some(Vec::new().into_iter());
        nodes
    }

    /// The next node; `None` when as many as allowed, or all, have been given out.
    pub fn next(&self) -> Option<Node> {
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        if state.left == 0 {
            return None;
        }
        let node = self
            .next_unlimited(&mut state)
            .or_else(|| state.limited.pop_front())?;
        state.left -= 1;
        Some(node)
    }

    fn next_unlimited(&self, state: &mut State) -> Option<Node> {
        for node in state.primaries.by_ref() {
            if !self.limiter.is_limited(&node) {
                return Some(node);
            }
            state.limited.push_back(node);
        }
        let State {
            handoffs, limited, ..
        } = state;
        let handoffs = handoffs.get_or_insert_with(|| {
            let most = self.ring.ring().device_count();
            self.ring.handoffs(self.partition, most).into_iter()
        });
        for node in handoffs.by_ref() {
            if !self.limiter.is_limited(&node) {
                return Some(node);
            }
            limited.push_back(node);
        }
        None
    }

    pub fn limiter(&self) -> &ErrorLimiter {
        &self.limiter
    }
}
