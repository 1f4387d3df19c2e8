//! Charts over worker counts: stages that differ only in their number of workers form a family,
//! with throughput, bandwidth and distributions over the counts and the best count marked. And all
//! stages as bars.

use crate::plot::{Axis, Bar, BarGroup, Bars, Kind, Line, Lines, Mark, Note, Style, Unit};
use crate::results::model::{Operation, Run, Stage};

use super::sections::{Cell, Figure, Section, Table, together};
use super::words::{bandwidth, rate, slug, stage_key, time};

/// Maximum number of lines in one chart.
const LINES_MAX: usize = 8;
/// Maximum number of stages in one bar chart.
const BARS_MAX: usize = 12;

/// A workload of one run, with its stages by ascending worker count.
struct Family<'a> {
    stem: &'a str,
    run: usize,
    stages: Vec<(u32, &'a Stage)>,
}

/// The name without the worker count at its end: `…_16`, `main@64`, `main-w8`.
fn stem(key: &str, workers: u32) -> Option<&str> {
    let stem = key.strip_suffix(&workers.to_string())?;
    let stem = stem.strip_suffix('w').unwrap_or(stem);
    let cut = stem.trim_end_matches(['_', '-', '@', ' ', '=']);
    (cut.len() < stem.len() && !cut.is_empty()).then_some(cut)
}

fn families(runs: &[Run]) -> Vec<Family<'_>> {
    let mut all: Vec<Family<'_>> = Vec::new();
    for (run, record) in runs.iter().enumerate() {
        for stage in record.stages.iter().filter(|s| !s.is_special()) {
            let Some(workers) = stage.workers else {
                continue;
            };
            let Some(stem) = stem(stage_key(stage), workers) else {
                continue;
            };
            match all.iter_mut().find(|f| f.run == run && f.stem == stem) {
                Some(family) => family.stages.push((workers, stage)),
                None => all.push(Family {
                    stem,
                    run,
                    stages: vec![(workers, stage)],
                }),
            }
        }
    }
    all.retain(|family| family.stages.len() > 1);
    for family in &mut all {
        family.stages.sort_by_key(|(workers, _)| *workers);
    }
    all
}

/// A quantity drawn over worker counts.
struct Quantity {
    title: &'static str,
    unit: Unit,
    of: fn(&Stage) -> f64,
}

const QUANTITIES: [Quantity; 2] = [
    Quantity {
        title: "Throughput",
        unit: Unit::PerSecond,
        of: Stage::rate,
    },
    Quantity {
        title: "Bandwidth",
        unit: Unit::BytesPerSecond,
        of: Stage::bandwidth,
    },
];

pub(super) fn over_workers(runs: &[Run], labels: &[String]) -> Section {
    let mut section = Section::new("Over the number of workers");
    let families = families(runs);
    if families.is_empty() {
        return section;
    }
    for group in charts_of(&families, runs.len()) {
        for quantity in &QUANTITIES {
            let mut chart = Lines::new(
                &match &group.name {
                    Some(name) => format!("{}: {name}", quantity.title),
                    None => format!("{} over workers", quantity.title),
                },
                Axis::new("workers", Kind::Log2, Unit::Plain),
                Axis::new(&quantity.title.to_lowercase(), Kind::Linear, quantity.unit),
            );
            for (index, family) in group.families.iter().enumerate() {
                // For several runs colours distinguish runs, for a single run its workloads.
                let (colour, line) = match (group.is_by_run, &group.name) {
                    (true, _) => (family.run, labels[family.run].clone()),
                    (false, Some(_)) => (index, split(family.stem).1.to_owned()),
                    (false, None) => (index, family.stem.to_owned()),
                };
                add_family(&mut chart, family, quantity, line, colour);
            }
            if chart
                .lines
                .iter()
                .any(|l| l.points.iter().any(|p| p.1 > 0.0))
            {
                let of = group.name.as_deref().map(slug).unwrap_or_default();
                section.figures.push(Figure {
                    slug: slug(&format!("{} over workers {of}", quantity.title)),
                    scene: chart.scene(),
                });
            }
        }
    }
    for figure in distributions(&families, labels) {
        section.figures.push(figure);
    }
    section.tables.push(best_table(&families, labels));
    section
}

/// The lines of one chart.
struct Group<'a, 'b> {
    /// Common part of their names.
    name: Option<String>,
    /// One workload with one line per run; otherwise one line per workload.
    is_by_run: bool,
    families: Vec<&'b Family<'a>>,
}

/// Splits `c1-4KB-r80w15d5` into `c1-4KB` and `r80w15d5`.
fn split(stem: &str) -> (&str, &str) {
    stem.rsplit_once(['-', '_', ' ']).unwrap_or(("", stem))
}

/// For one run: its workloads share charts, grouped by the beginning of their names if they are
/// many. For several runs: one chart per workload, one line per run.
fn charts_of<'a, 'b>(families: &'b [Family<'a>], runs: usize) -> Vec<Group<'a, 'b>> {
    if runs > 1 {
        return grouped(families, true, |family| family.stem);
    }
    if families.len() > LINES_MAX {
        let groups = grouped(families, false, |family| split(family.stem).0);
        if groups.iter().all(|group| group.families.len() > 1) {
            return groups;
        }
    }
    let all: Vec<&Family<'_>> = families.iter().collect();
    let chart = |chunk: &[&'b Family<'a>]| Group {
        name: None,
        is_by_run: false,
        families: chunk.to_vec(),
    };
    all.chunks(LINES_MAX).map(chart).collect()
}

fn grouped<'a, 'b>(
    families: &'b [Family<'a>],
    is_by_run: bool,
    name_of: impl Fn(&Family<'a>) -> &'a str,
) -> Vec<Group<'a, 'b>> {
    let mut groups: Vec<Group<'_, '_>> = Vec::new();
    for family in families {
        let name = name_of(family);
        let fits = |group: &&mut Group<'_, '_>| {
            group.name.as_deref() == Some(name) && group.families.len() < LINES_MAX
        };
        match groups.iter_mut().find(fits) {
            Some(group) => group.families.push(family),
            None => groups.push(Group {
                name: Some(name.to_owned()),
                is_by_run,
                families: vec![family],
            }),
        }
    }
    groups
}

fn add_family(
    chart: &mut Lines,
    family: &Family<'_>,
    quantity: &Quantity,
    name: String,
    colour: usize,
) {
    let points: Vec<(f64, f64)> = family
        .stages
        .iter()
        .filter(|(_, stage)| !stage.operations.is_empty())
        .map(|(workers, stage)| (f64::from(*workers), (quantity.of)(stage)))
        .collect();
    if let Some(best) = points.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1))
        && best.1 > 0.0
    {
        chart.notes.push(Note {
            at: best,
            text: format!("best: {} workers, {}", best.0, quantity.unit.words(best.1)),
            colour,
        });
    }
    chart.lines.push(Line {
        name,
        points,
        style: Style {
            colour,
            dash: colour / 8,
            mark: Mark::Points,
        },
    });
}

/// Response times of an operation by worker count: a colour per count, dashes per run.
fn distributions(families: &[Family<'_>], labels: &[String]) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut done: Vec<(&str, &str)> = Vec::new();
    for family in families {
        for (_, stage) in &family.stages {
            for operation in stage.whole_operations() {
                if done.contains(&(family.stem, operation.name.as_str())) {
                    continue;
                }
                done.push((family.stem, operation.name.as_str()));
                let same: Vec<&Family<'_>> =
                    families.iter().filter(|f| f.stem == family.stem).collect();
                let chart = distribution(family.stem, &operation.name, &same, labels);
                if !chart.is_empty() {
                    figures.push(Figure {
                        slug: slug(&format!("cdf {} {}", operation.name, family.stem)),
                        scene: chart.scene(),
                    });
                }
            }
        }
    }
    figures
}

fn distribution(stem: &str, operation: &str, families: &[&Family<'_>], labels: &[String]) -> Lines {
    let mut chart = Lines::new(
        &format!("Response times of {operation} by workers: {stem}"),
        Axis::new("response time", Kind::Log10, Unit::Time),
        Axis::new("share of operations", Kind::Linear, Unit::Share),
    );
    let mut counts: Vec<u32> = families
        .iter()
        .flat_map(|f| f.stages.iter().map(|(workers, _)| *workers))
        .collect();
    counts.sort_unstable();
    counts.dedup();
    let mut resolution = 0.0_f64;
    for (dash, family) in families.iter().enumerate() {
        for (workers, stage) in &family.stages {
            let find = |o: &&Operation| o.name == operation && !o.latency.points().is_empty();
            let Some(found) = stage.whole_operations().find(find) else {
                continue;
            };
            resolution = resolution.max(found.latency.resolution_us.unwrap_or(0.0));
            let colour = counts.iter().position(|c| c == workers).unwrap_or(0);
            let name = match families.len() {
                1 if *workers == 1 => "1 worker".to_owned(),
                1 => format!("{workers} workers"),
                _ => format!("{}: {workers}", labels[family.run]),
            };
            chart.lines.push(Line {
                name,
                points: found
                    .latency
                    .points()
                    .iter()
                    .map(|q| (q.us, q.quantile))
                    .collect(),
                style: Style {
                    colour,
                    dash,
                    mark: if found.latency.curve.is_empty() {
                        Mark::Points
                    } else {
                        Mark::None
                    },
                },
            });
        }
    }
    chart.subtitle = resolution_words(resolution);
    chart
}

/// A note on tools with wide buckets, whose steps are not the store's.
pub(super) fn resolution_words(us: f64) -> String {
    if us >= 1000.0 {
        format!("counted in steps of {}", Unit::Time.words(us))
    } else {
        String::new()
    }
}

fn best_table(families: &[Family<'_>], labels: &[String]) -> Table {
    let mut rows = Vec::new();
    for family in families {
        let best = |of: fn(&Stage) -> f64| {
            let compare = |a: &&(u32, &Stage), b: &&(u32, &Stage)| of(a.1).total_cmp(&of(b.1));
            family.stages.iter().max_by(compare)
        };
        let (Some((rate_at, fastest)), Some((bandwidth_at, widest))) =
            (best(Stage::rate), best(Stage::bandwidth))
        else {
            continue;
        };
        let p99 = fastest
            .whole_operations()
            .filter_map(|o| o.latency.at(0.99))
            .reduce(f64::max);
        rows.push(vec![
            Cell::Words(labels[family.run].clone()),
            Cell::Words(family.stem.to_owned()),
            Cell::Number(rate(Some(fastest.rate()))),
            Cell::Number(rate_at.to_string()),
            Cell::Number(time(p99)),
            Cell::Number(bandwidth(Some(widest.bandwidth()))),
            Cell::Number(bandwidth_at.to_string()),
        ]);
    }
    Table {
        title: "Best worker count of each workload".to_owned(),
        head: [
            "run",
            "workload",
            "best throughput",
            "at workers",
            "p99 there",
            "best bandwidth",
            "at workers",
        ]
        .map(str::to_owned)
        .to_vec(),
        rows,
    }
}

/// Throughput and bandwidth of every stage: one bar per operation, or per run if there are several.
pub(super) fn per_stage(runs: &[Run], labels: &[String]) -> Section {
    let mut section = Section::new("Per workstage");
    let stages: Vec<_> = together(runs)
        .into_iter()
        .filter(|t| runs.len() == 1 || !t.stages.iter().all(|(_, s)| s.is_special()))
        .collect();
    let names = operation_names(runs);
    let single = runs.len() == 1;
    let pages = stages.len().div_ceil(BARS_MAX);
    for (page, chunk) in stages.chunks(BARS_MAX).enumerate() {
        for quantity in &QUANTITIES {
            let groups: Vec<BarGroup> = chunk
                .iter()
                .map(|stage| BarGroup {
                    label: stage.key.to_owned(),
                    bars: if single {
                        operation_bars(stage.stages[0].1, &names, quantity)
                    } else {
                        run_bars(&stage.stages, runs.len(), quantity)
                    },
                })
                .collect();
            let any = groups
                .iter()
                .flat_map(|g| &g.bars)
                .any(|bar| bar.value > 0.0);
            if !any && (page > 0 || quantity.unit == Unit::BytesPerSecond) {
                continue;
            }
            let mut title = format!("{} per workstage", quantity.title);
            if pages > 1 {
                title = format!("{title} ({} of {pages})", page + 1);
            }
            let bars = Bars {
                subtitle: String::new(),
                unit: quantity.unit,
                series: if single {
                    names.clone()
                } else {
                    labels.to_vec()
                },
                groups,
                title: title.clone(),
            };
            section.figures.push(Figure {
                slug: slug(&title),
                scene: bars.scene(),
            });
        }
    }
    section
}

fn operation_names(runs: &[Run]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for stage in runs.iter().flat_map(|run| &run.stages) {
        for operation in stage.whole_operations() {
            if !names.contains(&operation.name) {
                names.push(operation.name.clone());
            }
        }
    }
    names
}

fn operation_bars(stage: &Stage, names: &[String], quantity: &Quantity) -> Vec<Bar> {
    if stage.operations.is_empty() {
        return vec![missing(0, stage)];
    }
    let mut bars: Vec<Bar> = Vec::new();
    for operation in stage.whole_operations() {
        let value = match quantity.unit {
            Unit::BytesPerSecond => operation.bandwidth,
            _ => operation.rate,
        };
        let series = names.iter().position(|n| *n == operation.name).unwrap_or(0);
        // Works with the same operation share a bar.
        match bars.iter_mut().find(|bar| bar.series == series) {
            Some(bar) => bar.value += value.unwrap_or(0.0),
            None => bars.push(Bar {
                series,
                value: value.unwrap_or(0.0),
                error: None,
                missing: value.is_none().then(|| "not measured".to_owned()),
            }),
        }
    }
    bars
}

fn run_bars(stages: &[(usize, &Stage)], runs: usize, quantity: &Quantity) -> Vec<Bar> {
    (0..runs)
        .filter_map(|run| {
            let (_, stage) = stages.iter().find(|(of, _)| *of == run)?;
            if stage.operations.is_empty() {
                return Some(missing(run, stage));
            }
            let value = (quantity.of)(stage);
            Some(Bar {
                series: run,
                value,
                error: None,
                missing: None,
            })
        })
        .collect()
}

fn missing(series: usize, stage: &Stage) -> Bar {
    let why = match (stage.timeline.is_empty(), stage.seconds) {
        (true, _) => stage.state.name(),
        (false, None) => "timeline only",
        // It ran, but no operation ended within the counted time.
        (false, Some(_)) => "nothing counted",
    };
    let why = why.to_owned();
    Bar {
        series,
        value: 0.0,
        error: None,
        missing: Some(why),
    }
}
