//! Figures of a run in columns, for a terminal: rows of a sample and of a stage's results.

use crate::latencies::Latencies;
use crate::record::{OperationResult, OperationSample, Phase, Sample, WorkResult};
use crate::results::duration;

/// One sample on one line, for a line that is overwritten.
pub(super) fn describe_sample(sample: &Sample) -> String {
    let operations: Vec<String> = sample
        .operations
        .iter()
        .map(|operation| {
            let [rate, moved, p50, p99, failed] = figures(operation, sample.seconds);
            let failed = match operation.errors {
                0 => String::new(),
                _ => format!(" {failed} failed"),
            };
            let times = match operation.ops {
                0 => String::new(),
                _ => format!(" p50 {p50} p99 {p99}"),
            };
            format!("{} {rate}/s {moved}{times}{failed}", operation.title())
        })
        .collect();
    let left = match left_words(sample).as_str() {
        "" => String::new(),
        left => format!(" {left} left"),
    };
    format!(
        "  {}{:3.0} %{left}  {}",
        phase_word(sample.phase),
        sample.progress * 100.0,
        operations.join(" | ")
    )
}

fn phase_word(phase: Phase) -> &'static str {
    match phase {
        Phase::Rampup => "ramp-up ",
        Phase::Counted => "",
        Phase::Rampdown => "ramp-down ",
    }
}

fn left_words(sample: &Sample) -> String {
    sample.left.map_or(String::new(), duration)
}

/// Rate, bandwidth, p50, p99 and failures. Without successes there are no latencies.
fn figures(operation: &OperationSample, seconds: f64) -> [String; 5] {
    let seconds = seconds.max(1e-9);
    let time = |ns| match operation.ops {
        0 => "–".to_owned(),
        _ => latency(ns),
    };
    [
        count(operation.ops as f64 / seconds),
        format!("{}/s", bytes(operation.bytes as f64 / seconds)),
        time(operation.p50_ns),
        time(operation.p99_ns),
        operation.errors.to_string(),
    ]
}

/// One sample as rows of a table, a row per operation.
pub(super) fn sample_rows(sample: &Sample) -> Vec<Vec<String>> {
    let mut first = vec![
        format!(
            "{}{:.0} %",
            phase_word(sample.phase),
            sample.progress * 100.0
        ),
        left_words(sample),
    ];
    let rows = sample.operations.iter().map(|operation| {
        let mut row = std::mem::replace(&mut first, vec![String::new(); 2]);
        row.push(operation.title());
        row.extend(figures(operation, sample.seconds));
        row
    });
    rows.collect()
}

pub(super) const SAMPLE_HEAD: [&str; 8] = [
    "done",
    "left",
    "operation",
    "ops/s",
    "bandwidth",
    "p50",
    "p99",
    "failed",
];
/// Widths of a sample's columns, which are printed before later rows are known.
pub(super) const SAMPLE_WIDTHS: [usize; 8] = [14, 9, 18, 9, 12, 8, 8, 7];
/// Columns that hold names; all others hold numbers, to the right.
const NAMES: [&str; 1] = ["operation"];

/// Columns of a table, each as wide as its widest cell and `widths` at least.
pub(super) fn columns(head: &[&str], rows: &[Vec<String>], widths: &[usize]) -> Vec<String> {
    let long = |text: &str| text.chars().count();
    let widths: Vec<usize> = head
        .iter()
        .enumerate()
        .map(|(column, title)| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            let widest = cells.map(|cell| long(cell)).max().unwrap_or(0);
            let least = widths.get(column).copied().unwrap_or(0);
            widest.max(long(title)).max(least)
        })
        .collect();
    let titles: Vec<String> = head.iter().map(|title| (*title).to_owned()).collect();
    std::iter::once(&titles)
        .chain(rows)
        .map(|row| {
            let cells = row.iter().zip(&widths).zip(head);
            let cells = cells.map(|((cell, width), title)| match NAMES.contains(title) {
                true => format!("{cell:<width$}"),
                false => format!("{cell:>width$}"),
            });
            let line = cells.collect::<Vec<_>>().join("  ");
            format!("  {}", line.trim_end())
        })
        .collect()
}

const WORK_HEAD: [&str; 11] = [
    "operation",
    "ops",
    "ops/s",
    "bandwidth",
    "p50",
    "p95",
    "p99",
    "p99.9",
    "max",
    "1st p50",
    "1st p99",
];

/// A table with a line per operation, summed over its size classes; failures are below it.
pub(super) fn work_table(work: &WorkResult) -> Vec<String> {
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    let mut index = 0;
    while let Some(first) = work.operations.get(index) {
        let mut whole = OperationResult::clone(first);
        index += 1;
        while let Some(next) = work
            .operations
            .get(index)
            .filter(|o| o.index == first.index)
        {
            whole.merge(next);
            index += 1;
        }
        rows.push(operation_row(&whole, work.seconds));
        if whole.failed() > 0 {
            let kinds = whole.errors.iter();
            let kinds: Vec<String> = kinds
                .map(|(kind, count)| format!("{kind} × {count}"))
                .collect();
            failures.push(format!("  {} failed: {}", title(&whole), kinds.join(", ")));
        }
    }
    if rows.is_empty() {
        return Vec::new();
    }
    let mut lines = columns(&WORK_HEAD, &rows, &[16]);
    lines.extend(failures);
    lines
}

fn operation_row(operation: &OperationResult, seconds: f64) -> Vec<String> {
    let seconds = seconds.max(1e-9);
    let (achieved, achieved_bytes) = operation.achieved();
    let at = |latencies: &Latencies, percent| match latencies.is_empty() {
        true => "–".to_owned(),
        false => latency(latencies.percentile(percent)),
    };
    let mut row = vec![
        title(operation),
        operation.ops.to_string(),
        count(achieved as f64 / seconds),
        format!("{}/s", bytes(achieved_bytes as f64 / seconds)),
    ];
    let percents = [50.0, 95.0, 99.0, 99.9, 100.0];
    row.extend(percents.map(|percent| at(&operation.last_byte, percent)));
    row.extend([50.0, 99.0].map(|percent| at(&operation.first_byte, percent)));
    row
}

/// The operation's name, with the size class if the workload defines one.
fn title(operation: &OperationResult) -> String {
    match operation.named_class() {
        Some(class) => format!("{} {class}", operation.name),
        None => operation.name.clone(),
    }
}

pub(super) fn count(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.2}M", v / 1e6),
        v if v >= 1e4 => format!("{:.1}k", v / 1e3),
        v if v >= 100.0 => format!("{v:.0}"),
        v => format!("{v:.1}"),
    }
}

fn bytes(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{:.2} GB", v / 1e9),
        v if v >= 1e6 => format!("{:.1} MB", v / 1e6),
        v if v >= 1e3 => format!("{:.1} kB", v / 1e3),
        v => format!("{v:.0} B"),
    }
}

fn latency(ns: u64) -> String {
    let ms = ns as f64 / 1e6;
    match ms {
        ms if ms >= 1000.0 => format!("{:.2} s", ms / 1e3),
        ms if ms >= 100.0 => format!("{ms:.0} ms"),
        ms if ms >= 1.0 => format!("{ms:.1} ms"),
        ms => format!("{:.0} µs", ms * 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Positions at which the cells of a column end.
    fn ends(lines: &[String], column: &str) -> Vec<usize> {
        let head: Vec<char> = lines[0].chars().collect();
        let text: String = head.iter().collect();
        let at = text.find(column).unwrap();
        let end = text[..at].chars().count() + column.chars().count();
        let filled = |line: &String| {
            let cells: Vec<char> = line.chars().collect();
            cells.get(end - 1).is_some_and(|c| *c != ' ')
                && cells.get(end).is_none_or(|c| *c == ' ')
        };
        lines
            .iter()
            .filter(|line| filled(line))
            .map(|_| end)
            .collect()
    }

    #[test]
    fn results_stand_in_columns() {
        let operation = |index, name: &str, ops, error: Option<u64>| {
            let mut result = OperationResult {
                index,
                name: name.into(),
                ops,
                bytes: ops * 4000,
                ..OperationResult::default()
            };
            (0..ops).for_each(|n| result.last_byte.record(1_000_000 + n * 1_000_000));
            let kind = crate::record::ErrorKind::Status(503);
            result.errors.extend(error.map(|count| (kind, count)));
            result
        };
        let work = WorkResult {
            seconds: 1.0,
            operations: vec![
                operation(0, "read", 12_000, None),
                operation(1, "a-name-of-an-operation", 3, Some(7)),
                operation(2, "nothing", 0, None),
            ],
            ..WorkResult::default()
        };
        let lines = work_table(&work);
        let shown = lines.join("\n");
        assert_eq!(lines.len(), 5, "{shown}");
        for column in ["ops", "ops/s", "bandwidth", "p99", "max", "1st p99"] {
            assert_eq!(ends(&lines[..4], column).len(), 4, "{column}\n{shown}");
        }
        assert_eq!(lines[4], "  a-name-of-an-operation failed: http 503 × 7");
        assert!(
            lines[3].contains('–') && !lines[3].contains("µs"),
            "{shown}"
        );
        assert!(work_table(&WorkResult::default()).is_empty());
    }

    #[test]
    fn samples_have_a_row_per_operation() {
        let operation = |name: &str, ops| OperationSample {
            name: name.into(),
            ops,
            errors: 2,
            p50_ns: 5_000_000,
            ..OperationSample::default()
        };
        let sample = Sample {
            seconds: 2.0,
            progress: 0.5,
            left: Some(30.0),
            operations: vec![operation("read", 40), operation("write", 0)],
            ..Sample::default()
        };
        let lines = columns(&SAMPLE_HEAD, &sample_rows(&sample), &SAMPLE_WIDTHS);
        let words = |line: &str| -> Vec<String> {
            let words = line.split("  ").map(str::trim).filter(|w| !w.is_empty());
            words.map(str::to_owned).collect()
        };
        assert_eq!(words(&lines[0]), SAMPLE_HEAD);
        let read = [
            "50 %", "30 s", "read", "20.0", "0 B/s", "5.0 ms", "0 µs", "2",
        ];
        assert_eq!(words(&lines[1]), read);
        assert_eq!(words(&lines[2]), ["write", "0.0", "0 B/s", "–", "–", "2"]);
        assert!(describe_sample(&sample).contains("write 0.0/s 0 B/s 2 failed"));
    }
}
