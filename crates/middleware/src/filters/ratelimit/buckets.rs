//! Rate limit buckets with virtual clocks: each request advances its bucket's clock by its share of
//! a second, and the clock may lag behind the real one by the buffer of a slow client.

use std::collections::HashMap;
use std::time::Duration;

use cairn_types::Timestamp;
use cairn_types::timestamp::TICKS_PER_SECOND;
use parking_lot::Mutex;

/// Maximum number of buckets; those that lag behind have no effect and are dropped first.
const BUCKETS_MAX: usize = 100_000;

pub(super) struct Buckets {
    /// Virtual clocks in ticks of the accuracy.
    running: Mutex<HashMap<String, i64>>,
    accuracy: f64,
    buffer_seconds: i64,
    max_sleep: f64,
}

#[derive(Debug, PartialEq)]
pub(super) enum Wait {
    For(Duration),
    /// Too long a delay: the request is refused and not counted.
    TooLong(Duration),
}

impl Buckets {
    pub(super) fn new(accuracy: u64, buffer_seconds: u64, max_sleep: f64) -> Self {
        Buckets {
            running: Mutex::default(),
            accuracy: accuracy as f64,
            buffer_seconds: i64::try_from(buffer_seconds).unwrap_or(i64::MAX),
            max_sleep,
        }
    }

    /// Counts a request in a bucket with `rate` per second.
    pub(super) fn take(&self, key: &str, rate: f64, now: Timestamp) -> Wait {
        let now = now.ticks() as f64 * self.accuracy / TICKS_PER_SECOND as f64;
        let now = now.round() as i64;
        let share = (self.accuracy / rate).round() as i64;
        let buffer = self.buffer_seconds.saturating_mul(self.accuracy as i64);
        let mut all = self.running.lock();
        if all.len() >= BUCKETS_MAX && !all.contains_key(key) {
            all.retain(|_, running| *running > now);
            if all.len() >= BUCKETS_MAX {
                all.clear();
            }
        }
        let running = all.entry(key.to_owned()).or_insert(0);
        *running = running.saturating_add(share);
        let mut wait = 0;
        if now.saturating_sub(*running) > buffer {
            *running = now.saturating_add(share);
        } else {
            wait = (*running - now - share).max(0);
        }
        let seconds = wait as f64 / self.accuracy;
        if (self.max_sleep - seconds) * self.accuracy <= self.accuracy * 0.01 {
            *running -= share;
            return Wait::TooLong(duration(seconds));
        }
        Wait::For(duration(seconds))
    }
}

fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_spread() {
        let buckets = Buckets::new(1000, 5, 0.35);
        let now = Timestamp::from_secs(1_000_000);
        let wait = |millis| Wait::For(Duration::from_millis(millis));
        for millis in [0, 100, 200, 300] {
            assert_eq!(buckets.take("a", 10.0, now), wait(millis));
        }
        for _ in 0..2 {
            let too_long = Wait::TooLong(Duration::from_millis(400));
            assert_eq!(buckets.take("a", 10.0, now), too_long);
        }
        assert_eq!(buckets.take("b", 10.0, now), wait(0));
        // Three seconds without requests accumulate nearly thirty; six accumulate none, being
        // beyond the buffer.
        let later = Timestamp::from_secs(1_000_003);
        let at_once = (0..40).filter(|_| buckets.take("a", 10.0, later) == wait(0));
        assert_eq!(at_once.count(), 27);
        let later = Timestamp::from_secs(1_000_020);
        assert_eq!(buckets.take("a", 10.0, later), wait(0));
        assert_eq!(buckets.take("a", 10.0, later), wait(100));
    }
}
