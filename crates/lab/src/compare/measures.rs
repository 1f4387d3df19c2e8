//! Measures that are compared for every stage and operation: rates, means, percentiles, failures.

use crate::results::model::{Operation, Run};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    More,
    Less,
}

/// A measure of an operation, and the test for its difference.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    pub name: &'static str,
    pub better: Better,
    /// Means of many values are close to normal: Welch's test. Percentiles and failure ratios are
    /// not: bootstrap over repetitions.
    pub normal: bool,
    pub unit: crate::plot::Unit,
    of: fn(&Operation) -> Option<f64>,
}

impl Measure {
    pub fn of(&self, operation: &Operation) -> Option<f64> {
        (self.of)(operation).filter(|value| value.is_finite())
    }
}

pub fn measures() -> [Measure; 7] {
    use crate::plot::Unit;
    let less = |name, of| Measure {
        name,
        better: Better::Less,
        normal: false,
        unit: Unit::Time,
        of,
    };
    [
        Measure {
            name: "throughput",
            better: Better::More,
            normal: true,
            unit: Unit::PerSecond,
            of: |o| o.rate,
        },
        Measure {
            name: "bandwidth",
            better: Better::More,
            normal: true,
            unit: Unit::BytesPerSecond,
            of: |o| o.bandwidth.filter(|b| *b > 0.0),
        },
        Measure {
            name: "mean",
            better: Better::Less,
            normal: true,
            unit: Unit::Time,
            of: |o| o.latency.mean_us,
        },
        less("p50", |o| o.latency.at(0.5)),
        less("p95", |o| o.latency.at(0.95)),
        less("p99", |o| o.latency.at(0.99)),
        Measure {
            name: "failed",
            better: Better::Less,
            normal: false,
            unit: Unit::Share,
            of: |o| o.success().map(|share| 1.0 - share),
        },
    ]
}

/// One value for each repetition that has one. If several works of a stage have an operation of
/// this name, its rates are those of the first such work, in every repetition alike.
pub(super) fn values(runs: &[Run], stage: &str, operation: &str, measure: &Measure) -> Vec<f64> {
    runs.iter()
        .filter_map(|run| measure.of(operation_of(run, stage, operation)?))
        .collect()
}

pub(super) fn operation_of<'a>(
    run: &'a Run,
    stage: &str,
    operation: &str,
) -> Option<&'a Operation> {
    let stage = run.stages.iter().find(|s| key(&s.id) == stage)?;
    stage.whole_operations().find(|o| label(o) == operation)
}

pub(super) use crate::results::unnumbered as key;

pub(super) fn label(operation: &Operation) -> &str {
    &operation.name
}
