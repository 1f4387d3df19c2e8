//! Durable operations on objects, in steps (`cairn_device`).

use std::io;

use cairn_device::{Ground, Noter, SyncSet};

use crate::device_pool::Disk;
use crate::error::{DeviceError, DiskError};

/// How far an operation on a disk has come.
pub type Step<T> = cairn_device::Step<Disk, T>;
pub(crate) type Run<T> = cairn_device::Run<Disk, T>;

/// The end of an operation that was handed to a thread of an engine's own.
pub type Completion<T> = cairn_device::Completion<T, DiskError>;

impl Ground for Disk {
    type Error = DiskError;

    /// Syncs with whoever else syncs on the file system, or what is in the set alone. A failure poisons
    /// the device: nobody knows then what is on it.
    fn sync(&self, set: &SyncSet) -> Result<(), DiskError> {
        let synced = self.file_system().sync(set);
        synced.map_err(|source| self.sync_failed(&source))
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

    fn noter(&self) -> Noter<DiskError> {
        let state = self.state.clone();
        Box::new(move |error| state.note(error))
    }

    fn stopped(&self) -> DiskError {
        DeviceError::Stopped(self.name().to_owned()).into()
    }
}
