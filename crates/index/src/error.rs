//! Errors of databases, as data that a server maps to a status.
//!
//! Errors are cloned: all waiters of a failed transaction get the same one.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::ErrorCode;
use rustix::io::Errno;
use thiserror::Error;

use crate::drive;
use crate::metadata::MetadataRefused;

#[derive(Debug, Error, Clone)]
pub enum IndexError {
    #[error("no database at {path}")]
    NotFound { path: PathBuf },
    #[error("too many requests are waiting for {what}")]
    Busy { what: String },
    #[error("the database {path} stayed locked by another process")]
    Locked { path: PathBuf },
    #[error("the device {path} is not mounted")]
    NotMounted { path: PathBuf },
    #[error("no space left for {path}")]
    NoSpace { path: PathBuf },
    /// The device refuses: read only, not ours, or broken.
    #[error("the device of {path} fails: {reason}")]
    DriveFailed { path: PathBuf, reason: String },
    /// The file is damaged, and not yet quarantined.
    #[error("damaged database {path}: {reason}")]
    Corrupt { path: PathBuf, reason: String },
    #[error("quarantined {path} to {to}: {reason}")]
    Quarantined {
        path: PathBuf,
        to: PathBuf,
        reason: String,
    },
    #[error(transparent)]
    Metadata(#[from] MetadataRefused),
    /// Another replica sent an invalid row.
    #[error("{reason}")]
    BadRow { reason: String },
    #[error("the metadata column is not readable: {reason}")]
    MetadataText { reason: String },
    #[error("{path}: {source}")]
    Sqlite {
        path: PathBuf,
        source: Arc<rusqlite::Error>,
    },
    #[error("{path}: {source}")]
    Io {
        path: PathBuf,
        source: Arc<io::Error>,
    },
    /// The pool is shut down, or the operation panicked.
    #[error("the index is closed")]
    Closed,
}

impl IndexError {
    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::StorageFull
            || source.kind() == io::ErrorKind::QuotaExceeded
        {
            return IndexError::NoSpace { path: path.into() };
        }
        if matches!(
            source.kind(),
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
        ) || matches!(
            Errno::from_io_error(&source),
            Some(Errno::IO | Errno::UCLEAN | Errno::BADMSG)
        ) {
            return IndexError::DriveFailed {
                path: path.into(),
                reason: source.to_string(),
            };
        }
        IndexError::Io {
            path: path.into(),
            source: Arc::new(source),
        }
    }

    pub(crate) fn bad_row(reason: impl Into<String>) -> Self {
        IndexError::BadRow {
            reason: reason.into(),
        }
    }

    /// An error that quarantines the database when a closure returns it.
    pub fn corrupt(reason: impl Into<String>) -> Self {
        IndexError::Corrupt {
            path: PathBuf::new(),
            reason: reason.into(),
        }
    }

    /// Adds the path where there is none yet, and classifies SQLite's errors for callers: in work
    /// on two files the innermost call knows which one failed.
    pub(crate) fn at(self, path: &Path) -> Self {
        match self {
            IndexError::Sqlite { path: none, source } if none.as_os_str().is_empty() => {
                Self::classified(path, source)
            }
            IndexError::Corrupt { path: none, reason } if none.as_os_str().is_empty() => {
                IndexError::Corrupt {
                    path: path.into(),
                    reason,
                }
            }
            other => other,
        }
    }

    fn classified(path: &Path, source: Arc<rusqlite::Error>) -> Self {
        let path = path.to_path_buf();
        match source.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt) => IndexError::Corrupt {
                path,
                reason: "malformed database".into(),
            },
            Some(ErrorCode::NotADatabase) => IndexError::Corrupt {
                path,
                reason: "corrupted database".into(),
            },
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                IndexError::Locked { path }
            }
            Some(ErrorCode::DiskFull) => IndexError::NoSpace { path },
            // No space for a journal or a log.
            Some(ErrorCode::CannotOpen) if drive::is_full(path.parent().unwrap_or(&path)) => {
                IndexError::NoSpace { path }
            }
            Some(
                ErrorCode::ReadOnly
                | ErrorCode::CannotOpen
                | ErrorCode::PermissionDenied
                | ErrorCode::SystemIoFailure,
            ) => IndexError::DriveFailed {
                path,
                reason: source.to_string(),
            },
            // A database without its tables is invalid; Swift quarantines those, too.
            _ if is_missing_table(&source) => IndexError::Corrupt {
                path,
                reason: source.to_string(),
            },
            _ => IndexError::Sqlite { path, source },
        }
    }

    /// Whether the connection must be dropped after this error.
    pub(crate) fn spoils_connection(&self) -> bool {
        matches!(
            self,
            IndexError::Corrupt { .. }
                | IndexError::Quarantined { .. }
                | IndexError::Sqlite { .. }
                | IndexError::DriveFailed { .. }
                | IndexError::Io { .. }
        )
    }
}

impl From<rusqlite::Error> for IndexError {
    fn from(source: rusqlite::Error) -> Self {
        IndexError::Sqlite {
            path: PathBuf::new(),
            source: Arc::new(source),
        }
    }
}

fn is_missing_table(error: &rusqlite::Error) -> bool {
    error.to_string().starts_with("no such table")
}
