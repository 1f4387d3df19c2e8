//! One stage on all drivers: started simultaneously, merged as they report, and evaluated.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::collect::Collector;
use super::link::DriverMessage;
use super::{Conductor, Progress, RunError};
use crate::drive::{Event, now};
use crate::plan::Stage;
use crate::record::{Loss, StageResult, State};

/// Seconds after which a sample no longer waits for a late driver; drivers report every second.
const LATE_SECONDS: f64 = 2.5;
/// Seconds between the start command and the start: time for the command to reach all drivers.
const HEADSTART_LOCAL: f64 = 0.02;
const HEADSTART_REMOTE: f64 = 1.0;

struct Under<'a> {
    stage: &'a Stage,
    result: StageResult,
    collectors: Vec<Collector>,
    pending: BTreeSet<usize>,
    errors: BTreeSet<String>,
    /// Messages about drivers lost during the stage.
    losses: Vec<String>,
    /// At least one driver could use the store, or failed for another reason.
    has_begun: bool,
    cancelled: bool,
}

impl Conductor<'_> {
    /// Runs `stage` and records its result.
    pub(super) fn run_stage(
        &mut self,
        number: u32,
        stage: &Stage,
    ) -> Result<StageResult, RunError> {
        let count = self.plan.stages.len() as u32;
        let (name, workers) = (
            stage.name.clone(),
            stage.works.iter().map(|w| w.workers).sum(),
        );
        (self.observer)(&Progress::StageStarted {
            number,
            count,
            name,
            workers,
        });
        let started = now();
        let mut under = Under {
            stage,
            result: StageResult {
                number,
                name: stage.name.clone(),
                started,
                swept: stage.swept.clone(),
                ..StageResult::default()
            },
            collectors: Vec::new(),
            pending: BTreeSet::new(),
            errors: BTreeSet::new(),
            losses: Vec::new(),
            has_begun: false,
            cancelled: false,
        };
        let without = self.lost_drivers();
        under.note("waiting");
        self.trigger(stage, true)?;
        under.note("authing");
        let remote = self.links.len() > 1 || self.links.iter().any(|l| l.meta().address != "local");
        let begin_at = now()
            + if remote {
                HEADSTART_REMOTE
            } else {
                HEADSTART_LOCAL
            };
        for (index, link) in self.links.iter_mut().enumerate() {
            if self.meta.drivers[index].lost.is_some() {
                continue;
            }
            match link.start(number, stage, begin_at) {
                Ok(()) => drop(under.pending.insert(index)),
                Err(error) => {
                    under.has_begun = true;
                    under.errors.insert(error);
                }
            }
        }
        under.note("running");
        under.collectors = stage
            .works
            .iter()
            .map(|work| Collector::new(&stage.name, work, begin_at))
            .collect();
        while !under.pending.is_empty() {
            self.step(&mut under)?;
        }
        under.note("closing");
        self.trigger(stage, false)?;
        let result = self.judge(under, without)?;
        for (planned, work) in stage.works.iter().zip(&result.works) {
            let drained = (result.state == State::Completed)
                .then(|| crate::drained::words(planned, work))
                .flatten();
            for words in crate::omission::words(work).into_iter().chain(drained) {
                let (stage, work) = (&result.name, &work.name);
                self.add_note(format!("stage {stage}, work {work}: {words}"))?;
            }
        }
        self.save_pools(number, result.state == State::Cancelled)?;
        self.writer.stage(result.clone())?;
        (self.observer)(&Progress::StageEnded(Box::new(result.clone())));
        Ok(result)
    }

    /// Handles one report, or a timeout without one.
    fn step(&mut self, under: &mut Under<'_>) -> Result<(), RunError> {
        if self.cancel.load(Ordering::Relaxed) && !under.cancelled {
            under.cancelled = true;
            self.links.iter_mut().for_each(|link| link.cancel());
        }
        match self.reports.recv_timeout(Duration::from_millis(200)) {
            Ok((driver, DriverMessage::Lost(reason))) => self.lose(under, driver, reason)?,
            Ok((driver, DriverMessage::Event(event))) => self.take(under, driver, event)?,
            Err(_) => {}
        }
        let alive = under.pending.len();
        for index in 0..under.collectors.len() {
            let collector = &mut under.collectors[index];
            let age = collector.live_age(now());
            let reported = collector.reported();
            if reported > 0 && (reported >= alive || age > LATE_SECONDS) && age > 0.05 {
                self.emit(under, index, false)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, under: &mut Under<'_>, driver: usize, event: Event) -> Result<(), RunError> {
        match event {
            Event::Target {
                description,
                server,
            } => {
                self.reached = true;
                if self.meta.target != description && !self.meta.target.contains(&description) {
                    if !self.meta.target.is_empty() {
                        self.meta.target.push_str("; ");
                    }
                    self.meta.target.push_str(&description);
                }
                if self.meta.server.is_empty() {
                    self.meta.server = server;
                }
                self.writer.meta(&self.meta)?;
            }
            Event::Snapshot(snapshot) => {
                let index = snapshot.work as usize;
                if let Some(collector) = under.collectors.get_mut(index) {
                    collector.take(driver, snapshot);
                }
            }
            Event::WorkDone { work, seconds } => {
                if let Some(collector) = under.collectors.get_mut(work as usize) {
                    collector.done(seconds);
                }
            }
            Event::StageDone { error, unusable } => {
                under.pending.remove(&driver);
                under.has_begun |= !unusable;
                under.errors.extend(error);
            }
            Event::Note(note) => self.add_note(note)?,
            Event::Resources(mut sample) => {
                sample.stage.clone_from(&under.stage.name);
                sample.host.clone_from(&self.meta.drivers[driver].host.name);
                self.writer.resource(&sample)?;
                (self.observer)(&Progress::Resources(Box::new(sample)));
            }
        }
        Ok(())
    }

    fn lose(
        &mut self,
        under: &mut Under<'_>,
        driver: usize,
        reason: String,
    ) -> Result<(), RunError> {
        let was_pending = under.pending.remove(&driver);
        let meta = &mut self.meta.drivers[driver];
        if meta.lost.is_some() {
            return Ok(());
        }
        let note = format!(
            "driver {} was lost in stage {}: {reason}; what it had reported counts, and the \
             others went on",
            meta.name, under.stage.name
        );
        let (at, name) = (now(), meta.name.clone());
        meta.lost = Some(Loss {
            at,
            reason: reason.clone(),
        });
        if was_pending {
            under.note(&format!("driver {name} lost"));
            under.losses.push(format!(
                "driver {name} was lost {:.1} s into the stage ({reason}): the load was less from \
                 then on, and rates are averages over both",
                at - under.result.started
            ));
            let collectors = under.collectors.iter_mut();
            collectors.for_each(Collector::lost_driver);
        }
        self.add_note(note)
    }

    fn emit(&mut self, under: &mut Under<'_>, index: usize, last: bool) -> Result<(), RunError> {
        let now = now();
        let collector = &mut under.collectors[index];
        let live = collector.live_sample(now);
        let interval = collector.interval_sample(now, last);
        let steady = collector.has_become_steady(now);
        (self.observer)(&Progress::Sample(Box::new(live)));
        if let Some(sample) = interval {
            self.writer.sample(&sample)?;
        }
        if steady {
            self.links
                .iter_mut()
                .for_each(|link| link.end_work(index as u32));
        }
        Ok(())
    }

    /// Names of lost drivers for a stage's message; empty if there are none.
    pub(super) fn lost_drivers(&self) -> String {
        let lost = self.meta.drivers.iter().filter(|d| d.lost.is_some());
        let names: Vec<&str> = lost.map(|driver| driver.name.as_str()).collect();
        names.join(", ")
    }

    fn judge(&mut self, mut under: Under<'_>, without: String) -> Result<StageResult, RunError> {
        for index in 0..under.collectors.len() {
            if under.collectors[index].reported() > 0 {
                self.emit(&mut under, index, true)?;
            } else if let Some(sample) = under.collectors[index].interval_sample(now(), true) {
                self.writer.sample(&sample)?;
            }
        }
        let failures: Vec<String> = under
            .collectors
            .iter()
            .filter_map(Collector::too_many_failures)
            .collect();
        let all_lost = self.meta.drivers.iter().all(|driver| driver.lost.is_some());
        let rates = under
            .collectors
            .iter()
            .filter_map(Collector::rates_beside_loss);
        under.losses.extend(rates);
        if !without.is_empty() && !all_lost {
            under.losses.push(without_words(&without));
        }
        let messages: Vec<String> = under
            .errors
            .iter()
            .cloned()
            .chain(under.losses.drain(..))
            .chain(failures)
            .chain(all_lost.then(|| "all drivers were lost".to_owned()))
            .collect();
        under.result.state = match (under.cancelled, messages.is_empty()) {
            (true, _) => State::Cancelled,
            (false, true) => State::Completed,
            (false, false) => State::Failed,
        };
        under.result.message = messages.join("; ");
        if !under.has_begun && !under.errors.is_empty() && !under.cancelled && !all_lost {
            self.unusable = Some(under.result.message.clone());
        }
        under.note(match under.result.state {
            State::Cancelled => "cancelled",
            State::Failed => "failed",
            _ => "completed",
        });
        under.result.ended = now();
        under.result.works = under
            .collectors
            .into_iter()
            .map(Collector::result)
            .collect();
        Ok(under.result)
    }
}

/// The message of a stage that began after drivers were lost.
pub(super) fn without_words(drivers: &str) -> String {
    format!("it ran without the load of {drivers}, lost before")
}

impl Under<'_> {
    fn note(&mut self, what: &str) {
        let what = what.to_owned();
        self.result
            .history
            .push(crate::record::Event { at: now(), what });
    }
}
