//! A lane of durable operations: its few threads take all that wait at once, as a batch, which shares
//! its syncs. Operations of background work have a queue of their own, and batches of their own while
//! no client's waits.
//!
//! Each operation of a batch runs to its next sync, which is then done once for all of them, until the
//! last has ended; then comes what they leave to tidy up. A batch goes by steps (an operation advances,
//! a thing is synced), so that a simulator can have something fail between any two. Whatever happens,
//! each operation hears once how it ended: where a sync fails or panics, all that wait for it are told
//! so, and where an operation panics, its own waiter sees a closed channel and the others go on.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use cairn_types::plant::Plant;

use super::step::Afterwards;
use super::{
    BACKGROUND_POLL_INTERVAL, Bound, Discipline, Lane, LaneConfig, Moment, Progress, Pushing,
    Queued as Push, Refused, Turn, Wait,
};
use crate::share::{self, Class, Kind};
use crate::syncs::{Patience, SyncSet, Syncing};

/// Background operations that share a sync, at least: fewer would cost the disk as much.
const BACKGROUND_BATCH: usize = 16;
/// With a smaller share of the device background work has one thread.
const SHARE_OF_ONE_THREAD: f64 = share::SHARE_MAX / 2.0;

/// The device of a commit lane.
pub trait Host: Send + Sync + Sized + 'static {
    /// The device, opened for one batch.
    type OpenDevice: Send;
    /// Why it cannot be.
    type Error: Send;

    /// Opens the device.
    ///
    /// # Errors
    /// It is gone, or takes no writes.
    fn begin(&self) -> Result<Self::OpenDevice, Self::Error>;

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
    fn advance(&mut self, opened: &H::OpenDevice, is_alone: bool) -> Advanced;
    /// The sync that it and others wait for has failed: called of all of them before any hears of it by
    /// [`Operation::fail`], for that one may try again at once.
    fn sync_failed(&mut self, opened: &H::OpenDevice, error: &io::Error);
    /// Ends it without success: its sync failed.
    fn fail(&mut self, opened: &H::OpenDevice, error: &io::Error);
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
            let count = state.waiting.len().min(self.config.batch_max.max(1));
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
                BACKGROUND_POLL_INTERVAL
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
        taken.batch.step(&self.host, patience)
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

/// Operations that go together.
struct Batch<H: Host> {
    operations: Vec<Box<dyn Operation<H>>>,
    /// Nobody else waited when it was taken.
    is_all: bool,
    /// The device, opened for all of them.
    opened: Option<H::OpenDevice>,
    stage: Stage,
    /// The sets of those that have advanced, by file system.
    sets: Vec<SyncSet>,
    afterwards: Vec<Afterwards>,
}

enum Stage {
    Begin,
    /// The operation of this number is next; `is_alone`: nobody else waits for the thread.
    Advance {
        at: usize,
        is_alone: bool,
    },
    Sync(Syncing),
    Tidy,
    /// Syncs what has been answered already: a bug on purpose.
    Late,
}

impl<H: Host> Batch<H> {
    fn new(operations: Vec<Box<dyn Operation<H>>>, is_all: bool) -> Self {
        Batch {
            operations,
            is_all,
            opened: None,
            stage: Stage::Begin,
            sets: Vec::new(),
            afterwards: Vec::new(),
        }
    }

    fn step(&mut self, host: &H, patience: Patience) -> Progress {
        let stage = std::mem::replace(&mut self.stage, Stage::Tidy);
        match stage {
            Stage::Begin => return self.begin(host),
            Stage::Advance { at, is_alone } => self.advance(at, is_alone),
            Stage::Sync(mut sync) => match sync.step(patience) {
                None => self.stage = Stage::Sync(sync),
                Some(synced) => match synced.err().or_else(|| host.broken()) {
                    None => self.sync_next(),
                    Some(error) => self.fail(&error),
                },
            },
            Stage::Tidy => return self.tidy(),
            Stage::Late => return self.sync_late(),
        }
        Progress::Goes
    }

    fn begin(&mut self, host: &H) -> Progress {
        match host.begin() {
            Ok(opened) => {
                self.opened = Some(opened);
                self.next_round();
                Progress::Goes
            }
            Err(error) => {
                for mut operation in self.operations.drain(..) {
                    caught(|| operation.refuse(&error));
                }
                Progress::Done
            }
        }
    }

    fn next_round(&mut self) {
        let is_alone = self.is_all && self.operations.len() == 1 && self.afterwards.is_empty();
        self.stage = Stage::Advance { at: 0, is_alone };
    }

    fn advance(&mut self, at: usize, is_alone: bool) {
        let Some(opened) = &self.opened else { return };
        let mut next = at;
        if let Some(operation) = self.operations.get_mut(at) {
            let advanced = catch_unwind(AssertUnwindSafe(|| operation.advance(opened, is_alone)));
            match advanced {
                Ok(Advanced::Sync(set)) => {
                    add(&mut self.sets, set);
                    next += 1;
                }
                Ok(Advanced::Ended(afterwards)) => {
                    self.afterwards.extend(afterwards);
                    drop(self.operations.remove(at));
                }
                Err(_) => {
                    tracing::error!("a durable operation panicked");
                    let panicked = self.operations.remove(at);
                    caught(|| drop(panicked));
                }
            }
        }
        if next < self.operations.len() {
            self.stage = Stage::Advance { at: next, is_alone };
        } else if self.operations.is_empty() {
            self.stage = Stage::Tidy;
        } else if Plant::AnswersBeforeSync.is_on() {
            self.next_round();
        } else {
            self.sync_next();
        }
    }

    /// Syncs what is still to be synced for all, or goes on with each.
    fn sync_next(&mut self) {
        match self.sets.pop() {
            Some(set) => self.stage = Stage::Sync(Syncing::new(set)),
            None => self.next_round(),
        }
    }

    /// Nobody knows what is on disk of what they wrote.
    fn fail(&mut self, error: &io::Error) {
        let Some(opened) = &self.opened else { return };
        self.sets.clear();
        for operation in &mut self.operations {
            caught(|| operation.sync_failed(opened, error));
        }
        for mut operation in self.operations.drain(..) {
            caught(|| operation.fail(opened, error));
        }
        self.stage = Stage::Tidy;
    }

    fn tidy(&mut self) -> Progress {
        if !self.afterwards.is_empty() {
            caught(self.afterwards.remove(0));
            return Progress::Goes;
        }
        if Plant::AnswersBeforeSync.is_on() && !self.sets.is_empty() {
            self.stage = Stage::Late;
            return Progress::Goes;
        }
        Progress::Done
    }

    fn sync_late(&mut self) -> Progress {
        if let Some(set) = self.sets.pop() {
            let _ = set.file_system.sync(&set);
            self.stage = Stage::Late;
            return Progress::Goes;
        }
        Progress::Done
    }
}

/// Adds what an operation needs to be synced to what others of its batch do.
fn add(sets: &mut Vec<SyncSet>, set: SyncSet) {
    match sets.iter_mut().find(|known| known.is_mergeable(&set)) {
        Some(known) => known.merge(set),
        None => sets.push(set),
    }
}

/// A panic ends the one thing that panicked.
fn caught(work: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        tracing::error!("a durable operation panicked");
    }
}
