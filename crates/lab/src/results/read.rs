//! Reader of our own run folders, as [`record`](crate::record) describes them.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use thiserror::Error;

use super::model::Run;
use super::view;
use crate::plan::Plan;
use crate::record::{ResourceSample, RunFolder, RunMeta, Sample, StageResult, State};

/// Maximum size of a file: far above a day of samples every second of many works.
const FILE_BYTES_MAX: u64 = 1 << 30;
const LINES_MAX: usize = 4_000_000;
/// Time without writes after which a run counts as dead, since it samples every few seconds.
const SILENCE_MAX_SECONDS: f64 = 90.0;

#[derive(Debug, Error)]
pub enum ReadError {
    #[error("cannot read {}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{}: {source}", path.display())]
    Json {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("{}, line {line}: {source}", path.display())]
    JsonLine {
        path: PathBuf,
        line: usize,
        source: serde_json::Error,
    },
    #[error("{}: {bytes} bytes are more than a run writes (limit {FILE_BYTES_MAX})", path.display())]
    TooLarge { path: PathBuf, bytes: u64 },
    #[error(
        "{}: layout {version} is of a newer program; this one reads layout 1",
        path.display()
    )]
    Version { path: PathBuf, version: u32 },
}

/// The content of a run folder's files.
#[derive(Debug, Clone, Default)]
pub struct Recorded {
    pub meta: RunMeta,
    pub plan: Option<Plan>,
    pub stages: Vec<StageResult>,
    pub timeline: Vec<Sample>,
    pub resources: Vec<ResourceSample>,
    /// Its state is running, but its process is gone.
    pub cut_short: bool,
}

impl Recorded {
    pub fn view(&self) -> Run {
        view::run(self)
    }
}

/// Reads one of our own folders, also of a run that is active or was killed.
///
/// # Errors
/// `Io` if there is no `run.json` or a file cannot be read, `TooLarge`, `Json` or `JsonLine` for
/// its content, `Version` if a newer program wrote it.
pub fn read_folder(root: &Path) -> Result<Recorded, ReadError> {
    let folder = RunFolder::new(root);
    let meta: RunMeta = read_json(&folder.run())?;
    if meta.version > 1 {
        return Err(ReadError::Version {
            path: folder.run(),
            version: meta.version,
        });
    }
    let plan = exists(folder.plan(), read_json)?;
    let stages = exists(folder.stages(), read_json)?.unwrap_or_default();
    let timeline: Vec<Sample> = exists(folder.timeline(), read_lines)?.unwrap_or_default();
    let resources: Vec<ResourceSample> =
        exists(folder.resources(), read_lines)?.unwrap_or_default();
    let sampled = timeline.last().map_or(0.0, |s| s.at);
    let watched = resources.last().map_or(0.0, |s| s.at);
    let heard = sampled.max(watched).max(meta.started);
    let cut_short = meta.state == State::Running && now() - heard > SILENCE_MAX_SECONDS;
    Ok(Recorded {
        meta,
        plan,
        stages,
        timeline,
        resources,
        cut_short,
    })
}

fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

fn exists<T>(
    path: PathBuf,
    read: impl FnOnce(&Path) -> Result<T, ReadError>,
) -> Result<Option<T>, ReadError> {
    path.is_file().then(|| read(&path)).transpose()
}

fn open_file(path: &Path) -> Result<BufReader<std::fs::File>, ReadError> {
    let io = |source| ReadError::Io {
        path: path.to_owned(),
        source,
    };
    let file = std::fs::File::open(path).map_err(io)?;
    let bytes = file.metadata().map_err(io)?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(ReadError::TooLarge {
            path: path.to_owned(),
            bytes,
        });
    }
    Ok(BufReader::new(file))
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, ReadError> {
    serde_json::from_reader(open_file(path)?).map_err(|source| ReadError::Json {
        path: path.to_owned(),
        source,
    })
}

/// Reads lines; an incomplete last line is what a killed run had begun, and is ignored.
fn read_lines<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>, ReadError> {
    let mut reader = open_file(path)?;
    let mut values = Vec::new();
    let mut line = String::new();
    while values.len() < LINES_MAX {
        line.clear();
        let read = reader
            .read_line(&mut line)
            .map_err(|source| ReadError::Io {
                path: path.to_owned(),
                source,
            })?;
        if read == 0 || !line.ends_with('\n') {
            break;
        }
        values.push(
            serde_json::from_str(&line).map_err(|source| ReadError::JsonLine {
                path: path.to_owned(),
                line: values.len() + 1,
                source,
            })?,
        );
    }
    Ok(values)
}
