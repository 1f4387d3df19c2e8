//! The threads of one device. Two lanes, one for reading and one for writing, each with its own
//! bounded queue: a device that hangs fills its own queues and nothing else, and reads do not
//! wait behind syncs. A third has one thread that merges what busy databases have logged, one
//! job for each of them. Threads start as work comes, and end when they have had none for as long as
//! it takes to close an idle database.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::config::{IndexConfig, Runner};
use crate::deferred;

/// A write thread makes so many databases' transactions before it syncs.
const JOBS_AT_ONCE: usize = 32;

pub(crate) type Job = Box<dyn FnOnce() + Send>;

pub(crate) struct Device {
    pub(crate) read: Arc<Lane>,
    pub(crate) write: Arc<Lane>,
    pub(crate) merge: Arc<Lane>,
}

impl Device {
    pub(crate) fn new(name: &str, config: &IndexConfig) -> Self {
        let lane = |use_: &str, threads: usize, at_once: usize| {
            Arc::new(Lane {
                at_once,
                name: format!("{use_}-{name}"),
                threads_max: threads.max(1),
                jobs_max: config.queue_jobs_max.max(1),
                idle_close: config.idle_close,
                runner: config.runner.clone(),
                state: Mutex::default(),
                wake: Condvar::new(),
            })
        };
        Device {
            read: lane("ixr", config.read_threads, 1),
            write: lane("ixw", config.write_threads(), JOBS_AT_ONCE),
            merge: lane("ixm", 1, 1),
        }
    }

    pub(crate) fn close(&self) {
        self.read.close();
        self.write.close();
        self.merge.close();
    }
}

/// A queue and the threads that empty it.
pub(crate) struct Lane {
    name: String,
    threads_max: usize,
    jobs_max: usize,
    /// A thread without work for this long ends.
    idle_close: Duration,
    runner: Option<Runner>,
    /// Jobs that one thread takes together.
    at_once: usize,
    state: Mutex<LaneState>,
    wake: Condvar,
}

#[derive(Default)]
struct LaneState {
    jobs: VecDeque<Job>,
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    closed: bool,
}

impl Lane {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn lock(&self) -> MutexGuard<'_, LaneState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Jobs that no thread has taken up yet.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().jobs.len()
    }

    /// Queues a job; false when the queue is full or closed.
    pub(crate) fn push(self: &Arc<Self>, job: Job) -> bool {
        let mut state = self.lock();
        if state.closed || state.jobs.len() >= self.jobs_max {
            return false;
        }
        if let Some(runner) = &self.runner {
            drop(state);
            self.hand_over(runner, job);
            return true;
        }
        state.jobs.push_back(job);
        self.ensure_thread(&mut state)
    }

    /// Queues a job beyond the bound: the rest of one that runs now, or the closing of a
    /// database, of which there are never more than databases open.
    pub(crate) fn push_rest(self: &Arc<Self>, job: Job) {
        if let Some(runner) = &self.runner {
            return self.hand_over(runner, job);
        }
        let mut state = self.lock();
        state.jobs.push_back(job);
        self.ensure_thread(&mut state);
    }

    fn hand_over(self: &Arc<Self>, runner: &Runner, job: Job) {
        let lane = Arc::clone(self);
        runner(Box::new(move || {
            lane.run(job);
            deferred::flush();
        }));
    }

    /// Wakes or starts a thread for the job just queued; without any thread the job is taken
    /// back and dropped.
    fn ensure_thread(self: &Arc<Self>, state: &mut LaneState) -> bool {
        if state.idle >= state.jobs.len() {
            self.wake.notify_one();
            return true;
        }
        if state.threads.len() < self.threads_max && !state.closed {
            let lane = Arc::clone(self);
            let spawned = thread::Builder::new()
                .name(self.name.chars().take(15).collect())
                .spawn(move || lane.work());
            match spawned {
                Ok(thread) => state.threads.push(thread),
                Err(error) => {
                    tracing::error!(lane = self.name, %error, "no thread for a device");
                    if state.threads.is_empty() {
                        state.jobs.pop_back();
                        return false;
                    }
                }
            }
        }
        self.wake.notify_one();
        true
    }

    fn work(&self) {
        let mut state = self.lock();
        let mut was_idle = false;
        loop {
            if !state.jobs.is_empty() {
                let count = state.jobs.len().min(self.at_once);
                let jobs: Vec<Job> = state.jobs.drain(..count).collect();
                let is_alone = count == 1 && state.jobs.is_empty();
                drop(state);
                deferred::set_alone(is_alone);
                for job in jobs {
                    self.run(job);
                }
                deferred::flush();
                state = self.lock();
                was_idle = false;
            } else if state.closed || was_idle {
                // Decided under the lock: who queues a job finds this thread idle, or gone.
                let this = thread::current().id();
                state.threads.retain(|thread| thread.thread().id() != this);
                return;
            } else {
                state.idle += 1;
                let waited = self.wake.wait_timeout(state, self.idle_close);
                let (again, waited) = waited.unwrap_or_else(PoisonError::into_inner);
                state = again;
                state.idle -= 1;
                was_idle = waited.timed_out();
            }
        }
    }

    fn run(&self, job: Job) {
        if catch_unwind(AssertUnwindSafe(job)).is_err() {
            tracing::error!(lane = self.name, "a job panicked");
        }
    }

    /// Does what is queued, and ends the threads.
    fn close(&self) {
        let threads = {
            let mut state = self.lock();
            state.closed = true;
            std::mem::take(&mut state.threads)
        };
        self.wake.notify_all();
        for thread in threads {
            if thread.thread().id() != thread::current().id() {
                // A panic of the thread itself has been reported where it happened.
                let _ = thread.join();
            }
        }
        // Without a thread left, what came last is done here.
        loop {
            let Some(job) = self.lock().jobs.pop_front() else {
                return;
            };
            self.run(job);
            // What it leaves to be done may be a job again.
            deferred::flush();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;

    fn device(idle_close: Duration) -> Device {
        let mut config = IndexConfig::new("/");
        config.read_threads = 1;
        config.idle_close = idle_close;
        Device::new("d", &config)
    }

    #[test]
    fn threads_end_when_they_are_idle_and_start_again() {
        let idle = Duration::from_millis(20);
        let device = device(idle);
        for _ in 0..3 {
            let (go, wait_go) = mpsc::channel::<()>();
            assert!(device.read.push(Box::new(move || {
                let _ = wait_go.recv();
            })));
            thread::sleep(idle * 3);
            assert_eq!(device.read.lock().threads.len(), 1, "one at work ended");
            drop(go);
            let patience = Instant::now();
            while !device.read.lock().threads.is_empty() {
                assert!(patience.elapsed().as_secs() < 60, "an idle thread stays");
                thread::sleep(Duration::from_millis(5));
            }
        }
        device.close();
    }

    /// Jobs come just as the only thread of a lane ends.
    #[test]
    fn no_job_is_lost_to_a_thread_that_ends() {
        let idle = Duration::from_micros(200);
        let one_lane = || {
            let device = device(idle);
            for round in 0..4000 {
                let (done, is_done) = mpsc::channel();
                assert!(device.read.push(Box::new(move || done.send(()).unwrap())));
                let in_time = is_done.recv_timeout(Duration::from_secs(30));
                in_time.expect("a job waits, and no thread comes for it");
                // From half of the time to twice as long.
                thread::sleep(idle / 2 + idle * (round % 16) / 10);
            }
            device.close();
        };
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(one_lane);
            }
        });
    }
}
