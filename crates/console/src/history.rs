//! The history of runs: one folder per run, made by `cairn lab run` for the console or manually.
//!
//!
//! ```text
//! RUNS_MAX/ID/…                 the run folder, as the lab writes it
//! RUNS_MAX/.console/ID.json     the console's record of it: a Note; no credentials
//! RUNS_MAX/.console/ID/FILE     the workload as it was submitted
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use cairn_lab::record::{self, RunFolder, RunMeta};
use cairn_lab::rename;
use cairn_types::calendar;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::figures::{self, Headline};

/// Maximum number of runs shown; older ones stay on disk.
const RUNS_MAX: usize = 2000;
/// Maximum size of a note or workload.
const NOTE_MAX_BYTES: u64 = 16 << 20;
/// Time without writes after which the process of a run folder is assumed to be gone.
const SILENCE_MAX: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    Waiting,
    Running,
    Done,
    Failed,
    Cancelled,
    /// The console ended before the run did.
    Interrupted,
}

impl State {
    pub(crate) fn is_over(self) -> bool {
        !matches!(self, State::Waiting | State::Running)
    }
}

/// The console's record of a run that it started. Times are milliseconds since 1970.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) file_name: String,
    /// Description for display, never with a secret.
    pub(crate) target: String,
    pub(crate) state: State,
    pub(crate) submitted: u64,
    pub(crate) started: Option<u64>,
    pub(crate) ended: Option<u64>,
    /// The reason of a failure.
    pub(crate) message: Option<String>,
}

/// A line of the history.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Entry {
    #[serde(flatten)]
    pub(crate) note: Note,
    /// The lab's own `run.json`, once the run has written it.
    pub(crate) run: Option<RunMeta>,
    pub(crate) headline: Option<Headline>,
}

pub(crate) struct History {
    runs: PathBuf,
    notes: PathBuf,
    /// Cached summaries of finished runs, each with the time and length of its `stages.json` when
    /// it was read.
    read: Mutex<BTreeMap<String, (Stamp, Option<Headline>)>>,
}

/// Identity of a file's version.
pub(crate) type Stamp = (Option<SystemTime>, u64);

impl History {
    /// Opens the folder, creating it if missing. Runs that an earlier console left unfinished are
    /// marked as interrupted.
    pub(crate) fn open(runs: &Path) -> Result<History> {
        let runs = std::path::absolute(runs)
            .with_context(|| format!("--dir {}: no usable path", runs.display()))?;
        let notes = runs.join(".console");
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&notes)
            .with_context(|| {
                format!("--dir {}: cannot make {}", runs.display(), notes.display())
            })?;
        let history = History {
            runs,
            notes,
            read: Mutex::default(),
        };
        for mut note in history.notes() {
            if !note.state.is_over() {
                note.state = State::Interrupted;
                note.message = Some("the console ended before this run did".into());
                history.write(&note)?;
            }
        }
        Ok(history)
    }

    pub(crate) fn folder(&self, id: &str) -> PathBuf {
        self.runs.join(id)
    }

    /// A new, unused name for a run, made of time and `name`.
    pub(crate) fn new_id(&self, name: &str) -> String {
        let slug: String = name
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() {
                    c.to_ascii_lowercase()
                } else {
                    '-'
                }
            })
            .collect();
        let words: Vec<&str> = slug.split('-').filter(|w| !w.is_empty()).collect();
        let mut slug = words.join("-");
        slug.truncate(40);
        let base = format!("{}-{slug}", stamp(now()));
        let base = base.trim_end_matches('-').to_owned();
        let taken = |id: &str| self.folder(id).exists() || self.note_path(id).exists();
        (1..)
            .map(|n| {
                if n == 1 {
                    base.clone()
                } else {
                    format!("{base}-{n}")
                }
            })
            .find(|id| !taken(id))
            .unwrap_or(base)
    }

    /// Can this name be that of a run?
    pub(crate) fn is_id(id: &str) -> bool {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        !id.is_empty() && id.len() <= 200 && !id.starts_with('.') && id.bytes().all(plain)
    }

    fn note_path(&self, id: &str) -> PathBuf {
        self.notes.join(format!("{id}.json"))
    }

    /// Writes a record atomically. Blocks.
    pub(crate) fn write(&self, note: &Note) -> Result<()> {
        let path = self.note_path(&note.id);
        let staged = path.with_extension("new");
        let text = serde_json::to_vec_pretty(note)?;
        fs::write(&staged, text)
            .and_then(|()| fs::rename(&staged, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Stores a workload as it was submitted; returns its path. Blocks.
    pub(crate) fn keep_workload(&self, id: &str, file_name: &str, text: &str) -> Result<PathBuf> {
        let folder = self.notes.join(id);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        let path = folder.join(file_name);
        // It may contain keys.
        let mut options = fs::OpenOptions::new();
        let mut file = options
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        std::io::Write::write_all(&mut file, text.as_bytes())?;
        Ok(path)
    }

    /// The workload of a run started by the console. Blocks.
    pub(crate) fn workload(&self, id: &str) -> Option<String> {
        let note = self.note(id)?;
        read_bounded(&self.notes.join(id).join(note.file_name))
            .and_then(|b| String::from_utf8(b).ok())
    }

    fn note(&self, id: &str) -> Option<Note> {
        serde_json::from_slice(&read_bounded(&self.note_path(id))?).ok()
    }

    fn notes(&self) -> Vec<Note> {
        let entries = fs::read_dir(&self.notes).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let id = name.strip_suffix(".json")?;
                self.note(id)
                    .filter(|note| note.id == id && History::is_id(id))
            })
            .collect()
    }

    /// One run, started by the console or found in the folder. Blocks.
    pub(crate) fn entry(&self, id: &str) -> Option<Entry> {
        let run = self.run_meta(id);
        let note = match self.note(id) {
            Some(note) => note,
            None => self.found(id, run.as_ref()?)?,
        };
        let headline = note.state.is_over().then(|| self.headline(id)).flatten();
        Some(Entry {
            note,
            run,
            headline,
        })
    }

    /// All runs, newest first. Blocks.
    pub(crate) fn list(&self) -> Vec<Entry> {
        let mut ids: BTreeSet<String> = self.notes().into_iter().map(|note| note.id).collect();
        let folders = fs::read_dir(&self.runs).into_iter().flatten().flatten();
        ids.extend(folders.filter_map(|entry| entry.file_name().into_string().ok()));
        let ids = ids.iter().filter(|id| History::is_id(id));
        let mut entries: Vec<Entry> = ids.filter_map(|id| self.entry(id)).collect();
        entries.sort_by(|a, b| (b.note.submitted, &b.note.id).cmp(&(a.note.submitted, &a.note.id)));
        entries.truncate(RUNS_MAX);
        entries
    }

    /// A record for a run folder that the console did not make.
    fn found(&self, id: &str, run: &RunMeta) -> Option<Note> {
        let state = match run.state {
            record::State::Completed => State::Done,
            record::State::Failed => State::Failed,
            record::State::Cancelled => State::Cancelled,
            record::State::Running if self.is_quiet(id) => State::Interrupted,
            record::State::Running => State::Running,
        };
        let seconds = |at: f64| (at * 1000.0) as u64;
        Some(Note {
            id: id.into(),
            name: if run.name.is_empty() {
                id.into()
            } else {
                run.name.clone()
            },
            file_name: String::new(),
            target: run.target.clone(),
            state,
            submitted: seconds(run.started),
            started: Some(seconds(run.started)),
            ended: run.ended.map(seconds),
            message: (!run.message.is_empty()).then(|| run.message.clone()),
        })
    }

    fn is_quiet(&self, id: &str) -> bool {
        let folder = RunFolder::new(self.folder(id));
        [
            folder.run(),
            folder.timeline(),
            folder.resources(),
            folder.stages(),
        ]
        .iter()
        .filter_map(|path| stamp_of(path)?.0?.elapsed().ok())
        .all(|age| age > SILENCE_MAX)
    }

    pub(crate) fn run_meta(&self, id: &str) -> Option<RunMeta> {
        serde_json::from_slice(&read_bounded(&RunFolder::new(self.folder(id)).run())?).ok()
    }

    /// The summary of a run's figures, re-read if its file has changed.
    fn headline(&self, id: &str) -> Option<Headline> {
        let path = RunFolder::new(self.folder(id)).stages();
        let stamp = stamp_of(&path)?;
        if let Some((known, headline)) = self.read.lock().get(id)
            && *known == stamp
        {
            return headline.clone();
        }
        let headline = figures::read(&path)
            .ok()
            .map(|stages| figures::headline(&stages));
        let mut read = self.read.lock();
        if read.len() >= RUNS_MAX {
            read.clear();
        }
        read.insert(id.to_owned(), (stamp, headline.clone()));
        headline
    }

    /// Gives a finished run another name, and these tags. Blocks.
    ///
    /// # Errors
    /// Its record cannot be written; tags of a run that left no folder, or too many.
    pub(crate) fn rename(&self, id: &str, name: &str, tags: Vec<String>) -> Result<()> {
        let folder = self.folder(id);
        let has_record = RunFolder::new(&folder).run().exists();
        if has_record {
            rename::rename(&folder, Some(name), |old| *old = tags)?;
        } else if !tags.is_empty() {
            anyhow::bail!("this run never began: it has no results that tags could tell apart");
        }
        let Some(mut note) = self.note(id) else {
            return Ok(());
        };
        name.clone_into(&mut note.name);
        self.write(&note)
    }

    /// Removes a finished run with its folder. Blocks.
    pub(crate) fn remove(&self, id: &str) -> Result<()> {
        let there = |result: std::io::Result<()>| match result {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        let folder = self.folder(id);
        there(fs::remove_dir_all(&folder))
            .and_then(|()| there(fs::remove_dir_all(self.notes.join(id))))
            .and_then(|()| there(fs::remove_file(self.note_path(id))))
            .with_context(|| format!("cannot remove {}", folder.display()))
    }
}

pub(crate) fn stamp_of(path: &Path) -> Option<Stamp> {
    let meta = path.metadata().ok()?;
    Some((meta.modified().ok(), meta.len()))
}

fn read_bounded(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path).ok()?;
    file.take(NOTE_MAX_BYTES + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= NOTE_MAX_BYTES).then_some(bytes)
}

pub(crate) fn now() -> u64 {
    millis(SystemTime::now())
}

fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Formats a time as `20261122-013005`, UTC.
fn stamp(millis: u64) -> String {
    let seconds = millis / 1000;
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = calendar::date_of(days as i64);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn note(id: &str, state: State) -> Note {
        Note {
            id: id.into(),
            name: "n".into(),
            file_name: "w.xml".into(),
            target: "t".into(),
            state,
            submitted: 1,
            started: None,
            ended: None,
            message: None,
        }
    }

    #[test]
    fn dates() {
        assert_eq!(stamp(0), "19700101-000000");
        assert_eq!(stamp(951_782_400_000), "20000229-000000");
        assert_eq!(stamp(1_795_311_005_000), "20261122-013005");
    }

    #[test]
    fn runs_of_the_console_and_found_ones() {
        let dir = tempfile::tempdir().unwrap();
        let history = History::open(dir.path()).unwrap();
        history.write(&note("a", State::Running)).unwrap();
        history.write(&note("b", State::Done)).unwrap();
        history.keep_workload("b", "w.xml", "<workload/>").unwrap();
        fs::create_dir(dir.path().join("by-hand")).unwrap();
        let run = r#"{"state":"completed","name":"by hand","started":2.0}"#;
        fs::write(dir.path().join("by-hand/run.json"), run).unwrap();
        fs::create_dir(dir.path().join("no-run")).unwrap();

        let history = History::open(dir.path()).unwrap();
        let runs = history.list();
        let states: Vec<_> = runs.iter().map(|e| (&*e.note.id, e.note.state)).collect();
        assert_eq!(
            states,
            [
                ("by-hand", State::Done),
                ("b", State::Done),
                ("a", State::Interrupted)
            ]
        );
        assert_eq!(runs[0].note.name, "by hand");
        assert_eq!(history.workload("b").as_deref(), Some("<workload/>"));
        history.remove("b").unwrap();
        assert!(history.entry("b").is_none());
    }

    #[test]
    fn names() {
        let dir = tempfile::tempdir().unwrap();
        let history = History::open(dir.path()).unwrap();
        let id = history.new_id("4 KB, 80/20 — Reads!");
        assert!(
            id.ends_with("-4-kb-80-20-reads") && History::is_id(&id),
            "{id}"
        );
        for bad in ["", ".", "..", ".console", "a/b", "a b", "ü"] {
            assert!(!History::is_id(bad), "{bad}");
        }
    }
}
