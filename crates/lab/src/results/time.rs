//! Seconds since 1970 as people and COSBench write them, in UTC.

/// `2026-11-22 01:02:03`.
pub fn date_time(seconds: f64) -> String {
    let (date, time) = parts(seconds);
    format!("{date} {time}")
}

/// `2026-11-22T01:02:03Z`.
pub fn rfc3339(seconds: f64) -> String {
    let (date, time) = parts(seconds);
    format!("{date}T{time}Z")
}

/// `01:02:03`.
pub(super) fn clock(seconds: f64) -> String {
    parts(seconds).1
}

/// `45 s`, `2 min 05 s`, `3 h 10 min`.
pub fn duration(seconds: f64) -> String {
    let whole = seconds.round().max(0.0) as u64;
    match whole {
        0..=119 => format!("{whole} s"),
        120..=7199 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

fn parts(seconds: f64) -> (String, String) {
    // Far future and nonsense end at the year 9999.
    let seconds = seconds.clamp(0.0, 253_402_300_799.0) as i64;
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    (
        format!("{year:04}-{month:02}-{day:02}"),
        format!("{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60),
    )
}

/// The Gregorian date of a day since 1970-01-01, counted in eras of 400 years that begin in March.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
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
