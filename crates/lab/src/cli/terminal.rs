//! Progress display of a run: one updating line on a terminal, one line per interval elsewhere, or
//! JSON.

use std::io::{self, Write};
use std::path::Path;

use super::table::{
    SAMPLE_HEAD, SAMPLE_WIDTHS, columns, count, describe_sample, sample_rows, work_table,
};
use crate::controller::Progress;
use crate::estimate;
use crate::plan::Plan;
use crate::record::{Ceiling, RunMeta, Sample, StageResult, State, WorkResult};
use crate::results::duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Output {
    /// A line that is overwritten.
    Live,
    Lines,
    Json,
}

/// Interval in seconds of lines that are not overwritten.
const LINE_INTERVAL_SECONDS: f64 = 5.0;

#[derive(Debug)]
pub(super) struct Terminal {
    output: Output,
    last_line: f64,
    open_line: bool,
    /// Has any operation of any stage been performed?
    asked: bool,
    /// The head of the stage's live table stands.
    has_head: bool,
}

impl Terminal {
    pub(super) fn new(output: Output) -> Self {
        Self {
            output,
            last_line: 0.0,
            open_line: false,
            asked: false,
            has_head: false,
        }
    }

    /// Prints a line. Errors are ignored: the run's folder contains everything.
    fn line(&mut self, text: &str) {
        let mut out = io::stdout().lock();
        let start = if std::mem::take(&mut self.open_line) {
            "\r\x1b[K"
        } else {
            ""
        };
        let _ = writeln!(out, "{start}{text}");
        let _ = out.flush();
    }

    fn live(&mut self, text: &str) {
        let width = terminal_width();
        let text: String = text.chars().take(width.saturating_sub(1)).collect();
        let mut out = io::stdout().lock();
        self.open_line = true;
        let _ = write!(out, "\r\x1b[K{text}");
        let _ = out.flush();
    }

    fn json(&mut self, value: &impl serde::Serialize) {
        if let Ok(text) = serde_json::to_string(value) {
            self.line(&text);
        }
    }

    pub(super) fn plan(&mut self, plan: &Plan, notes: &[String]) {
        if self.output == Output::Json {
            return self.json(plan);
        }
        self.line(&format!("{} ({})", plan.name, plan.format));
        for (index, stage) in plan.stages.iter().enumerate() {
            let works: Vec<String> = stage.works.iter().map(describe_work).collect();
            let known = estimate::stage_words(stage);
            let known = match known.as_str() {
                "" => String::new(),
                known => format!(" [{known}]"),
            };
            self.line(&format!(
                "{:4}  {:24} {}{known}",
                index + 1,
                stage.name,
                works.join("; ")
            ));
        }
        for words in estimate::plan_words(plan) {
            self.line(&words);
        }
        for note in notes {
            self.line(&format!("note: {note}"));
        }
    }

    pub(super) fn show(&mut self, progress: &Progress) {
        if self.output == Output::Json {
            return match progress {
                // stages.json has the whole result; a line contains no histograms.
                Progress::StageEnded(result) => self.json(&without_histograms(result)),
                progress => self.json(progress),
            };
        }
        match progress {
            Progress::Started { meta, folder } => {
                self.line(&format!("{}: {}", meta.name, folder.display()));
                for note in &meta.notes {
                    self.line(&format!("note: {note}"));
                }
                if let Some(ceiling) = &meta.ceiling {
                    self.line(&describe_ceiling(ceiling));
                }
            }
            Progress::StageStarted {
                number,
                count,
                name,
                workers,
            } => {
                self.line(&format!("stage {number}/{count} {name}: {workers} workers"));
                self.last_line = crate::drive::now();
                self.has_head = false;
            }
            Progress::Sample(sample) => self.sample(sample),
            Progress::Resources(_) => {}
            Progress::StageEnded(result) => self.stage(result),
            Progress::Note(note) => self.line(&format!("note: {note}")),
            Progress::Finished(_) => {}
        }
    }

    fn sample(&mut self, sample: &Sample) {
        if self.output == Output::Live {
            self.live(&describe_sample(sample));
        } else if sample.at - self.last_line >= LINE_INTERVAL_SECONDS {
            self.last_line = sample.at;
            let lines = columns(&SAMPLE_HEAD, &sample_rows(sample), &SAMPLE_WIDTHS);
            // The head stands above the first rows of a stage alone.
            let head = usize::from(std::mem::replace(&mut self.has_head, true));
            lines.iter().skip(head).for_each(|line| self.line(line));
        }
    }

    fn stage(&mut self, result: &StageResult) {
        for work in &result.works {
            if let Some(open) = work.open_loop() {
                let words = crate::results::open_loop_words(&open);
                self.line(&format!("  {}: {words}", work.name));
            }
            for line in work_table(work) {
                self.line(&line);
            }
        }
        self.asked |= result.works.iter().any(|work| !work.operations.is_empty());
        // A run that failed before any operation states the reason once, at its end.
        let is_stillborn = result.state == State::Failed && !self.asked;
        if result.state != State::Completed && !is_stillborn {
            self.line(&format!(
                "stage {} {}: {}",
                result.name,
                word(result.state),
                result.message
            ));
        }
    }

    pub(super) fn summary(&mut self, meta: &RunMeta, stages: &[StageResult], folder: &Path) {
        if self.output == Output::Json {
            if !meta.broken.is_empty() {
                self.json(&serde_json::json!({ "broken": meta.broken }));
            }
            return;
        }
        let requests: u64 = stages
            .iter()
            .flat_map(|stage| &stage.works)
            .flat_map(|work| &work.operations)
            .map(|operation| operation.ops + operation.failed())
            .sum();
        let seconds = meta.seconds();
        for sentence in &meta.broken {
            self.line(&format!("FAILED: {sentence}"));
        }
        let state = match (meta.state, meta.broken.is_empty()) {
            (State::Completed, false) => "completed, over limits",
            (state, _) => word(state),
        };
        self.line(&format!(
            "{state}: {requests} counted operations in {}; results in {}",
            duration(seconds),
            folder.display()
        ));
        if !meta.message.is_empty() {
            self.line(&meta.message);
        }
        if let Some(ceiling) = meta.ceiling.as_ref().filter(|_| self.asked) {
            self.line(&describe_ceiling(ceiling));
        }
    }
}

fn word(state: State) -> &'static str {
    match state {
        State::Running => "running",
        State::Completed => "completed",
        State::Failed => "failed",
        State::Cancelled => "cancelled",
    }
}

fn describe_ceiling(ceiling: &Ceiling) -> String {
    format!(
        "generator's ceiling: {} operations/s without a store, on {} threads with full statistics",
        count(ceiling.ops_per_second),
        ceiling.threads
    )
}

fn describe_work(work: &crate::plan::Work) -> String {
    let mix: Vec<String> = work
        .operations
        .iter()
        .map(|operation| {
            let sizes = operation.sizes.as_ref().map(estimate::size_words);
            let sizes = sizes.map_or(String::new(), |sizes| format!(" of {sizes}"));
            let kind = operation.kind.as_str();
            let share = estimate::share_of(work, operation);
            match work.operations.len() {
                1 => format!("{kind}{sizes}"),
                _ => format!("{kind} {:.0} %{sizes}", share * 100.0),
            }
        })
        .collect();
    let until = match (work.runtime, work.total_ops) {
        (Some(runtime), _) => duration((work.rampup + runtime + work.rampdown).as_secs_f64()),
        (None, Some(ops)) => format!("{ops} operations"),
        (None, None) => "once through".into(),
    };
    format!(
        "{} × {} ({}), {until}",
        work.workers,
        work.name,
        mix.join(", ")
    )
}

fn without_histograms(result: &StageResult) -> serde_json::Value {
    let operations = |work: &WorkResult| -> Vec<serde_json::Value> {
        work.operations
            .iter()
            .map(|operation| {
                let some = !operation.last_byte.is_empty();
                let ms =
                    |percent| some.then(|| operation.last_byte.percentile(percent) as f64 / 1e6);
                serde_json::json!({
                    "name": operation.name, "kind": operation.kind,
                    "size_class": operation.size_class, "ops": operation.ops,
                    "bytes": operation.bytes, "errors": operation.errors,
                    "p50_ms": ms(50.0), "p95_ms": ms(95.0), "p99_ms": ms(99.0),
                    "p99_9_ms": ms(99.9), "max_ms": ms(100.0),
                })
            })
            .collect()
    };
    let works: Vec<_> = result
        .works
        .iter()
        .map(|work| {
            serde_json::json!({
                "name": work.name, "workers": work.workers, "seconds": work.seconds,
                "open_loop": work.open_loop(),
                "operations": operations(work),
            })
        })
        .collect();
    serde_json::json!({ "stage_ended": {
        "number": result.number, "name": result.name, "state": result.state,
        "message": result.message, "works": works,
    }})
}

fn terminal_width() -> usize {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col),
        _ => 80,
    }
}
