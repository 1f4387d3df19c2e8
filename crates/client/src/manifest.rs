//! Manifests of static large objects, in the form that PUT takes and `format=raw` returns.

use serde::{Deserialize, Serialize};

/// A byte range of a segment: `"0-99"`, `"100-"` or `"-100"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteRange {
    /// First and last byte.
    Closed(u64, u64),
    From(u64),
    Last(u64),
}

impl ByteRange {
    pub fn parse(text: &str) -> Option<ByteRange> {
        let (first, last) = text.trim().split_once('-')?;
        match (first.trim(), last.trim()) {
            ("", last) => Some(ByteRange::Last(last.parse().ok()?)),
            (first, "") => Some(ByteRange::From(first.parse().ok()?)),
            (first, last) => Some(ByteRange::Closed(first.parse().ok()?, last.parse().ok()?)),
        }
    }

    /// First byte and number of bytes within an object of `size` bytes; `None` if the range is
    /// outside of it.
    pub fn resolve(self, size: u64) -> Option<(u64, u64)> {
        let (first, end) = match self {
            ByteRange::Closed(first, last) => (first, last.saturating_add(1).min(size)),
            ByteRange::From(first) => (first, size),
            ByteRange::Last(count) => (size.saturating_sub(count), size),
        };
        (first < end).then(|| (first, end - first))
    }
}

/// One segment of a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestEntry {
    /// Unencoded `/container/object`; absent if the manifest itself contains the bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// Size of the whole segment, whatever range of it is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<String>,
    /// Bytes in the manifest itself, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
}

impl ManifestEntry {
    /// An entry for `length` bytes from `first` of `/container/object`, which has `size` bytes.
    pub fn part(path: String, size: u64, first: u64, length: u64) -> ManifestEntry {
        let is_whole = first == 0 && length == size;
        ManifestEntry {
            path: Some(path),
            etag: None,
            size_bytes: Some(size),
            range: (!is_whole).then(|| format!("{first}-{}", first + length - 1)),
            data: None,
        }
    }
}

/// The ETag of a large object with these segments: the MD5 of their ETags, each followed by its
/// range if only a part is used. `None` if an ETag is missing.
pub fn large_object_etag(entries: &[ManifestEntry]) -> Option<String> {
    use md5::{Digest, Md5};
    let mut md5 = Md5::new();
    for entry in entries {
        md5.update(entry.etag.as_deref()?.trim_matches('"'));
        if let Some(range) = &entry.range {
            md5.update(format!(":{range};"));
        }
    }
    Some(cairn_types::hex::encode(md5.finalize()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn ranges_resolve() {
        let of = |text: &str| ByteRange::parse(text).unwrap().resolve(100);
        assert_eq!(of("0-9"), Some((0, 10)));
        assert_eq!(of("90-200"), Some((90, 10)));
        assert_eq!(of("95-"), Some((95, 5)));
        assert_eq!(of("-5"), Some((95, 5)));
        assert_eq!(of("-500"), Some((0, 100)));
        assert_eq!(of("100-"), None);
        assert_eq!(of("9-0"), None);
        assert_eq!(ByteRange::parse("x"), None);
        assert_eq!(ByteRange::parse("-"), None);
    }

    proptest::proptest! {
        #[test]
        fn any_text_parses_or_not(text in ".{0,40}", size: u64) {
            if let Some((first, length)) = ByteRange::parse(&text).and_then(|r| r.resolve(size)) {
                proptest::prop_assert!(length > 0 && first + length <= size);
            }
        }
    }

    #[test]
    fn a_part_is_written_as_it_is_read() {
        let text = r#"[{"path":"/c/s","size_bytes":10,"range":"2-5"},{"data":"YQ=="},{"path":"/c/t","etag":null}]"#;
        let entries: Vec<ManifestEntry> = serde_json::from_str(text).unwrap();
        assert_eq!(entries[0], ManifestEntry::part("/c/s".into(), 10, 2, 4));
        assert_eq!(ManifestEntry::part("/c/s".into(), 10, 0, 10).range, None);
        assert!(entries[1].path.is_none() && entries[2].size_bytes.is_none());
    }
}
