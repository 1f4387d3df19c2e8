//! How the devices under one directory are served.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cairn_device::Syncs;

use crate::machine::Machine;

/// Space that stays free: an upload that would eat into it is refused (`fallocate_reserve`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FallocateReserve {
    Bytes(u64),
    Percent(f64),
}

impl FallocateReserve {
    /// `1%` or a number of bytes, as in the conf file.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        match text.strip_suffix('%') {
            Some(percent) => {
                let percent: f64 = percent.trim().parse().ok()?;
                (0.0..=100.0)
                    .contains(&percent)
                    .then_some(FallocateReserve::Percent(percent))
            }
            None => text.parse().ok().map(FallocateReserve::Bytes),
        }
    }
}

/// How the devices under one directory are served.
#[derive(Clone, Debug)]
pub struct DevicesConfig {
    /// The directory that holds the devices (`devices`, usually `/srv/node`).
    pub root: PathBuf,
    /// Serve a device only where something is mounted on it.
    pub mount_check: bool,
    /// Threads of each device that read.
    pub read_threads: usize,
    /// Threads of each device that write.
    pub write_threads: usize,
    /// Threads of each device that make small writes durable, many at a time: while one syncs,
    /// another works.
    pub commit_threads: usize,
    /// Operations that may wait in each lane of a device.
    pub queue_depth: usize,
    pub fallocate_reserve: FallocateReserve,
    /// Never reserve an upload's space beforehand.
    pub disable_fallocate: bool,
    /// Answer before data is on disk: for throw-away test clusters only. A power cut then loses
    /// what was acknowledged.
    pub unsafe_no_fsync: bool,
    /// A device that nobody used for so long is closed: it can be unmounted. Its threads end.
    pub idle_close: Duration,
    /// A simulator's, in place of threads and syncs.
    pub machine: Option<Arc<dyn Machine>>,
}

impl DevicesConfig {
    pub(super) fn syncs(&self) -> Syncs {
        Syncs {
            machine: self.machine.clone(),
            is_unsafe: self.unsafe_no_fsync,
        }
    }

    /// Workers are run by a simulator, for which nothing idle is closed.
    pub(super) fn is_simulated(&self) -> bool {
        let machine = self.machine.as_ref();
        machine.and_then(|machine| machine.employer()).is_some()
    }
}

impl DevicesConfig {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        DevicesConfig {
            root: root.into(),
            mount_check: true,
            read_threads: 4,
            write_threads: 8,
            commit_threads: 2,
            queue_depth: 1024,
            fallocate_reserve: FallocateReserve::Percent(1.0),
            disable_fallocate: false,
            unsafe_no_fsync: false,
            idle_close: Duration::from_secs(5),
            machine: None,
        }
    }
}
