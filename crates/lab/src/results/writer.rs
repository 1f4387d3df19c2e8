//! Writer of a run's folder during the run; [`record`](crate::record) describes its content.
//!
//! Whole files are replaced by renaming a synced one over them; each line is appended with a single
//! write. Therefore a run killed at any moment leaves a readable folder: complete files, and
//! complete lines except possibly the last.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use thiserror::Error;

use super::read::Recorded;
use crate::plan::{Access, Plan};
use crate::record::{ResourceSample, RunFolder, RunMeta, Sample, SavedPools, StageResult};

#[derive(Debug, Error)]
pub enum WriteError {
    #[error("cannot write {}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("cannot write {} as JSON: {source}", path.display())]
    Json {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error(
        "{} holds a run already; name another folder with --out or move this one away",
        path.display()
    )]
    Occupied { path: PathBuf },
    #[error("{}: this run is still under way; end it first (SIGINT)", path.display())]
    UnderWay { path: PathBuf },
}

impl WriteError {
    fn io(path: &Path) -> impl FnOnce(std::io::Error) -> WriteError + '_ {
        move |source| WriteError::Io {
            path: path.to_owned(),
            source,
        }
    }
}

/// Replaces `path` atomically: readers see the old content or the new.
///
/// # Errors
/// `Io` if the new file cannot be written, synced or renamed.
pub fn write_whole(path: &Path, content: &[u8]) -> Result<(), WriteError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let staged = path.with_file_name(name);
    let io = WriteError::io;
    let mut file = File::create(&staged).map_err(io(&staged))?;
    file.write_all(content).map_err(io(&staged))?;
    file.sync_all().map_err(io(&staged))?;
    std::fs::rename(&staged, path).map_err(io(path))
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), WriteError> {
    let mut text = serde_json::to_vec_pretty(value).map_err(|source| WriteError::Json {
        path: path.to_owned(),
        source,
    })?;
    text.push(b'\n');
    write_whole(path, &text)
}

fn write_lines(path: &Path, values: &[impl Serialize]) -> Result<(), WriteError> {
    let mut text = Vec::new();
    for value in values {
        let line = serde_json::to_vec(value).map_err(|source| WriteError::Json {
            path: path.to_owned(),
            source,
        })?;
        text.extend_from_slice(&line);
        text.push(b'\n');
    }
    write_whole(path, &text)
}

/// The folder of an active run.
///
/// A write fails with [`WriteError::Io`] if the file cannot be written, and with
/// [`WriteError::Json`] if its content cannot be put as JSON.
#[derive(Debug)]
pub struct RunWriter {
    folder: RunFolder,
    stages: Vec<StageResult>,
    timeline: Lines,
    resources: Lines,
    /// Held while the process lives.
    _lock: File,
}

/// Takes the run for this process: a lock of `plan.json`, which is written once.
///
/// # Errors
/// `UnderWay` if a process has it; `Io` if there is no plan.
pub(crate) fn lock(folder: &RunFolder) -> Result<File, WriteError> {
    use rustix::fs::{FlockOperation, flock};
    let path = folder.plan();
    let file = File::open(&path).map_err(WriteError::io(&path))?;
    // File systems without locks have nothing to say.
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(error) if error == rustix::io::Errno::WOULDBLOCK => Err(WriteError::UnderWay {
            path: folder.root().to_owned(),
        }),
        _ => Ok(file),
    }
}

impl RunWriter {
    /// Creates the folder with everything known before the first request. `workload` is the
    /// extension and the bytes of the original workload file.
    ///
    /// # Errors
    /// `Occupied` if the folder has a run; `Io` or `Json` if one of its files cannot be written.
    pub fn create(
        folder: RunFolder,
        meta: &RunMeta,
        plan: &Plan,
        workload: Option<(&str, &[u8])>,
    ) -> Result<RunWriter, WriteError> {
        let root = folder.root().to_owned();
        std::fs::create_dir_all(&root).map_err(WriteError::io(&root))?;
        if folder.run().exists() {
            return Err(WriteError::Occupied { path: root });
        }
        if let Some((extension, bytes)) = workload {
            write_whole(&folder.workload(extension), bytes)?;
        }
        write_json(&folder.plan(), &without_secrets(plan))?;
        write_json(&folder.stages(), &Vec::<StageResult>::new())?;
        let writer = RunWriter {
            timeline: Lines::create(folder.timeline())?,
            resources: Lines::create(folder.resources())?,
            stages: Vec::new(),
            _lock: lock(&folder)?,
            folder,
        };
        // Written last: a folder with a run.json is a run.
        writer.meta(meta)?;
        Ok(writer)
    }

    /// Goes on with a run of which `kept` are the finished stages. What else its files tell, of
    /// stages that are run again, is dropped.
    ///
    /// # Errors
    /// `Io` or `Json` if one of its files cannot be written.
    pub(crate) fn resume(
        folder: RunFolder,
        lock: File,
        meta: &RunMeta,
        kept: &Recorded,
    ) -> Result<RunWriter, WriteError> {
        write_json(&folder.stages(), &kept.stages)?;
        write_lines(&folder.timeline(), &kept.timeline)?;
        write_lines(&folder.resources(), &kept.resources)?;
        let writer = RunWriter {
            timeline: Lines::append_to(folder.timeline())?,
            resources: Lines::append_to(folder.resources())?,
            stages: kept.stages.clone(),
            _lock: lock,
            folder,
        };
        writer.meta(meta)?;
        Ok(writer)
    }

    /// Results of the stages that have ended.
    pub fn stages(&self) -> &[StageResult] {
        &self.stages
    }

    /// Replaces what is saved of the pools, or removes it.
    ///
    /// # Errors
    /// As every write: see [`RunWriter`].
    pub fn pools(&self, pools: Option<&SavedPools>) -> Result<(), WriteError> {
        let path = self.folder.pools();
        match pools {
            Some(pools) => {
                let text = serde_json::to_vec(pools).map_err(|source| WriteError::Json {
                    path: path.clone(),
                    source,
                })?;
                write_whole(&path, &text)
            }
            None => match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(WriteError::io(&path)(error))
                }
                _ => Ok(()),
            },
        }
    }

    pub fn folder(&self) -> &RunFolder {
        &self.folder
    }

    /// Updates facts about a run after its folder was closed.
    ///
    /// # Errors
    /// As every write: see [`RunWriter`].
    pub fn amend(folder: &RunFolder, meta: &RunMeta) -> Result<(), WriteError> {
        write_json(&folder.run(), meta)
    }

    /// Writes the meta data: at the start, at the end, and for each note or lost driver.
    ///
    /// # Errors
    /// As every write: see [`RunWriter`].
    pub fn meta(&self, meta: &RunMeta) -> Result<(), WriteError> {
        write_json(&self.folder.run(), meta)
    }

    /// Adds a stage's result, and replaces the file of all stages.
    ///
    /// # Errors
    /// As every write: see [`RunWriter`].
    pub fn stage(&mut self, result: StageResult) -> Result<(), WriteError> {
        self.stages.push(result);
        write_json(&self.folder.stages(), &self.stages)
    }

    /// Appends a sample to the timeline.
    ///
    /// # Errors
    /// As every write: see [`RunWriter`].
    pub fn sample(&mut self, sample: &Sample) -> Result<(), WriteError> {
        self.timeline.append(sample)
    }

    /// Appends a sample of a host's resources.
    ///
    /// # Errors
    /// As every write: see [`RunWriter`].
    pub fn resource(&mut self, sample: &ResourceSample) -> Result<(), WriteError> {
        self.resources.append(sample)
    }
}

#[derive(Debug)]
struct Lines {
    path: PathBuf,
    file: File,
}

impl Lines {
    fn create(path: PathBuf) -> Result<Lines, WriteError> {
        let file = File::create(&path).map_err(WriteError::io(&path))?;
        Ok(Lines { path, file })
    }

    fn append_to(path: PathBuf) -> Result<Lines, WriteError> {
        let file = File::options().append(true).open(&path);
        let file = file.map_err(WriteError::io(&path))?;
        Ok(Lines { path, file })
    }

    fn append(&mut self, value: &impl Serialize) -> Result<(), WriteError> {
        let mut line = serde_json::to_vec(value).map_err(|source| WriteError::Json {
            path: self.path.clone(),
            source,
        })?;
        line.push(b'\n');
        self.file
            .write_all(&line)
            .map_err(WriteError::io(&self.path))
    }
}

/// Text in a recorded plan where a credential was.
pub(crate) const HIDDEN: &str = "(hidden)";

/// The plan without credentials.
fn without_secrets(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    hide(&mut plan.access);
    let works = plan.stages.iter_mut().flat_map(|s| &mut s.works);
    for access in works.filter_map(|work| work.access.as_mut()) {
        hide(access);
    }
    plan
}

fn hide(access: &mut Access) {
    for settings in [&mut access.auth, &mut access.storage] {
        for (key, value) in &mut settings.config {
            let key = key.to_ascii_lowercase();
            let secret = ["password", "secret", "token", "passwd", "key"];
            // `accesskey` names a user; a complete set of both is removed rather than kept in part.
            if secret.iter().any(|word| key.contains(word)) && !value.is_empty() {
                HIDDEN.clone_into(value);
            }
        }
    }
}
