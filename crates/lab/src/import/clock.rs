//! Times as other tools write them: `2014-05-07 09:45:29` and `09:45:29`. Only differences are
//! used, so no time zone is needed.

use cairn_types::calendar;

/// Parses a date and time as seconds since 1970, as if in UTC.
pub(super) fn date_time(text: &str) -> Option<i64> {
    let (date, time) = text.trim().split_once(' ')?;
    let mut parts = date.splitn(3, '-').map(str::parse::<i64>);
    let (year, month, day) = (
        parts.next()?.ok()?,
        parts.next()?.ok()?,
        parts.next()?.ok()?,
    );
    let plausible =
        (1970..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    plausible.then_some(())?;
    Some(calendar::days_of(year, month, day) * 86_400 + time_of_day(time)?)
}

/// Parses a time of day as seconds since midnight.
pub(super) fn time_of_day(text: &str) -> Option<i64> {
    let mut parts = text.trim().splitn(3, ':').map(str::parse::<i64>);
    let (hour, minute, second) = (
        parts.next()?.ok()?,
        parts.next()?.ok()?,
        parts.next()?.ok()?,
    );
    let plausible =
        (0..24).contains(&hour) && (0..60).contains(&minute) && (0..=60).contains(&second);
    plausible.then_some(hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_of_times() {
        assert_eq!(date_time("1970-01-01 00:00:00"), Some(0));
        assert_eq!(date_time("2014-05-07 09:45:29"), Some(1_399_455_929));
        assert_eq!(date_time("2024-02-29 12:00:00"), Some(1_709_208_000));
        assert_eq!(date_time("2024-13-01 12:00:00"), None);
        assert_eq!(time_of_day("24:00:00"), None);
    }
}
