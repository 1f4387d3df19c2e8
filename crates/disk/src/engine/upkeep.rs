//! An engine's work on a device that no request asks for: opening and recovering it,
//! and maintenance.

use std::time::Duration;

use cairn_types::PolicyIndex;

use crate::device_pool::Disk;
use crate::error::DiskError;

/// When a device is to be maintained next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextUpkeep {
    /// There is more to do.
    Now,
    After(Duration),
}

/// A number of one of an engine's stores, for metrics.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Device and policy.
    pub store: String,
    /// The metric's name and help.
    pub name: &'static str,
    pub help: &'static str,
    pub value: f64,
}

/// An engine's own work on a device.
pub trait Upkeep {
    /// Removes what interrupted operations have left of a policy long ago. Called at the start of
    /// each pass of a replicator.
    fn clear_leftovers(&self, disk: &Disk, policy: PolicyIndex) -> Result<(), DiskError>;

    /// Whether the process is to open and maintain every device that is mounted. Where not,
    /// [`Upkeep::open_device`] and [`Upkeep::maintain`] are not called.
    fn is_maintained(&self) -> bool {
        false
    }

    /// Opens a device, and recovers it after a crash. Called once for each device when a process
    /// starts, and again when it is mounted anew, so that no client waits for it; an operation that
    /// comes before does the same.
    fn open_device(&self, _disk: &Disk) -> Result<(), DiskError> {
        Ok(())
    }

    /// One bounded step of maintenance on a device, as background work.
    fn maintain(&self, _disk: &Disk) -> Result<NextUpkeep, DiskError> {
        Ok(NextUpkeep::After(Duration::from_secs(60)))
    }

    /// The stores of this process in numbers.
    fn figures(&self) -> Vec<Figure> {
        Vec::new()
    }

    /// Finishes what was begun, refuses the rest, and joins the engine's threads. Called when the
    /// process ends, before its devices are closed.
    fn shutdown(&self) {}
}
