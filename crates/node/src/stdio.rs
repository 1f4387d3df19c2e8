//! Standard streams of programs that are started by Swift's names: whoever started one waits until
//! its output is closed, so nothing may hold it once the program is ready. And the few words a
//! worker and its supervisor say to each other.
//!
//! A worker's standard input is a socket through which come those it serves (`SCM_RIGHTS`), and its
//! standard output a pipe to the supervisor.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

/// A worker's words.
pub(crate) const READY: &str = "ready";
pub(crate) const DRAINS: &str = "drains";

/// Sockets in one message; the kernel takes 253.
const AT_ONCE: usize = 128;

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

/// What a process takes as its standard input to have these sockets, too.
pub(crate) fn hand_down(listeners: &[TcpListener]) -> io::Result<OwnedFd> {
    let (near, far) = UnixStream::pair()?;
    // All of it must fit into the socket's buffer: nobody reads yet.
    near.set_nonblocking(true)?;
    for some in listeners.chunks(AT_ONCE) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let sockets: Vec<BorrowedFd<'_>> = some.iter().map(AsFd::as_fd).collect();
        control.push(SendAncillaryMessage::ScmRights(&sockets));
        sendmsg(
            &near,
            &[IoSlice::new(b"s")],
            &mut control,
            SendFlags::empty(),
        )?;
    }
    Ok(far.into())
}

/// The sockets that come through standard input, which is then empty.
pub(crate) fn take_listeners() -> Result<Vec<TcpListener>> {
    let taken = || -> io::Result<Vec<TcpListener>> {
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        let mut listeners = Vec::new();
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut byte = [0];
            let mut bytes = [IoSliceMut::new(&mut byte)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            if recvmsg(&input, &mut bytes, &mut control, flags)?.bytes == 0 {
                break;
            }
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(sockets) = message {
                    listeners.extend(sockets.map(TcpListener::from));
                }
            }
        }
        dup2_stdin(&null()?)?;
        for listener in &listeners {
            listener.set_nonblocking(true)?;
            listener.local_addr()?;
        }
        Ok(listeners)
    };
    taken().context("standard input brings no listening sockets")
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
