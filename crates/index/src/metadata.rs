//! Metadata of a database: one JSON column, `{"X-Container-Meta-Color": ["red", "<time>"]}`.
//!
//! A value is removed by setting it to `""` at a later time; these tombstones are reclaimed after
//! the reclaim age. Times are compared as text, as in Swift.

use serde::de::{Deserializer as _, MapAccess, Visitor};
use thiserror::Error;

use crate::{IndexError, Result};
use cairn_types::json_text;

/// Metadata in the order of the column: name, value, time of the change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    items: Vec<(String, String, String)>,
}

/// Limits of user metadata.
#[derive(Clone, Copy, Debug)]
pub struct MetadataLimits {
    pub count_max: usize,
    pub size_bytes_max: usize,
}

impl Default for MetadataLimits {
    fn default() -> Self {
        MetadataLimits {
            count_max: 90,
            size_bytes_max: 4096,
        }
    }
}

/// Reasons to refuse an update; clients see the texts.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum MetadataRefused {
    #[error("Metadata must be valid UTF-8")]
    NotUtf8,
    #[error("Too many metadata items; max {max}")]
    TooMany { max: usize },
    #[error("Total metadata too large; max {max}")]
    TooLarge { max: usize },
}

impl Metadata {
    /// Parses the column; an empty one has no items.
    ///
    /// # Errors
    /// `MetadataText` if the column is no JSON object of `[value, time]` pairs.
    pub fn parse(column: &str) -> Result<Self> {
        if column.is_empty() {
            return Ok(Metadata::default());
        }
        let mut json = serde_json::Deserializer::from_str(column);
        let items = json
            .deserialize_map(InOrder)
            .map_err(|error| IndexError::MetadataText {
                reason: error.to_string(),
            })?;
        Ok(Metadata { items })
    }

    /// JSON in the form of Python's `json.dumps`.
    pub fn to_column(&self) -> String {
        let mut out = vec![b'{'];
        for (i, (name, value, timestamp)) in self.items.iter().enumerate() {
            if i > 0 {
                out.extend_from_slice(b", ");
            }
            json_text::push_string(&mut out, name);
            out.extend_from_slice(b": [");
            json_text::push_string(&mut out, value);
            out.extend_from_slice(b", ");
            json_text::push_string(&mut out, timestamp);
            out.push(b']');
        }
        out.push(b'}');
        // Pure ASCII.
        String::from_utf8_lossy(&out).into_owned()
    }

    /// Name, value and time of each item, including removed ones (empty value).
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.items
            .iter()
            .map(|(name, value, time)| (name.as_str(), value.as_str(), time.as_str()))
    }

    /// Value and time of an item; names are case-sensitive.
    pub fn get(&self, name: &str) -> Option<(&str, &str)> {
        let item = self.items.iter().find(|item| item.0 == name)?;
        Some((&item.1, &item.2))
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Sets a value unless the stored one is at least as new. True if something changed.
    pub fn set(&mut self, name: &str, value: &str, timestamp: &str) -> bool {
        match self.items.iter_mut().find(|item| item.0 == name) {
            Some(item) if timestamp <= item.2.as_str() => false,
            Some(item) => {
                item.1 = value.to_owned();
                item.2 = timestamp.to_owned();
                true
            }
            None => {
                self.items
                    .push((name.into(), value.into(), timestamp.into()));
                true
            }
        }
    }

    /// Drops removed items that are older, by `is_older` of their time. True if there were any.
    pub fn reclaim(&mut self, is_older: impl Fn(&str) -> bool) -> bool {
        let before = self.items.len();
        self.items
            .retain(|(_, value, time)| !(value.is_empty() && is_older(time)));
        self.items.len() != before
    }

    /// Checks the limits of user metadata.
    ///
    /// # Errors
    /// `NotUtf8` for a NUL in a name or value. `TooMany` or `TooLarge` if the user metadata exceeds
    /// the limits; removed items do not count.
    pub fn validate(&self, limits: MetadataLimits) -> std::result::Result<(), MetadataRefused> {
        let (mut count, mut size) = (0, 0);
        for (name, value, _) in &self.items {
            // NUL marks reserved names, and is refused in metadata too.
            if name.contains('\0') || value.contains('\0') {
                return Err(MetadataRefused::NotUtf8);
            }
            let name = name.to_lowercase();
            let user = name
                .strip_prefix("x-account-meta-")
                .or_else(|| name.strip_prefix("x-container-meta-"));
            if let Some(short) = user.filter(|_| !value.is_empty()) {
                count += 1;
                size += short.chars().count() + value.chars().count();
            }
        }
        if count > limits.count_max {
            return Err(MetadataRefused::TooMany {
                max: limits.count_max,
            });
        }
        if size > limits.size_bytes_max {
            return Err(MetadataRefused::TooLarge {
                max: limits.size_bytes_max,
            });
        }
        Ok(())
    }
}

struct InOrder;

impl<'de> Visitor<'de> for InOrder {
    type Value = Vec<(String, String, String)>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object of [value, timestamp] pairs")
    }

    fn visit_map<A: MapAccess<'de>>(
        self,
        mut map: A,
    ) -> std::result::Result<Self::Value, A::Error> {
        let mut items: Self::Value = Vec::new();
        while let Some((name, (value, time))) = map.next_entry::<String, (String, String)>()? {
            items.push((name, value, time));
        }
        Ok(items)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn keeps_order_and_newest() {
        let column = r#"{"X-Container-Meta-B": ["\u00e9", "2"], "X-Container-Meta-A": ["", "1"]}"#;
        let mut metadata = Metadata::parse(column).unwrap();
        assert_eq!(metadata.to_column(), column);
        assert!(!metadata.set("X-Container-Meta-B", "x", "2"));
        assert!(metadata.set("X-Container-Meta-B", "x", "3"));
        assert!(metadata.reclaim(|time| time < "2"));
        assert_eq!(
            metadata.to_column(),
            r#"{"X-Container-Meta-B": ["x", "3"]}"#
        );
        assert!(Metadata::parse("").unwrap().is_empty());
        assert!(Metadata::parse("[1]").is_err());
    }

    #[test]
    fn limits() {
        let limits = MetadataLimits {
            count_max: 1,
            size_bytes_max: 4,
        };
        let mut metadata = Metadata::default();
        metadata.set("X-Container-Meta-A", "123", "1");
        metadata.set("X-Container-Sysmeta-A", "1234567", "1");
        assert_eq!(metadata.validate(limits), Ok(()));
        metadata.set("X-Container-Meta-A", "1234", "2");
        assert_eq!(
            metadata.validate(limits),
            Err(MetadataRefused::TooLarge { max: 4 })
        );
        metadata.set("X-Account-Meta-B", "1", "1");
        assert_eq!(
            metadata.validate(limits),
            Err(MetadataRefused::TooMany { max: 1 })
        );
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_column_is_read_back_or_refused(
            column in r#"\{("[a-zA-Zé\\\\-]{0,8}": ?\["[a-zé]{0,8}", ?"[0-9._]{0,18}"\],? ?){0,4}\}|.{0,80}"#
        ) {
            if let Ok(metadata) = Metadata::parse(&column) {
                let again = metadata.to_column();
                let read = Metadata::parse(&again).map(|metadata| metadata.to_column());
                prop_assert!(read.is_ok_and(|read| read == again));
            }
        }
    }
}
