//! Days since 1970-01-01 and dates of the Gregorian calendar.

const DAYS_IN_ERA: i64 = 146_097;
/// Days from 0000-03-01 to 1970-01-01.
const DAYS_BEFORE: i64 = 719_468;

/// Year, month (from 1) and day of the month (from 1) of a number of days since 1970-01-01.
///
/// Counts in eras of 400 years that begin in March, so that a leap day is the last day of its year
/// (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
pub fn date_of(days: i64) -> (i64, i64, i64) {
    let z = days + DAYS_BEFORE;
    let era = z.div_euclid(DAYS_IN_ERA);
    let day_of_era = z.rem_euclid(DAYS_IN_ERA);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Days since 1970-01-01 of a date: the inverse of [`date_of`].
pub fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let shifted = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * shifted + 2) / 5 + day - 1;
    let leap_days = year_of_era / 4 - year_of_era / 100;
    era * DAYS_IN_ERA + year_of_era * 365 + leap_days + day_of_year - DAYS_BEFORE
}

/// Number of days of a month.
pub fn days_in_month(year: i64, month: i64) -> i64 {
    let (next_year, next) = match month {
        12 => (year + 1, 1),
        _ => (year, month + 1),
    };
    days_of(next_year, next, 1) - days_of(year, month, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_dates() {
        for (days, date) in [
            (0, (1970, 1, 1)),
            (-1, (1969, 12, 31)),
            (11_016, (2000, 2, 29)),
            (47_541, (2100, 3, 1)),
        ] {
            assert_eq!(date_of(days), date);
            assert_eq!(days_of(date.0, date.1, date.2), days);
        }
        let each = (-200_000..200_000).map(date_of);
        let again = each.map(|(year, month, day)| days_of(year, month, day));
        assert!(again.eq(-200_000..200_000));
        let of_february = [1999, 2000, 2023, 2024, 2100].map(|year| days_in_month(year, 2));
        assert_eq!(of_february, [28, 29, 28, 29, 28]);
        assert_eq!((days_in_month(2026, 11), days_in_month(2026, 12)), (30, 31));
    }
}
