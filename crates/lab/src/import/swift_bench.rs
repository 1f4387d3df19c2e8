//! Import of swift-bench's output: lines such as `… INFO 1000 PUTS **FINAL** [0 failures], 34.9/s`,
//! and the same without `**FINAL**` every 15 seconds. Count and rate include failures; a leading
//! timestamp is optional.

use super::{ImportError, Kind, Source, count_of, number_of};
use crate::results::model::{Failures, Operation, Run, Stage, State, Tick, Timeline, Tool};

pub(super) fn runs(sources: &[Source]) -> Result<Vec<Run>, ImportError> {
    let outputs = sources.iter().filter(|s| s.kind == Kind::SwiftBench);
    outputs.map(output).collect()
}

fn output(source: &Source) -> Result<Run, ImportError> {
    let mut run = Run {
        name: source.stem(),
        tool: Tool::SwiftBench,
        tool_version: None,
        target: None,
        started: None,
        state: State::Completed,
        broken: Vec::new(),
        plan: None,
        facts: Vec::new(),
        notes: vec![
            "swift-bench measures no response times and counts no bytes; its rate includes \
             requests that failed, which is corrected here."
                .to_owned(),
        ],
        stages: Vec::new(),
    };
    let mut progress: Vec<Tick> = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        let Some(status) = status(line) else {
            if line.contains("**FINAL** [") {
                let expected = "COUNT PUTS|GETS|DEL **FINAL** [N failures], RATE/s";
                return Err(source.malformed(index + 1, expected, line));
            }
            continue;
        };
        if run.started.is_none() {
            run.started = timestamp(line);
        }
        progress.push(status.tick(progress.last()));
        if status.last {
            let ticks = std::mem::take(&mut progress);
            run.stages.push(status.stage(ticks));
        }
    }
    Ok(run)
}

struct Status<'a> {
    complete: u64,
    title: &'a str,
    last: bool,
    failures: u64,
    rate: f64,
}

fn status(line: &str) -> Option<Status<'_>> {
    let (before, rest) = line.split_once(" [")?;
    let (failures, rate) = rest.split_once(" failures], ")?;
    let (before, last) = match before.strip_suffix(" **FINAL**") {
        Some(before) => (before, true),
        None => (before, false),
    };
    let mut words = before.rsplit(' ');
    let title = words.next()?;
    matches!(title, "PUTS" | "GETS" | "DEL").then_some(())?;
    Some(Status {
        complete: count_of(words.next()?)?,
        title,
        last,
        failures: count_of(failures)?,
        rate: number_of(rate.trim_end().strip_suffix("/s")?)?,
    })
}

/// The timestamp `2026-11-22 01:02:03,456`, or whatever precedes the level.
fn timestamp(line: &str) -> Option<String> {
    let (before, _) = line.split_once(" INFO ")?;
    let text: Vec<&str> = before
        .split_whitespace()
        .filter(|w| w.starts_with(|c: char| c.is_ascii_digit()))
        .collect();
    (!text.is_empty()).then(|| text.join(" "))
}

impl Status<'_> {
    fn operation(&self) -> &'static str {
        match self.title {
            "PUTS" => "write",
            "GETS" => "read",
            _ => "delete",
        }
    }

    /// Time since the first request; `None` without a rate.
    fn seconds(&self) -> Option<f64> {
        let seconds = self.complete as f64 / self.rate;
        seconds.is_finite().then_some(seconds)
    }

    /// The interval since the last line: counts and rates in the output are cumulative.
    fn tick(&self, last: Option<&Tick>) -> Tick {
        let since = last.map_or(0.0, |t| t.second);
        let second = self.seconds().unwrap_or(since);
        let interval = (second - since).max(0.0);
        let before = last.map_or(0, |t| t.done + t.failed.unwrap_or(0));
        // `done` and `failed` of the ticks are cumulative until `stage` takes differences.
        let done = self.complete.saturating_sub(self.failures);
        let rate = (self.complete.saturating_sub(before)) as f64 / interval;
        Tick {
            second,
            interval,
            done,
            failed: Some(self.failures),
            rate: rate.is_finite().then_some(rate),
            ..Tick::default()
        }
    }

    fn stage(&self, mut ticks: Vec<Tick>) -> Stage {
        for index in (1..ticks.len()).rev() {
            let (done, failed) = (ticks[index - 1].done, ticks[index - 1].failed);
            let tick = &mut ticks[index];
            tick.done = tick.done.saturating_sub(done);
            tick.failed = Some(tick.failed.unwrap_or(0).saturating_sub(failed.unwrap_or(0)));
        }
        for tick in &mut ticks {
            let rate = tick.done as f64 / tick.interval;
            tick.rate = rate.is_finite().then_some(rate);
        }
        let name = self.operation();
        let done = self.complete.saturating_sub(self.failures);
        let mut operation = Operation::new(name, name);
        operation.done = Some(done);
        operation.failed = Failures::Counted(self.failures);
        if self.complete > 0 {
            operation.rate = Some(self.rate * done as f64 / self.complete as f64);
        }
        let mut stage = Stage::new(self.title.to_lowercase(), State::Completed);
        stage.seconds = self.seconds();
        stage.operations.push(operation);
        // A single line is not a timeline.
        if ticks.len() > 1 {
            stage.timeline.push(Timeline {
                operation: name.to_owned(),
                ticks,
            });
        }
        stage
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod properties;
