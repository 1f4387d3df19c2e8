//! Durable operations on objects, in steps (`cairn_device`).

use std::io;

use cairn_device::{FailureReporter, OpenDevice, SyncSet};

use super::Disk;
use crate::error::{DeviceError, DiskError};

/// Progress of an operation on a disk.
pub type Step<T> = cairn_device::Step<Disk, T>;
pub(crate) type Run<T> = cairn_device::Run<Disk, T>;

/// Completion of an operation that runs on an engine's own thread.
pub type Completion<T> = cairn_device::Completion<T, DiskError>;

impl OpenDevice for Disk {
    type Error = DiskError;

    /// Syncs a set, grouped with others on the file system or alone. A failure poisons the device:
    /// its content is then unknown.
    fn sync(&self, set: &SyncSet) -> Result<(), DiskError> {
        let synced = self.file_system().sync(set);
        match synced.err().or_else(|| self.state.broken()) {
            None => Ok(()),
            Some(error) => Err(self.sync_failed(&error)),
        }
    }

    fn sync_failed(&self, error: &io::Error) -> DiskError {
        self.poison("what was just written", error);
        DiskError::Io {
            action: "fsync",
            path: self.name().to_owned(),
            source: error.kind().into(),
        }
    }

    fn note(&self, error: &DiskError) {
        self.state.note(error);
    }

    fn failure_reporter(&self) -> FailureReporter<DiskError> {
        let state = self.state.clone();
        Box::new(move |error| state.note(error))
    }

    fn stopped(&self) -> DiskError {
        DeviceError::Stopped(self.name().to_owned()).into()
    }
}
