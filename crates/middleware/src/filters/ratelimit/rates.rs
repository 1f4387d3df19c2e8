//! Rates by the size of a container, interpolated linearly between the points in the conf.

use std::collections::BTreeMap;

use cairn_formats::ini::{ConfError, Section};
use serde_json::{Value, json};

/// Sizes and rates, sorted by size.
pub(super) struct Rates(Vec<(u64, f64)>);

impl Rates {
    /// Reads the options `PREFIXsize = rate`.
    pub(super) fn read(section: &Section, prefix: &str) -> Result<Rates, ConfError> {
        let mut points = BTreeMap::new();
        for (option, _) in section.iter() {
            let Some(size) = option.strip_prefix(prefix) else {
                continue;
            };
            let size: u64 = size.trim().parse().map_err(|_| {
                let remedy = format!("expected the option's name to be {prefix} and a number");
                section.bad(option, remedy)
            })?;
            let rate = section.f64_or(option, 0.0)?;
            if rate < 0.0 {
                return Err(section.bad(option, "expected a rate of 0 (no limit) or more"));
            }
            points.insert(size, rate);
        }
        Ok(Rates(points.into_iter().collect()))
    }

    pub(super) fn are_set(&self) -> bool {
        !self.0.is_empty()
    }

    pub(super) fn info(&self) -> Value {
        json!(self.0)
    }

    /// Requests per second for a container of this size; `None` if unlimited.
    pub(super) fn at(&self, size: u64) -> Option<f64> {
        if size == 0 {
            return None;
        }
        let next = self.0.partition_point(|(from, _)| *from <= size);
        let (from, rate) = self.0.get(next.checked_sub(1)?).copied()?;
        let rate = match self.0.get(next) {
            None => rate,
            Some((to, next_rate)) => {
                let slope = (next_rate - rate) / (to - from) as f64;
                (size - from) as f64 * slope + rate
            }
        };
        (rate > 0.0).then_some(rate)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn rates(points: &[(&str, &str)]) -> Result<Rates, ConfError> {
        Rates::read(&Section::from_pairs("filter:ratelimit", points), "r_")
    }

    /// The figures of upstream's own test of the interpolation.
    #[test]
    fn lines_between_points() {
        let rates = rates(&[
            ("r_10", "200"),
            ("r_50", "100"),
            ("r_75", "30"),
            ("x_1", "y"),
        ]);
        let rates = rates.unwrap();
        for (size, rate) in [
            (0, None),
            (5, None),
            (10, Some(200)),
            (20, Some(175)),
            (30, Some(150)),
            (50, Some(100)),
            (60, Some(72)),
            (75, Some(30)),
            (1000, Some(30)),
        ] {
            assert_eq!(rates.at(size).map(|r| r.round() as u64), rate, "{size}");
        }
        assert_eq!(rates.info(), json!([[10, 200.0], [50, 100.0], [75, 30.0]]));
    }

    #[test]
    fn bad_points() {
        for (option, value) in [("r_x", "1"), ("r_1", "x"), ("r_1", "-1")] {
            let error = rates(&[(option, value)])
                .map(|_| ())
                .unwrap_err()
                .to_string();
            assert!(error.contains(option), "{error}");
        }
        assert_eq!(rates(&[("r_0", "0")]).unwrap().at(5), None);
    }
}
