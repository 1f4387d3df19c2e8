//! Text summary of runs for a terminal or a log: one line per stage and operation.

use std::fmt::Write;

use crate::results::model::{Run, State};

use super::words::{
    OVER_LIMITS, bandwidth, count, failures, labels, operation_label, rate, success, time,
};

const HEAD: [&str; 9] = [
    "stage",
    "operation",
    "succeeded",
    "failed",
    "success",
    "throughput",
    "bandwidth",
    "mean",
    "p99",
];

pub fn summary(runs: &[Run]) -> String {
    let mut text = String::new();
    for (run, label) in runs.iter().zip(labels(runs)) {
        // Writing to a String cannot fail.
        let state = match run.broken.is_empty() || run.state != State::Completed {
            true => run.state.name(),
            false => OVER_LIMITS,
        };
        let _ = writeln!(text, "{label}: {}, {state}", run.tool.title());
        let mut rows: Vec<[String; 9]> = vec![HEAD.map(str::to_owned)];
        for stage in &run.stages {
            if stage.operations.is_empty() {
                let mut row: [String; 9] = Default::default();
                row[0].clone_from(&stage.id);
                stage.state.name().clone_into(&mut row[1]);
                rows.push(row);
            }
            for operation in stage.whole_operations() {
                rows.push([
                    stage.id.clone(),
                    operation_label(stage, operation),
                    count(operation.done),
                    failures(operation.failed),
                    success(operation),
                    rate(operation.rate),
                    bandwidth(operation.bandwidth),
                    time(operation.latency.mean_us),
                    time(operation.latency.at(0.99)),
                ]);
            }
        }
        text.push_str(&aligned(&rows));
        for note in &run.notes {
            let _ = writeln!(text, "  note: {note}");
        }
        text.push('\n');
    }
    text
}

/// Text is left-aligned, numbers right-aligned.
fn aligned(rows: &[[String; 9]]) -> String {
    let width = |column: usize| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..9).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::from(" ");
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let _ = if column < 2 {
                write!(line, " {cell:<width$} ")
            } else {
                write!(line, " {cell:>width$} ")
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
