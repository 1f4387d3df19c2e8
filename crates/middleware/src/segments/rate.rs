//! Rate limit for requests of segments: some without limit, then a number per second, so that an
//! object of many tiny segments cannot overload the servers.

use std::time::Duration;

use cairn_formats::ini::{ConfError, Section};
use tokio::time::{Instant, sleep_until};

/// Maximum lag that may be caught up.
const BUFFER: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub(crate) struct RateLimit {
    /// Number of further requests without limit.
    free: u64,
    /// Time between two requests; `None`: no limit.
    interval: Option<Duration>,
    next: Option<Instant>,
}

impl RateLimit {
    /// Reads `rate_limit_after_segment` and `rate_limit_segments_per_sec`; 0 per second means no
    /// limit.
    pub(crate) fn read(section: &Section) -> Result<Self, ConfError> {
        let per_second = section.u64_or("rate_limit_segments_per_sec", 1)?;
        Ok(RateLimit {
            free: section.u64_or("rate_limit_after_segment", 10)?,
            interval: (per_second > 0)
                .then(|| Duration::from_secs(1) / per_second.min(1 << 20) as u32),
            next: None,
        })
    }

    /// Returns when the next request is allowed.
    pub(crate) async fn wait(&mut self) {
        if self.free > 0 {
            self.free -= 1;
            return;
        }
        let Some(interval) = self.interval else {
            return;
        };
        let now = Instant::now();
        // After a long pause the unused rate is lost.
        let due = match self.next {
            Some(next) if next + BUFFER >= now => next,
            _ => now,
        };
        self.next = Some(due + interval);
        sleep_until(due).await;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    async fn seconds(options: &[(&str, &str)], count: usize) -> u64 {
        let section = Section::from_pairs("filter:x", options);
        let mut rate = RateLimit::read(&section).unwrap();
        let start = Instant::now();
        for _ in 0..count {
            rate.wait().await;
        }
        start.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn free_ones_then_a_pace() {
        assert_eq!(seconds(&[], 10).await, 0);
        assert_eq!(seconds(&[], 11).await, 0);
        assert_eq!(seconds(&[], 15).await, 4);
        let fast = [("rate_limit_segments_per_sec", "10")];
        assert_eq!(seconds(&fast, 41).await, 3);
        let off = [("rate_limit_segments_per_sec", "0")];
        assert_eq!(seconds(&off, 1000).await, 0);
    }
}
