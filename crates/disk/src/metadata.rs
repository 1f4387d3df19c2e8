//! Metadata of an object: names and values as in headers, and their pickled form in a file's
//! extended attributes.
//!
//! On disk it is a pickled dictionary (protocol 2) of bytes to bytes. Swift stores header values as
//! latin-1 text encoded in UTF-8, so that the two bytes of `é` take four; `name`, the path
//! `/account/container/object`, is plain UTF-8. Dictionaries written by Python 2 hold raw values;
//! their pickles lack `_codecs.encode` near the start, by which both Swift and this code
//! distinguish them. Names are latin-1 text in UTF-8 as well; in memory they have the form of
//! `cairn_types::header_name`.

use std::borrow::Cow;
use std::sync::Arc;

use cairn_formats::pickle::{self, PickleError, Value};
use cairn_types::{Timestamp, header_name};

/// The object's path.
pub const NAME: &str = "name";
/// Index of an erasure-coded object's fragment.
pub const FRAGMENT_INDEX: &str = "X-Object-Sysmeta-Ec-Frag-Index";
/// Marker of ours in metadata too large for extended attributes; see `overflow.rs`.
pub(crate) const OVERFLOW: &str = "X-Backend-Cairn-Overflow";

/// Names (capitalised as by Swift: `X-Timestamp`, `ETag`, `X-Object-Meta-Color`) and values, in the
/// order they were set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Copy on write.
    items: Arc<Vec<(String, Vec<u8>)>>,
}

impl Metadata {
    pub fn new() -> Self {
        Metadata::default()
    }

    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let item = self.items.iter().find(|(n, _)| n == name);
        item.map(|(_, value)| value.as_slice())
    }

    /// Expiry time (`X-Delete-At`) in seconds; none or 0 is never.
    pub fn delete_at(&self) -> Option<u64> {
        let seconds = self.get_str("X-Delete-At")?.trim().parse().ok();
        seconds.filter(|&seconds| seconds != 0)
    }

    /// A value that is UTF-8.
    pub fn get_str(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(|v| std::str::from_utf8(v).ok())
    }

    /// As `get_str`, by a case-insensitive name.
    pub fn get_ignore_case(&self, name: &str) -> Option<&[u8]> {
        let item = self
            .items
            .iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(name));
        item.map(|(_, value)| value.as_slice())
    }

    pub fn timestamp(&self, name: &str) -> Option<Timestamp> {
        self.get_str(name).and_then(|t| Timestamp::parse(t).ok())
    }

    /// Sets or replaces.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) {
        let (name, value) = (name.into(), value.into());
        let items = Arc::make_mut(&mut self.items);
        match items.iter_mut().find(|(n, _)| *n == name) {
            Some(item) => item.1 = value,
            None => items.push((name, value)),
        }
    }

    pub fn remove(&mut self, name: &str) -> Option<Vec<u8>> {
        let at = self.items.iter().position(|(n, _)| n == name)?;
        Some(Arc::make_mut(&mut self.items).remove(at).1)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.items.iter().map(|(n, v)| (n.as_str(), v.as_slice()))
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The pickle in Swift's format.
    pub fn to_pickle(&self) -> Vec<u8> {
        let pairs = self.items.iter().map(|(name, value)| {
            let value = if name == NAME {
                Cow::Borrowed(&**value)
            } else {
                to_disk(Cow::Borrowed(&**value))
            };
            (to_disk(header_name::unescape(name)), value)
        });
        pickle::dump_byte_strings(pairs)
    }

    /// Parses a pickle of Swift or of `to_pickle`.
    ///
    /// # Errors
    /// `Malformed` if it is no dictionary of texts and numbers; else as `pickle::loads`.
    pub fn from_pickle(bytes: &[u8]) -> Result<Self, PickleError> {
        if let Some(pairs) = pickle::byte_strings(bytes) {
            let owned = |(name, value): (&str, &str)| {
                let name = header_name::escape_text(name).into_owned();
                (name, value.as_bytes().to_vec())
            };
            let items: Vec<_> = pairs.into_iter().map(owned).collect();
            let items = Arc::new(items);
            return Ok(Metadata { items });
        }
        let by_python_3 = contains(&bytes[..bytes.len().min(32)], b"_codecs\nencode");
        let Value::Dict(pairs) = pickle::loads(bytes)? else {
            return Err(PickleError::Malformed("metadata is no dictionary"));
        };
        let mut items = Vec::with_capacity(pairs.len());
        for (name, value) in pairs {
            let name = name_from_disk(name, by_python_3)?;
            let value = match value {
                Value::Bytes(value) if by_python_3 && name != NAME => from_disk(value),
                Value::Bytes(value) => value,
                Value::Str(value) if name == NAME => value.into_bytes(),
                Value::Str(value) => from_disk(value.into_bytes()),
                Value::Int(number) => number.to_string().into_bytes(),
                _ => return Err(PickleError::Malformed("a value is no text")),
            };
            items.push((name, value));
        }
        let items = Arc::new(items);
        Ok(Metadata { items })
    }
}

impl<N: Into<String>, V: Into<Vec<u8>>> FromIterator<(N, V)> for Metadata {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(items: I) -> Self {
        let mut metadata = Metadata::new();
        for (name, value) in items {
            metadata.set(name, value);
        }
        metadata
    }
}

/// In-memory form of a name.
fn name_from_disk(name: Value, by_python_3: bool) -> Result<String, PickleError> {
    let bytes = match name {
        Value::Bytes(bytes) if by_python_3 => from_disk(bytes),
        Value::Bytes(bytes) => bytes,
        Value::Str(text) => from_disk(text.into_bytes()),
        _ => return Err(PickleError::Malformed("a name is no text")),
    };
    let escaped = header_name::escape(&bytes);
    Ok(escaped.iter().copied().map(char::from).collect())
}

/// Encodes each byte as the UTF-8 of the character with that number.
fn to_disk(value: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    if value.is_ascii() {
        return value;
    }
    let text: String = value.iter().map(|b| char::from(*b)).collect();
    Cow::Owned(text.into_bytes())
}

/// The inverse of `to_disk`; other input is unchanged.
fn from_disk(value: Vec<u8>) -> Vec<u8> {
    if value.is_ascii() {
        return value;
    }
    let decoded = std::str::from_utf8(&value).ok().and_then(|text| {
        text.chars()
            .map(|c| u8::try_from(u32::from(c)).ok())
            .collect::<Option<Vec<u8>>>()
    });
    decoded.unwrap_or(value)
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|w| w == needle)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn round_trip_with_marker() {
        let metadata: Metadata = [
            ("name", "/a/c/\u{e9}".as_bytes()),
            ("X-Timestamp", b"1402444821.43589"),
            ("X-Object-Meta-E", "\u{e9}".as_bytes()),
        ]
        .into_iter()
        .collect();
        let pickle = metadata.to_pickle();
        assert!(contains(&pickle[..32], b"_codecs\nencode"));
        assert_eq!(Metadata::from_pickle(&pickle).unwrap(), metadata);
    }

    /// XFS stores up to 276 bytes of attributes in an inode of 512 bytes: for each its name, its
    /// value and three bytes (`xfs_attr_shortform_bytesfit`).
    #[test]
    fn of_a_short_name_it_fits_into_an_inode() {
        let metadata: Metadata = [
            ("X-Timestamp", "1402444821.43589"),
            ("Content-Type", "application/octet-stream"),
            ("Content-Length", "10000"),
            ("ETag", "d41d8cd98f00b204e9800998ecf8427e"),
            ("name", "/AUTH_test/bench-0/o0000000000"),
        ]
        .into_iter()
        .collect();
        let pickle = 3 + "swift.metadata".len() + metadata.to_pickle().len();
        let checksum = 3 + "swift.metadata_checksum".len() + 32;
        assert!(pickle + checksum <= 276, "{pickle} and {checksum}");
    }

    #[test]
    fn python_2_wrote_values_as_they_were() {
        let pickle = b"\x80\x02}q\x01(U\x04nameq\x02U\x06/a/c/oq\x03U\x01xU\x02\xc3\xa9u.";
        let metadata = Metadata::from_pickle(pickle).unwrap();
        assert_eq!(metadata.get("x"), Some("\u{e9}".as_bytes()));
        assert_eq!(metadata.get_str("name"), Some("/a/c/o"));
    }

    /// As OpenStack Swift writes `X-Object-Meta-\u{e8}`.
    #[test]
    fn names_of_any_bytes() {
        let name = "X-Object-Meta-^195^168^094";
        let metadata: Metadata = [("name", "/a/c/o"), (name, "v")].into_iter().collect();
        let pickle = metadata.to_pickle();
        let latin_1_in_utf_8 = "X-Object-Meta-\u{c3}\u{a8}^".as_bytes();
        let written = pickle::loads(&pickle).unwrap();
        let Value::Dict(pairs) = &written else {
            unreachable!("a dictionary was written");
        };
        assert_eq!(pairs[1].0.as_bytes(), Some(latin_1_in_utf_8));
        assert_eq!(Metadata::from_pickle(&pickle).unwrap(), metadata);
        // ASCII, but not in the in-memory form.
        let caret: Metadata = [("name", "/a/c/o"), ("X-Object-Meta-^094", "v")]
            .into_iter()
            .collect();
        let pickle = caret.to_pickle();
        assert!(contains(&pickle, b"X-Object-Meta-^") && !contains(&pickle, b"^094"));
        assert_eq!(Metadata::from_pickle(&pickle).unwrap(), caret);
    }

    #[test]
    fn set_replaces() {
        let mut metadata = Metadata::new();
        metadata.set("A", "1");
        metadata.set("B", "2");
        metadata.set("A", "3");
        assert_eq!(metadata.get_str("A"), Some("3"));
        assert_eq!(metadata.iter().count(), 2);
        assert_eq!(metadata.remove("A"), Some(b"3".to_vec()));
        assert_eq!(metadata.get_ignore_case("b"), Some(&b"2"[..]));
    }

    proptest! {
        #[test]
        fn any_value_round_trips(value in proptest::collection::vec(any::<u8>(), 0..40)) {
            let metadata: Metadata =
                [("name", b"/a/c/o".to_vec()), ("X", value)].into_iter().collect();
            prop_assert_eq!(Metadata::from_pickle(&metadata.to_pickle()), Ok(metadata));
        }

        #[test]
        fn noise_never_panics(noise in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Metadata::from_pickle(&noise);
        }
    }
}
