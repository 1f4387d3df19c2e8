//! A lane of jobs; and a second queue for background work, whose turn it is when no client's work waits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::{
    Bound, Discipline, LOOK, Lane, LaneConfig, Moment, Progress, Pushing, Queued as Push, Refused,
    Turn, Wait,
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
    work: Box<dyn Work>,
    since: Instant,
}

/// A job under way.
pub struct Taken {
    class: Class,
    queued: Queued,
    began: Instant,
}

struct Once(Option<Job>);

impl Work for Once {
    fn step(&mut self, _waits: bool) -> Progress {
        if let Some(job) = self.0.take() {
            job();
        }
        Progress::Done
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
        self.push_bounded(Bound::Queue, class, Box::new(Once(Some(job))))
    }

    /// Queues work of several steps.
    ///
    /// # Errors
    /// As [`JobLane::push`].
    pub fn push_work(self: &Arc<Self>, class: Class, work: Box<dyn Work>) -> Result<(), Refused> {
        self.push_bounded(Bound::Queue, class, work)
    }

    /// Queues a job beyond the bound: the rest of one that runs now, of which there are never more than
    /// there were jobs.
    pub fn push_rest(self: &Arc<Self>, job: Job) {
        let work = Box::new(Once(Some(job)));
        // Refused for want of a thread alone: the job is dropped, and whoever waits hears of it.
        let _ = self.push_bounded(Bound::None, Class::Client, work);
    }

    fn push_bounded(
        self: &Arc<Self>,
        bound: Bound,
        class: Class,
        work: Box<dyn Work>,
    ) -> Result<(), Refused> {
        let (since, config) = (self.now(), &self.config);
        // A refused one is dropped here, behind the lane's lock: that may close files.
        let (mut work, mut refused) = (Some(work), None);
        let push = |pushing: Pushing<'_, State>| {
            let queue = pushing.queues.queue(class);
            if bound == Bound::Queue && queue.len() >= config.depth.max(1) {
                return Err(Refused::Full);
            }
            queue.extend(work.take().map(|work| Queued { work, since }));
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
        let (device, threads_max) = (&self.config.share, self.config.threads.max(1));
        let share = device.now(now).max(1.0) as usize;
        let threads = match device.has_clients(now) {
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
                LOOK
            } else {
                self.config.idle_close
            },
            watches,
        })
    }

    fn step(&self, taken: &mut Taken, waits: bool) -> Progress {
        taken.queued.work.step(waits)
    }

    fn done(&self, state: &mut State, taken: &Taken, now: Instant) {
        let (share, since) = (&self.config.share, taken.queued.since);
        match taken.class {
            Class::Client => share.client_done(self.kind, since, now),
            Class::Background => {
                share.background_done(1, since, now);
                let took = now.saturating_duration_since(taken.began);
                state.running -= 1;
                state.rests_until = Some(now + share::rest(share.now(now), took));
            }
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
