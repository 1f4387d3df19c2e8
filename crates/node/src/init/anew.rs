//! Servers that start themselves anew, seen from outside: their first deed is another worker.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Pid;

/// For a new start. A server whose conf would not let it come up goes on as it is.
const PATIENCE: Duration = Duration::from_secs(2);

/// Servers, and the workers they had.
#[derive(Default)]
pub(super) struct NewStarts(Vec<(Pid, Vec<u32>)>);

impl NewStarts {
    /// To be called before they are told.
    pub(super) fn expect(&mut self, running: Vec<(Pid, PathBuf)>) {
        let before = running.into_iter().map(|(pid, _)| (pid, children(pid)));
        self.0.extend(before);
    }

    /// Comes back when each has another worker, or has ended.
    pub(super) fn wait(mut self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.0.is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
            self.0.retain(|(pid, before)| {
                let now = children(*pid);
                !now.is_empty() && now.iter().all(|child| before.contains(child))
            });
        }
    }
}

/// The processes that a process has started; none where the kernel does not tell.
fn children(pid: Pid) -> Vec<u32> {
    let pid = pid.as_raw_nonzero();
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect()
}
