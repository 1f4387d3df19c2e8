//! Execution of one stage in this process: its works run concurrently on threads and report their
//! statistics.
//!
//! A target that blocks its thread while it waits gets one thread per worker; others share as many
//! threads as there are cores.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;

use super::draw::{Drawer, Sequences, Share};
use super::pace::Schedule;
use super::pool::Pools;
use super::recorder::{Recorder, merge};
use super::worker::{Clock, Shared, Worker, local_files};
use crate::plan::{Access, Pacing, Stage, Work, WorkKind};
use crate::record::{OperationResult, Phase};
use crate::rng::Rng;
use crate::target::{Target, TargetOptions};

/// Maximum number of threads, for targets with one per worker.
const THREADS_MAX: u32 = 4096;
/// Maximum interval of collecting the threads' statistics.
const COLLECT_INTERVAL: Duration = Duration::from_secs(1);

/// Events that a driver reports during a stage.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The store as this driver reached it: description, `Server` header.
    Target {
        description: String,
        server: String,
    },
    Snapshot(Snapshot),
    /// A work has ended here; with its counted time in seconds.
    WorkDone {
        work: u32,
        seconds: f64,
    },
    /// All works have ended, or none could be started.
    StageDone {
        error: Option<String>,
        /// The store cannot be used at all; no work has started.
        #[serde(default)]
        unusable: bool,
    },
    Note(String),
    Resources(crate::record::ResourceSample),
}

/// Statistics of a work since the last snapshot.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Snapshot {
    /// Index of the work in the stage.
    pub work: u32,
    pub phase: Phase,
    /// Progress, 0 to 1.
    pub progress: f64,
    pub left: Option<f64>,
    pub counted: Vec<OperationResult>,
    pub uncounted: Vec<OperationResult>,
}

/// Handle to end a stage, or a work of it, from outside.
#[derive(Debug)]
pub struct Control {
    cancelled: watch::Sender<bool>,
    ended: Mutex<Vec<u32>>,
}

impl Default for Control {
    fn default() -> Self {
        Self {
            cancelled: watch::Sender::new(false),
            ended: Mutex::default(),
        }
    }
}

impl Control {
    /// Drops all requests in progress.
    pub fn cancel(&self) {
        self.cancelled.send_replace(true);
    }

    pub fn is_cancelled(&self) -> bool {
        *self.cancelled.borrow()
    }

    /// Ends a work after its requests in progress.
    pub fn end_work(&self, work: u32) {
        self.ended.lock().push(work);
    }

    fn is_ended(&self, work: u32) -> bool {
        self.ended.lock().contains(&work)
    }
}

/// State that is kept from stage to stage.
#[derive(Debug, Clone)]
pub struct Driver {
    pub name: String,
    pub share: Share,
    pub seed: u64,
    pub access: Access,
    pub options: TargetOptions,
    pub threads: u32,
    pub pools: Arc<Pools>,
}

/// Number of threads: the cores that this process may use.
pub fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32)
}

/// Seconds since 1970.
pub fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |age| age.as_secs_f64())
}

/// Reasons why a stage did not run.
enum NotRun {
    Store(crate::target::TargetError),
    Work(String),
}

struct Running {
    index: u32,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    finished: Arc<AtomicU64>,
    total: Option<u64>,
    done: bool,
}

impl Driver {
    /// Runs stage number `number`, starting at `begin_at` (seconds since 1970; at once if that is
    /// past). Returns when it has ended; all events have been passed to `tell` by then.
    pub fn run_stage(
        &self,
        number: u32,
        stage: &Stage,
        begin_at: f64,
        control: &Control,
        tell: &mut dyn FnMut(Event),
    ) {
        let done = match self.try_stage(number, stage, begin_at, control, tell) {
            Ok(()) => (None, false),
            Err(NotRun::Store(error)) => (Some(error.to_string()), true),
            Err(NotRun::Work(error)) => (Some(error), false),
        };
        let (error, unusable) = done;
        tell(Event::StageDone { error, unusable });
    }

    fn try_stage(
        &self,
        number: u32,
        stage: &Stage,
        begin_at: f64,
        control: &Control,
        tell: &mut dyn FnMut(Event),
    ) -> Result<(), NotRun> {
        let mut opened: Vec<(Access, Target)> = Vec::new();
        let mut running = Vec::new();
        let mine = |work: &Work| work.driver.as_ref().is_none_or(|name| *name == self.name);
        let mut targets = Vec::new();
        for (index, work) in stage
            .works
            .iter()
            .enumerate()
            .filter(|(_, work)| mine(work))
        {
            let access = work.access.as_ref().unwrap_or(&self.access);
            let known = opened.iter().find(|(known, _)| known == access);
            let target = match known {
                Some((_, target)) => target.clone(),
                None if work.kind == WorkKind::Delay => Target::noop(),
                None => {
                    let target = self.open(access).map_err(NotRun::Store)?;
                    let (description, server) = (target.describe(), target.server());
                    tell(Event::Target {
                        description,
                        server,
                    });
                    opened.push((access.clone(), target.clone()));
                    target
                }
            };
            target.check(work).map_err(NotRun::Store)?;
            targets.push((index as u32, work, target));
        }
        let wait = Duration::try_from_secs_f64(begin_at - now()).unwrap_or_default();
        let begin = Instant::now() + wait;
        for (index, work, target) in targets {
            let clock = Clock::new(work, begin, now() + wait.as_secs_f64());
            let started = self.start(number, index, work, target, clock, control);
            running.push(started.map_err(NotRun::Work)?);
        }
        let tick = stage
            .works
            .iter()
            .map(|work| work.interval)
            .min()
            .unwrap_or(COLLECT_INTERVAL);
        watch_over(
            &mut running,
            tick.clamp(Duration::from_millis(100), COLLECT_INTERVAL),
            control,
            tell,
        );
        if !control.is_cancelled() {
            pause(stage.close_delay, control);
        }
        Ok(())
    }

    fn open(&self, access: &Access) -> Result<Target, crate::target::TargetError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| crate::target::TargetError::Other(error.to_string()))?;
        runtime.block_on(Target::open(access, &self.options))
    }

    fn start(
        &self,
        number: u32,
        index: u32,
        work: &Work,
        target: Target,
        clock: Clock,
        control: &Control,
    ) -> Result<Running, String> {
        let work = Arc::new(work.clone());
        let share = if work.driver.is_some() {
            Share::WHOLE
        } else {
            self.share
        };
        let (first, count) = share.of(u64::from(work.workers));
        let (first, count) = (first as u32, count as u32);
        let threads = match target.blocks() {
            true if count > THREADS_MAX => {
                return Err(format!(
                    "work {}: {count} workers on one host need as many threads; at most \
                     {THREADS_MAX}: use more drivers",
                    work.name
                ));
            }
            true => count,
            false => count.min(self.threads),
        };
        let recorders = threads.min(self.threads.max(1));
        let mut mix = Rng::fork(self.seed, u64::from(number));
        let seed = Rng::fork(mix.next_u64(), u64::from(index)).next_u64();
        let files = work.operations.iter().map(|operation| {
            local_files(operation).map_err(|error| {
                let folder = operation.files.as_deref().unwrap_or_default();
                format!(
                    "work {}: the files of {folder:?} cannot be listed: {error}",
                    work.name
                )
            })
        });
        let shared = Arc::new(Shared {
            target,
            share,
            seed,
            driver: self.name.clone(),
            clock,
            stop: AtomicBool::new(false),
            recorders: (0..recorders)
                .map(|_| Mutex::new(Recorder::new(&work.operations)))
                .collect(),
            schedule: schedule(&work, share, seed),
            sequences: Arc::new(Sequences::new(work.operations.len(), share)),
            pools: self.pools.clone(),
            files: files.collect::<Result<_, _>>()?,
            last_end_ns: AtomicU64::new(0),
            work: work.clone(),
        });
        let finished = Arc::new(AtomicU64::new(0));
        let mut handles = Vec::new();
        for thread in 0..threads {
            let workers: Vec<Worker> = (first..first + count)
                .filter(|id| (id - first) % threads == thread)
                .map(|id| Worker::new(&shared, id, (thread % recorders) as usize))
                .collect();
            let cancelled = control.cancelled.subscribe();
            let finished = finished.clone();
            let handle = std::thread::Builder::new()
                .name(format!("work-{index}-{thread}"))
                .stack_size(512 * 1024)
                .spawn(move || {
                    run_workers(workers, cancelled);
                    finished.fetch_add(1, Ordering::Release);
                })
                .map_err(|error| format!("work {}: no thread to be had: {error}", work.name))?;
            handles.push(handle);
        }
        Ok(Running {
            index,
            shared,
            threads: handles,
            finished,
            total: total_operations(&work).map(|total| share.of(total).1),
            done: false,
        })
    }
}

/// When this driver's operations of an open work begin; `None` of a closed one.
fn schedule(work: &Work, share: Share, seed: u64) -> Option<Schedule> {
    match work.pacing {
        Pacing::Open { rate, arrivals } if work.kind == WorkKind::Main => {
            let drivers = f64::from(share.drivers);
            let phase = f64::from(share.driver) / drivers;
            let of_driver = Rng::fork(seed, u64::from(share.driver) + 1).next_u64();
            Some(Schedule::new(rate / drivers, arrivals, phase, of_driver))
        }
        _ => None,
    }
}

/// Number of operations of a work over all drivers, if it is bounded.
fn total_operations(work: &Work) -> Option<u64> {
    match work.kind {
        WorkKind::Main | WorkKind::Delay => work.total_ops,
        _ => {
            let sum = Drawer::special_total(work)
                .into_iter()
                .reduce(u64::saturating_add);
            sum.filter(|&sum| sum < u64::MAX)
        }
    }
}

fn run_workers(workers: Vec<Worker>, mut cancelled: watch::Receiver<bool>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let Ok(runtime) = runtime else { return };
    runtime.block_on(async move {
        let tasks: Vec<_> = workers
            .into_iter()
            .map(|worker| tokio::spawn(worker.run()))
            .collect();
        let all = async {
            for task in tasks {
                // A task that panicked has ended too.
                let _ = task.await;
            }
        };
        tokio::select! {
            () = all => {}
            _ = cancelled.wait_for(|cancelled| *cancelled) => {}
        }
    });
}

fn pause(time: Duration, control: &Control) {
    let until = Instant::now() + time;
    while Instant::now() < until && !control.is_cancelled() {
        std::thread::sleep((until - Instant::now()).min(Duration::from_millis(50)));
    }
}

/// Time for threads that wait for a store to notice a cancellation. Then they are abandoned: a call
/// of a file system or of librados cannot be interrupted, only its own timeout ends it.
const CANCEL_GRACE: Duration = Duration::from_secs(2);

/// Collects statistics from the threads on every tick until all works have ended.
fn watch_over(
    running: &mut [Running],
    tick: Duration,
    control: &Control,
    tell: &mut dyn FnMut(Event),
) {
    let mut next = Instant::now() + tick;
    let mut give_up: Option<Instant> = None;
    while running.iter().any(|work| !work.done) {
        let all_finished = || {
            running.iter().all(|work| {
                work.done || work.finished.load(Ordering::Acquire) == work.threads.len() as u64
            })
        };
        while Instant::now() < next && !all_finished() {
            std::thread::sleep((next - Instant::now()).min(Duration::from_millis(10)));
        }
        next += tick;
        for work in running.iter_mut().filter(|work| !work.done) {
            if control.is_ended(work.index) {
                work.shared.stop.store(true, Ordering::Relaxed);
            }
            if control.is_cancelled() {
                give_up.get_or_insert_with(|| Instant::now() + CANCEL_GRACE);
            }
            let is_over = work.finished.load(Ordering::Acquire) == work.threads.len() as u64;
            work.done = is_over || give_up.is_some_and(|at| Instant::now() >= at);
            tell(Event::Snapshot(work.snapshot()));
            if work.done {
                for thread in work.threads.drain(..) {
                    if is_over {
                        let _ = thread.join();
                    }
                }
                tell(Event::WorkDone {
                    work: work.index,
                    seconds: work.counted_seconds(),
                });
            }
        }
    }
}

impl Running {
    fn snapshot(&self) -> Snapshot {
        let shared = &self.shared;
        let (mut counted, mut uncounted) = (Vec::new(), Vec::new());
        let (mut ops, mut bytes) = (0, 0);
        for recorder in &shared.recorders {
            let mut recorder = recorder.lock();
            let (more, others) = recorder.take(&shared.work.operations);
            (ops, bytes) = (ops + recorder.ops, bytes + recorder.bytes);
            drop(recorder);
            merge(&mut counted, more);
            merge(&mut uncounted, others);
        }
        let (progress, left) = self.progress(ops, bytes);
        let clock = &shared.clock;
        let now = Instant::now();
        let phase = match clock.counted_to {
            _ if now < clock.counted_from => Phase::Rampup,
            Some(to) if now > to && !shared.work.rampdown.is_zero() => Phase::Rampdown,
            _ => Phase::Counted,
        };
        Snapshot {
            work: self.index,
            phase,
            progress,
            left,
            counted,
            uncounted,
        }
    }

    fn progress(&self, ops: u64, bytes: u64) -> (f64, Option<f64>) {
        let clock = &self.shared.clock;
        let elapsed = clock.begin.elapsed().as_secs_f64();
        let by_time = clock.end.map(|end| {
            let whole = end.saturating_duration_since(clock.begin).as_secs_f64();
            elapsed / whole.max(f64::MIN_POSITIVE)
        });
        let by_ops = self.total.map(|total| ops as f64 / total.max(1) as f64);
        let all_bytes = self
            .shared
            .work
            .total_bytes
            .map(|total| self.shared.share.of(total).1);
        let by_bytes = all_bytes.map(|total| bytes as f64 / total.max(1) as f64);
        let furthest = [by_time, by_ops, by_bytes]
            .into_iter()
            .flatten()
            .fold(0.0, f64::max);
        let progress = if self.done { 1.0 } else { furthest.min(1.0) };
        let left = (progress > 0.0).then(|| elapsed * (1.0 - progress) / progress);
        (progress, left)
    }

    /// The runtime; or, if the work ended earlier, the time up to its last counted request.
    fn counted_seconds(&self) -> f64 {
        let work = &self.shared.work;
        let last = Duration::from_nanos(self.shared.last_end_ns.load(Ordering::Relaxed));
        let used = last.saturating_sub(work.rampup);
        match (self.shared.clock.counted_to, work.runtime) {
            (Some(to), Some(runtime)) if Instant::now() >= to => runtime.as_secs_f64(),
            _ => used.as_secs_f64(),
        }
    }
}
