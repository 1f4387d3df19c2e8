//! Pages of a container's listing, concatenated as raw JSON: only the name and size of each row are
//! parsed, to find where the next page begins.

use std::fmt;

use cairn_types::json_text;
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, de};

use super::{ListingError, Text, present};

/// Consecutive rows of a listing as JSON, with their count and total size.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The rows as JSON, without the enclosing brackets.
    rows: String,
    pub count: usize,
    /// Total bytes of all objects in the page.
    pub bytes: i64,
    pub last: Option<LastRow>,
}

/// Name of the last row: the marker after which the next page begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastRow {
    pub name: String,
    /// A pseudo-folder: all names with this prefix are covered too.
    pub is_subdir: bool,
}

impl Page {
    /// Parses the JSON body of a container server's response.
    ///
    /// # Errors
    /// `Json` if it is no array of rows, or the last has neither name nor subdir.
    pub fn parse(json: &[u8]) -> Result<Page, ListingError> {
        let RowFields { count, bytes, last } = serde_json::from_slice(json)?;
        let text = std::str::from_utf8(json).map_err(serde_json::Error::custom)?;
        let rows = text.trim();
        let rows = rows.strip_prefix('[').unwrap_or(rows);
        let rows = rows.strip_suffix(']').unwrap_or(rows).trim();
        Ok(Page {
            rows: json_text::to_ascii(rows.to_owned()),
            count,
            bytes,
            last,
        })
    }

    /// Appends the page `next`, which follows this one.
    pub fn append(&mut self, next: Page) {
        if next.count == 0 {
            return;
        }
        if self.count == 0 {
            *self = next;
            return;
        }
        self.rows.push_str(", ");
        self.rows.push_str(&next.rows);
        self.count += next.count;
        self.bytes = self.bytes.saturating_add(next.bytes);
        self.last = next.last;
    }

    /// The rows as a complete JSON listing.
    pub fn into_json(self) -> String {
        let mut json = self.rows;
        json.insert(0, '[');
        json.push(']');
        json
    }
}

#[derive(Deserialize)]
struct Row<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    name: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    subdir: Option<Text<'a>>,
    #[serde(default)]
    bytes: i64,
}

/// The fields parsed of each row of a page.
struct RowFields {
    count: usize,
    bytes: i64,
    last: Option<LastRow>,
}

impl<'de> Deserialize<'de> for RowFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(SeenVisitor)
    }
}

struct SeenVisitor;

impl<'de> Visitor<'de> for SeenVisitor {
    type Value = RowFields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the rows of a container")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut rows: A) -> Result<RowFields, A::Error> {
        let (mut count, mut bytes, mut last) = (0, 0i64, None);
        while let Some(row) = rows.next_element::<Row<'de>>()? {
            count += 1;
            bytes = bytes.saturating_add(row.bytes);
            last = Some(row);
        }
        let last = last.map(Row::into_last).transpose()?;
        Ok(RowFields { count, bytes, last })
    }
}

impl Row<'_> {
    fn into_last<E: de::Error>(self) -> Result<LastRow, E> {
        let (text, is_subdir) = match (self.subdir, self.name) {
            (Some(subdir), _) => (subdir, true),
            (None, Some(name)) => (name, false),
            (None, None) => return Err(E::missing_field("name")),
        };
        let name = text.0.into_owned();
        Ok(LastRow { name, is_subdir })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn page(json: &str) -> Page {
        Page::parse(json.as_bytes()).unwrap()
    }

    #[test]
    fn pages_become_one_listing() {
        let mut all = page(" [ ]\n");
        assert_eq!((all.count, &all.last), (0, &None));
        all.append(page(
            r#"[{"name": "a\u00e9", "bytes": 3}, {"subdir": "b/"}]"#,
        ));
        let last = all.last.clone().unwrap();
        assert_eq!((last.name.as_str(), last.is_subdir), ("b/", true));
        all.append(page("[]"));
        all.append(page(r#"[{"bytes": 4, "name": "c☃"}]"#));
        assert_eq!((all.count, all.bytes), (3, 7));
        assert_eq!(all.last.as_ref().unwrap().name, "c☃");
        assert_eq!(
            all.into_json(),
            r#"[{"name": "a\u00e9", "bytes": 3}, {"subdir": "b/"}, {"bytes": 4, "name": "c\u2603"}]"#
        );
        assert_eq!(Page::default().into_json(), "[]");
    }

    #[test]
    fn no_page_is_an_error() {
        for bad in ["", "{}", "[1]", "[{}]", "[{\"name\": 1}", "[] []"] {
            assert!(Page::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_get_an_answer(bytes: Vec<u8>) {
            let _ = Page::parse(&bytes);
        }
    }
}
