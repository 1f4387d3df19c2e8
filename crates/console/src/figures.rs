//! Page view of `stages.json`: rates, percentiles and distribution curves instead of histograms.
//! Latencies stay in nanoseconds.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use cairn_lab::latencies::Latencies;
use cairn_lab::plan::{OperationKind, WorkKind};
use cairn_lab::record::{
    OpenLoop, OperationResult, StageResult, State, WorkResult, WorstRequest, keep_worst,
};
use serde::Serialize;

/// Maximum number of points of a distribution curve.
const CURVE_POINTS_MAX: usize = 160;
/// Maximum size of `stages.json`; a larger one is left to `cairn lab report`.
const STAGES_MAX_BYTES: u64 = 256 << 20;

/// Summary of a run in a line of the history.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Headline {
    /// Number of stages that measure (main works).
    pub(crate) stages: usize,
    pub(crate) ops: u64,
    pub(crate) bytes: u64,
    pub(crate) failed: u64,
    /// Highest throughput of a stage, in operations per second.
    pub(crate) ops_per_second: f64,
    pub(crate) bytes_per_second: f64,
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct StageFigures {
    number: u32,
    name: String,
    state: State,
    message: String,
    started: f64,
    ended: f64,
    swept: BTreeMap<String, String>,
    /// It measures, instead of only preparing or cleaning up.
    main: bool,
    workers: u32,
    ops_per_second: f64,
    bytes_per_second: f64,
    failed: u64,
    operations: Vec<OperationFigures>,
    worst: Vec<WorstRequest>,
}

/// Figures of a work's operation, over all size classes or for one of them.
#[derive(Debug, Serialize)]
struct OperationFigures {
    work: String,
    name: String,
    kind: OperationKind,
    /// The size class; `None`: all of them.
    size_class: Option<String>,
    ops: u64,
    bytes: u64,
    failed: u64,
    errors: BTreeMap<String, u64>,
    ops_per_second: f64,
    bytes_per_second: f64,
    last_byte: LatencyFigures,
    first_byte: LatencyFigures,
    /// Latency of an open loop without the wait for a free worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<LatencyFigures>,
    /// Offered and achieved rate, and lateness.
    #[serde(skip_serializing_if = "Option::is_none")]
    open_loop: Option<OpenLoop>,
}

#[derive(Debug, Default, Serialize)]
struct LatencyFigures {
    mean_ns: f64,
    min_ns: u64,
    p50_ns: u64,
    p90_ns: u64,
    p95_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
    max_ns: u64,
    /// Points of latency and the fraction of requests not exceeding it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    curve: Vec<(u64, f64)>,
}

/// The finished stages of a run. Blocks.
pub(crate) fn read(stages: &Path) -> Result<Vec<StageResult>> {
    let cannot = || format!("cannot read {}", stages.display());
    let length = stages.metadata().with_context(cannot)?.len();
    if length > STAGES_MAX_BYTES {
        bail!(
            "{}: {length} bytes are too many to show here",
            stages.display()
        );
    }
    let bytes = std::fs::read(stages).with_context(cannot)?;
    serde_json::from_slice(&bytes).with_context(cannot)
}

pub(crate) fn of(stages: &[StageResult]) -> Vec<StageFigures> {
    stages.iter().map(stage).collect()
}

pub(crate) fn headline(stages: &[StageResult]) -> Headline {
    let mut all = Headline::default();
    for result in stages.iter().filter(|s| is_main(s)) {
        all.stages += 1;
        let mut latencies = Latencies::new();
        let (mut rate, mut bandwidth) = (0.0, 0.0);
        for work in result.works.iter().filter(|w| w.kind == WorkKind::Main) {
            for operation in &work.operations {
                all.ops += operation.ops;
                all.bytes += operation.bytes;
                all.failed += operation.failed();
                let (ops, bytes) = operation.achieved();
                rate += per_second(ops, work);
                bandwidth += per_second(bytes, work);
                latencies.merge(&operation.last_byte);
            }
        }
        if rate > all.ops_per_second {
            all.ops_per_second = rate;
            all.bytes_per_second = bandwidth;
            all.p50_ns = latencies.percentile(50.0);
            all.p99_ns = latencies.percentile(99.0);
        }
    }
    all
}

fn is_main(stage: &StageResult) -> bool {
    let mut works = stage.works.iter();
    works.any(|work| work.kind == WorkKind::Main && !work.operations.is_empty())
}

fn per_second(count: u64, work: &WorkResult) -> f64 {
    if work.seconds > 0.0 {
        count as f64 / work.seconds
    } else {
        0.0
    }
}

fn stage(result: &StageResult) -> StageFigures {
    let mut operations = Vec::new();
    let mut worst = Vec::new();
    for work in &result.works {
        add_operations(work, &mut operations);
        worst.extend(work.operations.iter().flat_map(|o| o.worst.clone()));
    }
    keep_worst(&mut worst);
    let whole = || operations.iter().filter(|o| o.size_class.is_none());
    StageFigures {
        number: result.number,
        name: result.name.clone(),
        state: result.state,
        message: result.message.clone(),
        started: result.started,
        ended: result.ended,
        swept: result.swept.clone(),
        main: is_main(result),
        workers: result.works.iter().map(|w| w.workers).sum(),
        ops_per_second: whole().map(|o| o.ops_per_second).sum(),
        bytes_per_second: whole().map(|o| o.bytes_per_second).sum(),
        failed: whole().map(|o| o.failed).sum(),
        operations,
        worst,
    }
}

/// Adds a work's operations in order, each followed by its size classes if it has several.
fn add_operations(work: &WorkResult, out: &mut Vec<OperationFigures>) {
    let mut names: Vec<&str> = Vec::new();
    for operation in &work.operations {
        if !names.contains(&&*operation.name) {
            names.push(&operation.name);
        }
    }
    for name in names {
        let of_name: Vec<_> = work.operations.iter().filter(|o| o.name == name).collect();
        let mut whole = of_name[0].clone();
        for class in &of_name[1..] {
            whole.merge(class);
        }
        out.push(operation(work, &whole, None));
        if of_name.len() > 1 {
            let classes = of_name.iter();
            out.extend(classes.map(|o| operation(work, o, Some(o.size_class.clone()))));
        }
    }
}

fn operation(
    work: &WorkResult,
    result: &OperationResult,
    size_class: Option<String>,
) -> OperationFigures {
    let errors = result.errors.iter();
    OperationFigures {
        work: work.name.clone(),
        name: result.name.clone(),
        kind: result.kind,
        ops: result.ops,
        bytes: result.bytes,
        failed: result.failed(),
        errors: errors
            .map(|(kind, count)| (kind.to_string(), *count))
            .collect(),
        ops_per_second: per_second(result.achieved().0, work),
        bytes_per_second: per_second(result.achieved().1, work),
        open_loop: work
            .rate
            .and_then(|_| OpenLoop::of(&[result], work.seconds)),
        last_byte: latency(&result.last_byte, size_class.is_none()),
        first_byte: latency(&result.first_byte, false),
        service: (!result.service.is_empty()).then(|| latency(&result.service, false)),
        size_class,
    }
}

fn latency(latencies: &Latencies, with_curve: bool) -> LatencyFigures {
    if latencies.is_empty() {
        return LatencyFigures::default();
    }
    LatencyFigures {
        mean_ns: latencies.mean(),
        min_ns: latencies.min(),
        p50_ns: latencies.percentile(50.0),
        p90_ns: latencies.percentile(90.0),
        p95_ns: latencies.percentile(95.0),
        p99_ns: latencies.percentile(99.0),
        p999_ns: latencies.percentile(99.9),
        max_ns: latencies.max(),
        curve: if with_curve {
            curve(latencies)
        } else {
            Vec::new()
        },
    }
}

/// Selected points of the distribution: evenly spaced fractions, denser near the slow end.
fn curve(latencies: &Latencies) -> Vec<(u64, f64)> {
    let points = latencies.distribution();
    let mut kept = Vec::with_capacity(CURVE_POINTS_MAX);
    let mut next = 0.0;
    for (place, (ns, part)) in points.iter().enumerate() {
        if *part >= next || place + 1 == points.len() {
            kept.push((*ns, *part));
            next = part + ((1.0 - part) / 16.0).clamp(0.000_01, 0.01);
        }
    }
    kept
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn result(class: &str, ops: u64, ns: u64) -> OperationResult {
        let mut result = OperationResult {
            name: "read".into(),
            size_class: class.into(),
            ops,
            bytes: ops * 10,
            ..OperationResult::default()
        };
        (0..ops).for_each(|_| result.last_byte.record(ns));
        result
    }

    #[test]
    fn classes_are_parts_of_their_operation() {
        let work = WorkResult {
            workers: 3,
            seconds: 2.0,
            operations: vec![
                result("<1KB", 90, 1_000_000),
                result("<10KB", 10, 9_000_000),
            ],
            ..WorkResult::default()
        };
        let stages = [StageResult {
            works: vec![work],
            ..StageResult::default()
        }];
        let figures = of(&stages);
        let rows = &figures[0].operations;
        assert_eq!(rows.len(), 3);
        assert_eq!((rows[0].ops, rows[0].size_class.as_deref()), (100, None));
        assert_eq!(rows[2].size_class.as_deref(), Some("<10KB"));
        assert!((figures[0].ops_per_second - 50.0).abs() < 1e-9);
        let headline = headline(&stages);
        assert_eq!((headline.stages, headline.ops), (1, 100));
        assert!(headline.p99_ns > 8_900_000 && headline.p50_ns < 1_100_000);
    }

    #[test]
    fn a_curve_is_short_and_complete() {
        let mut latencies = Latencies::new();
        (1..200_000u64).for_each(|n| latencies.record(n * n));
        let points = curve(&latencies);
        assert!(points.len() < 400, "{}", points.len());
        assert_eq!(points[points.len() - 1].1, 1.0);
        let tail = points.iter().filter(|(_, part)| *part > 0.99).count();
        assert!(tail > 10, "{tail}");
    }
}
