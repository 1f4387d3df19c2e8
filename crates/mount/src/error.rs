//! Errors of file system calls. Only `fuse/errno.rs` maps them to errno values.

use thiserror::Error;

use crate::store::StoreError;

#[derive(Clone, Debug, Error)]
pub(crate) enum FsError {
    #[error("no such file or directory")]
    NotFound,
    #[error("it is there already")]
    Exists,
    #[error("not a directory")]
    NotADirectory,
    #[error("is a directory")]
    IsADirectory,
    #[error("the directory is not empty")]
    NotEmpty,
    #[error("the name is longer than 255 bytes, or the path than the store allows")]
    NameTooLong,
    #[error("the name is not UTF-8")]
    NotUtf8,
    #[error("the name is kept for the mount's own objects")]
    Reserved,
    #[error("the file has as many names as it can have")]
    TooManyLinks,
    #[error("the file would be too large")]
    FileTooLarge,
    #[error("mounted read-only")]
    ReadOnly,
    #[error("no such attribute")]
    NoAttribute,
    #[error("extended attributes are 2,700 bytes at most, names and all")]
    AttributesFull,
    #[error("not open for that")]
    BadHandle,
    #[error("{0}")]
    Invalid(&'static str),
    #[error("{0} is not offered")]
    NotOffered(&'static str),
    #[error("not permitted: {0}")]
    NotPermitted(&'static str),
    /// The opened version is gone from the store.
    #[error("somebody else has replaced or removed it")]
    Stale,
    /// Other writers change the file faster than a commit can succeed.
    #[error("somebody else keeps changing it")]
    Contended,
    #[error("the journal of closed files cannot be read: {0}")]
    Journal(String),
    #[error(transparent)]
    Store(#[from] StoreError),
}

pub(crate) type FsResult<T> = Result<T, FsError>;
