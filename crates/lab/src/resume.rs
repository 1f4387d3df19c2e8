//! A run that was killed or cancelled goes on: which of its stages have finished, what the others
//! need, and why it may not be possible.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::drive::now;
use crate::plan::{Access, Objects, OperationKind, Plan, Stage, WorkKind};
use crate::record::{Resumption, RunFolder, RunMeta, SavedPools, StageResult, State};
use crate::results::{
    HIDDEN, ReadError, Recorded, RunWriter, WriteError, date_time, lock, read_folder,
};
use crate::workload::{self, Format, Target, limits};

/// Reasons why a run cannot be resumed.
#[derive(Debug, Error)]
pub enum ResumeError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error("{}: the run has ended ({state}); run its workload anew: cairn lab run {}", path.display(), workload.display())]
    Ended {
        path: PathBuf,
        state: &'static str,
        workload: PathBuf,
    },
    #[error("{}: it has no plan.json; run its workload anew", path.display())]
    NoPlan { path: PathBuf },
    #[error(
        "{}: plan.json is not the plan that was run (its digest is {found}, run.json has \
         {recorded}); run the workload anew", path.display()
    )]
    Changed {
        path: PathBuf,
        found: String,
        recorded: String,
    },
    #[error(
        "{}: stage {behind} has ended, which comes behind {stage}: what was prepared may be \
         cleaned up; run the workload anew", path.display()
    )]
    Behind {
        path: PathBuf,
        stage: String,
        behind: String,
    },
    #[error(
        "{}: stage {stage} takes objects from the pool {pool:?}, and what is in it was kept by \
         drivers that are gone; run the workload anew", path.display()
    )]
    PoolLost {
        path: PathBuf,
        stage: String,
        pool: String,
    },
    #[error(
        "{}: stage {stage} deletes objects of the pool {pool:?}, and which of them it had deleted \
         when it was killed is not known; run the workload anew", path.display()
    )]
    Deleted {
        path: PathBuf,
        stage: String,
        pool: String,
    },
    #[error(
        "the store's {setting} is not kept in a run's folder; give it again: --user, --key or \
         --token (CAIRN_LAB_KEY in the environment), or --auth or --storage {setting}=VALUE"
    )]
    Secret { setting: String },
}

/// A run that can go on.
#[derive(Debug)]
pub struct Resume {
    /// As it was run, without secrets until [`Resume::sign_in`].
    pub plan: Plan,
    /// The record, in which this resumption is noted.
    pub meta: RunMeta,
    pub folder: RunFolder,
    /// Number of the plan's first stages that have finished.
    pub finished: usize,
    /// Objects that those have left, if others need them.
    pub pools: Option<SavedPools>,
    kept: Recorded,
    lock: File,
}

impl Resume {
    /// Reads the run's folder and takes the run for this process. Nothing is changed yet.
    ///
    /// # Errors
    /// Each variant of [`ResumeError`] but `Secret`.
    pub fn open(root: &Path, command: Vec<String>) -> Result<Resume, ResumeError> {
        let folder = RunFolder::new(root);
        // Before it is read, so that no other process writes meanwhile.
        let lock = match folder.run().is_file() {
            true => lock(&folder)?,
            false => {
                return Err(read_folder(root)
                    .err()
                    .map_or_else(no_plan(root), Into::into));
            }
        };
        let mut kept = read_folder(root)?;
        let path = || root.to_owned();
        let plan = kept.plan.clone().ok_or_else(no_plan(root))?;
        let state = match kept.meta.state {
            State::Running | State::Cancelled => kept.meta.state,
            State::Completed => return Err(ended(root, &kept.meta, "completed")),
            State::Failed => return Err(ended(root, &kept.meta, "failed")),
        };
        let (found, recorded) = (crate::compare::plan_digest(&plan), &kept.meta.plan_digest);
        if !recorded.is_empty() && found != *recorded {
            return Err(ResumeError::Changed {
                path: path(),
                found,
                recorded: recorded.clone(),
            });
        }
        let finished = finished(&plan, &kept);
        let first = plan.stages.get(finished);
        let behind = kept.stages.iter().find(|result| {
            result.number as usize > finished + 1 && result.state == State::Completed
        });
        if let (Some(first), Some(behind)) = (first, behind) {
            return Err(ResumeError::Behind {
                path: path(),
                stage: first.name.clone(),
                behind: behind.name.clone(),
            });
        }
        let pools = pools(&folder, &plan, finished, state)?;
        let meta = resumed(&kept, first, command);
        kept.stages
            .retain(|result| result.number as usize <= finished);
        let names: BTreeSet<String> = kept.stages.iter().map(|s| s.name.clone()).collect();
        kept.timeline.retain(|sample| names.contains(&sample.stage));
        kept.resources
            .retain(|sample| names.contains(&sample.stage));
        Ok(Resume {
            plan,
            meta,
            folder,
            finished,
            pools,
            kept,
            lock,
        })
    }

    /// Puts the secrets back that a folder does not keep: those of the command line, and those of
    /// the workload's file if the run had none of the command line before.
    ///
    /// # Errors
    /// `Secret` names a setting that nothing tells.
    pub fn sign_in(&mut self, target: &Target) -> Result<(), ResumeError> {
        const OPTIONS: [&str; 5] = ["--target", "--key", "--token", "--auth", "--storage"];
        let words = self.meta.command.iter();
        let mut own = words.filter(|word| OPTIONS.iter().any(|option| word.starts_with(option)));
        if own.next().is_none()
            && let Some(of_file) = self.plan_of_file()
        {
            reveal(&mut self.plan, &of_file);
        }
        // Without an address there is nothing that it refuses.
        let _ = target.apply(&mut self.plan);
        match hidden(&self.plan) {
            Some(setting) => Err(ResumeError::Secret { setting }),
            None => Ok(()),
        }
    }

    fn plan_of_file(&self) -> Option<Plan> {
        let format = Format::from_name(&self.meta.format)?;
        let file = File::open(self.folder.workload(format.extension())).ok()?;
        let mut bytes = Vec::new();
        let most = limits::FILE_BYTES as u64 + 1;
        file.take(most).read_to_end(&mut bytes).ok()?;
        let options = workload::Options {
            format: Some(format),
            ..workload::Options::default()
        };
        let read = workload::read("workload", &bytes, &options).ok()?;
        Some(read.plan)
    }

    /// Drops what the files tell of stages that are run again, and goes on writing them.
    ///
    /// # Errors
    /// `Io` or `Json` if one of them cannot be written.
    pub fn start(self, meta: &RunMeta) -> Result<RunWriter, WriteError> {
        RunWriter::resume(self.folder, self.lock, meta, &self.kept)
    }
}

fn no_plan(root: &Path) -> impl Fn() -> ResumeError + '_ {
    move || ResumeError::NoPlan {
        path: root.to_owned(),
    }
}

fn ended(root: &Path, meta: &RunMeta, state: &'static str) -> ResumeError {
    let format = Format::from_name(&meta.format).unwrap_or(Format::Lab);
    ResumeError::Ended {
        path: root.to_owned(),
        state,
        workload: RunFolder::new(root).workload(format.extension()),
    }
}

/// Number of the plan's first stages that have finished.
fn finished(plan: &Plan, recorded: &Recorded) -> usize {
    let stages = plan.stages.iter().zip(1..);
    stages
        .take_while(|(stage, number)| is_finished(stage, *number, recorded))
        .count()
}

/// A stage that has completed, or in which more operations failed than it accepts: that is a result
/// as well, but not of one that prepares for others.
fn is_finished(stage: &Stage, number: u32, recorded: &Recorded) -> bool {
    let mut results = recorded.stages.iter().filter(|r| r.number == number);
    let Some(last) = results.next_back() else {
        return false;
    };
    let prepares = |kind| matches!(kind, WorkKind::Init | WorkKind::Prepare);
    let has_failed = last.state == State::Failed
        && !stage.works.iter().any(|work| prepares(work.kind))
        && last.works.iter().any(|work| !work.operations.is_empty());
    let has_knee = stage.works.iter().any(|work| work.knee.is_some());
    match last.state {
        State::Completed if has_knee => {
            let found = [
                format!("knee of stage {}:", stage.name),
                format!("stage {} has no knee:", stage.name),
            ];
            let notes = &recorded.meta.notes;
            let noted = |words: &String| notes.iter().any(|note| note.starts_with(words));
            found.iter().any(noted)
        }
        State::Completed => true,
        _ => has_failed,
    }
}

fn pool_of(objects: &Objects) -> Option<&str> {
    match objects {
        Objects::Pool { pool, .. } => Some(pool),
        Objects::Numbered(_) => None,
    }
}

/// The pools that stages from `finished` on need of those before; `None` if they need none.
fn pools(
    folder: &RunFolder,
    plan: &Plan,
    finished: usize,
    state: State,
) -> Result<Option<SavedPools>, ResumeError> {
    let path = || folder.root().to_owned();
    let (before, behind) = plan.stages.split_at(finished.min(plan.stages.len()));
    let of = |stage: &Stage| -> Vec<(OperationKind, Objects)> {
        let works = stage.works.iter().flat_map(|work| &work.operations);
        works
            .map(|operation| (operation.kind, operation.objects.clone()))
            .collect()
    };
    let filled: Vec<Objects> = before.iter().flat_map(&of).map(|(_, o)| o).collect();
    let filled: BTreeSet<&str> = filled.iter().filter_map(pool_of).collect();
    let mut needed = None;
    for stage in behind {
        for (_, objects) in of(stage) {
            if let Some(pool) = pool_of(&objects).filter(|pool| filled.contains(pool)) {
                needed.get_or_insert((stage.name.clone(), pool.to_owned()));
            }
        }
    }
    let Some((stage, pool)) = needed else {
        return Ok(None);
    };
    let first = &behind[0];
    let is_knee = first.works.iter().any(|work| work.knee.is_some());
    let saved = std::fs::read(folder.pools()).ok();
    let saved = saved.and_then(|text| serde_json::from_slice::<SavedPools>(&text).ok());
    let fits = |saved: &SavedPools| match saved.stage as usize {
        of if of == finished => true,
        // The stage that was cancelled, or the steps of a search that has not ended.
        of => of == finished + 1 && (state == State::Cancelled || is_knee),
    };
    let Some(mut saved) = saved.filter(fits) else {
        let path = path();
        return Err(ResumeError::PoolLost { path, stage, pool });
    };
    for (kind, objects) in of(first) {
        let Objects::Pool { pool, names, .. } = &objects else {
            continue;
        };
        let deletes = matches!(kind, OperationKind::Delete | OperationKind::BulkDelete);
        if deletes && state == State::Running && filled.contains(pool.as_str()) {
            return Err(ResumeError::Deleted {
                path: path(),
                stage: first.name.clone(),
                pool: pool.clone(),
            });
        }
        // Objects that it had prepared are prepared again.
        if let (OperationKind::Prepare, Some(saved)) = (kind, saved.pools.get_mut(pool)) {
            let (low, high) = names.numbers.bounds();
            saved
                .live
                .retain(|(_, object)| !(low..=high).contains(object));
        }
    }
    Ok(Some(saved))
}

/// The record of a run that goes on with `first`.
fn resumed(recorded: &Recorded, first: Option<&Stage>, command: Vec<String>) -> RunMeta {
    let mut meta = recorded.meta.clone();
    let lines = [
        recorded.timeline.last().map(|sample| sample.at),
        recorded.resources.last().map(|sample| sample.at),
        recorded
            .stages
            .last()
            .map(|stage: &StageResult| stage.ended),
        meta.ended,
    ];
    let heard = lines.into_iter().flatten().fold(meta.started, f64::max);
    let part = Resumption {
        at: now(),
        ended: heard,
        before: meta.state,
        stage: first.map(|stage| stage.name.clone()).unwrap_or_default(),
        command,
    };
    meta.notes.retain(|note| !note.starts_with("left out: "));
    meta.notes.push(words(&part, first));
    meta.resumed.push(part);
    meta.state = State::Running;
    meta.message.clear();
    meta.broken.clear();
    meta.ended = None;
    meta
}

/// A sentence about the resumption; what its results mean depends on it.
fn words(part: &Resumption, first: Option<&Stage>) -> String {
    let how = match part.before {
        State::Cancelled => "was cancelled",
        _ => "was killed",
    };
    let (ended, at) = (date_time(part.ended), date_time(part.at));
    let Some(first) = first else {
        return format!("the run {how} at {ended} UTC and resumed at {at} UTC, with no stage left");
    };
    let mut words = format!(
        "the run {how} at {ended} UTC and resumed at {at} UTC with stage {}; results of stages \
         before it are of the time before",
        first.name
    );
    let operations = first.works.iter().flat_map(|work| &work.operations);
    let mut writes = operations.filter(|operation| {
        pool_of(&operation.objects).is_some()
            && matches!(
                operation.kind,
                OperationKind::Write | OperationKind::FileWrite
            )
    });
    if part.before == State::Running && writes.next().is_some() {
        words.push_str(
            "; objects that it had written when it was killed and does not write again are not in \
             its pools, and stay",
        );
    }
    words
}

fn accesses(plan: &mut Plan) -> impl Iterator<Item = &mut Access> {
    let works = plan.stages.iter_mut().flat_map(|stage| &mut stage.works);
    let own = works.filter_map(|work| work.access.as_mut());
    std::iter::once(&mut plan.access).chain(own)
}

/// Replaces what is hidden by what the same store has in `from`.
fn reveal(plan: &mut Plan, from: &Plan) {
    let mut from = from.clone();
    let known: Vec<&mut Access> = accesses(&mut from).collect();
    let mut hidden: Vec<&mut Access> = accesses(plan).collect();
    // Another number of them: a scale or a parameter has made other stages of the file.
    let is_alike = known.len() == hidden.len();
    for (index, access) in hidden.iter_mut().enumerate() {
        let Some(known) = known.get(index).filter(|_| index == 0 || is_alike) else {
            break;
        };
        for (settings, known) in [
            (&mut access.auth, &known.auth),
            (&mut access.storage, &known.storage),
        ] {
            let config = settings.config.iter_mut();
            for (key, value) in config.filter(|(_, value)| *value == HIDDEN) {
                if let Some(known) = known.config.get(key) {
                    value.clone_from(known);
                }
            }
        }
    }
}

/// The name of a setting that is hidden still.
fn hidden(plan: &Plan) -> Option<String> {
    let mut plan = plan.clone();
    accesses(&mut plan).find_map(|access| {
        let both = access.auth.config.iter().chain(&access.storage.config);
        let mut hidden = both.filter(|(_, value)| *value == HIDDEN);
        hidden.next().map(|(key, _)| key.clone())
    })
}
