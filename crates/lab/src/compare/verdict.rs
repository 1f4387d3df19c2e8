//! Comparison of two sides over all common stages, operations and measures: each difference, and
//! whether it is significant.
//!
//! With many measures at 95 % each, one in twenty would differ by chance alone. Therefore the
//! overall verdict, [`Comparison::better`], considers only throughput, which was chosen before any
//! results were seen.

use super::measures::{Better, Measure, key, label, measures, operation_of, values};
use super::statistics::{
    BOOTSTRAP_MIN, Interval, bootstrap, mean, median, repetitions_needed, welch,
};
use super::{CompareError, Repetitions, plans};
use crate::results::model::Operation;

#[derive(Clone, Debug)]
pub struct Comparison {
    pub a: String,
    pub b: String,
    /// Number of repetitions of each side.
    pub repetitions: (usize, usize),
    pub rows: Vec<Row>,
    /// Margin of [`Row::is_within`], as a fraction of A.
    pub margin: f64,
    /// Warnings that the two sides did not measure the same, displayed first.
    pub warnings: Vec<String>,
    pub notes: Vec<String>,
}

/// The default margin of an equivalence verdict.
pub const MARGIN: f64 = 0.05;

/// Comparison of one measure of one operation.
#[derive(Clone, Debug)]
pub struct Row {
    pub stage: String,
    pub operation: String,
    pub measure: Measure,
    pub a: Vec<f64>,
    pub b: Vec<f64>,
    /// Interval of `b - a`.
    pub interval: Option<Interval>,
    /// The whole interval is within the margin, even if it excludes zero.
    pub is_within: bool,
    pub verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Better,
    Worse,
    /// The interval contains zero and is within the margin: a relevant difference is ruled out.
    Equivalent,
    /// The interval contains zero: inconclusive. The field is the total number of repetitions that
    /// would show a difference as large as the observed one; `None` if that is unreasonably many.
    Open {
        repetitions: Option<u32>,
    },
    /// Too few repetitions for a conclusion; the field is the minimum.
    TooFew {
        least: u32,
    },
    /// A figure of an open loop that does not characterise the store, and is not ranked.
    NotRanked(NotRanked),
}

/// Reasons why a figure of an open loop is not ranked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotRanked {
    /// Both sides kept up: the rate is the offered one.
    Offered,
    /// A side could not keep up: its latencies grow with the length of the run.
    Overloaded,
    /// A run that did not record the achieved rate shows the offered one.
    NotRecorded,
}

impl Row {
    /// Central values of both sides: means if means are compared, otherwise medians.
    pub fn middles(&self) -> (f64, f64) {
        let middle = |values: &[f64]| {
            if self.measure.normal {
                mean(values)
            } else {
                median(&mut values.to_vec())
            }
        };
        (middle(&self.a), middle(&self.b))
    }

    /// Relative difference of B, as a fraction of A.
    pub fn relative(&self) -> Option<f64> {
        let (a, b) = self.middles();
        (a != 0.0).then(|| (b - a) / a)
    }

    /// The base of the relative difference: A's value, or 1 for a share, whose differences are in
    /// points. `None` if A is zero.
    pub fn base(&self) -> Option<f64> {
        let base = match self.measure.unit {
            crate::plot::Unit::Share => 1.0,
            _ => self.middles().0,
        };
        (base != 0.0).then_some(base)
    }
}

impl Comparison {
    /// By throughput over all operations: `Some(true)` if B is better in at least one and worse in
    /// none, `Some(false)` for the reverse, `None` if undecided or mixed.
    pub fn better(&self) -> Option<bool> {
        let of = |verdict: Verdict| {
            self.rows
                .iter()
                .any(|row| row.measure.name == "throughput" && row.verdict == verdict)
        };
        match (of(Verdict::Better), of(Verdict::Worse)) {
            (true, false) => Some(true),
            (false, true) => Some(false),
            _ => None,
        }
    }

    /// By throughput over all ranked operations: does each differ by less than the margin?
    pub fn is_equivalent(&self) -> bool {
        let mut ranked = self
            .rows
            .iter()
            .filter(|row| row.measure.name == "throughput")
            .filter(|row| !matches!(row.verdict, Verdict::NotRanked(_)))
            .peekable();
        ranked.peek().is_some() && ranked.all(|row| row.is_within)
    }
}

/// Compares two sides. Differences below `margin`, as a fraction of A, count as equivalent.
///
/// # Errors
/// `NoRepetitions` for a side whose runs have different plans; `NothingInCommon` if no operation
/// was measured on both sides.
pub fn compare(a: &Repetitions, b: &Repetitions, margin: f64) -> Result<Comparison, CompareError> {
    plans::check_side(a)?;
    plans::check_side(b)?;
    let mut rows = Vec::new();
    for (stage, operation) in operations(a) {
        for measure in measures() {
            let of_a = values(&a.runs, &stage, &operation, &measure);
            let of_b = values(&b.runs, &stage, &operation, &measure);
            if of_a.is_empty() || of_b.is_empty() {
                continue;
            }
            // Without failures on either side there is nothing to compare.
            let zero = |values: &[f64]| values.iter().all(|v| *v == 0.0);
            if measure.name == "failed" && zero(&of_a) && zero(&of_b) {
                continue;
            }
            let mut row = row(&stage, &operation, measure, of_a, of_b, margin);
            if let Some(why) = not_ranked(a, b, &row) {
                row.verdict = Verdict::NotRanked(why);
            }
            rows.push(row);
        }
    }
    if rows.is_empty() {
        let names = |side: &Repetitions| {
            let all: Vec<String> = operations(side)
                .into_iter()
                .map(|(stage, operation)| format!("{stage}/{operation}"))
                .take(8)
                .collect();
            if all.is_empty() {
                "none".to_owned()
            } else {
                all.join(", ")
            }
        };
        return Err(CompareError::NothingInCommon {
            a: a.name.clone(),
            b: b.name.clone(),
            in_a: names(a),
            in_b: names(b),
        });
    }
    Ok(Comparison {
        a: a.name.clone(),
        b: b.name.clone(),
        repetitions: (a.runs.len(), b.runs.len()),
        rows,
        margin,
        warnings: plans::warnings(a, b),
        notes: notes(a, b),
    })
}

/// Offered rates are not ranked, nor latencies of a queue that only grew. The rate that an
/// overloaded store achieved is.
fn not_ranked(a: &Repetitions, b: &Repetitions, row: &Row) -> Option<NotRanked> {
    let is_rate = matches!(row.measure.name, "throughput" | "bandwidth");
    if row.measure.name == "failed" {
        return None;
    }
    let found: Vec<&Operation> = a
        .runs
        .iter()
        .chain(&b.runs)
        .filter_map(|run| operation_of(run, &row.stage, &row.operation))
        .filter(|operation| operation.is_open_loop)
        .collect();
    if found.is_empty() {
        return None;
    }
    let overloaded = found
        .iter()
        .any(|o| o.open_loop.is_some_and(|open| open.overloaded));
    match (is_rate, overloaded) {
        (true, _) if found.iter().any(|o| o.open_loop.is_none()) => Some(NotRanked::NotRecorded),
        (true, false) => Some(NotRanked::Offered),
        (false, true) => Some(NotRanked::Overloaded),
        _ => None,
    }
}

/// Stages and operations in the order of the first run, without special works.
fn operations(side: &Repetitions) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    for stage in side.runs.iter().flat_map(|run| &run.stages) {
        for operation in stage.whole_operations().filter(|o| !o.is_special()) {
            let pair = (key(&stage.id).to_owned(), label(operation).to_owned());
            if !all.contains(&pair) {
                all.push(pair);
            }
        }
    }
    all
}

fn row(
    stage: &str,
    operation: &str,
    measure: Measure,
    a: Vec<f64>,
    b: Vec<f64>,
    margin: f64,
) -> Row {
    let interval = if measure.normal {
        welch(&a, &b)
    } else {
        bootstrap(&a, &b)
    };
    let mut row = Row {
        stage: stage.to_owned(),
        operation: operation.to_owned(),
        measure,
        a,
        b,
        interval,
        is_within: false,
        verdict: Verdict::Equivalent,
    };
    let reach = row.base().map(|base| margin * base.abs());
    row.is_within = match (interval, reach) {
        (Some(interval), Some(reach)) => interval.low > -reach && interval.high < reach,
        _ => false,
    };
    row.verdict = match interval {
        None => Verdict::TooFew {
            least: if measure.normal {
                2
            } else {
                BOOTSTRAP_MIN as u32
            },
        },
        Some(interval) if interval.excludes_zero() => {
            let rises = interval.low > 0.0;
            if rises == (measure.better == Better::More) {
                Verdict::Better
            } else {
                Verdict::Worse
            }
        }
        Some(_) if row.is_within => Verdict::Equivalent,
        Some(_) => Verdict::Open {
            // The formula assumes normal values; for others it is an estimate, which must exceed
            // the present number, as that was insufficient.
            repetitions: repetitions_needed(&row.a, &row.b)
                .map(|needed| needed.max(row.a.len().min(row.b.len()) as u32 + 1)),
        },
    };
    row
}

/// Notes on weaknesses of the comparison.
fn notes(a: &Repetitions, b: &Repetitions) -> Vec<String> {
    let mut notes = Vec::new();
    for side in [a, b] {
        let incomplete = side
            .runs
            .iter()
            .filter(|run| run.state != crate::results::model::State::Completed)
            .count();
        if incomplete > 0 {
            let (name, all) = (&side.name, side.runs.len());
            notes.push(format!(
                "{name}: {incomplete} of {all} runs did not complete."
            ));
        }
    }
    for side in [a, b] {
        let overloaded = side.runs.iter().filter(|run| {
            let mut operations = run.stages.iter().flat_map(|stage| &stage.operations);
            operations.any(|o| o.open_loop.is_some_and(|open| open.overloaded))
        });
        let count = overloaded.count();
        if count > 0 {
            notes.push(format!(
                "{}: {count} of {} runs could not keep up with the offered rate; throughput is \
                 what was achieved, latencies are of a queue that grew.",
                side.name,
                side.runs.len()
            ));
        }
    }
    let tools = |side: &Repetitions| {
        let mut tools: Vec<&str> = side.runs.iter().map(|r| r.tool.title()).collect();
        tools.sort_unstable();
        tools.dedup();
        tools.join(", ")
    };
    if tools(a) != tools(b) {
        notes.push(format!(
            "Measured with different tools ({} and {}): part of a difference may be theirs.",
            tools(a),
            tools(b)
        ));
    }
    let resolution = a
        .runs
        .iter()
        .chain(&b.runs)
        .flat_map(|run| &run.stages)
        .flat_map(|stage| &stage.operations)
        .filter_map(|o| o.latency.resolution_us)
        .fold(0.0, f64::max);
    if resolution >= 1000.0 {
        let words = crate::plot::Unit::Time.words(resolution);
        notes.push(format!(
            "Percentiles come from buckets {words} wide: smaller differences cannot be seen."
        ));
    }
    notes
}
