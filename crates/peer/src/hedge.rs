//! Hedged reads: if a server is slow to respond to a read, the read is also sent to a second
//! server, and the first good response is used.
//!
//! The delay before the second request is learnt from each server's response times: a multiple of
//! its slow ones, which a healthy server seldom exceeds. The number of hedges is bounded by a token
//! budget of a tenth of the reads and a small burst, so that an overloaded cluster does not get
//! additional load. Hedges beside servers that are known to hang ([`crate::reach`]) cost no tokens.
//! A server that exceeds its delay is probed, which distinguishes a hanging one from a slow one.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cairn_http::metrics::{HedgeOutcome, count_hedge};
use parking_lot::RwLock;
use tokio::time::Instant;

use crate::backends::Backends;
use crate::node::Node;
use crate::nodes::Nodes;

/// Minimum delay, however quick the server's earlier responses were.
const DELAY_MIN: Duration = Duration::from_millis(50);
/// Maximum delay, also used for a server without known response times.
const DELAY_MAX: Duration = Duration::from_millis(500);
/// Delay as a multiple of a slow response's time.
const DELAY_FACTOR: u32 = 3;
/// A response slower than the estimate raises it by 1/`RISE` of the difference, a faster one lowers
/// it by 1/`FALL`: the estimate converges where about one response in twenty is slower.
const RISE: u32 = 8;
const FALL: u32 = 128;
/// Interval at which an overdue call is checked again.
const RECHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Tokens: each answered read earns one, a hedge costs [`TOKENS_PER_HEDGE`], and at most enough for
/// ten hedges are kept.
const TOKENS_PER_HEDGE: u32 = 10;
const TOKENS_MAX: u32 = 10 * TOKENS_PER_HEDGE;

/// Learnt response times of servers, and the token budget of hedges; one per process.
#[derive(Debug)]
pub struct Hedging {
    /// Estimated microseconds until a slow response's head arrives. The number of servers is
    /// bounded by the rings.
    slow_answers: RwLock<HashMap<SocketAddr, AtomicU32>>,
    tokens: AtomicU32,
}

impl Default for Hedging {
    fn default() -> Self {
        Hedging {
            slow_answers: RwLock::default(),
            tokens: AtomicU32::new(TOKENS_MAX),
        }
    }
}

impl Hedging {
    /// Delay after which another server is asked beside this one.
    pub fn delay(&self, address: SocketAddr) -> Duration {
        let known = self.slow_answers.read();
        let Some(slow) = known.get(&address) else {
            return DELAY_MAX;
        };
        let slow = Duration::from_micros(slow.load(Ordering::Relaxed).into());
        (slow * DELAY_FACTOR).clamp(DELAY_MIN, DELAY_MAX)
    }

    /// Records how long a read waited for the head of the server's response.
    pub fn note(&self, address: SocketAddr, took: Duration) {
        self.earn(1);
        self.learn(address, took);
    }

    fn learn(&self, address: SocketAddr, took: Duration) {
        // Longer times would not change the delay.
        let took = took.min(DELAY_MAX).as_micros() as u32;
        let known = self.slow_answers.read();
        if let Some(slow) = known.get(&address) {
            // One of two concurrent updates may be lost, which is acceptable.
            let before = slow.load(Ordering::Relaxed);
            let after = match took > before {
                true => before + (took - before).div_ceil(RISE),
                false => before - (before - took) / FALL,
            };
            slow.store(after, Ordering::Relaxed);
            return;
        }
        drop(known);
        let mut all = self.slow_answers.write();
        all.insert(address, AtomicU32::new(took));
    }

    fn earn(&self, tokens: u32) {
        // The budget is full most of the time: this avoids a write to a cache line that all threads
        // share.
        if self.tokens.load(Ordering::Relaxed) < TOKENS_MAX {
            self.tokens.fetch_add(tokens, Ordering::Relaxed);
        }
    }

    fn spend(&self) -> bool {
        let less = |tokens: u32| tokens.checked_sub(TOKENS_PER_HEDGE);
        let spent = self
            .tokens
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        spent.is_ok()
    }
}

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
        self.due = now + RECHECK_INTERVAL;
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
    use crate::hosts::tests::ring_of;
    use crate::rings::LoadedRing;

    fn address() -> SocketAddr {
        ([127, 0, 0, 1], 6200).into()
    }

    #[test]
    fn the_delay_follows_slow_answers() {
        let hedging = Hedging::default();
        assert_eq!(hedging.delay(address()), DELAY_MAX, "nothing is known");
        for _ in 0..100 {
            hedging.note(address(), Duration::from_millis(2));
        }
        assert_eq!(hedging.delay(address()), DELAY_MIN);
        // One in ten takes fifty times as long.
        for n in 0..2000 {
            let took = if n % 10 == 0 { 100 } else { 2 };
            hedging.note(address(), Duration::from_millis(took));
        }
        let delay = hedging.delay(address());
        let expected = Duration::from_millis(100)..Duration::from_millis(300);
        assert!(expected.contains(&delay), "{delay:?}");
        for _ in 0..100 {
            hedging.note(address(), Duration::from_secs(20));
        }
        assert_eq!(hedging.delay(address()), DELAY_MAX);
        for _ in 0..2000 {
            hedging.note(address(), Duration::from_millis(2));
        }
        assert_eq!(hedging.delay(address()), DELAY_MIN);
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
