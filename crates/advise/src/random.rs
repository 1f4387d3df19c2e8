//! Random numbers of the simulation, all from one seed.

use cairn_types::SplitMix;
use serde::{Deserialize, Serialize};

/// A random generator determined by its seed.
#[derive(Clone, Debug)]
pub struct Dice(SplitMix);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(SplitMix::new(seed))
    }

    /// Uniform in [0, 1).
    pub fn part(&mut self) -> f64 {
        (self.0.number() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        ((self.part() * end as f64) as usize).min(end.saturating_sub(1))
    }

    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.part()).ln()
    }

    /// Standard normal, by Box and Muller.
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.part()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.part()).cos()
    }

    /// A random index, with probability proportional to its weight.
    pub fn weighted(&mut self, weights: impl Iterator<Item = f64> + Clone) -> usize {
        let mut left = self.part() * weights.clone().sum::<f64>();
        let mut last = 0;
        for (index, weight) in weights.enumerate().filter(|(_, weight)| *weight > 0.0) {
            last = index;
            if left < weight {
                return index;
            }
            left -= weight;
        }
        last
    }
}

/// The distribution of a service time relative to its mean.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spread {
    #[default]
    Fixed,
    Exponential,
    /// Log-normal, with this standard deviation relative to the mean.
    LogNormal(f64),
    /// Measured quantiles relative to the mean, equidistant from minimum to maximum.
    Quantiles(Vec<f64>),
}

impl Spread {
    pub fn draw(&self, mean: f64, dice: &mut Dice) -> f64 {
        match self {
            Spread::Fixed => mean,
            Spread::Exponential => dice.exponential(mean),
            Spread::LogNormal(deviation) => {
                let variance = (1.0 + deviation * deviation).ln();
                mean * (variance.sqrt() * dice.normal() - variance / 2.0).exp()
            }
            Spread::Quantiles(values) => mean * between(values, dice.part()),
        }
    }

    /// The same with deviations from the mean multiplied by a factor.
    pub fn widened(&self, factor: f64) -> Spread {
        match self {
            Spread::LogNormal(deviation) => Spread::LogNormal(deviation * factor),
            Spread::Quantiles(values) => {
                Spread::quantiles(values.iter().map(|v| v.powf(factor).min(1e3)).collect())
            }
            other => other.clone(),
        }
    }

    /// Quantiles, scaled so that numbers interpolated between them have mean 1: linear
    /// interpolation between few quantiles of a long tail has another mean than the samples.
    fn quantiles(values: Vec<f64>) -> Spread {
        let (Some(first), Some(last)) = (values.first(), values.last()) else {
            return Spread::Fixed;
        };
        let inner = values.iter().sum::<f64>() - (first + last) / 2.0;
        let drawn = inner / (values.len() - 1).max(1) as f64;
        Spread::Quantiles(values.into_iter().map(|v| v / drawn).collect())
    }

    /// `count` quantiles of samples, relative to their mean.
    pub fn of_samples(samples: &[f64], count: usize) -> Spread {
        let mut sorted: Vec<f64> = samples.iter().copied().filter(|s| s.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let mean = sorted.iter().sum::<f64>() / sorted.len().max(1) as f64;
        if sorted.len() < 2 || mean <= 0.0 {
            return Spread::Fixed;
        }
        let at = |i: usize| between(&sorted, i as f64 / (count.max(2) - 1) as f64) / mean;
        let values: Vec<f64> = (0..count.max(2)).map(at).collect();
        Spread::quantiles(values)
    }
}

/// Quantile (0 to 1) of a sorted list, by linear interpolation.
pub(crate) fn between(sorted: &[f64], part: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return 0.0;
    };
    let place = part.clamp(0.0, 1.0) * last as f64;
    let (low, high) = (place.floor() as usize, place.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * (place - low as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(spread: &Spread) -> f64 {
        let mut dice = Dice::new(1);
        (0..200_000)
            .map(|_| spread.draw(3.0, &mut dice))
            .sum::<f64>()
            / 200_000.0
    }

    #[test]
    fn means_are_as_asked() {
        let samples: Vec<f64> = (0..500).map(|i| 1.0 + f64::from(i % 50).powi(3)).collect();
        for spread in [
            Spread::Fixed,
            Spread::Exponential,
            Spread::LogNormal(0.8),
            Spread::of_samples(&samples, 33),
            Spread::of_samples(&samples, 33).widened(1.5),
            Spread::LogNormal(0.4).widened(2.0),
        ] {
            assert!((mean(&spread) - 3.0).abs() < 0.04, "{spread:?}");
        }
    }

    #[test]
    fn a_seed_repeats_itself() {
        let mut one = Dice::new(7);
        let mut other = Dice::new(7);
        for _ in 0..100 {
            assert_eq!(one.part(), other.part());
        }
        let drawn: Vec<usize> = (0..1000)
            .map(|_| one.weighted([0.0, 1.0, 3.0].into_iter()))
            .collect();
        assert!(!drawn.contains(&0));
        let threes = drawn.iter().filter(|i| **i == 2).count();
        assert!((700..800).contains(&threes), "{threes}");
        assert_eq!(one.below(0), 0);
    }
}
