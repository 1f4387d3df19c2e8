//! Values in workload files: numbers, sizes, times, and selectors (`c(n)`, `u(a,b)`, `r(a,b)`,
//! `s(a,b)`, `h(a|b|weight,…)`, `zipf(a,b,exponent)`).

use std::str::FromStr;
use std::time::Duration;

use super::error::{Wrong, shown};
use super::limits;
use crate::plan::Think;
use crate::selector::{Bar, Selector};

/// COSBench's upper end of `u(a)` and of a bar `a||weight`.
const OPEN_END: u64 = i32::MAX as u64;

/// Parses an integer from `low` to `high`.
pub(super) fn whole(text: &str, low: u64, high: u64) -> Result<u64, Wrong> {
    let digits = text.trim();
    match u64::from_str(digits) {
        Ok(number) if (low..=high).contains(&number) => Ok(number),
        _ => Err(Wrong::new(
            format!("'{}'", shown(text)),
            format!("a whole number from {low} to {high}"),
        )),
    }
}

/// Parses a number from `low` to `high`.
pub(super) fn real(text: &str, low: f64, high: f64) -> Result<f64, Wrong> {
    match f64::from_str(text.trim()) {
        Ok(number) if number >= low && number <= high => Ok(number),
        _ => Err(Wrong::new(
            format!("'{}'", shown(text)),
            format!("a number from {low} to {high}"),
        )),
    }
}

/// Parses COSBench's and TOML's boolean words.
pub(super) fn boolean(text: &str) -> Result<bool, Wrong> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "t" | "y" | "1" => Ok(true),
        "false" | "no" | "off" | "f" | "n" | "0" => Ok(false),
        _ => Err(Wrong::new(
            format!("'{}'", shown(text)),
            "'true' or 'false'",
        )),
    }
}

/// A name or path: of limited length, without control characters.
pub(super) fn plain(text: &str) -> Result<String, Wrong> {
    if text.len() > limits::TEXT_BYTES {
        return Err(Wrong::new(
            format!("a text of {} bytes", text.len()),
            format!("at most {} bytes", limits::TEXT_BYTES),
        ));
    }
    if text.chars().any(char::is_control) {
        return Err(Wrong::new(
            format!("'{}'", shown(text).escape_debug()),
            "a text without control characters",
        ));
    }
    Ok(text.to_owned())
}

/// Parses `4096`, `64KB` (thousands, as in COSBench), `64KiB`, `1.5MB`.
pub(super) fn size(text: &str, high: u64) -> Result<u64, Wrong> {
    let wrong = || {
        Wrong::new(
            format!("'{}'", shown(text)),
            format!("bytes from 0 to {high}: '4096', '64KB' (64 000) or '64KiB' (65 536)"),
        )
    };
    let (number, unit) = split_unit(text);
    let unit = bytes_of(unit).ok_or_else(wrong)?;
    let bytes = scaled(number, unit).ok_or_else(wrong)?;
    if bytes > u128::from(high) {
        return Err(wrong());
    }
    u64::try_from(bytes).map_err(|_| wrong())
}

const UNITS: &[(&str, u64)] = &[
    ("B", 1),
    ("KB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// Bytes of a unit; an absent one is bytes.
fn bytes_of(unit: &str) -> Option<u128> {
    let mut known = UNITS
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case(unit));
    match unit {
        "" => Some(1),
        _ => known.next().map(|(_, bytes)| u128::from(*bytes)),
    }
}

/// Splits `1.5MB` into number and unit.
fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'))
        .unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

/// A decimal number times a unit, computed exactly without floating point.
fn scaled(number: &str, unit: u128) -> Option<u128> {
    let number = number.replace('_', "");
    let (int, fraction) = number.split_once('.').unwrap_or((&number, ""));
    if int.is_empty() && fraction.is_empty() || int.len() > 20 || fraction.len() > 9 {
        return None;
    }
    let digits = |text: &str| {
        if text.is_empty() {
            Some(0)
        } else {
            u128::from_str(text).ok()
        }
    };
    let power = 10u128.pow(u32::try_from(fraction.len()).ok()?);
    Some(digits(int)?.checked_mul(unit)? + digits(fraction)?.checked_mul(unit)? / power)
}

/// Parses seconds (`90`, `0.5`), or a time with units, possibly several: `10m`, `1h30m`, `200ms`.
pub(super) fn time(text: &str) -> Result<Duration, Wrong> {
    let wrong = || {
        Wrong::new(
            format!("'{}'", shown(text)),
            format!(
                "seconds, or '200ms', '10m', '1h30m', at most {} days",
                limits::TIME.as_secs() / 86_400
            ),
        )
    };
    let mut rest = text.trim();
    let mut nanos = 0u128;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let (number, after) = split_unit(rest);
        let end = after
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(after.len());
        let unit: u128 = match after[..end].trim() {
            "" | "s" => 1_000_000_000,
            "ns" => 1,
            "us" | "µs" => 1000,
            "ms" => 1_000_000,
            "m" | "min" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "d" => 86_400_000_000_000,
            _ => return Err(wrong()),
        };
        nanos += scaled(number, unit).ok_or_else(wrong)?;
        if nanos > limits::TIME.as_nanos() {
            return Err(wrong());
        }
        rest = after[end..].trim_start();
    }
    let nanos = u64::try_from(nanos).map_err(|_| wrong())?;
    Ok(Duration::from_nanos(nanos))
}

/// Meaning of a selector's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Numbers of containers and objects.
    Numbers,
    /// Bytes; with units within the parentheses or after them.
    Sizes,
}

impl Kind {
    fn value(self, text: &str) -> Result<u64, Wrong> {
        match self {
            Self::Numbers => whole(text, 0, limits::NUMBER),
            Self::Sizes => size(text, limits::OBJECT_BYTES),
        }
    }

    fn examples(self) -> &'static str {
        match self {
            Self::Numbers => {
                "a selector: c(5), u(1,100), r(1,100), s(1,100), h(1|10|3,11|100|1) or \
                 zipf(1,100,0.9)"
            }
            Self::Sizes => "sizes with a unit: c(64)KB, u(4,64)KB, h(1|64|10,64|512|90)KB",
        }
    }
}

/// Parses a selector expression. A single number is a constant, `a-b` is COSBench's old notation
/// for `r(a,b)`.
pub(super) fn selector(text: &str, kind: Kind) -> Result<Selector, Wrong> {
    let wrong = || Wrong::new(format!("'{}'", shown(text)), kind.examples());
    let trimmed = text.trim();
    let Some(open) = trimmed.find('(') else {
        if let Some((low, high)) = trimmed.split_once('-') {
            let (low, high) = ordered(kind, low, high)?;
            return Ok(Selector::Range { low, high });
        }
        return kind
            .value(trimmed)
            .map(Selector::Constant)
            .map_err(|_| wrong());
    };
    let close = trimmed[open..].find(')').ok_or_else(wrong)? + open;
    let unit = trimmed[close + 1..].trim();
    let arguments: Vec<&str> = trimmed[open + 1..close].split(',').map(str::trim).collect();
    let name = trimmed[..open].trim();
    match (kind, unit) {
        (_, "") => expression(name, &arguments, kind, &wrong),
        (Kind::Numbers, _) => Err(wrong()),
        (Kind::Sizes, unit) => {
            let unit = bytes_of(unit)
                .and_then(|unit| u64::try_from(unit).ok())
                .ok_or_else(wrong)?;
            times(unit, expression(name, &arguments, Kind::Numbers, &wrong)?)
        }
    }
}

/// Integer multiples of a unit, as COSBench draws them.
fn times(unit: u64, of: Selector) -> Result<Selector, Wrong> {
    let (_, high) = of.bounds();
    let most = u128::from(high) * u128::from(unit);
    if most > u128::from(limits::OBJECT_BYTES) {
        return Err(Wrong::new(
            format!("sizes up to {most} bytes"),
            format!("at most {} bytes", limits::OBJECT_BYTES),
        ));
    }
    Ok(match of {
        Selector::Constant(number) => Selector::Constant(number * unit),
        of if unit == 1 => of,
        of => Selector::Times {
            unit,
            of: Box::new(of),
        },
    })
}

fn expression(
    name: &str,
    arguments: &[&str],
    kind: Kind,
    wrong: &dyn Fn() -> Wrong,
) -> Result<Selector, Wrong> {
    match (name, arguments) {
        ("c", [number]) => kind.value(number).map(Selector::Constant),
        ("u", [low, high]) => {
            ordered(kind, low, high).map(|(low, high)| Selector::Uniform { low, high })
        }
        ("u", [low]) => {
            let (low, high) = in_order(kind.value(low)?, OPEN_END)?;
            Ok(Selector::Uniform { low, high })
        }
        ("r", [low, high]) => {
            ordered(kind, low, high).map(|(low, high)| Selector::Range { low, high })
        }
        ("s", [low, high]) => {
            ordered(kind, low, high).map(|(low, high)| Selector::Sequential { low, high })
        }
        ("zipf" | "z", [low, high, exponent]) => {
            let (low, high) = ordered(kind, low, high)?;
            let exponent = real(exponent, 0.001, limits::EXPONENT)?;
            Ok(Selector::Zipf {
                low,
                high,
                exponent,
            })
        }
        ("h", bars) => histogram(bars, kind),
        _ => Err(wrong()),
    }
}

fn ordered(kind: Kind, low: &str, high: &str) -> Result<(u64, u64), Wrong> {
    in_order(kind.value(low)?, kind.value(high)?)
}

fn in_order(low: u64, high: u64) -> Result<(u64, u64), Wrong> {
    if low > high {
        return Err(Wrong::new(
            format!("a lower bound {low} above {high}"),
            "bounds in order",
        ));
    }
    Ok((low, high))
}

fn histogram(bars: &[&str], kind: Kind) -> Result<Selector, Wrong> {
    if bars.len() > limits::BARS {
        return Err(Wrong::new(
            format!("a histogram of {} bars", bars.len()),
            format!("at most {}", limits::BARS),
        ));
    }
    let mut out = Vec::new();
    for bar in bars {
        let parts: Vec<&str> = bar.split('|').map(str::trim).collect();
        let [low, high, weight] = parts.as_slice() else {
            return Err(Wrong::new(
                format!("'{}'", shown(bar)),
                "bars of 'low|high|weight'",
            ));
        };
        let low = kind.value(low)?;
        let high = if high.is_empty() {
            OPEN_END
        } else {
            kind.value(high)?
        };
        let (low, high) = in_order(low, high)?;
        let weight = whole(weight, 0, limits::WEIGHT)?;
        out.push(Bar { low, high, weight });
    }
    if out.iter().all(|bar| bar.weight == 0) {
        return Err(Wrong::new(
            "a histogram without any weight",
            "a bar of weight 1 or more",
        ));
    }
    Ok(Selector::Histogram(out))
}

/// A selector in the form that [`selector`] parses; sizes are bytes.
pub(super) fn selector_text(selector: &Selector) -> String {
    match selector {
        Selector::Times { unit, of } => match UNITS.iter().find(|(_, bytes)| bytes == unit) {
            Some((name, _)) => format!("{}{name}", selector_text(of)),
            // No reader creates such a unit; its range is the closest approximation.
            None => {
                let (low, high) = selector.bounds();
                format!("u({low},{high})")
            }
        },
        Selector::Constant(number) => format!("c({number})"),
        Selector::Uniform { low, high } => format!("u({low},{high})"),
        Selector::Range { low, high } => format!("r({low},{high})"),
        Selector::Sequential { low, high } => format!("s({low},{high})"),
        Selector::Zipf {
            low,
            high,
            exponent,
        } => format!("zipf({low},{high},{exponent})"),
        Selector::Histogram(bars) => {
            let bars: Vec<String> = bars
                .iter()
                .map(|bar| format!("{}|{}|{}", bar.low, bar.high, bar.weight))
                .collect();
            format!("h({})", bars.join(","))
        }
    }
}

/// Parses a pause: `100ms` constant, `u(50ms,150ms)` uniform, `e(100ms)` exponential with that
/// mean.
pub(super) fn think(text: &str) -> Result<Think, Wrong> {
    let wrong = || {
        Wrong::new(
            format!("'{}'", shown(text)),
            "a pause: '100ms', 'u(50ms,150ms)' or 'e(100ms)'",
        )
    };
    let trimmed = text.trim();
    let Some((kind, arguments)) = trimmed.split_once('(') else {
        return time(trimmed).map(Think::Constant).map_err(|_| wrong());
    };
    let arguments = arguments.strip_suffix(')').ok_or_else(wrong)?;
    match (kind.trim(), arguments.split_once(',')) {
        ("c", None) => Ok(Think::Constant(time(arguments)?)),
        ("e", None) => Ok(Think::Exponential {
            mean: time(arguments)?,
        }),
        ("u", Some((low, high))) => {
            let (low, high) = (time(low)?, time(high)?);
            if low > high {
                return Err(wrong());
            }
            Ok(Think::Uniform { low, high })
        }
        _ => Err(wrong()),
    }
}

pub(super) fn think_text(think: &Think) -> String {
    match think {
        Think::Constant(pause) => time_text(*pause),
        Think::Uniform { low, high } => format!("u({},{})", time_text(*low), time_text(*high)),
        Think::Exponential { mean } => format!("e({})", time_text(*mean)),
    }
}

/// A time in the form that [`time`] parses, exact.
pub(super) fn time_text(time: Duration) -> String {
    match (time.as_secs(), time.subsec_nanos()) {
        (seconds, 0) => format!("{seconds}s"),
        (seconds, nanos) => {
            let fraction = format!("{nanos:09}");
            format!("{seconds}.{}s", fraction.trim_end_matches('0'))
        }
    }
}
