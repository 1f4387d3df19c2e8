//! The lab's own tables, one fact per row, for spreadsheets and data frames: every operation and
//! size class with exact percentiles, the timeline, errors, the slowest requests, resources, and
//! distances between disk I/Os. Milliseconds have three decimals, which preserve a histogram's
//! three digits below a second. `docs/lab-results.md` describes every column.

use std::path::Path;

use super::csv;
use super::model::{Distances, Failures, Latency, Operation, Run, Stage};
use super::read::Recorded;
use super::view::PERCENTILES;
use super::writer::{WriteError, write_whole};
use crate::record::OpenLoop;

pub(super) fn write(folder: &Path, recorded: &Recorded) -> Result<(), WriteError> {
    write_run(folder, &recorded.view())
}

/// Writes the tables of any run, imported ones included.
///
/// # Errors
/// `Io` for the first table that cannot be written.
pub fn write_run(folder: &Path, run: &Run) -> Result<(), WriteError> {
    let tables = [
        ("operations.csv", operations(run)),
        ("timeline.csv", timeline(run)),
        ("errors.csv", errors(run)),
        ("worst.csv", worst(run)),
        ("resources.csv", resources(run)),
        ("distances.csv", distances(run)),
    ];
    for (name, text) in tables {
        // A table with only a heading states that there was no data. Only resources and distances
        // are omitted, since most runs are not permitted to read them.
        if text.lines().count() > 1 || !matches!(name, "resources.csv" | "distances.csv") {
            write_whole(&folder.join(name), text.as_bytes())?;
        }
    }
    Ok(())
}

fn text<T: ToString>(value: Option<T>) -> String {
    value.map(|v| v.to_string()).unwrap_or_default()
}

fn ms(us: Option<f64>) -> String {
    us.map(|us| format!("{:.3}", us / 1e3)).unwrap_or_default()
}

fn decimal(value: Option<f64>) -> String {
    value.map(|v| format!("{v:.3}")).unwrap_or_default()
}

fn push(out: &mut String, fields: &[String]) {
    out.push_str(&csv::line(fields.iter().map(String::as_str)));
}

fn operations(run: &Run) -> String {
    let mut head: Vec<String> = [
        "stage",
        "state",
        "work",
        "operation",
        "kind",
        "size_class",
        "workers",
        "offered_per_s",
        "seconds",
        "succeeded",
        "failed",
        "bytes",
        "ops_per_s",
        "bytes_per_s",
    ]
    .map(str::to_owned)
    .to_vec();
    for point in ["first_byte", "last_byte"] {
        for what in ["mean", "stdev"] {
            head.push(format!("{point}_{what}_ms"));
        }
        for percent in PERCENTILES {
            head.push(format!("{point}_p{percent}_ms"));
        }
    }
    // Appended last, so that readers by position are not affected.
    head.extend(
        [
            "offered_due_per_s",
            "late_part",
            "delay_p50_ms",
            "delay_p99_ms",
            "delay_max_ms",
            "kept_up",
        ]
        .map(str::to_owned),
    );
    let mut out = String::new();
    push(&mut out, &head);
    for stage in &run.stages {
        if stage.operations.is_empty() {
            let mut row = vec![stage.id.clone(), stage.state.name().to_owned()];
            row.resize(head.len(), String::new());
            push(&mut out, &row);
        }
        for operation in &stage.operations {
            push(&mut out, &operation_row(stage, operation));
        }
    }
    out
}

fn operation_row(stage: &Stage, operation: &Operation) -> Vec<String> {
    let failed = match operation.failed {
        Failures::Counted(count) => count.to_string(),
        Failures::Estimated(count) => format!("~{count}"),
        Failures::Unknown => String::new(),
    };
    let mut row = vec![
        stage.id.clone(),
        stage.state.name().to_owned(),
        text(operation.work.as_ref()),
        operation.name.clone(),
        operation.kind.clone(),
        text(operation.size_class.as_ref()),
        text(stage.workers),
        decimal(stage.offered_rate),
        decimal(stage.seconds),
        text(operation.done),
        failed,
        text(operation.bytes),
        decimal(operation.rate),
        decimal(operation.bandwidth),
    ];
    let none = Latency::default();
    let first_byte = operation.first_byte.as_ref().unwrap_or(&none);
    for latency in [first_byte, &operation.latency] {
        row.push(ms(latency.mean_us));
        row.push(ms(latency.deviation_us));
        row.extend(PERCENTILES.map(|percent| ms(latency.at(percent / 100.0))));
    }
    let open = operation.open_loop.as_ref();
    let delay = |ns: fn(&OpenLoop) -> u64| ms(open.map(|open| ns(open) as f64 / 1e3));
    row.push(decimal(open.map(|open| open.offered)));
    row.push(decimal(open.map(|open| open.late)));
    row.push(delay(|open| open.delay_p50_ns));
    row.push(delay(|open| open.delay_p99_ns));
    row.push(delay(|open| open.delay_max_ns));
    row.push(text(open.map(|open| !open.overloaded)));
    row
}

fn timeline(run: &Run) -> String {
    let mut out = String::from(
        "stage,operation,second,interval_s,succeeded,failed,ops_per_s,bytes_per_s,mean_ms,p50_ms,\
         p99_ms,max_ms\n",
    );
    for stage in &run.stages {
        for line in &stage.timeline {
            for tick in &line.ticks {
                let row = [
                    stage.id.clone(),
                    line.operation.clone(),
                    format!("{:.3}", tick.second),
                    format!("{:.3}", tick.interval),
                    tick.done.to_string(),
                    text(tick.failed),
                    decimal(tick.rate),
                    decimal(tick.bandwidth),
                    ms(tick.mean_us),
                    ms(tick.p50_us),
                    ms(tick.p99_us),
                    ms(tick.max_us),
                ];
                push(&mut out, &row);
            }
        }
    }
    out
}

fn errors(run: &Run) -> String {
    let mut out = String::from("stage,work,operation,size_class,error,count\n");
    for stage in &run.stages {
        for operation in &stage.operations {
            for error in &operation.errors {
                let row = [
                    stage.id.clone(),
                    text(operation.work.as_ref()),
                    operation.name.clone(),
                    text(operation.size_class.as_ref()),
                    error.kind.clone(),
                    error.count.to_string(),
                ];
                push(&mut out, &row);
            }
        }
    }
    out
}

fn worst(run: &Run) -> String {
    let mut out = String::from("stage,operation,size_class,ms,second,transaction_id,object\n");
    for stage in &run.stages {
        for request in &stage.worst {
            let row = [
                stage.id.clone(),
                request.operation.clone(),
                text(request.size_class.as_ref()),
                ms(Some(request.us)),
                decimal(request.second),
                text(request.transaction_id.as_ref()),
                text(request.what.as_ref()),
            ];
            push(&mut out, &row);
        }
    }
    out
}

fn resources(run: &Run) -> String {
    let mut out = String::from("stage,quantity,of,second,value\n");
    for stage in &run.stages {
        for series in &stage.resources {
            for (second, value) in &series.points {
                let row = [
                    stage.id.clone(),
                    series.quantity.clone(),
                    series.of.clone(),
                    format!("{second:.3}"),
                    format!("{value:.3}"),
                ];
                push(&mut out, &row);
            }
        }
    }
    out
}

fn distances(run: &Run) -> String {
    let mut out = String::from("stage,device,from_blocks,ios,share\n");
    for stage in &run.stages {
        for distance in &stage.distances {
            let total = distance.total();
            for (from, count) in &distance.buckets {
                push(
                    &mut out,
                    &distance_row(stage, distance, *from, *count, total),
                );
            }
        }
    }
    out
}

fn distance_row(
    stage: &Stage,
    distance: &Distances,
    from: u64,
    count: u64,
    total: u64,
) -> [String; 5] {
    [
        stage.id.clone(),
        distance.device.clone(),
        from.to_string(),
        count.to_string(),
        format!("{:.4}", count as f64 / total.max(1) as f64),
    ]
}
