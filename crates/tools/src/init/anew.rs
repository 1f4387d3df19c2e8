//! Detection of a server's restart from outside: it begins with a new worker.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Pid;

/// Timeout of a restart. A server with an invalid conf keeps running unchanged.
const RESTART_TIMEOUT: Duration = Duration::from_secs(2);

/// Servers, and the workers they had.
#[derive(Default)]
pub(super) struct NewStarts(Vec<(Pid, Vec<u32>)>);

impl NewStarts {
    /// Records the current workers; to be called before the signal.
    pub(super) fn expect(&mut self, running: Vec<(Pid, PathBuf)>) {
        let before = running.into_iter().map(|(pid, _)| (pid, children(pid)));
        self.0.extend(before);
    }

    /// Returns when each has a new worker, or has ended.
    pub(super) fn wait(mut self) {
        let deadline = Instant::now() + RESTART_TIMEOUT;
        while !self.0.is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
            self.0.retain(|(pid, before)| {
                let now = children(*pid);
                !now.is_empty() && now.iter().all(|child| before.contains(child))
            });
        }
    }
}

/// Child processes; empty if the kernel does not report them.
fn children(pid: Pid) -> Vec<u32> {
    let pid = pid.as_raw_nonzero();
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect()
}
