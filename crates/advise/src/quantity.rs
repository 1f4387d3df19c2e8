//! Sizes in bytes as text: `64KB` (64,000), `64KiB` (65,536), `1.5GB`, or a plain number.

use std::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// A number of bytes, or of bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize)]
pub struct Bytes(pub f64);

const UNITS: [(&str, f64); 11] = [
    ("KiB", 1024.0),
    ("MiB", 1048576.0),
    ("GiB", 1073741824.0),
    ("TiB", 1099511627776.0),
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("PB", 1e15),
    ("PiB", 1125899906842624.0),
    ("B", 1.0),
];
/// Larger numbers are refused as mistakes.
const BYTES_MAX: f64 = 1e21;

impl Bytes {
    pub fn parse(text: &str) -> Option<Bytes> {
        let text = text.trim();
        let found = UNITS
            .iter()
            .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)));
        let (number, factor) = found.unwrap_or((text, 1.0));
        let bytes = number.trim().parse::<f64>().ok()? * factor;
        (bytes.is_finite() && (0.0..=BYTES_MAX).contains(&bytes)).then_some(Bytes(bytes))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [
            ("PB", 1e15),
            ("TB", 1e12),
            ("GB", 1e9),
            ("MB", 1e6),
            ("KB", 1e3),
        ];
        match units.iter().find(|(_, factor)| self.0 >= *factor) {
            Some((unit, factor)) => {
                let number = format!("{:.2}", self.0 / factor);
                let number = number.trim_end_matches('0').trim_end_matches('.');
                write!(f, "{number} {unit}")
            }
            None => write!(f, "{} B", self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Bytes;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "bytes: a number from 0, or a text such as \"64KB\", \"1MiB\", \"1.5TB\"",
                )
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Bytes, E> {
                let wrong = || E::invalid_value(serde::de::Unexpected::Str(text), &self);
                Bytes::parse(text).ok_or_else(wrong)
            }
            fn visit_f64<E: Error>(self, number: f64) -> Result<Bytes, E> {
                let wrong = || E::invalid_value(serde::de::Unexpected::Float(number), &self);
                Bytes::parse(&number.to_string()).ok_or_else(wrong)
            }
            fn visit_u64<E: Error>(self, number: u64) -> Result<Bytes, E> {
                self.visit_f64(number as f64)
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<Bytes, E> {
                self.visit_f64(number as f64)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_people_write_them() {
        for (text, bytes) in [
            ("64KB", 64e3),
            ("64 KiB", 65536.0),
            ("1.5TB", 1.5e12),
            ("12", 12.0),
            ("7B", 7.0),
        ] {
            assert_eq!(Bytes::parse(text), Some(Bytes(bytes)), "{text}");
        }
        for text in ["", "KB", "-1KB", "1XB", "nan", "1e30TB", "inf"] {
            assert_eq!(Bytes::parse(text), None, "{text}");
        }
        assert_eq!(Bytes(1.5e12).to_string(), "1.5 TB");
        assert_eq!(Bytes(64e3).to_string(), "64 KB");
        assert_eq!(Bytes(100e3).to_string(), "100 KB");
        assert_eq!(Bytes(12.0).to_string(), "12 B");
    }
}
