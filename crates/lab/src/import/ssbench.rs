//! ssbench's results: the CSV of `ssbench-master report-scenario -C`, the text report, and the
//! requests-per-second histogram. The CSV has every number of the report, so a report beside a
//! CSV of the same run is left out.
//!
//! ssbench times every request to the first and to the last byte, in seconds, and keeps the 95th
//! percentile and the transaction id of the slowest.

use std::collections::HashMap;

use super::{ImportError, Kind, Source, count_of, number_of};
use crate::results::csv;
use crate::results::model::{
    ErrorCount, Fact, Failures, Latency, Operation, Quantile, Run, Stage, State, Tick, Timeline,
    Tool, WorstRequest,
};

const OPERATIONS: [&str; 4] = ["create", "read", "update", "delete"];

pub(super) fn is_header(line: &str) -> bool {
    line.starts_with("\"scenario_name\",")
}

pub(super) fn runs(sources: &[Source]) -> Result<Vec<Run>, ImportError> {
    let of = |kind| sources.iter().filter(move |s| s.kind == kind);
    let mut runs: Vec<Run> = Vec::new();
    for source in of(Kind::SsBenchCsv) {
        runs.extend(table(source)?);
    }
    for source in of(Kind::SsBenchReport) {
        let run = report(source)?;
        let known = runs
            .iter()
            .any(|r| r.name == run.name && r.started == run.started);
        if !known {
            runs.push(run);
        }
    }
    // Rates have no name: they belong to the only run beside them.
    if let ([run], Some(rates)) = (runs.as_mut_slice(), of(Kind::SsBenchRates).next()) {
        run.stages[0].timeline.push(request_rates(rates)?);
    }
    Ok(runs)
}

fn new_run(name: &str, version: &str) -> Run {
    Run {
        name: name.to_owned(),
        tool: Tool::SsBench,
        tool_version: Some(version.to_owned()),
        target: None,
        started: None,
        state: State::Completed,
        broken: Vec::new(),
        plan: None,
        facts: Vec::new(),
        notes: vec![
            "ssbench counts requests, not bytes: there is no bandwidth. Of each distribution it \
             keeps the 95th percentile and the worst."
                .to_owned(),
        ],
        stages: vec![Stage::new("benchmark", State::Completed)],
    }
}

/// Parses the CSV: one run for each row.
fn table(source: &Source) -> Result<Vec<Run>, ImportError> {
    let skipped = source.text.lines().take_while(|l| !is_header(l)).count();
    let start: usize = source
        .text
        .split_inclusive('\n')
        .take(skipped)
        .map(str::len)
        .sum();
    let mut rows = csv::rows(&source.text[start..]).into_iter();
    let header = rows.next().unwrap_or_default();
    // Each of many size classes is looked up by name.
    let mut places = HashMap::new();
    for (place, name) in header.iter().enumerate() {
        places.entry(name.as_str()).or_insert(place);
    }
    let mut runs = Vec::new();
    for (index, row) in rows.enumerate() {
        if row.len() != header.len() {
            continue; // A log line after the table.
        }
        let columns = Columns {
            source,
            line: skipped + 2 + index,
            header: &header,
            places: &places,
            row: &row,
        };
        runs.push(columns.run()?);
    }
    Ok(runs)
}

struct Columns<'a> {
    source: &'a Source,
    line: usize,
    header: &'a [String],
    /// The first column of each name.
    places: &'a HashMap<&'a str, usize>,
    row: &'a [String],
}

impl Columns<'_> {
    fn text(&self, name: &str) -> Option<&str> {
        let text = self.row[*self.places.get(name)?].trim();
        (!text.is_empty() && text != "N/A" && text != "None").then_some(text)
    }

    fn number(&self, name: &str) -> Result<Option<f64>, ImportError> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        let malformed = || self.source.malformed(self.line, "a number or N/A", text);
        number_of(text).map(Some).ok_or_else(malformed)
    }

    fn run(&self) -> Result<Run, ImportError> {
        let mut run = new_run(
            self.text("scenario_name").unwrap_or("ssbench"),
            self.text("ssbench_version").unwrap_or("unknown"),
        );
        run.started = self.text("start_time").map(str::to_owned);
        for (name, column) in [
            ("ended", "stop_time"),
            ("worker processes", "worker_count"),
            ("object expiration", "delete_after"),
            ("retries", "total_retries"),
        ] {
            if let Some(value) = self.text(column) {
                run.facts.push(Fact::new(name, value));
            }
        }
        let classes = self.size_classes();
        let stage = &mut run.stages[0];
        stage.workers = self.number("concurrency")?.map(|n| n as u32);
        stage.seconds = self.number("duration")?;
        for name in OPERATIONS {
            let Some(whole) = self.operation(name, "all", true)? else {
                continue;
            };
            stage.worst.extend(self.worst(name)?);
            stage.operations.push(whole);
            for class in &classes {
                if let Some(part) = self.operation(name, class, false)? {
                    stage.operations.push(part);
                }
            }
        }
        Ok(run)
    }

    /// Size classes, which are the names between `total_last_` and `_avg`.
    fn size_classes(&self) -> Vec<String> {
        self.header
            .iter()
            .filter_map(|h| h.strip_prefix("total_last_")?.strip_suffix("_avg"))
            .filter(|class| *class != "all")
            .map(str::to_owned)
            .collect()
    }

    fn operation(
        &self,
        name: &str,
        class: &str,
        whole: bool,
    ) -> Result<Option<Operation>, ImportError> {
        let latency = self.latency(name, "last", class)?;
        let count = self.number(&format!("{name}_count"))?;
        if (whole && count.is_none_or(|c| c == 0.0)) || (!whole && latency.is_empty()) {
            return Ok(None);
        }
        let mut operation = Operation::new(name, name);
        operation.latency = latency;
        let first_byte = self.latency(name, "first", class)?;
        operation.first_byte = (!first_byte.is_empty()).then_some(first_byte);
        if whole {
            let errors = self.number(&format!("{name}_errors"))?.unwrap_or(0.0) as u64;
            operation.done = count.map(|c| (c as u64).saturating_sub(errors));
            operation.failed = Failures::Counted(errors);
            operation.rate = self.number(&format!("{name}_avg_req_per_s"))?;
            let retries = self.number(&format!("{name}_retries"))?.unwrap_or(0.0) as u64;
            for (kind, count) in [("error", errors), ("retried", retries)] {
                if count > 0 {
                    let kind = kind.to_owned();
                    operation.errors.push(ErrorCount { kind, count });
                }
            }
        } else {
            operation.size_class = Some(class.to_owned());
        }
        Ok(Some(operation))
    }

    fn latency(&self, name: &str, byte: &str, class: &str) -> Result<Latency, ImportError> {
        let of = |what: &str| {
            let seconds = self.number(&format!("{name}_{byte}_{class}_{what}"))?;
            Ok::<_, ImportError>(seconds.map(|s| s * 1e6))
        };
        Ok(latency(
            [
                of("min")?,
                of("max")?,
                of("avg")?,
                of("std_dev")?,
                of("95_pctile")?,
            ],
            1.0,
        ))
    }

    fn worst(&self, name: &str) -> Result<Option<WorstRequest>, ImportError> {
        let us = self.number(&format!("{name}_last_all_max"))?;
        let transaction = self.text(&format!("{name}_last_all_worst_txid"));
        Ok(us.map(|seconds| WorstRequest {
            operation: name.to_owned(),
            size_class: None,
            us: seconds * 1e6,
            second: None,
            transaction_id: transaction.map(str::to_owned),
            what: None,
        }))
    }
}

/// Latency from minimum, maximum, mean, deviation and 95th percentile, which both forms of the
/// report have.
fn latency([min, max, mean, deviation, p95]: [Option<f64>; 5], resolution_us: f64) -> Latency {
    let mut quantiles = Vec::new();
    for (quantile, us) in [(0.0, min), (0.95, p95), (1.0, max)] {
        if let Some(us) = us {
            quantiles.push(Quantile { quantile, us });
        }
    }
    Latency {
        mean_us: mean,
        deviation_us: deviation,
        min_us: min,
        max_us: max,
        quantiles,
        resolution_us: Some(resolution_us),
        ..Latency::default()
    }
}

/// Parses the text report: a heading, then one block per operation with a `Count:` line and latency
/// lines.
fn report(source: &Source) -> Result<Run, ImportError> {
    let mut run = new_run("ssbench", "unknown");
    let mut reading: Option<&str> = None;
    for (index, line) in source.text.lines().enumerate() {
        let trimmed = line.trim();
        if let Some((name, version)) = line.split_once("  (generated with ssbench version ") {
            run.name = name.trim().to_owned();
            run.tool_version = Some(version.trim_end_matches(')').to_owned());
        } else if trimmed.starts_with("Worker count:") {
            head_line(trimmed, &mut run);
        } else if trimmed == "TOTAL" {
            reading = None;
        } else if let Some(name) = OPERATIONS
            .into_iter()
            .find(|name| trimmed == name.to_ascii_uppercase())
        {
            reading = Some(name);
        } else if let Some(name) = reading {
            block_line(source, index + 1, name, trimmed, &mut run.stages[0])?;
        }
    }
    run.stages[0]
        .operations
        .retain(|o| o.size_class.is_some() || o.done != Some(0) || o.failed.count() != Some(0));
    Ok(run)
}

/// Parses `Worker count:   1   Concurrency:   4  Ran A to B (5s)`.
fn head_line(line: &str, run: &mut Run) {
    let mut words = line.split_whitespace().peekable();
    while let Some(word) = words.next() {
        match word {
            "Concurrency:" => run.stages[0].workers = words.next().and_then(|n| n.parse().ok()),
            "count:" => {
                if let Some(count) = words.next() {
                    run.facts.push(Fact::new("worker processes", count));
                }
            }
            _ => {}
        }
    }
    if let Some((_, ran)) = line.split_once(" Ran ")
        && let Some((started, rest)) = ran.split_once(" to ")
    {
        run.started = Some(started.trim().to_owned());
        if let Some((ended, length)) = rest.rsplit_once(" (") {
            run.facts.push(Fact::new("ended", ended.trim()));
            run.stages[0].seconds = number_of(length.trim_end_matches("s)"));
        }
    }
}

fn block_line(
    source: &Source,
    line: usize,
    name: &str,
    text: &str,
    stage: &mut Stage,
) -> Result<(), ImportError> {
    if let Some(counts) = text.strip_prefix("Count:") {
        stage.operations.push(counted(source, line, name, counts)?);
        return Ok(());
    }
    let (first, rest) = match text.split_once("-byte") {
        Some(("First", rest)) => (true, rest),
        Some(("Last", rest)) => (false, rest),
        _ => return Ok(()),
    };
    let Some((_, rest)) = rest.split_once("latency:") else {
        return Ok(());
    };
    // The format is `0.008 -   0.055    0.027  (  0.009)    0.046  (all obj sizes)  txid`.
    let clean = rest.replace(['(', ')'], " ");
    let mut words: Vec<&str> = clean.split_whitespace().collect();
    words.retain(|word| *word != "-");
    let seconds = |index: usize| number_of(words.get(index)?).map(|s| s * 1e6);
    let found = latency(
        [seconds(0), seconds(1), seconds(2), seconds(3), seconds(4)],
        1000.0,
    );
    if found.is_empty() {
        return Ok(());
    }
    let class = match words.get(5) {
        Some(&"all") | None => None,
        Some(class) => Some((*class).to_owned()),
    };
    let transaction = words.last().filter(|w| w.starts_with("tx"));
    if !first && class.is_none() {
        stage.worst.push(WorstRequest {
            operation: name.to_owned(),
            size_class: None,
            us: seconds(1).unwrap_or_default(),
            second: None,
            transaction_id: transaction.map(|t| (*t).to_owned()),
            what: None,
        });
    }
    let place = stage
        .operations
        .iter()
        .position(|o| o.name == name && o.size_class == class);
    let operation = match place {
        Some(place) => &mut stage.operations[place],
        None => {
            let mut part = Operation::new(name, name);
            part.size_class = class;
            stage.operations.push(part);
            let last = stage.operations.len() - 1;
            &mut stage.operations[last]
        }
    };
    if first {
        operation.first_byte = Some(found);
    } else {
        operation.latency = found;
    }
    Ok(())
}

/// Parses `201 (    0 error;     0 retries:  0.00%)  Average requests per second:  42.9`.
fn counted(
    source: &Source,
    line: usize,
    name: &str,
    counts: &str,
) -> Result<Operation, ImportError> {
    let malformed = || source.malformed(line, "COUNT ( ERRORS error; …)", counts);
    let mut words = counts.split_whitespace().filter(|w| *w != "(");
    let mut count = || {
        let word = words.next()?.trim_start_matches('(');
        count_of(word)
    };
    let all = count().ok_or_else(malformed)?;
    let errors = count().ok_or_else(malformed)?;
    let rate = counts.rsplit(':').next().and_then(|r| number_of(r.trim()));
    let mut operation = Operation::new(name, name);
    operation.done = Some(all.saturating_sub(errors));
    operation.failed = Failures::Counted(errors);
    operation.rate = rate;
    Ok(operation)
}

fn request_rates(source: &Source) -> Result<Timeline, ImportError> {
    let mut ticks = Vec::new();
    for (index, row) in csv::rows(&source.text).iter().enumerate().skip(1) {
        let [second, done] = row.as_slice() else {
            return Err(source.malformed(index + 1, "two columns", &row.join(",")));
        };
        let (Ok(second), Some(done)) = (second.parse::<u32>(), count_of(done)) else {
            return Err(source.malformed(index + 1, "two whole numbers", &row.join(",")));
        };
        ticks.push(Tick {
            second: f64::from(second),
            interval: 1.0,
            done,
            rate: Some(done as f64),
            ..Tick::default()
        });
    }
    Ok(Timeline {
        operation: "all".to_owned(),
        ticks,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod properties;
