//! Queue of runs: one at a time, each a process of its own; the others wait in order.
//!
//! Two simultaneous runs would distort each other's results. Credentials are held only here, until
//! the run is over, and are passed to the process in its environment.

use std::collections::VecDeque;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use cairn_lab::fail_if;
use cairn_lab::record;
use parking_lot::{Mutex, MutexGuard};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{Notify, watch};

use crate::command::{self, Program, Target};
use crate::history::{History, Note, State, now};
use crate::status::Refusal;
use crate::submission::Submission;

const WAITING_MAX: usize = 100;
/// Number of logs kept of finished runs.
const LOGS_MAX: usize = 20;
const LOG_LINES_MAX: usize = 400;
const LOG_LINE_MAX_BYTES: u64 = 4096;
/// Maximum time for writing a report; a slower one is left to the command line.
const REPORT_TIMEOUT: Duration = Duration::from_secs(300);
/// Time for a run to write its results after it was told to end.
const END_TIMEOUT: Duration = Duration::from_secs(20);

struct Job {
    submission: Submission,
    target: Target,
    note: Mutex<Note>,
    log: Arc<Log>,
    cancel: watch::Sender<bool>,
}

pub(crate) struct Queue {
    history: Arc<History>,
    program: Program,
    jobs: Mutex<Jobs>,
    submitted: Notify,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Arc<Job>>,
    running: Option<Arc<Job>>,
    logs: VecDeque<(String, Arc<Log>)>,
}

impl Queue {
    pub(crate) fn new(history: Arc<History>, program: Program) -> Queue {
        Queue {
            history,
            program,
            jobs: Mutex::default(),
            submitted: Notify::new(),
        }
    }

    /// Appends a run; returns its id. Blocks.
    pub(crate) fn submit(&self, submission: Submission, target: Target) -> Result<String, Refusal> {
        if self.lock().waiting.len() >= WAITING_MAX {
            return Err(Refusal::queue_full(WAITING_MAX));
        }
        let title = submission.title();
        let id = self.history.new_id(&title);
        let note = Note {
            id: id.clone(),
            name: title,
            file_name: submission.file_name.clone(),
            target: target.shown.clone(),
            state: State::Waiting,
            submitted: now(),
            started: None,
            ended: None,
            message: None,
        };
        self.history
            .keep_workload(&id, &submission.file_name, &submission.text)
            .and_then(|_| self.history.write(&note))
            .map_err(|error| Refusal::internal(&error))?;
        let job = Arc::new(Job {
            submission,
            target,
            note: Mutex::new(note),
            log: Arc::default(),
            cancel: watch::Sender::new(false),
        });
        let mut jobs = self.lock();
        jobs.logs.push_back((id.clone(), job.log.clone()));
        // Logs of waiting runs are empty and will be needed.
        let spare = jobs
            .logs
            .len()
            .saturating_sub(LOGS_MAX + jobs.waiting.len() + 2);
        jobs.logs.drain(..spare);
        jobs.waiting.push_back(job);
        drop(jobs);
        self.submitted.notify_one();
        Ok(id)
    }

    /// Removes a run from the queue, or ends the active one. Returns false if it is neither.
    /// Blocks.
    pub(crate) fn cancel(&self, id: &str) -> bool {
        let mut jobs = self.lock();
        let named = |job: &Arc<Job>| job.id() == id;
        if let Some(place) = jobs.waiting.iter().position(named) {
            let job = jobs.waiting.remove(place);
            drop(jobs);
            if let Some(job) = job {
                self.finish(
                    &job,
                    State::Cancelled,
                    Some("cancelled before it began".into()),
                );
            }
            return true;
        }
        match &jobs.running {
            Some(job) if named(job) => {
                job.cancel.send_replace(true);
                true
            }
            _ => false,
        }
    }

    /// Number of runs before this one; 0 for the next, and for the active one.
    pub(crate) fn ahead(&self, id: &str) -> Option<usize> {
        self.lock().waiting.iter().position(|job| job.id() == id)
    }

    pub(crate) fn log(&self, id: &str) -> Option<Arc<Log>> {
        let jobs = self.lock();
        let log = jobs.logs.iter().find(|(known, _)| known == id)?;
        Some(log.1.clone())
    }

    /// Executes submitted runs until `stop` turns true; then ends the active run.
    pub(crate) async fn work(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        loop {
            let next = {
                let mut jobs = self.lock();
                let next = jobs.waiting.pop_front();
                jobs.running = next.clone();
                next
            };
            match next {
                Some(job) => {
                    self.run(&job, &mut stop).await;
                    self.lock().running = None;
                }
                None => tokio::select! {
                    () = self.submitted.notified() => {}
                    _ = stop.wait_for(|s| *s) => {}
                },
            }
            if *stop.borrow() {
                return;
            }
        }
    }

    async fn run(&self, job: &Job, stop: &mut watch::Receiver<bool>) {
        let id = job.id();
        let note = {
            let mut note = job.note.lock();
            note.state = State::Running;
            note.started = Some(now());
            note.clone()
        };
        if let Err(error) = self.history.write(&note) {
            return self.finish(job, State::Failed, Some(format!("{error:#}")));
        }
        tracing::info!(run = id, target = job.target.shown, "a run begins");
        let outcome = self.process(job, &id, stop).await;
        let run = self.history.run_meta(&id);
        if run
            .as_ref()
            .is_some_and(|run| run.state != record::State::Running)
            && !*stop.borrow()
        {
            self.report(job, &id).await;
        }
        let told = run.as_ref().map(|run| run.message.clone());
        let told = told.filter(|message| !message.is_empty());
        let (state, message) = match (outcome, run.map(|run| run.state)) {
            (Err(error), _) => (State::Failed, Some(format!("{error:#}"))),
            (Ok(End::Stopped), _) => (State::Interrupted, Some("the console ended".into())),
            (Ok(End::Cancelled), _) | (_, Some(record::State::Cancelled)) => {
                (State::Cancelled, told)
            }
            (Ok(End::Exited(true)), Some(record::State::Completed)) => (State::Done, told),
            (Ok(End::Exited(_)), _) => (State::Failed, told.or_else(|| job.log.last_words())),
        };
        self.finish(job, state, message);
    }

    async fn process(&self, job: &Job, id: &str, stop: &mut watch::Receiver<bool>) -> Result<End> {
        let workload =
            self.history
                .keep_workload(id, &job.submission.file_name, &job.submission.text)?;
        let mut command: Command = command::lab_run(
            &self.program,
            &workload,
            &self.history.folder(id),
            &job.submission,
            &job.target,
        )
        .into();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A signal from the terminal goes to the console only, which then ends its run in
            // order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot run {}", self.program.path.display()))?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let mut cancel = job.cancel.subscribe();
        let reading = async {
            tokio::join!(read_log(out, &job.log), read_log(err, &job.log));
        };
        let ending = async {
            let status = tokio::select! {
                status = child.wait() => {
                    // A run in which a `--fail-if` condition holds was completed all the same.
                    let completed = [0, i32::from(fail_if::EXIT_CODE)];
                    let code = status?.code();
                    return Ok(End::Exited(code.is_some_and(|code| completed.contains(&code))));
                }
                _ = cancel.wait_for(|c| *c) => End::Cancelled,
                _ = stop.wait_for(|s| *s) => End::Stopped,
            };
            end(&mut child).await;
            Ok(status)
        };
        let (ended, ()) = tokio::join!(ending, reading);
        ended
    }

    /// Writes the run's report before the next run is measured. A failure does not affect the run.
    async fn report(&self, job: &Job, id: &str) {
        let mut command: Command =
            command::lab_report(&self.program.path, &self.history.folder(id)).into();
        let reporting = command
            .stdin(Stdio::null())
            .process_group(0)
            .kill_on_drop(true)
            .output();
        match tokio::time::timeout(REPORT_TIMEOUT, reporting).await {
            Ok(Ok(output)) if output.status.success() => {}
            Ok(Ok(output)) => {
                let words = String::from_utf8_lossy(&output.stderr);
                words.lines().take(20).for_each(|line| job.log.add(line));
                job.log.add("no report was written");
            }
            Ok(Err(error)) => job.log.add(&format!("no report was written: {error}")),
            Err(_) => job.log.add("no report was written: it took too long"),
        }
    }

    /// Marks the job as finished; an error in recording that is logged.
    fn finish(&self, job: &Job, state: State, message: Option<String>) {
        let note = {
            let mut note = job.note.lock();
            note.state = state;
            note.ended = Some(now());
            note.message = message;
            note.clone()
        };
        tracing::info!(
            run = note.id,
            ?state,
            message = note.message,
            "a run is over"
        );
        if let Err(error) = self.history.write(&note) {
            tracing::error!(
                error = format!("{error:#}"),
                "a run's end is not written down"
            );
        }
    }

    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock()
    }
}

impl Job {
    fn id(&self) -> String {
        self.note.lock().id.clone()
    }
}

enum End {
    Exited(bool),
    Cancelled,
    Stopped,
}

/// Asks the process to end, and kills it if it takes too long.
async fn end(child: &mut Child) {
    let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    if let Some(pid) = pid {
        // It may have ended by itself meanwhile.
        let _ = kill_process(pid, Signal::TERM);
    }
    if tokio::time::timeout(END_TIMEOUT, child.wait())
        .await
        .is_err()
    {
        let _ = child.kill().await;
    }
}

async fn read_log(stream: Option<impl AsyncRead + Unpin>, log: &Log) {
    let Some(stream) = stream else { return };
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut reader)
            .take(LOG_LINE_MAX_BYTES)
            .read_until(b'\n', &mut line)
            .await;
        match read {
            Ok(0) | Err(_) => return,
            Ok(_) => log.add(String::from_utf8_lossy(&line).trim_end()),
        }
    }
}

/// The last lines of a run's process output.
#[derive(Default)]
pub(crate) struct Log(Mutex<Lines>);

#[derive(Default)]
struct Lines {
    kept: VecDeque<String>,
    /// Total number of lines so far.
    count: u64,
}

impl Log {
    fn add(&self, line: &str) {
        if line.is_empty() {
            return;
        }
        let mut lines = self.0.lock();
        if lines.kept.len() >= LOG_LINES_MAX {
            lines.kept.pop_front();
        }
        lines.kept.push_back(line.to_owned());
        lines.count += 1;
    }

    /// The total number of lines, and those after the first `seen` that are still kept.
    pub(crate) fn after(&self, seen: u64) -> (u64, Vec<String>) {
        let lines = self.0.lock();
        let new = usize::try_from(lines.count.saturating_sub(seen)).unwrap_or(usize::MAX);
        let skip = lines.kept.len().saturating_sub(new);
        (lines.count, lines.kept.iter().skip(skip).cloned().collect())
    }

    /// The last output of a failed process.
    fn last_words(&self) -> Option<String> {
        let lines = self.0.lock();
        let last = lines.kept.iter().rev().take(8).cloned();
        let mut last: Vec<String> = last.collect();
        last.reverse();
        (!last.is_empty()).then(|| last.join("\n"))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
