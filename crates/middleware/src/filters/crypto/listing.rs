//! Decryption of container listings: each row's ETag is encrypted with the container's key under
//! the root secret of its time, which the container's metadata may keep for retired secrets.

use std::collections::BTreeMap;

use cairn_formats::crypto_meta::{self as meta, KeyId};
use cairn_http::rekey::SecretId;
use cairn_http::{Response, respond};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde_json::Value;
use tracing::error;

use super::kept::{self, KeptContainer};
use super::keys::{Key, KeySource};
use super::{CryptoError, decrypter, sealed};
use crate::whole::{self, Row};

/// ETag shown for a row that cannot be decrypted.
const UNKNOWN: &str = "<unknown>";

pub(super) async fn decrypted(
    response: Response,
    source: Option<KeySource>,
    account: String,
    container: String,
) -> Response {
    let content_type = respond::header(response.headers(), CONTENT_TYPE.as_str()).unwrap_or("");
    let is_json = content_type.split(';').next() == Some("application/json");
    if response.status() != StatusCode::OK || !is_json {
        return response;
    }
    let (parts, json) = match whole::listing(response).await {
        Ok(whole) => whole,
        Err(as_it_is) => return as_it_is,
    };
    let kept = source
        .as_ref()
        .map(|source| kept::of_container(source, &parts.headers));
    let mut rows = Rows {
        source,
        kept: kept.unwrap_or_default(),
        last: None,
        has_complained: false,
        path: format!("/{account}/{container}"),
    };
    match whole::with_rows(&json, "swift_meta", move |row| rows.decrypt(row)).await {
        Some(changed) => whole::rewritten(parts, changed),
        None => whole::rewritten(parts, json),
    }
}

struct Rows {
    source: Option<KeySource>,
    /// The container's kept keys under retired secrets.
    kept: BTreeMap<SecretId, KeptContainer>,
    /// The last key used: adjacent rows usually have the same container key.
    last: Option<(KeyId, Key)>,
    /// An error was logged; one line per listing is enough.
    has_complained: bool,
    path: String,
}

impl Rows {
    fn decrypt(&mut self, row: &mut Row) {
        let Some(Value::String(hash)) = row.get("hash") else {
            return;
        };
        let name = row.get("name").and_then(Value::as_str).unwrap_or("");
        let etag = match self.etag(hash, name) {
            Ok(None) => return,
            Ok(Some(etag)) => etag,
            Err(problem) => {
                if !self.has_complained {
                    error!(
                        container = self.path, error = %problem,
                        "ETags of a listing cannot be decrypted"
                    );
                    self.has_complained = true;
                }
                UNKNOWN.to_owned()
            }
        };
        row.insert("hash".to_owned(), etag.into());
    }

    /// Decrypts a row's ETag; `None` if it is not encrypted.
    fn etag(&mut self, hash: &str, name: &str) -> Result<Option<String>, CryptoError> {
        let (value, Some(meta)) = meta::extract(hash)? else {
            return Ok(None);
        };
        let source = self.source.as_ref().ok_or(CryptoError::NoKeymaster)?;
        let key = match (&meta.key_id, &self.last) {
            (None, _) => source.active()?.container()?.clone(),
            (Some(id), Some((last, key))) if is_same_container(id, last) => key.clone(),
            (Some(id), _) => {
                let key = self.key(source, id)?;
                self.last = Some((id.clone(), key.clone()));
                key
            }
        };
        let path = format!("{}/{name}", self.path);
        let place = sealed::place(super::ROW_ETAG, &path);
        let etag = decrypter::decrypt_value(value, &key, &meta, &place)?;
        let etag = String::from_utf8(etag);
        let etag = etag.map_err(|_| CryptoError::bad_meta("an ETag is not UTF-8"))?;
        Ok(Some(etag))
    }
}

impl Rows {
    fn key(&self, source: &KeySource, id: &KeyId) -> Result<Key, CryptoError> {
        match (source.keys(Some(id)), self.kept.get(&id.secret_id)) {
            (Err(CryptoError::UnknownSecret(_)), Some(kept)) => Ok(kept.key.clone()),
            (keys, _) => keys.as_ref().map_err(Clone::clone)?.container().cloned(),
        }
    }
}

/// Do two ids name the same container's key? The object's name is the rest of the path.
fn is_same_container(one: &KeyId, other: &KeyId) -> bool {
    let is_like = one.version == other.version && one.secret_id == other.secret_id;
    // In version 1 the path may be an object's name alone.
    is_like && one.version != "1" && container_of(&one.path) == container_of(&other.path)
}

/// `/account/container` of an object's path.
fn container_of(path: &str) -> &str {
    let end = path
        .match_indices('/')
        .nth(2)
        .map_or(path.len(), |(at, _)| at);
    &path[..end]
}
