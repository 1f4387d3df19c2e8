//! Response bodies: an object's content or ranges of it, streamed from its device.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use cairn_disk::engine::{Content, StoredContent};
use cairn_disk::{ObjectInfo, ObjectReader};
use cairn_formats::range::Multipart;
use cairn_http::{Body, BodyError};

use super::Inner;
use super::target::Target;

/// Part of a body.
enum Part {
    Bytes(Bytes),
    Range(Range<u64>),
}

/// Body of one range of the content, or all of it.
pub(super) fn range_body(
    inner: &Arc<Inner>,
    target: &Target,
    info: &ObjectInfo,
    content: Content,
    range: Range<u64>,
) -> Body {
    match content {
        Content::None => Body::empty(),
        Content::Inline(bytes) => Body::full(slice(&bytes, &range)),
        Content::Stored(stored) => {
            let length = range.end - range.start;
            let source = Source::new(inner, target, info, stored);
            source.into_body(VecDeque::from([Part::Range(range)]), length)
        }
    }
}

/// Body of several ranges, as MIME multipart.
pub(super) fn multipart_body(
    inner: &Arc<Inner>,
    target: &Target,
    info: &ObjectInfo,
    content: Content,
    ranges: &[Range<u64>],
    multipart: &Multipart,
) -> Body {
    let length = multipart.total_length(ranges);
    let mut parts = VecDeque::with_capacity(ranges.len() * 3 + 1);
    for range in ranges {
        parts.push_back(Part::Bytes(Bytes::from(multipart.head(range))));
        parts.push_back(Part::Range(range.clone()));
        parts.push_back(Part::Bytes(Bytes::from_static(Multipart::TAIL)));
    }
    parts.push_back(Part::Bytes(Bytes::from(multipart.end())));
    match content {
        Content::None => Body::empty(),
        Content::Inline(bytes) => {
            let mut all = Vec::with_capacity(length as usize);
            for part in parts {
                match part {
                    Part::Bytes(frame) => all.extend_from_slice(&frame),
                    Part::Range(range) => all.extend_from_slice(&slice(&bytes, &range)),
                }
            }
            Body::full(all)
        }
        Content::Stored(stored) => {
            Source::new(inner, target, info, stored).into_body(parts, length)
        }
    }
}

fn slice(bytes: &Bytes, range: &Range<u64>) -> Bytes {
    let end = bytes.len().min(range.end as usize);
    bytes.slice(end.min(range.start as usize)..end)
}

/// An open object as the source of ranges.
struct Source {
    inner: Arc<Inner>,
    target: Target,
    etag: String,
    stored: StoredContent,
}

impl Source {
    fn new(inner: &Arc<Inner>, target: &Target, info: &ObjectInfo, stored: StoredContent) -> Self {
        Source {
            inner: inner.clone(),
            target: target.clone(),
            etag: info.etag().to_owned(),
            stored,
        }
    }

    fn reader(&self, range: Range<u64>) -> ObjectReader {
        ObjectReader::new(
            self.target.device.clone(),
            self.target.engine.clone(),
            self.target.key.clone(),
            &self.etag,
            self.stored.clone(),
            range,
            self.inner.config.disk_chunk_size,
        )
    }

    fn into_body(self, parts: VecDeque<Part>, length: u64) -> Body {
        let state = Streaming {
            source: self,
            parts,
            reader: None,
        };
        // `None` after an error, which ends the body.
        let stream = futures_util::stream::unfold(Some(state), |state| async move {
            let mut state = state?;
            match state.next().await {
                Ok(Some(bytes)) => Some((Ok(bytes), Some(state))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        });
        Body::from_stream(stream, Some(length))
    }
}

struct Streaming {
    source: Source,
    parts: VecDeque<Part>,
    reader: Option<ObjectReader>,
}

impl Streaming {
    async fn next(&mut self) -> Result<Option<Bytes>, BodyError> {
        loop {
            if let Some(reader) = &mut self.reader {
                match reader.next_chunk().await {
                    Ok(Some(bytes)) => return Ok(Some(bytes)),
                    Ok(None) => self.reader = None,
                    Err(error) => {
                        let object = &*self.source.target.key.name;
                        tracing::warn!(object, %error, "a download broke off");
                        return Err(BodyError::Source(error.to_string()));
                    }
                }
            }
            match self.parts.pop_front() {
                None => return Ok(None),
                Some(Part::Bytes(bytes)) => return Ok(Some(bytes)),
                Some(Part::Range(range)) => self.reader = Some(self.source.reader(range)),
            }
        }
    }
}
