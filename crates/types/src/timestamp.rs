//! Swift's timestamps: ten-microsecond ticks since the epoch, plus an offset.
//!
//! Text forms (see `swift/common/utils/timestamp.py` upstream):
//! * *normal*, shown to clients: `1402464677.04188`, sixteen characters;
//! * *internal*, on disk and between servers: the normal form, followed by `_` and sixteen hex
//!   digits when the offset is not zero;
//! * *encoded*, in container rows: an internal timestamp and up to two deltas to later ones.

use std::fmt;

use thiserror::Error;

use crate::calendar;

/// Ticks in a second: a tick is ten microseconds.
pub const TICKS_PER_SECOND: u64 = 100_000;
/// The largest number of ticks that the sixteen-character form can hold.
pub const MAX_TICKS: u64 = 999_999_999_999_999;

/// A point in time, plus the offset by which internal services order writes of the same time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    ticks: u64,
    offset: u64,
}

/// Reasons why a text is not a timestamp.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum TimestampError {
    #[error("not a timestamp: {0:?}")]
    Syntax(String),
    #[error("timestamp out of range: {0:?}")]
    Range(String),
}

impl Timestamp {
    pub const ZERO: Timestamp = Timestamp {
        ticks: 0,
        offset: 0,
    };

    /// Makes a timestamp of ticks of ten microseconds, capped at [`MAX_TICKS`].
    pub const fn from_ticks(ticks: u64) -> Self {
        let ticks = if ticks > MAX_TICKS { MAX_TICKS } else { ticks };
        Timestamp { ticks, offset: 0 }
    }

    pub const fn from_secs(seconds: u64) -> Self {
        Self::from_ticks(seconds.saturating_mul(TICKS_PER_SECOND))
    }

    /// Makes a timestamp of a clock reading, rounded to the nearest tick.
    pub fn from_unix(since_epoch: std::time::Duration) -> Self {
        let micros = since_epoch.as_micros();
        Self::from_ticks(((micros + 5) / 10) as u64)
    }

    pub const fn with_offset(self, offset: u64) -> Self {
        Timestamp {
            ticks: self.ticks,
            offset,
        }
    }

    pub const fn ticks(self) -> u64 {
        self.ticks
    }

    pub const fn offset(self) -> u64 {
        self.offset
    }

    /// Seconds since the epoch, rounded down.
    pub const fn secs(self) -> u64 {
        self.ticks / TICKS_PER_SECOND
    }

    /// Seconds since the epoch, rounded up, as in `Last-Modified`.
    pub const fn secs_ceil(self) -> u64 {
        self.ticks.div_ceil(TICKS_PER_SECOND)
    }

    pub fn as_f64(self) -> f64 {
        self.ticks as f64 / TICKS_PER_SECOND as f64
    }

    pub const fn is_zero(self) -> bool {
        self.ticks == 0
    }

    /// This time moved by `ticks`, kept within the valid range.
    pub const fn plus_ticks(self, ticks: u64) -> Self {
        Self::from_ticks(self.ticks.saturating_add(ticks))
    }

    /// The sixteen-character form, without the offset.
    pub fn normal(self) -> String {
        let (secs, fraction) = (self.ticks / TICKS_PER_SECOND, self.ticks % TICKS_PER_SECOND);
        if secs > 9_999_999_999 {
            return format!("{secs:010}.{fraction:05}");
        }
        // Digit by digit, without the formatting machinery: every request writes several of these.
        let mut text = [b'.'; 16];
        for (digits, mut number) in [(0..10, secs), (11..16, fraction)] {
            for digit in text[digits].iter_mut().rev() {
                *digit = b'0' + (number % 10) as u8;
                number /= 10;
            }
        }
        text.iter().copied().map(char::from).collect()
    }

    /// The form used on disk and between servers.
    pub fn internal(self) -> String {
        if self.offset == 0 {
            self.normal()
        } else {
            format!("{}_{:016x}", self.normal(), self.offset)
        }
    }

    /// The internal form with an offset of as few hex digits as possible, as encoded timestamps
    /// have it.
    fn short(self) -> String {
        if self.offset == 0 {
            self.normal()
        } else {
            format!("{}_{:x}", self.normal(), self.offset)
        }
    }

    /// `2014-06-11T05:31:17.041880`: UTC with microseconds, as in listings.
    pub fn isoformat(self) -> String {
        let (year, month, day) = calendar::date_of((self.secs() / 86_400) as i64);
        let s = self.secs() % 86_400;
        let micros = (self.ticks % TICKS_PER_SECOND) * 10;
        format!(
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{micros:06}",
            s / 3600,
            s / 60 % 60,
            s % 60
        )
    }

    /// Parses the form of [`Timestamp::isoformat`], which is a listing's `last_modified`; rounds to
    /// the nearest tick.
    ///
    /// # Errors
    /// `Syntax` for a text of another form, a date or time out of range, and one before 1970.
    pub fn parse_isoformat(text: &str) -> Result<Self, TimestampError> {
        let syntax = || TimestampError::Syntax(text.chars().take(64).collect());
        let number = |from: usize, to: usize| -> Option<u64> {
            let digits = text.get(from..to)?;
            let is_plain = digits.bytes().all(|b| b.is_ascii_digit());
            is_plain.then(|| digits.parse().ok()).flatten()
        };
        let separators = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
        let bytes = text.as_bytes();
        if separators.iter().any(|(at, b)| bytes.get(*at) != Some(b)) {
            return Err(syntax());
        }
        let fraction = match bytes.get(19) {
            None => 0,
            Some(b'.') if bytes.len() == 26 => number(20, 26).ok_or_else(syntax)?,
            Some(_) => return Err(syntax()),
        };
        let fields = [(0, 4), (5, 7), (8, 10), (11, 13), (14, 16), (17, 19)];
        let mut values = [0; 6];
        for (value, (from, to)) in values.iter_mut().zip(fields) {
            *value = number(from, to).ok_or_else(syntax)?;
        }
        let [year, month, day, hour, minute, second] = values;
        let in_range = (1..=12).contains(&month) && (1..=31).contains(&day);
        if !in_range || hour > 23 || minute > 59 || second > 60 {
            return Err(syntax());
        }
        let days = calendar::days_of(year as i64, month as i64, day as i64);
        let days = u64::try_from(days).map_err(|_| syntax())?;
        let seconds = days * 86_400 + hour * 3600 + minute * 60 + second;
        Ok(Self::from_ticks(
            seconds * TICKS_PER_SECOND + (fraction + 5) / 10,
        ))
    }

    /// Parses any of the forms, and also plain numbers such as `1402464677` or `1.5e9`.
    ///
    /// # Errors
    /// `Syntax` for a text that is no number, or whose offset is not 1 to 16 hexadecimal digits;
    /// `Range` for a negative number or one over [`MAX_TICKS`].
    pub fn parse(text: &str) -> Result<Self, TimestampError> {
        let syntax = || TimestampError::Syntax(text.chars().take(64).collect());
        let (seconds, offset) = match text.split_once('_') {
            Some((seconds, hex)) => {
                if hex.is_empty() || hex.len() > 16 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
                    return Err(syntax());
                }
                (seconds, u64::from_str_radix(hex, 16).map_err(|_| syntax())?)
            }
            None => (text, 0),
        };
        Ok(Timestamp {
            ticks: parse_ticks(seconds.trim(), text)?,
            offset,
        })
    }

    /// Parses the form in the names of `.data`, `.meta` and `.ts` files, the output of `internal`;
    /// other forms are taken as by [`Timestamp::parse`].
    ///
    /// # Errors
    /// As [`Timestamp::parse`].
    pub fn parse_internal(text: &str) -> Result<Self, TimestampError> {
        Self::parse(text)
    }
}

fn parse_ticks(seconds: &str, whole: &str) -> Result<u64, TimestampError> {
    let syntax = || TimestampError::Syntax(whole.chars().take(64).collect());
    let range = || TimestampError::Range(whole.chars().take(64).collect());
    // Plain decimal text is parsed exactly: a float cannot hold fifteen digits and round correctly.
    let (int, frac) = seconds.split_once('.').unwrap_or((seconds, ""));
    let plain = !(int.is_empty() && frac.is_empty())
        && int.len() <= 20
        && int.bytes().chain(frac.bytes()).all(|b| b.is_ascii_digit());
    if plain {
        let int: u64 = if int.is_empty() {
            0
        } else {
            int.parse().map_err(|_| range())?
        };
        let mut ticks = int.checked_mul(TICKS_PER_SECOND).ok_or_else(range)?;
        let mut unit = TICKS_PER_SECOND / 10;
        for (i, digit) in frac.bytes().enumerate() {
            let digit = u64::from(digit - b'0');
            if i < 5 {
                ticks += digit * unit;
                unit /= 10;
            } else {
                ticks += u64::from(digit >= 5);
                break;
            }
        }
        return if ticks > MAX_TICKS {
            Err(range())
        } else {
            Ok(ticks)
        };
    }
    if !seconds
        .bytes()
        .all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b))
    {
        return Err(syntax());
    }
    let value: f64 = seconds.parse().map_err(|_| syntax())?;
    let ticks = (value * TICKS_PER_SECOND as f64).round();
    if !(0.0..=MAX_TICKS as f64).contains(&ticks) {
        return Err(range());
    }
    Ok(ticks as u64)
}

/// Encodes up to three timestamps as one text: the first in full, each later one as a signed hex
/// delta in ticks to the one before. Deltas are omitted if all are zero (`encode_timestamps`
/// upstream).
pub fn encode_timestamps(t1: Timestamp, t2: Option<Timestamp>, t3: Option<Timestamp>) -> String {
    let same = t2.is_none_or(|t| t.ticks == t1.ticks)
        && t3.is_none_or(|t| t.ticks == t2.unwrap_or(t1).ticks);
    if same {
        t1.short()
    } else {
        encode_timestamps_explicit(t1, t2, t3)
    }
}

/// The form of [`encode_timestamps`] with zero deltas written out, as in `.meta` file names.
pub fn encode_timestamps_explicit(
    t1: Timestamp,
    t2: Option<Timestamp>,
    t3: Option<Timestamp>,
) -> String {
    let mut text = t1.short();
    if let Some(t2) = t2 {
        push_delta(&mut text, t1, t2);
        if let Some(t3) = t3 {
            push_delta(&mut text, t2, t3);
        }
    }
    text
}

fn push_delta(text: &mut String, from: Timestamp, to: Timestamp) {
    let delta = to.ticks as i64 - from.ticks as i64;
    let sign = if delta < 0 { '-' } else { '+' };
    text.push_str(&format!("{sign}{:x}", delta.unsigned_abs()));
}

/// Decodes the output of [`encode_timestamps`]: the times of data, content type and metadata. One
/// that is absent equals the one before it.
///
/// # Errors
/// As [`decode_timestamps_explicit`].
pub fn decode_timestamps(text: &str) -> Result<(Timestamp, Timestamp, Timestamp), TimestampError> {
    let (t1, t2, t3) = decode_timestamps_explicit(text)?;
    let t2 = t2.unwrap_or(t1);
    Ok((t1, t2, t3.unwrap_or(t2)))
}

/// Decodes like [`decode_timestamps`], with `None` for timestamps that are absent.
///
/// # Errors
/// As [`Timestamp::parse`] for the first; `Syntax` for a delta that is not hexadecimal or leads out
/// of range, and for more than two of them.
pub fn decode_timestamps_explicit(
    text: &str,
) -> Result<(Timestamp, Option<Timestamp>, Option<Timestamp>), TimestampError> {
    let syntax = || TimestampError::Syntax(text.chars().take(64).collect());
    let first_sign = text.find(['+', '-']).unwrap_or(text.len());
    let t1 = Timestamp::parse(&text[..first_sign])?;
    let mut times = [None, None];
    let (mut last, mut rest) = (t1, &text[first_sign..]);
    for time in &mut times {
        if rest.is_empty() {
            break;
        }
        let negative = rest.starts_with('-');
        let end = rest[1..].find(['+', '-']).map_or(rest.len(), |i| i + 1);
        let delta = u64::from_str_radix(&rest[1..end], 16).map_err(|_| syntax())?;
        if delta != 0 {
            let ticks = if negative {
                last.ticks.checked_sub(delta)
            } else {
                last.ticks.checked_add(delta)
            };
            last = Timestamp::from_ticks(ticks.filter(|t| *t <= MAX_TICKS).ok_or_else(syntax)?);
        }
        *time = Some(last);
        rest = &rest[end..];
    }
    if rest.is_empty() {
        Ok((t1, times[0], times[1]))
    } else {
        Err(syntax())
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.internal())
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.internal())
    }
}

impl std::str::FromStr for Timestamp {
    type Err = TimestampError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ts(text: &str) -> Timestamp {
        Timestamp::parse(text).expect("a timestamp")
    }

    #[test]
    fn listings_times_are_read_back() {
        for text in [
            "1402464677.04188",
            "0000000000.00000",
            "1709164800.5",
            "951782400",
        ] {
            let time = ts(text);
            assert_eq!(Timestamp::parse_isoformat(&time.isoformat()), Ok(time));
        }
        for text in [
            "",
            "2014-06-11",
            "2014-13-11T05:31:17",
            "2014-06-11T05:31:17.04é18",
        ] {
            assert!(Timestamp::parse_isoformat(text).is_err(), "{text}");
        }
    }

    #[test]
    fn forms() {
        for (text, internal) in [
            ("1402464677.04188", "1402464677.04188"),
            (
                "1402464677.04188_0000000000000001",
                "1402464677.04188_0000000000000001",
            ),
            ("1402464677.04188_a", "1402464677.04188_000000000000000a"),
            ("1.5", "0000000001.50000"),
            ("1402464677", "1402464677.00000"),
            ("1402464677.041885", "1402464677.04189"),
            ("1e3", "0000001000.00000"),
        ] {
            assert_eq!(ts(text).internal(), internal);
        }
        assert_eq!(
            ts("1402464677.04188").isoformat(),
            "2014-06-11T05:31:17.041880"
        );
        assert_eq!(ts("1.00001").secs_ceil(), 2);
    }

    #[test]
    fn refused() {
        for text in [
            "",
            "x",
            "1_",
            "1_g",
            "1_2_3",
            "-1",
            "99999999999",
            "nan",
            "inf",
            ".",
            "1 2",
        ] {
            assert!(Timestamp::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn offset_orders_within_a_tick() {
        assert!(ts("1.00000") < ts("1.00000_1"));
        assert!(ts("1.00000_f") < ts("1.00001"));
    }

    #[test]
    fn encoded() {
        let (a, b, c) = (
            ts("1402464677.00000"),
            ts("1402464677.00010"),
            ts("1402464678.00000"),
        );
        let text = encode_timestamps(a, Some(b), Some(c));
        assert_eq!(text, "1402464677.00000+a+18696");
        assert_eq!(decode_timestamps(&text), Ok((a, b, c)));
        assert_eq!(encode_timestamps(a, Some(a), Some(a)), "1402464677.00000");
        assert_eq!(
            encode_timestamps(a, Some(a), Some(b)),
            "1402464677.00000+0+a"
        );
        assert_eq!(
            encode_timestamps(a, Some(b), Some(b)),
            "1402464677.00000+a+0"
        );
        assert_eq!(
            encode_timestamps_explicit(a, Some(a), None),
            "1402464677.00000+0"
        );
        let offset = a.with_offset(1);
        assert_eq!(
            decode_timestamps("1402464677.00000_1+0+0"),
            Ok((offset, offset, offset))
        );
        assert_eq!(
            decode_timestamps_explicit("1402464677.00000"),
            Ok((a, None, None))
        );
        assert_eq!(decode_timestamps("1402464677.00000+a"), Ok((a, b, b)));
        for text in ["", "+1", "1+x", "1+1+1+1", "1-ffffffffff"] {
            assert!(decode_timestamps(text).is_err(), "{text:?}");
        }
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[0-9._a-f-]{0,40}|.{0,40}") {
            let _ = Timestamp::parse(&text);
            let _ = Timestamp::parse_internal(&text);
            let _ = Timestamp::parse_isoformat(&text);
            let _ = decode_timestamps(&text);
            let _ = decode_timestamps_explicit(&text);
        }

        #[test]
        fn texts_of_timestamps_are_read_back(ticks in 0..999_999_999_999_999_u64) {
            let time = Timestamp::from_ticks(ticks);
            prop_assert_eq!(Timestamp::parse(&time.internal()), Ok(time));
        }
    }
}
