//! Hedged reads: if a server is slow to respond to a read, the read is also sent to a second
//! server, and the first good response is used.
//!
//! The delay and the budget of tokens are in [`crate::hedging`]. Hedges beside servers that are known
//! to hang ([`crate::reach`]) cost no tokens. A server that exceeds its delay is probed, which
//! distinguishes a hanging one from a slow one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cairn_http::metrics::{HedgeOutcome, count_hedge};
use tokio::time::Instant;

use crate::backends::Backends;
use crate::hedging::TOKENS_PER_HEDGE;
use crate::node::Node;
use crate::nodes::Nodes;

/// Interval at which an overdue call is checked again.
const RECHECK_INTERVAL: Duration = Duration::from_millis(250);

/// The calls of one read that are in progress.
pub struct OpenCalls {
    backends: Arc<Backends>,
    nodes: Arc<Nodes>,
    calls: Vec<OpenCall>,
}

struct OpenCall {
    node: Node,
    /// Time at which the call is overdue and another server is asked.
    due: Instant,
    is_hedged: bool,
}

impl OpenCall {
    /// Handles a call that is overdue: its server may hang, so it is probed.
    fn look_again(&mut self, now: Instant, backends: &Backends) {
        self.due = now + cairn_types::dilation::dilated(RECHECK_INTERVAL);
        if !backends.is_in_process(self.node.address) {
            backends.reach().probe(self.node.address);
        }
    }
}

impl OpenCalls {
    /// `nodes` provides the servers to hedge with.
    pub fn new(backends: Arc<Backends>, nodes: Arc<Nodes>) -> Self {
        let calls = Vec::new();
        OpenCalls {
            backends,
            nodes,
            calls,
        }
    }

    /// Adds a call that is sent now.
    pub fn sent(&mut self, node: &Node) {
        self.sent_within(node, self.backends.hedging().delay(node.address));
    }

    /// Adds a call that is sent now and overdue after `delay`, whatever its server's times are.
    pub fn sent_within(&mut self, node: &Node, delay: Duration) {
        self.sent_at(node, Instant::now() + delay);
    }

    /// Adds a call that has already waited for its whole delay.
    pub fn sent_before(&mut self, node: &Node) {
        self.sent_at(node, Instant::now());
    }

    fn sent_at(&mut self, node: &Node, due: Instant) {
        self.calls.push(OpenCall {
            node: node.clone(),
            due,
            is_hedged: false,
        });
    }

    /// Removes a call that has ended.
    pub fn ended(&mut self, node: &Node) {
        let is_it = |call: &OpenCall| {
            call.node.device.id == node.device.id && call.node.address == node.address
        };
        if let Some(at) = self.calls.iter().position(is_it) {
            self.calls.swap_remove(at);
        }
    }

    /// The servers of the calls in progress.
    pub fn nodes(&self) -> impl Iterator<Item = Node> {
        self.calls.iter().map(|call| call.node.clone())
    }

    /// Waits until a call is overdue.
    pub async fn overdue(&self) {
        match self.calls.iter().map(|call| call.due).min() {
            Some(due) => tokio::time::sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// The servers whose calls are overdue, each with a lower bound of its waiting time.
    pub fn overdue_servers(&self) -> impl Iterator<Item = (SocketAddr, Duration)> {
        let now = Instant::now();
        let overdue = self.calls.iter().filter(move |call| call.due <= now);
        overdue.map(|call| {
            let address = call.node.address;
            (address, self.backends.hedging().delay(address))
        })
    }

    /// The next server to ask beside one whose call is overdue; `None` if no hedge is due or
    /// allowed now.
    pub fn hedge(&mut self) -> Option<Node> {
        let now = Instant::now();
        let (backends, hedging) = (&self.backends, self.backends.hedging());
        for call in self.calls.iter_mut().filter(|call| call.due <= now) {
            call.look_again(now, backends);
            if call.is_hedged {
                continue;
            }
            let address = call.node.address;
            let is_free = backends.reach().is_silent(address);
            if !is_free && !hedging.spend() {
                count_hedge(HedgeOutcome::Withheld);
                continue;
            }
            let Some(node) = self.nodes.next_well() else {
                if !is_free {
                    hedging.earn(TOKENS_PER_HEDGE);
                }
                return None;
            };
            call.is_hedged = true;
            if !is_free {
                hedging.learn(address, hedging.delay(address));
            }
            count_hedge(HedgeOutcome::Sent);
            return Some(node);
        }
        None
    }

    /// Handles overdue calls without hedging. Without this or [`OpenCalls::hedge`] they would stay
    /// overdue, and [`OpenCalls::overdue`] would return at once.
    pub fn look_without_hedging(&mut self) {
        let now = Instant::now();
        for call in self.calls.iter_mut().filter(|call| call.due <= now) {
            call.look_again(now, &self.backends);
        }
    }

    /// Do all calls in progress wait for servers that hang?
    pub fn are_all_hung(&self) -> bool {
        let mut calls = self.calls.iter();
        calls.all(|call| self.backends.is_hung(call.node.address))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::error_limit::ErrorLimiter;
    use crate::hedging::TOKENS_MAX;
    use crate::hosts::tests::ring_of;
    use crate::rings::LoadedRing;

    fn address() -> SocketAddr {
        ([127, 0, 0, 1], 6200).into()
    }

    #[tokio::test(start_paused = true)]
    async fn hedges_are_a_tenth_of_the_reads() {
        let hosts: Vec<String> = (1..=9).map(|n| format!("127.0.0.{n}")).collect();
        let hosts: Vec<_> = hosts.iter().map(|h| (h.as_str(), h.as_str())).collect();
        let ring = Arc::new(LoadedRing::new(Arc::new(ring_of(&hosts))));
        let backends = Backends::new(Duration::from_secs(1));
        let mut all = ring.primaries(0);
        all.extend(ring.handoffs(0, 9));
        for node in &all {
            let handler = cairn_http::handler_fn(|_| std::future::pending());
            backends.register_local(node.address, handler);
        }
        let read = async || {
            let limiter = Arc::new(ErrorLimiter::new(Duration::from_secs(60), 10));
            let nodes = Nodes::in_order(ring.clone(), 0, all.clone(), 9, limiter);
            let nodes = Arc::new(nodes);
            let mut calls = OpenCalls::new(backends.clone(), nodes.clone());
            calls.sent(&nodes.next().unwrap());
            assert!(calls.hedge().is_none(), "it is not overdue");
            calls.overdue().await;
            let hedge = calls.hedge();
            assert!(calls.hedge().is_none(), "one for each slow call");
            usize::from(hedge.is_some())
        };
        let mut hedges = 0;
        for _ in 0..100 {
            hedges += read().await;
        }
        assert_eq!(hedges, (TOKENS_MAX / TOKENS_PER_HEDGE) as usize);
        for _ in 0..100 {
            backends.hedging().note(address(), Duration::from_millis(1));
            hedges += read().await;
        }
        assert_eq!(hedges, 20);
    }

    #[tokio::test(start_paused = true)]
    async fn an_overdue_call_that_is_not_hedged_is_waited_for() {
        let ring = Arc::new(LoadedRing::new(Arc::new(ring_of(&[(
            "127.0.0.1",
            "127.0.0.1",
        )]))));
        let backends = Backends::new(Duration::from_secs(1));
        let node = ring.primaries(0).remove(0);
        let handler = cairn_http::handler_fn(|_| std::future::pending());
        backends.register_local(node.address, handler);
        let limiter = Arc::new(ErrorLimiter::new(Duration::from_secs(60), 10));
        let nodes = Nodes::in_order(ring, 0, vec![node.clone()], 1, limiter);
        let mut calls = OpenCalls::new(backends, Arc::new(nodes));
        calls.sent(&node);
        calls.overdue().await;
        calls.look_without_hedging();
        let looked = Instant::now();
        calls.overdue().await;
        assert!(looked.elapsed() >= RECHECK_INTERVAL);
    }
}
