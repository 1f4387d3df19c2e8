//! A bounded queue and the workers that empty it. Workers start when there is work, and end when they
//! have had none for a while: a node of many disks would keep hundreds of threads.
//!
//! What is taken, and when, is a [`Discipline`]: it decides under the lane's lock and knows nothing of
//! waiting. A thread waits at a condition variable; a machine's worker tells its machine that it has
//! nothing to do, and is woken. Either way a worker takes, works by steps without the lock, and gives
//! back under it.

mod commits;
mod jobs;
mod step;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::locks::thread::{self, JoinHandle};
use crate::locks::{Condvar, Mutex};
use crate::share::{SHARE_MAX, Share};
use crate::syncs::{self, Machine};
use crate::worker::{Next, Worker};
pub use commits::{Advanced, CommitLane, Host, Operation};
pub use jobs::{Job, JobLane, Work};
pub use step::{Afterwards, Completion, FailureReporter, Handed, OpenDevice, Run, Step};

/// Interval at which background work that may not run yet is looked at again.
pub(crate) const BACKGROUND_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The kernel keeps fifteen bytes of a thread's name.
const NAME_BYTES: usize = 15;

/// How a lane is made.
#[derive(Clone, Debug)]
pub struct LaneConfig {
    /// The name of its threads, without their numbers.
    pub name: String,
    pub threads: usize,
    /// Operations that may wait in each queue.
    pub depth: usize,
    /// A thread without work for this long ends.
    pub idle_close: Duration,
    /// Operations that a commit lane takes at once.
    pub batch_max: usize,
    pub machine: Option<Arc<dyn Machine>>,
    /// The share of background work, of all lanes of a device; none where there is no such work.
    pub share: Option<Arc<Share>>,
}

impl LaneConfig {
    /// The share that background work may take now.
    fn share_at(&self, now: Instant) -> f64 {
        self.share
            .as_ref()
            .map_or(SHARE_MAX, |share| share.now(now))
    }
}

/// Why an operation was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    Full,
    Closed,
    NoThread,
}

/// The order in which work is taken, and how it is done.
pub trait Discipline: Send + Sync + Sized + 'static {
    /// Its queues.
    type State: Default + Send;
    /// Work that was taken.
    type Taken: Send;

    /// Under the lock: work, or how to wait for it.
    fn take(&self, state: &mut Self::State, at: &Moment) -> Turn<Self::Taken>;
    /// Without the lock: one step of it. `waits`: it may wait for other workers, and do all it can at once.
    fn step(&self, taken: &mut Self::Taken, waits: bool) -> Progress;
    /// Under the lock: it has been done, or given up by its machine.
    fn done(&self, state: &mut Self::State, taken: &Self::Taken, now: Instant);
    /// Under the lock: takes out all that waits, to be dropped without it. What runs is still counted.
    fn drain(&self, state: &mut Self::State) -> Self::State;
    /// Operations that wait.
    fn waiting(&self, state: &Self::State) -> usize;
}

/// The state of work after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Goes,
    Done,
}

/// The circumstances in which a worker asks for work.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub(crate) now: Instant,
    /// It has waited for the whole of its time.
    pub(crate) was_idle: bool,
    pub(crate) closed: bool,
    /// Another one that waits looks after background work.
    pub(crate) is_watched: bool,
}

/// The decision what a worker is to do.
pub enum Turn<T> {
    /// `wakes`: there is work for another one, too.
    Take {
        taken: T,
        wakes: bool,
    },
    Wait(Wait),
    End,
}

/// How a worker waits.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    pub(crate) at_most: Duration,
    /// It looks after background work that may not run yet.
    pub(crate) watches: bool,
}

/// A queue with its workers.
pub struct Lane<D: Discipline> {
    pub(crate) config: LaneConfig,
    pub(crate) discipline: D,
    inner: Mutex<Inner<D::State>>,
    ready: Condvar,
}

struct Inner<S> {
    queues: S,
    crew: Crew,
}

/// The workers of a lane.
#[derive(Default)]
struct Crew {
    threads: Vec<JoinHandle<()>>,
    /// Workers that a machine runs.
    employed: usize,
    /// The number of the last of them.
    last: u64,
    /// Those of them that wait. Without its waker one has been woken.
    parked: VecDeque<(u64, Option<Waker>)>,
    /// Workers that wait.
    idle: usize,
    /// Those of them that look after background work.
    watching: usize,
    closed: bool,
}

impl Crew {
    fn count(&self) -> usize {
        self.threads.len() + self.employed
    }

    fn begin_wait(&mut self, wait: &Wait) {
        self.idle += 1;
        self.watching += usize::from(wait.watches);
    }

    fn end_wait(&mut self, wait: &Wait) {
        self.idle -= 1;
        self.watching -= usize::from(wait.watches);
    }

    /// A machine's worker waits no more. True: nobody has woken it.
    fn leave(&mut self, number: u64) -> bool {
        let at = self.parked.iter().position(|(parked, _)| *parked == number);
        let left = at.and_then(|at| self.parked.remove(at));
        left.is_some_and(|(_, waker)| waker.is_some())
    }
}

/// Bounds of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    /// Refused where the queue is full or closed.
    Queue,
    /// Taken in any case: the rest of what runs now.
    None,
}

/// A push under the lane's lock.
pub(crate) struct Pushing<'a, S> {
    pub(crate) queues: &'a mut S,
    pub(crate) idle: usize,
    pub(crate) workers: usize,
}

impl<D: Discipline> Lane<D> {
    pub(crate) fn with(config: LaneConfig, discipline: D) -> Arc<Self> {
        let inner = Inner {
            queues: D::State::default(),
            crew: Crew::default(),
        };
        Arc::new(Lane {
            config,
            discipline,
            inner: Mutex::new(inner),
            ready: Condvar::new(),
        })
    }

    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Operations that no worker has taken yet.
    pub fn waiting(&self) -> usize {
        self.discipline.waiting(&self.inner.lock().queues)
    }

    /// Whether it takes no more.
    pub fn is_closed(&self) -> bool {
        self.inner.lock().crew.closed
    }

    /// Workers that work or wait for work.
    pub fn workers(&self) -> usize {
        self.inner.lock().crew.count()
    }

    /// This moment, by the clock of its machine.
    pub fn now(&self) -> Instant {
        syncs::instant(self.config.machine.as_ref())
    }

    /// Queues by `push`, which tells whether a worker is to be started; or takes back by `pop` where
    /// there is none and none can be.
    pub(crate) fn queue(
        self: &Arc<Self>,
        bound: Bound,
        push: impl FnOnce(Pushing<'_, D::State>) -> Result<Queued, Refused>,
        pop: impl FnOnce(&mut D::State),
    ) -> Result<(), Refused> {
        let mut inner = self.inner.lock();
        let Inner { queues, crew } = &mut *inner;
        if crew.closed && bound == Bound::Queue {
            return Err(Refused::Closed);
        }
        let queued = push(Pushing {
            queues,
            idle: crew.idle,
            workers: crew.count(),
        })?;
        if queued.wakes {
            self.wake_one(crew);
        }
        if !queued.starts || crew.closed {
            return Ok(());
        }
        let machine = self.config.machine.clone();
        if let Some(employer) = machine.as_ref().and_then(|machine| machine.employer()) {
            crew.employed += 1;
            crew.last += 1;
            let worker = Box::new(Employed {
                lane: self.clone(),
                number: crew.last,
                taken: None,
                wait: None,
                was_idle: false,
                has_ended: false,
            });
            // It may work at once.
            drop(inner);
            employer.employ(worker);
            return Ok(());
        }
        let lane = self.clone();
        let name = format!("{}-{}", self.config.name, crew.threads.len());
        let thread = thread::Builder::new().name(name.chars().take(NAME_BYTES).collect());
        match thread.spawn(move || lane.work()) {
            Ok(thread) => crew.threads.push(thread),
            Err(error) => {
                tracing::error!(lane = self.config.name, %error, "no thread for a device");
                if crew.threads.is_empty() {
                    pop(queues);
                    return Err(Refused::NoThread);
                }
            }
        }
        Ok(())
    }

    fn wake_one(&self, crew: &mut Crew) {
        let waker = crew.parked.iter_mut().find_map(|(_, waker)| waker.take());
        match waker {
            Some(waker) => waker.wake(),
            None => drop(self.ready.notify_one()),
        }
    }

    /// Takes no more, finishes what is queued, joins the threads. What is queued on a machine that runs
    /// workers itself ends with it.
    pub fn close(&self) {
        let mut inner = self.inner.lock();
        inner.crew.closed = true;
        let threads = std::mem::take(&mut inner.crew.threads);
        drop(inner);
        self.ready.notify_all();
        for thread in threads {
            // The last owner of a device may let go of it in a job.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
        let machine = self.config.machine.as_ref();
        if machine.and_then(|machine| machine.employer()).is_some() {
            let ended = self.discipline.drain(&mut self.inner.lock().queues);
            return drop(ended);
        }
        // Without a thread left, what came last is done here.
        while let Some(taken) = self.try_take() {
            self.run(taken);
        }
    }

    fn try_take(&self) -> Option<D::Taken> {
        let mut inner = self.inner.lock();
        let at = Moment {
            now: self.now(),
            was_idle: true,
            closed: true,
            is_watched: true,
        };
        match self.discipline.take(&mut inner.queues, &at) {
            Turn::Take { taken, .. } => Some(taken),
            _ => None,
        }
    }

    /// A thread's life.
    fn work(&self) {
        while let Some(taken) = self.next() {
            self.run(taken);
        }
    }

    fn run(&self, mut taken: D::Taken) {
        while self.step(&mut taken, true) == Progress::Goes {}
        self.done(taken);
    }

    /// A panic ends its operation, not the device: whoever waits sees the channel closed.
    fn step(&self, taken: &mut D::Taken, waits: bool) -> Progress {
        let step = AssertUnwindSafe(|| self.discipline.step(taken, waits));
        catch_unwind(step).unwrap_or_else(|_| {
            tracing::error!(lane = self.config.name, "an operation panicked");
            Progress::Done
        })
    }

    fn done(&self, taken: D::Taken) {
        let now = self.now();
        self.discipline
            .done(&mut self.inner.lock().queues, &taken, now);
        // It may have operations that were not told of their end: not under the lock.
        drop(taken);
    }

    /// The next thing to do. `None`: the thread is to end, and is no longer counted as one of the lane's.
    fn next(&self) -> Option<D::Taken> {
        let mut inner = self.inner.lock();
        let mut was_idle = false;
        loop {
            let Inner { queues, crew } = &mut *inner;
            match self.turn(queues, crew, was_idle) {
                Turn::Take { taken, .. } => return Some(taken),
                // Decided under the lock: who queues an operation finds this thread idle, or gone.
                Turn::End => {
                    let this = thread::current().id();
                    crew.threads.retain(|thread| thread.thread().id() != this);
                    return None;
                }
                Turn::Wait(wait) => {
                    crew.begin_wait(&wait);
                    let waited = self.ready.wait_for(&mut inner, wait.at_most);
                    inner.crew.end_wait(&wait);
                    was_idle = !wait.watches && waited.timed_out();
                }
            }
        }
    }

    fn turn(&self, queues: &mut D::State, crew: &mut Crew, was_idle: bool) -> Turn<D::Taken> {
        let at = Moment {
            now: self.now(),
            was_idle,
            closed: crew.closed,
            is_watched: crew.watching > 0,
        };
        let turn = self.discipline.take(queues, &at);
        if matches!(turn, Turn::Take { wakes: true, .. }) {
            self.wake_one(crew);
        }
        turn
    }
}

/// A decision about what was queued.
pub(crate) struct Queued {
    /// There are too few workers.
    pub(crate) starts: bool,
    /// One that waits is to look.
    pub(crate) wakes: bool,
}

/// A worker that a machine runs.
struct Employed<D: Discipline> {
    lane: Arc<Lane<D>>,
    number: u64,
    taken: Option<D::Taken>,
    wait: Option<Wait>,
    was_idle: bool,
    has_ended: bool,
}

impl<D: Discipline> Worker for Employed<D> {
    fn step(&mut self, waker: &Waker) -> Next {
        let lane = self.lane.clone();
        if let Some(taken) = &mut self.taken {
            if lane.step(taken, false) == Progress::Done
                && let Some(taken) = self.taken.take()
            {
                lane.done(taken);
            }
            return Next::Works;
        }
        let mut inner = lane.inner.lock();
        let Inner { queues, crew } = &mut *inner;
        if let Some(wait) = self.wait.take() {
            let timed_out = crew.leave(self.number);
            crew.end_wait(&wait);
            self.was_idle = !wait.watches && timed_out;
        }
        match lane.turn(queues, crew, self.was_idle) {
            Turn::Take { taken, .. } => {
                self.was_idle = false;
                self.taken = Some(taken);
                Next::Works
            }
            Turn::End => {
                crew.employed -= 1;
                self.has_ended = true;
                Next::Ended
            }
            Turn::Wait(wait) => {
                crew.begin_wait(&wait);
                crew.parked.push_back((self.number, Some(waker.clone())));
                self.wait = Some(wait);
                Next::Idle(wait.at_most)
            }
        }
    }
}

impl<D: Discipline> Drop for Employed<D> {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let mut inner = self.lane.inner.lock();
        let Inner { queues, crew } = &mut *inner;
        if let Some(wait) = self.wait.take() {
            crew.leave(self.number);
            crew.end_wait(&wait);
        }
        crew.employed -= 1;
        let taken = self.taken.take();
        if let Some(taken) = &taken {
            let now = self.lane.now();
            self.lane.discipline.done(queues, taken, now);
        }
        drop(inner);
        drop(taken);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
