//! Confidence intervals of the difference between two samples: Welch's for means, the percentile
//! bootstrap for others; and the number of repetitions needed for a conclusion.

use crate::rng::Rng;

/// 95 % confidence interval of `b - a`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
}

impl Interval {
    pub fn excludes_zero(self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }
}

const CONFIDENCE: f64 = 0.95;
const RESAMPLES: usize = 10_000;
/// Minimum sample size of the bootstrap; with fewer values its interval is far too short.
pub(super) const BOOTSTRAP_MIN: usize = 4;
/// Number of repetitions beyond which a difference is not worth measuring.
pub(super) const REPETITIONS_MAX: u32 = 1000;

pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Estimate of the population's variance from a sample.
pub(super) fn variance(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = mean(values);
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    squares / (values.len() - 1) as f64
}

/// Welch's interval; `None` with fewer than two values on a side.
pub fn welch(a: &[f64], b: &[f64]) -> Option<Interval> {
    if a.len() < 2 || b.len() < 2 {
        return None;
    }
    let difference = mean(b) - mean(a);
    let (of_a, of_b) = (variance(a) / a.len() as f64, variance(b) / b.len() as f64);
    let error = (of_a + of_b).sqrt();
    let freedom = if error > 0.0 {
        let parts = of_a.powi(2) / (a.len() - 1) as f64 + of_b.powi(2) / (b.len() - 1) as f64;
        (of_a + of_b).powi(2) / parts
    } else {
        (a.len() + b.len() - 2) as f64
    };
    let reach = student_quantile(0.5 + CONFIDENCE / 2.0, freedom) * error;
    Some(Interval {
        low: difference - reach,
        high: difference + reach,
    })
}

/// Bootstrap interval of the difference of medians, resampling repetitions with replacement.
/// Deterministic for equal input.
pub fn bootstrap(a: &[f64], b: &[f64]) -> Option<Interval> {
    if a.len() < BOOTSTRAP_MIN || b.len() < BOOTSTRAP_MIN {
        return None;
    }
    let mut rng = Rng::new(0x5eed);
    let mut draw = |values: &[f64], space: &mut Vec<f64>| {
        space.clear();
        for _ in 0..values.len() {
            space.push(values[rng.below(values.len() as u64) as usize]);
        }
        median(space)
    };
    let mut space = Vec::new();
    let mut differences: Vec<f64> = (0..RESAMPLES)
        .map(|_| draw(b, &mut space) - draw(a, &mut space))
        .collect();
    differences.sort_by(f64::total_cmp);
    let at = |share: f64| differences[((RESAMPLES - 1) as f64 * share).round() as usize];
    Some(Interval {
        low: at((1.0 - CONFIDENCE) / 2.0),
        high: at(0.5 + CONFIDENCE / 2.0),
    })
}

pub(super) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => values[odd / 2],
        even => (values[even / 2 - 1] + values[even / 2]) / 2.0,
    }
}

/// Repetitions on each side with which the observed difference, if it is the true one, would be
/// detected with a probability of 80 %. `None` beyond [`REPETITIONS_MAX`].
pub(super) fn repetitions_needed(a: &[f64], b: &[f64]) -> Option<u32> {
    let difference = (mean(b) - mean(a)).abs();
    let spread = variance(a) + variance(b);
    if difference <= 0.0 || !spread.is_finite() {
        return None;
    }
    for count in 2..=REPETITIONS_MAX {
        let freedom = f64::from(2 * (count - 1));
        let reach =
            student_quantile(0.5 + CONFIDENCE / 2.0, freedom) + student_quantile(0.8, freedom);
        if f64::from(count) >= reach.powi(2) * spread / difference.powi(2) {
            return Some(count);
        }
    }
    None
}

/// Quantile of Student's t distribution for `share` above one half.
pub fn student_quantile(share: f64, freedom: f64) -> f64 {
    if freedom.is_nan() || freedom <= 0.0 || share <= 0.5 {
        return 0.0;
    }
    // The distribution function is monotonic: bisect an interval that contains the quantile.
    let (mut low, mut high) = (0.0, 1.0);
    while student(high, freedom) < share && high < 1e12 {
        high *= 2.0;
    }
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if student(middle, freedom) < share {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low + high) / 2.0
}

/// Student's distribution function for t above zero, by the regularized incomplete beta function.
fn student(t: f64, freedom: f64) -> f64 {
    let x = freedom / (freedom + t * t);
    1.0 - 0.5 * incomplete_beta(x, freedom / 2.0, 0.5)
}

fn incomplete_beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    let front =
        (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln()).exp();
    // The continued fraction converges fast only in this range.
    if x < (a + 1.0) / (a + b + 2.0) {
        front * beta_fraction(x, a, b) / a
    } else {
        1.0 - front * beta_fraction(1.0 - x, b, a) / b
    }
}

/// Lentz's method for the continued fraction of the incomplete beta function.
fn beta_fraction(x: f64, a: f64, b: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let guard = |v: f64| if v.abs() < TINY { TINY } else { v };
    let mut c = 1.0;
    let mut d = 1.0 / guard(1.0 - (a + b) * x / (a + 1.0));
    let mut fraction = d;
    for n in 1..300 {
        let m = f64::from(n);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = 1.0 / guard(1.0 + even * d);
        c = guard(1.0 + even / c);
        fraction *= d * c;
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / guard(1.0 + odd * d);
        c = guard(1.0 + odd / c);
        let step = d * c;
        fraction *= step;
        if (step - 1.0).abs() < 1e-14 {
            break;
        }
    }
    fraction
}

/// Stirling's series, after the argument is increased to where it is accurate.
fn ln_gamma(x: f64) -> f64 {
    let mut x = x;
    let mut shift = 0.0;
    while x < 12.0 {
        shift -= x.ln();
        x += 1.0;
    }
    let square = x * x;
    let series = (1.0 / 12.0 - (1.0 / 360.0 - 1.0 / (1260.0 * square)) / square) / x;
    shift + (x - 0.5) * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI).ln() + series
}
