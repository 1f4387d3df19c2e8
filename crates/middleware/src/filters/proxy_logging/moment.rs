//! Formatting of times in UTC, by `strftime` formats and Swift's own.

use std::fmt::Write;

use cairn_types::timestamp::TICKS_PER_SECOND;
use cairn_types::{Timestamp, calendar};

use super::template::Encoder;

const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Writes `time` in a format that [`super::template::Template`] supports; without one, in seconds.
pub(super) fn write(time: Timestamp, form: Option<&str>, to: &mut Encoder<'_>) {
    let seconds = time.secs();
    let nanos = time.ticks() % TICKS_PER_SECOND * 10_000;
    // Writing to a line cannot fail.
    let _ = match form {
        None => {
            to.number(seconds);
            to.text(".");
            to.padded(nanos, 9);
            Ok(())
        }
        Some("ms") => write!(to, "{:03}", nanos / 1_000_000),
        Some("us") => write!(to, "{:06}", nanos / 1_000),
        Some("ns") => write!(to, "{nanos:09}"),
        Some("s") => write!(to, "{seconds}"),
        Some(form) => write_of_calendar(seconds, form, to),
    };
}

fn write_of_calendar(seconds: u64, form: &str, to: &mut Encoder<'_>) -> std::fmt::Result {
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let (year, month, day, of_year) = civil(days);
    let weekday = (days + 4) % 7;
    let (day_name, month_name) = (DAYS[weekday as usize], MONTHS[month as usize - 1]);
    let (short_day, short_month) = (&day_name[..3], &month_name[..3]);
    let clock = format_args!("{hour:02}:{minute:02}:{second:02}");
    let hour12 = if hour % 12 == 0 { 12 } else { hour % 12 };
    match form {
        "datetime" => {
            to.padded(day, 2);
            to.text("/");
            to.text(short_month);
            for (number, digits) in [(year, 1), (hour, 2), (minute, 2), (second, 2)] {
                to.text("/");
                to.padded(number, digits);
            }
            Ok(())
        }
        "iso8601" => write!(to, "{year}-{month:02}-{day:02}T{clock}"),
        "asctime" | "c" => write!(to, "{short_day} {short_month} {day:2} {clock} {year}"),
        "a" => to.write_str(short_day),
        "A" => to.write_str(day_name),
        "b" => to.write_str(short_month),
        "B" => to.write_str(month_name),
        "d" => write!(to, "{day:02}"),
        "H" => write!(to, "{hour:02}"),
        "I" => write!(to, "{hour12:02}"),
        "j" => write!(to, "{of_year:03}"),
        "m" => write!(to, "{month:02}"),
        "M" => write!(to, "{minute:02}"),
        "p" => to.write_str(if hour < 12 { "AM" } else { "PM" }),
        "S" => write!(to, "{second:02}"),
        "U" => write!(to, "{:02}", (of_year + 6 - weekday) / 7),
        "w" => write!(to, "{weekday}"),
        "W" => write!(to, "{:02}", (of_year + 6 - (weekday + 6) % 7) / 7),
        "x" => write!(to, "{month:02}/{day:02}/{:02}", year % 100),
        "X" => write!(to, "{clock}"),
        "y" => write!(to, "{:02}", year % 100),
        "Y" => write!(to, "{year}"),
        _ => to.write_str("UTC"),
    }
}

/// Year, month, day and day of the year (from 1) of a number of days since 1970-01-01.
fn civil(days: u64) -> (u64, u64, u64, u64) {
    let days = days as i64;
    let (year, month, day) = calendar::date_of(days);
    let of_year = days - calendar::days_of(year, 1, 1) + 1;
    (year as u64, month as u64, day as u64, of_year as u64)
}

#[cfg(test)]
mod tests {
    use super::civil;

    #[test]
    fn days_of_the_calendar() {
        assert_eq!(civil(0), (1970, 1, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29, 60));
        assert_eq!(civil(47_541), (2100, 3, 1, 60));
    }
}
