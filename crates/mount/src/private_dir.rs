//! Directory of a mount on a local disk: only its user may enter it, and one process at a time uses it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use thiserror::Error;

/// Reasons why a directory cannot be used.
#[derive(Debug, Error)]
pub(crate) enum DirError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("another mount uses it; name a directory of this mount's own")]
    InUse,
}

/// Options of a new file in such a directory.
pub(crate) fn new_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    options
}

/// Makes the directory if it is not there, and locks its file `name`: whoever has that file open has
/// the directory. Blocks.
///
/// # Errors
/// It cannot be made, or is in use.
pub(crate) fn lock(dir: &Path, name: &str) -> Result<File, DirError> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let mut options = new_file();
    let file = options.read(true).create(true).open(dir.join(name))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(DirError::InUse),
        Err(error) => Err(io::Error::from(error).into()),
    }
}
