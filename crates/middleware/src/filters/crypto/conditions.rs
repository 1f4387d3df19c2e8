//! Conversion of ETag conditions into a form that object servers can evaluate: they know only the
//! HMACs of ETags.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cairn_formats::conditional::EntityTags;
use cairn_http::{Response, respond};
use http::header::{IF_MATCH, IF_NONE_MATCH};
use http::request::Parts;
use tracing::error;

use super::keys::{Key, KeySource};
use super::no_keys;
use super::status;
use crate::segments::etag_is_at;

/// Maximum number of MACs in one condition: they must fit into a request's head.
const MACS_MAX: usize = 256;

/// The header name of [`super::kept::KEPT_MAC`].
const KEPT_MAC: &str = "X-Object-Transient-Sysmeta-Crypto-Rekeyed-Etag-Mac";
const ETAG_MAC: &str = "X-Object-Sysmeta-Crypto-Etag-Mac";

/// The MAC that an object server compares instead of an ETag, which it never sees.
pub(super) fn mac_of(key: &Key, etag: &str) -> String {
    STANDARD.encode(key.mac(etag.as_bytes()))
}

/// Adds to each ETag of a condition its MACs under all root secrets. The ETag itself stays, as the
/// object may not be encrypted. `kept` is a key of the object that no current root secret gives, if
/// the MAC of its content is needed instead of the one that re-keying stored.
pub(super) fn mask(parts: &mut Parts, kept: Option<&Key>) -> Result<(), Response> {
    let mut is_any = false;
    for name in [IF_MATCH, IF_NONE_MATCH] {
        let Some(value) = respond::header(&parts.headers, name.as_str()) else {
            continue;
        };
        if value.is_empty() {
            continue;
        }
        let every = KeySource::of(parts).and_then(KeySource::every);
        let every = every.map_err(|error| {
            error!(%error, "no keys for a condition");
            no_keys()
        })?;
        let mut tags = Vec::new();
        for tag in EntityTags::parse(value).tags() {
            if tag == "*" {
                tags.push(tag.to_owned());
                continue;
            }
            is_any = true;
            tags.push(format!("\"{tag}\""));
            for keys in &every {
                let key = keys.object().map_err(|_| no_keys())?;
                tags.push(format!("\"{}\"", mac_of(key, tag)));
            }
            if let Some(key) = kept {
                tags.push(format!("\"{}\"", mac_of(key, tag)));
            }
            if tags.len() > MACS_MAX {
                let reason = format!("Too many ETags in {name}");
                return Err(status::bad_request(reason));
            }
        }
        respond::set(&mut parts.headers, name.as_str(), tags.join(", "));
    }
    if is_any {
        if kept.is_none() {
            etag_is_at(&mut parts.headers, KEPT_MAC);
        }
        etag_is_at(&mut parts.headers, ETAG_MAC);
    }
    Ok(())
}

/// Does the request have conditions that are compared with the MAC stored by re-keying?
pub(super) fn is_by_kept(parts: &Parts) -> bool {
    let names = respond::header(&parts.headers, "x-backend-etag-is-at");
    names.is_some_and(|names| names.split(',').any(|name| name.trim() == KEPT_MAC))
}
