//! Formatting of seconds since 1970 in UTC, for people and in COSBench's form.

use cairn_types::calendar;

/// Formats `2026-11-22 01:02:03`.
pub fn date_time(seconds: f64) -> String {
    let (date, time) = parts(seconds);
    format!("{date} {time}")
}

/// Formats `2026-11-22T01:02:03Z`.
pub fn rfc3339(seconds: f64) -> String {
    let (date, time) = parts(seconds);
    format!("{date}T{time}Z")
}

/// Formats `01:02:03`.
pub(super) fn clock(seconds: f64) -> String {
    parts(seconds).1
}

/// Formats a duration: `45 s`, `2 min 05 s`, `3 h 10 min`.
pub fn duration(seconds: f64) -> String {
    let whole = seconds.round().max(0.0) as u64;
    match whole {
        0..=119 => format!("{whole} s"),
        120..=7199 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

fn parts(seconds: f64) -> (String, String) {
    // Values beyond the year 9999 are capped.
    let seconds = seconds.clamp(0.0, 253_402_300_799.0) as i64;
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = calendar::date_of(days);
    (
        format!("{year:04}-{month:02}-{day:02}"),
        format!("{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(date_time(0.0), "1970-01-01 00:00:00");
        assert_eq!(date_time(1_399_455_929.9), "2014-05-07 09:45:29");
        assert_eq!(rfc3339(1_709_208_000.0), "2024-02-29T12:00:00Z");
        assert_eq!(date_time(f64::NAN), "1970-01-01 00:00:00");
    }
}
