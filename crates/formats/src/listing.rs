//! Listings of accounts and containers: the servers speak JSON, clients may ask for plain text or
//! XML. Conversion reads the JSON once and borrows names without escapes.
//!
//! Hazard: rows whose name holds the reserved byte (NUL) belong to internal containers and are left
//! out unless the caller may see them.

mod page;

use std::borrow::Cow;
use std::fmt;

use memchr::memmem;
use serde::Deserialize;
use serde::de::{Deserializer, Visitor};
use serde_json::Value;
use thiserror::Error;

pub use page::{LastRow, Page};

/// Maximum bytes of a JSON listing that is converted; a larger one is passed to the client
/// unchanged.
pub const MAX_LISTING_BYTES: u64 = 1024 * 10_000 * 2;

/// The text is not a listing; the caller passes it on unchanged.
#[derive(Debug, Error)]
pub enum ListingError {
    #[error("not a listing: {0}")]
    Json(#[from] serde_json::Error),
    #[error("a row without {0:?}")]
    Missing(&'static str),
}

/// A converted listing.
#[derive(Debug, PartialEq, Eq)]
pub struct Converted {
    pub body: Vec<u8>,
    /// Number of rows left out because of the reserved byte.
    pub hidden: usize,
}

/// A JSON string, number or null in the form of Python's `str()`.
struct Text<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a number")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
            fn visit_string<E>(self, text: String) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text)))
            }
            fn visit_u64<E>(self, number: u64) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(number.to_string())))
            }
            fn visit_i64<E>(self, number: i64) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(number.to_string())))
            }
            fn visit_f64<E>(self, number: f64) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(number.to_string())))
            }
            fn visit_bool<E>(self, yes: bool) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(if yes { "True" } else { "False" })))
            }
            fn visit_unit<E>(self) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed("None")))
            }
        }
        deserializer.deserialize_any(TextVisitor)
    }
}

/// Deserializes a field that is present, so that null is not mistaken for absence.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(d: D) -> Result<Option<Text<'a>>, D::Error> {
    Text::deserialize(d).map(Some)
}

#[derive(Deserialize)]
struct NameRow<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    name: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    subdir: Option<Text<'a>>,
}

#[derive(Deserialize)]
struct FullRow<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    name: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    subdir: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    hash: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    bytes: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    count: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    content_type: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    last_modified: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    storage_policy: Option<Text<'a>>,
}

fn is_reserved(field: &Option<Text<'_>>) -> bool {
    field.as_ref().is_some_and(|t| t.0.contains('\0'))
}

fn need<'t>(field: &'t Option<Text<'_>>, name: &'static str) -> Result<&'t str, ListingError> {
    field
        .as_ref()
        .map(|t| t.0.as_ref())
        .ok_or(ListingError::Missing(name))
}

/// Converts to plain text: one name or pseudo-folder per line.
///
/// # Errors
/// `Json` if it is no array of rows, `Missing` for a row with neither name nor subdir.
pub fn to_text(json: &[u8], show_reserved: bool) -> Result<Converted, ListingError> {
    let rows: Vec<NameRow<'_>> = serde_json::from_slice(json)?;
    let mut body = Vec::with_capacity(json.len() / 4);
    let mut hidden = 0;
    for row in &rows {
        if !show_reserved && (is_reserved(&row.name) || is_reserved(&row.subdir)) {
            hidden += 1;
            continue;
        }
        let line = match &row.name {
            Some(name) => name.0.as_ref(),
            None => need(&row.subdir, "subdir")?,
        };
        body.extend_from_slice(line.as_bytes());
        body.push(b'\n');
    }
    Ok(Converted { body, hidden })
}

/// The JSON without reserved names; `None` if it can be sent unchanged.
///
/// # Errors
/// `Json` if it has a reserved character to hide and is no array of objects.
pub fn to_json(json: &[u8], show_reserved: bool) -> Result<Option<Converted>, ListingError> {
    // JSON writes a NUL as an escape, in exactly this form.
    if show_reserved || memmem::find(json, b"\\u0000").is_none() {
        return Ok(None);
    }
    let rows: Vec<serde_json::Map<String, Value>> = serde_json::from_slice(json)?;
    let reserved = |row: &serde_json::Map<String, Value>| {
        ["name", "subdir"].iter().any(|k| {
            row.get(*k)
                .and_then(Value::as_str)
                .is_some_and(|t| t.contains('\0'))
        })
    };
    let before = rows.len();
    let rows: Vec<_> = rows.into_iter().filter(|r| !reserved(r)).collect();
    let hidden = before - rows.len();
    let body = serde_json::to_vec(&rows)?;
    Ok(Some(Converted { body, hidden }))
}

const XML_HEAD: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";

/// Converts an account's listing to XML.
///
/// # Errors
/// `Json` if it is no array of rows, `Missing` for a row without a field of the XML.
pub fn account_to_xml(
    json: &[u8],
    account: &str,
    show_reserved: bool,
) -> Result<Converted, ListingError> {
    let mut out = String::with_capacity(json.len() + json.len() / 2 + 128);
    out.push_str(XML_HEAD);
    out.push_str("<account name=\"");
    push_attribute(&mut out, account);
    out.push_str("\">\n");
    let hidden = for_rows(json, show_reserved, |row| {
        if let Some(subdir) = &row.subdir {
            out.push_str("<subdir name=\"");
            push_attribute(&mut out, &subdir.0);
            out.push_str("\" />\n");
            return Ok(());
        }
        out.push_str("<container>");
        push_element(&mut out, "name", need(&row.name, "name")?);
        push_element(&mut out, "count", need(&row.count, "count")?);
        push_element(&mut out, "bytes", need(&row.bytes, "bytes")?);
        push_element(
            &mut out,
            "last_modified",
            need(&row.last_modified, "last_modified")?,
        );
        if let Some(policy) = &row.storage_policy {
            push_element(&mut out, "storage_policy", &policy.0);
        }
        out.push_str("</container>\n");
        Ok(())
    })?;
    out.push_str("</account>");
    Ok(Converted {
        body: out.into_bytes(),
        hidden,
    })
}

/// Converts a container's listing to XML.
///
/// # Errors
/// `Json` if it is no array of rows, `Missing` for an object without a field of the XML.
pub fn container_to_xml(
    json: &[u8],
    container: &str,
    show_reserved: bool,
) -> Result<Converted, ListingError> {
    let mut out = String::with_capacity(json.len() + json.len() / 2 + 128);
    out.push_str(XML_HEAD);
    out.push_str("<container name=\"");
    push_attribute(&mut out, container);
    let mut any = false;
    let hidden = for_rows(json, show_reserved, |row| {
        if !any {
            out.push_str("\">");
            any = true;
        }
        if let Some(subdir) = &row.subdir {
            out.push_str("<subdir name=\"");
            push_attribute(&mut out, &subdir.0);
            out.push_str("\">");
            push_element(&mut out, "name", &subdir.0);
            out.push_str("</subdir>");
            return Ok(());
        }
        out.push_str("<object>");
        push_element(&mut out, "name", need(&row.name, "name")?);
        push_element(&mut out, "hash", need(&row.hash, "hash")?);
        push_element(&mut out, "bytes", need(&row.bytes, "bytes")?);
        push_element(
            &mut out,
            "content_type",
            need(&row.content_type, "content_type")?,
        );
        push_element(
            &mut out,
            "last_modified",
            need(&row.last_modified, "last_modified")?,
        );
        out.push_str("</object>");
        Ok(())
    })?;
    out.push_str(if any { "</container>" } else { "\" />" });
    Ok(Converted {
        body: out.into_bytes(),
        hidden,
    })
}

/// Calls `write` for each visible row, and returns the number of hidden ones.
fn for_rows(
    json: &[u8],
    show_reserved: bool,
    mut write: impl FnMut(&FullRow<'_>) -> Result<(), ListingError>,
) -> Result<usize, ListingError> {
    let rows: Vec<FullRow<'_>> = serde_json::from_slice(json)?;
    let mut hidden = 0;
    for row in &rows {
        if !show_reserved && (is_reserved(&row.name) || is_reserved(&row.subdir)) {
            hidden += 1;
        } else {
            write(row)?;
        }
    }
    Ok(hidden)
}

fn push_element(out: &mut String, tag: &str, text: &str) {
    out.push('<');
    out.push_str(tag);
    if text.is_empty() {
        out.push_str(" />");
        return;
    }
    out.push('>');
    push_escaped(out, text, |c| match c {
        '&' => Some("&amp;"),
        '<' => Some("&lt;"),
        '>' => Some("&gt;"),
        _ => None,
    });
    out.push_str("</");
    out.push_str(tag);
    out.push('>');
}

fn push_attribute(out: &mut String, text: &str) {
    push_escaped(out, text, |c| match c {
        '&' => Some("&amp;"),
        '<' => Some("&lt;"),
        '>' => Some("&gt;"),
        '"' => Some("&quot;"),
        '\r' => Some("&#13;"),
        '\n' => Some("&#10;"),
        '\t' => Some("&#09;"),
        _ => None,
    });
}

fn push_escaped(out: &mut String, text: &str, escape: impl Fn(char) -> Option<&'static str>) {
    let mut rest = text;
    while let Some(at) = rest.find(|c| escape(c).is_some()) {
        out.push_str(&rest[..at]);
        let mut chars = rest[at..].chars();
        if let Some(escaped) = chars.next().and_then(&escape) {
            out.push_str(escaped);
        }
        rest = chars.as_str();
    }
    out.push_str(rest);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn text(converted: Result<Converted, ListingError>) -> String {
        String::from_utf8(converted.unwrap().body).unwrap()
    }

    // The expected texts are output of OpenStack Swift 2.38.
    #[test]
    fn accounts() {
        let json = r#"[{"name":"a<b","count":1,"bytes":2,"last_modified":"2020"},
                       {"subdir":"x&\"y"}]"#;
        assert_eq!(
            text(account_to_xml(json.as_bytes(), "AUTH_te\"st", false)),
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<account name=\"AUTH_te&quot;st\">\n\
             <container><name>a&lt;b</name><count>1</count><bytes>2</bytes>\
             <last_modified>2020</last_modified></container>\n\
             <subdir name=\"x&amp;&quot;y\" />\n</account>"
        );
        assert_eq!(
            text(account_to_xml(b"[]", "AUTH_te\nst\t\r", false)),
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
             <account name=\"AUTH_te&#10;st&#09;&#13;\">\n</account>"
        );
        assert_eq!(text(to_text(json.as_bytes(), false)), "a<b\nx&\"y\n");
    }

    #[test]
    fn containers() {
        let json = r#"[{"name":"a<b>&\"","hash":"","bytes":2,"content_type":null,
                        "last_modified":"2020"},{"subdir":"x&\"y\u00e9"}]"#;
        assert_eq!(
            text(container_to_xml(json.as_bytes(), "c", false)),
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<container name=\"c\">\
             <object><name>a&lt;b&gt;&amp;\"</name><hash /><bytes>2</bytes>\
             <content_type>None</content_type><last_modified>2020</last_modified></object>\
             <subdir name=\"x&amp;&quot;yé\"><name>x&amp;\"yé</name></subdir></container>"
        );
        assert_eq!(
            text(container_to_xml(b"[]", "c", false)),
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<container name=\"c\" />"
        );
    }

    #[test]
    fn reserved_names_are_hidden() {
        let json = br#"[{"name":"\u0000a"},{"name":"b"},{"subdir":"\u0000c"}]"#;
        assert_eq!(
            to_text(json, false).unwrap(),
            Converted {
                body: b"b\n".to_vec(),
                hidden: 2
            }
        );
        assert_eq!(text(to_text(json, true)), "\0a\nb\n\0c\n");
        assert_eq!(
            to_json(json, false).unwrap(),
            Some(Converted {
                body: br#"[{"name":"b"}]"#.to_vec(),
                hidden: 2
            })
        );
        assert_eq!(to_json(json, true).unwrap(), None);
        assert_eq!(to_json(b"[]", false).unwrap(), None);
    }

    #[test]
    fn no_listing_is_an_error() {
        for bad in [
            "",
            "{}",
            "[1]",
            "[[]]",
            r#"["a"]"#,
            r#"[{"name":{}}]"#,
            "nonsense",
        ] {
            assert!(to_text(bad.as_bytes(), false).is_err(), "{bad}");
        }
        assert!(to_text(b"[{}]", false).is_err());
        assert!(container_to_xml(br#"[{"name":"a"}]"#, "c", false).is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_get_an_answer(bytes: Vec<u8>) {
            let _ = to_text(&bytes, false);
            let _ = to_json(&bytes, false);
            let _ = account_to_xml(&bytes, "a", true);
            let _ = container_to_xml(&bytes, "c", true);
        }
    }
}
