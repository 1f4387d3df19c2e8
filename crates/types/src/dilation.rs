//! Time dilation: how many seconds of the host a second of an emulated cluster lasts.
//!
//! `cairn study` and `cairn advise` emulate disks and networks that are K times slower than the
//! hardware they stand for, so that what the host adds is K times less beside them. Waits that a conf
//! file sets are written K times longer; those that are constants of a program pass through
//! [`dilated`], and its environment says K. Elsewhere it is 1.

use std::sync::OnceLock;
use std::time::Duration;

/// Environment variable with the factor.
pub const VARIABLE: &str = "CAIRN_DILATION";
const FACTOR_MAX: f64 = 100.0;

/// A wait of the cluster's time in this host's.
pub fn dilated(wait: Duration) -> Duration {
    match factor() {
        1.0 => wait,
        factor => wait.mul_f64(factor),
    }
}

/// The process's factor, 1 to 100.
pub fn factor() -> f64 {
    static FACTOR: OnceLock<f64> = OnceLock::new();
    *FACTOR.get_or_init(|| of_text(std::env::var(VARIABLE).ok().as_deref()))
}

/// What is no number from 1 to 100 counts as 1: only this workspace's own programs set it.
fn of_text(text: Option<&str>) -> f64 {
    let factor = text.and_then(|text| text.parse().ok()).unwrap_or(1.0);
    match (1.0..=FACTOR_MAX).contains(&factor) {
        true => factor,
        false => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_as_long_as_they_are_unless_a_factor_is_given() {
        assert_eq!(dilated(Duration::from_millis(100)), Duration::from_millis(100));
        assert_eq!(of_text(Some("12.5")), 12.5);
        for wrong in [None, Some(""), Some("0.5"), Some("1e9"), Some("NaN"), Some("x")] {
            assert_eq!(of_text(wrong), 1.0, "{wrong:?}");
        }
    }
}
