//! A read buffer for the socket under TLS, used while much data arrives.
//!
//! rustls reads 4 KiB at a time: one system call each, 256 of them per mebibyte. After a read that
//! was filled, [`ReadAhead`] reads up to [`AHEAD_BYTES`] at once and serves rustls from that. The
//! buffer exists only while data keeps arriving: idle connections and small requests have none.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// Size of four TLS records.
const AHEAD_BYTES: usize = 64 << 10;

/// The socket below a TLS stream.
pub struct ReadAhead<S> {
    socket: S,
    /// Bytes read; those from `next` on have not been handed out.
    ahead: Vec<u8>,
    next: usize,
    /// The last read of the socket was filled, so more data may be there.
    was_filled: bool,
}

impl<S> ReadAhead<S> {
    pub(crate) fn new(socket: S) -> Self {
        ReadAhead {
            socket,
            ahead: Vec::new(),
            next: 0,
            was_filled: false,
        }
    }

    pub(crate) fn get_ref(&self) -> &S {
        &self.socket
    }

    /// Are there bytes that were read and not yet handed out?
    pub(crate) fn has_bytes(&self) -> bool {
        self.next < self.ahead.len()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadAhead<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.has_bytes() {
            if !this.was_filled {
                let before = buf.filled().len();
                ready!(Pin::new(&mut this.socket).poll_read(cx, buf))?;
                this.was_filled = buf.remaining() == 0 && buf.filled().len() > before;
                return Poll::Ready(Ok(()));
            }
            this.ahead.clear();
            this.next = 0;
            this.ahead.reserve_exact(AHEAD_BYTES);
            // Cancel-safe: a future that is not ready has read nothing.
            let Poll::Ready(read) = pin!(this.socket.read_buf(&mut this.ahead)).poll(cx) else {
                this.ahead = Vec::new();
                this.was_filled = false;
                return Poll::Pending;
            };
            read?;
        }
        let rest = &this.ahead[this.next..];
        let count = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..count]);
        this.next += count;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReadAhead<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, buf)
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

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Size of rustls' reads.
    const ASKED: usize = 4096;

    /// A socket that always has more data, or none; records the sizes requested.
    #[derive(Default)]
    struct Socket {
        waiting: usize,
        reads: usize,
    }

    impl AsyncRead for Socket {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            self.reads += 1;
            if self.waiting == 0 {
                return Poll::Pending;
            }
            let count = self.waiting.min(buf.remaining());
            buf.put_slice(&vec![self.waiting as u8; count]);
            self.waiting -= count;
            Poll::Ready(Ok(()))
        }
    }

    fn read(socket: &mut ReadAhead<Socket>) -> Option<usize> {
        let mut bytes = [0; ASKED];
        let mut buf = ReadBuf::new(&mut bytes);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        match Pin::new(socket).poll_read(&mut cx, &mut buf) {
            Poll::Ready(read) => read.map(|()| Some(buf.filled().len())).unwrap(),
            Poll::Pending => None,
        }
    }

    #[test]
    fn much_is_read_in_large_pieces_and_nothing_is_kept_afterwards() {
        let mut socket = ReadAhead::new(Socket {
            waiting: 1 << 20,
            reads: 0,
        });
        let mut all = 0;
        while let Some(count) = read(&mut socket) {
            all += count;
        }
        assert_eq!(all, 1 << 20);
        let reads = socket.get_ref().reads;
        assert!(reads <= (1 << 20) / AHEAD_BYTES + 3, "{reads} reads");
        assert_eq!(socket.ahead.capacity(), 0);
    }

    #[test]
    fn small_requests_need_no_memory() {
        let mut socket = ReadAhead::new(Socket::default());
        for _ in 0..10 {
            socket.socket.waiting = 500;
            assert_eq!(read(&mut socket), Some(500));
            assert_eq!(read(&mut socket), None);
            assert_eq!(socket.ahead.capacity(), 0);
        }
    }

    #[tokio::test]
    async fn bytes_and_the_end_come_in_order() {
        let sent: Vec<u8> = (0..300_001_u32).map(|i| (i / 7) as u8).collect();
        let mut socket = ReadAhead::new(&sent[..]);
        let (mut got, mut bytes) = (Vec::new(), [0; ASKED]);
        while let count @ 1.. = socket.read(&mut bytes).await.unwrap() {
            got.extend_from_slice(&bytes[..count]);
        }
        assert!(got == sent);
    }
}
