//! Figures of a study: means over repetitions with their 95 % intervals, and published changes
//! compared with the measured ones.

use std::collections::BTreeMap;

use cairn_lab::compare::{Interval, student_quantile, welch};

use crate::cell::{Outcome, State};
use crate::file::{Comparison, Figure, Point};

/// A mean over accepted repetitions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Estimate {
    pub values: Vec<f64>,
    pub mean: f64,
    /// Half the width of the 95 % interval; `None` with fewer than two values.
    pub reach: Option<f64>,
}

impl Estimate {
    pub fn of(values: &[f64]) -> Estimate {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count.max(1.0);
        let spread = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
        let reach = (values.len() > 1).then(|| {
            let deviation = (spread / (count - 1.0)).sqrt();
            student_quantile(0.975, count - 1.0) * deviation / count.sqrt()
        });
        Estimate {
            values: values.to_vec(),
            mean,
            reach,
        }
    }

    /// Half the width of the interval as a fraction of the mean.
    pub fn relative_reach(&self) -> Option<f64> {
        let reach = self.reach?;
        (self.mean != 0.0).then(|| (reach / self.mean).abs())
    }
}

/// Lines of a figure: values over x for each series, in the study's order.
#[derive(Clone, Debug, Default)]
pub struct Drawn {
    pub series: Vec<(String, Vec<(String, Estimate)>)>,
}

/// Metric of a figure at a point: `{name}` is replaced by a value that is swept within a cell.
fn metric(figure: &Figure, wanted: &[&BTreeMap<String, String>]) -> String {
    let mut metric = figure.y.clone();
    for (name, value) in wanted.iter().flat_map(|wanted| wanted.iter()) {
        if figure.over.contains_key(name) {
            metric = metric.replace(&format!("{{{name}}}"), value);
        }
    }
    metric
}

/// Do a cell's swept values match? Values swept within a cell are in its metric.
fn matches(figure: &Figure, outcome: &Outcome, wanted: &BTreeMap<String, String>) -> bool {
    wanted.iter().all(|(name, value)| {
        let own = outcome.swept.get(name);
        figure.over.contains_key(name) || own.is_some_and(|own| own == value)
    })
}

/// Values of a figure's metric in accepted repetitions.
fn values(figure: &Figure, outcomes: &[Outcome], wanted: &[&BTreeMap<String, String>]) -> Vec<f64> {
    let metric = metric(figure, wanted);
    let accepted = outcomes.iter().filter(|o| o.state == State::Accepted);
    let here = accepted.filter(|o| wanted.iter().all(|wanted| matches(figure, o, wanted)));
    here.filter_map(|o| o.metrics.get(&metric).copied())
        .collect()
}

/// Values of a swept name: numbers sorted by size, texts alphabetically, those of `over` in the
/// given order.
fn swept_values(figure: &Figure, outcomes: &[Outcome], name: &str) -> Vec<String> {
    if let Some(over) = figure.over.get(name) {
        return over.clone();
    }
    let mut values: Vec<String> = Vec::new();
    for outcome in outcomes.iter().filter(|o| matches(figure, o, &figure.only)) {
        if let Some(value) = outcome.swept.get(name)
            && !values.contains(value)
        {
            values.push(value.clone());
        }
    }
    values.sort_by(|a, b| match (number(a), number(b)) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        _ => a.cmp(b),
    });
    values
}

/// A swept value as a number, if it is one.
pub fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

/// Computes a figure's points.
pub fn draw(figure: &Figure, outcomes: &[Outcome]) -> Drawn {
    let series = match &figure.series {
        Some(name) => swept_values(figure, outcomes, name),
        None => vec![String::new()],
    };
    let xs = swept_values(figure, outcomes, &figure.x);
    let mut drawn = Drawn::default();
    for of_series in series {
        let mut points = Vec::new();
        for x in &xs {
            let mut at = BTreeMap::from([(figure.x.clone(), x.clone())]);
            if let Some(name) = &figure.series {
                at.insert(name.clone(), of_series.clone());
            }
            let values = values(figure, outcomes, &[&at, &figure.only]);
            if !values.is_empty() {
                points.push((x.clone(), Estimate::of(&values)));
            }
        }
        if !points.is_empty() {
            drawn.series.push((of_series, points));
        }
    }
    drawn
}

/// Comparison of a measured effect with the published one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The measured interval is on the published side of zero.
    Same,
    /// The measured interval is on the other side of zero.
    Opposite,
    /// The measured interval contains zero.
    NotResolved,
    /// Published as no difference, and the interval is within ±5 %.
    NoDifference,
    /// Published as no difference, but there is one.
    Difference,
    /// Too few accepted cells on a side.
    TooFew,
}

impl Verdict {
    pub fn words(self) -> &'static str {
        match self {
            Verdict::Same => "same sign",
            Verdict::Opposite => "opposite sign",
            Verdict::NotResolved => "not resolved",
            Verdict::NoDifference => "no difference, as published",
            Verdict::Difference => "a difference, where none was published",
            Verdict::TooFew => "too few accepted cells",
        }
    }
}

/// Relative change that counts as no difference.
const NO_DIFFERENCE: f64 = 0.05;

/// A published change and the measured one.
#[derive(Clone, Debug)]
pub struct Effect {
    pub what: String,
    pub published: Option<f64>,
    /// Relative change with its 95 % interval.
    pub measured: Option<f64>,
    pub interval: Option<Interval>,
    pub cells: (usize, usize),
    pub verdict: Verdict,
}

/// Computes the measured effect for a figure's published one.
pub fn effect(figure: &Figure, expected: &Comparison, outcomes: &[Outcome]) -> Effect {
    let side = |side| values(figure, outcomes, &[side, &expected.at, &figure.only]);
    let (from, to) = (side(&expected.from), side(&expected.to));
    let base = Estimate::of(&from).mean;
    let measured = (!from.is_empty() && !to.is_empty() && base != 0.0)
        .then(|| Estimate::of(&to).mean / base - 1.0);
    let interval = welch(&from, &to).filter(|_| base != 0.0).map(|i| Interval {
        low: i.low / base.abs(),
        high: i.high / base.abs(),
    });
    let sign = match (expected.change, expected.sign) {
        (Some(change), _) if change != 0.0 => Some(change > 0.0),
        (Some(_), _) => None,
        (None, sign) => sign.filter(|s| *s != 0).map(|sign| sign > 0),
    };
    let verdict = match (interval, sign) {
        (None, _) => Verdict::TooFew,
        (Some(i), Some(true)) if i.low > 0.0 => Verdict::Same,
        (Some(i), Some(false)) if i.high < 0.0 => Verdict::Same,
        (Some(i), Some(_)) if i.excludes_zero() => Verdict::Opposite,
        (Some(i), None) if i.low > -NO_DIFFERENCE && i.high < NO_DIFFERENCE => {
            Verdict::NoDifference
        }
        (Some(i), None) if i.excludes_zero() => Verdict::Difference,
        (Some(_), _) => Verdict::NotResolved,
    };
    Effect {
        what: expected.what.clone(),
        published: expected.change,
        measured,
        interval,
        cells: (from.len(), to.len()),
        verdict,
    }
}

/// A published value of a point and the measured one.
pub fn published_point<'a>(
    figure: &Figure,
    point: &'a Point,
    outcomes: &[Outcome],
) -> (&'a Point, Option<Estimate>) {
    let values = values(figure, outcomes, &[&point.at, &figure.only]);
    (point, (!values.is_empty()).then(|| Estimate::of(&values)))
}

/// Is every figure's metric known precisely enough for the cluster and workload with these swept
/// values?
pub fn is_narrow(
    figures: &[Figure],
    outcomes: &[Outcome],
    swept: &BTreeMap<String, String>,
    until: f64,
) -> bool {
    figures.iter().all(|figure| {
        let estimate = Estimate::of(&values(figure, outcomes, &[swept]));
        estimate.values.is_empty()
            || estimate
                .relative_reach()
                .is_some_and(|reach| reach <= until)
    })
}

#[cfg(test)]
mod tests;
