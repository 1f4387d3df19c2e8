//! Text output of a comparison: a table for terminals, the same in Markdown, and bars with
//! intervals.

use std::fmt::Write;

use crate::plot::{Bar, BarGroup, Bars, Scene};
use crate::report::{Cell, Figure, Section, Table};

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

fn cells(row: &Row, margin: f64) -> [String; 7] {
    let (a, b) = row.middles();
    let unit = row.measure.unit;
    [
        row.stage.clone(),
        row.operation.clone(),
        row.measure.name.to_owned(),
        unit.words(a),
        unit.words(b),
        difference(row),
        verdict(row, margin),
    ]
}

/// Formats `+12.3% (+8.1% … +16.5%)`; a share is in points, since A may be zero.
pub(super) fn difference(row: &Row) -> String {
    let (a, b) = row.middles();
    let base = row.base();
    let percent = |difference: f64| match base {
        Some(base) => format!("{:+.1}%", 100.0 * difference / base),
        None => "–".to_owned(),
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

/// The verdict of a row as text.
pub fn verdict(row: &Row, margin: f64) -> String {
    let have = row.a.len().min(row.b.len()) as u32;
    let margin = percent(margin);
    let less = match row.is_within {
        true => format!(" by less than {margin}"),
        false => String::new(),
    };
    match row.verdict {
        Verdict::Better => format!("B is better{less}"),
        Verdict::Worse => format!("B is worse{less}"),
        Verdict::Equivalent => format!("within ±{margin}"),
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

/// Formats `0.05` as `5 %`.
fn percent(part: f64) -> String {
    let digits = format!("{:.2}", part * 100.0);
    format!("{} %", digits.trim_end_matches('0').trim_end_matches('.'))
}

/// Both sides, their repetitions, and the verdict by throughput.
pub fn headline(comparison: &Comparison) -> String {
    let (a, b) = comparison.repetitions;
    let margin = percent(comparison.margin);
    let within = comparison.is_equivalent();
    let verdict = match comparison.better() {
        Some(better) => format!(
            "By throughput B is {}{}.",
            if better { "better" } else { "worse" },
            match within {
                true => format!(", by less than {margin}"),
                false => String::new(),
            }
        ),
        None if within => format!("By throughput both are equivalent, within ±{margin}."),
        None => "No verdict by throughput.".to_owned(),
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

/// The comparison as text for a terminal.
pub fn text(comparison: &Comparison) -> String {
    let mut rows = vec![HEAD.map(str::to_owned)];
    let margin = comparison.margin;
    rows.extend(comparison.rows.iter().map(|row| cells(row, margin)));
    let width = |column: usize| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..7).map(width).collect();
    let mut text = format!("{}\n", headline(comparison));
    for warning in &comparison.warnings {
        let _ = writeln!(text, "WARNING: {warning}");
    }
    text.push('\n');
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

/// The comparison as Markdown.
pub fn markdown(comparison: &Comparison) -> String {
    let mut text = format!("{}\n\n", headline(comparison));
    for warning in &comparison.warnings {
        let _ = writeln!(text, "**{warning}**\n");
    }
    let _ = writeln!(text, "| {} |", HEAD.join(" | "));
    text.push_str("| --- | --- | --- | ---: | ---: | --- | --- |\n");
    for row in &comparison.rows {
        let cells = cells(row, comparison.margin).map(|cell| cell.replace('|', "\\|"));
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    let _ = writeln!(text, "\n{EXPLANATION}");
    for note in &comparison.notes {
        let _ = writeln!(text, "\n{note}");
    }
    text
}

/// The comparison as the first section of a page.
pub fn section(comparison: &Comparison) -> Section {
    let mut words = vec![headline(comparison)];
    words.extend(comparison.warnings.iter().cloned());
    words.extend(comparison.notes.iter().cloned());
    words.push(EXPLANATION.to_owned());
    let row = |row: &Row| {
        let cells = cells(row, comparison.margin).into_iter().enumerate();
        cells
            .map(|(column, cell)| match column {
                3 | 4 => Cell::Number(cell),
                _ => Cell::Words(cell),
            })
            .collect()
    };
    let figures = figures(comparison).into_iter().map(|(name, scene)| Figure {
        slug: format!("compare-{name}"),
        scene,
    });
    Section {
        title: "Verdict".to_owned(),
        words,
        figures: figures.collect(),
        tables: vec![Table {
            title: "Every measure".to_owned(),
            head: HEAD.map(str::to_owned).to_vec(),
            rows: comparison.rows.iter().map(row).collect(),
        }],
        folded: false,
    }
}

/// One chart per measure: both sides of every operation, with standard errors.
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
