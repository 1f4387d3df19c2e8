//! Request lines as clients send them, made such that the HTTP parser takes them.
//!
//! Swift answers a path of raw bytes that are no UTF-8 with a 412 of its own; hyper ends such a
//! connection with a bare 400 before any service sees it. [`RequestLines`] sits between socket
//! and parser and percent-encodes what may not stand in a request target as it is; the decoded
//! path is the same. It looks at the first line of a message only: it is told when one is due
//! (the one before has been read to its end), so a body is never touched.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Set when the next bytes of a connection begin a message; shared with the body before it.
#[derive(Clone, Default)]
pub(crate) struct HeadDue(Arc<AtomicBool>);

impl HeadDue {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A socket whose request lines are parseable.
pub(crate) struct RequestLines<S> {
    socket: S,
    due: HeadDue,
    /// Encoded bytes that did not fit where they were read to.
    pending: Vec<u8>,
}

impl<S> RequestLines<S> {
    pub(crate) fn new(socket: S) -> (Self, HeadDue) {
        let due = HeadDue::default();
        due.set();
        (
            RequestLines {
                socket,
                due: due.clone(),
                pending: Vec::new(),
            },
            due,
        )
    }
}

fn is_illegal(byte: u8) -> bool {
    byte >= 0x7f
        || matches!(
            byte,
            b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}'
        )
}

/// The bytes with those of their first line encoded; `None` where nothing needs it.
fn encode_first_line(bytes: &[u8]) -> Option<Vec<u8>> {
    let line = bytes
        .iter()
        .position(|b| *b == b'\n')
        .unwrap_or(bytes.len());
    if !bytes[..line].iter().any(|b| is_illegal(*b)) {
        return None;
    }
    let mut encoded = Vec::with_capacity(bytes.len() + 64);
    for byte in &bytes[..line] {
        if is_illegal(*byte) {
            encoded.extend_from_slice(format!("%{byte:02X}").as_bytes());
        } else {
            encoded.push(*byte);
        }
    }
    encoded.extend_from_slice(&bytes[line..]);
    Some(encoded)
}

impl<S: AsyncRead + Unpin> AsyncRead for RequestLines<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.pending.is_empty() {
            let n = self.pending.len().min(buf.remaining());
            buf.put_slice(&self.pending[..n]);
            self.pending.drain(..n);
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        std::task::ready!(Pin::new(&mut self.socket).poll_read(cx, buf))?;
        if !self.due.0.load(Ordering::Acquire) {
            return Poll::Ready(Ok(()));
        }
        let read = &buf.filled()[before..];
        if read.contains(&b'\n') {
            self.due.0.store(false, Ordering::Release);
        }
        if let Some(encoded) = encode_first_line(read) {
            buf.set_filled(before);
            let n = encoded.len().min(buf.remaining());
            buf.put_slice(&encoded[..n]);
            self.pending = encoded[n..].to_vec();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for RequestLines<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn the_first_line_is_encoded_and_nothing_else() {
        let wire = b"PUT /v1/\xff\xfe|x HTTP/1.1\r\nX: \xc3\xa9\r\n\r\n\xff\n\xfe".as_slice();
        let (mut lines, due) = RequestLines::new(wire);
        let mut out = Vec::new();
        let mut small = [0; 7];
        while let Ok(n @ 1..) = lines.read(&mut small).await {
            out.extend_from_slice(&small[..n]);
        }
        let expected = b"PUT /v1/%FF%FE%7Cx HTTP/1.1\r\nX: \xc3\xa9\r\n\r\n\xff\n\xfe".as_slice();
        assert_eq!(out, expected);
        assert!(!due.0.load(Ordering::Acquire));
    }
}
