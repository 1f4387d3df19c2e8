//! A bounded queue and the threads that empty it.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use crate::machine::{Job, Machine};

/// Why a job was not taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    Full,
    Closed,
    NoThread,
}

pub(super) struct Lane {
    name: String,
    threads_max: usize,
    depth: usize,
    machine: Option<Arc<dyn Machine>>,
    state: Mutex<State>,
    ready: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Threads that wait for a job.
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    closed: bool,
}

impl Lane {
    pub(super) fn new(
        name: String,
        threads_max: usize,
        depth: usize,
        machine: Option<Arc<dyn Machine>>,
    ) -> Self {
        Lane {
            name,
            threads_max,
            depth,
            machine,
            state: Mutex::default(),
            ready: Condvar::new(),
        }
    }

    pub(super) fn push(self: &Arc<Self>, job: Job) -> Result<(), Refused> {
        let mut state = self.lock();
        if state.closed {
            return Err(Refused::Closed);
        }
        if state.jobs.len() >= self.depth {
            return Err(Refused::Full);
        }
        if let Some(machine) = &self.machine {
            drop(state);
            machine.run(job);
            return Ok(());
        }
        state.jobs.push_back(job);
        if state.jobs.len() > state.idle && state.threads.len() < self.threads_max {
            let lane = self.clone();
            let name = format!("{}-{}", self.name, state.threads.len());
            // The kernel keeps fifteen bytes of a thread's name.
            let spawned = thread::Builder::new().name(name).spawn(move || lane.work());
            match spawned {
                Ok(thread) => state.threads.push(thread),
                Err(_) if state.threads.is_empty() => {
                    state.jobs.pop_back();
                    return Err(Refused::NoThread);
                }
                Err(_) => {}
            }
        }
        drop(state);
        self.ready.notify_one();
        Ok(())
    }

    /// Jobs that no thread has taken up yet.
    pub(super) fn waiting(&self) -> usize {
        self.lock().jobs.len()
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
        while let Some(job) = self.next() {
            // A panic ends its job, not the device: whoever waits sees the channel closed.
            let _ = std::panic::catch_unwind(AssertUnwindSafe(job));
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
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
