//! Open files: every connection and every open database needs some, and the usual soft limit of
//! 1024 is meant for programs that use `select`.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// Below this many open files a busy server runs out.
const FEW: u64 = 4096;

/// Takes as many open files as this process may have.
pub(crate) fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        warn_of_few(limit.current);
        return;
    }
    match setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    ) {
        Ok(()) => warn_of_few(limit.maximum),
        Err(error) => warn!(%error, "cannot raise the limit of open files"),
    }
}

/// `None`: no limit.
fn warn_of_few(files: Option<u64>) {
    if let Some(files) = files.filter(|files| *files < FEW) {
        warn!(
            files,
            "the limit of open files is low; raise it (ulimit -n) for a busy server"
        );
    }
}
