//! Errors of one disk, as data that servers map to status codes.

use std::io;

use cairn_types::Timestamp;
use rustix::io::Errno;
use thiserror::Error;

use crate::object_info::ObjectInfo;

/// Action of errors in reading a directory.
pub(crate) const LIST: &str = "list";

/// The device itself cannot serve.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum DeviceError {
    #[error("device {0:?} has a full queue")]
    Busy(String),
    #[error("device {0:?} is not mounted")]
    Unmounted(String),
    #[error("device {0:?} failed and takes no more writes")]
    Poisoned(String),
    #[error("device {0:?} is shutting down")]
    Stopped(String),
    #[error("no worker thread for device {0:?}")]
    NoThread(String),
}

impl From<&DeviceError> for DiskError {
    fn from(error: &DeviceError) -> Self {
        DiskError::Device(error.clone())
    }
}

/// An operation on one object failed.
#[derive(Debug, Error)]
pub enum DiskError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("no such object")]
    NotExist,
    #[error("the object was deleted at {timestamp}")]
    Deleted { timestamp: Timestamp },
    /// With the expired object's info, which a DELETE needs.
    #[error("the object has expired")]
    Expired(Box<ObjectInfo>),
    #[error("quarantined: {0}")]
    Quarantined(String),
    /// The disk's first I/O error for this object, which may be transient.
    #[error("cannot be read: {0}")]
    Unreadable(String),
    #[error("the stored object is {stored:?}, not {asked:?}")]
    Collision { asked: String, stored: String },
    #[error("{name}: {value:?} is not the index of a fragment: expected 0 to {last}")]
    BadFragment {
        name: &'static str,
        value: String,
        last: u32,
    },
    /// Files kept changing while they were opened; a retry is conclusive.
    #[error("the object changed while it was opened")]
    StateChanged,
    /// Content differs from that verified earlier.
    #[error("the content is not what it was when it was checked last")]
    Unlike,
    #[error("no space left")]
    NoSpace,
    #[error("the file system has no user extended attributes")]
    XattrNotSupported,
    #[error("the file system is read-only")]
    ReadOnly,
    #[error("{action} {path}: {source}")]
    Io {
        action: &'static str,
        path: String,
        source: io::Error,
    },
}

impl DiskError {
    /// Whether the file system is damaged: `EUCLEAN` or `EBADMSG`, as ext4 and XFS report it.
    /// Errors in one file's content, or for lack of memory, space or descriptors, are no evidence
    /// about the device.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(self.errno(), Some(Errno::UCLEAN | Errno::BADMSG))
    }

    /// Whether the error concerns the device, not one object: a damaged file system, or an
    /// unreadable directory. The device has logged it.
    pub fn is_of_device(&self) -> bool {
        let is_listing = matches!(self, DiskError::Io { action: LIST, .. });
        self.is_damage() || (is_listing && self.errno() == Some(Errno::IO))
    }

    fn errno(&self) -> Option<Errno> {
        match self {
            DiskError::Io { source, .. } => Errno::from_io_error(source),
            _ => None,
        }
    }

    /// Classifies an errno.
    pub(crate) fn from_errno(action: &'static str, path: impl Into<String>, errno: Errno) -> Self {
        match errno {
            Errno::NOSPC | Errno::DQUOT => DiskError::NoSpace,
            Errno::ROFS => DiskError::ReadOnly,
            _ => DiskError::Io {
                action,
                path: path.into(),
                source: errno.into(),
            },
        }
    }
}
