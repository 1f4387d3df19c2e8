//! Clock passed as a value at start, so that tests and the simulator control time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cairn_types::Timestamp;

/// A source of the current time. Clones share it.
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    System(Arc<AtomicU64>),
    Manual(Arc<AtomicU64>),
    Given(Given, Arc<AtomicU64>),
}

type Given = Arc<dyn Fn() -> Timestamp + Send + Sync>;

impl Clock {
    pub fn system() -> Self {
        Clock(Source::System(Arc::new(AtomicU64::new(0))))
    }

    /// A clock that stands still until it is set, in ticks of ten microseconds.
    pub fn manual(start: Timestamp) -> Self {
        Clock(Source::Manual(Arc::new(AtomicU64::new(start.ticks()))))
    }

    /// A clock that reads its time from `now`, for the simulator.
    pub fn given(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Clock(Source::Given(Arc::new(now), Arc::new(AtomicU64::new(0))))
    }

    /// The current time.
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System(_) => Timestamp::from_unix(
                SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .unwrap_or(Duration::ZERO),
            ),
            Source::Manual(ticks) => Timestamp::from_ticks(ticks.load(Ordering::SeqCst)),
            Source::Given(now, _) => now(),
        }
    }

    /// The current time, made later than every earlier result of this method: two writes that one
    /// proxy orders never get the same timestamp.
    pub fn unique(&self) -> Timestamp {
        let now = self.now().ticks();
        match &self.0 {
            Source::System(last) | Source::Given(_, last) => {
                let before = last
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |l| Some(now.max(l + 1)))
                    .unwrap_or_else(|l| l);
                Timestamp::from_ticks(now.max(before + 1))
            }
            Source::Manual(ticks) => {
                Timestamp::from_ticks(ticks.fetch_add(1, Ordering::SeqCst) + 1)
            }
        }
    }

    /// Moves a manual clock forward; no effect on other clocks.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual(ticks) = &self.0 {
            ticks.fetch_add((by.as_micros() / 10) as u64, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unique_rises() {
        let clock = Clock::system();
        let times: Vec<_> = (0..1000).map(|_| clock.unique()).collect();
        assert!(times.windows(2).all(|w| w[0] < w[1]));
    }
}
