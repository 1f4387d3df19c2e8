//! The `Range` header, and `multipart/byteranges` answers, following Swift's `swob`.

use std::ops::Range;

/// Maximum number of ranges in a request.
const MAX_RANGES: usize = 50;
/// Maximum number of overlapping pairs of ranges.
const MAX_OVERLAPS: usize = 2;
/// Minimum number of ranges that must be in ascending order.
const MAX_NON_ASCENDING: usize = 8;

/// A well-formed `Range` header, whether satisfiable or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByteRanges(Vec<Spec>);

/// One range as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spec {
    /// `5-`: from this offset to the end.
    From(u64),
    /// `5-9`: both offsets included.
    FromTo(u64, u64),
    /// `-5`: the last five bytes.
    Last(u64),
}

/// The part of content of known length that a `Range` header selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// All of it, with 200: there is no header, it is malformed, or the content is empty.
    Whole,
    /// One range, with 206.
    One(Range<u64>),
    /// Several, with 206 and a multipart body.
    Several(Vec<Range<u64>>),
    /// No range exists in the content, or there are too many: 416.
    Unsatisfiable,
}

impl ByteRanges {
    /// Parses the header. `None` if any part of it is malformed, since it must then be ignored as a
    /// whole (RFC 7233).
    pub fn parse(header: &str) -> Option<Self> {
        let header = header.replace(' ', "");
        let prefix = header.get(..6)?;
        if !prefix.eq_ignore_ascii_case("bytes=") {
            return None;
        }
        let specs = header[6..].split(',').map(Spec::parse);
        specs.collect::<Option<Vec<_>>>().map(ByteRanges)
    }

    /// The ranges as requested.
    pub fn specs(&self) -> &[Spec] {
        &self.0
    }

    /// The ranges that exist in content of that length, ends excluded. Empty if unsatisfiable or
    /// abusive (too many, too many overlaps, too many out of order).
    pub fn for_length(&self, length: u64) -> Vec<Range<u64>> {
        let ranges: Vec<Range<u64>> = self.0.iter().filter_map(|s| s.resolve(length)).collect();
        if ranges.len() > MAX_RANGES || overlaps(&ranges) > MAX_OVERLAPS {
            return Vec::new();
        }
        let is_ascending = ranges
            .windows(2)
            .all(|w| (w[0].start, w[0].end) <= (w[1].start, w[1].end));
        if !is_ascending && ranges.len() >= MAX_NON_ASCENDING {
            return Vec::new();
        }
        ranges
    }
}

impl Spec {
    fn parse(text: &str) -> Option<Self> {
        let (start, end) = text.split_once('-')?;
        match (start.is_empty(), end.is_empty()) {
            (true, true) => None,
            (true, false) => Some(Spec::Last(number(end)?)),
            (false, true) => Some(Spec::From(number(start)?)),
            (false, false) => {
                let (start, end) = (number(start)?, number(end)?);
                (start <= end).then_some(Spec::FromTo(start, end))
            }
        }
    }

    fn resolve(self, length: u64) -> Option<Range<u64>> {
        match self {
            Spec::Last(0) => None,
            Spec::Last(count) => Some(length.saturating_sub(count)..length),
            Spec::From(start) => (start < length).then_some(start..length),
            Spec::FromTo(start, end) => {
                (start < length).then(|| start..end.saturating_add(1).min(length))
            }
        }
    }
}

/// Parses digits only; a number beyond 64 bits is capped.
fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

fn overlaps(ranges: &[Range<u64>]) -> usize {
    let inside = |point: u64, range: &Range<u64>| range.start < point && point < range.end;
    let mut count = 0;
    for (i, a) in ranges.iter().enumerate() {
        for b in &ranges[i + 1..] {
            let overlap =
                inside(b.start, a) || inside(b.end, a) || inside(a.start, b) || inside(a.end, b);
            count += usize::from(overlap);
        }
    }
    count
}

/// The part to send of content of `length` bytes for this `Range` header.
pub fn select(header: Option<&str>, length: u64) -> Selection {
    let Some(ranges) = header.and_then(ByteRanges::parse) else {
        return Selection::Whole;
    };
    let mut ranges = ranges.for_length(length);
    match ranges.len() {
        0 => Selection::Unsatisfiable,
        // A suffix range of empty content: no range can be named, so all of it is sent.
        _ if length == 0 => Selection::Whole,
        1 => Selection::One(ranges.remove(0)),
        _ => Selection::Several(ranges),
    }
}

/// The value of `Content-Range`: `bytes 0-4/10`.
pub fn content_range(range: &Range<u64>, length: u64) -> String {
    format!(
        "bytes {}-{}/{length}",
        range.start,
        range.end.saturating_sub(1)
    )
}

/// The value of `Content-Range` for 416: `bytes */10`.
pub fn content_range_unsatisfied(length: u64) -> String {
    format!("bytes */{length}")
}

/// The frame of a `multipart/byteranges` body: each part is `head`, the range's bytes and `TAIL`;
/// `end` follows the last part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Multipart {
    boundary: String,
    content_type: Vec<u8>,
    length: u64,
}

impl Multipart {
    pub const TAIL: &'static [u8] = b"\r\n";

    /// `content_type` and `length` describe the whole content; `boundary` must not occur in it.
    pub fn new(boundary: impl Into<String>, content_type: &[u8], length: u64) -> Self {
        Multipart {
            boundary: boundary.into(),
            content_type: content_type.to_vec(),
            length,
        }
    }

    /// The response's `Content-Type`.
    pub fn content_type(&self) -> String {
        format!("multipart/byteranges;boundary={}", self.boundary)
    }

    pub fn head(&self, range: &Range<u64>) -> Vec<u8> {
        let mut head = format!("--{}\r\nContent-Type: ", self.boundary).into_bytes();
        head.extend_from_slice(&self.content_type);
        let content_range = content_range(range, self.length);
        head.extend_from_slice(format!("\r\nContent-Range: {content_range}\r\n\r\n").as_bytes());
        head
    }

    pub fn end(&self) -> Vec<u8> {
        format!("--{}--", self.boundary).into_bytes()
    }

    /// Length of the whole body in bytes.
    pub fn total_length(&self, ranges: &[Range<u64>]) -> u64 {
        let parts: u64 = ranges
            .iter()
            .map(|r| (self.head(r).len() + Self::TAIL.len()) as u64 + (r.end - r.start))
            .sum();
        parts + self.end().len() as u64
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn well_formed_or_ignored() {
        for header in [
            "bytes=0-5",
            "BYTES=0-5",
            "bytes=5-",
            "bytes=-5",
            "bytes= 1-2 , 4-",
            "bytes=-0",
            "bytes=0-99999999999999999999999",
        ] {
            assert!(ByteRanges::parse(header).is_some(), "{header}");
        }
        for header in [
            "",
            "bytes=",
            "bytes",
            "items=0-5",
            "bytes=5-3",
            "bytes=-",
            "bytes=45",
            "bytes=x-3",
            "bytes=3-x",
            "bytes=--1",
            "bytes=1--2",
            "bytes=0-5,x",
            "bytes=0-5,",
            "byt\u{e9}s=0-5",
        ] {
            assert_eq!(ByteRanges::parse(header), None, "{header}");
        }
    }

    #[test]
    fn selections() {
        let rows: &[(&str, u64, Selection)] = &[
            ("bytes=0-5", 10, Selection::One(0..6)),
            ("bytes=0-50", 10, Selection::One(0..10)),
            ("bytes=9-9", 10, Selection::One(9..10)),
            ("bytes=5-", 10, Selection::One(5..10)),
            ("bytes=-3", 10, Selection::One(7..10)),
            ("bytes=-30", 10, Selection::One(0..10)),
            ("bytes=10-", 10, Selection::Unsatisfiable),
            ("bytes=10-12", 10, Selection::Unsatisfiable),
            ("bytes=-0", 10, Selection::Unsatisfiable),
            ("bytes=10-12,0-1", 10, Selection::One(0..2)),
            ("bytes=0-1,4-5", 10, Selection::Several(vec![0..2, 4..6])),
            ("bytes=-5", 0, Selection::Whole),
            ("bytes=0-", 0, Selection::Unsatisfiable),
            ("bytes=5-3", 10, Selection::Whole),
        ];
        for (header, length, expected) in rows {
            assert_eq!(select(Some(header), *length), *expected, "{header}");
        }
        assert_eq!(select(None, 10), Selection::Whole);
    }

    #[test]
    fn egregious_requests_are_refused() {
        let many = |count: usize, step: u64| {
            let ranges: Vec<String> = (0..count as u64)
                .map(|i| format!("{}-{}", i * step, i * step))
                .collect();
            format!("bytes={}", ranges.join(","))
        };
        assert_eq!(
            select(Some(&many(51, 2)), 1000),
            Selection::Unsatisfiable,
            "too many"
        );
        assert!(matches!(select(Some(&many(50, 2)), 1000), Selection::Several(r) if r.len() == 50));
        let overlapping = "bytes=0-10,5-15,12-20,18-30";
        assert_eq!(select(Some(overlapping), 100), Selection::Unsatisfiable);
        let two_overlaps = "bytes=0-10,5-15,12-20";
        assert!(matches!(
            select(Some(two_overlaps), 100),
            Selection::Several(_)
        ));
        let backwards = "bytes=70-71,60-61,50-51,40-41,30-31,20-21,10-11,0-1";
        assert_eq!(select(Some(backwards), 100), Selection::Unsatisfiable);
        let backwards = "bytes=60-61,50-51,40-41,30-31,20-21,10-11,0-1";
        assert!(matches!(
            select(Some(backwards), 100),
            Selection::Several(_)
        ));
    }

    #[test]
    fn multipart_lengths() {
        let multipart = Multipart::new("b0", b"text/plain", 10);
        let ranges = [0..2, 4..6];
        let mut body = Vec::new();
        for range in &ranges {
            body.extend(multipart.head(range));
            body.extend(vec![b'x'; (range.end - range.start) as usize]);
            body.extend(Multipart::TAIL);
        }
        body.extend(multipart.end());
        assert_eq!(body.len() as u64, multipart.total_length(&ranges));
        let text = String::from_utf8(body).unwrap();
        assert!(text.starts_with(
            "--b0\r\nContent-Type: text/plain\r\nContent-Range: bytes 0-1/10\r\n\r\nxx\r\n--b0\r\n"
        ));
        assert!(text.ends_with("xx\r\n--b0--"));
    }

    proptest! {
        #[test]
        fn selected_ranges_are_inside(header in "bytes=[0-9,-]{0,30}|.{0,20}", length in 0u64..100) {
            match select(Some(&header), length) {
                Selection::One(r) => prop_assert!(r.start < r.end && r.end <= length),
                Selection::Several(ranges) => {
                    prop_assert!(ranges.len() > 1);
                    prop_assert!(ranges.iter().all(|r| r.start < r.end && r.end <= length));
                }
                Selection::Whole | Selection::Unsatisfiable => {}
            }
        }
    }
}
