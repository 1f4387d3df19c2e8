//! Split-conformal intervals: prediction intervals from the errors on cells that the calibration
//! did not use.
//!
//! The error of a prediction is the logarithm of measured over predicted. With `n` held-out cells,
//! the half-width of the interval of level `c` is the error of rank `ceil((n + 1) c)`: whatever the
//! errors' distribution, a new cell drawn in the same way falls into it with at least that
//! probability (Vovk; Lei and others). With fewer than `c / (1 - c)` cells there is no finite one.

use serde::{Deserialize, Serialize};

/// Errors by measure: absolute logarithms; for shares absolute differences.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Residuals {
    pub throughput: Vec<f64>,
    pub p50: Vec<f64>,
    pub p95: Vec<f64>,
    pub p99: Vec<f64>,
    /// Differences of shares, as fractions of 1.
    pub share: Vec<f64>,
    /// The held-out cells were emulated.
    pub emulated: bool,
}

pub const LEVEL: f64 = 0.9;

/// Half-width of the interval of this level; `None` if there are too few errors.
pub fn reach(errors: &[f64], level: f64) -> Option<f64> {
    let mut sorted: Vec<f64> = errors.iter().map(|e| e.abs()).collect();
    sorted.sort_by(f64::total_cmp);
    let rank = ((sorted.len() + 1) as f64 * level).ceil() as usize;
    sorted.get(rank.checked_sub(1)?).copied()
}

/// Lower and upper end of the interval around a prediction, from logarithmic errors.
pub fn around(predicted: f64, errors: &[f64]) -> Option<[f64; 2]> {
    let reach = reach(errors, LEVEL)?;
    Some([predicted * (-reach).exp(), predicted * reach.exp()])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::random::Dice;

    #[test]
    fn ranks() {
        let errors: Vec<f64> = (1..=9).map(f64::from).collect();
        assert_eq!(reach(&errors, 0.9), Some(9.0));
        assert_eq!(reach(&errors[..8], 0.9), None);
        assert_eq!(reach(&errors, 0.5), Some(5.0));
        let [low, high] = around(100.0, &[0.1; 20]).unwrap();
        assert!((low - 90.48).abs() < 0.01 && (high - 110.52).abs() < 0.01);
    }

    /// Whatever the distribution, new draws are covered about as often as the level states.
    #[test]
    fn coverage_holds() {
        let mut dice = Dice::new(3);
        let mut covered = 0;
        for _ in 0..4000 {
            let mut draw = || dice.exponential(1.0).powi(3);
            let errors: Vec<f64> = (0..24).map(|_| draw()).collect();
            covered += usize::from(draw() <= reach(&errors, LEVEL).unwrap());
        }
        let part = covered as f64 / 4000.0;
        assert!((0.89..0.94).contains(&part), "{part}");
    }
}
