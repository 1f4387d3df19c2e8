//! A lane of durable operations: its few threads take all that wait at once, as a batch, which shares
//! its syncs (`batch.rs`). Operations of background work have a queue of their own, and batches of
//! their own while no client's waits.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cairn_types::heuristic::Heuristic;

use super::batch::Batch;
use super::step::Afterwards;
use super::{
    Bound, Discipline, LOOK, Lane, LaneConfig, Moment, Progress, Pushing, Queued as Push, Refused,
    Turn, Wait,
};
use crate::share::{self, Class, Kind};
use crate::syncs::{self, Patience, SyncSet};

/// Operations taken at once, at least.
const BATCH_LEAST: usize = 4;
/// Tidying up after a batch should not take longer.
const TIDY_MAX: Duration = Duration::from_millis(100);
/// Background operations that share a sync, at least: fewer would cost the disk as much.
const BACKGROUND_BATCH: usize = 16;
/// With a smaller share of the device background work has one thread.
const SHARE_OF_ONE_THREAD: f64 = share::WHOLE / 2.0;

/// The device of a commit lane.
pub trait Host: Send + Sync + Sized + 'static {
    /// The device, opened for one batch.
    type Ground: Send;
    /// Why it cannot be.
    type Error: Send;

    /// Opens the device.
    ///
    /// # Errors
    /// It is gone, or takes no writes.
    fn begin(&self) -> Result<Self::Ground, Self::Error>;

    /// Why no success of a sync counts: the device was found broken since it was opened. It is asked
    /// after a sync, for one by a descriptor that was opened after the kernel had told another of a lost
    /// page hears nothing of it. `None` also where operations find that out by themselves.
    fn broken(&self) -> Option<io::Error> {
        None
    }
}

/// How far an operation came.
pub enum Advanced {
    /// To what must be on disk before it goes on.
    Sync(SyncSet),
    /// It has ended, and told of it. It may leave something to tidy up, which a crash may leave undone.
    Ended(Option<Afterwards>),
}

/// A durable operation.
pub trait Operation<H: Host>: Send {
    /// Runs it up to its next sync. `is_alone`: nobody else waits for the thread, so it may tidy up
    /// before it tells of its end.
    fn advance(&mut self, ground: &H::Ground, is_alone: bool) -> Advanced;
    /// The sync that it and others wait for has failed: called of all of them before any hears of it by
    /// [`Operation::fail`], for that one may try again at once.
    fn sync_failed(&mut self, ground: &H::Ground, error: &std::io::Error);
    /// Ends it without success: its sync failed.
    fn fail(&mut self, ground: &H::Ground, error: &std::io::Error);
    /// Ends it without success: nothing was begun.
    fn refuse(&mut self, error: &H::Error);
}

/// Runs durable operations.
pub type CommitLane<H> = Lane<Commits<H>>;

/// The order of durable operations.
pub struct Commits<H: Host> {
    host: H,
    kind: Kind,
    config: LaneConfig,
    /// Clients' operations that are taken at once now.
    most: AtomicUsize,
}

/// Queues of durable operations.
pub struct State<H: Host> {
    waiting: VecDeque<Queued<H>>,
    background: VecDeque<Queued<H>>,
    /// Batches of clients' operations under way.
    clients: usize,
    /// Batches of background work under way.
    running: usize,
    /// Background work rests until then.
    rests_until: Option<Instant>,
}

impl<H: Host> Default for State<H> {
    fn default() -> Self {
        State {
            waiting: VecDeque::new(),
            background: VecDeque::new(),
            clients: 0,
            running: 0,
            rests_until: None,
        }
    }
}

/// An operation, and since when it waits.
struct Queued<H: Host> {
    operation: Box<dyn Operation<H>>,
    since: Instant,
}

/// Operations that go together. The first has waited longest.
pub struct Taken<H: Host> {
    class: Class,
    since: Instant,
    began: Instant,
    count: usize,
    batch: Batch<H>,
}

impl<H: Host> CommitLane<H> {
    pub fn new(kind: Kind, host: H, config: LaneConfig) -> Arc<Self> {
        let commits = Commits {
            host,
            kind,
            most: AtomicUsize::new(config.batch_max),
            config: config.clone(),
        };
        Lane::with(config, commits)
    }

    /// Queues an operation.
    ///
    /// # Errors
    /// The queue is full or closed, or there is no thread.
    pub fn push(
        self: &Arc<Self>,
        class: Class,
        operation: Box<dyn Operation<H>>,
    ) -> Result<(), Refused> {
        self.push_bounded(Bound::Queue, class, operation)
    }

    /// Queues an operation beyond the bound: the rest of one that runs now, or the end of something of
    /// which there is a bounded number.
    pub fn push_rest(self: &Arc<Self>, operation: Box<dyn Operation<H>>) {
        // Refused for want of a thread alone: it is dropped, and whoever waits hears of it.
        let _ = self.push_bounded(Bound::None, Class::Client, operation);
    }

    fn push_bounded(
        self: &Arc<Self>,
        bound: Bound,
        class: Class,
        operation: Box<dyn Operation<H>>,
    ) -> Result<(), Refused> {
        let (since, config) = (self.now(), &self.config);
        // A refused one is dropped here, behind the lane's lock: that may close and remove files.
        let (mut operation, mut refused) = (Some(operation), None);
        let push = |pushing: Pushing<'_, State<H>>| {
            let running = pushing.queues.running;
            let queue = pushing.queues.queue(class);
            if bound == Bound::Queue && queue.len() >= config.depth.max(1) {
                return Err(Refused::Full);
            }
            queue.extend(
                operation
                    .take()
                    .map(|operation| Queued { operation, since }),
            );
            let most = threads_beside(config.threads.max(1), class, running);
            Ok(Push {
                starts: pushing.idle == 0 && pushing.workers < most,
                // Whoever was woken for the first takes the others along.
                wakes: queue.len() == 1,
            })
        };
        self.queue(bound, push, |state| refused = state.queue(class).pop_back())
    }
}

/// While there is background work, `running` batches of it, there is one thread more: clients find one
/// when all that background work may have are syncing.
fn threads_beside(threads: usize, class: Class, running: usize) -> usize {
    let is_there = class == Class::Background || running > 0;
    threads + usize::from(is_there)
}

impl<H: Host> Commits<H> {
    /// Those who wait now do so for what was left to tidy up after the last batch: where that takes
    /// long (large files are removed), batches are small, and nobody waits for that of many others.
    fn take_as_many_as(&self, count: usize, tidied: Duration) {
        if Heuristic::SmallerBatches.is_off() {
            return;
        }
        let most = if tidied > TIDY_MAX {
            (count / 2).max(BATCH_LEAST)
        } else if tidied < TIDY_MAX / 4 {
            (count * 2).max(self.most.load(Ordering::Relaxed))
        } else {
            return;
        };
        let most = most.min(self.config.batch_max);
        self.most.store(most, Ordering::Relaxed);
    }

    /// Background operations whose turn it is: nothing of clients' waits, or they have waited long.
    fn next_background(&self, state: &mut State<H>, at: &Moment) -> Option<Vec<Queued<H>>> {
        let oldest = state.background.front()?.since;
        let is_old = at.now.saturating_duration_since(oldest) >= share::WAIT_MAX;
        let rests = !is_old && state.rests_until.is_some_and(|until| at.now < until);
        let is_last = at.closed && state.waiting.is_empty();
        let share = self.config.share_at(at.now);
        // While one batch syncs another works, unless clients feel it.
        let threads = match share < SHARE_OF_ONE_THREAD {
            true => 1,
            false => self.config.threads.max(1),
        };
        let has_turn = state.waiting.is_empty() || (is_old && state.running == 0);
        let must_wait = rests || state.running >= threads || !has_turn;
        if must_wait && !is_last {
            return None;
        }
        let most = (share as usize).clamp(
            BACKGROUND_BATCH,
            self.config.batch_max.max(BACKGROUND_BATCH),
        );
        let count = state.background.len().min(most);
        Some(state.background.drain(..count).collect())
    }

    fn taken(
        &self,
        class: Class,
        operations: Vec<Queued<H>>,
        now: Instant,
        is_all: bool,
    ) -> Taken<H> {
        let since = operations.first().map_or(now, |queued| queued.since);
        let count = operations.len();
        let operations = operations.into_iter().map(|queued| queued.operation);
        Taken {
            class,
            since,
            began: now,
            count,
            batch: Batch::new(operations.collect(), is_all),
        }
    }
}

impl<H: Host> Discipline for Commits<H> {
    type State = State<H>;
    type Taken = Taken<H>;

    fn take(&self, state: &mut State<H>, at: &Moment) -> Turn<Taken<H>> {
        let threads = self.config.threads.max(1);
        if let Some(operations) = self.next_background(state, at) {
            state.running += 1;
            let is_all = state.background.is_empty();
            return Turn::Take {
                taken: self.taken(Class::Background, operations, at.now, is_all),
                wakes: state.has_any(),
            };
        }
        if !state.waiting.is_empty() && state.clients < threads {
            state.clients += 1;
            let most = self.most.load(Ordering::Relaxed).max(1);
            let count = state.waiting.len().min(most);
            let operations = state.waiting.drain(..count).collect();
            let is_all = state.waiting.is_empty();
            return Turn::Take {
                taken: self.taken(Class::Client, operations, at.now, is_all),
                wakes: state.has_any(),
            };
        }
        let has_ended = at.closed || (at.was_idle && state.waiting.is_empty());
        if has_ended && state.background.is_empty() {
            return Turn::End;
        }
        let watches = !state.background.is_empty();
        Turn::Wait(Wait {
            at_most: if watches {
                LOOK
            } else {
                self.config.idle_close
            },
            watches,
        })
    }

    fn step(&self, taken: &mut Taken<H>, waits: bool) -> Progress {
        let patience = match waits {
            true => Patience::Waits,
            false => Patience::Returns,
        };
        let now = || syncs::instant(self.config.machine.as_ref());
        let progress = taken.batch.step(&self.host, patience, &now);
        if let (Progress::Done, Some(tidied)) = (progress, taken.batch.tidied()) {
            self.take_as_many_as(taken.count, tidied);
        }
        progress
    }

    fn done(&self, state: &mut State<H>, taken: &Taken<H>, now: Instant) {
        if let Some(share) = &self.config.share {
            share.done(taken.class, self.kind, taken.count, taken.since, now);
        }
        match taken.class {
            Class::Client => state.clients -= 1,
            Class::Background => {
                let took = now.saturating_duration_since(taken.began);
                state.running -= 1;
                state.rests_until = Some(now + share::rest(self.config.share_at(now), took));
            }
        }
    }

    fn drain(&self, state: &mut State<H>) -> State<H> {
        State {
            waiting: std::mem::take(&mut state.waiting),
            background: std::mem::take(&mut state.background),
            ..State::default()
        }
    }

    fn waiting(&self, state: &State<H>) -> usize {
        state.waiting.len() + state.background.len()
    }
}

impl<H: Host> State<H> {
    fn has_any(&self) -> bool {
        !self.waiting.is_empty() || !self.background.is_empty()
    }

    fn queue(&mut self, class: Class) -> &mut VecDeque<Queued<H>> {
        match class {
            Class::Client => &mut self.waiting,
            Class::Background => &mut self.background,
        }
    }
}
