//! A TLS stream that is given its plaintext in short slices.
//!
//! rustls copies plaintext once, into the record that it encrypts in place. Where the CPU has fast short
//! `rep movsb`, glibc copies more than 2 KiB with that instruction, which on AMD's Zen 3 and Zen 4 is 15
//! times slower than a loop if the destination is 1 to 15 bytes past the source within their pages
//! (<https://sourceware.org/bugzilla/show_bug.cgi?id=30994>, mended in glibc 2.40). Blocks of a body begin
//! at a page and a record's plaintext 5 bytes past one, so nearly every record met that case, and the copy
//! took twice as long as the encryption.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Length of a slice: below glibc's threshold for `rep movsb`, at least 2112 bytes
/// (`glibc.cpu.x86_rep_movsb_threshold`).
const SLICE_BYTES: usize = 2048;
/// Slices of a write: a block of a body (128 KiB), its head and what is left of the block before.
const SLICES_MAX: usize = 80;

/// A TLS stream, or another one that copies what is written.
pub struct Slices<S>(S);

impl<S> Slices<S> {
    pub(crate) fn new(stream: S) -> Self {
        Slices(stream)
    }

    pub(crate) fn get_ref(&self) -> &S {
        &self.0
    }
}

/// Cuts buffers into slices of at most [`SLICE_BYTES`], as many as fit; returns their number.
fn cut<'a>(bufs: &'a [IoSlice<'a>], slices: &mut [IoSlice<'a>; SLICES_MAX]) -> usize {
    let pieces = bufs.iter().flat_map(|buf| buf.chunks(SLICE_BYTES));
    let places = slices.iter_mut();
    places
        .zip(pieces)
        .map(|(place, piece)| *place = IoSlice::new(piece))
        .count()
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Slices<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let count = cut(bufs, &mut slices);
        Pin::new(&mut self.0).poll_write_vectored(cx, &slices[..count])
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Slices<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    /// Takes at most `most` bytes of a write and keeps the length of the longest slice.
    struct Sink {
        most: usize,
        bytes: Vec<u8>,
        longest: usize,
    }

    impl AsyncWrite for Sink {
        fn poll_write(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.poll_write_vectored(cx, &[IoSlice::new(buf)])
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            _cx: &mut Context<'_>,
            bufs: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let mut left = self.most;
            for buf in bufs {
                self.longest = self.longest.max(buf.len());
                let taken = left.min(buf.len());
                self.bytes.extend_from_slice(&buf[..taken]);
                left -= taken;
            }
            Poll::Ready(Ok(self.most - left))
        }

        fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn bytes_arrive_in_order_and_in_short_slices() {
        let sent: Vec<u8> = (0..1_000_003_u32).map(|i| (i / 7) as u8).collect();
        for most in [1_009, 65_536, usize::MAX] {
            let mut stream = Slices::new(Sink {
                most,
                bytes: Vec::new(),
                longest: 0,
            });
            let (head, rest) = sent.split_at(300);
            let first = [IoSlice::new(head), IoSlice::new(&[]), IoSlice::new(rest)];
            let count = stream.write_vectored(&first).await.unwrap();
            stream.write_all(&sent[count..]).await.unwrap();
            assert!(stream.get_ref().bytes == sent);
            assert!(stream.get_ref().longest <= SLICE_BYTES);
        }
    }

    #[tokio::test]
    async fn nothing_written_is_nothing_taken() {
        let mut stream = Slices::new(Vec::new());
        assert_eq!(stream.write(&[]).await.unwrap(), 0);
        assert_eq!(stream.write_vectored(&[]).await.unwrap(), 0);
    }
}
