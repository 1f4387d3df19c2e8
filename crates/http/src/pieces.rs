//! A socket's reading half that is read a piece at a time, however much there is: hyper makes its
//! buffers as large as what the last read brought, and each upload holds three of them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf, Take};

/// Less than a power of two: a read that fills its buffer asks for the double.
const PIECE: u64 = (32 << 10) - 1;

pub(crate) struct Pieces<R>(Take<R>);

impl<R: AsyncRead> Pieces<R> {
    pub(crate) fn new(reader: R) -> Self {
        Pieces(reader.take(PIECE))
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Pieces<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.set_limit(PIECE);
        Pin::new(&mut self.0).poll_read(cx, buf)
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
        assert_eq!((most, all), (PIECE, sent.len()));
    }
}
