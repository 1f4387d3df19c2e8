//! Conversion of recorded results into the model for reports: size classes are summed to
//! operations, samples become timelines, resources become named series, and stages that never ran
//! or were cut short are added.

use std::collections::BTreeMap;

use super::model::{
    ErrorCount, Fact, Failures, Latency, Moment, Operation, Quantile, Run, Stage, State, Tick,
    Timeline, Tool, WorstRequest,
};
use super::read::Recorded;
use super::resources::{distances, resource_series};
use super::time::{date_time, rfc3339};
use crate::latencies::Latencies;
use crate::plan::{OperationKind, WorkKind};
use crate::record::{
    self, OperationResult, OperationSample, Phase, ResourceSample, Sample, StageResult, WorkResult,
};

/// Percentiles in tables, in percent.
pub(super) const PERCENTILES: [f64; 9] = [0.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 100.0];
/// Maximum points of a curve on a page.
const CURVE_POINTS: usize = 240;
/// Maximum slowest requests shown.
const WORST_SHOWN: usize = 20;

pub(super) fn run(recorded: &Recorded) -> Run {
    let meta = &recorded.meta;
    let mut stages: Vec<Stage> = recorded.stages.iter().map(|s| stage(s, recorded)).collect();
    stages.extend(unfinished(recorded));
    stages.extend(never_ran(recorded, &stages));
    let works = recorded.stages.iter().flat_map(|stage| {
        let of = move |work| (stage, work);
        stage.works.iter().map(of)
    });
    let overloads = works.filter_map(|(stage, work)| overload_words(stage, work));
    let mut notes: Vec<String> = overloads.chain(meta.notes.iter().cloned()).collect();
    let broken = meta.broken.iter().map(|told| format!("FAILED: {told}"));
    notes.splice(0..0, broken);
    if !meta.message.is_empty() {
        notes.insert(0, meta.message.clone());
    }
    if recorded.cut_short {
        notes.insert(
            0,
            "The run was cut short: its process ended before the workload did.".to_owned(),
        );
    }
    for driver in &meta.drivers {
        if let Some(loss) = &driver.lost {
            notes.push(format!(
                "Driver {} was lost at {}: {}.",
                driver.name,
                date_time(loss.at),
                loss.reason
            ));
        }
    }
    Run {
        name: if meta.name.is_empty() {
            meta.id.clone()
        } else {
            meta.name.clone()
        },
        tool: Tool::Lab,
        tool_version: (!meta.lab_version.is_empty()).then(|| meta.lab_version.clone()),
        target: (!meta.target.is_empty()).then(|| meta.target.clone()),
        started: (meta.started > 0.0).then(|| rfc3339(meta.started)),
        state: if recorded.cut_short {
            State::Interrupted
        } else {
            state(meta.state)
        },
        broken: meta.broken.clone(),
        plan: recorded.plan.clone().map(Box::new),
        facts: facts(recorded),
        notes,
        stages,
    }
}

/// A sentence that an open loop could not keep up; `None` if it could.
fn overload_words(stage: &StageResult, work: &WorkResult) -> Option<String> {
    let open = work.open_loop().filter(|open| open.overloaded)?;
    Some(format!(
        "Stage {}, work {}: {}",
        stage.name,
        work.name,
        open_loop_words(&open)
    ))
}

/// Offered and achieved rate, and lateness of requests, as text.
pub fn open_loop_words(open: &record::OpenLoop) -> String {
    use crate::plot::Unit;
    let us = |ns: u64| Unit::Time.words(ns as f64 / 1e3);
    let verdict = match open.overloaded {
        true => "could not keep up: ",
        false => "",
    };
    format!(
        "{verdict}{} offered, {} achieved; {:.1} % began late, p50 {} p99 {} at most {}",
        Unit::PerSecond.words(open.offered),
        Unit::PerSecond.words(open.achieved),
        open.late * 100.0,
        us(open.delay_p50_ns),
        us(open.delay_p99_ns),
        us(open.delay_max_ns)
    )
}

pub(super) fn state(state: record::State) -> State {
    match state {
        record::State::Running => State::Running,
        record::State::Completed => State::Completed,
        record::State::Failed => State::Failed,
        record::State::Cancelled => State::Cancelled,
    }
}

fn facts(recorded: &Recorded) -> Vec<Fact> {
    let meta = &recorded.meta;
    let mut facts = vec![
        Fact::new("run", meta.id.clone()),
        Fact::new("workload file", meta.file.clone()),
        Fact::new("scale", meta.scale.clone()),
        Fact::new("tags", meta.tags.join(", ")),
        Fact::new("workload format", meta.format.clone()),
        Fact::new("seed", meta.seed.to_string()),
        Fact::new("server says", meta.server.clone()),
        Fact::new("command", meta.command.join(" ")),
    ];
    if let Some(ended) = meta.ended {
        facts.push(Fact::new("ended", rfc3339(ended)));
    }
    let resumed: Vec<String> = meta.resumed.iter().map(|part| rfc3339(part.at)).collect();
    facts.push(Fact::new("resumed", resumed.join(", ")));
    if let Some(ceiling) = &meta.ceiling {
        let value = format!(
            "{:.0} operations/s without a store, {} threads, measured for {:.1} s",
            ceiling.ops_per_second, ceiling.threads, ceiling.seconds
        );
        facts.push(Fact::new("generator's ceiling", value));
    }
    for driver in &meta.drivers {
        let host = &driver.host;
        let gigabytes = host.memory_bytes as f64 / 1e9;
        let mut value = format!(
            "{}, {}, {} cores, {gigabytes:.1} GB, {}",
            host.name, host.cpu, host.cores, host.kernel
        );
        if driver.clock_error > 0.0 {
            value.push_str(&format!(
                "; clock off by {:.1} ms ± {:.1} ms, corrected",
                driver.clock_offset * 1e3,
                driver.clock_error * 1e3
            ));
        }
        facts.push(Fact::new(format!("driver {}", driver.name), value));
    }
    facts.retain(|fact| !fact.value.is_empty());
    facts
}

/// A stage's id with COSBench's numbering; a name with its number is kept.
pub(super) fn stage_id(number: u32, name: &str) -> String {
    let prefix = format!("s{number}-");
    if name.starts_with(&prefix) {
        name.to_owned()
    } else {
        format!("{prefix}{name}")
    }
}

fn stage(result: &StageResult, recorded: &Recorded) -> Stage {
    let mut stage = Stage::new(stage_id(result.number, &result.name), state(result.state));
    stage.history = history(result);
    let works = &result.works;
    let workers: u32 = works.iter().map(|w| w.workers).sum();
    stage.workers = (workers > 0).then_some(workers);
    let offered: f64 = works.iter().filter_map(|w| w.rate).sum();
    stage.offered_rate = (offered > 0.0).then_some(offered);
    let longest = works.iter().map(|w| w.seconds).fold(0.0, f64::max);
    stage.seconds = (longest > 0.0).then_some(longest);
    for work in works {
        for name in operation_names(work) {
            let parts: Vec<&OperationResult> =
                work.operations.iter().filter(|o| o.name == name).collect();
            stage.operations.push(whole(work, &parts));
            if parts.len() > 1 {
                for part in &parts {
                    stage.operations.push(operation(work, part, true));
                }
            }
            worst(&mut stage, result, &parts);
        }
    }
    stage.worst.sort_by(|a, b| b.us.total_cmp(&a.us));
    stage.worst.truncate(WORST_SHOWN);
    add_courses(
        &mut stage,
        &result.name,
        result.started,
        result.ended,
        recorded,
    );
    stage
}

pub(super) fn history(result: &StageResult) -> Vec<Moment> {
    let moments = result.history.iter().map(|event| Moment {
        state: event.what.clone(),
        at: date_time(event.at),
    });
    moments.collect()
}

/// Operation names in the order of the plan, each once.
pub(super) fn operation_names(work: &WorkResult) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for operation in &work.operations {
        if !names.contains(&operation.name.as_str()) {
            names.push(&operation.name);
        }
    }
    names
}

/// An operation summed over all its size classes.
pub(super) fn merged(parts: &[&OperationResult]) -> OperationResult {
    let mut sum = parts.first().map(|p| (*p).clone()).unwrap_or_default();
    for part in parts.iter().skip(1) {
        sum.merge(part);
    }
    sum
}

fn whole(work: &WorkResult, parts: &[&OperationResult]) -> Operation {
    operation(work, &merged(parts), false)
}

fn operation(work: &WorkResult, result: &OperationResult, part: bool) -> Operation {
    let (name, kind) = names(work.kind, result);
    let mut operation = Operation::new(name, kind);
    operation.work = Some(work.name.clone());
    operation.size_class = part.then(|| result.size_class.clone());
    operation.done = Some(result.ops);
    operation.failed = Failures::Counted(result.failed());
    operation.bytes = Some(result.bytes);
    if work.seconds > 0.0 {
        let (ended, bytes) = result.achieved();
        operation.rate = Some(ended as f64 / work.seconds);
        operation.bandwidth = Some(bytes as f64 / work.seconds);
    }
    operation.open_loop = work
        .rate
        .and_then(|_| record::OpenLoop::of(&[result], work.seconds));
    operation.is_open_loop = work.rate.is_some();
    operation.latency = latency(&result.last_byte);
    operation.first_byte = (!result.first_byte.is_empty()).then(|| latency(&result.first_byte));
    operation.processing_us = processing_us(result);
    operation.errors = result
        .errors
        .iter()
        .map(|(kind, count)| ErrorCount {
            kind: kind.to_string(),
            count: *count,
        })
        .collect();
    operation
}

/// COSBench's operation name and operation type: special works have a double name.
pub(super) fn names(work: WorkKind, result: &OperationResult) -> (String, &'static str) {
    match work {
        WorkKind::Init => ("init-write".to_owned(), "init"),
        WorkKind::Prepare => ("prepare-write".to_owned(), "prepare"),
        WorkKind::Cleanup => ("cleanup-delete".to_owned(), "cleanup"),
        WorkKind::Dispose => ("dispose-delete".to_owned(), "dispose"),
        WorkKind::Delay => ("delay".to_owned(), "delay"),
        WorkKind::Main => (result.name.clone(), result.kind.as_str()),
    }
}

/// COSBench's processing time: the response time less the transfer of a read's body.
pub(super) fn processing_us(result: &OperationResult) -> Option<f64> {
    let of = if !result.service.is_empty() {
        &result.service
    } else if result.kind == OperationKind::Read && !result.first_byte.is_empty() {
        &result.first_byte
    } else {
        &result.last_byte
    };
    (!of.is_empty()).then(|| of.mean() / 1e3)
}

fn latency(latencies: &Latencies) -> Latency {
    if latencies.is_empty() {
        return Latency::default();
    }
    let us = |ns: u64| ns as f64 / 1e3;
    Latency {
        mean_us: Some(latencies.mean() / 1e3),
        deviation_us: Some(latencies.stdev() / 1e3),
        min_us: Some(us(latencies.min())),
        max_us: Some(us(latencies.max())),
        quantiles: PERCENTILES
            .into_iter()
            .map(|percent| Quantile {
                quantile: percent / 100.0,
                us: us(match percent {
                    0.0 => latencies.min(),
                    percent => latencies.percentile(percent),
                }),
            })
            .collect(),
        curve: curve(latencies),
        resolution_us: None,
        histogram: Some(latencies.clone()),
    }
}

/// The curve, thinned in the middle, where thousands of buckets look like one line, but not in the
/// tail, where each point matters.
fn curve(latencies: &Latencies) -> Vec<Quantile> {
    let all = latencies.distribution();
    let step = 1.0 / CURVE_POINTS as f64;
    let mut curve = vec![Quantile {
        quantile: 0.0,
        us: latencies.min() as f64 / 1e3,
    }];
    let mut drawn: f64 = 0.0;
    for (index, (ns, part)) in all.iter().enumerate() {
        // The step shrinks with the remaining fraction: 99.99 % is drawn as precisely as 50 %.
        let left = (1.0 - drawn).max(1e-9);
        if part - drawn >= (step * left * 8.0).min(step) || index + 1 == all.len() {
            drawn = *part;
            curve.push(Quantile {
                quantile: *part,
                us: *ns as f64 / 1e3,
            });
        }
    }
    curve
}

fn worst(stage: &mut Stage, result: &StageResult, parts: &[&OperationResult]) {
    for part in parts {
        stage.worst.extend(part.worst.iter().map(|request| {
            let mut what = format!("{}/{}", request.container, request.object);
            if let Some(error) = &request.error {
                what.push_str(&format!(" ({error})"));
            }
            WorstRequest {
                operation: part.name.clone(),
                size_class: Some(part.size_class.clone()).filter(|c| !c.is_empty()),
                us: request.last_byte_ns as f64 / 1e3,
                second: Some(request.at - result.started),
                transaction_id: Some(request.transaction.clone()).filter(|t| !t.is_empty()),
                what: Some(what),
            }
        }));
    }
}

/// Adds timelines, resources and distances of the stage called `name`.
fn add_courses(stage: &mut Stage, name: &str, started: f64, ended: f64, recorded: &Recorded) {
    let samples = recorded.timeline.iter().filter(|s| s.stage == name);
    stage.timeline = timelines(samples, started);
    let resources: Vec<&ResourceSample> = recorded
        .resources
        .iter()
        .filter(|s| s.stage == name && s.at <= ended.max(started) + 60.0)
        .collect();
    stage.resources = resource_series(&resources, started);
    stage.distances = distances(&resources);
}

/// Name and size class, which identify an operation of a work.
type OperationKey<'a> = (&'a str, &'a str);

fn operation_key(operation: &OperationSample) -> OperationKey<'_> {
    (&operation.name, &operation.size_class)
}

/// The operations with samples in any interval of each work.
fn operations_of_works<'a>(
    samples: &[&'a Sample],
) -> BTreeMap<&'a str, BTreeMap<OperationKey<'a>, OperationKind>> {
    let mut known: BTreeMap<&str, BTreeMap<OperationKey<'a>, OperationKind>> = BTreeMap::new();
    for sample in samples {
        let of = known.entry(sample.work.as_str()).or_default();
        of.extend(sample.operations.iter().map(|o| (operation_key(o), o.kind)));
    }
    known
}

/// One line per operation; works with operations of the same name are distinguished.
fn timelines<'a>(samples: impl Iterator<Item = &'a Sample>, started: f64) -> Vec<Timeline> {
    let samples: Vec<&Sample> = samples.collect();
    let known = operations_of_works(&samples);
    let mut lines: BTreeMap<(String, String), Vec<Tick>> = BTreeMap::new();
    for sample in samples {
        // An operation without completions in an interval has a row of zeros.
        let idle = known
            .get(sample.work.as_str())
            .into_iter()
            .flatten()
            .filter(|(key, _)| !sample.operations.iter().any(|o| operation_key(o) == **key))
            .map(|((name, size_class), kind)| OperationSample {
                name: (*name).to_owned(),
                size_class: (*size_class).to_owned(),
                kind: *kind,
                ..OperationSample::default()
            });
        let idle: Vec<OperationSample> = idle.collect();
        for operation in sample.operations.iter().chain(&idle) {
            // The class is omitted if the name is unique in the work.
            let same = |of: &BTreeMap<OperationKey<'_>, OperationKind>| {
                of.keys()
                    .filter(|(name, _)| *name == operation.name)
                    .count()
            };
            let name = match known.get(sample.work.as_str()).map(same) {
                Some(2..) => operation.title(),
                _ => operation.name.clone(),
            };
            let key = (sample.work.clone(), name);
            let seconds = sample.seconds.max(1e-3);
            let us = |ns: u64| (operation.ops > 0).then_some(ns as f64 / 1e3);
            lines.entry(key).or_default().push(Tick {
                second: sample.at - started,
                interval: sample.seconds,
                done: operation.ops,
                failed: Some(operation.errors),
                rate: Some(operation.ops as f64 / seconds),
                bandwidth: Some(operation.bytes as f64 / seconds),
                mean_us: us(operation.mean_ns as u64),
                p50_us: us(operation.p50_ns),
                p99_us: us(operation.p99_ns),
                max_us: us(operation.max_ns),
            });
        }
    }
    let several = lines
        .keys()
        .map(|(work, _)| work)
        .collect::<std::collections::BTreeSet<_>>()
        .len()
        > 1;
    lines
        .into_iter()
        .map(|((work, name), ticks)| Timeline {
            operation: if several {
                format!("{work}: {name}")
            } else {
                name
            },
            ticks,
        })
        .collect()
}

/// The stage that was active when the run was killed, or is active now, from its samples.
fn unfinished(recorded: &Recorded) -> Option<Stage> {
    let last = recorded.timeline.last()?;
    let ended = recorded.stages.iter().any(|s| s.name == last.stage);
    if ended || recorded.meta.state != record::State::Running {
        return None;
    }
    let samples: Vec<&Sample> = recorded
        .timeline
        .iter()
        .filter(|s| s.stage == last.stage)
        .collect();
    let first = samples.first()?;
    let started = first.at - first.seconds;
    let number = recorded.plan.as_ref().and_then(|plan| {
        let base = last.stage.split('@').next().unwrap_or_default();
        plan.stages.iter().position(|s| s.name == base)
    });
    let number = number.map_or(recorded.stages.len() + 1, |n| n + 1);
    let mut stage = Stage::new(
        stage_id(number as u32, &last.stage),
        if recorded.cut_short {
            State::Interrupted
        } else {
            State::Running
        },
    );
    stage.seconds = Some(last.at - started);
    stage.operations = counted_operations(&samples);
    add_courses(&mut stage, &last.stage, started, last.at, recorded);
    Some(stage)
}

/// Sums over the counted samples: counts, rates, mean and maximum, but no distribution.
fn counted_operations(samples: &[&Sample]) -> Vec<Operation> {
    #[derive(Default)]
    struct Sum {
        ops: u64,
        bytes: u64,
        errors: u64,
        ns: f64,
        max_ns: u64,
    }
    let mut sums: BTreeMap<(&str, &str, &str), Sum> = BTreeMap::new();
    // An interval without completions counts for the time, too.
    let mut seconds: BTreeMap<&str, f64> = BTreeMap::new();
    for sample in samples.iter().filter(|s| s.phase == Phase::Counted) {
        *seconds.entry(sample.work.as_str()).or_default() += sample.seconds;
        for operation in &sample.operations {
            let key = (
                sample.work.as_str(),
                operation.name.as_str(),
                operation.kind.as_str(),
            );
            let sum = sums.entry(key).or_default();
            sum.ops += operation.ops;
            sum.bytes += operation.bytes;
            sum.errors += operation.errors;
            sum.ns += operation.mean_ns * operation.ops as f64;
            sum.max_ns = sum.max_ns.max(operation.max_ns);
        }
    }
    sums.into_iter()
        .map(|((work, name, kind), sum)| {
            let mut operation = Operation::new(name, kind);
            operation.work = Some(work.to_owned());
            operation.done = Some(sum.ops);
            operation.failed = Failures::Counted(sum.errors);
            operation.bytes = Some(sum.bytes);
            let seconds = seconds.get(work).copied().unwrap_or(0.0);
            if seconds > 0.0 {
                operation.rate = Some(sum.ops as f64 / seconds);
                operation.bandwidth = Some(sum.bytes as f64 / seconds);
            }
            if sum.ops > 0 {
                operation.latency.mean_us = Some(sum.ns / sum.ops as f64 / 1e3);
                operation.latency.max_us = Some(sum.max_ns as f64 / 1e3);
            }
            operation
        })
        .collect()
}

/// Stages of the plan after a failed one: COSBench calls them aborted.
fn never_ran(recorded: &Recorded, known: &[Stage]) -> Vec<Stage> {
    let Some(plan) = &recorded.plan else {
        return Vec::new();
    };
    let state = match (recorded.meta.state, recorded.cut_short) {
        (record::State::Running, true) => State::Interrupted,
        (record::State::Running, false) => State::Waiting,
        (record::State::Cancelled, _) => State::Cancelled,
        _ => State::Aborted,
    };
    let planned = plan.stages.iter().enumerate();
    planned
        .map(|(index, stage)| (index, stage_id(index as u32 + 1, &stage.name)))
        .filter(|(_, id)| {
            // The steps of a knee search are `name@workers`.
            let step = format!("{id}@");
            !known.iter().any(|s| s.id == *id || s.id.starts_with(&step))
        })
        .map(|(_, id)| Stage::new(id, state))
        .collect()
}
