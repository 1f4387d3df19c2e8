//! Lateness of emulated replies: each has a due time, and is sent at that time or later.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, MutexGuard};
use serde::{Deserialize, Serialize};

/// Last part of each wait, spent spinning: a sleeping thread wakes up some 10 µs late.
const SPIN_TIME: Duration = Duration::from_micros(15);

/// Waits until `at`, or until `changed` is notified. The lock is released meanwhile.
pub(crate) fn wait_until<T>(changed: &Condvar, guard: &mut MutexGuard<'_, T>, at: Instant) {
    let sleep_until = at.checked_sub(SPIN_TIME).unwrap_or(at);
    if Instant::now() < sleep_until {
        changed.wait_until(guard, sleep_until);
        return;
    }
    MutexGuard::unlocked(guard, || {
        while Instant::now() < at {
            std::hint::spin_loop();
        }
    });
}

/// Sums over the replies of one emulated device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lateness {
    pub answers: u64,
    /// Total time from request to due time.
    pub due_ns: u64,
    /// Total time from due time to reply.
    pub late_ns: u64,
    pub late_max_ns: u64,
}

impl Lateness {
    /// Records a reply; all times are of the same clock.
    pub fn record(&mut self, asked: u64, due: u64, given: u64) {
        let late = given.saturating_sub(due);
        self.answers += 1;
        self.due_ns += due.saturating_sub(asked);
        self.late_ns += late;
        self.late_max_ns = self.late_max_ns.max(late);
    }

    /// The error of the mean response time: late time as a fraction of due time. Zero without
    /// replies.
    pub fn share(&self) -> f64 {
        self.late_ns as f64 / self.due_ns.max(1) as f64
    }

    pub fn add(&mut self, other: &Lateness) {
        self.answers += other.answers;
        self.due_ns += other.due_ns;
        self.late_ns += other.late_ns;
        self.late_max_ns = self.late_max_ns.max(other.late_max_ns);
    }

    /// The difference from an earlier reading of the same sums; the maximum is that since the
    /// start.
    pub fn since(&self, earlier: &Lateness) -> Lateness {
        Lateness {
            answers: self.answers.saturating_sub(earlier.answers),
            due_ns: self.due_ns.saturating_sub(earlier.due_ns),
            late_ns: self.late_ns.saturating_sub(earlier.late_ns),
            late_max_ns: self.late_max_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_late_time_over_due_time() {
        let mut lateness = Lateness::default();
        lateness.record(0, 100, 103);
        lateness.record(100, 200, 199);
        assert_eq!(lateness.share(), 3.0 / 200.0);
        assert_eq!(lateness.late_max_ns, 3);
        let before = lateness;
        lateness.record(200, 300, 350);
        assert_eq!(lateness.since(&before).share(), 0.5);
    }
}
