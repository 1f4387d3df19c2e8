//! Rewriting of message heads between a socket and the HTTP library, so that the library accepts
//! what Swift accepts.
//!
//! Swift answers a path of raw bytes that are not UTF-8 with a 412 of its own, and takes any bytes
//! in a header's name; hyper ends such a connection with a bare 400 before any service sees it.
//! [`Heads`] wraps the socket. When reading, bytes that are illegal in a request's target are
//! percent-encoded (the decoded path is the same), and names are escaped as in
//! [`cairn_types::header_name`]. When writing, escaped names are replaced by their bytes.
//!
//! Only heads are rewritten, never bodies: [`HeadDue`] says when the next bytes begin a head, which
//! is when the message before has been read to its end.

mod names;
pub(crate) mod scanner;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub(crate) use names::{Names, has_escapes};
use scanner::Scanner;

/// Marks whether the next bytes of a connection begin a message: twice the number of requests so
/// far, plus one if they do. A report of a body's end that comes after the next request has begun
/// is ignored.
#[derive(Clone)]
pub(crate) struct HeadDue(Arc<AtomicU64>);

impl HeadDue {
    /// Begins a request, whose head has been read. The next head is due when the returned value
    /// reports the end of the body.
    pub(crate) fn begin(&self) -> DueAtEnd {
        let next = (self.0.load(Ordering::Acquire) | 1) + 1;
        self.0.store(next, Ordering::Release);
        DueAtEnd(self.0.clone(), next)
    }
}

/// Held by a body until it has been read to its end. If the body is abandoned, no next head is due:
/// hyper may read the rest of the body, which must not be rewritten like a head.
pub(crate) struct DueAtEnd(Arc<AtomicU64>, u64);

impl DueAtEnd {
    pub(crate) fn ended(self) {
        let (now, due) = (self.1, self.1 | 1);
        let order = Ordering::AcqRel;
        // On failure the next request has begun already.
        let _ = self.0.compare_exchange(now, due, order, Ordering::Relaxed);
    }
}

/// A socket that rewrites heads.
pub(crate) struct Heads<S> {
    socket: S,
    due: HeadDue,
    scanner: Scanner,
    /// Value of `due` for which the scanner has been started.
    scanned: u64,
    names: Names,
    /// Rewritten bytes that did not fit into the reader's buffer.
    read: Vec<u8>,
    /// Rewritten bytes that are still to be written.
    unwritten: Vec<u8>,
}

impl<S> Heads<S> {
    /// The server side of a connection.
    pub(crate) fn of_requests(socket: S) -> (Self, HeadDue, Names) {
        Heads::new(socket, Scanner::of_requests())
    }

    /// The client side of a connection that carries one request.
    pub(crate) fn of_one_response(socket: S) -> (Self, Names) {
        let (heads, _due, names) = Heads::new(socket, Scanner::of_responses());
        (heads, names)
    }

    fn new(socket: S, scanner: Scanner) -> (Self, HeadDue, Names) {
        let (due, names) = (HeadDue(Arc::new(AtomicU64::new(1))), Names::default());
        let heads = Heads {
            socket,
            due: due.clone(),
            scanner,
            scanned: 1,
            names: names.clone(),
            read: Vec::new(),
            unwritten: Vec::new(),
        };
        (heads, due, names)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Heads<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.read.is_empty() {
            let n = self.read.len().min(buf.remaining());
            buf.put_slice(&self.read[..n]);
            self.read.drain(..n);
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        std::task::ready!(Pin::new(&mut self.socket).poll_read(cx, buf))?;
        let due = self.due.0.load(Ordering::Acquire);
        if due & 1 == 0 {
            return Poll::Ready(Ok(()));
        }
        if self.scanned != due {
            self.scanned = due;
            self.scanner.begin();
        }
        let changed = self.scanner.scan(&buf.filled()[before..]);
        if self.scanner.has_ended() {
            self.due.0.fetch_and(!1, Ordering::AcqRel);
        }
        if let Some(changed) = changed {
            buf.set_filled(before);
            let n = changed.len().min(buf.remaining());
            buf.put_slice(&changed[..n]);
            self.read = changed[n..].to_vec();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> Heads<S> {
    /// Writes pending bytes; ready when none are left.
    fn poll_unwritten(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.unwritten.is_empty() {
            let socket = Pin::new(&mut self.socket);
            let n = std::task::ready!(socket.poll_write(cx, &self.unwritten))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.unwritten.drain(..n);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Heads<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        std::task::ready!(self.poll_unwritten(cx))?;
        if let Some(changed) = self.names.put_back(buf) {
            self.unwritten = changed;
            return Poll::Ready(Ok(buf.len()));
        }
        Pin::new(&mut self.socket).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.poll_unwritten(cx))?;
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.poll_unwritten(cx))?;
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.names.wait() || !self.unwritten.is_empty() {
            // hyper writes a head in one buffer.
            let first = bufs.iter().find(|buf| !buf.is_empty());
            return self.poll_write(cx, first.map_or(&[], |buf| &**buf));
        }
        Pin::new(&mut self.socket).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
