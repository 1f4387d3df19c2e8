//! Lock of `swift-ring-builder-safe`: an exclusive `flock` on the file `.lock` in the builder's
//! directory, the same one that Swift's own tool takes.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

const ATTEMPTS: u32 = 150;
const PAUSE: Duration = Duration::from_millis(100);

/// Takes the lock, waiting up to fifteen seconds. It is released when the file is dropped.
pub(super) fn hold(builder: &Path) -> io::Result<File> {
    let file = File::create(builder.with_file_name(".lock"))?;
    for _ in 0..ATTEMPTS {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(PAUSE),
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::TimedOut,
        "another process holds the lock",
    ))
}
