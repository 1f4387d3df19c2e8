//! The controller: executes a plan's stages on one or many drivers, and writes results to the run's
//! folder. If a driver is lost, that is recorded, and the others continue.

mod collect;
mod knee;
mod link;
mod remote;
mod serve;
mod stage_run;
mod wire;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use thiserror::Error;

pub use self::link::{DriverMessage, Link, LocalLink, Report};
pub use self::remote::{Briefing, ReachError, RemoteLink, reach};
pub use self::serve::{serve, serve_once};
use crate::drive::now;
use crate::plan::{Objects, Plan, Stage, WorkKind};
use crate::record::{ResourceSample, RunMeta, Sample, StageResult, State};
use crate::results::{RunWriter, WriteError};

/// Progress events of a run.
#[derive(Debug, Clone, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    /// The run's folder has been created.
    Started {
        meta: Box<RunMeta>,
        folder: std::path::PathBuf,
    },
    StageStarted {
        number: u32,
        count: u32,
        name: String,
        workers: u32,
    },
    /// Sent about every second.
    Sample(Box<Sample>),
    Resources(Box<ResourceSample>),
    StageEnded(Box<StageResult>),
    Note(String),
    Finished(Box<RunMeta>),
}

/// Reasons why a run could not continue. (A failure of the store is a result, not an error.)
#[derive(Debug, Error)]
pub enum RunError {
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// State of a run: plan, drivers, folder, and progress receiver.
pub struct Conductor<'a> {
    pub plan: Plan,
    pub meta: RunMeta,
    pub writer: RunWriter,
    pub links: Vec<Box<dyn Link>>,
    pub reports: mpsc::Receiver<Report>,
    pub cancel: Arc<AtomicBool>,
    /// Execute the programs that triggers name.
    pub allow_programs: bool,
    pub observer: &'a mut dyn FnMut(&Progress),
    /// Number of stages at the plan's beginning that an earlier part of the run has finished.
    pub finished: usize,
    /// A driver has reached a store.
    pub reached: bool,
    /// The reason why the store cannot be used, set by a stage that no driver could begin.
    pub unusable: Option<String>,
}

impl Conductor<'_> {
    /// Executes all stages. If preparation fails, measuring stages are skipped and cleanup stages
    /// still run. A store that is unreachable from the start is tried and reported once; one that
    /// becomes unreachable is tried once more, for cleanup.
    ///
    /// # Errors
    /// `Write` if a file of the run's folder cannot be written. A failure of the store is a result.
    pub fn run(mut self) -> Result<RunMeta, RunError> {
        let folder = self.writer.folder().root().to_owned();
        self.meta.drivers = self.links.iter().map(|link| link.meta()).collect();
        self.writer.meta(&self.meta)?;
        (self.observer)(&Progress::Started {
            meta: Box::new(self.meta.clone()),
            folder,
        });
        let stages = self.plan.stages.clone();
        let mut unprepared: Option<String> = None;
        let mut left_out = Vec::new();
        let failed = self.writer.stages().iter();
        let failed = failed.filter(|stage| stage.state == State::Failed);
        let mut messages: Vec<String> = failed
            .map(|stage| format!("stage {}: {}", stage.name, stage.message))
            .collect();
        let mut gone = false;
        let mut reduced = Vec::new();
        for (index, stage) in stages.iter().enumerate().skip(self.finished) {
            if self.cancel.load(Ordering::Relaxed) {
                break;
            }
            if self.meta.drivers.iter().all(|driver| driver.lost.is_some()) {
                messages.push("all drivers were lost".to_owned());
                break;
            }
            let cleans = |kind| matches!(kind, WorkKind::Cleanup | WorkKind::Dispose);
            let only_cleans = stage.works.iter().all(|work| cleans(work.kind));
            if let (Some(failed), false) = (&unprepared, only_cleans) {
                left_out.push(format!("{} (since {failed} failed)", stage.name));
                continue;
            }
            let result = self.run_one(index as u32 + 1, stage)?;
            if let Some(error) = self.unusable.take() {
                if !self.reached {
                    messages.push(error);
                    break;
                }
                if std::mem::replace(&mut gone, true) {
                    break;
                }
            }
            let lost = self.lost_drivers();
            if !lost.is_empty() && result.message == stage_run::without_words(&lost) {
                // Reported once: a study has hundreds of stages.
                reduced.push(result.name);
            } else if result.state == State::Failed {
                messages.push(format!("stage {}: {}", result.name, result.message));
                let prepares = |kind| matches!(kind, WorkKind::Init | WorkKind::Prepare);
                let unusable = result.works.iter().all(|work| work.operations.is_empty());
                if unusable || stage.works.iter().any(|work| prepares(work.kind)) {
                    unprepared = Some(result.name);
                }
            }
        }
        if let [first, more @ ..] = &reduced[..] {
            let more = match more.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let lost = self.lost_drivers();
            messages.push(format!(
                "stage {first}{more} ran without the load of {lost}"
            ));
        }
        self.note_left_out(&left_out)?;
        self.finish(messages)
    }

    fn note_left_out(&mut self, stages: &[String]) -> Result<(), RunError> {
        const NAMED: usize = 3;
        if stages.is_empty() {
            return Ok(());
        }
        let named = stages.iter().take(NAMED).cloned().collect::<Vec<_>>();
        let more = match stages.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let note = format!("left out: {}{more}", named.join(", "));
        self.add_note(note)
    }

    fn run_one(&mut self, number: u32, stage: &Stage) -> Result<StageResult, RunError> {
        match stage.works.iter().position(|work| work.knee.is_some()) {
            Some(work) => self.find_knee(number, stage, work),
            None => self.run_stage(number, stage),
        }
    }

    /// Notes what is in the pools, if a later stage, or this one again, needs them.
    fn save_pools(&self, number: u32, again: bool) -> Result<(), RunError> {
        let from = number as usize - usize::from(again);
        let stages = self.plan.stages.iter().skip(from);
        let mut operations = stages
            .flat_map(|stage| &stage.works)
            .flat_map(|work| &work.operations);
        let uses = |objects: &Objects| matches!(objects, Objects::Pool { .. });
        if operations.any(|operation| uses(&operation.objects)) {
            // With several drivers each has its own, elsewhere.
            let pools = match &self.links[..] {
                [link] => link.pools(number),
                _ => None,
            };
            self.writer.pools(pools.as_ref())?;
        }
        Ok(())
    }

    fn finish(mut self, messages: Vec<String>) -> Result<RunMeta, RunError> {
        self.meta.state = match (self.cancel.load(Ordering::Relaxed), messages.is_empty()) {
            (true, _) => State::Cancelled,
            (false, true) => State::Completed,
            (false, false) => State::Failed,
        };
        self.meta.message = messages.join("; ");
        self.meta.ended = Some(now());
        self.writer.meta(&self.meta)?;
        (self.observer)(&Progress::Finished(Box::new(self.meta.clone())));
        Ok(self.meta)
    }

    fn add_note(&mut self, note: String) -> Result<(), RunError> {
        if !self.meta.notes.contains(&note) {
            (self.observer)(&Progress::Note(note.clone()));
            self.meta.notes.push(note);
            self.writer.meta(&self.meta)?;
        }
        Ok(())
    }

    /// Executes a stage's trigger before and after it, with `enableTrigger` or `killTrigger` as the
    /// first argument, as COSBench's scripts expect.
    fn trigger(&mut self, stage: &Stage, before: bool) -> Result<(), RunError> {
        let Some(trigger) = &stage.trigger else {
            return Ok(());
        };
        if !self.allow_programs {
            let command = &trigger.command;
            return self.add_note(format!(
                "the trigger {command:?} was passed over; --allow-programs runs it"
            ));
        }
        let word = if before {
            "enableTrigger"
        } else {
            "killTrigger"
        };
        let status = std::process::Command::new(&trigger.command)
            .arg(word)
            .args(&trigger.arguments)
            .stdin(std::process::Stdio::null())
            .status();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => {
                self.add_note(format!("the trigger {:?} ended: {status}", trigger.command))
            }
            Err(error) => self.add_note(format!("the trigger {:?}: {error}", trigger.command)),
        }
    }
}
