//! Standard streams of programs that are started by Swift's names: whoever started one waits until
//! its output is closed, so nothing may hold it once the program is ready. And the few words a
//! worker and its supervisor say to each other.
//!
//! A worker's standard input is the socket it serves, and its standard output a pipe to the
//! supervisor.

use std::fs::File;
use std::io::{self, Write};
use std::net::TcpListener;
use std::os::fd::AsFd;

use anyhow::{Context, Result};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

/// A worker's words.
pub(crate) const READY: &str = "ready";
pub(crate) const DRAINS: &str = "drains";

fn null() -> io::Result<File> {
    File::options().read(true).write(true).open("/dev/null")
}

/// Lets go of the streams. `verbose`: all but standard error, where the log goes.
pub(crate) fn close(verbose: bool) {
    let closed = null().and_then(|null| {
        dup2_stdin(&null)?;
        dup2_stdout(&null)?;
        if !verbose {
            dup2_stderr(&null)?;
        }
        Ok(())
    });
    if let Err(error) = closed {
        tracing::warn!(%error, "cannot close the standard streams");
    }
}

/// The socket that was handed down as standard input, which is then empty.
pub(crate) fn take_listener() -> Result<TcpListener> {
    let taken = || -> io::Result<TcpListener> {
        let listener = TcpListener::from(io::stdin().as_fd().try_clone_to_owned()?);
        dup2_stdin(&null()?)?;
        listener.set_nonblocking(true)?;
        listener.local_addr()?;
        Ok(listener)
    };
    taken().context("standard input is no listening socket")
}

fn say(word: &str) {
    // A supervisor that is gone needs no telling.
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{word}");
    let _ = out.flush();
}

/// Tells the supervisor that clients are let in.
pub(crate) fn worker_is_ready(verbose: bool) {
    if !verbose {
        let _ = null().and_then(|null| Ok(dup2_stderr(&null)?));
    }
    say(READY);
}

/// Tells the supervisor that no more clients are let in.
pub(crate) fn worker_drains() {
    say(DRAINS);
}
