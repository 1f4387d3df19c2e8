//! Times of files, and their form in headers: decimal seconds since 1970.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[cfg(not(test))]
pub(crate) use std::time::Instant;

#[cfg(test)]
pub(crate) use crate::simulated::Instant;

/// Seconds since 1970, and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Time {
    pub(crate) seconds: i64,
    pub(crate) nanos: u32,
}

impl Time {
    pub(crate) fn now() -> Time {
        #[cfg(test)]
        if let Some((seconds, nanos)) = crate::simulated::time_of_day() {
            return Time { seconds, nanos };
        }
        SystemTime::now().into()
    }

    pub(crate) fn parse(text: &str) -> Option<Time> {
        let text = text.trim();
        let (is_before, digits) = text
            .strip_prefix('-')
            .map_or((false, text), |rest| (true, rest));
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || !is_number(whole) || !is_number(fraction) {
            return None;
        }
        let whole: i64 = whole.parse().ok()?;
        let nanos: u32 = format!("{:0<9.9}", fraction).parse().ok()?;
        Some(match (is_before, nanos) {
            (false, nanos) => Time {
                seconds: whole,
                nanos,
            },
            (true, 0) => Time {
                seconds: -whole,
                nanos: 0,
            },
            // -1.25 is three quarters of a second after -2.
            (true, nanos) => Time {
                seconds: -whole - 1,
                nanos: 1_000_000_000 - nanos,
            },
        })
    }
}

impl std::fmt::Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (sign, whole, nanos) = match (self.seconds, self.nanos) {
            (seconds, 0) if seconds < 0 => ("-", seconds.unsigned_abs(), 0),
            (seconds, nanos) if seconds < 0 => {
                ("-", (seconds + 1).unsigned_abs(), 1_000_000_000 - nanos)
            }
            (seconds, nanos) => ("", seconds.unsigned_abs(), nanos),
        };
        write!(f, "{sign}{whole}")?;
        match nanos {
            0 => Ok(()),
            nanos => write!(f, ".{}", format!("{nanos:09}").trim_end_matches('0')),
        }
    }
}

impl From<SystemTime> for Time {
    fn from(time: SystemTime) -> Time {
        match time.duration_since(UNIX_EPOCH) {
            Ok(since) => Time {
                seconds: since.as_secs() as i64,
                nanos: since.subsec_nanos(),
            },
            Err(error) => {
                let before = error.duration();
                match before.subsec_nanos() {
                    0 => Time {
                        seconds: -(before.as_secs() as i64),
                        nanos: 0,
                    },
                    nanos => Time {
                        seconds: -(before.as_secs() as i64) - 1,
                        nanos: 1_000_000_000 - nanos,
                    },
                }
            }
        }
    }
}

impl From<Time> for SystemTime {
    fn from(time: Time) -> SystemTime {
        let nanos = Duration::from_nanos(u64::from(time.nanos));
        let whole = Duration::from_secs(time.seconds.unsigned_abs());
        let shifted = match time.seconds < 0 {
            true => UNIX_EPOCH.checked_sub(whole),
            false => UNIX_EPOCH.checked_add(whole),
        };
        shifted
            .and_then(|t| t.checked_add(nanos))
            .unwrap_or(UNIX_EPOCH)
    }
}
