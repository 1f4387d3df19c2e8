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

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_time_is_read_as_it_was_written(days in 0..2_900_000i64, second in 0..86_400i64) {
            let (year, month, day) = calendar::date_of(days);
            let (hour, minute) = (second / 3600, second / 60 % 60);
            let time = format!("{hour:02}:{minute:02}:{:02}", second % 60);
            prop_assert_eq!(time_of_day(&time), Some(second));
            let text = format!("{year:04}-{month:02}-{day:02} {time}");
            prop_assert_eq!(date_time(&text), Some(days * 86_400 + second));
        }

        #[test]
        fn any_text_is_a_time_or_none(text in "([0-9]{4}-[0-9]{1,2}-[0-9]{1,2} )?2?[0-9]:[0-5]?[0-9]:[0-9]{1,2}|[-+0-9: ]{0,24}|.{0,30}") {
            prop_assert!(time_of_day(&text).is_none_or(|second| (0..=86_400).contains(&second)));
            prop_assert!(date_time(&text).is_none_or(|second| second >= 0));
        }
    }
}
