//! Resource usage of a store's processes, from /proc: CPU time of all of them with their children,
//! and memory as PSS, which divides pages shared between forked workers.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Fields of /proc/PID/stat after the command's name, which may contain spaces and brackets.
fn stat(pid: u32) -> Option<Vec<u64>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = text.rsplit_once(')')?.1;
    // The first field is the state, a letter; it becomes 0.
    Some(
        rest.split_whitespace()
            .map(|f| f.parse().unwrap_or(0))
            .collect(),
    )
}

const PARENT: usize = 1;
const TIMES: std::ops::Range<usize> = 11..15;

/// The processes and all their descendants.
pub(crate) fn with_children(roots: &[u32]) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|n| n.parse::<u32>().ok())
        else {
            continue;
        };
        if let Some(parent) = stat(pid).and_then(|s| s.get(PARENT).copied()) {
            children.entry(parent as u32).or_default().push(pid);
        }
    }
    let mut all = roots.to_vec();
    let mut next = 0;
    while next < all.len() {
        all.extend(children.remove(&all[next]).unwrap_or_default());
        next += 1;
    }
    all
}

/// User and system time so far, including children that have ended.
pub(crate) fn cpu_seconds(roots: &[u32]) -> f64 {
    let ticks: u64 = with_children(roots)
        .into_iter()
        .filter_map(stat)
        .filter_map(|s| s.get(TIMES).map(|times| times.iter().sum::<u64>()))
        .sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

fn memory_bytes(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}

/// Samples the memory usage until dropped.
pub(crate) struct Watch {
    peak: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
}

impl Watch {
    pub(crate) fn start(roots: Vec<u32>) -> Watch {
        let watch = Watch {
            peak: Arc::default(),
            ended: Arc::default(),
        };
        let (peak, ended) = (watch.peak.clone(), watch.ended.clone());
        std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                let now = with_children(&roots).into_iter().map(memory_bytes).sum();
                peak.fetch_max(now, Ordering::Relaxed);
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        watch
    }

    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}
