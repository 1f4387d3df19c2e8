//! The same work again at every interval, until told to stop.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

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

#[cfg(test)]
mod tests {
    use super::*;

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
