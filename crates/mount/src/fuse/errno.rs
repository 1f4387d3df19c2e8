//! Errors of the file system as errno values, and their log lines.

use fuser::Errno;

use crate::error::FsError;
use crate::store::Why;

/// The errno of an error, which is logged if an operator must know of it.
pub(super) fn told(error: &FsError) -> Errno {
    tell(error);
    errno(error)
}

fn errno(error: &FsError) -> Errno {
    match error {
        FsError::NotFound => Errno::ENOENT,
        FsError::Exists => Errno::EEXIST,
        FsError::NotADirectory => Errno::ENOTDIR,
        FsError::IsADirectory => Errno::EISDIR,
        FsError::NotEmpty => Errno::ENOTEMPTY,
        FsError::NameTooLong => Errno::ENAMETOOLONG,
        FsError::NotUtf8 => Errno::EILSEQ,
        FsError::Reserved | FsError::NotPermitted(_) => Errno::EPERM,
        FsError::TooManyLinks => Errno::EMLINK,
        FsError::FileTooLarge => Errno::EFBIG,
        FsError::ReadOnly => Errno::EROFS,
        FsError::NoAttribute => Errno::NO_XATTR,
        FsError::AttributesFull => Errno::ENOSPC,
        FsError::BadHandle => Errno::EBADF,
        FsError::Invalid(_) => Errno::EINVAL,
        FsError::NotOffered(_) => Errno::EOPNOTSUPP,
        FsError::Stale => Errno::ESTALE,
        FsError::Contended | FsError::Journal(_) => Errno::EIO,
        FsError::Store(error) => match error.why {
            Why::NotFound | Why::Changed => Errno::ESTALE,
            Why::Denied => Errno::EACCES,
            Why::Full => Errno::ENOSPC,
            Why::TooLarge => Errno::EFBIG,
            Why::Timeout => Errno::ETIMEDOUT,
            Why::Unavailable | Why::Refused => Errno::EIO,
        },
    }
}

fn tell(error: &FsError) {
    match error {
        FsError::Store(error) => tracing::warn!(%error, "the store failed a call"),
        FsError::Contended => tracing::warn!(%error, "a file is not as it was"),
        FsError::Stale => tracing::debug!(%error, "a file is not as it was"),
        _ => {}
    }
}
