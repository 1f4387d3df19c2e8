//! Selectors of numbers: of a container, of an object, or a size. COSBench's expressions `c(n)`,
//! `u(a,b)`, `r(a,b)`, `s(a,b)`, `h(a|b|weight,...)` as data, and `zipf`.
//!
//! [`Selector::pick`] is a pure function of the random stream and of an index counted by the
//! generator.

use serde::{Deserialize, Serialize};

use crate::rng::Rng;

/// One bar of a histogram selector: uniform in `low..=high`, chosen with `weight`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bar {
    pub low: u64,
    pub high: u64,
    pub weight: u64,
}

/// An expression that yields numbers. Bounds are inclusive and `low <= high`: parsers refuse
/// others, and histograms without bars or with all weights 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selector {
    /// `c(n)`: constant.
    Constant(u64),
    /// `u(a,b)`: uniformly distributed.
    Uniform { low: u64, high: u64 },
    /// `r(a,b)`: consecutive; each worker has its own part of the range.
    Range { low: u64, high: u64 },
    /// `s(a,b)`: consecutive; all workers share the sequence.
    Sequential { low: u64, high: u64 },
    /// `h(a|b|weight,...)`.
    Histogram(Vec<Bar>),
    /// Rank k (counted from `low`) has a probability proportional to k^-exponent; exponent > 0.
    Zipf { low: u64, high: u64, exponent: f64 },
    /// Multiples: `u(1,3)MB` is 1, 2 or 3 MB and nothing between.
    Times { unit: u64, of: Box<Selector> },
}

impl Selector {
    /// The smallest and the largest number it can yield.
    pub fn bounds(&self) -> (u64, u64) {
        match self {
            Self::Times { unit, of } => {
                let (low, high) = of.bounds();
                (low.saturating_mul(*unit), high.saturating_mul(*unit))
            }
            Self::Constant(n) => (*n, *n),
            Self::Uniform { low, high }
            | Self::Range { low, high }
            | Self::Sequential { low, high }
            | Self::Zipf { low, high, .. } => (*low, *high),
            Self::Histogram(bars) => (
                bars.iter().map(|bar| bar.low).min().unwrap_or(0),
                bars.iter().map(|bar| bar.high).max().unwrap_or(0),
            ),
        }
    }

    /// Number of integers within the bounds.
    pub fn span(&self) -> u64 {
        let (low, high) = self.bounds();
        high.saturating_sub(low).saturating_add(1)
    }

    /// Does the index given to [`Self::pick`] determine the number?
    pub fn in_order(&self) -> bool {
        match self {
            Self::Times { of, .. } => of.in_order(),
            _ => matches!(self, Self::Range { .. } | Self::Sequential { .. }),
        }
    }

    /// The `index`th number (if consecutive), or a random one.
    pub fn pick(&self, rng: &mut Rng, index: u64) -> u64 {
        match self {
            Self::Constant(n) => *n,
            Self::Uniform { low, high } => low + rng.below(high - low + 1),
            Self::Range { low, high } | Self::Sequential { low, high } => {
                low + index % (high - low + 1)
            }
            Self::Histogram(bars) => pick_bar(bars, rng),
            Self::Times { unit, of } => of.pick(rng, index).saturating_mul(*unit),
            Self::Zipf {
                low,
                high,
                exponent,
            } => low + zipf(high - low + 1, *exponent, rng) - 1,
        }
    }

    /// The mean, from which bandwidth can be estimated before a run.
    pub fn mean(&self) -> f64 {
        match self {
            Self::Times { unit, of } => of.mean() * *unit as f64,
            Self::Histogram(bars) => {
                let total: f64 = bars.iter().map(|bar| bar.weight as f64).sum();
                let sum: f64 = bars
                    .iter()
                    .map(|bar| (bar.low as f64 + bar.high as f64) / 2.0 * bar.weight as f64)
                    .sum();
                if total > 0.0 { sum / total } else { 0.0 }
            }
            _ => {
                let (low, high) = self.bounds();
                (low as f64 + high as f64) / 2.0
            }
        }
    }

    /// Part `part` of `parts` of the same expression: parts are disjoint and cover the whole, and
    /// their lengths differ by at most one. An empty part is `None`. Constants and histograms are
    /// not divided.
    pub fn divided(&self, part: u64, parts: u64) -> Option<Self> {
        let cut = |low: u64, high: u64| {
            let span = high - low + 1;
            let (base, extra) = (span / parts, span % parts);
            let length = base + u64::from(part < extra);
            let start = low + base * part + part.min(extra);
            (length > 0).then(|| (start, start + length - 1))
        };
        match self {
            Self::Constant(_) | Self::Histogram(_) => Some(self.clone()),
            Self::Times { unit, of } => {
                let of = Box::new(of.divided(part, parts)?);
                Some(Self::Times { unit: *unit, of })
            }
            Self::Uniform { low, high } => {
                cut(*low, *high).map(|(low, high)| Self::Uniform { low, high })
            }
            Self::Range { low, high } => {
                cut(*low, *high).map(|(low, high)| Self::Range { low, high })
            }
            Self::Sequential { low, high } => {
                cut(*low, *high).map(|(low, high)| Self::Sequential { low, high })
            }
            Self::Zipf {
                low,
                high,
                exponent,
            } => cut(*low, *high).map(|(low, high)| Self::Zipf {
                low,
                high,
                exponent: *exponent,
            }),
        }
    }
}

fn pick_bar(bars: &[Bar], rng: &mut Rng) -> u64 {
    let total: u64 = bars.iter().map(|bar| bar.weight).sum();
    let mut at = rng.below(total);
    for bar in bars {
        if at < bar.weight {
            return bar.low + rng.below(bar.high - bar.low + 1);
        }
        at -= bar.weight;
    }
    0
}

/// A random rank in `1..=count` by rejection-inversion (Hörmann and Derflinger 1996): exact,
/// without tables.
fn zipf(count: u64, exponent: f64, rng: &mut Rng) -> u64 {
    // The integral of x^-exponent and its inverse; at exponent 1 the limit is the logarithm.
    let near_one = (exponent - 1.0).abs() < 1e-9;
    let integral = |x: f64| {
        if near_one {
            x.ln()
        } else {
            (x.powf(1.0 - exponent) - 1.0) / (1.0 - exponent)
        }
    };
    let inverse = |y: f64| {
        if near_one {
            y.exp()
        } else {
            (1.0 + y * (1.0 - exponent))
                .max(0.0)
                .powf(1.0 / (1.0 - exponent))
        }
    };
    let share = |x: f64| x.powf(-exponent);
    let (first, last) = (integral(1.5) - 1.0, integral(count as f64 + 0.5));
    loop {
        let y = last + rng.unit() * (first - last);
        let x = inverse(y);
        let rank = x.round().clamp(1.0, count as f64);
        if y >= integral(rank + 0.5) - share(rank) {
            return rank as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_order_goes_round() {
        let mut rng = Rng::new(1);
        let range = Selector::Range { low: 3, high: 5 };
        let picked: Vec<u64> = (0..5).map(|index| range.pick(&mut rng, index)).collect();
        assert_eq!(picked, [3, 4, 5, 3, 4]);
    }

    #[test]
    fn multiples_of_a_unit() {
        let of = Box::new(Selector::Uniform { low: 1, high: 3 });
        let selector = Selector::Times { unit: 1000, of };
        let mut rng = Rng::new(3);
        let picked: std::collections::BTreeSet<u64> =
            (0..100).map(|_| selector.pick(&mut rng, 0)).collect();
        assert_eq!(picked, [1000, 2000, 3000].into());
        assert_eq!((selector.bounds(), selector.mean()), ((1000, 3000), 2000.0));
    }

    #[test]
    fn parts_are_the_whole() {
        let range = Selector::Range { low: 1, high: 10 };
        let parts: Vec<_> = (0..4).filter_map(|part| range.divided(part, 4)).collect();
        let bounds: Vec<_> = parts.iter().map(Selector::bounds).collect();
        assert_eq!(bounds, [(1, 3), (4, 6), (7, 8), (9, 10)]);
        assert_eq!(Selector::Range { low: 1, high: 1 }.divided(1, 2), None);
    }

    #[test]
    fn zipf_has_its_shares() {
        for exponent in [0.6, 1.0, 1.4] {
            let mut rng = Rng::new(5);
            let selector = Selector::Zipf {
                low: 1,
                high: 50,
                exponent,
            };
            let mut counts = [0u32; 51];
            for _ in 0..200_000 {
                counts[selector.pick(&mut rng, 0) as usize] += 1;
            }
            let whole: f64 = (1..=50).map(|k| f64::from(k).powf(-exponent)).sum();
            for k in [1usize, 2, 10, 50] {
                let expected = (k as f64).powf(-exponent) / whole * 200_000.0;
                let off = (f64::from(counts[k]) - expected).abs();
                assert!(
                    off < 5.0 * expected.sqrt() + 1.0,
                    "{exponent} {k}: {off} of {expected}"
                );
            }
        }
    }

    #[test]
    fn histogram_has_its_weights() {
        let mut rng = Rng::new(9);
        let bars = vec![
            Bar {
                low: 1,
                high: 2,
                weight: 1,
            },
            Bar {
                low: 10,
                high: 10,
                weight: 3,
            },
        ];
        let selector = Selector::Histogram(bars);
        let tens = (0..40_000)
            .filter(|_| selector.pick(&mut rng, 0) == 10)
            .count();
        assert!((29_500..30_500).contains(&tens), "{tens}");
    }
}
