//! Detection of object writes without effect, because the servers have something newer by its
//! timestamp. Such an upload gets 202, as in Swift; a POST or DELETE gets 409. Occasionally this is
//! due to concurrent clients; if it happens often, a proxy's clock is wrong.

use std::sync::atomic::{AtomicU64, Ordering};

use cairn_http::metrics::count_write_without_effect;
use tracing::warn;

use crate::request::Incoming;

/// Seconds between two warnings.
const WARNING_INTERVAL_SECS: u64 = 60;

/// Counts a write that was too old, and logs a warning. Requests with a given timestamp (container
/// sync, expirer) are ignored, as they do not reflect this host's clock.
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

/// Was the last warning long enough before `now`?
fn is_warning_due(now: u64) -> bool {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let last = LAST.load(Ordering::Relaxed);
    // The absolute difference, since the clock may have been set back.
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
