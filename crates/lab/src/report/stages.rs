//! A stage's tables: operations with percentiles, distributions of response times, errors by kind,
//! and the slowest requests.

use crate::plot::{Axis, Kind, Line, Lines, Mark, Style, Unit};
use crate::results::model::{Latency, Operation, Run, Stage, State};

use super::families::resolution_words;
use super::sections::{Cell, Figure, Section, Table, Together};
use super::words::{bandwidth, count, failures, operation_label, rate, slug, success, time};

const WORST_ROWS: usize = 20;

pub(super) fn section(stage: &Together<'_>, runs: &[Run], labels: &[String]) -> Section {
    let mut section = Section::new(stage.key);
    for (run, stage) in &stage.stages {
        let words = sentence(stage);
        section.words.push(match runs.len() {
            1 => words,
            _ => format!("{}: {words}", labels[*run]),
        });
    }
    for (tail, name) in [(false, "cdf"), (true, "percentiles")] {
        let chart = distribution(stage, labels, tail);
        if !chart.is_empty() {
            section.figures.push(Figure {
                slug: slug(&format!("{name} {}", stage.key)),
                scene: chart.scene(),
            });
        }
    }
    section.tables.extend(operations(stage, labels));
    section.tables.extend(errors(stage, labels));
    section.tables.extend(worst(stage, labels));
    section
}

fn sentence(stage: &Stage) -> String {
    let mut words = format!("{}: {}", stage.id, stage.state.name());
    if let Some(workers) = stage.workers {
        words.push_str(&format!(", {workers} workers"));
    }
    if let Some(rate) = stage.offered_rate {
        words.push_str(&format!(", {} offered", Unit::PerSecond.words(rate)));
    }
    for operation in stage.whole_operations() {
        if let Some(open) = &operation.open_loop {
            let open = crate::results::open_loop_words(open);
            words.push_str(&format!(", {}: {open}", operation.name));
        }
    }
    if let Some(seconds) = stage.seconds {
        words.push_str(&format!(", {seconds:.1} s measured"));
    }
    let passed_failed = stage.history.iter().any(|m| m.state == "failed");
    if stage.state == State::Completed && passed_failed {
        words.push_str(", after the state failed");
    }
    let span = match (stage.history.first(), stage.history.last()) {
        (Some(first), Some(last)) if first != last => {
            format!(" ({} – {})", first.at, last.at)
        }
        (Some(only), _) => format!(" ({})", only.at),
        _ => String::new(),
    };
    words + &span
}

/// The cumulative distribution; or, with `tail`, response time over percentiles.
pub(super) fn distribution(stage: &Together<'_>, labels: &[String], tail: bool) -> Lines {
    let time_axis = Axis::new("response time", Kind::Log10, Unit::Time);
    let (title, x, y) = if tail {
        (
            "Response times into the tail",
            Axis::new("percentile", Kind::Tail, Unit::Share),
            time_axis,
        )
    } else {
        (
            "Response time distribution",
            time_axis,
            Axis::new("share of operations", Kind::Linear, Unit::Share),
        )
    };
    let mut chart = Lines::new(&format!("{title}: {}", stage.key), x, y);
    let mut resolution = 0.0_f64;
    let several = stage.stages.len() > 1;
    let together = stage;
    for (run, stage) in &stage.stages {
        for operation in stage.whole_operations() {
            let points = operation.latency.points();
            // A tail of three values is a table, not a curve.
            if points.is_empty() || (tail && operation.latency.curve.is_empty()) {
                continue;
            }
            resolution = resolution.max(operation.latency.resolution_us.unwrap_or(0.0));
            let label = operation_label(stage, operation);
            let index = together.colour(&label);
            let place = |quantile: f64, us: f64| if tail { (quantile, us) } else { (us, quantile) };
            let style = Style {
                colour: if several { *run } else { index },
                dash: if several { index } else { index / 8 },
                mark: if operation.latency.curve.is_empty() {
                    Mark::Points
                } else {
                    Mark::None
                },
            };
            chart.lines.push(Line {
                name: if several {
                    format!("{}: {label}", labels[*run])
                } else {
                    label
                },
                points: points.iter().map(|q| place(q.quantile, q.us)).collect(),
                style,
            });
        }
    }
    chart.subtitle = resolution_words(resolution);
    chart
}

fn operations(stage: &Together<'_>, labels: &[String]) -> Option<Table> {
    let several = labels.len() > 1;
    let all = || stage.stages.iter().flat_map(|(_, s)| &s.operations);
    all().next()?;
    // Empty columns are omitted.
    let quantiles: Vec<(f64, &str)> = [
        (0.5, "p50"),
        (0.6, "p60"),
        (0.8, "p80"),
        (0.9, "p90"),
        (0.95, "p95"),
        (0.99, "p99"),
        (0.999, "p99.9"),
    ]
    .into_iter()
    .filter(|(quantile, _)| {
        let exact = |l: &Latency| {
            l.quantiles
                .iter()
                .any(|q| (q.quantile - quantile).abs() < 1e-9)
        };
        all().any(|o| exact(&o.latency))
    })
    .collect();
    let first_byte = all().any(|o| o.first_byte.is_some());
    let mut head: Vec<String> = Vec::new();
    if several {
        head.push("run".to_owned());
    }
    head.extend(
        [
            "operation",
            "succeeded",
            "failed",
            "success",
            "throughput",
            "bandwidth",
            "mean",
        ]
        .map(str::to_owned),
    );
    head.extend(quantiles.iter().map(|(_, name)| (*name).to_owned()));
    head.push("max".to_owned());
    if first_byte {
        head.push("first byte, mean".to_owned());
    }
    let mut rows = Vec::new();
    for (run, stage) in &stage.stages {
        for operation in &stage.operations {
            let mut row = Vec::new();
            if several {
                row.push(Cell::Words(labels[*run].clone()));
            }
            row.extend(operation_cells(stage, operation));
            for (quantile, _) in &quantiles {
                row.push(Cell::Number(time(operation.latency.at(*quantile))));
            }
            row.push(Cell::Number(time(operation.latency.max_us)));
            if first_byte {
                let mean = operation.first_byte.as_ref().and_then(|l| l.mean_us);
                row.push(Cell::Number(time(mean)));
            }
            rows.push(row);
        }
    }
    Some(Table {
        title: "Operations".to_owned(),
        head,
        rows,
    })
}

fn operation_cells(stage: &Stage, operation: &Operation) -> Vec<Cell> {
    let name = operation_label(stage, operation);
    let part = operation.size_class.is_some();
    let name = match &operation.size_class {
        Some(class) => format!("· {name}, {class}"),
        None => name,
    };
    let failed = match operation.done {
        // A part that its tool does not count is unknown, not failed.
        None if part => "–".to_owned(),
        _ => failures(operation.failed),
    };
    vec![
        Cell::Words(name),
        Cell::Number(count(operation.done)),
        Cell::Number(failed),
        Cell::Number(success(operation)),
        Cell::Number(rate(operation.rate)),
        Cell::Number(bandwidth(operation.bandwidth)),
        Cell::Number(time(operation.latency.mean_us)),
    ]
}

fn errors(stage: &Together<'_>, labels: &[String]) -> Option<Table> {
    let mut rows = Vec::new();
    for (run, stage) in &stage.stages {
        for operation in stage.whole_operations() {
            for error in &operation.errors {
                rows.push(vec![
                    Cell::Words(labels[*run].clone()),
                    Cell::Words(operation_label(stage, operation)),
                    Cell::Words(error.kind.clone()),
                    Cell::Number(count(Some(error.count))),
                ]);
            }
        }
    }
    (!rows.is_empty()).then(|| Table {
        title: "Errors by kind".to_owned(),
        head: ["run", "operation", "error", "count"]
            .map(str::to_owned)
            .to_vec(),
        rows,
    })
}

fn worst(stage: &Together<'_>, labels: &[String]) -> Option<Table> {
    let mut all: Vec<_> = stage
        .stages
        .iter()
        .flat_map(|(run, stage)| stage.worst.iter().map(move |w| (*run, w)))
        .collect();
    all.sort_by(|a, b| b.1.us.total_cmp(&a.1.us));
    all.truncate(WORST_ROWS);
    let rows: Vec<Vec<Cell>> = all
        .into_iter()
        .map(|(run, request)| {
            vec![
                Cell::Words(labels[run].clone()),
                Cell::Words(request.operation.clone()),
                Cell::Number(time(Some(request.us))),
                Cell::Number(
                    request
                        .second
                        .map_or_else(|| "–".to_owned(), |s| format!("{s:.1} s")),
                ),
                Cell::Code(request.transaction_id.clone().unwrap_or_default()),
                Cell::Words(request.what.clone().unwrap_or_default()),
            ]
        })
        .collect();
    (!rows.is_empty()).then(|| Table {
        title: "Slowest requests".to_owned(),
        head: ["run", "operation", "took", "at", "transaction id", "object"]
            .map(str::to_owned)
            .to_vec(),
        rows,
    })
}
