//! A rate limit for log lines: one a minute about each device.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

const LOG_EVERY: Duration = Duration::from_secs(60);

/// When each device was logged last. As many entries as a host has devices.
#[derive(Debug, Default)]
pub(crate) struct LogLimit(BTreeMap<String, Instant>);

impl LogLimit {
    /// True at most once a minute for each device.
    pub(crate) fn is_due(&mut self, device: &str, now: Instant) -> bool {
        if self.0.get(device).is_some_and(|at| now < *at + LOG_EVERY) {
            return false;
        }
        self.0.insert(device.to_owned(), now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_minute_about_each_device() {
        let mut limit = LogLimit::default();
        let start = Instant::now();
        assert!(limit.is_due("sda", start));
        assert!(!limit.is_due("sda", start + LOG_EVERY / 2));
        assert!(limit.is_due("sdb", start));
        assert!(limit.is_due("sda", start + LOG_EVERY));
    }
}
