//! A lane of jobs; and a second queue for background work, whose turn it is when no client's work waits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::{
    BACKGROUND_POLL_INTERVAL, Bound, Discipline, Lane, LaneConfig, Moment, Progress, Pushing,
    Queued as Push, Refused, Turn, Wait,
};
use crate::share::{self, Class, Kind};

/// Work that a thread does in one go.
pub type Job = Box<dyn FnOnce() + Send>;

/// Work that may have to wait between two steps.
pub trait Work: Send {
    /// Does a step. `waits`: it may wait on its thread; else it is asked again later.
    fn step(&mut self, waits: bool) -> Progress;
}

/// Runs jobs.
pub type JobLane = Lane<Jobs>;

/// The order of jobs.
pub struct Jobs {
    kind: Kind,
    config: LaneConfig,
}

/// Queues of jobs.
#[derive(Default)]
pub struct State {
    jobs: VecDeque<Queued>,
    background: VecDeque<Queued>,
    /// Background jobs under way.
    running: usize,
    /// Background work rests until then.
    rests_until: Option<Instant>,
}

/// A job, and since when it waits.
struct Queued {
    task: Task,
    since: Instant,
}

/// A job under way.
pub struct Taken {
    class: Class,
    queued: Queued,
    began: Instant,
}

/// Work of one step, until it is done, or of several.
enum Task {
    Once(Option<Job>),
    InSteps(Box<dyn Work>),
}

impl Task {
    fn step(&mut self, waits: bool) -> Progress {
        match self {
            Task::Once(job) => {
                if let Some(job) = job.take() {
                    job();
                }
                Progress::Done
            }
            Task::InSteps(work) => work.step(waits),
        }
    }
}

impl JobLane {
    pub fn new(kind: Kind, config: LaneConfig) -> Arc<Self> {
        let jobs = Jobs {
            kind,
            config: config.clone(),
        };
        Lane::with(config, jobs)
    }

    /// Queues a job.
    ///
    /// # Errors
    /// The queue is full or closed, or there is no thread.
    pub fn push(self: &Arc<Self>, class: Class, job: Job) -> Result<(), Refused> {
        self.push_bounded(Bound::Queue, class, Task::Once(Some(job)))
    }

    /// Queues work of several steps.
    ///
    /// # Errors
    /// As [`JobLane::push`].
    pub fn push_work(self: &Arc<Self>, class: Class, work: Box<dyn Work>) -> Result<(), Refused> {
        self.push_bounded(Bound::Queue, class, Task::InSteps(work))
    }

    /// Queues a job beyond the bound: the rest of one that runs now, of which there are never more than
    /// there were jobs.
    pub fn push_rest(self: &Arc<Self>, job: Job) {
        let task = Task::Once(Some(job));
        // Refused for want of a thread alone: the job is dropped, and whoever waits hears of it.
        let _ = self.push_bounded(Bound::None, Class::Client, task);
    }

    fn push_bounded(
        self: &Arc<Self>,
        bound: Bound,
        class: Class,
        task: Task,
    ) -> Result<(), Refused> {
        let (since, config) = (self.now(), &self.config);
        // A refused one is dropped here, behind the lane's lock: that may close files.
        let (mut task, mut refused) = (Some(task), None);
        let push = |pushing: Pushing<'_, State>| {
            let queue = pushing.queues.queue(class);
            if bound == Bound::Queue && queue.len() >= config.depth.max(1) {
                return Err(Refused::Full);
            }
            queue.extend(task.take().map(|task| Queued { task, since }));
            let waiting = pushing.queues.jobs.len() + pushing.queues.background.len();
            let starts = waiting > pushing.idle && pushing.workers < config.threads.max(1);
            Ok(Push {
                starts,
                wakes: true,
            })
        };
        self.queue(bound, push, |state| refused = state.queue(class).pop_back())
    }
}

impl Jobs {
    /// A background job whose turn it is: nothing of clients' waits, or it has waited long.
    fn next_background(&self, state: &mut State, at: &Moment) -> Option<Queued> {
        let oldest = state.background.front()?;
        if at.closed && state.jobs.is_empty() {
            return state.background.pop_front();
        }
        let now = at.now;
        let is_old = now.saturating_duration_since(oldest.since) >= share::WAIT_MAX;
        let has_turn = state.jobs.is_empty() || (is_old && state.running == 0);
        if !has_turn {
            return None;
        }
        let threads_max = self.config.threads.max(1);
        let share = self.config.share_at(now).max(1.0) as usize;
        let has_clients = self.config.share.as_ref();
        let threads = match has_clients.is_some_and(|share| share.has_clients(now)) {
            true => threads_max.saturating_sub(1).max(1),
            false => threads_max,
        };
        let rests = !is_old && state.rests_until.is_some_and(|until| now < until);
        if state.running >= share.min(threads) || rests {
            return None;
        }
        state.background.pop_front()
    }
}

impl Discipline for Jobs {
    type State = State;
    type Taken = Taken;

    fn take(&self, state: &mut State, at: &Moment) -> Turn<Taken> {
        let taken = |class, queued, state: &State| Turn::Take {
            taken: Taken {
                class,
                queued,
                began: at.now,
            },
            // Whoever leaves to work has somebody else look after background work.
            wakes: !state.background.is_empty() && !at.is_watched,
        };
        if let Some(queued) = self.next_background(state, at) {
            state.running += 1;
            return taken(Class::Background, queued, state);
        }
        if let Some(queued) = state.jobs.pop_front() {
            return taken(Class::Client, queued, state);
        }
        if (at.closed || at.was_idle) && state.background.is_empty() {
            return Turn::End;
        }
        let watches = !state.background.is_empty() && !at.is_watched;
        Turn::Wait(Wait {
            at_most: if watches {
                BACKGROUND_POLL_INTERVAL
            } else {
                self.config.idle_close
            },
            watches,
        })
    }

    fn step(&self, taken: &mut Taken, waits: bool) -> Progress {
        taken.queued.task.step(waits)
    }

    fn done(&self, state: &mut State, taken: &Taken, now: Instant) {
        let since = taken.queued.since;
        if let Some(share) = &self.config.share {
            share.done(taken.class, self.kind, 1, since, now);
        }
        if taken.class == Class::Background {
            let took = now.saturating_duration_since(taken.began);
            state.running -= 1;
            state.rests_until = Some(now + share::rest(self.config.share_at(now), took));
        }
    }

    fn drain(&self, state: &mut State) -> State {
        State {
            jobs: std::mem::take(&mut state.jobs),
            background: std::mem::take(&mut state.background),
            ..State::default()
        }
    }

    fn waiting(&self, state: &State) -> usize {
        state.jobs.len() + state.background.len()
    }
}

impl State {
    fn queue(&mut self, class: Class) -> &mut VecDeque<Queued> {
        match class {
            Class::Client => &mut self.jobs,
            Class::Background => &mut self.background,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_is_still_counted_when_a_lane_is_emptied() {
        let config = LaneConfig {
            name: "r".into(),
            threads: 1,
            depth: 1,
            idle_close: std::time::Duration::from_secs(1),
            batch_max: 1,
            machine: None,
            share: None,
        };
        let jobs = Jobs {
            kind: Kind::Read,
            config,
        };
        let since = Instant::now();
        let task = Task::Once(None);
        let mut state = State {
            background: VecDeque::from([Queued { task, since }]),
            running: 1,
            ..State::default()
        };
        drop(jobs.drain(&mut state));
        assert_eq!((jobs.waiting(&state), state.running), (0, 1));
    }
}
