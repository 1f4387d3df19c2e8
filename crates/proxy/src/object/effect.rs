//! Writes of objects without effect: what the servers have is newer by its timestamp. An upload is
//! answered 202 all the same, as Swift answers it; a POST or a DELETE 409. Now and then two clients
//! write at once; many such answers say that a proxy's clock is wrong.

use std::sync::atomic::{AtomicU64, Ordering};

use cairn_http::metrics::count_write_without_effect;
use tracing::warn;

use crate::request::Incoming;

/// Seconds between two warnings.
const WARNING_INTERVAL_SECS: u64 = 60;

/// Counts a write that was too old, and warns. Those whose time was given (a container's sync, the
/// expirer) say nothing of this host's clock.
pub(super) fn note_missing(incoming: &Incoming) {
    if incoming.header("x-timestamp").is_some() {
        return;
    }
    count_write_without_effect();
    if is_warning_due(incoming.timestamp.secs()) {
        warn!(
            method = %incoming.method(), path = %incoming.parts.uri.path(),
            timestamp = %incoming.timestamp.internal(),
            "a write of an object had no effect: the object there is newer; unless clients write it at \
             once, a proxy's clock is wrong (NTP); told once a minute"
        );
    }
}

/// Whether the last warning was long enough before `now`.
fn is_warning_due(now: u64) -> bool {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let last = LAST.load(Ordering::Relaxed);
    // A clock that was set back counts as well.
    let is_due = now.abs_diff(last) >= WARNING_INTERVAL_SECS;
    is_due
        && LAST
            .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_without_effect_are_told_of_once_a_minute() {
        assert!(is_warning_due(1000));
        assert!(!is_warning_due(1001) && !is_warning_due(1059));
        assert!(is_warning_due(1060));
        assert!(is_warning_due(900), "the clock was set back");
    }
}
