//! What can go wrong on one disk, as data: the servers turn it into status codes.

use std::io;

use cairn_types::Timestamp;
use rustix::io::Errno;
use thiserror::Error;

use crate::engine::ObjectInfo;

/// The action of an error while a directory was read.
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

/// An operation on one object failed.
#[derive(Debug, Error)]
pub enum DiskError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("no such object")]
    NotExist,
    #[error("the object was deleted at {timestamp}")]
    Deleted { timestamp: Timestamp },
    /// With what the object was: a DELETE needs it.
    #[error("the object has expired")]
    Expired(Box<ObjectInfo>),
    #[error("quarantined: {0}")]
    Quarantined(String),
    /// The disk erred, for the first time: that may pass.
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
    /// Files came and went while they were opened; asked again, the answer will be clear.
    #[error("the object changed while it was opened")]
    StateChanged,
    /// These are not the bytes that were read, and found sound, a while ago.
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
    /// A damaged file system, as ext4 and XFS report it by `EUCLEAN` and `EBADMSG`. Errors of one
    /// file's content, or for want of memory, space or descriptors, say nothing of the device.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(self.errno(), Some(Errno::UCLEAN | Errno::BADMSG))
    }

    /// An error of the device, not of one object: of a damaged file system, or of a directory that
    /// cannot be read. The device has logged it.
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

    /// What the kernel said, sorted into the cases that have a meaning of their own.
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
