//! Processor time of processes and of the host, sampled while a cell runs (proc(5)).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// Unit of processes' times in proc(5), whatever the kernel's own tick.
const TICKS_A_SECOND: f64 = 100.0;
/// Maximum samples: half an hour.
const SAMPLES_MAX: usize = 18_000;

#[derive(Clone, Debug)]
struct Sample {
    /// Seconds since 1970.
    at: f64,
    /// Seconds of each watched process so far; ended ones keep their last value.
    each: Vec<f64>,
    /// Seconds that the host's processors were busy so far.
    host: f64,
}

/// Sampler of processes, until queried.
pub(super) struct Watch {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Sample>>,
}

/// Processor seconds per second within a time window.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Used {
    pub(super) each: Vec<f64>,
    pub(super) host: f64,
}

impl Watch {
    pub(super) fn start(processes: Vec<u32>) -> Watch {
        let ends = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            let mut samples: Vec<Sample> = Vec::new();
            while !ended.load(Ordering::Acquire) && samples.len() < SAMPLES_MAX {
                let before = samples.last().map(|sample| sample.each.clone());
                samples.push(sample(&processes, before));
                std::thread::sleep(SAMPLE_INTERVAL);
            }
            samples
        });
        Watch { ends, thread }
    }

    /// `None` if the window has too few samples.
    pub(super) fn used(self, from: f64, to: f64) -> Option<Used> {
        self.ends.store(true, Ordering::Release);
        let samples = self.thread.join().ok()?;
        let mut within = samples.iter().filter(|s| (from..=to).contains(&s.at));
        let first = within.next()?;
        let last = within.next_back()?;
        let seconds = last.at - first.at;
        if seconds <= 0.5 {
            return None;
        }
        let rate = |(last, first): (&f64, &f64)| (last - first) / seconds;
        Some(Used {
            each: last.each.iter().zip(&first.each).map(rate).collect(),
            host: rate((&last.host, &first.host)),
        })
    }
}

fn sample(processes: &[u32], before: Option<Vec<f64>>) -> Sample {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let each = processes.iter().enumerate().map(|(index, process)| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
        let known = before.as_ref().and_then(|b| b.get(index).copied());
        stat.ok()
            .and_then(|text| of_process(&text))
            .or(known)
            .unwrap_or(0.0)
    });
    let host = std::fs::read_to_string("/proc/stat").ok();
    Sample {
        at: since.as_secs_f64(),
        each: each.collect(),
        host: host.and_then(|text| of_host(&text)).unwrap_or(0.0),
    }
}

/// User and system time in a `/proc/PID/stat`; the command's name may contain spaces and brackets.
fn of_process(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / TICKS_A_SECOND)
}

/// Busy time in `/proc/stat`: all except idle and I/O wait; steal time counts as used by others.
fn of_host(stat: &str) -> Option<f64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<f64> = line
        .split_whitespace()
        .map_while(|f| f.parse().ok())
        .collect();
    let busy: f64 = fields.iter().take(8).sum::<f64>() - fields.get(3)? - fields.get(4)?;
    Some(busy / TICKS_A_SECOND)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        let stat = "12 (a) b) S 1 12 12 0 -1 4194560 100 0 0 0 250 150 0 0 20 0 1 0 100 0 0";
        assert_eq!(of_process(stat), Some(4.0));
        assert_eq!(of_process("12 (a"), None);
        let host = "cpu  100 0 50 1000 20 0 10 40 0 0\ncpu0 1 2";
        assert_eq!(of_host(host), Some(2.0));
        assert_eq!(of_host("intr 1"), None);
    }

    #[test]
    fn a_process_that_works_is_seen() {
        let watch = Watch::start(vec![std::process::id()]);
        let started = std::time::Instant::now();
        let mut sum = 0u64;
        while started.elapsed() < Duration::from_millis(1200) {
            sum = sum
                .wrapping_mul(31)
                .wrapping_add(started.elapsed().subsec_nanos().into());
        }
        let used = watch.used(0.0, f64::MAX).unwrap();
        assert!(used.each[0] > 0.0 && used.host > 0.0, "{used:?} {sum}");
    }
}
