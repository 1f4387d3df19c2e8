//! Signals. `cairn up` and `cairn serve`: SIGTERM, SIGINT and SIGHUP request a graceful shutdown,
//! the next one exits at once. A worker, as Swift's servers: SIGHUP and SIGUSR1 let requests
//! finish, SIGTERM and SIGINT do not.

use std::io;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{SigSet, Signal as Number};
use rustix::process::{Pid, getppid};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::stdio;

/// Exit code of a process that did not wait for its requests.
pub const EXIT_AT_ONCE: i32 = 130;

/// Listener for the signals that end this process, which no longer kill it by default.
pub(crate) struct StopSignals {
    signals: [(&'static str, Signal); 4],
    worker: bool,
}

/// The signals of [`StopSignals`].
fn all() -> SigSet {
    let all = [
        Number::SIGTERM,
        Number::SIGINT,
        Number::SIGHUP,
        Number::SIGUSR1,
    ];
    all.into_iter().collect()
}

/// Blocks these signals in this thread and those it starts. With all threads blocked they stay
/// pending, across an exec, too.
pub(crate) fn hold() -> io::Result<()> {
    Ok(all().thread_block()?)
}

/// Unblocks them in this thread.
pub(crate) fn release() -> io::Result<()> {
    Ok(all().thread_unblock()?)
}

impl StopSignals {
    /// To be called inside a runtime.
    pub(crate) fn new(worker: bool) -> io::Result<StopSignals> {
        let signals = [
            ("SIGTERM", signal(SignalKind::terminate())?),
            ("SIGINT", signal(SignalKind::interrupt())?),
            ("SIGHUP", signal(SignalKind::hangup())?),
            ("SIGUSR1", signal(SignalKind::user_defined1())?),
        ];
        Ok(StopSignals { signals, worker })
    }

    /// The next signal's name, and whether it is urgent.
    pub(crate) async fn next(&mut self) -> (&'static str, bool) {
        let [(term, a), (int, b), (hup, c), (usr1, d)] = &mut self.signals;
        tokio::select! {
            // A restart would forget workers that are ending.
            biased;
            _ = a.recv() => (term, true),
            _ = b.recv() => (int, true),
            _ = c.recv() => (hup, false),
            _ = d.recv() => (usr1, false),
        }
    }

    /// Sets `stop` on the first signal, and a worker's `hurry` if the signal is urgent.
    pub(crate) async fn watch(mut self, stop: watch::Sender<bool>, hurry: watch::Sender<bool>) {
        if self.worker {
            return self.watch_worker(stop, hurry).await;
        }
        let (signal, _) = self.next().await;
        info!(
            signal,
            "ending: requests under way may finish; once more ends at once"
        );
        stop.send_replace(true);
        let (signal, _) = self.next().await;
        warn!(signal, "ending at once");
        std::process::exit(EXIT_AT_ONCE);
    }

    async fn watch_worker(mut self, stop: watch::Sender<bool>, hurry: watch::Sender<bool>) {
        loop {
            let (signal, in_a_hurry) = self.next().await;
            info!(signal, in_a_hurry, "this worker is ending");
            if !stop.send_replace(true) {
                stdio::worker_drains();
            }
            if in_a_hurry {
                hurry.send_replace(true);
            }
        }
    }
}

/// Makes this worker drain when its parent has ended for any reason. The kernel resets this when
/// the process changes its user: to be called after that.
pub(crate) fn end_with_parent(parent: Option<Pid>) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::HUP))
        .context("cannot be told when the parent ends")?;
    // It may have ended before. An earlier release always passed 1, which is ignored.
    let is_known = parent.is_some_and(|parent| !parent.is_init());
    if is_known && getppid() != parent {
        bail!("the parent of this worker ended while it started");
    }
    Ok(())
}
