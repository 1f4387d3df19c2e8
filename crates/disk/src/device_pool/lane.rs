//! A bounded queue and the threads that empty it; and a second queue for background work, whose turn
//! comes when no client's work waits. Threads start when there is work, and end when they have had
//! none for a while: a node of many disks would keep hundreds.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::DevicesConfig;
use super::share::{self, Class, Kind, Share};
use crate::machine::{Job, Machine};

/// Between two looks at background work that may not run yet.
const LOOK: Duration = Duration::from_millis(5);

/// Why a job was not taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    Full,
    Closed,
    NoThread,
}

pub(super) struct Lane {
    name: String,
    kind: Kind,
    threads_max: usize,
    depth: usize,
    /// A thread without work for this long ends.
    idle_close: Duration,
    machine: Option<Arc<dyn Machine>>,
    share: Arc<Share>,
    state: Mutex<State>,
    ready: Condvar,
}

/// A job, and since when it waits.
struct Queued {
    job: Job,
    since: Instant,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Queued>,
    background: VecDeque<Queued>,
    /// Background jobs under way.
    running: usize,
    /// Background work rests until then.
    rests_until: Option<Instant>,
    /// Threads that wait for a job.
    idle: usize,
    /// One of them looks now and then whether background work may run.
    is_watched: bool,
    threads: Vec<JoinHandle<()>>,
    closed: bool,
}

impl Lane {
    pub(super) fn new(
        name: String,
        kind: Kind,
        threads_max: usize,
        config: &DevicesConfig,
        share: Arc<Share>,
    ) -> Self {
        Lane {
            name,
            kind,
            threads_max,
            depth: config.queue_depth.max(1),
            idle_close: config.idle_close,
            machine: config.machine.clone(),
            share,
            state: Mutex::default(),
            ready: Condvar::new(),
        }
    }

    /// Threads that work or wait for work.
    #[cfg(test)]
    pub(super) fn threads(&self) -> usize {
        self.lock().threads.len()
    }

    pub(super) fn push(self: &Arc<Self>, class: Class, job: Job) -> Result<(), Refused> {
        let mut state = self.lock();
        if state.closed {
            return Err(Refused::Closed);
        }
        if state.queue(class).len() >= self.depth {
            return Err(Refused::Full);
        }
        if let Some(machine) = &self.machine {
            drop(state);
            machine.run(job);
            return Ok(());
        }
        let since = Instant::now();
        state.queue(class).push_back(Queued { job, since });
        let waiting = state.jobs.len() + state.background.len();
        if waiting > state.idle && state.threads.len() < self.threads_max {
            let lane = self.clone();
            let name = format!("{}-{}", self.name, state.threads.len());
            // The kernel keeps fifteen bytes of a thread's name.
            let spawned = thread::Builder::new().name(name).spawn(move || lane.work());
            match spawned {
                Ok(thread) => state.threads.push(thread),
                Err(_) if state.threads.is_empty() => {
                    state.queue(class).pop_back();
                    return Err(Refused::NoThread);
                }
                Err(_) => {}
            }
        }
        drop(state);
        self.ready.notify_one();
        Ok(())
    }

    /// Takes no more jobs, finishes those queued, joins the threads.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        self.ready.notify_all();
        for thread in threads {
            // The last owner of a device may let go of it in a job.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }

    fn work(&self) {
        while let Some((class, queued)) = self.next() {
            let began = Instant::now();
            // A panic ends its job, not the device: whoever waits sees the channel closed.
            let _ = std::panic::catch_unwind(AssertUnwindSafe(queued.job));
            let now = Instant::now();
            match class {
                Class::Client => self.share.client_done(self.kind, queued.since, now),
                Class::Background => {
                    self.share.background_done(1, queued.since, now);
                    let rest = share::rest(self.share.now(now), now - began);
                    let mut state = self.lock();
                    state.running -= 1;
                    state.rests_until = Some(now + rest);
                }
            }
        }
    }

    /// The next job. `None`: the thread is to end, and is no longer counted as one of the lane's.
    fn next(&self) -> Option<(Class, Queued)> {
        let mut state = self.lock();
        let mut was_idle = false;
        loop {
            if let Some(queued) = self.next_background(&mut state) {
                state.running += 1;
                self.have_watched(&state);
                return Some((Class::Background, queued));
            }
            if let Some(queued) = state.jobs.pop_front() {
                self.have_watched(&state);
                return Some((Class::Client, queued));
            }
            // Decided under the lock: who queues a job finds this thread idle, or gone.
            if (state.closed || was_idle) && state.background.is_empty() {
                forget_this_thread(&mut state.threads);
                return None;
            }
            let watches = !state.background.is_empty() && !state.is_watched;
            let wait_max = if watches { LOOK } else { self.idle_close };
            state.idle += 1;
            state.is_watched |= watches;
            let waited = self.ready.wait_timeout(state, wait_max);
            let (again, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            state = again;
            state.is_watched &= !watches;
            state.idle -= 1;
            was_idle = !watches && waited.timed_out();
        }
    }

    /// Whoever leaves to work has somebody else look after background work.
    fn have_watched(&self, state: &State) {
        if !state.background.is_empty() && !state.is_watched && state.idle > 0 {
            self.ready.notify_one();
        }
    }

    /// A background job whose turn it is: nothing of clients' waits, or it has waited long.
    fn next_background(&self, state: &mut State) -> Option<Queued> {
        let oldest = state.background.front()?;
        if state.closed && state.jobs.is_empty() {
            return state.background.pop_front();
        }
        let now = Instant::now();
        let is_old = now.saturating_duration_since(oldest.since) >= share::WAIT_MAX;
        let has_turn = state.jobs.is_empty() || (is_old && state.running == 0);
        if !has_turn {
            return None;
        }
        let share = self.share.now(now).max(1.0) as usize;
        let threads = match self.share.has_clients(now) {
            true => self.threads_max.saturating_sub(1).max(1),
            false => self.threads_max,
        };
        let rests = !is_old && state.rests_until.is_some_and(|until| now < until);
        if state.running >= share.min(threads) || rests {
            return None;
        }
        state.background.pop_front()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Called by a thread of a lane as it ends: nobody need join it any more.
pub(super) fn forget_this_thread(threads: &mut Vec<JoinHandle<()>>) {
    let this = thread::current().id();
    threads.retain(|thread| thread.thread().id() != this);
}

impl State {
    fn queue(&mut self, class: Class) -> &mut VecDeque<Queued> {
        match class {
            Class::Client => &mut self.jobs,
            Class::Background => &mut self.background,
        }
    }
}
