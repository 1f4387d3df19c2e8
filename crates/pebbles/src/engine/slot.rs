//! The place of a device's store: open, being opened, or refused for a while.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::patience::Patience;
use crate::error::PebblesError;
use crate::read_errors::ReadErrors;

/// A store that could not be opened is not tried again sooner.
const REFUSED_SECS: i64 = 3;
/// The longest pause before a store that failed again is opened anew.
const REOPEN_PAUSE_MAX: Duration = Duration::from_secs(10);
/// Without a failure for so long, the next one is the first.
const CALM: Duration = Duration::from_secs(60);

/// The store of a device, once it is open. Locked while it is opened.
pub(super) struct Slot<T> {
    pub(super) opened: Mutex<Option<Arc<T>>>,
    /// The last attempt to open it, which failed.
    refusal: Mutex<Option<Refusal>>,
    pub(super) read_errors: Arc<ReadErrors>,
    pub(super) patience: Patience,
    pub(super) reopening: Mutex<Reopening>,
}

/// A store that could not be opened: all who ask for it in the next seconds are told so, and do not try
/// it one after the other, which takes a while where a disk fails.
struct Refusal {
    /// In seconds.
    at: i64,
    error: String,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Slot {
            opened: Mutex::default(),
            refusal: Mutex::default(),
            read_errors: Arc::default(),
            patience: Patience::default(),
            reopening: Mutex::default(),
        }
    }
}

impl<T> Slot<T> {
    pub(super) fn refuse(&self, now: i64, error: &PebblesError) {
        *self.refusal.lock() = Some(Refusal {
            at: now,
            error: error.to_string(),
        });
    }

    /// Fails where it could not be opened a moment ago.
    pub(super) fn check(&self, now: i64) -> io::Result<()> {
        let refusal = self.refusal.lock();
        let recent = |refusal: &&Refusal| (0..REFUSED_SECS).contains(&(now - refusal.at));
        match refusal.as_ref().filter(recent) {
            Some(refusal) => Err(io::Error::other(refusal.error.clone())),
            None => Ok(()),
        }
    }
}

/// When a store of which a write failed is opened anew, by the next request: at once, and the sooner it
/// fails again the later.
#[derive(Default)]
pub(super) struct Reopening {
    last: Option<Instant>,
    times: u32,
}

impl Reopening {
    /// Whether it is time; then it is done now.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let since = self.last.map(|last| now.saturating_duration_since(last));
        if since.is_none_or(|since| since >= CALM) {
            self.times = 0;
        }
        let pause = match self.times {
            0 => Duration::ZERO,
            times => Duration::from_secs(1 << (times - 1).min(4)).min(REOPEN_PAUSE_MAX),
        };
        let is_due = since.is_none_or(|since| since >= pause);
        if is_due {
            self.last = Some(now);
            self.times += 1;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sooner_it_fails_again_the_later_it_is_opened() {
        let (mut reopening, mut now) = (Reopening::default(), Instant::now());
        assert!(reopening.is_due(now));
        for seconds in [1, 2, 4, 8, 10, 10] {
            let pause = Duration::from_secs(seconds);
            assert!(!reopening.is_due(now + pause - Duration::from_millis(1)));
            now += pause;
            assert!(reopening.is_due(now), "{seconds}");
        }
        now += CALM;
        assert!(reopening.is_due(now) && !reopening.is_due(now));
    }
}
