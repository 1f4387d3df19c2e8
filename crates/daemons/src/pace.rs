//! Rate limits: steps or bytes per second, and yielding to clients.

use std::time::Duration;

use cairn_index::IndexPool;
use tokio::time::{Instant, sleep, sleep_until};

/// Maximum time a database's work yields to clients.
const YIELD_MAX: Duration = Duration::from_millis(100);
const YIELD_STEP: Duration = Duration::from_millis(2);

/// Waits while jobs are queued for the databases of this device.
pub(crate) async fn yield_to_clients(pool: &IndexPool, device: &str) {
    let until = Instant::now() + YIELD_MAX;
    while pool.is_busy(device) && Instant::now() < until {
        sleep(YIELD_STEP).await;
    }
}

/// Limiter that spaces steps evenly; slow steps are not followed by a burst.
pub(crate) struct Pace {
    gap: Duration,
    next: Instant,
}

impl Pace {
    /// `per_second` of 0 is unlimited.
    pub(crate) fn new(per_second: f64) -> Pace {
        let gap = if per_second > 0.0 {
            Duration::try_from_secs_f64(1.0 / per_second).unwrap_or(Duration::MAX)
        } else {
            Duration::ZERO
        };
        Pace {
            gap,
            next: Instant::now(),
        }
    }

    /// Waits until the next step may start.
    pub(crate) async fn step(&mut self) {
        if self.gap.is_zero() {
            return;
        }
        sleep_until(self.next).await;
        self.next = Instant::now() + self.gap.min(Duration::from_secs(3600));
    }
}

/// Limiter of bytes per second.
pub(crate) struct BytePace {
    per_second: f64,
    next: Instant,
}

impl BytePace {
    /// `per_second` of 0 is unlimited.
    pub(crate) fn new(per_second: f64) -> BytePace {
        BytePace {
            per_second,
            next: Instant::now(),
        }
    }

    /// Accounts for bytes already read, after waiting for earlier ones.
    pub(crate) async fn took(&mut self, bytes: u64) {
        if self.per_second <= 0.0 {
            return;
        }
        sleep_until(self.next).await;
        let gap = Duration::try_from_secs_f64(bytes as f64 / self.per_second);
        let gap = gap.unwrap_or(Duration::MAX).min(Duration::from_secs(3600));
        self.next = self.next.max(Instant::now()) + gap;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn bytes_are_spaced() {
        let start = Instant::now();
        let mut pace = BytePace::new(1000.0);
        for _ in 0..11 {
            pace.took(100).await;
        }
        assert!(start.elapsed() >= Duration::from_secs(1));
        assert!(start.elapsed() < Duration::from_millis(1200));
    }

    #[tokio::test(start_paused = true)]
    async fn steps_are_spaced() {
        let start = Instant::now();
        let mut pace = Pace::new(10.0);
        for _ in 0..11 {
            pace.step().await;
        }
        assert!(start.elapsed() >= Duration::from_secs(1));
        let mut free = Pace::new(0.0);
        let start = Instant::now();
        free.step().await;
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
