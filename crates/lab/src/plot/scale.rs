//! Axes: their range, ticks and labels. Ticks are at round numbers; a logarithmic axis has ticks at
//! decades (or powers of two); units are chosen so that the largest number is short.
//!
//! The console has ticks of its own (`console/src/series.ts`): its charts are laid out anew in the browser
//! at each zoom and each second of a live run, where this code is not; those of reports are fixed, as wide
//! as a column, and have scales (`Log2`, `Tail`) that no live chart has.

/// Distribution of numbers along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Linear,
    Log10,
    /// For worker counts.
    Log2,
    /// 0 to 1, stretched towards 1 so that 99 %, 99.9 %, 99.99 % are equally spaced.
    Tail,
}

/// Quantity on an axis, in its base unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Plain,
    /// Time in microseconds.
    Time,
    Seconds,
    Bytes,
    BytesPerSecond,
    PerSecond,
    /// A fraction, 0 to 1.
    Share,
}

/// An axis over a range of values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    pub(super) kind: Kind,
    from: f64,
    to: f64,
}

pub(super) struct Tick {
    pub(super) value: f64,
    pub(super) label: String,
}

impl Tick {
    pub(super) fn plain(value: f64) -> Tick {
        Tick {
            value,
            label: grouped(value),
        }
    }
}

/// Smallest distance from 1 shown by a tail axis: 1 in a million.
const TAIL_MIN: f64 = 1e-6;

impl Scale {
    /// A scale that contains all values; a linear axis begins at zero, so that bars and rates are
    /// not misleading. Values without a logarithm are ignored on a logarithmic axis.
    pub(super) fn over(kind: Kind, values: impl Iterator<Item = f64>) -> Scale {
        let usable =
            |v: &f64| v.is_finite() && (matches!(kind, Kind::Linear | Kind::Tail) || *v > 0.0);
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        // The end of a tail is not a percentile: the axis extends to the one before.
        let percentile = |v: &f64| kind != Kind::Tail || *v < 1.0;
        for value in values.filter(usable).filter(percentile) {
            low = low.min(value);
            high = high.max(value);
        }
        if low > high {
            (low, high) = if kind == Kind::Tail {
                (0.0, 0.9)
            } else {
                (1.0, 10.0)
            };
        }
        let (from, to) = match kind {
            Kind::Linear => linear_range(low, high),
            Kind::Log10 => log_range(low, high),
            Kind::Log2 => (low / 1.25, high * 1.25),
            Kind::Tail => {
                let rest = (1.0 - high).max(TAIL_MIN);
                (0.0, 1.0 - rest / 2.0)
            }
        };
        Scale { kind, from, to }
    }

    /// Adds room for text above the highest point.
    pub(super) fn make_room(&mut self) {
        match self.kind {
            Kind::Linear => self.to *= 1.1,
            Kind::Log10 | Kind::Log2 => self.to *= 2.0,
            Kind::Tail => {}
        }
    }

    /// Position of a value, from 0 at the axis's start to 1 at its end, clamped.
    pub(super) fn place(&self, value: f64) -> f64 {
        let part = match self.kind {
            Kind::Linear => (value - self.from) / (self.to - self.from),
            Kind::Log10 | Kind::Log2 => {
                let value = value.max(self.from);
                (value / self.from).ln() / (self.to / self.from).ln()
            }
            Kind::Tail => tail(value) / tail(self.to),
        };
        if part.is_finite() {
            part.clamp(0.0, 1.0)
        } else {
            0.0
        }
    }

    /// At most about `count` ticks.
    pub(super) fn ticks(&self, unit: Unit, count: usize) -> Vec<Tick> {
        let values = match self.kind {
            Kind::Linear => {
                let step = step_for(self.to - self.from, count, unit);
                let first = (self.from / step).ceil() as i64;
                let last = (self.to / step + 1e-9).floor() as i64;
                (first..=last).map(|n| n as f64 * step).collect()
            }
            Kind::Log10 => self.decades(count),
            Kind::Log2 => powers_of_two(self.from, self.to, count),
            Kind::Tail => tail_ticks(self.to),
        };
        let largest = values.iter().copied().fold(0.0, f64::max);
        let step = match values.as_slice() {
            [first, second, ..] => second - first,
            _ => largest,
        };
        let own_units = self.kind == Kind::Log10;
        let mut ticks: Vec<Tick> = values
            .into_iter()
            .map(|value| Tick {
                value,
                label: unit.label(
                    value,
                    if own_units { value } else { largest },
                    step,
                    own_units,
                ),
            })
            .collect();
        // Two ticks with equal labels would be misleading.
        ticks.dedup_by(|next, kept| next.label == kept.label);
        ticks
    }

    /// Lines between ticks: 2 to 9 of each decade.
    pub(super) fn minor(&self) -> Vec<f64> {
        if self.kind != Kind::Log10 || (self.to / self.from).log10() > 6.0 {
            return Vec::new();
        }
        let first = self.from.log10().floor() as i32;
        let last = self.to.log10().ceil() as i32;
        (first..last)
            .flat_map(|decade| (2..10).map(move |n| f64::from(n) * 10f64.powi(decade)))
            .filter(|v| (self.from..=self.to).contains(v))
            .collect()
    }

    fn decades(&self, count: usize) -> Vec<f64> {
        let first = self.from.log10().floor() as i32;
        let last = self.to.log10().ceil() as i32;
        let inside = |v: &f64| *v >= self.from * 0.999 && *v <= self.to * 1.001;
        let every = ((last - first) as usize).div_ceil(count.max(1)).max(1);
        let decades: Vec<f64> = (first..=last)
            .filter(|d| ((d - first) as usize).is_multiple_of(every))
            .map(|d| 10f64.powi(d))
            .filter(inside)
            .collect();
        if decades.len() >= 3 {
            return decades;
        }
        // In a short range 1, 2 and 5 of each decade.
        let mut values: Vec<f64> = (first..=last)
            .flat_map(|d| [1.0, 2.0, 5.0].map(|n| n * 10f64.powi(d)))
            .filter(inside)
            .collect();
        if values.is_empty() {
            values = vec![self.from, self.to];
        }
        values
    }
}

fn linear_range(low: f64, high: f64) -> (f64, f64) {
    let from = if low < 0.0 { low * 1.05 } else { 0.0 };
    let to = if high > 0.0 { high * 1.06 } else { 1.0 };
    (from, to)
}

/// Adds at least a quarter of a decade at each end, and makes the range at least one decade.
fn log_range(low: f64, high: f64) -> (f64, f64) {
    let (mut from, mut to) = (low / 1.3, high * 1.3);
    let missing = 10.0 / (to / from);
    if missing > 1.0 {
        from /= missing.sqrt();
        to *= missing.sqrt();
    }
    (from, to)
}

fn tail(share: f64) -> f64 {
    -(1.0 - share.min(1.0 - TAIL_MIN)).log10()
}

fn tail_ticks(to: f64) -> Vec<f64> {
    [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999]
        .into_iter()
        .filter(|v| *v <= to)
        .collect()
}

/// Step of 1, 2 or 5 times a power of ten; for seconds also quarters of a minute and an hour.
fn step_for(range: f64, count: usize, unit: Unit) -> f64 {
    let least = range / count.max(1) as f64;
    if unit == Unit::Seconds && least > 5.0 {
        let steps = [
            10.0, 15.0, 30.0, 60.0, 120.0, 180.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0,
        ];
        if let Some(step) = steps.into_iter().find(|s| *s >= least) {
            return step;
        }
    }
    let power = 10f64.powf(least.max(1e-12).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|n| n * power)
        .find(|s| *s >= least * 0.999);
    step.unwrap_or(10.0 * power)
}

fn powers_of_two(from: f64, to: f64, count: usize) -> Vec<f64> {
    let (first, last) = (from.log2().ceil() as i32, to.log2().floor() as i32);
    let every = ((last - first + 1).max(1) as usize)
        .div_ceil(count.max(1))
        .max(1);
    (first..=last)
        .filter(|e| ((e - first) as usize).is_multiple_of(every))
        .map(|e| 2f64.powi(e))
        .collect()
}

impl Unit {
    /// `largest` determines the unit, `step` the decimals. An axis names its unit once in its
    /// title, except if every tick has its own.
    fn label(self, value: f64, largest: f64, step: f64, own: bool) -> String {
        match self {
            Unit::Share => {
                let percent = format!("{:.4}", value * 100.0);
                format!("{}%", trim(&percent))
            }
            Unit::Seconds => clock(value, largest),
            Unit::Time | Unit::Bytes | Unit::BytesPerSecond if own => self.words(value),
            _ if own => short(value),
            _ => {
                let (factor, _) = self.factor(largest);
                decimals(value / factor, step / factor)
            }
        }
    }

    /// The divisor for values up to `largest`, and the unit's name.
    fn factor(self, largest: f64) -> (f64, &'static str) {
        let choose = |names: [(f64, &'static str); 4]| {
            let found = names.into_iter().rev().find(|(f, _)| largest >= *f);
            found.unwrap_or(names[0])
        };
        match self {
            Unit::Plain | Unit::Share => match largest {
                large if large >= 1e7 => (1e6, "millions"),
                large if large >= 1e4 => (1e3, "thousands"),
                _ => (1.0, ""),
            },
            Unit::PerSecond => match largest {
                large if large >= 1e6 => (1e6, "millions/s"),
                large if large >= 2e4 => (1e3, "thousands/s"),
                _ => (1.0, "per second"),
            },
            Unit::Time => choose([(1.0, "µs"), (1e3, "ms"), (1e6, "s"), (3.6e9, "h")]),
            Unit::Seconds if largest >= 600.0 => (1.0, "h:mm:ss"),
            Unit::Seconds => (1.0, "s"),
            Unit::Bytes => choose([(1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB")]),
            Unit::BytesPerSecond => {
                choose([(1.0, "B/s"), (1e3, "kB/s"), (1e6, "MB/s"), (1e9, "GB/s")])
            }
        }
    }

    /// The unit of an axis up to `largest`.
    pub(super) fn name(self, largest: f64) -> &'static str {
        self.factor(largest).1
    }

    /// A number with its unit, in three digits.
    pub fn words(self, value: f64) -> String {
        let (factor, name) = self.factor(value.abs());
        match self {
            Unit::Share => format!("{}%", trim(&format!("{:.2}", value * 100.0))),
            Unit::Plain => grouped(value),
            Unit::PerSecond => format!("{}/s", grouped(value)),
            Unit::Seconds => clock(value, value),
            _ => format!("{} {name}", digits(value / factor)),
        }
    }
}

/// Three significant digits.
fn digits(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        medium if medium >= 10.0 => trim(&format!("{value:.1}")).to_owned(),
        _ => trim(&format!("{value:.2}")).to_owned(),
    }
}

/// Label of a decade: `10k`, `1M`.
fn short(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{}G", digits(v / 1e9)),
        v if v >= 1e6 => format!("{}M", digits(v / 1e6)),
        v if v >= 1e3 => format!("{}k", digits(v / 1e3)),
        v => digits(v),
    }
}

/// Thousands separated, and decimals only for small numbers.
fn grouped(value: f64) -> String {
    if value.abs() < 100.0 {
        return digits(value);
    }
    let whole = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 {
        format!("-{text}")
    } else {
        text
    }
}

fn decimals(value: f64, step: f64) -> String {
    let places = (-step.abs().max(1e-9).log10() + 1e-9)
        .ceil()
        .clamp(0.0, 6.0) as usize;
    if value.abs() >= 1000.0 {
        return grouped(value);
    }
    let text = format!("{value:.places$}");
    if text.contains('.') {
        trim(&text).to_owned()
    } else {
        text
    }
}

fn trim(text: &str) -> &str {
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        text
    }
}

fn clock(value: f64, largest: f64) -> String {
    if largest < 600.0 {
        return digits(value);
    }
    let seconds = value.round() as i64;
    if largest < 3600.0 {
        format!("{}:{:02}", seconds / 60, seconds % 60)
    } else {
        format!(
            "{}:{:02}:{:02}",
            seconds / 3600,
            seconds / 60 % 60,
            seconds % 60
        )
    }
}
