//! Configuration of the devices under one directory.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cairn_device::Syncs;

use crate::machine::Machine;

/// Space to keep free: uploads that would use it are refused (`fallocate_reserve`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FallocateReserve {
    Bytes(u64),
    Percent(f64),
}

impl FallocateReserve {
    /// Parses `1%` or a number of bytes, as in the conf file.
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

/// Configuration of the devices under one directory.
#[derive(Clone, Debug)]
pub struct DevicesConfig {
    /// Directory of the devices (`devices`, usually `/srv/node`).
    pub root: PathBuf,
    /// Requires that each device is a mount point.
    pub mount_check: bool,
    /// Read threads per device.
    pub read_threads: usize,
    /// Write threads per device.
    pub write_threads: usize,
    /// Commit threads per device, for batches of small durable writes: one works while another
    /// syncs.
    pub commit_threads: usize,
    /// Maximum queued operations per lane and device.
    pub queue_depth: usize,
    pub fallocate_reserve: FallocateReserve,
    /// Disables preallocation of an upload's space.
    pub disable_fallocate: bool,
    /// Acknowledges before data is durable, for disposable test clusters only. A power cut then
    /// loses acknowledged data.
    pub unsafe_no_fsync: bool,
    /// Idle time after which a device is closed, so that it can be unmounted, and its threads exit.
    pub idle_close: Duration,
    /// Simulated machine that replaces threads and syncs.
    pub machine: Option<Arc<dyn Machine>>,
}

impl DevicesConfig {
    pub(super) fn syncs(&self) -> Syncs {
        Syncs {
            machine: self.machine.clone(),
            is_unsafe: self.unsafe_no_fsync,
        }
    }

    /// Whether a simulator runs the workers; idle devices then stay open.
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
