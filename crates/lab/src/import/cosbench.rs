//! COSBench's result files: the workload table (`w1-name.csv`), the 5-second timeline of a stage
//! (`s1-name.csv`) and the response-time histogram (`w1-name-rt-histogram.csv`).
//!
//! Fields are not quoted. The table ends with one column for each state of a stage; a stage that
//! never ran has only its name and `N/A`; an empty timeline belongs to a stage that never ran.
//! Counts include successful operations only, so failures are computed from the success ratio.

use super::clock::{date_time, time_of_day};
use super::{COUNT_MAX, ImportError, Kind, Source, count_of, number_of};
use crate::results::csv;
use crate::results::model::{
    Fact, Failures, Latency, Moment, Operation, Quantile, Run, Stage, State, Tick, Timeline, Tool,
};

const QUANTILES: [f64; 6] = [0.60, 0.80, 0.90, 0.95, 0.99, 1.0];
const BUCKET_US: f64 = 10_000.0;
const COLUMNS_BEFORE_HISTORY: usize = 17;
/// Op-Count, Byte-Count, Avg-ResTime, Avg-ProcTime, Throughput, Bandwidth, Succ-Ratio.
const TIMELINE_METRICS: usize = 7;

/// One run for every workload table; timelines and histograms are assigned to their runs.
pub(super) fn runs(sources: &[Source]) -> Result<Vec<Run>, ImportError> {
    let of = |kind| sources.iter().filter(move |s| s.kind == kind);
    let mut runs = Vec::new();
    for table in of(Kind::CosBenchTable) {
        let mut run = workload_table(table)?;
        for timeline in of(Kind::CosBenchTimeline) {
            let id = timeline.stem();
            if let Some(stage) = run.stages.iter_mut().find(|s| s.id == id) {
                stage.timeline = stage_timeline(timeline)?;
            }
        }
        let histogram_name = format!("{}-rt-histogram", run.name);
        for histogram in of(Kind::CosBenchHistogram) {
            if histogram.stem() == histogram_name {
                response_times(histogram, &mut run)?;
            }
        }
        note_limits(&mut run);
        runs.push(run);
    }
    if runs.is_empty() {
        runs.extend(lone_timelines(of(Kind::CosBenchTimeline))?);
    }
    Ok(runs)
}

/// Runs for timelines without a table.
fn lone_timelines<'a>(
    sources: impl Iterator<Item = &'a Source>,
) -> Result<Option<Run>, ImportError> {
    let mut stages = Vec::new();
    let mut name = String::new();
    for source in sources {
        if name.is_empty() {
            let folder = source.path.parent().and_then(|p| p.file_name());
            name = folder.map_or(source.stem(), |f| f.to_string_lossy().into_owned());
        }
        let mut stage = Stage::new(source.stem(), State::Completed);
        stage.workers = trailing_workers(&stage.id);
        stage.timeline = stage_timeline(source)?;
        stages.push(stage);
    }
    if stages.is_empty() {
        return Ok(None);
    }
    let mut run = new_run(name);
    run.stages = stages;
    run.notes
        .push("The workload table is missing: timelines only.".to_owned());
    Ok(Some(run))
}

fn new_run(name: String) -> Run {
    Run {
        name,
        tool: Tool::CosBench,
        tool_version: None,
        target: None,
        started: None,
        state: State::Completed,
        broken: Vec::new(),
        plan: None,
        facts: Vec::new(),
        notes: Vec::new(),
        stages: Vec::new(),
    }
}

fn workload_table(source: &Source) -> Result<Run, ImportError> {
    let mut run = new_run(source.stem());
    for (index, row) in csv::rows(&source.text).into_iter().enumerate().skip(1) {
        if row.len() == 1 && row[0].is_empty() {
            continue;
        }
        if row.len() < COLUMNS_BEFORE_HISTORY {
            return Err(source.malformed(index + 1, "at least 17 columns", &row.join(",")));
        }
        let state = State::of_name(&row[16]);
        if run.stages.last().is_none_or(|s| s.id != row[0]) {
            run.stages.push(new_stage(&row, state));
        }
        // A stage that never ran has no operation.
        if row[1] != "N/A"
            && let Some(stage) = run.stages.last_mut()
        {
            stage.operations.push(operation(source, index + 1, &row)?);
        }
    }
    run.started = run
        .stages
        .first()
        .and_then(|s| s.history.first())
        .map(|moment| moment.at.clone());
    run.state = overall(&run.stages);
    Ok(run)
}

fn new_stage(row: &[String], state: State) -> Stage {
    let mut stage = Stage::new(row[0].clone(), state);
    stage.history = row[COLUMNS_BEFORE_HISTORY..]
        .iter()
        .filter_map(|column| column.split_once(" @ "))
        .map(|(state, at)| Moment {
            state: state.to_owned(),
            at: at.trim().to_owned(),
        })
        .collect();
    stage.workers = trailing_workers(&stage.id);
    let at = |name: &str| {
        let moment = stage.history.iter().find(|m| m.state == name)?;
        date_time(&moment.at)
    };
    stage.seconds = match (at("running"), at("closing")) {
        (Some(from), Some(to)) if to > from => Some((to - from) as f64),
        _ => None,
    };
    stage
}

/// Published studies put the number of workers at the end of a stage's name: `…_r80w15d5_16`.
fn trailing_workers(id: &str) -> Option<u32> {
    let (_, digits) = id.rsplit_once(['_', '-'])?;
    let digits = digits.strip_prefix('w').unwrap_or(digits);
    (1..=5).contains(&digits.len()).then_some(())?;
    digits.parse().ok().filter(|workers| *workers > 0)
}

fn operation(source: &Source, line: usize, row: &[String]) -> Result<Operation, ImportError> {
    let number = |column: usize, what: &'static str| match row[column].as_str() {
        "N/A" => Ok(None),
        text => match number_of(text) {
            Some(value) => Ok(Some(value)),
            None => Err(source.malformed(line, what, text)),
        },
    };
    let milliseconds = |column, what| Ok(number(column, what)?.map(|ms| ms * 1000.0));
    let mut operation = Operation::new(row[1].clone(), row[2].clone());
    operation.done = number(3, "a count of operations")?.map(|count| count as u64);
    operation.bytes = number(4, "a count of bytes")?.map(|count| count as u64);
    operation.processing_us = milliseconds(6, "milliseconds")?;
    let mut latency = Latency {
        mean_us: milliseconds(5, "milliseconds")?,
        resolution_us: Some(BUCKET_US),
        ..Latency::default()
    };
    for (index, quantile) in QUANTILES.into_iter().enumerate() {
        if let Some(us) = milliseconds(7 + index, "milliseconds")? {
            latency.quantiles.push(Quantile { quantile, us });
        }
    }
    latency.max_us = latency.at(1.0);
    operation.latency = latency;
    operation.rate = number(13, "operations a second")?;
    operation.bandwidth = number(14, "bytes a second")?;
    operation.failed = failures(operation.done, percentage(source, line, &row[15])?);
    Ok(operation)
}

fn percentage(source: &Source, line: usize, text: &str) -> Result<Option<f64>, ImportError> {
    if text == "N/A" {
        return Ok(None);
    }
    let value = text.strip_suffix('%').and_then(|t| t.parse::<f64>().ok());
    match value {
        Some(value) if (0.0..=100.0).contains(&value) => Ok(Some(value / 100.0)),
        _ => Err(source.malformed(line, "a percentage or N/A", text)),
    }
}

/// A ratio of exactly 100 % needs no estimate; if it was rounded up, it hides at most one failure
/// in 20,000.
fn failures(done: Option<u64>, ratio: Option<f64>) -> Failures {
    match (done, ratio) {
        (Some(_), Some(1.0)) => Failures::Counted(0),
        (Some(done), Some(ratio)) if ratio > 0.0 => {
            let failed = (done as f64 * (1.0 / ratio - 1.0)).round() as u64;
            match failed {
                0..=COUNT_MAX => Failures::Estimated(failed),
                _ => Failures::Unknown,
            }
        }
        _ => Failures::Unknown,
    }
}

/// The worst state of all stages; an aborted stage is only the consequence of another one.
fn overall(stages: &[Stage]) -> State {
    [
        State::Terminated,
        State::Cancelled,
        State::Failed,
        State::Aborted,
        State::Running,
        State::Waiting,
    ]
    .into_iter()
    .find(|state| stages.iter().any(|stage| stage.state == *state))
    .unwrap_or(State::Completed)
}

/// Parses a timeline. It has two header lines: the metrics, each spanning one column per operation,
/// and the operations' names below each.
fn stage_timeline(source: &Source) -> Result<Vec<Timeline>, ImportError> {
    let rows = csv::rows(&source.text);
    let Some(names) = rows.get(1) else {
        return Ok(Vec::new());
    };
    let count = names.len().saturating_sub(1 + 3) / TIMELINE_METRICS;
    if count == 0 || names.len() != 1 + 3 + count * TIMELINE_METRICS {
        return Err(source.malformed(2, "seven metrics and three versions", &names.join(",")));
    }
    let mut timelines: Vec<Timeline> = names[1..=count]
        .iter()
        .map(|name| Timeline {
            operation: name.clone(),
            ticks: Vec::new(),
        })
        .collect();
    let mut clock = StageClock::default();
    let times: Vec<Option<i64>> = rows[2..].iter().map(|row| time_of_day(&row[0])).collect();
    let usual = usual_interval(&times);
    let mut after_silence = false;
    for (index, row) in rows.iter().enumerate().skip(2) {
        let line = index + 1;
        // If no driver has reported in time, COSBench writes a row with one nameless operation.
        let silent = row.len() == 1 + 3 + TIMELINE_METRICS && count > 1;
        if row.len() != names.len() && !silent {
            return Err(source.malformed(line, "as many columns as the header", &row.join(",")));
        }
        let Some(time) = times[index - 2] else {
            return Err(source.malformed(line, "a time HH:MM:SS", &row[0]));
        };
        let (second, interval) = clock.advance(time, usual);
        // That interval's data is lost, and COSBench divides the next row by too short a time.
        if silent {
            after_silence = true;
            continue;
        }
        let by_clock = std::mem::take(&mut after_silence);
        for (operation, timeline) in timelines.iter_mut().enumerate() {
            let column = |metric: usize| row[1 + metric * count + operation].as_str();
            let number = |metric: usize| match column(metric) {
                "N/A" => Ok(None),
                text => match number_of(text) {
                    Some(value) => Ok(Some(value)),
                    None => Err(source.malformed(line, "a number or N/A", text)),
                },
            };
            let done = number(0)?.unwrap_or(0.0) as u64;
            let ratio = percentage(source, line, column(6))?;
            timeline.ticks.push(Tick {
                second,
                interval,
                done,
                failed: failures(Some(done), ratio).count(),
                rate: match by_clock {
                    true => Some(done as f64 / interval),
                    false => number(4)?,
                },
                bandwidth: match by_clock {
                    true => number(1)?.map(|bytes| bytes / interval),
                    false => number(5)?,
                },
                mean_us: number(2)?.map(|ms| ms * 1000.0),
                ..Tick::default()
            });
        }
    }
    Ok(timelines)
}

/// Converts wall-clock times of day to seconds of the stage, also across midnight.
#[derive(Default)]
struct StageClock {
    last: Option<i64>,
    second: i64,
}

impl StageClock {
    fn advance(&mut self, time: i64, usual: i64) -> (f64, f64) {
        let interval = match self.last {
            Some(last) => (time - last).rem_euclid(86_400),
            None => usual,
        };
        self.last = Some(time);
        self.second += interval;
        (self.second as f64, interval.max(1) as f64)
    }
}

/// The most frequent distance between rows, or COSBench's default.
fn usual_interval(times: &[Option<i64>]) -> i64 {
    let mut steps: Vec<i64> = times
        .windows(2)
        .filter_map(|pair| Some((pair[1]? - pair[0]?).rem_euclid(86_400)))
        .collect();
    steps.sort_unstable();
    steps.get(steps.len() / 2).copied().unwrap_or(5)
}

/// Parses the histogram. Columns come in pairs, counts and cumulative share; the heading is
/// `stage-wN-work-operation`, so stage and operation are its two ends.
fn response_times(source: &Source, run: &mut Run) -> Result<(), ImportError> {
    let mut lines = source.text.lines();
    let header: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    let columns = header.len();
    let mut counts: Vec<Vec<(f64, u64)>> = vec![Vec::new(); columns];
    let mut last = 0.0;
    for (index, line) in lines.enumerate() {
        let mut fields = line.split(',');
        let range = fields.next().unwrap_or_default();
        let Some((_, upper)) = range.split_once('~') else {
            return Err(source.malformed(index + 2, "a range FROM~TO", range));
        };
        // The last bucket is unbounded: it is represented by its start.
        let upper = number_of(upper).unwrap_or(500_000.0);
        if upper < last {
            return Err(source.malformed(index + 2, "a range above the last", range));
        }
        last = upper;
        for (column, field) in fields.enumerate() {
            if column % 2 == 0 && column + 1 < columns {
                let malformed = || source.malformed(index + 2, "a count", field);
                let count = count_of(field).ok_or_else(malformed)?;
                if count > 0 {
                    counts[column + 1].push((upper * 1000.0, count));
                }
            }
        }
    }
    // In the header's order: works may have operations of one name.
    let named = header.iter().zip(&counts).skip(1).step_by(2);
    let mut curves: Vec<(&str, Vec<Quantile>)> =
        named.map(|(name, counts)| (*name, curve(counts))).collect();
    for stage in &mut run.stages {
        for (name, curve) in &mut curves {
            let Some(rest) = name.strip_prefix(&format!("{}-", stage.id)) else {
                continue;
            };
            let found = stage
                .operations
                .iter_mut()
                .find(|o| o.work.is_none() && rest.ends_with(&format!("-{}", o.name)));
            if let Some(operation) = found {
                let work = rest.strip_suffix(&format!("-{}", operation.name));
                operation.work = work.map(str::to_owned);
                operation.latency.curve = std::mem::take(curve);
            }
        }
    }
    Ok(())
}

fn curve(buckets: &[(f64, u64)]) -> Vec<Quantile> {
    let total: u128 = buckets.iter().map(|(_, count)| u128::from(*count)).sum();
    let Some((first, _)) = buckets.first() else {
        return Vec::new();
    };
    let mut seen = 0;
    let mut curve = vec![Quantile {
        quantile: 0.0,
        us: (first - BUCKET_US).max(0.0),
    }];
    curve.extend(buckets.iter().map(|(upper, count)| {
        seen += u128::from(*count);
        Quantile {
            quantile: seen as f64 / total as f64,
            us: *upper,
        }
    }));
    curve
}

fn note_limits(run: &mut Run) {
    run.notes.push(
        "Response times were counted in buckets of 10 ms: a percentile is the upper end of its \
         bucket, not a measured value."
            .to_owned(),
    );
    let estimated = run
        .stages
        .iter()
        .flat_map(|s| &s.operations)
        .any(|o| matches!(o.failed, Failures::Estimated(_)));
    if estimated {
        run.notes.push(
            "Counts of failures are worked out from a success ratio rounded to 0.01 %.".to_owned(),
        );
    }
    let hidden = run.stages.iter().any(|stage| {
        stage.state == State::Completed && stage.history.iter().any(|m| m.state == "failed")
    });
    if hidden {
        run.notes.push(
            "Stages marked completed passed through the state failed: some of their operations \
             failed."
                .to_owned(),
        );
    }
    run.facts.push(Fact::new("times", "the machine's own zone"));
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod properties;
