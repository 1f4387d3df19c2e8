//! Output of measurements: lines during the run, and Markdown for a README.

use std::fmt::Write as _;

use super::Cell;
use super::load::{Outcome, Verb};

fn size(bytes: u64) -> String {
    match bytes {
        b if b >= 1_000_000 && b % 1_000_000 == 0 => format!("{} MB", b / 1_000_000),
        b if b >= 1000 && b % 1000 == 0 => format!("{} KB", b / 1000),
        b => format!("{b} B"),
    }
}

/// Formats with three significant digits.
fn number(value: f64) -> String {
    match value {
        // A store completed nothing in the time.
        v if !v.is_finite() => "–".to_owned(),
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// Bandwidth of bodies; a DELETE has none.
fn mb_per_second(cell: &Cell) -> String {
    match cell.verb {
        Verb::Delete => "–".to_owned(),
        _ => number(cell.outcome.per_second() * cell.size as f64 / 1e6),
    }
}

pub(crate) fn heading(ceilings: &[(u64, Outcome)]) -> String {
    let mut text = String::from("The load generator alone:");
    for (bytes, outcome) in ceilings {
        let rate = number(outcome.per_second());
        let cpu = number(outcome.generator_cpu_us);
        let _ = write!(text, " GET {} {rate}/s, {cpu} µs each;", size(*bytes));
    }
    text.trim_end_matches(';').to_owned()
}

/// One cell of every store.
pub(crate) fn line(row: &[Cell]) -> String {
    let mut text = String::new();
    for cell in row {
        let outcome = &cell.outcome;
        let _ = write!(
            text,
            "{:>6} {:>6} {:>4} conn  {:<15} {:>7} op/s {:>7} MB/s  p50 {:>7} p99 {:>7} ms  {:>6} CPU s/1000  {:>5} MB  {} errors  (generator {} µs)",
            cell.verb.as_str(),
            size(cell.size),
            cell.connections,
            cell.store,
            number(outcome.per_second()),
            mb_per_second(cell),
            number(outcome.p50_ms),
            number(outcome.p99_ms),
            number(cell.server_cpu_seconds_per_1000),
            cell.memory_peak_bytes / 1_000_000,
            outcome.errors,
            number(outcome.generator_cpu_us),
        );
        if let Some(error) = &outcome.error {
            let _ = write!(text, ": {error}");
        }
        text.push('\n');
    }
    if let [first, second] = row {
        let ratio = second.outcome.per_second() / first.outcome.per_second();
        let _ = write!(
            text,
            "{:>25} × {} op/s, CPU × {}",
            "",
            number(ratio),
            number(cpu_ratio(first, second))
        );
    }
    text.trim_end_matches('\n').to_owned()
}

fn cpu_ratio(first: &Cell, second: &Cell) -> f64 {
    second.server_cpu_seconds_per_1000 / first.server_cpu_seconds_per_1000.max(1e-9)
}

/// A table; with two stores, each value is "first / second".
pub(crate) fn markdown(cells: &[Cell], ceilings: &[(u64, Outcome)]) -> String {
    let mut stores: Vec<&str> = Vec::new();
    for cell in cells {
        if !stores.contains(&cell.store) {
            stores.push(cell.store);
        }
    }
    let mut text = format!("{}\n\n", heading(ceilings));
    let _ = writeln!(
        text,
        "Values are {}; CPU is server seconds per 1000 requests.\n",
        stores.join(" / ")
    );
    let ratio_columns = if stores.len() == 2 {
        " ratio of op/s | ratio of CPU |"
    } else {
        ""
    };
    let _ = writeln!(
        text,
        "| request | size | connections | op/s | MB/s | p50 ms | p99 ms | CPU | errors |{ratio_columns}"
    );
    let columns = if stores.len() == 2 { 11 } else { 9 };
    let _ = writeln!(text, "|{}", " --- |".repeat(columns));
    for row in cells.chunks(stores.len().max(1)) {
        let each =
            |value: &dyn Fn(&Cell) -> String| row.iter().map(value).collect::<Vec<_>>().join(" / ");
        let _ = write!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            row[0].verb.as_str(),
            size(row[0].size),
            row[0].connections,
            each(&|c| number(c.outcome.per_second())),
            each(&mb_per_second),
            each(&|c| number(c.outcome.p50_ms)),
            each(&|c| number(c.outcome.p99_ms)),
            each(&|c| number(c.server_cpu_seconds_per_1000)),
            each(&|c| c.outcome.errors.to_string()),
        );
        if let [first, second] = row {
            let ratio = second.outcome.per_second() / first.outcome.per_second();
            let _ = write!(
                text,
                " × {} | × {} |",
                number(ratio),
                number(cpu_ratio(first, second))
            );
        }
        text.push('\n');
    }
    text.push('\n');
    for store in stores {
        let peak = cells
            .iter()
            .filter(|c| c.store == store)
            .map(|c| c.memory_peak_bytes)
            .max();
        let _ = writeln!(
            text,
            "Peak memory of {store}: {} MB.",
            peak.unwrap_or(0) / 1_000_000
        );
    }
    text
}
