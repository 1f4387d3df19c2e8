//! Resource monitoring of a host: CPU, memory, network, disks and processes from /proc, once per
//! interval, and distances between successive disk I/Os if tracing is permitted.

mod blocks;
mod proc;

use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use self::proc::Reading;
use crate::drive::now;
use crate::record::{HostMeta, ResourceSample};

/// Properties of this host.
pub fn host() -> HostMeta {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let cpu = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    HostMeta {
        name: read("/proc/sys/kernel/hostname").trim().to_owned(),
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        cpu: cpu
            .map(|(_, name)| name.trim().to_owned())
            .unwrap_or_default(),
        cores: crate::drive::cores(),
        memory_bytes: proc::memory().0,
    }
}

/// Why distances between disk I/Os cannot be measured here, with the remedy; `None` if they can.
pub fn distances_note() -> Option<String> {
    blocks::permitted().err()
}

/// Takes samples on a thread of its own until dropped, with a last sample then.
#[derive(Debug)]
pub struct Sampler {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sampler {
    /// `watched` lists command names of further processes to sample.
    pub fn start(
        interval: Duration,
        watched: Vec<String>,
        mut tell: impl FnMut(ResourceSample) + Send + 'static,
    ) -> Self {
        let (stop, stopped) = mpsc::channel();
        let sample = move || {
            let mut before = Reading::take(&watched);
            let mut blocks = blocks::Tracer::start().ok();
            let mut began = Instant::now();
            loop {
                let last = !matches!(
                    stopped.recv_timeout(interval),
                    Err(mpsc::RecvTimeoutError::Timeout)
                );
                let seconds = began.elapsed().as_secs_f64();
                // A very short interval would only show noise.
                if !last || seconds > interval.as_secs_f64() / 4.0 {
                    began = Instant::now();
                    let after = Reading::take(&watched);
                    let mut sample = after.since(&before, seconds);
                    sample.at = now();
                    if let Some(blocks) = &mut blocks {
                        sample.distances = blocks.take();
                    }
                    tell(sample);
                    before = after;
                }
                if last {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("resources".into())
            .spawn(sample)
            .ok();
        Self {
            stop: Some(stop),
            thread,
        }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
