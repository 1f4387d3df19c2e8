//! Split-conformal intervals: how far predictions were off on cells that the calibration had not seen.
//!
//! The error of a prediction is the logarithm of measured over predicted. With `n` held-out cells, the
//! interval of level `c` reaches as far as the error of rank `ceil((n + 1) c)`: whatever the errors'
//! distribution, a new cell that is drawn as these were falls into it with at least that chance
//! (Vovk; Lei and others). With fewer than `c / (1 - c)` cells there is no finite one.

use serde::{Deserialize, Serialize};

/// Errors of one measure each: absolute logarithms, shares in points.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Residuals {
    pub throughput: Vec<f64>,
    pub p50: Vec<f64>,
    pub p95: Vec<f64>,
    pub p99: Vec<f64>,
    /// Differences of shares, in parts of 1.
    pub share: Vec<f64>,
    /// The cells that were held out were emulated.
    pub emulated: bool,
}

pub const LEVEL: f64 = 0.9;

/// The reach of the interval of this level; `None` where there are too few errors for it.
pub fn reach(errors: &[f64], level: f64) -> Option<f64> {
    let mut sorted: Vec<f64> = errors.iter().map(|e| e.abs()).collect();
    sorted.sort_by(f64::total_cmp);
    let rank = ((sorted.len() + 1) as f64 * level).ceil() as usize;
    sorted.get(rank.checked_sub(1)?).copied()
}

/// Lower and upper end around a prediction, by the reach of logarithms.
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

    /// Whatever the distribution, new draws are covered about as often as the level says.
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
