//! The manifest as it is stored: a JSON list with, for each segment, `{"name": "/c/o", "bytes": 5,
//! "hash": "…", "content_type": "…", "last_modified": "…"}`, a `"range": "1-3"` (both included) if
//! only that part is used, `"sub_slo": true` if the segment is itself a manifest; or `{"data":
//! "base64"}` for bytes of the manifest's own.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use cairn_http::params::is_true;
use cairn_types::hex;
use md5::{Digest, Md5};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use thiserror::Error;

/// An entry; the fields are in the order in which they are written.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Stored {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) data: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "number"
    )]
    pub(super) bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) hash: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) content_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) last_modified: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) range: Option<String>,
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "yes"
    )]
    pub(super) sub_slo: Option<bool>,
}

/// A number, also as text.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::String(text) => text.trim().parse().ok(),
        other => other.as_u64(),
    })
}

/// A boolean, also as text.
fn yes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<bool>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::String(text) => Some(is_true(&text)),
        other => other.as_bool(),
    })
}

#[derive(Debug, Error)]
pub(super) enum BadManifest {
    #[error("Unable to load SLO manifest: {0}")]
    Json(#[from] serde_json::Error),
    #[error("Unable to load SLO manifest: segment {index} has no usable {field}")]
    Field { index: usize, field: &'static str },
}

/// A parsed segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Segment {
    Inline(Bytes),
    Object(ObjectSegment),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObjectSegment {
    /// Path, `/container/object`.
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) hash: String,
    /// First and last byte, both included.
    pub(super) range: Option<(u64, u64)>,
    pub(super) is_manifest: bool,
}

impl Segment {
    /// Number of bytes that it contributes to the large object.
    pub(super) fn length(&self) -> u64 {
        match self {
            Segment::Inline(data) => data.len() as u64,
            Segment::Object(object) => match object.range {
                Some((first, last)) => last - first + 1,
                None => object.bytes,
            },
        }
    }
}

pub(super) fn parse(json: &[u8]) -> Result<Vec<Stored>, BadManifest> {
    Ok(serde_json::from_slice(json)?)
}

/// Parses the segments of a stored manifest.
pub(super) fn segments(json: &[u8]) -> Result<Vec<Segment>, BadManifest> {
    let stored = parse(json)?.into_iter().enumerate();
    stored.map(|(index, entry)| segment(index, entry)).collect()
}

fn segment(index: usize, entry: Stored) -> Result<Segment, BadManifest> {
    let bad = |field| BadManifest::Field { index, field };
    if let Some(data) = entry.data {
        let data = BASE64_STANDARD.decode(data).map_err(|_| bad("data"))?;
        return Ok(Segment::Inline(data.into()));
    }
    let is_manifest = entry.sub_slo.unwrap_or(false);
    // Old manifests have a nested manifest's own size in `bytes`, and that of its content here.
    let content_type = entry.content_type.as_deref().filter(|_| is_manifest);
    let swift_bytes = content_type.and_then(swift_bytes);
    let range = match &entry.range {
        None => None,
        Some(text) => Some(parse_range(text).ok_or_else(|| bad("range"))?),
    };
    Ok(Segment::Object(ObjectSegment {
        name: entry.name.ok_or_else(|| bad("name"))?,
        bytes: swift_bytes.or(entry.bytes).ok_or_else(|| bad("bytes"))?,
        hash: entry.hash.unwrap_or_default(),
        range,
        is_manifest,
    }))
}

fn swift_bytes(content_type: &str) -> Option<u64> {
    let mut parameters = content_type.split(';').skip(1).map(str::trim);
    parameters
        .find_map(|p| p.strip_prefix("swift_bytes="))
        .and_then(|bytes| bytes.parse().ok())
}

fn parse_range(text: &str) -> Option<(u64, u64)> {
    let (first, last) = text.split_once('-')?;
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && last < u64::MAX).then_some((first, last))
}

/// The large object's ETag: MD5 of its segments' ETags, with the ranges used.
pub(super) fn etag(stored: &[Stored]) -> String {
    let mut digest = Md5::new();
    for entry in stored {
        match (&entry.data, &entry.range) {
            (Some(data), _) => {
                let data = BASE64_STANDARD.decode(data).unwrap_or_default();
                digest.update(hex::encode(Md5::digest(data)));
            }
            (None, range) => {
                digest.update(entry.hash.as_deref().unwrap_or(""));
                if let Some(range) = range {
                    digest.update(format!(":{range};"));
                }
            }
        }
    }
    hex::encode(digest.finalize())
}

/// Converts to the form that a client PUTs: the response to `?multipart-manifest=get&format=raw`.
pub(super) fn to_raw(json: &[u8]) -> Result<Vec<u8>, BadManifest> {
    #[derive(Serialize)]
    struct Raw {
        #[serde(skip_serializing_if = "Option::is_none")]
        data: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        etag: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        path: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        range: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        size_bytes: Option<u64>,
    }
    let raw: Vec<Raw> = parse(json)?
        .into_iter()
        .map(|entry| Raw {
            data: entry.data,
            etag: entry.hash,
            path: entry.name,
            range: entry.range,
            size_bytes: entry.bytes,
        })
        .collect();
    Ok(serde_json::to_vec(&raw)?)
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_stored_manifest_is_read_or_refused(
            json in r#"\[(\{"(name|bytes|hash|range|data|sub_slo)": ?("[0-9a-z/=-]{0,20}"|[0-9-]{0,20}|true)\},?){0,4}\]|.{0,80}"#
        ) {
            let _ = segments(json.as_bytes());
            let _ = to_raw(json.as_bytes());
            if let Ok(stored) = parse(json.as_bytes()) {
                prop_assert_eq!(etag(&stored).len(), 32);
            }
        }

        #[test]
        fn a_range_is_in_order(text in "[0-9]{0,21}-[0-9]{0,21}|.{0,20}") {
            if let Some((first, last)) = parse_range(&text) {
                prop_assert!(first <= last && last < u64::MAX);
            }
        }
    }
}
