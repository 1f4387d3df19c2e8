//! SIGTERM, SIGINT and SIGHUP ask for a graceful end; the next one ends the process at once.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tracing::{info, warn};

/// The exit code of a process that did not wait for its requests.
pub const EXIT_AT_ONCE: i32 = 130;

/// The signals that end this process. From here on they no longer kill it by themselves.
pub(crate) struct StopSignals([(&'static str, Signal); 3]);

impl StopSignals {
    /// To be called inside a runtime.
    pub(crate) fn new() -> io::Result<StopSignals> {
        Ok(StopSignals([
            ("SIGTERM", signal(SignalKind::terminate())?),
            ("SIGINT", signal(SignalKind::interrupt())?),
            ("SIGHUP", signal(SignalKind::hangup())?),
        ]))
    }

    async fn next(&mut self) -> &'static str {
        let [(term, a), (int, b), (hup, c)] = &mut self.0;
        tokio::select! {
            _ = a.recv() => term,
            _ = b.recv() => int,
            _ = c.recv() => hup,
        }
    }

    /// Tells `stop` on the first signal, ends the process on the second.
    pub(crate) async fn watch(mut self, stop: watch::Sender<bool>) {
        let signal = self.next().await;
        info!(
            signal,
            "ending: requests under way may finish; once more ends at once"
        );
        stop.send_replace(true);
        let signal = self.next().await;
        warn!(signal, "ending at once");
        std::process::exit(EXIT_AT_ONCE);
    }
}
