//! Expiry of a temporary URL: seconds since 1970, or `2026-11-22T02:35:00Z`.

use cairn_types::{Timestamp, calendar};

/// The last second of the year 9999, the latest time in a date header.
const LAST: u64 = 253_402_300_799;

/// A time that was in the future when it was parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Expires(u64);

impl Expires {
    /// Parses an expiry; `None` if it is invalid or past.
    pub(super) fn parse(text: &str, now: Timestamp) -> Option<Expires> {
        let seconds = match text.trim().parse::<i64>() {
            Ok(seconds) => u64::try_from(seconds).ok()?,
            Err(_) => from_iso(text)?,
        };
        (seconds > 0 && Timestamp::from_secs(seconds) >= now).then_some(Expires(seconds))
    }

    pub(super) fn seconds(self) -> u64 {
        self.0
    }

    pub(super) fn timestamp(self) -> Timestamp {
        Timestamp::from_secs(self.0.min(LAST))
    }
}

/// Parses a UTC time in seconds.
fn from_iso(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(time, ':')?;
    let in_range = year >= 1970
        && (1..=12).contains(&month)
        && (1..=calendar::days_in_month(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second < 62;
    let seconds =
        || calendar::days_of(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    in_range
        .then(seconds)
        .and_then(|seconds| u64::try_from(seconds).ok())
}

/// Three numbers of at most four digits.
fn numbers(text: &str, between: char) -> Option<[i64; 3]> {
    let mut found = [0; 3];
    let mut parts = text.split(between);
    for number in &mut found {
        let part = parts.next()?;
        let is_number = (1..=4).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
        *number = part.parse().ok().filter(|_| is_number)?;
    }
    parts.next().is_none().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_forms() {
        let now = Timestamp::from_secs(1000);
        let read = |text| Expires::parse(text, now).map(Expires::seconds);
        assert_eq!(read("1000"), Some(1000));
        assert_eq!(read(" 1001 "), Some(1001));
        assert_eq!(read("+1001"), Some(1001));
        // From Python: timegm(strptime(text, '%Y-%m-%dT%H:%M:%SZ'))
        assert_eq!(read("2024-02-29T23:59:58Z"), Some(1_709_251_198));
        assert_eq!(read("2000-01-01T00:00:00Z"), Some(946_684_800));
        assert_eq!(read("2100-3-1T1:2:3Z"), Some(4_107_546_123));
        for text in [
            "",
            "999",
            "-1",
            "0",
            "1e9",
            "1001.5",
            "2023-02-29T00:00:00Z",
            "2024-13-01T00:00:00Z",
            "2024-01-01T24:00:00Z",
            "2024-01-01T00:00:00",
            "2024-01-01",
            "1970-01-01T00:00:00Z",
            "99999999999999999999",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
        let just_past = Timestamp::from_ticks(Timestamp::from_secs(1000).ticks() + 1);
        assert_eq!(Expires::parse("1000", just_past), None);
    }

    #[test]
    fn far_times_have_a_date() {
        let far =
            Expires::parse("9223372036854775807", Timestamp::from_secs(1)).map(|e| e.timestamp());
        assert_eq!(far, Some(Timestamp::from_secs(LAST)));
    }

    proptest::proptest! {
        #[test]
        fn any_text_reads(text in "[-+0-9TZ:]{0,24}") {
            let _ = Expires::parse(&text, Timestamp::from_secs(1));
        }
    }
}
