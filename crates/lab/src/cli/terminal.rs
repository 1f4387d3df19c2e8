//! Progress display of a run: one updating line on a terminal, one line per interval elsewhere, or
//! JSON.

use std::io::{self, Write};
use std::path::Path;

use crate::controller::Progress;
use crate::estimate;
use crate::latencies::Latencies;
use crate::plan::Plan;
use crate::record::{
    Ceiling, OperationResult, Phase, RunMeta, Sample, StageResult, State, WorkResult,
};
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
}

impl Terminal {
    pub(super) fn new(output: Output) -> Self {
        Self {
            output,
            last_line: 0.0,
            open_line: false,
            asked: false,
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
            }
            Progress::Sample(sample) => self.sample(sample),
            Progress::Resources(_) => {}
            Progress::StageEnded(result) => self.stage(result),
            Progress::Note(note) => self.line(&format!("note: {note}")),
            Progress::Finished(_) => {}
        }
    }

    fn sample(&mut self, sample: &Sample) {
        let text = describe_sample(sample);
        if self.output == Output::Live {
            self.live(&text);
        } else if sample.at - self.last_line >= LINE_INTERVAL_SECONDS {
            self.last_line = sample.at;
            self.line(&text);
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

fn describe_sample(sample: &Sample) -> String {
    let phase = match sample.phase {
        Phase::Rampup => "ramp-up ",
        Phase::Counted => "",
        Phase::Rampdown => "ramp-down ",
    };
    let operations: Vec<String> = sample
        .operations
        .iter()
        .map(|operation| {
            let rate = operation.ops as f64 / sample.seconds;
            let errors = match operation.errors {
                0 => String::new(),
                errors => format!(" {errors} failed"),
            };
            // Without successes there are no latencies.
            let times = match operation.ops {
                0 => String::new(),
                _ => format!(
                    " p50 {} p99 {}",
                    latency(operation.p50_ns),
                    latency(operation.p99_ns)
                ),
            };
            format!(
                "{} {}/s {}/s{times}{errors}",
                operation.title(),
                count(rate),
                bytes(operation.bytes as f64 / sample.seconds),
            )
        })
        .collect();
    let left = sample
        .left
        .map_or(String::new(), |left| format!(" {} left", duration(left)));
    format!(
        "  {phase}{:3.0} %{left}  {}",
        sample.progress * 100.0,
        operations.join(" | ")
    )
}

/// One line per operation, summed over its size classes.
fn work_table(work: &WorkResult) -> Vec<String> {
    let mut lines = Vec::new();
    let mut index = 0;
    while let Some(first) = work.operations.get(index) {
        let mut whole = OperationResult::clone(first);
        index += 1;
        while let Some(next) = work
            .operations
            .get(index)
            .filter(|o| o.index == first.index)
        {
            whole.merge(next);
            index += 1;
        }
        lines.push(operation_line(&whole, work.seconds));
    }
    lines
}

fn operation_line(operation: &OperationResult, seconds: f64) -> String {
    let seconds = seconds.max(1e-9);
    let (achieved, achieved_bytes) = operation.achieved();
    let at = |latencies: &Latencies, percent| match latencies.is_empty() {
        true => "–".to_owned(),
        false => latency(latencies.percentile(percent)),
    };
    let last = &operation.last_byte;
    let failed = match operation.failed() {
        0 => String::new(),
        _ => {
            let kinds = operation
                .errors
                .iter()
                .map(|(kind, count)| format!("{kind} × {count}"));
            format!("  failed: {}", kinds.collect::<Vec<_>>().join(", "))
        }
    };
    format!(
        "  {:<16} {:>9} ops {:>9}/s {:>10}/s  p50 {} p95 {} p99 {} p99.9 {} max {}  first byte \
         p50 {} p99 {}{failed}",
        title(operation),
        operation.ops,
        count(achieved as f64 / seconds),
        bytes(achieved_bytes as f64 / seconds),
        at(last, 50.0),
        at(last, 95.0),
        at(last, 99.0),
        at(last, 99.9),
        at(last, 100.0),
        at(&operation.first_byte, 50.0),
        at(&operation.first_byte, 99.0),
    )
}

/// The operation's name, with the size class if the workload defines one.
fn title(operation: &OperationResult) -> String {
    match operation.named_class() {
        Some(class) => format!("{} {class}", operation.name),
        None => operation.name.clone(),
    }
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

fn count(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.2}M", v / 1e6),
        v if v >= 1e4 => format!("{:.1}k", v / 1e3),
        v if v >= 100.0 => format!("{v:.0}"),
        v => format!("{v:.1}"),
    }
}

fn bytes(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{:.2} GB", v / 1e9),
        v if v >= 1e6 => format!("{:.1} MB", v / 1e6),
        v if v >= 1e3 => format!("{:.1} kB", v / 1e3),
        v => format!("{v:.0} B"),
    }
}

fn latency(ns: u64) -> String {
    let ms = ns as f64 / 1e6;
    match ms {
        ms if ms >= 1000.0 => format!("{:.2} s", ms / 1e3),
        ms if ms >= 100.0 => format!("{ms:.0} ms"),
        ms if ms >= 1.0 => format!("{ms:.1} ms"),
        ms => format!("{:.0} µs", ms * 1e3),
    }
}

fn terminal_width() -> usize {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col),
        _ => 80,
    }
}
