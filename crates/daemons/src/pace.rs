//! So many steps a second at most.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Spaces steps evenly; time lost to slow steps is not made up for by a burst.
pub(crate) struct Pace {
    gap: Duration,
    next: Instant,
}

impl Pace {
    /// `per_second` of 0: no limit.
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

#[cfg(test)]
mod tests {
    use super::*;

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
