//! Content of a report in order: the runs with their notes, throughput and bandwidth over workers,
//! what was achieved over offered rates, per stage, then each stage with its operations, distributions, timelines, slowest requests,
//! errors, resources and distances.

use std::sync::Arc;

use crate::plot::Scene;
use crate::results::model::{Run, Stage, State};

use super::words::{labels, operation_label, stage_key};
use super::{courses, families, rates, stages};

#[derive(Clone, Debug)]
pub struct Section {
    pub title: String,
    pub words: Vec<String>,
    pub figures: Vec<Figure>,
    pub tables: Vec<Table>,
    /// Collapsed, such as one stage among hundreds.
    pub folded: bool,
}

impl Section {
    pub(super) fn new(title: impl Into<String>) -> Section {
        Section {
            title: title.into(),
            words: Vec::new(),
            figures: Vec::new(),
            tables: Vec::new(),
            folded: false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.figures.is_empty() && self.tables.is_empty() && self.words.is_empty()
    }
}

#[derive(Clone, Debug)]
pub struct Figure {
    /// Name of its file, without number and extension.
    pub slug: String,
    pub scene: Scene,
}

#[derive(Clone, Debug)]
pub struct Table {
    pub title: String,
    pub head: Vec<String>,
    pub rows: Vec<Vec<Cell>>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    Words(String),
    /// A right-aligned number.
    Number(String),
    /// A state, also shown by colour.
    State(State),
    /// A completed run in which conditions hold.
    OverLimits,
    /// A transaction id: not wrapped, easy to copy.
    Code(String),
}

/// Number of stages above which they are collapsed.
const OPEN_STAGES: usize = 6;

/// Stages of the same name in all runs that have one.
pub(super) struct Together<'a> {
    pub(super) key: &'a str,
    /// Index of the run, and its stage.
    pub(super) stages: Vec<(usize, &'a Stage)>,
    /// Names of all operations of all stages, by which each has its colour everywhere.
    pub(super) palette: Arc<[String]>,
}

impl Together<'_> {
    /// Number of an operation's colour.
    pub(super) fn colour(&self, operation: &str) -> usize {
        let place = self.palette.iter().position(|known| known == operation);
        place.unwrap_or(self.palette.len())
    }
}

/// Names of operations as plots have them, those of measurements first.
pub(super) fn palette(runs: &[Run]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let stages = || runs.iter().flat_map(|run| &run.stages);
    let measured = stages().filter(|stage| !stage.is_special());
    for stage in measured.chain(stages().filter(|stage| stage.is_special())) {
        let operations = stage.whole_operations();
        let courses = stage.timeline.iter().map(|line| line.operation.clone());
        for name in operations.map(|o| operation_label(stage, o)).chain(courses) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
}

/// Stages in the order of the first run that has them.
pub(super) fn together(runs: &[Run]) -> Vec<Together<'_>> {
    let palette: Arc<[String]> = palette(runs).into();
    let mut all: Vec<Together<'_>> = Vec::new();
    for (index, run) in runs.iter().enumerate() {
        for stage in &run.stages {
            let key = stage_key(stage);
            let has = |t: &&mut Together<'_>| {
                t.key == key && t.stages.iter().all(|(other, _)| *other != index)
            };
            match all.iter_mut().find(has) {
                Some(together) => together.stages.push((index, stage)),
                None => all.push(Together {
                    key,
                    stages: vec![(index, stage)],
                    palette: palette.clone(),
                }),
            }
        }
    }
    all
}

pub fn sections(runs: &[Run]) -> Vec<Section> {
    let labels = labels(runs);
    let mut sections = vec![
        families::over_workers(runs, &labels),
        rates::over_rates(runs, &labels),
    ];
    sections.push(families::per_stage(runs, &labels));
    let together = together(runs);
    let shown: Vec<&Together<'_>> = together.iter().collect();
    let folded = shown.len() > OPEN_STAGES;
    for stage in shown {
        let mut section = stages::section(stage, runs, &labels);
        courses::add(&mut section, stage, &labels);
        // Preparation and cleanup are rarely of interest.
        section.folded = folded || stage.stages.iter().all(|(_, s)| s.is_special());
        sections.push(section);
    }
    sections.retain(|section| !section.is_empty());
    sections
}
