//! Charts of a stage over time: rates, response times, resources of hosts and processes; and
//! distances between successive disk I/Os.

use crate::plot::{Axis, Kind, Line, Lines, Mark, Style, Unit};
use crate::results::model::{Distances, Stage, Tick};

use super::sections::{Cell, Figure, Section, Table, Together};
use super::words::slug;

/// Minimum number of points of a chart; fewer are in the tables.
const POINTS_MIN: usize = 4;
/// Maximum number of distinguishable lines.
const LINES_MAX: usize = 12;

pub(super) fn add(section: &mut Section, stage: &Together<'_>, labels: &[String]) {
    let rates = over_time(
        stage,
        labels,
        "Throughput over time",
        Axis::new("throughput", Kind::Linear, Unit::PerSecond),
        |tick| tick.rate,
    );
    let bandwidths = over_time(
        stage,
        labels,
        "Bandwidth over time",
        Axis::new("bandwidth", Kind::Linear, Unit::BytesPerSecond),
        |tick| tick.bandwidth,
    );
    let means = over_time(
        stage,
        labels,
        "Mean response time over time",
        Axis::new("response time", Kind::Log10, Unit::Time),
        |tick| tick.mean_us,
    );
    let tails = over_time(
        stage,
        labels,
        "99th percentile over time",
        Axis::new("response time", Kind::Log10, Unit::Time),
        |tick| tick.p99_us,
    );
    let failures = over_time(
        stage,
        labels,
        "Failures over time",
        Axis::new("failures", Kind::Linear, Unit::PerSecond),
        |tick| tick.failed.map(|n| n as f64 / tick.interval.max(1e-3)),
    );
    let mut charts = vec![rates, means, tails];
    // Operations that move no bytes have no bandwidth.
    if bandwidths
        .lines
        .iter()
        .any(|l| l.points.iter().any(|p| p.1 > 0.0))
    {
        charts.insert(1, bandwidths);
    }
    // Without failures there is nothing to draw.
    if failures
        .lines
        .iter()
        .any(|l| l.points.iter().any(|p| p.1 > 0.0))
    {
        charts.push(failures);
    }
    charts.extend(resources(stage, labels));
    charts.extend(distances(stage, labels));
    for chart in charts {
        if chart
            .lines
            .iter()
            .any(|line| line.points.len() >= POINTS_MIN)
        {
            section.figures.push(Figure {
                slug: slug(&chart.title),
                scene: chart.scene(),
            });
        }
    }
    section.tables.extend(distance_table(stage, labels));
}

pub(super) fn over_time(
    stage: &Together<'_>,
    labels: &[String],
    title: &str,
    y: Axis,
    value: fn(&Tick) -> Option<f64>,
) -> Lines {
    let x = Axis::new("time since the stage began", Kind::Linear, Unit::Seconds);
    let mut chart = Lines::new(&format!("{title}: {}", stage.key), x, y);
    let several = stage.stages.len() > 1;
    for (run, record) in &stage.stages {
        for timeline in &record.timeline {
            let index = stage.colour(&timeline.operation);
            let points: Vec<(f64, f64)> = timeline
                .ticks
                .iter()
                .map(|tick| (tick.second, value(tick).unwrap_or(f64::NAN)))
                .collect();
            if points.iter().all(|point| point.1.is_nan()) {
                continue;
            }
            chart.lines.push(Line {
                name: if several {
                    format!("{}: {}", labels[*run], timeline.operation)
                } else {
                    timeline.operation.clone()
                },
                points,
                style: Style {
                    colour: if several { *run } else { index },
                    dash: if several { index } else { index / 8 },
                    mark: Mark::None,
                },
            });
        }
    }
    chart
}

/// One chart per quantity, with lines by host, process or device; the busiest ones if there are too
/// many.
fn resources(stage: &Together<'_>, labels: &[String]) -> Vec<Lines> {
    let mut charts: Vec<Lines> = Vec::new();
    let several = stage.stages.len() > 1;
    for (run, record) in &stage.stages {
        for resource in &record.resources {
            let title = format!("{}: {}", plain(&resource.quantity), stage.key);
            let place = charts.iter().position(|c| c.title == title);
            let place = place.unwrap_or_else(|| {
                charts.push(Lines::new(
                    &title,
                    Axis::new("time since the stage began", Kind::Linear, Unit::Seconds),
                    Axis::new(
                        axis_title(&resource.quantity),
                        Kind::Linear,
                        unit(&resource.quantity),
                    ),
                ));
                charts.len() - 1
            });
            let index = charts[place].lines.len();
            charts[place].lines.push(Line {
                name: if several {
                    format!("{}: {}", labels[*run], resource.of)
                } else {
                    resource.of.clone()
                },
                points: resource.points.clone(),
                style: Style {
                    colour: index,
                    dash: index / 8,
                    mark: Mark::None,
                },
            });
        }
    }
    for chart in &mut charts {
        if chart.lines.len() > LINES_MAX {
            let dropped = chart.lines.len() - LINES_MAX;
            let area = |l: &Line| l.points.iter().map(|p| p.1).sum::<f64>();
            chart.lines.sort_by(|a, b| area(b).total_cmp(&area(a)));
            chart.lines.truncate(LINES_MAX);
            chart.subtitle = format!("the {LINES_MAX} busiest; {dropped} more in resources.csv");
        }
    }
    charts
}

/// `CPU (cores)` without its unit: `CPU`.
fn plain(quantity: &str) -> &str {
    quantity.split(" (").next().unwrap_or(quantity)
}

fn unit(quantity: &str) -> Unit {
    if quantity.ends_with("(bytes)") {
        Unit::Bytes
    } else if quantity.ends_with("(bytes/s)") {
        Unit::BytesPerSecond
    } else if quantity.ends_with("(1/s)") {
        Unit::PerSecond
    } else {
        Unit::Plain
    }
}

/// The unit is removed if the axis adds it.
fn axis_title(quantity: &str) -> &str {
    match unit(quantity) {
        Unit::Plain => quantity,
        _ => plain(quantity),
    }
}

fn distances(stage: &Together<'_>, labels: &[String]) -> Option<Lines> {
    let mut chart = Lines::new(
        &format!("Distances between successive disk I/Os: {}", stage.key),
        Axis::new("distance (blocks of 512 bytes)", Kind::Log10, Unit::Plain),
        Axis::new("share at most so far apart", Kind::Linear, Unit::Share),
    );
    for (run, record) in &stage.stages {
        for distance in &record.distances {
            let index = chart.lines.len();
            chart.lines.push(Line {
                name: match labels.len() {
                    1 => distance.device.clone(),
                    _ => format!("{}: {}", labels[*run], distance.device),
                },
                points: cumulative(distance),
                style: Style {
                    colour: index,
                    dash: index / 8,
                    mark: Mark::Points,
                },
            });
        }
    }
    (!chart.is_empty()).then_some(chart)
}

/// A bucket is represented by its upper end, where the next begins.
fn cumulative(distance: &Distances) -> Vec<(f64, f64)> {
    let total = distance.total().max(1) as f64;
    let mut seen = 0;
    distance
        .buckets
        .iter()
        .map(|(from, count)| {
            seen += count;
            let upper = from.saturating_mul(2).max(1);
            (upper as f64, seen as f64 / total)
        })
        .collect()
}

fn distance_table(stage: &Together<'_>, labels: &[String]) -> Option<Table> {
    let row = |run: usize, record: &Stage| {
        let label = labels[run].clone();
        record
            .distances
            .iter()
            .map(|distance| {
                let total = distance.total();
                let share = |count: u64| {
                    let percent = 100.0 * count as f64 / total.max(1) as f64;
                    Cell::Number(format!("{percent:.1}%"))
                };
                let adjacent = distance.buckets.first().map_or(0, |b| b.1);
                vec![
                    Cell::Words(label.clone()),
                    Cell::Words(distance.device.clone()),
                    Cell::Number(Unit::Plain.words(total as f64)),
                    share(adjacent),
                    share(distance.beyond_125k),
                    share(distance.beyond_2500k),
                ]
            })
            .collect::<Vec<_>>()
    };
    let rows: Vec<Vec<Cell>> = stage.stages.iter().flat_map(|(r, s)| row(*r, s)).collect();
    (!rows.is_empty()).then(|| Table {
        title: "Distances between successive disk I/Os".to_owned(),
        head: [
            "run",
            "device",
            "I/Os",
            "adjacent",
            "more than 125,000 blocks",
            "more than 2,500,000 blocks",
        ]
        .map(str::to_owned)
        .to_vec(),
        rows,
    })
}
