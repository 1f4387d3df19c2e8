//! The manifest as a client sends it: a JSON list of `{"path": "/c/o"}` with optional `etag`,
//! `size_bytes` and `range`, or `{"data": "base64"}`. All errors that can be detected without
//! reading a segment are reported here, with the entry's index.
//!
//! Entries are checked one by one as the JSON is parsed, and invalid ones are skipped: a body of
//! many small wrong values needs no more memory than its own size.

use std::fmt;

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use cairn_formats::range::ByteRanges;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Maximum number of errors reported.
const ERRORS_MAX: usize = 1000;
const EXTRANEOUS_SHOWN: usize = 10;

/// Base64 with optional or excessive padding.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// A segment as requested.
#[derive(Debug)]
pub(super) enum Wanted {
    Inline(Bytes),
    Object(WantedObject),
}

#[derive(Debug)]
pub(super) struct WantedObject {
    /// The path as given, for messages.
    pub(super) path: String,
    pub(super) etag: Option<String>,
    pub(super) size: Option<i64>,
    pub(super) range: Option<ByteRanges>,
}

/// The supported types of a value.
enum Scalar {
    Null,
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(String),
    /// A list or an object.
    Other,
}

#[derive(Default)]
struct Fields {
    data: Option<Scalar>,
    path: Option<Scalar>,
    range: Option<Scalar>,
    etag: Option<Scalar>,
    size_bytes: Option<Scalar>,
    unknown: Vec<String>,
}

enum Entry {
    NoObject,
    Fields(Box<Fields>),
}

/// Parses the list; `own_path` is the manifest's own, decoded. The error is for the client.
pub(super) fn parse(body: &[u8], own_path: &str, account: &str) -> Result<Vec<Wanted>, String> {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let list = ListVisitor { own_path, account };
    let list = deserializer
        .deserialize_any(list)
        .and_then(|list| deserializer.end().map(|()| list))
        .map_err(|_| "Manifest must be valid JSON.\n".to_owned())?;
    let Some(List { wanted, mut errors }) = list else {
        return Err("Manifest must be a list.\n".into());
    };
    let all_inline = wanted.iter().all(|w| matches!(w, Wanted::Inline(_)));
    if errors.is_empty() && !wanted.is_empty() && all_inline {
        errors.push("Inline data segments require at least one object-backed segment.".into());
    }
    if errors.is_empty() {
        return Ok(wanted);
    }
    Err(errors.join("\n") + "\n")
}

struct List {
    wanted: Vec<Wanted>,
    errors: Vec<String>,
}

struct ListVisitor<'a> {
    own_path: &'a str,
    account: &'a str,
}

/// Visitor methods that skip values of all other types.
macro_rules! skip_others {
    ($result:expr; $($visit:ident: $type:ty),*) => {
        $(fn $visit<E>(self, _: $type) -> Result<Self::Value, E> {
            Ok($result)
        })*
        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok($result)
        }
    };
}

impl<'de> Visitor<'de> for ListVisitor<'_> {
    type Value = Option<List>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of segments")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Option<List>, A::Error> {
        let (mut wanted, mut errors) = (Vec::new(), Vec::new());
        let mut index = 0;
        // Only the last segment may be empty: an empty one is an error once another follows.
        let mut empty_so_far = None;
        while let Some(entry) = seq.next_element::<Entry>()? {
            if let Some(empty) = empty_so_far.take() {
                note(&mut errors, empty, TOO_SMALL);
            }
            match self.check(entry) {
                Ok(Wanted::Object(object)) => {
                    if object.size.is_some_and(|size| size < 1) {
                        empty_so_far = Some(index);
                    }
                    wanted.push(Wanted::Object(object));
                }
                Ok(inline) => wanted.push(inline),
                Err(complaint) => note(&mut errors, index, &complaint),
            }
            index += 1;
        }
        Ok(Some(List { wanted, errors }))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<List>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    skip_others!(None; visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64,
        visit_str: &str);
}

const TOO_SMALL: &str = "too small; each segment must be at least 1 byte.";

fn note(errors: &mut Vec<String>, index: usize, complaint: &str) {
    if errors.len() < ERRORS_MAX {
        errors.push(format!("Index {index}: {complaint}"));
    }
}

impl ListVisitor<'_> {
    fn check(&self, entry: Entry) -> Result<Wanted, String> {
        let Entry::Fields(fields) = entry else {
            return Err("not a JSON object".into());
        };
        if fields.data.is_some() {
            return inline(*fields);
        }
        if fields.path.is_some() {
            return self.object(*fields);
        }
        Err("expected keys to include one of 'data' or 'path'".into())
    }

    fn object(&self, fields: Fields) -> Result<Wanted, String> {
        no_extraneous(fields.unknown)?;
        let Some(Scalar::Text(path)) = fields.path else {
            return Err("\"path\" must be a string".into());
        };
        let etag = match fields.etag {
            None | Some(Scalar::Null) => None,
            Some(Scalar::Text(etag)) => Some(etag),
            Some(_) => return Err("\"etag\" must be a string or null (if provided)".into()),
        };
        if !path.trim_matches('/').contains('/') {
            return Err(
                "path does not refer to an object. Path must be of the form /container/object."
                    .into(),
            );
        }
        let size = match fields.size_bytes {
            None | Some(Scalar::Null) => None,
            Some(value) => Some(whole_number(&value).ok_or("invalid size_bytes")?),
        };
        if format!("{}/{}", self.account, path.trim_start_matches('/')) == self.own_path {
            return Err("manifest must not include itself as a segment".into());
        }
        let range = match fields.range.as_ref().and_then(as_range_text) {
            None => None,
            Some(text) => Some(single_range(&text, size)?),
        };
        Ok(Wanted::Object(WantedObject {
            path,
            etag,
            size,
            range,
        }))
    }
}

fn inline(fields: Fields) -> Result<Wanted, String> {
    let mut extraneous = fields.unknown;
    for (name, field) in [
        ("etag", &fields.etag),
        ("path", &fields.path),
        ("range", &fields.range),
        ("size_bytes", &fields.size_bytes),
    ] {
        if field.is_some() {
            extraneous.push(name.to_owned());
        }
    }
    no_extraneous(extraneous)?;
    let data = match &fields.data {
        Some(Scalar::Text(text)) => LENIENT.decode(text.trim_end_matches('=')).ok(),
        _ => None,
    };
    match data {
        None => Err("data must be valid base64".into()),
        Some(data) if data.is_empty() => Err(TOO_SMALL.into()),
        Some(data) => Ok(Wanted::Inline(data.into())),
    }
}

fn no_extraneous(mut names: Vec<String>) -> Result<(), String> {
    if names.is_empty() {
        return Ok(());
    }
    names.sort();
    let names: Vec<String> = names
        .iter()
        .map(|name| serde_json::Value::from(name.as_str()).to_string())
        .collect();
    Err(format!("extraneous keys {}", names.join(", ")))
}

/// A number, also as a string.
fn whole_number(value: &Scalar) -> Option<i64> {
    match value {
        Scalar::Integer(number) => Some(*number),
        Scalar::Float(number) if number.is_finite() => Some(number.trunc() as i64),
        Scalar::Bool(yes) => Some(i64::from(*yes)),
        Scalar::Text(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// `None` for values that mean no range: absent, null, an empty text.
fn as_range_text(value: &Scalar) -> Option<String> {
    match value {
        Scalar::Null | Scalar::Bool(false) | Scalar::Integer(0) => None,
        Scalar::Text(text) if text.is_empty() => None,
        Scalar::Text(text) => Some(text.clone()),
        Scalar::Integer(number) => Some(number.to_string()),
        Scalar::Bool(true) | Scalar::Float(_) | Scalar::Other => Some("none".into()),
    }
}

fn single_range(text: &str, size: Option<i64>) -> Result<ByteRanges, String> {
    let range = ByteRanges::parse(&format!("bytes={text}")).ok_or("invalid range")?;
    if text.contains(',') {
        return Err("multiple ranges (only one allowed)".into());
    }
    // A wrong size is detected later.
    if let Some(size) = size
        && range.for_length(u64::try_from(size).unwrap_or(0)).len() != 1
    {
        return Err("unsatisfiable range".into());
    }
    Ok(range)
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EntryVisitor)
    }
}

struct EntryVisitor;

impl<'de> Visitor<'de> for EntryVisitor {
    type Value = Entry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a segment")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entry, A::Error> {
        let mut fields = Box::new(Fields::default());
        while let Some(name) = map.next_key::<String>()? {
            let field = match name.as_str() {
                "data" => &mut fields.data,
                "path" => &mut fields.path,
                "range" => &mut fields.range,
                "etag" => &mut fields.etag,
                "size_bytes" => &mut fields.size_bytes,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    if fields.unknown.len() < EXTRANEOUS_SHOWN {
                        fields.unknown.push(name);
                    }
                    continue;
                }
            };
            *field = Some(map.next_value()?);
        }
        Ok(Entry::Fields(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Entry, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Entry::NoObject)
    }

    skip_others!(Entry::NoObject; visit_bool: bool, visit_i64: i64, visit_u64: u64,
        visit_f64: f64, visit_str: &str);
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, yes: bool) -> Result<Scalar, E> {
        Ok(Scalar::Bool(yes))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Scalar, E> {
        Ok(Scalar::Integer(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Scalar, E> {
        Ok(Scalar::Integer(i64::try_from(number).unwrap_or(i64::MAX)))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Scalar, E> {
        Ok(Scalar::Float(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Scalar, E> {
        Ok(Scalar::Text(text.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Scalar, E> {
        Ok(Scalar::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Scalar, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Scalar::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scalar, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Scalar::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(json: &str) -> String {
        parse(json.as_bytes(), "/v1/a/c/man", "/v1/a").expect_err("refused")
    }

    #[test]
    fn complaints() {
        for (json, told) in [
            ("{", "Manifest must be valid JSON.\n"),
            ("[] x", "Manifest must be valid JSON.\n"),
            ("{\"a\":[1]}", "Manifest must be a list.\n"),
            ("3", "Manifest must be a list.\n"),
            (
                r#"[3, {}, {"path": 5}, {"path": "/c/o", "etag": 3}, {"path": "c"}]"#,
                "Index 0: not a JSON object\nIndex 1: expected keys to include one of 'data' or \
                 'path'\nIndex 2: \"path\" must be a string\nIndex 3: \"etag\" must be a string \
                 or null (if provided)\nIndex 4: path does not refer to an object. Path must be \
                 of the form /container/object.\n",
            ),
            (
                r#"[{"path": "/c/o", "x": [1], "b": {}}, {"data": "YQ==", "path": "/c/o"}]"#,
                "Index 0: extraneous keys \"b\", \"x\"\nIndex 1: extraneous keys \"path\"\n",
            ),
            (
                r#"[{"path": "/c/o", "size_bytes": "x"}, {"path": "/c/o", "size_bytes": [1]}]"#,
                "Index 0: invalid size_bytes\nIndex 1: invalid size_bytes\n",
            ),
            (
                r#"[{"path": "/c/o", "size_bytes": 0}, {"path": "/c/p", "size_bytes": 0}]"#,
                "Index 0: too small; each segment must be at least 1 byte.\n",
            ),
            (
                r#"[{"path": "c/man"}]"#,
                "Index 0: manifest must not include itself as a segment\n",
            ),
            (
                r#"[{"path": "/c/o", "range": "x"}, {"path": "/c/o", "range": "1-2,3-4"},
                    {"path": "/c/o", "range": "5-", "size_bytes": "4"}]"#,
                "Index 0: invalid range\nIndex 1: multiple ranges (only one allowed)\n\
                 Index 2: unsatisfiable range\n",
            ),
            (
                r#"[{"data": "Y*=="}, {"data": ""}, {"data": 4}]"#,
                "Index 0: data must be valid base64\nIndex 1: too small; each segment must be \
                 at least 1 byte.\nIndex 2: data must be valid base64\n",
            ),
            (
                r#"[{"data": "YQ=="}]"#,
                "Inline data segments require at least one object-backed segment.\n",
            ),
        ] {
            assert_eq!(complaint(json), told, "{json}");
        }
    }

    #[test]
    fn what_is_taken() {
        let json = r#"[{"path": "/c/o", "etag": null, "size_bytes": null, "range": ""},
            {"data": "YWI"}, {"data": "YQ===="},
            {"path": "c/o/p", "etag": "e", "size_bytes": "12", "range": "-5"}]"#;
        let wanted = parse(json.as_bytes(), "/v1/a/c/man", "/v1/a").expect("taken");
        assert_eq!(wanted.len(), 4);
        let Wanted::Object(first) = &wanted[0] else {
            panic!("an object");
        };
        assert!(first.etag.is_none() && first.size.is_none() && first.range.is_none());
        assert!(matches!(&wanted[1], Wanted::Inline(data) if data == "ab"));
        assert!(matches!(&wanted[2], Wanted::Inline(data) if data == "a"));
        let Wanted::Object(last) = &wanted[3] else {
            panic!("an object");
        };
        assert_eq!((last.size, last.etag.as_deref()), (Some(12), Some("e")));
        assert_eq!(parse(b"[]", "/v1/a/c/man", "/v1/a").map(|w| w.len()), Ok(0));
    }

    #[test]
    fn complaints_are_bounded() {
        let many = format!("[{}0]", "0,".repeat(100_000));
        assert_eq!(complaint(&many).lines().count(), ERRORS_MAX);
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_manifest_is_read_or_refused(
            json in r#"\[(\{"(path|etag|size_bytes|range|data)": ?("[0-9a-z/=-]{0,20}"|[0-9-]{0,20}|null)\},?){0,4}\]|.{0,80}"#
        ) {
            let _ = parse(json.as_bytes(), "/c/o", "AUTH_a");
        }
    }
}
