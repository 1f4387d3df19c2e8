//! Figures of an open loop: what was asked for, what was achieved, and whether the store kept up.

use serde::{Deserialize, Serialize};

use super::OperationResult;
use crate::latencies::Latencies;

/// Fraction of the offered rate below which an open loop has not kept up, if requests began late
/// too.
const KEPT_UP_MIN: f64 = 0.98;
/// Median delay above which a queue is not accidental.
const MEDIAN_DELAY_MAX_NS: u64 = 10_000_000;
/// Fraction of what was due, below which a queue is in the store although its requests began in time:
/// if half of them took this many times what the fastest hundredth took.
const ANSWERED_MIN: f64 = 0.9;
const GROWTH_MIN: u64 = 10;
/// Number of requests below which neither can be told.
const COUNT_MIN: u64 = 100;
/// Delay after the due time above which a request was late.
const LATE_NS: u64 = 1_000_000;

/// Figures of an open loop: rates per second, delays from due time to actual start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OpenLoop {
    /// Rate of requests that were due.
    pub offered: f64,
    /// Rate of successful requests that ended.
    pub achieved: f64,
    /// Fraction of requests that began more than a millisecond late.
    pub late: f64,
    pub delay_p50_ns: u64,
    pub delay_p99_ns: u64,
    pub delay_max_ns: u64,
    /// The store (or its workers) could not keep up with the offered rate: the queue grew, and
    /// latencies depend on the length of the run.
    pub overloaded: bool,
}

impl OpenLoop {
    /// Figures of parts of one work that lasted `seconds`.
    pub fn of(parts: &[&OperationResult], seconds: f64) -> Option<Self> {
        if seconds <= 0.0 || parts.iter().all(|part| part.ended.is_none()) {
            return None;
        }
        let mut delay = Latencies::new();
        let mut took = Latencies::new();
        let (mut due, mut ended, mut failed) = (0, 0, 0);
        for part in parts {
            due += part.ops + part.failed();
            failed += part.failed();
            ended += part.ended.unwrap_or(0);
            delay.merge(&part.delay);
            took.merge(&part.last_byte);
        }
        let late: u64 = delay
            .counts()
            .into_iter()
            .filter(|(ns, _)| *ns > LATE_NS)
            .map(|(_, count)| count)
            .sum();
        let (offered, achieved) = (due as f64 / seconds, ended as f64 / seconds);
        let delay_p50_ns = delay.percentile(50.0);
        let waits_outside = achieved < KEPT_UP_MIN * offered && delay_p50_ns > MEDIAN_DELAY_MAX_NS;
        // With many workers requests begin in time, and wait in the store.
        let waits_inside = due >= COUNT_MIN
            && ((ended + failed) as f64) < ANSWERED_MIN * due as f64
            && took.percentile(50.0) > GROWTH_MIN * took.percentile(1.0);
        Some(Self {
            offered,
            achieved,
            late: late as f64 / delay.count().max(1) as f64,
            delay_p50_ns,
            delay_p99_ns: delay.percentile(99.0),
            delay_max_ns: delay.max(),
            overloaded: waits_outside || waits_inside,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `count` requests due in a second of which `ended` ended in it; the n-th took `first` and n times
    /// `more` milliseconds, and all began in time.
    fn part(count: u64, ended: u64, first: u64, more: u64) -> OperationResult {
        let mut part = OperationResult {
            ops: count,
            ended: Some(ended),
            ..OperationResult::default()
        };
        for n in 0..count {
            part.last_byte.record((first + n * more) * 1_000_000);
            part.delay.record(0);
        }
        part
    }

    #[test]
    fn a_queue_in_the_store_is_none_that_it_kept_up_with() {
        let overloaded = |part: &OperationResult| OpenLoop::of(&[part], 1.0).unwrap().overloaded;
        assert!(overloaded(&part(1000, 400, 10, 2)));
        // Slow from the first on: what has not ended is what is always under way.
        assert!(!overloaded(&part(1000, 600, 400, 0)));
        assert!(!overloaded(&part(1000, 990, 10, 1)));
        // Too few to tell, and failures are answers, too.
        assert!(!overloaded(&part(50, 20, 10, 20)));
        let mut refused = part(500, 500, 10, 2);
        refused
            .errors
            .insert(crate::record::ErrorKind::Timeout, 500);
        assert!(!overloaded(&refused));
    }
}
