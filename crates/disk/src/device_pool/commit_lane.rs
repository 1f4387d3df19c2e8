//! A bounded queue of durable operations, and the few threads that take all that wait at once.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::DeviceState;
use super::lane::Refused;
use crate::error::DiskError;
use crate::machine::Machine;
use crate::steps::{self, Operation};

/// Operations taken at once: enough to make a sync cheap, not so many that the first waits long.
const BATCH_MAX: usize = 64;

pub(super) struct CommitLane {
    name: String,
    threads_max: usize,
    depth: usize,
    state: Mutex<State>,
    ready: Condvar,
}

#[derive(Default)]
struct State {
    waiting: Vec<Box<dyn Operation>>,
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    closed: bool,
}

impl CommitLane {
    pub(super) fn new(name: String, threads_max: usize, depth: usize) -> Arc<Self> {
        Arc::new(CommitLane {
            name,
            threads_max,
            depth,
            state: Mutex::default(),
            ready: Condvar::new(),
        })
    }

    pub(super) fn push(
        self: &Arc<Self>,
        device: &Arc<DeviceState>,
        operation: Box<dyn Operation>,
    ) -> Result<(), Refused> {
        let mut state = self.lock();
        if state.closed {
            return Err(Refused::Closed);
        }
        if state.waiting.len() >= self.depth {
            return Err(Refused::Full);
        }
        if let Some(machine) = &device.config.machine {
            drop(state);
            next_step(machine, device, operation);
            return Ok(());
        }
        state.waiting.push(operation);
        if state.idle == 0 && state.threads.len() < self.threads_max {
            let (lane, device) = (self.clone(), device.clone());
            let name = format!("{}-{}", self.name, state.threads.len());
            match thread::Builder::new()
                .name(name)
                .spawn(move || lane.work(&device))
            {
                Ok(thread) => state.threads.push(thread),
                Err(_) if state.threads.is_empty() => {
                    state.waiting.pop();
                    return Err(Refused::NoThread);
                }
                Err(_) => {}
            }
        }
        let is_first = state.waiting.len() == 1;
        drop(state);
        // Whoever was woken for the first takes the others along.
        if is_first {
            self.ready.notify_one();
        }
        Ok(())
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
        while let Some(batch) = self.next() {
            match device.writable_disk() {
                Ok(disk) => steps::run_all(&disk, batch),
                Err(error) => {
                    for mut operation in batch {
                        operation.fail(DiskError::from(error.clone()));
                    }
                }
            }
        }
    }

    fn next(&self) -> Option<Vec<Box<dyn Operation>>> {
        let mut state = self.lock();
        loop {
            if !state.waiting.is_empty() {
                let count = state.waiting.len().min(BATCH_MAX);
                let batch = state.waiting.drain(..count).collect();
                if !state.waiting.is_empty() {
                    self.ready.notify_one();
                }
                return Some(batch);
            }
            if state.closed {
                return None;
            }
            state.idle += 1;
            state = self
                .ready
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
            if operation.advance(&disk) {
                match steps::durable(&disk, operation.weight(), || operation.sync_own()) {
                    Ok(()) => next_step(&own, &device, operation),
                    Err(error) => operation.fail(error),
                }
            } else if let Some(tidy_up) = operation.afterwards() {
                steps::run_afterwards(tidy_up);
            }
        }
        Err(error) => operation.fail(error.into()),
    }));
}
