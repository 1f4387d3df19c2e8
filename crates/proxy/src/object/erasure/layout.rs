//! Mapping between byte ranges of an object and of its fragment archives.

use std::ops::Range;
use std::sync::Arc;

use cairn_formats::range::Spec;

use crate::erasure::Erasure;

/// One object of a known length.
#[derive(Clone)]
pub(super) struct Layout {
    erasure: Arc<Erasure>,
    length: u64,
}

impl Layout {
    pub(super) fn new(erasure: Arc<Erasure>, length: u64) -> Self {
        Layout { erasure, length }
    }

    pub(super) fn erasure(&self) -> &Arc<Erasure> {
        &self.erasure
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    fn segment_size(&self) -> u64 {
        self.erasure.scheme.segment_size() as u64
    }

    /// The segments that contain these bytes of the object.
    pub(super) fn segments(&self, range: &Range<u64>) -> Range<u64> {
        if range.is_empty() {
            return 0..0;
        }
        let size = self.segment_size();
        range.start / size..range.end.min(self.length).div_ceil(size)
    }

    /// Bytes of the object in a segment.
    pub(super) fn content(&self, segment: u64) -> Range<u64> {
        let size = self.segment_size();
        let start = segment.saturating_mul(size).min(self.length);
        start..start.saturating_add(size).min(self.length)
    }

    /// Bytes of an archive that hold the fragments of these segments.
    pub(super) fn fragments(&self, segments: &Range<u64>) -> Range<u64> {
        if segments.is_empty() {
            return 0..0;
        }
        let start = segments.start * whole_fragment(&self.erasure);
        let last = self.fragment(segments.end - 1);
        start..last.end
    }

    /// Bytes of an archive that hold a segment's fragment.
    pub(super) fn fragment(&self, segment: u64) -> Range<u64> {
        let start = segment * whole_fragment(&self.erasure);
        let content = self.content(segment);
        start
            ..start
                + self
                    .erasure
                    .codec
                    .fragment_size(content.end - content.start)
    }
}

/// Size of a fragment of a segment that is not the last, in bytes.
fn whole_fragment(erasure: &Erasure) -> u64 {
    let size = erasure.scheme.segment_size() as u64;
    erasure.codec.fragment_size(size)
}

/// Range of an archive that contains the fragments for a range of an object of unknown length.
pub(super) fn archive_range(erasure: &Erasure, spec: Spec) -> String {
    let size = erasure.scheme.segment_size() as u64;
    let fragment = whole_fragment(erasure);
    let begin = |byte: u64| (byte / size).saturating_mul(fragment);
    match spec {
        Spec::From(start) => format!("bytes={}-", begin(start)),
        Spec::FromTo(start, end) => {
            let last = (end / size).saturating_add(1).saturating_mul(fragment) - 1;
            format!("bytes={}-{last}", begin(start))
        }
        // One segment more: if the last segment is short, the range begins one segment earlier.
        Spec::Last(count) => {
            let segments = count.div_ceil(size).saturating_add(1);
            format!("bytes=-{}", segments.saturating_mul(fragment))
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use cairn_erasure::Codec;
    use cairn_types::{EcType, ErasureScheme};

    use super::*;

    /// Segments of 100 bytes, with fragments of 80 + 50 bytes.
    fn erasure() -> Arc<Erasure> {
        let scheme = ErasureScheme::new(EcType::IsaLRsVand, 2, 1)
            .unwrap()
            .with_segment_size(100)
            .unwrap();
        let codec = Codec::new(&scheme);
        Arc::new(Erasure { scheme, codec })
    }

    #[test]
    fn bytes_are_found_in_segments_and_fragments() {
        let layout = Layout::new(erasure(), 250);
        assert_eq!(layout.segments(&(0..250)), 0..3);
        assert_eq!(layout.segments(&(99..101)), 0..2);
        assert_eq!(layout.segments(&(100..200)), 1..2);
        assert_eq!(layout.segments(&(7..7)), 0..0);
        assert_eq!(layout.content(2), 200..250);
        assert_eq!(layout.fragment(1), 130..260);
        assert_eq!(layout.fragment(2), 260..365);
        assert_eq!(layout.fragments(&(1..3)), 130..365);
    }

    #[test]
    fn ranges_are_widened_to_fragments() {
        for (spec, range) in [
            (Spec::From(0), "bytes=0-"),
            (Spec::From(100), "bytes=130-"),
            (Spec::FromTo(99, 100), "bytes=0-259"),
            (Spec::FromTo(150, 160), "bytes=130-259"),
            (Spec::Last(1), "bytes=-260"),
            (Spec::Last(100), "bytes=-260"),
            (Spec::Last(101), "bytes=-390"),
        ] {
            assert_eq!(archive_range(&erasure(), spec), range);
        }
        archive_range(&erasure(), Spec::FromTo(0, u64::MAX));
        archive_range(&erasure(), Spec::Last(u64::MAX));
    }
}
