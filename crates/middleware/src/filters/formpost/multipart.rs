//! Streaming parser of a multipart body: for each part its headers, then its data in chunks. Memory
//! is bounded: one chunk, and at most [`HEADERS_MAX_BYTES`] bytes of a part's headers.
//!
//! Format: `--BOUNDARY CRLF headers CRLF CRLF data CRLF --BOUNDARY …`, and two dashes after the
//! last boundary. The end of the body also ends its last part.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use cairn_http::{Body, BodyError};
use thiserror::Error;

const HEADERS_MAX_BYTES: usize = 16 << 10;
/// Maximum length of a boundary; the standard allows 70 bytes.
const BOUNDARY_MAX_BYTES: usize = 256;
/// Maximum number of empty lines before the first boundary.
const EMPTY_LINES_MAX: usize = 64;
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Error)]
pub(super) enum MultipartError {
    #[error("invalid starting boundary")]
    Start,
    #[error("the headers of a part are longer than {HEADERS_MAX_BYTES} bytes")]
    Headers,
    #[error(transparent)]
    Body(#[from] BodyError),
}

/// Headers of a part, with names in lower case.
#[derive(Debug, Default)]
pub(super) struct PartHeaders(Vec<(String, String)>);

impl PartHeaders {
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| value.as_str())
    }
}

pub(super) struct Multipart {
    body: Body,
    buffer: BytesMut,
    /// The boundary with the line break before it.
    boundary: Vec<u8>,
    in_part: bool,
    /// No further part follows.
    is_last: bool,
    has_ended: bool,
}

impl Multipart {
    /// Reads to the first boundary, and past it.
    pub(super) async fn start(body: Body, boundary: &str) -> Result<Self, MultipartError> {
        if boundary.is_empty() || boundary.len() > BOUNDARY_MAX_BYTES {
            return Err(MultipartError::Start);
        }
        let mut parts = Multipart {
            body,
            buffer: BytesMut::new(),
            boundary: format!("\r\n--{boundary}").into_bytes(),
            in_part: false,
            is_last: false,
            has_ended: false,
        };
        for _ in 0..EMPTY_LINES_MAX {
            parts.fill_to(2).await?;
            if !parts.buffer.starts_with(b"\r\n") {
                break;
            }
            parts.buffer.advance(2);
        }
        let first = parts.boundary.len() - 2;
        parts.fill_to(first + 2).await?;
        let rest = parts
            .buffer
            .strip_prefix(&parts.boundary[2..])
            .ok_or(MultipartError::Start)?;
        let line_break = match rest {
            [] => 0,
            [b'\n', ..] => 1,
            [b'\r', b'\n', ..] => 2,
            _ => return Err(MultipartError::Start),
        };
        parts.buffer.advance(first + line_break);
        Ok(parts)
    }

    /// Skips the rest of the current part and starts the next one.
    pub(super) async fn next_part(&mut self) -> Result<Option<PartHeaders>, MultipartError> {
        while self.chunk().await?.is_some() {}
        if self.is_last {
            return Ok(None);
        }
        self.in_part = true;
        Ok(Some(self.headers().await?))
    }

    /// The next data of the current part; `None` at its end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, MultipartError> {
        while self.in_part {
            if let Some(at) = find(&self.buffer, &self.boundary) {
                let data = self.buffer.split_to(at).freeze();
                self.end_part().await?;
                return Ok(Some(data).filter(|data| !data.is_empty()));
            }
            // The last bytes may be the beginning of a boundary.
            let sure = (self.buffer.len() + 1).saturating_sub(self.boundary.len());
            if sure > 0 {
                return Ok(Some(self.buffer.split_to(sure).freeze()));
            }
            if !self.fill().await? {
                (self.in_part, self.is_last) = (false, true);
                let data = self.buffer.split().freeze();
                return Ok(Some(data).filter(|data| !data.is_empty()));
            }
        }
        Ok(None)
    }

    /// Consumes the boundary at the start of the buffer, and the two bytes after it.
    async fn end_part(&mut self) -> Result<(), MultipartError> {
        self.buffer.advance(self.boundary.len());
        self.fill_to(2).await?;
        self.is_last = self.buffer.starts_with(b"--") || self.buffer.is_empty();
        self.buffer.advance(self.buffer.len().min(2));
        self.in_part = false;
        Ok(())
    }

    async fn headers(&mut self) -> Result<PartHeaders, MultipartError> {
        let mut text = String::new();
        loop {
            let Some(end) = find(&self.buffer, b"\r\n") else {
                if self.buffer.len() + text.len() > HEADERS_MAX_BYTES {
                    return Err(MultipartError::Headers);
                }
                if self.fill().await? {
                    continue;
                }
                // Headers without data.
                text.push_str(&decode(&self.buffer.split()));
                (self.in_part, self.is_last) = (false, true);
                break;
            };
            self.fill_to(end + self.boundary.len()).await?;
            let line = self.buffer.split_to(end);
            text.push_str(&decode(&line));
            text.push('\n');
            if text.len() > HEADERS_MAX_BYTES {
                return Err(MultipartError::Headers);
            }
            if self.buffer.starts_with(&self.boundary) {
                self.end_part().await?;
                break;
            }
            self.buffer.advance(2);
            if line.is_empty() {
                break;
            }
        }
        Ok(parse_headers(&text))
    }

    /// Reads until the buffer has `length` bytes, or the body ends.
    async fn fill_to(&mut self, length: usize) -> Result<(), MultipartError> {
        while self.buffer.len() < length && self.fill().await? {}
        Ok(())
    }

    async fn fill(&mut self) -> Result<bool, MultipartError> {
        if self.has_ended {
            return Ok(false);
        }
        match self.body.next_chunk_within(TIMEOUT).await.transpose()? {
            Some(chunk) => self.buffer.extend_from_slice(&chunk),
            None => self.has_ended = true,
        }
        Ok(!self.has_ended)
    }
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len())
        .position(|window| window == wanted)
}

/// Decodes headers as UTF-8, or else as Latin-1.
fn decode(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().map(|byte| char::from(*byte)).collect(),
    }
}

fn parse_headers(text: &str) -> PartHeaders {
    let mut headers: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        if let (true, Some((_, value))) = (line.starts_with([' ', '\t']), headers.last_mut()) {
            value.push('\n');
            value.push_str(line);
        } else if let Some((name, value)) = line.split_once(':') {
            headers.push((name.trim().to_lowercase(), value.trim().to_owned()));
        }
    }
    PartHeaders(headers)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A body in chunks of `size` bytes.
    fn body(text: &str, size: usize) -> Body {
        let chunks: Vec<_> = text
            .as_bytes()
            .chunks(size)
            .map(|chunk| Ok(Bytes::copy_from_slice(chunk)))
            .collect();
        Body::from_stream(futures_util::stream::iter(chunks), None)
    }

    /// Header `a` and data of every part.
    async fn read(text: &str, size: usize) -> Result<Vec<(Option<String>, String)>, String> {
        let told = |error: MultipartError| error.to_string();
        let mut parts = Multipart::start(body(text, size), "B")
            .await
            .map_err(told)?;
        let mut all = Vec::new();
        while let Some(headers) = parts.next_part().await.map_err(told)? {
            let mut data = Vec::new();
            while let Some(chunk) = parts.chunk().await.map_err(told)? {
                data.extend_from_slice(&chunk);
            }
            let header = headers.get("a").map(str::to_owned);
            all.push((header, String::from_utf8(data).unwrap()));
        }
        Ok(all)
    }

    #[tokio::test]
    async fn parts_in_chunks_of_any_size() {
        let part = |header: Option<&str>, data: &str| (header.map(str::to_owned), data.to_owned());
        for (text, expected) in [
            (
                "--B\r\nA: 1\r\nX: y\r\n\r\ndata\r\nmore\r\n--B\r\na:2\r\n\r\n\r\n--B--\r\nafter",
                vec![part(Some("1"), "data\r\nmore"), part(Some("2"), "")],
            ),
            (
                "\r\n\r\n--B\r\n\r\n--x\r\n-\r\n--B--",
                vec![part(None, "--x\r\n-")],
            ),
            // Neither data nor an empty line, and no end.
            (
                "--B\r\nA: 1\r\n--B\r\nA: 2\r\n\r\ncut of",
                vec![part(Some("1"), ""), part(Some("2"), "cut of")],
            ),
            (
                "--B\r\nA: 1\r\n  2\r\n\r\nx\r\n--B",
                vec![part(Some("1\n  2"), "x")],
            ),
            ("--B\r\n", vec![part(None, "")]),
        ] {
            for size in 1..text.len() + 1 {
                assert_eq!(
                    read(text, size).await,
                    Ok(expected.clone()),
                    "{text:?} by {size}"
                );
            }
        }
    }

    #[tokio::test]
    async fn bad_starts_and_bounds() {
        for text in ["", "B", "--C\r\n", "--B--\r\n", "--Bx\r\n", "x\r\n--B\r\n"] {
            let error = read(text, 3).await.unwrap_err();
            assert_eq!(error, "invalid starting boundary", "{text:?}");
        }
        let lines = "a: b\r\n".repeat(HEADERS_MAX_BYTES);
        for headers in ["x".repeat(HEADERS_MAX_BYTES * 2), lines] {
            let error = read(&format!("--B\r\n{headers}\r\n"), 1000)
                .await
                .unwrap_err();
            assert!(error.contains("headers of a part"), "{error}");
        }
        for boundary in [String::new(), "b".repeat(300)] {
            let started = Multipart::start(body("--", 1), &boundary).await;
            assert!(matches!(started, Err(MultipartError::Start)));
        }
    }

    #[tokio::test]
    async fn a_client_that_leaves_is_an_error() {
        let (sender, body) = Body::channel(None, 4);
        sender.send("--B\r\n\r\ndata".into()).await;
        drop(sender);
        let mut parts = Multipart::start(body, "B").await.unwrap();
        parts.next_part().await.unwrap();
        let mut last = parts.chunk().await;
        while let Ok(Some(_)) = last {
            last = parts.chunk().await;
        }
        assert!(matches!(
            last,
            Err(MultipartError::Body(BodyError::Disconnected))
        ));
    }

    use proptest::prelude::*;

    proptest! {
        /// The result does not depend on how a body is cut into chunks, and data that is not a
        /// boundary is preserved.
        #[test]
        fn chunks_change_nothing(text in "[-B\r\nA:x]{0,60}", size in 1usize..20) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            let runtime = runtime.unwrap();
            let text = format!("--B\r\n{text}");
            let whole = runtime.block_on(read(&text, text.len()));
            let cut = runtime.block_on(read(&text, size));
            prop_assert_eq!(whole, cut);
        }

        #[test]
        fn data_comes_out_as_it_went_in(
            parts in proptest::collection::vec("[-BC\r\nx]{0,30}", 0..4),
            size in 1usize..20,
        ) {
            prop_assume!(parts.iter().all(|part| !format!("\r\n{part}\r").contains("\r\n--B")));
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            let form: String = parts.iter().map(|part| format!("--B\r\n\r\n{part}\r\n")).collect();
            let read = runtime.unwrap().block_on(read(&format!("{form}--B--"), size));
            if parts.is_empty() {
                prop_assert!(read.is_err());
            } else {
                let data: Vec<String> = read.unwrap().into_iter().map(|(_, data)| data).collect();
                prop_assert_eq!(data, parts);
            }
        }
    }
}
