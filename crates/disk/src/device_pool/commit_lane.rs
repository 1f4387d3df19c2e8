//! A bounded queue of durable operations, and the few threads that take all that wait at once. Those of
//! background work have a queue of their own, and batches of their own while no client's waits.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::lane::{Refused, forget_this_thread};
use super::share::{self, Class, Kind, Share};
use super::{DeviceState, DevicesConfig};
use crate::error::DiskError;
use crate::machine::Machine;
use crate::steps::{self, Operation};

/// Operations taken at once: enough to make a sync cheap, not so many that the first waits long.
const BATCH_MAX: usize = 64;
const BATCH_LEAST: usize = 4;
/// Tidying up after a batch should not take longer.
const TIDY_MAX: Duration = Duration::from_millis(100);
/// Background operations that share a sync, at least: fewer would cost the disk as much.
const BACKGROUND_BATCH: usize = 16;
/// Of a smaller share of the device background work has one thread.
const SHARE_OF_ONE_THREAD: f64 = share::WHOLE / 2.0;
/// Between two looks at background work that may not run yet.
const LOOK: Duration = Duration::from_millis(5);

pub(super) struct CommitLane {
    name: String,
    threads_max: usize,
    depth: usize,
    /// A thread without work for this long ends.
    idle_close: Duration,
    share: Arc<Share>,
    /// Clients' operations that are taken at once now.
    most: AtomicUsize,
    state: Mutex<State>,
    ready: Condvar,
}

/// An operation, and since when it waits.
struct Queued {
    operation: Box<dyn Operation>,
    since: Instant,
}

/// Operations that go together; the first has waited longest.
struct Batch {
    class: Class,
    operations: Vec<Queued>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Queued>,
    background: VecDeque<Queued>,
    /// Batches of clients' operations under way.
    clients: usize,
    /// Batches of background work under way.
    running: usize,
    /// Background work rests until then.
    rests_until: Option<Instant>,
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    closed: bool,
}

impl CommitLane {
    pub(super) fn new(name: String, config: &DevicesConfig, share: Arc<Share>) -> Arc<Self> {
        Arc::new(CommitLane {
            name,
            threads_max: config.commit_threads.max(1),
            depth: config.queue_depth.max(1),
            idle_close: config.idle_close,
            share,
            most: AtomicUsize::new(BATCH_MAX),
            state: Mutex::default(),
            ready: Condvar::new(),
        })
    }

    /// Threads that work or wait for work.
    #[cfg(test)]
    pub(super) fn threads(&self) -> usize {
        self.lock().threads.len()
    }

    pub(super) fn push(
        self: &Arc<Self>,
        device: &Arc<DeviceState>,
        class: Class,
        operation: Box<dyn Operation>,
    ) -> Result<(), Refused> {
        let mut state = self.lock();
        if state.closed {
            return Err(Refused::Closed);
        }
        if state.queue(class).len() >= self.depth {
            return Err(Refused::Full);
        }
        if let Some(machine) = &device.config.machine {
            drop(state);
            next_step(machine, device, operation);
            return Ok(());
        }
        let since = Instant::now();
        state.queue(class).push_back(Queued { operation, since });
        if state.idle == 0 && state.threads.len() < self.threads_beside(class, state.running) {
            let (lane, device) = (self.clone(), device.clone());
            let name = format!("{}-{}", self.name, state.threads.len());
            match thread::Builder::new()
                .name(name)
                .spawn(move || lane.work(&device))
            {
                Ok(thread) => state.threads.push(thread),
                Err(_) if state.threads.is_empty() => {
                    state.queue(class).pop_back();
                    return Err(Refused::NoThread);
                }
                Err(_) => {}
            }
        }
        let is_first = state.queue(class).len() == 1;
        drop(state);
        // Whoever was woken for the first takes the others along.
        if is_first {
            self.ready.notify_one();
        }
        Ok(())
    }

    /// Where there is background work, `running` batches of it, there is one thread more: clients find
    /// one when all that background work may have are syncing.
    fn threads_beside(&self, class: Class, running: usize) -> usize {
        let is_there = class == Class::Background || running > 0;
        self.threads_max + usize::from(is_there)
    }

    /// Takes no more, finishes what is queued, joins the threads.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        self.ready.notify_all();
        for thread in threads {
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }

    fn work(&self, device: &Arc<DeviceState>) {
        while let Some(Batch { class, operations }) = self.next() {
            let began = Instant::now();
            let since = operations.first().map_or(began, |queued| queued.since);
            let count = operations.len();
            let operations = operations.into_iter().map(|queued| queued.operation);
            match device.writable_disk() {
                Ok(disk) => {
                    let tidied = steps::run_all(&disk, operations.collect());
                    self.take_as_many_as(count, tidied);
                }
                Err(error) => {
                    for mut operation in operations {
                        operation.fail(DiskError::from(error.clone()));
                    }
                }
            }
            let now = Instant::now();
            match class {
                Class::Client => {
                    self.share.client_done(Kind::Commit, since, now);
                    self.lock().clients -= 1;
                }
                Class::Background => {
                    self.share.background_done(count, since, now);
                    let rest = share::rest(self.share.now(now), now - began);
                    let mut state = self.lock();
                    state.running -= 1;
                    state.rests_until = Some(now + rest);
                }
            }
        }
    }

    /// Those who wait now do so for what was left to tidy up after the last batch: where that takes
    /// long (large files are removed), batches are small, and nobody waits for that of many others.
    fn take_as_many_as(&self, count: usize, tidied: Duration) {
        let most = if tidied > TIDY_MAX {
            (count / 2).max(BATCH_LEAST)
        } else if tidied < TIDY_MAX / 4 {
            (count * 2).max(self.most.load(Ordering::Relaxed))
        } else {
            return;
        };
        self.most.store(most.min(BATCH_MAX), Ordering::Relaxed);
    }

    /// The next thing to do. `None`: the thread is to end, and is no longer counted as one of the lane's.
    fn next(&self) -> Option<Batch> {
        let mut state = self.lock();
        let mut was_idle = false;
        loop {
            if let Some(operations) = self.next_background(&mut state) {
                state.running += 1;
                if !state.waiting.is_empty() || !state.background.is_empty() {
                    self.ready.notify_one();
                }
                return Some(Batch {
                    class: Class::Background,
                    operations,
                });
            }
            if !state.waiting.is_empty() && state.clients < self.threads_max {
                state.clients += 1;
                let count = state.waiting.len().min(self.most.load(Ordering::Relaxed));
                let operations = state.waiting.drain(..count).collect();
                if !state.waiting.is_empty() || !state.background.is_empty() {
                    self.ready.notify_one();
                }
                return Some(Batch {
                    class: Class::Client,
                    operations,
                });
            }
            let has_ended = state.closed || (was_idle && state.waiting.is_empty());
            // Decided under the lock: who queues an operation finds this thread idle, or gone.
            if has_ended && state.background.is_empty() {
                forget_this_thread(&mut state.threads);
                return None;
            }
            let watches = !state.background.is_empty();
            let wait_max = if watches { LOOK } else { self.idle_close };
            state.idle += 1;
            let waited = self.ready.wait_timeout(state, wait_max);
            let (again, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            state = again;
            state.idle -= 1;
            was_idle = !watches && waited.timed_out();
        }
    }

    /// Background operations whose turn it is: nothing of clients' waits, or they have waited long.
    fn next_background(&self, state: &mut State) -> Option<Vec<Queued>> {
        let oldest = state.background.front()?.since;
        let now = Instant::now();
        let is_old = now.saturating_duration_since(oldest) >= share::WAIT_MAX;
        let rests = !is_old && state.rests_until.is_some_and(|until| now < until);
        let is_last = state.closed && state.waiting.is_empty();
        let share = self.share.now(now);
        // Of one batch another's work goes on while it syncs, unless clients feel it.
        let threads = match share < SHARE_OF_ONE_THREAD {
            true => 1,
            false => self.threads_max,
        };
        let has_turn = state.waiting.is_empty() || (is_old && state.running == 0);
        let must_wait = rests || state.running >= threads || !has_turn;
        if must_wait && !is_last {
            return None;
        }
        let most = (share as usize).clamp(BACKGROUND_BATCH, BATCH_MAX);
        let count = state.background.len().min(most);
        Some(state.background.drain(..count).collect())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn queue(&mut self, class: Class) -> &mut VecDeque<Queued> {
        match class {
            Class::Client => &mut self.waiting,
            Class::Background => &mut self.background,
        }
    }
}

/// A simulated machine is given each step by itself: it may fail between two.
fn next_step(
    machine: &Arc<dyn Machine>,
    device: &Arc<DeviceState>,
    mut operation: Box<dyn Operation>,
) {
    let (own, device) = (machine.clone(), device.clone());
    machine.run(Box::new(move || match device.writable_disk() {
        Ok(disk) => {
            if operation.advance(&disk, true) {
                match steps::durable(&disk, operation.weight(), || operation.sync_own()) {
                    Ok(()) => next_step(&own, &device, operation),
                    Err(error) => operation.fail(error),
                }
            }
        }
        Err(error) => operation.fail(error.into()),
    }));
}
