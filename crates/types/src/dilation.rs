//! Time dilation: how many seconds of the host a second of an emulated cluster lasts.
//!
//! `cairn study` and `cairn advise` emulate disks and networks that are K times slower than the
//! hardware they stand for, so that what the host adds is K times less beside them. Waits that a conf
//! file sets are written K times longer; those that are constants of a program pass through
//! [`dilated`], and its environment says K. Elsewhere it is 1.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Environment variable by which a process is told its factor.
pub const VARIABLE: &str = "CAIRN_DILATION";
const FACTOR_MAX: f64 = 100.0;

/// The process's factor, as bits; 0 before it is set.
static FACTOR: AtomicU64 = AtomicU64::new(0);

/// A wait of the cluster's time in this host's.
pub fn dilated(wait: Duration) -> Duration {
    match FACTOR.load(Ordering::Relaxed) {
        0 => wait,
        bits => wait.mul_f64(f64::from_bits(bits)),
    }
}

/// Sets the process's factor by the variable's value, before anything waits. A text that is no number
/// from 1 to 100 sets none: only this workspace's own programs give one.
pub fn set(text: &str) {
    if let Some(factor) = of_text(text) {
        FACTOR.store(factor.to_bits(), Ordering::Relaxed);
    }
}

fn of_text(text: &str) -> Option<f64> {
    let factor = text.parse().ok()?;
    (1.0..=FACTOR_MAX).contains(&factor).then_some(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_as_long_as_they_are_unless_a_factor_is_given() {
        let wait = Duration::from_millis(100);
        assert_eq!(dilated(wait), wait);
        assert_eq!(of_text("12.5"), Some(12.5));
        for wrong in ["", "0.5", "1e9", "NaN", "x"] {
            assert_eq!(of_text(wrong), None, "{wrong:?}");
        }
    }
}
