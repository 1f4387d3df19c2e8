//! Charts over offered rates: open loops that differ only in their rate form a family, with what
//! was achieved and p99 over the rate, and the highest rate that the store kept up with marked.

use crate::plot::{Axis, Kind, Line, Lines, Mark, Note, Style, Unit};
use crate::results::model::{Operation, Run, Stage};

use super::sections::{Cell, Figure, Section, Table};
use super::words::{operation_label, rate, slug, stage_key, time};

/// Maximum number of lines in one chart.
const LINES_MAX: usize = 8;

/// An open loop of one run, with its stages by ascending rate.
struct Family<'a> {
    stem: &'a str,
    run: usize,
    stages: Vec<(f64, &'a Stage)>,
}

impl Family<'_> {
    /// The highest rate below the first that the store could not keep up with.
    fn knee(&self) -> Option<&(f64, &Stage)> {
        let kept_up = self.stages.iter().take_while(|(_, s)| !s.is_overloaded());
        kept_up.last()
    }
}

/// The name without the rate at its end: `main-200`, `main@rate-300`, `main_400`.
fn stem(key: &str, rate: f64) -> Option<&str> {
    let stem = key.strip_suffix(&rate.to_string())?;
    let ends = ['_', '-', '@', ' ', '='];
    let short = stem.trim_end_matches(ends);
    if short.len() == stem.len() {
        return None;
    }
    let short = short.strip_suffix("rate").unwrap_or(short);
    let short = short.trim_end_matches(ends);
    (!short.is_empty()).then_some(short)
}

fn families(runs: &[Run]) -> Vec<Family<'_>> {
    let mut all: Vec<Family<'_>> = Vec::new();
    for (run, record) in runs.iter().enumerate() {
        for stage in record.stages.iter().filter(|s| !s.is_special()) {
            let Some(offered) = stage.offered_rate else {
                continue;
            };
            let Some(stem) = stem(stage_key(stage), offered) else {
                continue;
            };
            if stage.operations.is_empty() {
                continue;
            }
            match all.iter_mut().find(|f| f.run == run && f.stem == stem) {
                Some(family) => family.stages.push((offered, stage)),
                None => all.push(Family {
                    stem,
                    run,
                    stages: vec![(offered, stage)],
                }),
            }
        }
    }
    all.retain(|family| family.stages.len() > 1);
    for family in &mut all {
        family.stages.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    all
}

pub(super) fn over_rates(runs: &[Run], labels: &[String]) -> Section {
    let mut section = Section::new("Over the offered rate");
    let families = families(runs);
    if families.is_empty() {
        return section;
    }
    for (number, chunk) in families.chunks(LINES_MAX).enumerate() {
        let chart = achieved(chunk, runs.len(), labels);
        section.figures.push(Figure {
            slug: slug(&format!("achieved over rate {}", number + 1)),
            scene: chart.scene(),
        });
    }
    for family in &families {
        let chart = times(family, runs.len(), labels);
        if !chart.is_empty() {
            section.figures.push(Figure {
                slug: slug(&format!("p99 over rate {}", family.stem)),
                scene: chart.scene(),
            });
        }
    }
    section.tables.push(knees(&families, labels));
    section
}

fn name(family: &Family<'_>, runs: usize, labels: &[String]) -> String {
    match runs {
        1 => family.stem.to_owned(),
        _ => format!("{}: {}", labels[family.run], family.stem),
    }
}

fn achieved(families: &[Family<'_>], runs: usize, labels: &[String]) -> Lines {
    let mut chart = Lines::new(
        "Achieved over the offered rate",
        Axis::new("offered", Kind::Log10, Unit::PerSecond),
        Axis::new("achieved", Kind::Linear, Unit::PerSecond),
    );
    for (colour, family) in families.iter().enumerate() {
        if let Some((offered, stage)) = family.knee() {
            chart.notes.push(Note {
                at: (*offered, stage.rate()),
                text: format!("kept up with {}", rate(Some(*offered))),
                colour,
            });
        }
        let points = family.stages.iter();
        chart.lines.push(Line {
            name: name(family, runs, labels),
            points: points.map(|(rate, stage)| (*rate, stage.rate())).collect(),
            style: style(colour),
        });
    }
    chart
}

/// p99 of each operation of a family; where the store could not keep up it grows with the time.
fn times(family: &Family<'_>, runs: usize, labels: &[String]) -> Lines {
    let mut chart = Lines::new(
        &format!("p99 over the offered rate: {}", name(family, runs, labels)),
        Axis::new("offered", Kind::Log10, Unit::PerSecond),
        Axis::new("p99", Kind::Log10, Unit::Time),
    );
    let mut operations: Vec<String> = Vec::new();
    for (_, stage) in &family.stages {
        for operation in stage.whole_operations() {
            let label = operation_label(stage, operation);
            if !operations.contains(&label) {
                operations.push(label);
            }
        }
    }
    for (colour, label) in operations.into_iter().take(LINES_MAX).enumerate() {
        let p99 = |stage: &Stage| {
            let is_it = |o: &&Operation| operation_label(stage, o) == label;
            stage.whole_operations().find(is_it)?.latency.at(0.99)
        };
        let points = family.stages.iter();
        let points: Vec<(f64, f64)> = points
            .filter_map(|(rate, stage)| Some((*rate, p99(stage)?)))
            .collect();
        chart.lines.push(Line {
            name: label,
            points,
            style: style(colour),
        });
    }
    chart
}

fn style(colour: usize) -> Style {
    Style {
        colour,
        dash: 0,
        mark: Mark::Points,
    }
}

fn knees(families: &[Family<'_>], labels: &[String]) -> Table {
    let rows = families.iter().map(|family| {
        let over = family.stages.iter().find(|(_, s)| s.is_overloaded());
        let knee = family.knee();
        let p99 = knee.and_then(|(_, stage)| {
            let operations = stage.whole_operations();
            let values = operations.filter_map(|o| o.latency.at(0.99));
            values.reduce(f64::max)
        });
        vec![
            Cell::Words(labels[family.run].clone()),
            Cell::Words(family.stem.to_owned()),
            Cell::Number(rate(knee.map(|(offered, _)| *offered))),
            Cell::Number(rate(knee.map(|(_, stage)| stage.rate()))),
            Cell::Number(time(p99)),
            Cell::Number(rate(over.map(|(offered, _)| *offered))),
            Cell::Number(rate(over.map(|(_, stage)| stage.rate()))),
        ]
    });
    Table {
        title: "Rates that the store kept up with".to_owned(),
        head: [
            "run",
            "workload",
            "highest kept up with",
            "achieved there",
            "p99 there",
            "first not kept up with",
            "achieved there",
        ]
        .map(str::to_owned)
        .to_vec(),
        rows: rows.collect(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::record::OpenLoop;
    use crate::results::model::State;

    #[test]
    fn names_end_in_a_rate() {
        assert_eq!(stem("main-200", 200.0), Some("main"));
        assert_eq!(stem("main@rate-1012.5", 1012.5), Some("main"));
        assert_eq!(stem("main_rate=400", 400.0), Some("main"));
        for (key, rate) in [("main200", 200.0), ("-200", 200.0), ("main-300", 200.0)] {
            assert_eq!(stem(key, rate), None, "{key}");
        }
    }

    fn stage(offered: f64, achieved: f64, overloaded: bool) -> Stage {
        let mut write = Operation::new("write", "write");
        write.rate = Some(achieved);
        write.open_loop = Some(OpenLoop {
            offered,
            achieved,
            overloaded,
            ..OpenLoop::default()
        });
        let mut stage = Stage::new(format!("s1-main-{offered}"), State::Completed);
        stage.offered_rate = Some(offered);
        stage.operations.push(write);
        stage
    }

    /// One that kept up by chance above another that did not is not the knee.
    #[test]
    fn the_knee_is_the_last_rate_before_an_overload() {
        let stages = [
            stage(100.0, 100.0, false),
            stage(200.0, 199.0, false),
            stage(400.0, 300.0, true),
            stage(800.0, 799.0, false),
        ];
        let family = |some: &[usize]| Family {
            stem: "main",
            run: 0,
            stages: some
                .iter()
                .map(|n| (stages[*n].offered_rate.unwrap(), &stages[*n]))
                .collect(),
        };
        assert_eq!(family(&[0, 1, 2, 3]).knee().unwrap().0, 200.0);
        assert!(family(&[2, 3]).knee().is_none());
        let labels = ["run".to_owned()];
        let table = knees(&[family(&[0, 1, 2])], &labels);
        let words: Vec<String> = table.rows[0]
            .iter()
            .map(|cell| match cell {
                Cell::Words(words) | Cell::Number(words) => words.clone(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(
            words,
            ["run", "main", "200/s", "199/s", "–", "400/s", "300/s"]
        );
    }
}
