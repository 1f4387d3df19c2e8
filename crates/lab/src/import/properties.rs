//! Properties of every imported run, for the importers' own tests.

use std::path::Path;

use proptest::prelude::*;
use proptest::sample::select;

use super::{COUNT_MAX, ImportError, Kind, Source, kind_of};
use crate::results::model::{Latency, Operation, Run, Stage};

pub(super) fn source(kind: Kind, name: &str, text: impl Into<String>) -> Source {
    Source {
        path: Path::new(name).to_owned(),
        text: text.into(),
        kind,
    }
}

/// Numbers as tools write them, and others that Rust reads as numbers too.
pub(super) fn any_number() -> impl Strategy<Value = String> {
    let odd = select(vec![
        "N/A",
        "-1",
        "NaN",
        "inf",
        "+INF",
        "1e308",
        "1e-320",
        "00",
        "",
        "9007199254740993",
        "18446744073709551615",
        "18446744073709551616",
    ]);
    prop_oneof![3 => "[0-9]{1,5}(\\.[0-9]{1,2})?", 1 => odd.prop_map(str::to_owned)]
}

/// Asserts for runs or a refusal that reports can sum, divide and draw everything.
pub(super) fn assert_plausible(imported: &Result<Vec<Run>, ImportError>) {
    let runs = match imported {
        Ok(runs) => runs,
        Err(error) => return assert!(matches!(error, ImportError::Malformed { line: 1.., .. })),
    };
    for stage in runs.iter().flat_map(|run| &run.stages) {
        for number in numbers(stage) {
            assert!(number.is_finite() && number >= 0.0, "{number}: {stage:?}");
        }
        for count in counts(stage) {
            assert!(count <= COUNT_MAX, "{count}: {stage:?}");
        }
        for latency in stage.operations.iter().flat_map(latencies) {
            let quantiles = |pair: &[crate::results::model::Quantile]| {
                pair[0].quantile <= pair[1].quantile && pair[1].quantile <= 1.0
            };
            assert!(latency.quantiles.windows(2).all(quantiles), "{latency:?}");
            let is_curve = |pair: &[crate::results::model::Quantile]| {
                quantiles(pair) && pair[0].us <= pair[1].us
            };
            assert!(latency.curve.windows(2).all(is_curve), "{latency:?}");
        }
    }
}

fn latencies(operation: &Operation) -> impl Iterator<Item = &Latency> {
    std::iter::once(&operation.latency).chain(&operation.first_byte)
}

fn numbers(stage: &Stage) -> Vec<f64> {
    let mut all: Vec<Option<f64>> = vec![stage.seconds, stage.offered_rate];
    for operation in &stage.operations {
        all.extend([operation.rate, operation.bandwidth, operation.processing_us]);
        for latency in latencies(operation) {
            all.extend([latency.mean_us, latency.deviation_us]);
            all.extend([latency.min_us, latency.max_us, latency.resolution_us]);
            let points = latency.quantiles.iter().chain(&latency.curve);
            all.extend(points.flat_map(|point| [Some(point.quantile), Some(point.us)]));
        }
    }
    for tick in stage.timeline.iter().flat_map(|timeline| &timeline.ticks) {
        all.extend([Some(tick.second), Some(tick.interval)]);
        all.extend([tick.rate, tick.bandwidth, tick.mean_us]);
    }
    all.extend(stage.worst.iter().map(|worst| Some(worst.us)));
    all.into_iter().flatten().collect()
}

fn counts(stage: &Stage) -> Vec<u64> {
    let mut all = Vec::new();
    for operation in &stage.operations {
        all.extend([operation.done, operation.failed.count(), operation.bytes]);
        all.extend(operation.errors.iter().map(|error| Some(error.count)));
    }
    for tick in stage.timeline.iter().flat_map(|timeline| &timeline.ticks) {
        all.extend([Some(tick.done), tick.failed]);
    }
    all.into_iter().flatten().collect()
}

const KINDS: [Kind; 7] = [
    Kind::CosBenchTable,
    Kind::CosBenchTimeline,
    Kind::CosBenchHistogram,
    Kind::SsBenchCsv,
    Kind::SsBenchReport,
    Kind::SsBenchRates,
    Kind::SwiftBench,
];

proptest! {
    /// Also text that is not of the format that its first line promises.
    #[test]
    fn any_text_is_read_or_refused(texts in proptest::collection::vec((0..7usize, "[a0,\n\"~:%]{0,60}|.{0,40}"), 0..4)) {
        let sources: Vec<Source> = texts
            .iter()
            .map(|(kind, text)| source(KINDS[*kind], "w1-x.csv", text.as_str()))
            .collect();
        assert_plausible(&super::assemble(&sources));
        for (_, text) in &texts {
            if let Some(kind) = kind_of(text) {
                assert_plausible(&super::assemble(&[source(kind, "w1-x.csv", text.as_str())]));
            }
        }
    }
}
