//! Runs at a path: a run folder, a folder of run folders, read completely, or another tool's results,
//! through the importers.

use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::import::{self, ImportError};
use crate::record::RunFolder;
use crate::results::model::Run;
use crate::results::{ReadError, read_folder};

const RUNS_MAX: usize = 4096;
const DEPTH_MAX: usize = 3;

#[derive(Debug, Error)]
pub enum OpenError {
    #[error("cannot read {}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{}: more than {RUNS_MAX} runs; name some of them", path.display())]
    TooMany { path: PathBuf },
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Import(#[from] ImportError),
}

/// All runs at `path`: a run folder, a folder of run folders, or another tool's results.
///
/// # Errors
/// `Io` for a folder that cannot be listed, `TooMany` for more than 4096 runs, `Read` for a run
/// folder that cannot be read. Without one, `Import` if there is nothing to import.
pub fn open(path: &Path) -> Result<Vec<Run>, OpenError> {
    let mut folders = Vec::new();
    find(path, DEPTH_MAX, &mut folders)?;
    if folders.is_empty() {
        return Ok(import::import(path)?);
    }
    let mut runs = Vec::new();
    for folder in folders {
        runs.push(read_folder(&folder)?.view());
    }
    // Other tools' results may be beside ours, but not in a run's own folder.
    if !RunFolder::new(path).run().is_file()
        && let Ok(foreign) = import::import(path)
    {
        runs.extend(foreign);
    }
    Ok(runs)
}

fn find(path: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<(), OpenError> {
    if RunFolder::new(path).run().is_file() {
        found.push(path.to_owned());
        if found.len() > RUNS_MAX {
            let path = path.to_owned();
            return Err(OpenError::TooMany { path });
        }
        return Ok(());
    }
    if depth == 0 || !path.is_dir() {
        return Ok(());
    }
    let io = |source| OpenError::Io {
        path: path.to_owned(),
        source,
    };
    let mut inner = Vec::new();
    for entry in std::fs::read_dir(path).map_err(io)? {
        inner.push(entry.map_err(io)?.path());
    }
    inner.sort();
    for path in inner.iter().filter(|p| p.is_dir()) {
        find(path, depth - 1, found)?;
    }
    Ok(())
}
