//! The lanes of one device's databases. One is for reading and one for writing, each with its own
//! bounded queue: a device that hangs fills its own queues and nothing else, and reads do not
//! wait behind syncs. A third has one thread that merges what busy databases have logged, one
//! job for each of them.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use cairn_device::{Advanced, CommitLane, Host, Job, JobLane, Kind, LaneConfig, Operation, Share};

use crate::config::IndexConfig;

/// A write thread makes so many databases' transactions before it syncs.
const JOBS_AT_ONCE: usize = 32;

pub(crate) struct Device {
    pub(crate) read: Arc<JobLane>,
    pub(crate) write: Arc<WriteLane>,
    pub(crate) merge: Arc<JobLane>,
}

/// Transactions, of which many share a sync.
pub(crate) type WriteLane = CommitLane<Databases>;

/// The databases of a device: each is opened by itself.
pub(crate) struct Databases;

impl Host for Databases {
    type Ground = ();
    type Error = Infallible;

    fn begin(&self) -> Result<(), Infallible> {
        Ok(())
    }
}

/// A job of a write thread that syncs, if at all, by itself.
pub(crate) struct Alone(Option<Job>);

impl Alone {
    pub(crate) fn new(job: Job) -> Box<Self> {
        Box::new(Alone(Some(job)))
    }
}

impl Operation<Databases> for Alone {
    fn advance(&mut self, (): &(), _is_alone: bool) -> Advanced {
        if let Some(job) = self.0.take() {
            job();
        }
        Advanced::Ended(None)
    }

    fn sync_failed(&mut self, (): &(), _error: &io::Error) {}

    fn fail(&mut self, (): &(), _error: &io::Error) {}

    fn refuse(&mut self, error: &Infallible) {
        match *error {}
    }
}

impl Device {
    pub(crate) fn new(name: &str, config: &IndexConfig) -> Self {
        let share = Arc::new(Share::default());
        let lane = |use_: &str, threads: usize| LaneConfig {
            name: format!("{use_}-{name}"),
            threads,
            depth: config.queue_jobs_max,
            idle_close: config.idle_close,
            batch_max: JOBS_AT_ONCE,
            machine: config.machine.clone(),
            share: share.clone(),
        };
        let write = lane("ixw", config.write_threads());
        Device {
            read: JobLane::new(Kind::Read, lane("ixr", config.read_threads)),
            write: WriteLane::new(Kind::Commit, Databases, write),
            merge: JobLane::new(Kind::Write, lane("ixm", 1)),
        }
    }

    pub(crate) fn close(&self) {
        self.read.close();
        self.write.close();
        self.merge.close();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::mpsc;
    use std::thread;
    use std::time::{Duration, Instant};

    use cairn_device::Class;

    use super::*;

    fn device(idle_close: Duration) -> Device {
        let mut config = IndexConfig::new("/");
        config.read_threads = 1;
        config.idle_close = idle_close;
        Device::new("d", &config)
    }

    fn push(device: &Device, job: Job) -> bool {
        device.read.push(Class::Client, job).is_ok()
    }

    #[test]
    fn threads_end_when_they_are_idle_and_start_again() {
        let idle = Duration::from_millis(20);
        let device = device(idle);
        for _ in 0..3 {
            let (go, wait_go) = mpsc::channel::<()>();
            assert!(push(
                &device,
                Box::new(move || {
                    let _ = wait_go.recv();
                })
            ));
            thread::sleep(idle * 3);
            assert_eq!(device.read.workers(), 1, "one at work ended");
            drop(go);
            let patience = Instant::now();
            while device.read.workers() > 0 {
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
                assert!(push(&device, Box::new(move || done.send(()).unwrap())));
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
