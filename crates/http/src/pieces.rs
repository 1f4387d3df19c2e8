//! A socket that limits the size of each read: hyper sizes its buffers by the last read, and each
//! upload holds three of them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf, Take};

/// Maximum bytes of a read, just below a power of two: a read that fills hyper's buffer doubles it.
const PIECE_BYTES: u64 = (32 << 10) - 1;

pub(crate) struct Pieces<S>(Take<S>);

impl<S: AsyncRead> Pieces<S> {
    pub(crate) fn new(socket: S) -> Self {
        Pieces(socket.take(PIECE_BYTES))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Pieces<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.set_limit(PIECE_BYTES);
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Pieces<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.0.get_mut()).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.0.get_mut()).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.get_ref().is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.0.get_mut()).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.0.get_mut()).poll_shutdown(cx)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_read_brings_more_than_a_piece() {
        let sent = vec![7; 100 << 10];
        let mut pieces = Pieces::new(&sent[..]);
        let mut buffer = vec![0; 64 << 10];
        let (mut most, mut all) = (0, 0);
        while let count @ 1.. = pieces.read(&mut buffer).await.unwrap() {
            most = most.max(count as u64);
            all += count;
        }
        assert_eq!((most, all), (PIECE_BYTES, sent.len()));
    }
}
