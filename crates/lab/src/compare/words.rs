//! A comparison in words: a table for a terminal, the same in Markdown, and bars with intervals.

use std::fmt::Write;

use crate::plot::{Bar, BarGroup, Bars, Scene};

use super::statistics::variance;
use super::verdict::{Comparison, NotRanked, Row, Verdict};

const HEAD: [&str; 7] = [
    "stage",
    "operation",
    "measure",
    "A",
    "B",
    "B against A",
    "verdict",
];

fn cells(row: &Row) -> [String; 7] {
    let (a, b) = row.middles();
    let unit = row.measure.unit;
    [
        row.stage.clone(),
        row.operation.clone(),
        row.measure.name.to_owned(),
        unit.words(a),
        unit.words(b),
        difference(row),
        verdict(row),
    ]
}

/// `+12.3% (+8.1% … +16.5%)`; of a share in points, since nothing may have failed before.
fn difference(row: &Row) -> String {
    let (a, b) = row.middles();
    let percent = |difference: f64| {
        let base = if row.measure.unit == crate::plot::Unit::Share {
            1.0
        } else {
            a
        };
        if base == 0.0 {
            return "–".to_owned();
        }
        format!("{:+.1}%", 100.0 * difference / base)
    };
    match row.interval {
        Some(interval) => format!(
            "{} ({} … {})",
            percent(b - a),
            percent(interval.low),
            percent(interval.high)
        ),
        None => percent(b - a),
    }
}

/// The verdict of a row in words.
pub fn verdict(row: &Row) -> String {
    let have = row.a.len().min(row.b.len()) as u32;
    match row.verdict {
        Verdict::Better => "B is better".to_owned(),
        Verdict::Worse => "B is worse".to_owned(),
        Verdict::Open {
            repetitions: Some(needed),
        } => match needed.saturating_sub(have) {
            1 => "open; 1 more repetition may tell".to_owned(),
            more => format!("open; about {more} more repetitions may tell"),
        },
        Verdict::Open { repetitions: None } => "no difference found".to_owned(),
        Verdict::NotRanked(NotRanked::Offered) => {
            "not ranked: the rate that was asked for".to_owned()
        }
        Verdict::NotRanked(NotRanked::Overloaded) => {
            "not ranked: a side could not keep up".to_owned()
        }
        Verdict::NotRanked(NotRanked::NotRecorded) => {
            "not ranked: an older run, whose rate is the offered one".to_owned()
        }
        Verdict::TooFew { least } => {
            format!("too few repetitions: {least} of each are the least")
        }
    }
}

fn headline(comparison: &Comparison) -> String {
    let (a, b) = comparison.repetitions;
    let verdict = match comparison.better() {
        Some(true) => "By throughput B is better.",
        Some(false) => "By throughput B is worse.",
        None => "No verdict by throughput.",
    };
    format!(
        "A is {} ({a} {}), B is {} ({b} {}). {verdict}",
        comparison.a,
        repetitions(a),
        comparison.b,
        repetitions(b)
    )
}

fn repetitions(count: usize) -> &'static str {
    if count == 1 {
        "repetition"
    } else {
        "repetitions"
    }
}

const EXPLANATION: &str = "Intervals are at 95 %: Welch's for rates and means, bootstrap over \
                           repetitions for percentiles.";

/// For a terminal.
pub fn text(comparison: &Comparison) -> String {
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(comparison.rows.iter().map(cells));
    let width = |column: usize| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..7).map(width).collect();
    let mut text = format!("{}\n\n", headline(comparison));
    for row in &rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            // Writing to a String cannot fail.
            let _ = if (3..5).contains(&column) {
                write!(line, "{cell:>width$}  ")
            } else {
                write!(line, "{cell:<width$}  ")
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    let _ = writeln!(text, "\n{EXPLANATION}");
    for note in &comparison.notes {
        let _ = writeln!(text, "Note: {note}");
    }
    text
}

/// For a document.
pub fn markdown(comparison: &Comparison) -> String {
    let mut text = format!("{}\n\n| {} |\n", headline(comparison), HEAD.join(" | "));
    text.push_str("| --- | --- | --- | ---: | ---: | --- | --- |\n");
    for row in &comparison.rows {
        let cells = cells(row).map(|cell| cell.replace('|', "\\|"));
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    let _ = writeln!(text, "\n{EXPLANATION}");
    for note in &comparison.notes {
        let _ = writeln!(text, "\n{note}");
    }
    text
}

/// A chart per measure: both sides of every operation, with the standard error of each.
pub fn figures(comparison: &Comparison) -> Vec<(String, Scene)> {
    let mut figures: Vec<(String, Scene)> = Vec::new();
    for measure in super::measures() {
        let rows: Vec<&Row> = comparison
            .rows
            .iter()
            .filter(|row| row.measure.name == measure.name)
            .collect();
        if rows.is_empty() {
            continue;
        }
        let bars = Bars {
            title: format!("{}: {} and {}", measure.name, comparison.a, comparison.b),
            subtitle: "with the standard error over repetitions".to_owned(),
            unit: measure.unit,
            series: vec![comparison.a.clone(), comparison.b.clone()],
            groups: rows.into_iter().map(group).collect(),
        };
        figures.push((measure.name.to_owned(), bars.scene()));
    }
    figures
}

fn group(row: &Row) -> BarGroup {
    let (a, b) = row.middles();
    let bar = |series, value, values: &[f64]| Bar {
        series,
        value,
        error: (values.len() > 1).then(|| (variance(values) / values.len() as f64).sqrt()),
        missing: None,
    };
    BarGroup {
        label: format!("{}: {}", row.stage, row.operation),
        bars: vec![bar(0, a, &row.a), bar(1, b, &row.b)],
    }
}
