//! COSBench's own result files, for existing scripts: the workload table `w1-NAME.csv`, a timeline
//! per stage `sN-NAME.csv`, and `w1-NAME-rt-histogram.csv`.
//!
//! Columns, their order, number formats and the missing line ends of empty files are those of
//! COSBench 0.4.2. Differences improve accuracy: percentiles are rounded to whole milliseconds, at
//! least 1, instead of up to the end of a bucket of 10 ms; the cumulative share in a histogram's
//! column is that of the column also if special stages precede it. A comma in a name would shift
//! columns here as in COSBench, so it is replaced by a semicolon.

use std::fmt::Write;
use std::path::Path;

use super::model::State;
use super::read::Recorded;
use super::time::{clock, date_time};
use super::view::{history, merged, names, operation_names, processing_us, stage_id, state};
use super::writer::{WriteError, write_whole};
use crate::plan::WorkKind;
use crate::record::{OperationResult, OperationSample, Sample, StageResult, WorkResult};

const PERCENTS: [f64; 6] = [60.0, 80.0, 90.0, 95.0, 99.0, 100.0];
const BUCKET_MS: u64 = 10;
/// Number of buckets of 10 ms; the last one includes everything from 500 seconds on.
const BUCKETS: usize = 50_000;

pub(super) fn write(folder: &Path, recorded: &Recorded) -> Result<(), WriteError> {
    let workload = format!("w1-{}", file_name(&recorded.meta.name));
    let table = workload_table(recorded);
    write_whole(&folder.join(format!("{workload}.csv")), table.as_bytes())?;
    let histogram = histogram(recorded);
    let name = format!("{workload}-rt-histogram.csv");
    write_whole(&folder.join(name), histogram.as_bytes())?;
    for stage in &recorded.stages {
        let timeline = stage_timeline(stage, &recorded.timeline);
        let name = file_name(&stage_id(stage.number, &stage.name));
        write_whole(&folder.join(format!("{name}.csv")), timeline.as_bytes())?;
    }
    Ok(())
}

/// Maximum bytes of a name: file systems allow 255, which include prefix and suffix.
const NAME_BYTES_MAX: usize = 150;

/// A stage's or workload's name as part of a file's name.
pub(super) fn file_name(name: &str) -> String {
    let mut clean = String::new();
    let chars = name
        .chars()
        .map(|c| if c == '/' || c.is_control() { '_' } else { c });
    for character in chars {
        if clean.len() + character.len_utf8() > NAME_BYTES_MAX {
            break;
        }
        clean.push(character);
    }
    if clean.is_empty() {
        "workload".to_owned()
    } else {
        clean
    }
}

fn cell(text: &str) -> String {
    text.replace(',', ";").replace(['\n', '\r'], " ")
}

/// COSBench's number format `0.##`: at most two decimals, without trailing zeros.
fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    match text {
        "" | "-0" => "0".to_owned(),
        text => text.to_owned(),
    }
}

/// A positive number; `N/A` for zero and missing values where COSBench does so.
fn positive(value: f64) -> String {
    if value > 0.0 {
        number(value)
    } else {
        "N/A".to_owned()
    }
}

fn ratio(done: u64, failed: u64) -> String {
    if done == 0 {
        return "N/A".to_owned();
    }
    format!("{}%", number(100.0 * done as f64 / (done + failed) as f64))
}

fn workload_table(recorded: &Recorded) -> String {
    let mut text = String::from(
        "Stage,Op-Name,Op-Type,Op-Count,Byte-Count,Avg-ResTime,Avg-ProcTime,60%-ResTime,\
         80%-ResTime,90%-ResTime,95%-ResTime,99%-ResTime,100%-ResTime,Throughput,Bandwidth,\
         Succ-Ratio,Status,Detailed Status\n",
    );
    for stage in &recorded.stages {
        table_rows(&mut text, stage);
    }
    // A stage that never ran has only its name, as in COSBench.
    let view = recorded.view();
    for stage in view.stages.iter().filter(|s| s.operations.is_empty()) {
        let known = |s: &&StageResult| stage_id(s.number, &s.name) == stage.id;
        if recorded.stages.iter().find(known).is_none() {
            let name = stage.id.split_once('-').map_or("", |(_, name)| name);
            let at = date_time(recorded.meta.ended.unwrap_or(recorded.meta.started));
            let state = stage.state.name();
            empty_row(&mut text, name, stage.state, &format!("{state} @ {at}"));
        }
    }
    text
}

fn empty_row(text: &mut String, name: &str, state: State, detailed: &str) {
    text.push_str(&cell(name));
    text.push_str(&",N/A".repeat(15));
    // Writing to a String cannot fail.
    let _ = writeln!(text, ",{},{detailed}", state.name());
}

fn table_rows(text: &mut String, stage: &StageResult) {
    let id = stage_id(stage.number, &stage.name);
    let moments: Vec<String> = history(stage)
        .iter()
        .map(|m| format!("{} @ {}", cell(&m.state), m.at))
        .collect();
    let detailed = moments.join(",");
    let mut any = false;
    for work in &stage.works {
        for name in operation_names(work) {
            any = true;
            let sum = operation_sum(work, name);
            let (name, kind) = names(work.kind, &sum);
            let seconds = work.seconds.max(1e-9);
            let mut row = vec![
                cell(&id),
                cell(&name),
                kind.to_owned(),
                sum.ops.to_string(),
                sum.bytes.to_string(),
                positive(sum.last_byte.mean() / 1e6),
                positive(processing_us(&sum).unwrap_or(0.0) / 1e3),
            ];
            for percent in PERCENTS {
                let ns = sum.last_byte.percentile(percent);
                row.push(match sum.last_byte.is_empty() {
                    true => "N/A".to_owned(),
                    false => ((ns + 500_000) / 1_000_000).max(1).to_string(),
                });
            }
            let (ended, bytes) = sum.achieved();
            row.push(number(ended as f64 / seconds));
            row.push(number(bytes as f64 / seconds));
            row.push(ratio(sum.ops, sum.failed()));
            row.push(state(stage.state).name().to_owned());
            let _ = writeln!(text, "{},{detailed}", row.join(","));
        }
    }
    if !any {
        empty_row(text, &stage.name, state(stage.state), &detailed);
    }
}

fn operation_sum(work: &WorkResult, name: &str) -> OperationResult {
    let parts: Vec<&OperationResult> = work.operations.iter().filter(|o| o.name == name).collect();
    merged(&parts)
}

/// A column of a stage's timeline: an operation of a work.
struct Column<'a> {
    work: &'a str,
    operation: &'a str,
    title: String,
}

fn stage_timeline(stage: &StageResult, samples: &[Sample]) -> String {
    let columns: Vec<Column<'_>> = stage
        .works
        .iter()
        .flat_map(|work| {
            operation_names(work)
                .into_iter()
                .map(move |operation| Column {
                    work: &work.name,
                    operation,
                    title: cell(&names(work.kind, &operation_sum(work, operation)).0),
                })
        })
        .collect();
    let mut text = String::new();
    if columns.is_empty() {
        return text;
    }
    text.push_str("Timestamp,");
    for metric in [
        "Op-Count",
        "Byte-Count",
        "Avg-ResTime",
        "Avg-ProcTime",
        "Throughput",
        "Bandwidth",
        "Succ-Ratio",
    ] {
        text.push_str(metric);
        text.push_str(&",".repeat(columns.len()));
    }
    text.push_str("Version-Info,,\n,");
    for _ in 0..7 {
        for column in &columns {
            text.push_str(&column.title);
            text.push(',');
        }
    }
    text.push_str("Min-Version,Version,Max-Version\n");
    // Works of one stage are sampled at the same times, but may end at different ones.
    let mut rows: Vec<Vec<&Sample>> = Vec::new();
    for sample in samples.iter().filter(|s| s.stage == stage.name) {
        match rows.last_mut() {
            Some(row)
                if row[0].at - sample.at > -sample.seconds.max(0.1) / 2.0
                    && row.iter().all(|s| s.work != sample.work) =>
            {
                row.push(sample);
            }
            _ => rows.push(vec![sample]),
        }
    }
    for (version, row) in rows.iter().enumerate() {
        timeline_row(&mut text, version, row, &columns);
    }
    text
}

/// Operations of one name, summed over size classes, which COSBench does not have.
fn summed<'a>(samples: impl Iterator<Item = &'a OperationSample>) -> OperationSample {
    let mut sum = OperationSample::default();
    for sample in samples {
        let ops = sum.ops + sample.ops;
        let ns = sum.mean_ns * sum.ops as f64 + sample.mean_ns * sample.ops as f64;
        sum.mean_ns = ns / ops.max(1) as f64;
        sum.ops = ops;
        sum.bytes += sample.bytes;
        sum.errors += sample.errors;
    }
    sum
}

fn timeline_row(text: &mut String, version: usize, row: &[&Sample], columns: &[Column<'_>]) {
    let cells: Vec<(OperationSample, f64)> = columns
        .iter()
        .map(|column| {
            let Some(sample) = row.iter().find(|s| s.work == column.work) else {
                return (OperationSample::default(), 1.0);
            };
            let all = sample.operations.iter();
            let of_name = all.filter(|o| o.name == column.operation);
            (summed(of_name), sample.seconds.max(1e-3))
        })
        .collect();
    text.push_str(&clock(row[0].at));
    let mut put = |metric: &dyn Fn(&OperationSample, f64) -> String| {
        for (operation, seconds) in &cells {
            text.push(',');
            text.push_str(&metric(operation, *seconds));
        }
    };
    put(&|o, _| o.ops.to_string());
    put(&|o, _| o.bytes.to_string());
    put(&|o, _| positive(o.mean_ns / 1e6));
    put(&|o, _| positive(o.mean_ns / 1e6));
    put(&|o, seconds| number(o.ops as f64 / seconds));
    put(&|o, seconds| number(o.bytes as f64 / seconds));
    put(&|o, _| ratio(o.ops, o.errors));
    let _ = writeln!(text, ",{version},{version},{version}");
}

/// Writes the histogram, without special works.
fn histogram(recorded: &Recorded) -> String {
    let mut header = String::from("ResTime");
    let mut columns: Vec<Vec<u64>> = Vec::new();
    for stage in &recorded.stages {
        let id = stage_id(stage.number, &stage.name);
        for (index, work) in stage.works.iter().enumerate() {
            if work.kind != WorkKind::Main {
                continue;
            }
            for name in operation_names(work) {
                let title = format!("{id}-w{}-{}-{name}", index + 1, work.name);
                let _ = write!(header, ",{},(%)", cell(&title));
                columns.push(buckets(&operation_sum(work, name)));
            }
        }
    }
    let totals: Vec<u64> = columns.iter().map(|c| c.iter().sum()).collect();
    let mut seen = vec![0u64; columns.len()];
    let mut text = header;
    text.push('\n');
    for bucket in 0..=BUCKETS {
        let from = bucket as u64 * BUCKET_MS;
        let _ = if bucket == BUCKETS {
            write!(text, "{from}~+INF")
        } else {
            write!(text, "{from}~{}", from + BUCKET_MS)
        };
        for (column, counts) in columns.iter().enumerate() {
            seen[column] += counts[bucket];
            let share = match totals[column] {
                0 => 0.0,
                total => 100.0 * seen[column] as f64 / total as f64,
            };
            let _ = write!(text, ",{},{}%", counts[bucket], number(share));
        }
        text.push('\n');
    }
    text
}

fn buckets(operation: &OperationResult) -> Vec<u64> {
    let mut counts = vec![0; BUCKETS + 1];
    for (ns, count) in operation.last_byte.counts() {
        let bucket = usize::try_from(ns / (BUCKET_MS * 1_000_000)).unwrap_or(BUCKETS);
        counts[bucket.min(BUCKETS)] += count;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_cosbench_formats_them() {
        for (value, text) in [
            (0.0, "0"),
            (20.0, "20"),
            (12.75, "12.75"),
            (0.5, "0.5"),
            (-0.001, "0"),
            (100.0, "100"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!(ratio(4, 96), "4%");
        assert_eq!(ratio(0, 96), "N/A");
        assert_eq!(ratio(3, 0), "100%");
    }
}
