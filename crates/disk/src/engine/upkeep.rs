//! Upkeep: an engine's own work on a device: opening, recovery, and maintenance.

use std::time::Duration;

use cairn_types::PolicyIndex;

use crate::device_pool::Disk;
use crate::error::DiskError;

/// Time of a device's next maintenance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextUpkeep {
    /// More work is pending.
    Now,
    After(Duration),
}

/// A metric of one of an engine's stores.
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
///
/// Errors are a device's: `Device` where it takes no work now, `Io`, `NoSpace` or `ReadOnly` where
/// its file system refuses. The errors named at a call come beside them.
pub trait Upkeep {
    /// Removes old leftovers of interrupted operations of a policy. Called at the start of each
    /// replicator pass.
    ///
    /// # Errors
    /// As every call of this trait.
    fn clear_leftovers(&self, disk: &Disk, policy: PolicyIndex) -> Result<(), DiskError>;

    /// Whether the process must open and maintain every mounted device. If not,
    /// [`Upkeep::open_device`] and [`Upkeep::maintain`] are not called.
    fn is_maintained(&self) -> bool {
        false
    }

    /// Opens a device, with recovery after a crash. Called once per device when a process starts,
    /// and after it is mounted again, so that no client waits for it; an earlier operation does the
    /// same.
    ///
    /// # Errors
    /// `Device` where it is not mounted, `Io` where another process has its files locked, they
    /// cannot be read, or they are of a later format.
    fn open_device(&self, _disk: &Disk) -> Result<(), DiskError> {
        Ok(())
    }

    /// One bounded step of maintenance on a device, as background work.
    ///
    /// # Errors
    /// As every call of this trait; the work of other policies is done all the same.
    fn maintain(&self, _disk: &Disk) -> Result<NextUpkeep, DiskError> {
        Ok(NextUpkeep::After(Duration::from_secs(60)))
    }

    /// Metrics of this process's stores.
    fn figures(&self) -> Vec<Figure> {
        Vec::new()
    }

    /// Closes what nothing uses at the moment, so that the process which takes over can open it.
    /// Called again and again while the last requests of a process finish; a request that comes
    /// later opens it once more.
    fn let_go(&self) {}

    /// Completes started work, refuses more, and joins the engine's threads. Called when the
    /// process ends, before its devices are closed.
    fn shutdown(&self) {}
}
