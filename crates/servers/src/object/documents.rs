//! Parser of a request body of several MIME documents: the object's content, metadata known only at
//! its end, and the commit.
//!
//! ```text
//! --<boundary>
//! X-Document: object body
//!
//! …
//! --<boundary>
//! X-Document: object metadata
//! Content-MD5: <of the JSON>
//!
//! {"X-Object-Sysmeta-Ec-Frag-Index": "2", …}
//! --<boundary>
//! X-Document: put commit
//!
//! put_commit_confirmation
//! --<boundary>--
//! ```
//!
//! Lines end with CR LF; the one before a boundary belongs to the boundary.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cairn_http::{Body, BodyError};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use md5::{Digest, Md5};

use super::status::Refusal;

/// Maximum head of a document.
const HEAD_MAX_BYTES: usize = 64 << 10;
/// Maximum document except the content.
const DOCUMENT_MAX_BYTES: usize = 1 << 20;

#[derive(Clone, Copy, PartialEq)]
enum Position {
    /// In a document, or before the first.
    Inside,
    /// After a boundary.
    Between,
    Ended,
}

/// Reader of a body by document.
pub(super) struct Documents {
    body: Body,
    /// Bytes read and not yet consumed.
    rest: Bytes,
    /// CR LF and boundary.
    delimiter: Vec<u8>,
    position: Position,
    timeout: Duration,
}

impl Documents {
    /// Opens the first document, which only line ends may precede.
    pub(super) async fn open(
        body: Body,
        boundary: &str,
        timeout: Duration,
    ) -> Result<Self, Refusal> {
        let mut documents = Documents {
            body,
            // Makes the first boundary like any other.
            rest: Bytes::from_static(b"\r\n"),
            delimiter: format!("\r\n--{boundary}").into_bytes(),
            position: Position::Inside,
            timeout,
        };
        while let Some(before) = documents.chunk().await? {
            if !before.trim_ascii().is_empty() {
                return Err(bad("invalid starting boundary"));
            }
        }
        match documents.next().await? {
            Some(_) => Ok(documents),
            None => Err(bad("no MIME documents")),
        }
    }

    /// The head of the next document; `None` after the last. Skips the rest of the current one.
    pub(super) async fn next(&mut self) -> Result<Option<HeaderMap>, Refusal> {
        while self.chunk().await?.is_some() {}
        if self.position == Position::Ended {
            return Ok(None);
        }
        let mut head = BytesMut::new();
        loop {
            if head.starts_with(b"--") {
                self.position = Position::Ended;
                return Ok(None);
            }
            // First the end of the boundary's line.
            if let Some(at) = find(&head, b"\r\n\r\n") {
                self.rest = join(head.split_off(at + 4).freeze(), &self.rest);
                self.position = Position::Inside;
                return Ok(Some(parse_head(&head)));
            }
            if head.len() > HEAD_MAX_BYTES {
                return Err(bad("a MIME document's head is too long"));
            }
            match self.more().await? {
                Some(bytes) => head.extend_from_slice(&bytes),
                // The body ended between documents.
                None => {
                    self.position = Position::Ended;
                    return Ok(None);
                }
            }
        }
    }

    /// Next bytes of this document; `None` at its end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, BodyError> {
        while self.position == Position::Inside {
            let at = find_or_begin(&self.rest, &self.delimiter);
            if at > 0 {
                return Ok(Some(self.rest.split_to(at)));
            }
            if self.rest.starts_with(&self.delimiter) {
                drop(self.rest.split_to(self.delimiter.len()));
                self.position = Position::Between;
                break;
            }
            match self.read().await? {
                Some(bytes) => self.rest = join(std::mem::take(&mut self.rest), &bytes),
                None => return Err(BodyError::Disconnected),
            }
        }
        Ok(None)
    }

    /// The rest of this document.
    pub(super) async fn collect(&mut self) -> Result<Bytes, Refusal> {
        let mut all = BytesMut::new();
        while let Some(chunk) = self.chunk().await? {
            all.extend_from_slice(&chunk);
            if all.len() > DOCUMENT_MAX_BYTES {
                return Err(bad("a MIME document is too long"));
            }
        }
        Ok(all.freeze())
    }

    /// The metadata after the content.
    pub(super) async fn footers(&mut self) -> Result<HeaderMap, Refusal> {
        let head = self.next().await?;
        let head = head.ok_or_else(|| bad("couldn't find footer MIME doc"))?;
        let text = self.collect().await?;
        let md5 = head.get("content-md5");
        let md5 = md5.ok_or_else(|| bad("no Content-MD5 in footer"))?;
        let actual = cairn_types::ObjectHash(Md5::digest(&text).into()).hex();
        if md5.as_bytes() != actual.as_bytes() {
            return Err(Refusal::EtagMismatch);
        }
        let footers: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(&text).map_err(|_| bad("invalid JSON for footer doc"))?;
        let pair = |(name, value): (String, serde_json::Value)| {
            let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
            let value = match value {
                serde_json::Value::String(text) => header_bytes(&text),
                serde_json::Value::Number(number) => number.to_string().into_bytes(),
                _ => return None,
            };
            Some((name, HeaderValue::from_bytes(&value).ok()?))
        };
        Ok(footers.into_iter().filter_map(pair).collect())
    }

    /// Whether the next document is the commit.
    pub(super) async fn reads_commit(&mut self) -> Result<bool, Refusal> {
        let head = self.next().await?;
        let head = head.ok_or_else(|| bad("couldn't find PUT commit MIME doc"))?;
        let is_commit = head.get("x-document").map(HeaderValue::as_bytes) == Some(b"put commit");
        self.collect().await?;
        Ok(is_commit)
    }

    /// Reads to the end.
    pub(super) async fn drain(&mut self) -> Result<(), Refusal> {
        while self.next().await?.is_some() {}
        while self.read().await?.is_some() {}
        Ok(())
    }

    /// Buffered bytes, or the next ones.
    async fn more(&mut self) -> Result<Option<Bytes>, BodyError> {
        if self.rest.is_empty() {
            return self.read().await;
        }
        Ok(Some(std::mem::take(&mut self.rest)))
    }

    async fn read(&mut self) -> Result<Option<Bytes>, BodyError> {
        let chunk = self.body.next_chunk_within(self.timeout).await;
        chunk.transpose()
    }
}

fn bad(reason: &str) -> Refusal {
    Refusal::BadRequest(reason.into())
}

fn join(first: Bytes, second: &Bytes) -> Bytes {
    if first.is_empty() {
        return second.clone();
    }
    if second.is_empty() {
        return first;
    }
    let mut both = BytesMut::with_capacity(first.len() + second.len());
    both.extend_from_slice(&first);
    both.extend_from_slice(second);
    both.freeze()
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// Position of the delimiter, or of a prefix of it at the end; the length if there is none.
fn find_or_begin(bytes: &[u8], delimiter: &[u8]) -> usize {
    let mut from = 0;
    while let Some(at) = bytes[from..].iter().position(|b| *b == delimiter[0]) {
        let at = from + at;
        let count = delimiter.len().min(bytes.len() - at);
        if bytes[at..at + count] == delimiter[..count] {
            return at;
        }
        from = at + 1;
    }
    bytes.len()
}

/// Parses the lines between the boundary and the blank line; lines that are no headers are dropped.
fn parse_head(head: &[u8]) -> HeaderMap {
    let lines = head.split(|b| *b == b'\n');
    let header = |line: &[u8]| {
        let at = line.iter().position(|b| *b == b':')?;
        let name = HeaderName::from_bytes(line[..at].trim_ascii()).ok()?;
        let value = HeaderValue::from_bytes(line[at + 1..].trim_ascii()).ok()?;
        Some((name, value))
    };
    lines.filter_map(header).collect()
}

/// Bytes of Swift's header text, which has one character per byte.
fn header_bytes(text: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = text
        .chars()
        .map(|c| u8::try_from(u32::from(c)).ok())
        .collect();
    bytes.unwrap_or_else(|| text.as_bytes().to_vec())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    async fn documents(text: &[u8], piece: usize) -> Result<Documents, Refusal> {
        let pieces: Vec<_> = text
            .chunks(piece)
            .map(|c| Ok(Bytes::copy_from_slice(c)))
            .collect();
        let body = Body::from_stream(futures_util::stream::iter(pieces), None);
        Documents::open(body, "B", Duration::from_secs(5)).await
    }

    #[tokio::test]
    async fn documents_however_they_are_cut() {
        let footer = "{\"X-Object-Sysmeta-Ec-Frag-Index\": \"2\", \"Etag\": \"\\u00e9\"}";
        let md5 = cairn_types::ObjectHash(Md5::digest(footer).into()).hex();
        let text = format!(
            "--B\r\nX-Document: object body\r\n\r\nab\r\n--c\r\r\n\r\n--B\r\n\
             X-Document: object metadata\r\nContent-MD5: {md5}\r\n\r\n{footer}\r\n--B\r\n\
             X-Document: put commit\r\n\r\nyes\r\n--B--"
        );
        for piece in 1..text.len() {
            let mut documents = documents(text.as_bytes(), piece).await.unwrap();
            assert_eq!(documents.collect().await.unwrap(), "ab\r\n--c\r\r\n");
            let footers = documents.footers().await.unwrap();
            assert_eq!(footers["x-object-sysmeta-ec-frag-index"], "2");
            assert_eq!(footers["etag"].as_bytes(), b"\xe9");
            assert!(documents.reads_commit().await.unwrap());
            assert!(documents.next().await.unwrap().is_none());
            documents.drain().await.unwrap();
        }
    }

    #[tokio::test]
    async fn what_is_missing_is_told() {
        assert!(documents(b"--C\r\n\r\n", 9).await.is_err());
        let mut cut = documents(b"\r\n--B\r\nX: y\r\n\r\nab", 99).await.unwrap();
        assert!(cut.collect().await.is_err());
        let mut lone = documents(b"--B\r\nX: y\r\n\r\nab\r\n--B--", 4)
            .await
            .unwrap();
        assert!(matches!(lone.footers().await, Err(Refusal::BadRequest(_))));
        let mut wrong = documents(
            b"--B\r\nX: y\r\n\r\n\r\n--B\r\nContent-MD5: 0\r\n\r\n{}\r\n--B--",
            4,
        )
        .await
        .unwrap();
        assert!(matches!(wrong.footers().await, Err(Refusal::EtagMismatch)));
    }
}
