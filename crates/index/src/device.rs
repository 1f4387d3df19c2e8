//! Lanes of one device's databases: one for reads and one for writes, each with a bounded queue, so
//! that a hanging device fills only its own queues and reads do not wait behind syncs. A third has
//! one thread that merges the pending files of busy databases, one job each.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use cairn_device::{Advanced, CommitLane, Host, Job, JobLane, Kind, LaneConfig, Operation};

use crate::config::IndexConfig;

/// Maximum jobs (databases' transactions) that a write thread runs per sync.
const JOBS_PER_SYNC_MAX: usize = 32;

pub(crate) struct Device {
    pub(crate) read: Arc<JobLane>,
    pub(crate) write: Arc<WriteLane>,
    pub(crate) merge: Arc<JobLane>,
}

/// Lane of transactions, many of which share a sync.
pub(crate) type WriteLane = CommitLane<Databases>;

/// Host of the write lane: stateless, as each database is opened separately.
pub(crate) struct Databases;

impl Host for Databases {
    type OpenDevice = ();
    type Error = Infallible;

    fn begin(&self) -> Result<(), Infallible> {
        Ok(())
    }
}

/// Job of a write thread outside the shared sync.
pub(crate) struct SingleJob(Option<Job>);

impl SingleJob {
    pub(crate) fn new(job: Job) -> Box<Self> {
        Box::new(SingleJob(Some(job)))
    }
}

impl Operation<Databases> for SingleJob {
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
        let lane = |use_: &str, threads: usize| LaneConfig {
            name: format!("{use_}-{name}"),
            threads,
            depth: config.queue_jobs_max,
            idle_close: config.idle_close,
            batch_max: JOBS_PER_SYNC_MAX,
            machine: config.machine.clone(),
            share: None,
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

    /// Submits jobs just as a lane's only thread exits.
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
