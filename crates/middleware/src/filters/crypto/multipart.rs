//! Decryption of multipart responses: each part's head gives the range that follows, and only the
//! ranges are decrypted.

use bytes::{Bytes, BytesMut};
use cairn_formats::crypto_meta::Iv;
use cairn_http::{Body, BodyError};
use futures_util::stream;
use memchr::memmem;

use super::cipher::CtrStream;
use super::decrypter::owned;
use super::keys::Key;

pub(super) const CONTENT_TYPE: &str = "multipart/byteranges";

/// Maximum bytes of a part's head, with the boundary before it.
const HEAD_MAX: usize = 16 << 10;

/// The `boundary` of a content type.
pub(super) fn boundary_of(content_type: &str) -> Option<&str> {
    let parameters = content_type.split(';').skip(1);
    let named = parameters.filter_map(|item| item.trim().split_once('='));
    let mut found = named.filter(|(name, _)| name.trim().eq_ignore_ascii_case("boundary"));
    let (_, boundary) = found.next()?;
    Some(boundary.trim().trim_matches('"')).filter(|boundary| !boundary.is_empty())
}

/// Offset of the first byte of a `Content-Range`.
pub(super) fn first_byte(range: &str) -> Option<u64> {
    first_and_last(range).map(|(first, _)| first)
}

fn first_and_last(range: &str) -> Option<(u64, u64)> {
    let range = range.trim().strip_prefix("bytes")?.trim_start();
    let (range, _) = range.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (first <= last).then_some((first, last))
}

/// A piece of the body: framing, or content with its offset in the object.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Between(Bytes),
    Content { offset: u64, bytes: BytesMut },
}

enum State {
    /// In the framing before a part's content.
    Head(BytesMut),
    Content {
        offset: u64,
        left: u64,
    },
    Ended,
}

/// Incremental parser of the body.
pub(super) struct Ranges {
    /// Two hyphens, the boundary, two hyphens.
    end: Vec<u8>,
    state: State,
}

impl Ranges {
    pub(super) fn new(boundary: &str) -> Self {
        Ranges {
            end: format!("--{boundary}--").into_bytes(),
            state: State::Head(BytesMut::new()),
        }
    }

    /// The next piece; `None` if more of the body is needed.
    pub(super) fn next(&mut self, input: &mut Bytes) -> Result<Option<Piece>, BodyError> {
        if input.is_empty() {
            return Ok(None);
        }
        match &mut self.state {
            State::Ended => Ok(Some(Piece::Between(std::mem::take(input)))),
            State::Content { offset, left } => {
                let length = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(input.len());
                let piece = Piece::Content {
                    offset: *offset,
                    bytes: owned(input.split_to(length)),
                };
                *offset += length as u64;
                *left -= length as u64;
                if *left == 0 {
                    self.state = State::Head(BytesMut::new());
                }
                Ok(Some(piece))
            }
            State::Head(head) => {
                head.extend_from_slice(input);
                if let Some(at) = memmem::find(head, b"\r\n\r\n").map(|at| at + 4) {
                    *input = head.split_off(at).freeze();
                    let head = std::mem::take(head).freeze();
                    let (first, last) = range_of(&head)
                        .ok_or_else(|| BodyError::Malformed("a part without a range".into()))?;
                    self.state = State::Content {
                        offset: first,
                        left: last - first + 1,
                    };
                    return Ok(Some(Piece::Between(head)));
                }
                *input = Bytes::new();
                if memmem::find(head, &self.end).is_some() {
                    let rest = std::mem::take(head).freeze();
                    self.state = State::Ended;
                    return Ok(Some(Piece::Between(rest)));
                }
                if head.len() > HEAD_MAX {
                    return Err(BodyError::Malformed(
                        "the head of a part is too long".into(),
                    ));
                }
                Ok(None)
            }
        }
    }
}

fn range_of(head: &[u8]) -> Option<(u64, u64)> {
    let head = std::str::from_utf8(head).ok()?;
    let mut lines = head.lines().filter_map(|line| line.split_once(':'));
    let (_, range) = lines.find(|(name, _)| name.trim().eq_ignore_ascii_case("content-range"))?;
    first_and_last(range)
}

struct Reading {
    body: Body,
    input: Bytes,
    ranges: Ranges,
    key: Key,
    iv: Iv,
    stream: Option<(u64, CtrStream)>,
    has_failed: bool,
}

impl Reading {
    async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        loop {
            match self.ranges.next(&mut self.input) {
                Err(error) => return Some(Err(error)),
                Ok(Some(Piece::Between(bytes))) => return Some(Ok(bytes)),
                Ok(Some(Piece::Content { offset, bytes })) => {
                    return Some(Ok(self.decrypt(offset, bytes)));
                }
                Ok(None) => match self.body.next_chunk().await? {
                    Ok(chunk) => self.input = chunk,
                    Err(error) => return Some(Err(error)),
                },
            }
        }
    }

    fn decrypt(&mut self, offset: u64, mut bytes: BytesMut) -> Bytes {
        let stream = self.stream.take().filter(|(at, _)| *at == offset);
        let mut stream =
            stream.map_or_else(|| CtrStream::new(&self.key, &self.iv, offset), |(_, s)| s);
        stream.apply(&mut bytes);
        self.stream = Some((offset + bytes.len() as u64, stream));
        bytes.freeze()
    }
}

/// The body, with its parts' content decrypted as it is read.
pub(super) fn decrypted(body: Body, ranges: Ranges, key: Key, iv: Iv) -> Body {
    let length = body.length();
    let reading = Reading {
        body,
        input: Bytes::new(),
        ranges,
        key,
        iv,
        stream: None,
        has_failed: false,
    };
    let chunks = stream::unfold(reading, |mut reading| async move {
        if reading.has_failed {
            return None;
        }
        let chunk = reading.next().await?;
        reading.has_failed = chunk.is_err();
        Some((chunk, reading))
    });
    Body::from_stream(chunks, length)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use cairn_formats::range::Multipart;
    use proptest::prelude::*;

    /// Offset of the content, and bytes.
    type Found = (Option<u64>, Vec<u8>);

    fn pieces(body: &[u8], cuts: &[usize]) -> Result<Vec<Found>, BodyError> {
        let mut ranges = Ranges::new("edge");
        let (mut found, mut from) = (Vec::new(), 0);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (body.len() + 1)).collect();
        cuts.sort_unstable();
        cuts.push(body.len());
        for to in cuts {
            let mut input = Bytes::copy_from_slice(&body[from..to]);
            from = to;
            while let Some(piece) = ranges.next(&mut input)? {
                found.push(match piece {
                    Piece::Between(bytes) => (None, bytes.to_vec()),
                    Piece::Content { offset, bytes } => (Some(offset), bytes.to_vec()),
                });
            }
        }
        Ok(found)
    }

    proptest! {
        #[test]
        fn parts_are_found(
            wanted in prop::collection::vec((0usize..200, 1usize..60), 1..5),
            cuts in prop::collection::vec(any::<usize>(), 0..9),
        ) {
            let content: Vec<u8> = (0..=255).collect();
            let multipart = Multipart::new("edge", b"text/plain", 256);
            let mut body = Vec::new();
            let mut expected = Vec::new();
            for (first, length) in wanted {
                let range = first as u64..(first + length).min(256) as u64;
                body.extend(multipart.head(&range));
                body.extend_from_slice(&content[range.start as usize..range.end as usize]);
                body.extend_from_slice(b"\r\n");
                expected.extend(range);
            }
            body.extend(multipart.end());
            let found = pieces(&body, &cuts).unwrap();
            let all: Vec<u8> = found.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
            prop_assert_eq!(all, body);
            let content = found.iter().filter_map(|(offset, bytes)| Some((offset.as_ref()?, bytes)));
            let at: Vec<u64> = content.flat_map(|(offset, bytes)| {
                let end = offset + bytes.len() as u64;
                assert!(bytes.iter().zip(*offset..).all(|(byte, at)| u64::from(*byte) == at));
                *offset..end
            }).collect();
            prop_assert_eq!(at, expected);
        }

        #[test]
        fn never_panics(body in prop::collection::vec(any::<u8>(), 0..300), cuts in prop::collection::vec(any::<usize>(), 0..4)) {
            let _ = pieces(&body, &cuts);
        }

        #[test]
        fn ranges_never_panic(text in "\\PC{0,40}") {
            let _ = first_byte(&text);
            let _ = boundary_of(&text);
        }
    }

    #[test]
    fn heads() {
        assert_eq!(boundary_of("multipart/byteranges;boundary=ab"), Some("ab"));
        assert_eq!(
            boundary_of("multipart/byteranges; boundary=\"a b\""),
            Some("a b")
        );
        assert_eq!(boundary_of("multipart/byteranges"), None);
        assert_eq!(first_byte("bytes 5-9/10"), Some(5));
        assert_eq!(first_byte("bytes 9-5/10"), None);
        assert_eq!(first_byte("bytes */10"), None);
        assert!(pieces(b"--edge\r\nContent-Type: x\r\n\r\nabc", &[]).is_err());
    }
}
