//! Iteration over the nodes of a request: primaries in the caller's order, then handoffs, up to a
//! maximum. Error-limited nodes come last instead of being skipped: a cluster whose every device
//! refused one oversized upload must still respond.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::error_limit::ErrorLimiter;
use crate::node::Node;
use crate::rings::LoadedRing;

/// The nodes to try for one request, shared by its concurrent parts: each node is returned once. A
/// node that fails so badly that it is suppressed does not count against the maximum, so that a
/// request gets past any number of unmounted devices.
pub struct Nodes {
    ring: Arc<LoadedRing>,
    partition: u32,
    limiter: Arc<ErrorLimiter>,
    /// Maximum number of nodes returned.
    most: usize,
    state: Mutex<State>,
}

struct State {
    primaries: Given,
    handoffs: Option<Given>,
    /// Error-limited nodes that were skipped, in their original order.
    limited: std::collections::VecDeque<Node>,
    /// Number of skipped nodes that were returned after all.
    last_resorts: usize,
}

/// Nodes in order, and the number of them considered so far.
struct Given {
    nodes: Vec<Node>,
    at: usize,
}

impl Given {
    fn new(nodes: Vec<Node>) -> Given {
        Given { nodes, at: 0 }
    }

    fn next(&mut self) -> Option<Node> {
        let node = self.nodes.get(self.at)?.clone();
        self.at += 1;
        Some(node)
    }

    fn seen(&self) -> &[Node] {
        &self.nodes[..self.at]
    }
}

impl Nodes {
    /// `primaries` are in the order in which to try them; `most` is the maximum number of nodes
    /// tried in all (`request_node_count`).
    pub fn new(
        ring: Arc<LoadedRing>,
        partition: u32,
        primaries: Vec<Node>,
        most: usize,
        limiter: Arc<ErrorLimiter>,
    ) -> Self {
        let state = Mutex::new(State {
            primaries: Given::new(primaries),
            handoffs: None,
            limited: std::collections::VecDeque::new(),
            last_resorts: 0,
        });
        Nodes {
            ring,
            partition,
            limiter,
            most,
            state,
        }
    }

    /// Exactly these nodes, in this order.
    pub fn in_order(
        ring: Arc<LoadedRing>,
        partition: u32,
        nodes: Vec<Node>,
        most: usize,
        limiter: Arc<ErrorLimiter>,
    ) -> Self {
        let nodes = Nodes::new(ring, partition, nodes, most, limiter);
        nodes.state.lock().handoffs = Some(Given::new(Vec::new()));
        nodes
    }

    /// The next node; `None` when the maximum is reached or no nodes are left.
    pub fn next(&self) -> Option<Node> {
        let mut state = self.state.lock();
        if self.is_enough(&state) {
            return None;
        }
        if let Some(node) = self.next_unlimited(&mut state) {
            return Some(node);
        }
        let node = state.limited.pop_front()?;
        state.last_resorts += 1;
        Some(node)
    }

    /// The next node that is not error-limited: for a request that other nodes are already working
    /// on.
    pub fn next_well(&self) -> Option<Node> {
        let mut state = self.state.lock();
        match self.is_enough(&state) {
            true => None,
            false => self.next_unlimited(&mut state),
        }
    }

    /// The next node, but error-limited primaries first and beyond the maximum: for information
    /// that only a node with the object has.
    pub fn next_primary(&self) -> Option<Node> {
        let mut state = self.state.lock();
        let passed_over = state.limited.iter().position(|node| !node.handoff);
        if let Some(at) = passed_over {
            state.last_resorts += 1;
            return state.limited.remove(at);
        }
        drop(state);
        self.next()
    }

    fn is_enough(&self, state: &State) -> bool {
        let seen = [Some(&state.primaries), state.handoffs.as_ref()];
        let seen = || seen.into_iter().flatten().flat_map(Given::seen);
        // Errors are checked only if the maximum has not been reached without them.
        if seen().count() + state.last_resorts < self.most {
            return false;
        }
        let well = seen().filter(|node| !self.limiter.is_limited(node));
        well.count() + state.last_resorts >= self.most
    }

    fn next_unlimited(&self, state: &mut State) -> Option<Node> {
        let State {
            primaries,
            handoffs,
            limited,
            ..
        } = state;
        while let Some(node) = primaries.next() {
            if !self.limiter.is_limited(&node) {
                return Some(node);
            }
            limited.push_back(node);
        }
        let handoffs = handoffs.get_or_insert_with(|| {
            let most = self.ring.ring().device_count();
            Given::new(self.ring.handoffs(self.partition, most))
        });
        while let Some(node) = handoffs.next() {
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
    /// Checks like [`Nodes::check`], for the response to a write. A device without free space refuses
    /// writes with the status of an unmounted one, but still serves reads and the deletions that free
    /// space, so it is not suppressed.
    pub fn check_write(&self, node: &Node, status: u16) -> bool {
        match status {
            507 => false,
            _ => self.check(node, status),
        }
    }

    /// Reports a bad response to the error limiter. Returns false if another node should be tried
    /// instead.
    pub fn check(&self, node: &Node, status: u16) -> bool {
        match status {
            507 => {
                self.limiter.limit_now(node, "insufficient storage");
                false
            }
            // The server is busy, not broken: this is not an error.
            503 | 529 => false,
            500..=599 => {
                self.limiter.increment(node, "server error");
                false
            }
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::hosts::tests::ring_of;

    #[test]
    fn a_device_that_takes_no_write_is_still_asked() {
        let ring = ring_of(&[("127.0.0.1", "127.0.0.1")]);
        let ring = Arc::new(LoadedRing::new(Arc::new(ring)));
        let node = ring.primaries(0).remove(0);
        let limiter = Arc::new(ErrorLimiter::new(Duration::from_secs(60), 10));
        let nodes = Nodes::in_order(ring, 0, vec![node.clone()], 1, limiter.clone());
        assert!(!nodes.check_write(&node, 507) && !limiter.is_limited(&node));
        assert!(!nodes.check(&node, 507) && limiter.is_limited(&node));
    }
}
