//! Two sides, every stage and operation they have in common, every measure: what differs, by how
//! much, and whether that is more than chance.
//!
//! Many measures are looked at together, and at 95 % each one in twenty would differ by chance
//! alone. So the verdict over all, [`Comparison::better`], asks only for throughput, which was
//! chosen before anybody saw a number.

use super::measures::{Better, Measure, key, label, measures, operation_of, values};
use super::statistics::{
    BOOTSTRAP_LEAST, Interval, bootstrap, mean, median, repetitions_needed, welch,
};
use super::{CompareError, Repetitions, plans};
use crate::results::model::Operation;

#[derive(Clone, Debug)]
pub struct Comparison {
    pub a: String,
    pub b: String,
    /// Repetitions of each.
    pub repetitions: (usize, usize),
    pub rows: Vec<Row>,
    /// Sides differ by less than this, in parts of A, where [`Row::is_within`] says so.
    pub margin: f64,
    /// That the two sides did not measure the same thing. Shown first.
    pub warnings: Vec<String>,
    pub notes: Vec<String>,
}

/// The default margin of an equivalence verdict.
pub const MARGIN: f64 = 0.05;

/// One measure of one operation.
#[derive(Clone, Debug)]
pub struct Row {
    pub stage: String,
    pub operation: String,
    pub measure: Measure,
    pub a: Vec<f64>,
    pub b: Vec<f64>,
    /// Of `b - a`.
    pub interval: Option<Interval>,
    /// The whole interval lies within the margin, also where it excludes zero.
    pub is_within: bool,
    pub verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Better,
    Worse,
    /// The interval holds zero and lies within the margin: a difference that matters is ruled out.
    Equivalent,
    /// The interval holds zero. With so many repetitions in all a difference such as was seen
    /// would show; `None`: more than anybody would run.
    Open {
        repetitions: Option<u32>,
    },
    /// Too few repetitions to say anything; so many are the least.
    TooFew {
        least: u32,
    },
    /// An open loop's figure that says nothing of the store: not ranked.
    NotRanked(NotRanked),
}

/// Why a figure of an open loop is not ranked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotRanked {
    /// Both kept up: the rate is the one that was asked for.
    Offered,
    /// A side could not keep up: its latencies grow with the length of the run.
    Overloaded,
    /// A run that did not record what was achieved shows what was offered.
    NotRecorded,
}

impl Row {
    /// The middle of each side: means where means are compared, else medians.
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

    /// By how much B differs, in parts of A.
    pub fn relative(&self) -> Option<f64> {
        let (a, b) = self.middles();
        (a != 0.0).then(|| (b - a) / a)
    }

    /// The whole that a difference is a part of: A's value, or 1 for a share, whose differences are points.
    /// `None` where A is zero.
    pub fn base(&self) -> Option<f64> {
        let base = match self.measure.unit {
            crate::plot::Unit::Share => 1.0,
            _ => self.middles().0,
        };
        (base != 0.0).then_some(base)
    }
}

impl Comparison {
    /// By throughput, over all operations: `Some(true)` when B is better in one and worse in
    /// none, `Some(false)` the other way round, `None` when it is undecided or mixed.
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

    /// By throughput, over all operations that are ranked: each differs by less than the margin.
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

/// Differences of less than `margin`, in parts of A, count as equivalent.
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
            // Nothing failed on either side: nothing to compare.
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

/// A rate that was asked for ranks nobody, nor do latencies of a queue that only grew. What an
/// overloaded store achieved does.
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

/// Stages and operations in the order of the first run, special works left out.
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
                BOOTSTRAP_LEAST as u32
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
            // The rule knows normal values; of others it is an estimate that cannot be below
            // what was already not enough.
            repetitions: repetitions_needed(&row.a, &row.b)
                .map(|needed| needed.max(row.a.len().min(row.b.len()) as u32 + 1)),
        },
    };
    row
}

/// What makes a comparison lame.
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
