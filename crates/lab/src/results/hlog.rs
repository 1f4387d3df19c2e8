//! Writer of `latency.hlog`: all stages' response times in HdrHistogram's interval log format
//! (version 1.3), for its plotters and analyzers. One line per stage, work and operation,
//! distinguished by tag; size classes are merged. Values are nanoseconds; the `Interval_Max` column
//! is in milliseconds, as usual. Tags end in `:first` (to the first byte), `:last` and `:service`
//! (without the wait of an open loop).

use std::path::Path;
use std::time::Duration;

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};

use super::read::Recorded;
use super::time::date_time;
use super::view::{merged, operation_names, stage_id};
use super::writer::{WriteError, write_whole};
use crate::latencies::Latencies;
use crate::record::{OperationResult, StageResult};

const NS_PER_MS: f64 = 1e6;

pub(super) fn write(folder: &Path, recorded: &Recorded) -> Result<(), WriteError> {
    let path = folder.join("latency.hlog");
    let mut bytes = Vec::new();
    log(recorded, &mut bytes).map_err(|error| WriteError::Io {
        path: path.clone(),
        source: std::io::Error::other(error),
    })?;
    write_whole(&path, &bytes)
}

fn log(recorded: &Recorded, bytes: &mut Vec<u8>) -> Result<(), String> {
    let meta = &recorded.meta;
    let started = Duration::try_from_secs_f64(meta.started).unwrap_or_default();
    let mut serializer = V2DeflateSerializer::new();
    let start = std::time::UNIX_EPOCH + started;
    let mut builder = IntervalLogWriterBuilder::new();
    builder
        .add_comment(&format!(
            "{}, seed {}, started {}",
            clean(&meta.name, ' '),
            meta.seed,
            date_time(meta.started)
        ))
        .with_start_time(start)
        .with_base_time(start)
        .with_max_value_divisor(NS_PER_MS);
    let mut writer = builder
        .begin_log_with(bytes, &mut serializer)
        .map_err(|error| error.to_string())?;
    for stage in &recorded.stages {
        let since = (stage.started - meta.started).max(0.0);
        let begun = Duration::try_from_secs_f64(since).unwrap_or_default();
        for (tag, length, latencies) in histograms(stage) {
            writer
                .write_histogram(
                    latencies.histogram(),
                    begun,
                    Duration::try_from_secs_f64(length).unwrap_or_default(),
                    Tag::new(&tag),
                )
                .map_err(|error| format!("{error:?}"))?;
        }
    }
    Ok(())
}

fn histograms(stage: &StageResult) -> Vec<(String, f64, Latencies)> {
    let mut all = Vec::new();
    for work in &stage.works {
        for name in operation_names(work) {
            let parts: Vec<&OperationResult> =
                work.operations.iter().filter(|o| o.name == name).collect();
            let sum = merged(&parts);
            let id = stage_id(stage.number, &stage.name);
            let tag = clean(&format!("{id}:{}:{name}", work.name), '_');
            for (part, latencies) in [
                ("first", sum.first_byte),
                ("last", sum.last_byte),
                ("service", sum.service),
            ] {
                if !latencies.is_empty() {
                    all.push((format!("{tag}:{part}"), work.seconds, latencies));
                }
            }
        }
    }
    all
}

/// Replaces characters that would end a tag: comma, space and line end.
fn clean(text: &str, instead: char) -> String {
    let forbidden = |c: char| c == ',' || c == '\n' || c == '\r' || (instead == '_' && c == ' ');
    text.replace(forbidden, &instead.to_string())
}
