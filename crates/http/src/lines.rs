//! A body read by lines and bytes, for protocols inside a request (SSYNC).

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use thiserror::Error;

use crate::body::{Body, BodyError};

/// Reasons why no further line or byte can be read.
#[derive(Debug, Error)]
pub enum LineError {
    #[error(transparent)]
    Body(#[from] BodyError),
    #[error("a line longer than {0} bytes")]
    TooLong(usize),
    #[error("the body ends in the middle of a line")]
    NoNewline,
    #[error("the body ends too early")]
    Ended,
}

/// Reads a body piece by piece; each piece must arrive within a timeout.
#[derive(Debug)]
pub struct BodyLines {
    body: Body,
    /// The beginning of a line that is not complete yet.
    begun: BytesMut,
    /// The unread rest of the last piece.
    buffer: Bytes,
    longest_line: usize,
    timeout: Duration,
}

impl BodyLines {
    pub fn new(body: Body, longest_line: usize, timeout: Duration) -> Self {
        BodyLines {
            body,
            begun: BytesMut::new(),
            buffer: Bytes::new(),
            longest_line,
            timeout,
        }
    }

    /// The next line, without its end and surrounding blanks; `None` at the end of the body.
    ///
    /// # Errors
    /// `TooLong` for a line over the maximum, `NoNewline` for an incomplete last one, `Body` if the
    /// body breaks off or no data arrives in time.
    pub async fn line(&mut self) -> Result<Option<Bytes>, LineError> {
        loop {
            if let Some(at) = self.buffer.iter().position(|b| *b == b'\n') {
                let mut line = self.buffer.split_to(at + 1);
                if !self.begun.is_empty() {
                    self.begun.extend_from_slice(&line);
                    line = self.begun.split().freeze();
                }
                line.truncate(line.trim_ascii_end().len());
                line.advance(line.len() - line.trim_ascii_start().len());
                return Ok(Some(line));
            }
            self.begun.extend_from_slice(&self.buffer);
            self.buffer.clear();
            if self.begun.len() > self.longest_line {
                return Err(LineError::TooLong(self.longest_line));
            }
            match self.chunk().await? {
                Some(chunk) => self.buffer = chunk,
                None if self.begun.is_empty() => return Ok(None),
                None => return Err(LineError::NoNewline),
            }
        }
    }

    /// At least one and at most `most` bytes. Must not be called in the middle of a line.
    ///
    /// # Errors
    /// `Ended` at the end of the body, `Body` if it breaks off or no data arrives in time.
    pub async fn bytes(&mut self, most: u64) -> Result<Bytes, LineError> {
        if self.buffer.is_empty() {
            self.buffer = self.chunk().await?.ok_or(LineError::Ended)?;
        }
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let count = self.buffer.len().min(most);
        Ok(self.buffer.split_to(count))
    }

    /// Reads and drops the rest.
    pub async fn drain(&mut self) {
        while let Some(Ok(_)) = self.body.next_chunk().await {}
    }

    async fn chunk(&mut self) -> Result<Option<Bytes>, LineError> {
        let chunk = self.body.next_chunk_within(self.timeout).await;
        Ok(chunk.transpose()?)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn lines(chunks: &[&'static str]) -> BodyLines {
        let chunks: Vec<_> = chunks
            .iter()
            .map(|c| Ok(Bytes::from_static(c.as_bytes())))
            .collect();
        let body = Body::from_stream(futures_util::stream::iter(chunks), None);
        BodyLines::new(body, 8, Duration::from_secs(1))
    }

    #[tokio::test]
    async fn lines_and_bytes_take_turns() {
        let mut input = lines(&["\r\none", "\r\ntw", "o\nabc", "def  x \n"]);
        assert_eq!(input.line().await.unwrap().unwrap(), "");
        assert_eq!(input.line().await.unwrap().unwrap(), "one");
        assert_eq!(input.line().await.unwrap().unwrap(), "two");
        assert_eq!(input.bytes(2).await.unwrap(), "ab");
        assert_eq!(input.bytes(9).await.unwrap(), "c");
        assert_eq!(input.bytes(3).await.unwrap(), "def");
        assert_eq!(input.line().await.unwrap().unwrap(), "x");
        assert_eq!(input.line().await.unwrap(), None);
    }

    #[tokio::test]
    async fn lines_have_an_end() {
        let mut input = lines(&["123456789", "0"]);
        assert!(matches!(input.line().await, Err(LineError::TooLong(8))));
        let mut input = lines(&["12"]);
        assert!(matches!(input.line().await, Err(LineError::NoNewline)));
        let mut input = lines(&[]);
        assert!(matches!(input.bytes(1).await, Err(LineError::Ended)));
    }
}
