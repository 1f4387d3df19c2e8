//! Capabilities that a store announces in `/info`.

use http::Method;
use serde::Deserialize;

use crate::error::ClientError;
use crate::object::protocol;
use crate::swift::Swift;

const INFO_MAX_BYTES: u64 = 1 << 20;

/// Limits of a Swift that announces none.
const OBJECT_NAME_BYTES: usize = 1024;
const REQUEST_LINE_BYTES: usize = 8192;
const HEADER_BYTES: usize = 8192;

/// Limits, and capabilities beyond those of every Swift. A store that announces nothing has the
/// limits of an unconfigured Swift and none of the capabilities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Policies in which conditions of writes are evaluated at commit.
    conditional_policies: Vec<String>,
    /// Objects can be symlinks (`X-Symlink-Target`).
    pub has_symlinks: bool,
    /// For conditions of writes a symlink has its `X-Symlink-Target` as ETag, and not that of an empty
    /// object.
    pub tells_symlinks: bool,
    /// A copy of a large object's manifest can be made on the condition that it is the one with this
    /// `X-Manifest-Etag`.
    pub tells_manifests: bool,
    /// Maximum seconds for which a container's change feed waits; none without one.
    pub change_feed_wait_secs: Option<u64>,
    /// Maximum bytes of an object's name.
    pub object_name_bytes: usize,
    /// Maximum bytes of a request line, in which names are percent-encoded.
    pub request_line_bytes: usize,
    /// Maximum bytes of a header line; the source of a copy is in one.
    pub header_bytes: usize,
}

impl Default for Capabilities {
    fn default() -> Capabilities {
        Capabilities {
            conditional_policies: Vec::new(),
            has_symlinks: false,
            tells_symlinks: false,
            tells_manifests: false,
            change_feed_wait_secs: None,
            object_name_bytes: OBJECT_NAME_BYTES,
            request_line_bytes: REQUEST_LINE_BYTES,
            header_bytes: HEADER_BYTES,
        }
    }
}

#[derive(Deserialize)]
struct InfoDocument {
    conditional_writes: Option<ConditionalWrites>,
    symlink: Option<serde_json::Value>,
    change_feed: Option<ChangeFeed>,
    #[serde(default)]
    swift: Limits,
}

#[derive(Default, Deserialize)]
struct Limits {
    max_object_name_length: Option<usize>,
    max_request_line: Option<usize>,
    max_header_size: Option<usize>,
}

#[derive(Deserialize)]
struct ChangeFeed {
    max_wait: u64,
}

#[derive(Default, Deserialize)]
struct ConditionalWrites {
    #[serde(default)]
    policies: Vec<String>,
    #[serde(default)]
    links: bool,
    #[serde(default)]
    manifests: bool,
}

impl Capabilities {
    /// Reads the body of a response to `GET /info`.
    ///
    /// # Errors
    /// It is not such a document.
    pub fn parse(body: &[u8]) -> serde_json::Result<Capabilities> {
        let info: InfoDocument = serde_json::from_slice(body)?;
        let limits = info.swift;
        let writes = info.conditional_writes.unwrap_or_default();
        Ok(Capabilities {
            conditional_policies: writes.policies,
            tells_symlinks: writes.links,
            tells_manifests: writes.manifests,
            has_symlinks: info.symlink.is_some(),
            change_feed_wait_secs: info.change_feed.map(|feed| feed.max_wait),
            object_name_bytes: limits.max_object_name_length.unwrap_or(OBJECT_NAME_BYTES),
            request_line_bytes: limits.max_request_line.unwrap_or(REQUEST_LINE_BYTES),
            header_bytes: limits.max_header_size.unwrap_or(HEADER_BYTES),
        })
    }

    /// Are conditions of writes in this policy evaluated at commit? Then of several writers that
    /// replace the same version of an object exactly one succeeds.
    pub fn has_conditional_writes(&self, policy: &str) -> bool {
        let mut policies = self.conditional_policies.iter();
        policies.any(|name| name.eq_ignore_ascii_case(policy))
    }
}

impl Swift {
    /// Reads `/info`. A store that does not serve it has no capabilities.
    ///
    /// # Errors
    /// [`ClientError`]: the store is unreachable, or its response is not valid.
    pub async fn capabilities(&self) -> Result<Capabilities, ClientError> {
        let answer = match self.request_info().await {
            Ok(answer) => answer,
            Err(error) if error.status().is_some() && !error.is_passing() => {
                tracing::debug!(%error, "the store announces nothing");
                return Ok(Capabilities::default());
            }
            Err(error) => return Err(error),
        };
        let body = self.whole(answer, "/info", INFO_MAX_BYTES).await?;
        Capabilities::parse(&body).map_err(|error| protocol(Method::GET, "/info", error))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn conditional_writes_are_those_of_the_policies_that_are_named() {
        let of = |text: &str| Capabilities::parse(text.as_bytes()).unwrap();
        let some =
            of(r#"{"swift":{},"conditional_writes":{"methods":["PUT"],"policies":["gold"]}}"#);
        assert!(some.has_conditional_writes("gold"));
        assert!(some.has_conditional_writes("Gold"), "names have no case");
        assert!(!some.has_conditional_writes("ec"));
        assert!(!of(r#"{"swift":{}}"#).has_conditional_writes("gold"));
        assert!(!of(r#"{"conditional_writes":{}}"#).has_conditional_writes("gold"));
        assert!(Capabilities::parse(b"<html>").is_err());
    }

    #[test]
    fn symlinks_are_there_where_the_store_says_so() {
        let of = |text: &str| Capabilities::parse(text.as_bytes()).unwrap().has_symlinks;
        assert!(of(r#"{"swift":{},"symlink":{"symloop_max":2}}"#));
        assert!(!of(r#"{"swift":{}}"#));
        let tells = |text: &str| Capabilities::parse(text.as_bytes()).unwrap().tells_symlinks;
        assert!(tells(
            r#"{"conditional_writes":{"policies":["gold"],"links":true}}"#
        ));
        assert!(!tells(r#"{"conditional_writes":{"policies":["gold"]}}"#));
        assert!(!tells(r#"{"symlink":{"symloop_max":2}}"#));
        let tells = |text: &str| {
            Capabilities::parse(text.as_bytes())
                .unwrap()
                .tells_manifests
        };
        assert!(tells(r#"{"conditional_writes":{"manifests":true}}"#));
        assert!(!tells(r#"{"conditional_writes":{"links":true}}"#));
    }

    #[test]
    fn a_feed_is_there_where_the_store_says_so() {
        let of = |text: &str| Capabilities::parse(text.as_bytes()).unwrap();
        let some = of(r#"{"swift":{},"change_feed":{"max_wait":60,"limit":10000}}"#);
        assert_eq!(some.change_feed_wait_secs, Some(60));
        assert_eq!(of(r#"{"swift":{}}"#).change_feed_wait_secs, None);
    }

    #[test]
    fn limits_are_the_announced_ones_or_those_of_an_unconfigured_swift() {
        let of = |text: &str| Capabilities::parse(text.as_bytes()).unwrap();
        let some = of(r#"{"swift":{"max_object_name_length":4096,"max_request_line":30000}}"#);
        assert_eq!(
            (some.object_name_bytes, some.request_line_bytes),
            (4096, 30_000)
        );
        assert_eq!(some.header_bytes, 8192);
        assert_eq!(of(r#"{"swift":{}}"#), Capabilities::default());
        assert_eq!(of("{}"), Capabilities::default());
    }
}
