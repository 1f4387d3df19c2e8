//! Progress of a pass: steps done of a total.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Counter updated by a pass, and read for display.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    of: AtomicU64,
    began: Mutex<Option<Instant>>,
}

impl Progress {
    /// Starts a pass of `of` steps.
    pub(crate) fn begin(&self, of: usize) {
        self.done.store(0, Ordering::Relaxed);
        self.of.store(of as u64, Ordering::Relaxed);
        *self.began.lock() = Some(Instant::now());
    }

    pub(crate) fn step(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// Steps done, and the total; 0 before it is known.
    pub fn get(&self) -> (u64, u64) {
        (
            self.done.load(Ordering::Relaxed),
            self.of.load(Ordering::Relaxed),
        )
    }

    /// Estimated remaining time by the average so far; `None` before the first step.
    pub fn remaining(&self) -> Option<Duration> {
        let began = *self.began.lock();
        let (done, of) = self.get();
        let share = of.saturating_sub(done) as f64 / done as f64;
        let left = began?.elapsed().as_secs_f64() * share;
        Duration::try_from_secs_f64(left).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_rest_takes_as_long_as_what_was() {
        let progress = Progress::default();
        assert_eq!(progress.remaining(), None);
        progress.begin(4);
        assert_eq!(progress.remaining(), None);
        tokio::time::sleep(Duration::from_secs(30)).await;
        progress.step();
        assert_eq!(progress.remaining(), Some(Duration::from_secs(90)));
        for _ in 0..3 {
            progress.step();
        }
        assert_eq!(progress.remaining(), Some(Duration::ZERO));
        progress.begin(0);
        assert_eq!(progress.remaining(), None);
    }
}
