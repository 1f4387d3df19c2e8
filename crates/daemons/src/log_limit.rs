//! A rate limit for log lines: one a minute for each device.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use cairn_disk::DiskError;
use cairn_index::IndexError;
use parking_lot::Mutex;
use tokio::time::Instant;

const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Time of each device's last line. Bounded by the host's devices.
#[derive(Debug, Default)]
pub(crate) struct LogLimit(BTreeMap<String, Instant>);

impl LogLimit {
    /// True at most once a minute for each device.
    pub(crate) fn is_due(&mut self, device: &str, now: Instant) -> bool {
        if self
            .0
            .get(device)
            .is_some_and(|at| now < *at + LOG_INTERVAL)
        {
            return false;
        }
        self.0.insert(device.to_owned(), now);
        true
    }
}

/// An error that may concern a whole device, and then recurs for every object or database on it.
pub(crate) trait MaybeOfDevice {
    fn is_of_device(&self) -> bool;
}

impl MaybeOfDevice for DiskError {
    fn is_of_device(&self) -> bool {
        matches!(self, DiskError::Device(_)) || DiskError::is_of_device(self)
    }
}

impl MaybeOfDevice for IndexError {
    fn is_of_device(&self) -> bool {
        matches!(
            self,
            IndexError::DriveFailed { .. } | IndexError::NotMounted { .. }
        )
    }
}

/// Errors of directories that cannot be listed.
impl MaybeOfDevice for io::Error {
    fn is_of_device(&self) -> bool {
        true
    }
}

/// The limit, shared by the tasks of one daemon.
#[derive(Debug, Default)]
pub(crate) struct DeviceErrors(Mutex<LogLimit>);

impl DeviceErrors {
    /// Whether to log an error: once a minute for one of the device, always for any other.
    pub(crate) fn is_due(&self, device: &str, error: &impl MaybeOfDevice) -> bool {
        let mut limit = self.0.lock();
        !error.is_of_device() || limit.is_due(device, Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use cairn_disk::DeviceError;

    use super::*;

    #[test]
    fn one_line_a_minute_about_each_device() {
        let mut limit = LogLimit::default();
        let start = Instant::now();
        assert!(limit.is_due("sda", start));
        assert!(!limit.is_due("sda", start + LOG_INTERVAL / 2));
        assert!(limit.is_due("sdb", start));
        assert!(limit.is_due("sda", start + LOG_INTERVAL));
    }

    #[tokio::test(start_paused = true)]
    async fn errors_of_one_object_are_all_logged() {
        let errors = DeviceErrors::default();
        let gone = DiskError::Device(DeviceError::Unmounted("sda".into()));
        assert!(errors.is_due("sda", &gone) && !errors.is_due("sda", &gone));
        let failed = IndexError::DriveFailed {
            path: "sda".into(),
            reason: "EIO".into(),
        };
        assert!(!errors.is_due("sda", &failed) && errors.is_due("sdb", &failed));
        assert!(!errors.is_due("sdb", &io::Error::other("EIO")));
        for _ in 0..2 {
            assert!(errors.is_due("sda", &DiskError::NotExist));
        }
        tokio::time::advance(LOG_INTERVAL).await;
        assert!(errors.is_due("sda", &gone));
    }
}
