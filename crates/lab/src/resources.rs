//! What a host does around the load: CPU, memory, network, disks and processes from /proc, once
//! an interval, and how far apart successive disk I/Os lie where the kernel tells.

mod blocks;
mod proc;

use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use self::proc::Reading;
use crate::drive::now;
use crate::record::{HostMeta, ResourceSample};

/// Facts of this machine.
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

/// Whether distances between disk I/Os can be told here, and what to do if not.
pub fn distances_note() -> Option<String> {
    blocks::permitted().err()
}

/// Samples on a thread of its own until it is dropped; the last sample comes then.
#[derive(Debug)]
pub struct Sampler {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sampler {
    /// `watched`: also processes whose command name is one of these.
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
                // A part of an interval too short would only show noise.
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
