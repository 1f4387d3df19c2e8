//! Lockup detection of a pass.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, interval_at, sleep};

/// Lockup detection of a pass.
pub(crate) struct Watch<'a> {
    /// Counter of progress.
    pub(crate) progress_count: &'a AtomicU64,
    /// Maximum time without progress; at least a second.
    pub(crate) lockup: Duration,
    /// Interval of calls of `report`; at least a second.
    pub(crate) report_every: Duration,
}

impl Watch<'_> {
    /// Runs `work`; false if it made no progress for too long and was dropped.
    pub(crate) async fn over(&self, work: impl Future<Output = ()>, report: impl Fn()) -> bool {
        let interval = self.report_every.max(Duration::from_secs(1));
        let lockup = self.lockup.max(Duration::from_secs(1));
        let mut ticks = interval_at(Instant::now() + interval, interval);
        let mut work = std::pin::pin!(work);
        let (mut progress_count, mut silent_since) = (0, Instant::now());
        loop {
            tokio::select! {
                biased;
                () = &mut work => return true,
                _ = ticks.tick() => report(),
                () = sleep(lockup.min(Duration::from_secs(10))) => {}
            }
            let now_heard = self.progress_count.load(Ordering::Relaxed);
            if now_heard != progress_count {
                (progress_count, silent_since) = (now_heard, Instant::now());
            } else if silent_since.elapsed() >= lockup {
                tracing::error!(?lockup, "nothing was done for too long: pass given up");
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silence_ends_a_pass() {
        let progress_count = AtomicU64::new(0);
        let reports = AtomicU64::new(0);
        let watch = Watch {
            progress_count: &progress_count,
            lockup: Duration::from_secs(30),
            report_every: Duration::from_secs(60),
        };
        let report = || _ = reports.fetch_add(1, Ordering::Relaxed);
        let started = Instant::now();
        let busy = async {
            for _ in 0..10 {
                sleep(Duration::from_secs(20)).await;
                progress_count.fetch_add(1, Ordering::Relaxed);
            }
        };
        assert!(watch.over(busy, report).await);
        assert_eq!(started.elapsed().as_secs(), 200);
        assert_eq!(reports.load(Ordering::Relaxed), 3);
        assert!(!watch.over(std::future::pending(), report).await);
        assert!(started.elapsed().as_secs() < 250);
    }
}
