//! Standard streams of programs started by Swift's names: the starting process waits until the
//! output is closed, so nothing may keep it open once the program is ready. And the messages from a
//! worker to its supervisor.
//!
//! A worker's standard input is a socket that passes its listening sockets (`SCM_RIGHTS`), and its
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

/// Messages of a worker.
pub(crate) const READY: &str = "ready";
pub(crate) const DRAINS: &str = "drains";

/// Sockets per message; the kernel's limit is 253.
const SOCKETS_PER_MESSAGE_MAX: usize = 128;

fn null() -> io::Result<File> {
    File::options().read(true).write(true).open("/dev/null")
}

/// Closes the streams; with `verbose` all except standard error, which has the log.
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

/// Standard input for a child process that passes these sockets.
pub(crate) fn hand_down(listeners: &[TcpListener]) -> io::Result<OwnedFd> {
    let (near, far) = UnixStream::pair()?;
    // It must fit into the socket's buffer, as nobody reads yet.
    near.set_nonblocking(true)?;
    for some in listeners.chunks(SOCKETS_PER_MESSAGE_MAX) {
        let mut space =
            [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_PER_MESSAGE_MAX))];
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

/// Receives the sockets from standard input, which is then empty.
pub(crate) fn take_listeners() -> Result<Vec<TcpListener>> {
    let taken = || -> io::Result<Vec<TcpListener>> {
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        let mut listeners = Vec::new();
        loop {
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_PER_MESSAGE_MAX))];
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

fn send_message(word: &str) {
    // The supervisor may be gone.
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{word}");
    let _ = out.flush();
}

/// Notifies the supervisor that clients are accepted.
pub(crate) fn worker_is_ready(verbose: bool) {
    if !verbose {
        let _ = null().and_then(|null| Ok(dup2_stderr(&null)?));
    }
    send_message(READY);
}

/// Notifies the supervisor that no more clients are accepted.
pub(crate) fn worker_drains() {
    send_message(DRAINS);
}
