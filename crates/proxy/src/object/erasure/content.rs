//! Decoded content of an erasure-coded object: segment by segment, as the client reads it.
//!
//! No wrong byte may reach a client as part of a complete body. Each fragment is verified against
//! the checksum in its header, and one that fails is replaced by another server's. Fragments
//! written by Swift's proxies have no checksum; for those, the MD5 of an object that is read as a
//! whole is verified against its ETag before its last bytes are sent, as servers verify whole
//! archives. Ranges of such objects are not verified.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;
use cairn_erasure::{FragmentHeader, HEADER_LEN};
use cairn_formats::range::Multipart;
use cairn_http::unsent::{NoRoom, Reserved};
use cairn_http::{Body, BodyError, own_thread};
use cairn_types::ObjectHash;
use md5::{Digest, Md5};
use tracing::{error, warn};

use super::archive::{Archives, FragmentWanted};
use super::layout::Layout;

/// Maximum bytes of a segment that is decoded on the event loop.
const INLINE_MAX_BYTES: usize = 64 * 1024;

/// A part of a response's body.
enum Part {
    Frame(Bytes),
    /// A range of the object.
    Range(Range<u64>),
}

/// Method by which content is verified.
enum Check {
    /// Not chosen: no segment has been read yet.
    Undecided,
    /// By the checksum of each fragment.
    Fragments,
    /// By the MD5 of the whole object.
    Whole { md5: Md5, expected: ObjectHash },
    /// Not possible: ranges of fragments without checksums.
    Nothing,
}

struct Content {
    archives: Archives,
    layout: Layout,
    check: Check,
    parts: VecDeque<Part>,
    /// The current range, and its next segment.
    range: Range<u64>,
    segments: Range<u64>,
    ready: VecDeque<Bytes>,
    /// Memory reservation of the decoded segment.
    reserved: Reserved,
    done: bool,
}

/// A body with one range of the object.
pub(super) fn range_body(archives: Archives, layout: Layout, range: Range<u64>) -> Body {
    let length = range.end - range.start;
    body(
        archives,
        layout,
        VecDeque::from([Part::Range(range)]),
        length,
    )
}

/// A multipart body with several ranges of the object.
pub(super) fn multipart_body(
    archives: Archives,
    layout: Layout,
    ranges: &[Range<u64>],
    multipart: &Multipart,
) -> Body {
    let mut parts = VecDeque::with_capacity(ranges.len() * 3 + 1);
    for range in ranges {
        parts.push_back(Part::Frame(multipart.head(range).into()));
        parts.push_back(Part::Range(range.clone()));
        parts.push_back(Part::Frame(Bytes::from_static(Multipart::TAIL)));
    }
    parts.push_back(Part::Frame(multipart.end().into()));
    body(archives, layout, parts, multipart.total_length(ranges))
}

fn body(archives: Archives, layout: Layout, parts: VecDeque<Part>, length: u64) -> Body {
    let content = Content {
        archives,
        layout,
        check: Check::Undecided,
        parts,
        range: 0..0,
        segments: 0..0,
        ready: VecDeque::new(),
        reserved: Reserved::default(),
        done: false,
    };
    let stream = futures_util::stream::unfold(content, |mut content| async move {
        if content.done {
            return None;
        }
        let piece = content.next().await;
        content.done = !matches!(piece, Some(Ok(_)));
        piece.map(|piece| (piece, content))
    });
    Body::from_stream(stream, Some(length))
}

impl Content {
    async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Some(Ok(piece));
            }
            if let Some(segment) = self.segments.next() {
                if let Err(error) = self.reserve(segment).await {
                    return Some(Err(BodyError::Source(error.to_string())));
                }
                match self.segment(segment).await {
                    Ok(pieces) => self.ready = pieces,
                    Err(reason) => return Some(Err(BodyError::Source(reason))),
                }
                continue;
            }
            match self.parts.pop_front() {
                Some(Part::Frame(frame)) => return Some(Ok(frame)),
                Some(Part::Range(range)) => {
                    self.segments = self.layout.segments(&range);
                    self.range = range;
                    if !self.segments.is_empty() {
                        let fragments = self.layout.fragments(&self.segments);
                        self.archives.seek(&fragments).await;
                    }
                }
                None => {
                    self.archives.end().await;
                    return None;
                }
            }
        }
    }

    /// Reserves memory for a segment, releasing that of the one before.
    async fn reserve(&mut self, segment: u64) -> Result<(), NoRoom> {
        let content = self.layout.content(segment);
        let bytes = usize::try_from(content.end - content.start).unwrap_or(usize::MAX);
        self.reserved = Reserved::default();
        self.reserved = Reserved::take(self.archives.client(), bytes).await?;
        Ok(())
    }

    /// Decodes the requested bytes of one segment.
    async fn segment(&mut self, segment: u64) -> Result<VecDeque<Bytes>, String> {
        let erasure = self.layout.erasure().clone();
        let content = self.layout.content(segment);
        let until = segment..self.segments.end.max(segment + 1);
        let wanted = FragmentWanted {
            range: self.layout.fragment(segment),
            end: self.layout.fragments(&until).end,
            segment_len: content.end - content.start,
            needs_checksum: matches!(self.check, Check::Fragments),
            codec: &erasure.codec,
        };
        let fragments = self.archives.fragments(&wanted).await?;
        if let Check::Undecided = self.check {
            self.check = self.check_for(&fragments);
        }
        let mut pieces = match self.plain(&fragments) {
            Some(pieces) => cut(pieces, &content, &content).into(),
            None => vec![self.decode(fragments.clone()).await?],
        };
        if !self.is_right(&pieces, content.end) {
            pieces = vec![self.corrected(&wanted, &fragments).await?];
        }
        Ok(cut(pieces, &content, &self.range))
    }

    /// Chooses the method of verification by the first fragments.
    fn check_for(&self, fragments: &[Bytes]) -> Check {
        let mut headers = fragments.iter().map(|f| FragmentHeader::parse(f));
        if headers.all(|header| header.is_ok_and(|h| h.payload_crc32.is_some())) {
            return Check::Fragments;
        }
        let is_whole = self.range == (0..self.layout.length());
        match self.archives.object_md5() {
            Some(expected) if is_whole && self.parts.is_empty() => Check::Whole {
                md5: Md5::new(),
                expected,
            },
            _ => Check::Nothing,
        }
    }

    /// May the object's bytes up to `end` be sent, of which `pieces` are the last?
    fn is_right(&mut self, pieces: &[Bytes], end: u64) -> bool {
        let Check::Whole { md5, expected } = &mut self.check else {
            return true;
        };
        pieces.iter().for_each(|piece| md5.update(piece));
        let is_last = end == self.layout.length();
        !is_last || ObjectHash(md5.finalize_reset().into()) == *expected
    }

    /// The object, if it is a single segment, decoded from other combinations of fragments: one of
    /// the present fragments is wrong, and replacing each in turn by an additional one shows which.
    async fn corrected(
        &mut self,
        wanted: &FragmentWanted<'_>,
        fragments: &[Bytes],
    ) -> Result<Bytes, String> {
        let mismatch = "the object does not match its ETag";
        let is_one_segment = wanted.segment_len == self.layout.length();
        let Check::Whole { expected, .. } = &self.check else {
            return Err(mismatch.into());
        };
        while is_one_segment && let Some(further) = self.archives.further_fragment(wanted).await {
            for left_out in 0..fragments.len() {
                let mut set = fragments.to_vec();
                set[left_out] = further.clone();
                let Ok(decoded) = self.decode(set).await else {
                    continue;
                };
                if ObjectHash(Md5::digest(&decoded).into()) == *expected {
                    warn!("a fragment was wrong; another took its place");
                    return Ok(decoded);
                }
            }
        }
        error!(mismatch, "the body is broken off");
        Err(mismatch.into())
    }

    /// The content as concatenated data fragments, if all of these are present; the last ones may
    /// be padded.
    fn plain(&self, fragments: &[Bytes]) -> Option<Vec<Bytes>> {
        let data = self.layout.erasure().scheme.data();
        let mut by_index = vec![None; data];
        for fragment in fragments {
            let index = FragmentHeader::parse(fragment).ok()?.index as usize;
            *by_index.get_mut(index)? = Some(fragment.slice(HEADER_LEN..));
        }
        by_index.into_iter().collect()
    }

    async fn decode(&self, fragments: Vec<Bytes>) -> Result<Bytes, String> {
        let erasure = self.layout.erasure().clone();
        let size: usize = fragments.iter().map(Bytes::len).sum();
        let decode = move || {
            let fragments: Vec<&[u8]> = fragments.iter().map(AsRef::as_ref).collect();
            erasure.codec.decode(&fragments)
        };
        let decoded = if size <= INLINE_MAX_BYTES {
            decode()
        } else {
            let decoded = own_thread::blocking(decode).await;
            decoded.ok_or("this server failed to decode a segment")?
        };
        decoded.map(Bytes::from).map_err(|error| {
            error!(%error, "fragments can't be decoded");
            error.to_string()
        })
    }
}

/// Cuts pieces that hold the object's bytes `content` (and padding) to the range `wanted`.
fn cut(pieces: Vec<Bytes>, content: &Range<u64>, wanted: &Range<u64>) -> VecDeque<Bytes> {
    let wanted = wanted.start.max(content.start)..wanted.end.min(content.end);
    let mut at = content.start;
    let cut = pieces.into_iter().filter_map(|piece| {
        let (start, end) = (at, at + piece.len() as u64);
        at = end;
        let (from, to) = (wanted.start.max(start), wanted.end.min(end));
        (from < to).then(|| piece.slice((from - start) as usize..(to - start) as usize))
    });
    cut.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_cut_to_what_is_wanted() {
        let pieces = || ["0123", "4567", "89__"].map(Bytes::from).to_vec();
        let cut = |wanted| {
            let all: Vec<u8> = cut(pieces(), &(100..110), &wanted)
                .into_iter()
                .flatten()
                .collect();
            String::from_utf8_lossy(&all).into_owned()
        };
        assert_eq!(cut(0..1000), "0123456789");
        assert_eq!(cut(103..105), "34");
        assert_eq!(cut(108..120), "89");
        assert_eq!(cut(0..100), "");
    }
}
