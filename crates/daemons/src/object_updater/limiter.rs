//! Rate limiter for `max_objects_per_container_per_second`: updates of a container above its rate
//! are deferred, and sent after the walk until the sweep's end. Containers share a fixed number of
//! buckets, which bounds the memory.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tokio::time::Instant;

use super::config::PerContainer;

pub(super) struct Limiter<T> {
    gap: Duration,
    buckets: Vec<Bucket<T>>,
    /// Buckets of the deferred updates, in order.
    order: VecDeque<usize>,
    deferred_max: usize,
    /// Randomly seeded: clients must not choose which containers share a bucket.
    hasher: RandomState,
    pub(super) counts: Counts,
}

struct Bucket<T> {
    free_from: Instant,
    deferred: VecDeque<T>,
}

/// Each deferral ends as a drain or as a skip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) deferrals: u64,
    pub(super) skips: u64,
    pub(super) drains: u64,
}

impl<T> Limiter<T> {
    /// Creates a limiter; none without a limit.
    pub(super) fn new(config: &PerContainer, now: Instant) -> Option<Self> {
        if config.per_second <= 0.0 {
            return None;
        }
        let gap = Duration::try_from_secs_f64(1.0 / config.per_second);
        let bucket = |_| Bucket {
            free_from: now,
            deferred: VecDeque::new(),
        };
        Some(Limiter {
            gap: gap.unwrap_or(Duration::MAX).min(Duration::from_secs(3600)),
            buckets: (0..config.buckets).map(bucket).collect(),
            order: VecDeque::new(),
            deferred_max: config.deferred_max,
            hasher: RandomState::new(),
            counts: Counts::default(),
        })
    }

    /// Returns the item if it may be sent now, else defers it; above the maximum the oldest are
    /// dropped, as newer updates may have made them obsolete.
    pub(super) fn admit(&mut self, container: (&str, &str), item: T, now: Instant) -> Option<T> {
        let number = self.hasher.hash_one(container) % self.buckets.len() as u64;
        let number = number as usize;
        let bucket = &mut self.buckets[number];
        if bucket.free_from <= now {
            bucket.free_from = now + self.gap;
            return Some(item);
        }
        self.counts.deferrals += 1;
        bucket.deferred.push_back(item);
        self.order.push_back(number);
        if self.order.len() > self.deferred_max
            && let Some(oldest) = self.order.pop_front()
        {
            self.buckets[oldest].deferred.pop_front();
            self.counts.skips += 1;
        }
        None
    }

    /// The next deferred item and its time. The newest of a bucket comes first.
    pub(super) fn drain(&mut self, until: Instant) -> Option<(Instant, T)> {
        let waiting = self.buckets.iter_mut().filter(|b| !b.deferred.is_empty());
        let next = waiting.min_by_key(|bucket| bucket.free_from);
        let due = next.filter(|bucket| bucket.free_from < until);
        let taken = due.and_then(|bucket| {
            let at = bucket.free_from;
            bucket.free_from = at.max(Instant::now()) + self.gap;
            Some((at, bucket.deferred.pop_back()?))
        });
        match &taken {
            Some(_) => self.counts.drains += 1,
            None => self.counts.skips = self.counts.deferrals - self.counts.drains,
        }
        taken
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn limiter(per_second: f64, deferred_max: usize) -> Limiter<u32> {
        let config = PerContainer {
            per_second,
            buckets: 1000,
            deferred_max,
        };
        Limiter::new(&config, Instant::now()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn each_container_has_its_share() {
        let mut limiter = limiter(10.0, 3);
        let now = Instant::now();
        assert_eq!(limiter.admit(("a", "busy"), 0, now), Some(0));
        for n in 1..6 {
            assert_eq!(limiter.admit(("a", "busy"), n, now), None);
        }
        assert_eq!(limiter.counts.skips, 2);
        let later = now + Duration::from_millis(100);
        assert_eq!(limiter.admit(("a", "busy"), 6, later), Some(6));
        // The oldest two were dropped; time remains for one more.
        let until = now + Duration::from_millis(300);
        let (at, next) = limiter.drain(until).unwrap();
        assert_eq!((at - now, next), (Duration::from_millis(200), 5));
        tokio::time::sleep_until(at).await;
        assert_eq!(limiter.drain(until), None);
        let Counts {
            deferrals,
            skips,
            drains,
        } = limiter.counts;
        assert_eq!((deferrals, skips, drains), (5, 4, 1));
    }

    #[test]
    fn nothing_is_limited_without_a_limit() {
        let config = PerContainer {
            per_second: 0.0,
            buckets: 1,
            deferred_max: 1,
        };
        assert!(Limiter::<u32>::new(&config, Instant::now()).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn none_may_be_deferred() {
        let mut limiter = limiter(1.0, 0);
        let now = Instant::now();
        limiter.admit(("a", "c"), 1, now);
        assert_eq!(limiter.admit(("a", "c"), 2, now), None);
        assert_eq!(limiter.drain(now + Duration::from_secs(9)), None);
        assert_eq!((limiter.counts.deferrals, limiter.counts.skips), (1, 1));
    }
}
