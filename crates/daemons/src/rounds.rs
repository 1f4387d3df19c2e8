//! The same work again at every interval, until told to stop; and a pass that is given up when
//! nothing is heard of it for too long.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, interval_at, sleep};

/// `interval`: from one round's start to the next one's. A round is dropped half-way when `stop`
/// turns true.
pub(crate) async fn every<F: Future<Output = ()>>(
    interval: Duration,
    mut stop: watch::Receiver<bool>,
    mut round: impl FnMut() -> F,
) {
    loop {
        let started = Instant::now();
        tokio::select! {
            () = round() => {}
            _ = stop.wait_for(|s| *s) => return,
        }
        let rest = interval.saturating_sub(started.elapsed());
        tokio::select! {
            // Even an interval of 0 lets others run between two rounds.
            () = sleep(rest.max(Duration::from_millis(10))) => {}
            _ = stop.wait_for(|s| *s) => return,
        }
    }
}

/// How a pass under way is watched.
pub(crate) struct Watch<'a> {
    /// Grows with everything that gets done.
    pub(crate) heard: &'a AtomicU64,
    /// How long it may stay as it is; a second at least.
    pub(crate) lockup: Duration,
    /// `report` is called so often; every second at most.
    pub(crate) report_every: Duration,
}

impl Watch<'_> {
    /// False: nothing was heard for too long, and the rest of `work` was dropped.
    pub(crate) async fn over(&self, work: impl Future<Output = ()>, report: impl Fn()) -> bool {
        let every = self.report_every.max(Duration::from_secs(1));
        let lockup = self.lockup.max(Duration::from_secs(1));
        let mut ticks = interval_at(Instant::now() + every, every);
        let mut work = std::pin::pin!(work);
        let (mut heard, mut silent_since) = (0, Instant::now());
        loop {
            tokio::select! {
                biased;
                () = &mut work => return true,
                _ = ticks.tick() => report(),
                () = sleep(lockup.min(Duration::from_secs(10))) => {}
            }
            let now_heard = self.heard.load(Ordering::Relaxed);
            if now_heard != heard {
                (heard, silent_since) = (now_heard, Instant::now());
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
        let heard = AtomicU64::new(0);
        let reports = AtomicU64::new(0);
        let watch = Watch {
            heard: &heard,
            lockup: Duration::from_secs(30),
            report_every: Duration::from_secs(60),
        };
        let report = || _ = reports.fetch_add(1, Ordering::Relaxed);
        let started = Instant::now();
        let busy = async {
            for _ in 0..10 {
                sleep(Duration::from_secs(20)).await;
                heard.fetch_add(1, Ordering::Relaxed);
            }
        };
        assert!(watch.over(busy, report).await);
        assert_eq!(started.elapsed().as_secs(), 200);
        assert_eq!(reports.load(Ordering::Relaxed), 3);
        assert!(!watch.over(std::future::pending(), report).await);
        assert!(started.elapsed().as_secs() < 250);
    }

    #[tokio::test(start_paused = true)]
    async fn rounds_end_when_told() {
        let (tell, stop) = watch::channel(false);
        let mut rounds = 0;
        every(Duration::from_secs(5), stop, || {
            rounds += 1;
            if rounds == 3 {
                tell.send_replace(true);
            }
            std::future::ready(())
        })
        .await;
        assert_eq!(rounds, 3);
    }
}
