//! The delay and the budget of hedged reads ([`crate::hedge`]).
//!
//! The delay before the second request is learnt from each server's response times: a multiple of
//! its slow ones, which a healthy server seldom exceeds. The number of hedges is bounded by a token
//! budget of a tenth of the reads and a small burst, so that an overloaded cluster does not get
//! additional load.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cairn_types::dilation::dilated;
use parking_lot::RwLock;

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
/// Tokens: each answered read earns one, a hedge costs [`TOKENS_PER_HEDGE`], and at most enough for
/// ten hedges are kept.
pub(crate) const TOKENS_PER_HEDGE: u32 = 10;
pub(crate) const TOKENS_MAX: u32 = 10 * TOKENS_PER_HEDGE;

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
            return dilated(DELAY_MAX);
        };
        let slow = Duration::from_micros(slow.load(Ordering::Relaxed).into());
        (slow * DELAY_FACTOR).clamp(dilated(DELAY_MIN), dilated(DELAY_MAX))
    }

    /// Records how long a read waited for the head of the server's response.
    pub fn note(&self, address: SocketAddr, took: Duration) {
        self.earn(1);
        self.learn(address, took);
    }

    pub(crate) fn learn(&self, address: SocketAddr, took: Duration) {
        // Longer times would not change the delay.
        let took = took.min(dilated(DELAY_MAX)).as_micros() as u32;
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

    pub(crate) fn earn(&self, tokens: u32) {
        // The budget is full most of the time: this avoids a write to a cache line that all threads
        // share.
        if self.tokens.load(Ordering::Relaxed) < TOKENS_MAX {
            self.tokens.fetch_add(tokens, Ordering::Relaxed);
        }
    }

    pub(crate) fn spend(&self) -> bool {
        let less = |tokens: u32| tokens.checked_sub(TOKENS_PER_HEDGE);
        let spent = self
            .tokens
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        spent.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
