//! Import of other tools' results, to plot them beside our own runs: COSBench's CSVs, ssbench's
//! report, CSV and request rates, swift-bench's output. Files are recognised by their content, not
//! by their names.
//!
//! Importers add nothing: values that a tool did not write stay absent, and limited precision (10
//! ms buckets, rounded ratios) is noted.

mod clock;
mod cosbench;
mod ssbench;
mod swift_bench;

use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::record::RunFolder;
use crate::results::model::Run;

/// Maximum size of a tool's file: COSBench's histogram has 50,002 lines.
const BYTES_MAX: u64 = 128 << 20;
/// Maximum number of files: a result folder has tens of files, an archive of studies some
/// thousands.
const FILES_MAX: usize = 10_000;
const DEPTH_MAX: usize = 3;
/// Largest count that is believed: sums of such do not overflow, and they are exact as `f64`.
const COUNT_MAX: u64 = 1 << 53;

#[derive(Debug, Error)]
pub enum ImportError {
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{}: {bytes} bytes are more than any tool writes (limit {BYTES_MAX})", path.display())]
    TooLarge { path: PathBuf, bytes: u64 },
    #[error("{}: more than {FILES_MAX} files; name the run folders one by one", path.display())]
    TooMany { path: PathBuf },
    #[error("{}, line {line}: expected {expected}, found {found:?}", path.display())]
    Malformed {
        path: PathBuf,
        line: usize,
        expected: &'static str,
        found: String,
    },
    #[error(
        "{}: neither a run folder of `cairn lab run` nor results of COSBench, ssbench or \
         swift-bench",
        path.display()
    )]
    Nothing { path: PathBuf },
}

/// A text file and its recognised format.
struct Source {
    path: PathBuf,
    text: String,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    CosBenchTable,
    CosBenchTimeline,
    CosBenchHistogram,
    SsBenchCsv,
    SsBenchReport,
    SsBenchRates,
    SwiftBench,
}

impl Source {
    fn stem(&self) -> String {
        let stem = self.path.file_stem().unwrap_or_default();
        stem.to_string_lossy().into_owned()
    }

    fn malformed(&self, line: usize, expected: &'static str, found: &str) -> ImportError {
        ImportError::Malformed {
            path: self.path.clone(),
            line,
            expected,
            found: found.chars().take(60).collect(),
        }
    }
}

/// All imported runs of a file, or of a folder and its subfolders.
///
/// # Errors
/// `Nothing` if no file has a known format, `Malformed` for a line of one that has; `Io`,
/// `TooLarge` or `TooMany` for files that cannot be read.
pub fn import(path: &Path) -> Result<Vec<Run>, ImportError> {
    let mut runs = Vec::new();
    if path.is_dir() {
        let mut files = 0;
        import_folder(path, DEPTH_MAX, &mut files, &mut runs)?;
    } else {
        let chosen = read_source(path)?.ok_or_else(|| nothing(path))?;
        runs = runs_of_file(chosen)?;
    }
    if runs.is_empty() {
        return Err(nothing(path));
    }
    Ok(runs)
}

fn nothing(path: &Path) -> ImportError {
    ImportError::Nothing {
        path: path.to_owned(),
    }
}

/// A COSBench table is read together with the timelines and the histogram beside it.
fn runs_of_file(chosen: Source) -> Result<Vec<Run>, ImportError> {
    let mut sources = Vec::new();
    if chosen.kind == Kind::CosBenchTable
        && let Some(folder) = chosen.path.parent()
    {
        let folder = if folder.as_os_str().is_empty() {
            Path::new(".")
        } else {
            folder
        };
        let mut files = 0;
        for path in entries(folder, &mut files)? {
            if path.is_file()
                && let Some(source) = read_source(&path)?
                && source.kind != Kind::CosBenchTable
            {
                sources.push(source);
            }
        }
    }
    sources.push(chosen);
    assemble(&sources)
}

fn import_folder(
    folder: &Path,
    depth: usize,
    files: &mut usize,
    runs: &mut Vec<Run>,
) -> Result<(), ImportError> {
    let mut sources = Vec::new();
    // Our own run folders contain COSBench's tables too, which would duplicate the run.
    if RunFolder::new(folder).run().is_file() {
        return Ok(());
    }
    for path in entries(folder, files)? {
        if path.is_dir() {
            if depth > 0 {
                import_folder(&path, depth - 1, files, runs)?;
            }
        } else if let Some(source) = read_source(&path)? {
            sources.push(source);
        }
    }
    runs.extend(assemble(&sources)?);
    Ok(())
}

fn assemble(sources: &[Source]) -> Result<Vec<Run>, ImportError> {
    let mut runs = cosbench::runs(sources)?;
    runs.extend(ssbench::runs(sources)?);
    runs.extend(swift_bench::runs(sources)?);
    Ok(runs)
}

/// Entries of a folder, sorted by name.
fn entries(folder: &Path, files: &mut usize) -> Result<Vec<PathBuf>, ImportError> {
    let io = |source| ImportError::Io {
        path: folder.to_owned(),
        source,
    };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        paths.push(entry.map_err(io)?.path());
        *files += 1;
        if *files > FILES_MAX {
            return Err(ImportError::TooMany {
                path: folder.to_owned(),
            });
        }
    }
    paths.sort();
    Ok(paths)
}

/// Reads a file; `None` if its format is not recognised.
fn read_source(path: &Path) -> Result<Option<Source>, ImportError> {
    let io = |source| ImportError::Io {
        path: path.to_owned(),
        source,
    };
    let extension = path.extension().unwrap_or_default().to_string_lossy();
    if !matches!(extension.as_ref(), "csv" | "txt" | "log" | "out" | "") {
        return Ok(None);
    }
    let metadata = std::fs::metadata(path).map_err(io)?;
    if !metadata.is_file() {
        return Ok(None);
    }
    if metadata.len() > BYTES_MAX {
        return Err(ImportError::TooLarge {
            path: path.to_owned(),
            bytes: metadata.len(),
        });
    }
    let bytes = std::fs::read(path).map_err(io)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(kind_of(&text).map(|kind| Source {
        path: path.to_owned(),
        text,
        kind,
    }))
}

/// A count, if it is plausible.
fn count_of(text: &str) -> Option<u64> {
    text.parse().ok().filter(|count| *count <= COUNT_MAX)
}

/// A number, time or rate, if it is plausible: neither negative nor infinite.
fn number_of(text: &str) -> Option<f64> {
    let number: f64 = text.parse().ok()?;
    (0.0..=COUNT_MAX as f64).contains(&number).then_some(number)
}

fn kind_of(text: &str) -> Option<Kind> {
    if text.starts_with("Stage,Op-Name,Op-Type,") {
        return Some(Kind::CosBenchTable);
    }
    if text.starts_with("Timestamp,Op-Count,") {
        return Some(Kind::CosBenchTimeline);
    }
    if text.starts_with("ResTime,") || text.starts_with("ResTime\n") {
        return Some(Kind::CosBenchHistogram);
    }
    if text.starts_with("\"Seconds Since Start\"") {
        return Some(Kind::SsBenchRates);
    }
    // ssbench logs lines before its table, swift-bench's output consists of log lines.
    if text.lines().take(50).any(ssbench::is_header) {
        return Some(Kind::SsBenchCsv);
    }
    if text
        .lines()
        .any(|line| line.contains("(generated with ssbench version"))
    {
        return Some(Kind::SsBenchReport);
    }
    if text.lines().any(|line| line.contains("**FINAL** [")) {
        return Some(Kind::SwiftBench);
    }
    None
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
