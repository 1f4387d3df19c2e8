//! Writer of ssbench's table, in the form of `ssbench-master report-scenario -C`, for runs of its
//! scenarios, so that existing scripts keep working. One heading, one row; seconds.
//!
//! Counts include failed requests, as in ssbench; latencies are of successes. ssbench's retries do
//! not exist here: a request is sent once.

use std::fmt::Write;
use std::path::Path;

use super::read::Recorded;
use super::time::date_time;
use super::writer::{WriteError, write_whole};
use crate::latencies::Latencies;
use crate::plan::{OperationKind, WorkKind};
use crate::record::{OperationResult, WorkResult, WorstRequest};

/// ssbench's names of write, read, update, delete.
const LABELS: [(&str, &[OperationKind]); 4] = [
    ("create", &[OperationKind::Write, OperationKind::FileWrite]),
    ("read", &[OperationKind::Read]),
    ("update", &[OperationKind::Update]),
    ("delete", &[OperationKind::Delete]),
];
const ALL: &str = "all";

pub(super) fn write(folder: &Path, recorded: &Recorded) -> Result<(), WriteError> {
    if recorded.meta.format != "ssbench" {
        return Ok(());
    }
    let main = recorded
        .stages
        .iter()
        .flat_map(|stage| stage.works.iter().map(move |work| (stage, work)))
        .find(|(_, work)| work.kind == WorkKind::Main && !work.operations.is_empty());
    let Some((stage, work)) = main else {
        return Ok(());
    };
    let mut table = Table::default();
    table.text("scenario_name", &recorded.meta.name);
    let version = format!("cairn lab {}", recorded.meta.lab_version);
    table.text("ssbench_version", &version);
    table.number("worker_count", recorded.meta.drivers.len().max(1) as f64);
    table.number("concurrency", f64::from(work.workers));
    table.text("start_time", &format!("{} UTC", date_time(stage.started)));
    table.text("stop_time", &format!("{} UTC", date_time(stage.ended)));
    table.number("duration", work.seconds);
    table.text("delete_after", "None");
    let every: Vec<OperationKind> = LABELS
        .iter()
        .flat_map(|(_, kinds)| *kinds)
        .copied()
        .collect();
    table.operation("total", &every, work);
    for (label, kinds) in LABELS {
        table.operation(label, kinds, work);
    }
    write_whole(&folder.join("ssbench.csv"), table.finish().as_bytes())
}

#[derive(Default)]
struct Table {
    head: String,
    row: String,
}

impl Table {
    fn put(&mut self, name: &str, value: &str) {
        if !self.head.is_empty() {
            self.head.push(',');
            self.row.push(',');
        }
        // Writing to a String cannot fail.
        let _ = write!(self.head, "\"{name}\"");
        self.row.push_str(value);
    }

    /// Writes a text; texts are quoted and numbers are not.
    fn text(&mut self, name: &str, value: &str) {
        let value = value.replace('"', "\"\"").replace(['\n', '\r'], " ");
        self.put(name, &format!("\"{value}\""));
    }

    fn number(&mut self, name: &str, value: f64) {
        self.put(name, &format!("{value}"));
    }

    fn operation(&mut self, label: &str, kinds: &[OperationKind], work: &WorkResult) {
        let parts: Vec<&OperationResult> = work
            .operations
            .iter()
            .filter(|operation| kinds.contains(&operation.kind))
            .collect();
        let failed: u64 = parts.iter().map(|part| part.failed()).sum();
        let count: u64 = parts.iter().map(|part| part.ops).sum::<u64>() + failed;
        if count == 0 {
            return;
        }
        let achieved: u64 = parts.iter().map(|part| part.achieved().0).sum();
        self.number(&format!("{label}_count"), count as f64);
        self.number(&format!("{label}_errors"), failed as f64);
        self.number(&format!("{label}_retries"), 0.0);
        let rate = achieved as f64 / work.seconds.max(f64::MIN_POSITIVE);
        self.number(&format!("{label}_avg_req_per_s"), rate);
        self.latencies(label, ALL, &parts);
        let mut classes: Vec<&str> = Vec::new();
        for class in work.operations.iter().filter_map(|o| o.named_class()) {
            if !classes.contains(&class) {
                classes.push(class);
            }
        }
        for class in classes {
            let of_class = |part: &&OperationResult| part.named_class() == Some(class);
            let parts: Vec<&OperationResult> = parts.iter().copied().filter(of_class).collect();
            self.latencies(label, class, &parts);
        }
    }

    fn latencies(&mut self, label: &str, class: &str, parts: &[&OperationResult]) {
        let merged = |of: fn(&OperationResult) -> &Latencies| {
            let mut all = Latencies::new();
            parts.iter().for_each(|part| all.merge(of(part)));
            all
        };
        let worst = |of: fn(&WorstRequest) -> u64| {
            let all = parts.iter().flat_map(|part| &part.worst);
            all.max_by_key(|request| of(request))
                .map_or("", |request| request.transaction.as_str())
        };
        let seconds = |ns: f64| (ns / 1e3).round() / 1e6;
        for (byte, latencies, transaction) in [
            (
                "first",
                merged(|part| &part.first_byte),
                worst(|w| w.first_byte_ns),
            ),
            (
                "last",
                merged(|part| &part.last_byte),
                worst(|w| w.last_byte_ns),
            ),
        ] {
            if latencies.is_empty() {
                continue;
            }
            let name = |what: &str| format!("{label}_{byte}_{class}_{what}");
            self.number(&name("min"), seconds(latencies.min() as f64));
            self.number(&name("max"), seconds(latencies.max() as f64));
            self.number(&name("avg"), seconds(latencies.mean()));
            self.number(&name("std_dev"), seconds(latencies.stdev()));
            let percentile = latencies.percentile(95.0);
            self.number(&name("95_pctile"), seconds(percentile as f64));
            self.text(&name("worst_txid"), transaction);
        }
    }

    fn finish(self) -> String {
        format!("{}\n{}\n", self.head, self.row)
    }
}
