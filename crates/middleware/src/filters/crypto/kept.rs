//! Kept keys: keys derived from a retired root secret, wrapped under the one that replaced it.
//! Re-keying (`rekey.rs`) stores them with an object or container, and this module reads them.
//!
//! An object has its own key and its container's in one metadata header; a container has its key in
//! one header for each retired secret. Each is sealed with the key of the same path under the newer
//! secret, and bound to the header and the path. Encrypted data stays unchanged: when a key under
//! the old secret is needed, the kept key is used instead.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cairn_formats::crypto_meta::{self as meta, CryptoMeta, KeyId};
use cairn_http::{rekey::SecretId, respond};
use cairn_types::hex;
use http::HeaderMap;
use tracing::error;
use zeroize::Zeroizing;

use super::keys::{KEY_BYTES, Key, KeySource, Keys};
use super::{CryptoError, sealed};
use crate::Random;

/// Header with the object's and its container's key under the secret of the PUT.
pub(super) const KEPT: &str = "x-object-transient-sysmeta-crypto-rekeyed";
/// Header with the ETag's HMAC under the newer secret.
pub(super) const KEPT_MAC: &str = "x-object-transient-sysmeta-crypto-rekeyed-etag-mac";
/// Header prefix before a secret's id, for the container's key under that secret.
const CONTAINER_PREFIX: &str = "x-container-sysmeta-crypto-rekeyed-";
/// The same prefix in cached container information.
pub(super) const CONTAINER_SYSMETA: &str = "crypto-rekeyed-";
/// Version of the key ids of sealed values.
const VERSION: &str = "3";
/// Stands for the secret without an id; an id in hex digits never equals it.
const NO_ID: &str = "none";

/// Kept keys of an object's header.
pub(super) struct Kept {
    pub(super) secret_id: SecretId,
    container: Key,
    object: Key,
    /// Keys that they are sealed with.
    pub(super) under: Keys,
}

/// A kept key, with the secret that it belongs to.
pub(super) struct KeptContainer {
    pub(super) key: Key,
    pub(super) under: SecretId,
}

impl Kept {
    /// The header's value. `keys` are those of the retired secret.
    pub(super) fn seal(
        random: &Random,
        path: &str,
        active: &Keys,
        secret_id: &SecretId,
        keys: &Keys,
    ) -> Result<String, CryptoError> {
        let mut text = Zeroizing::new(Vec::with_capacity(2 * KEY_BYTES + 1 + 32));
        text.extend_from_slice(keys.object()?.bytes());
        text.extend_from_slice(keys.container()?.bytes());
        text.push(u8::from(secret_id.is_some()));
        text.extend_from_slice(secret_id.as_deref().unwrap_or_default().as_bytes());
        seal(
            random,
            active.object()?,
            &active.id,
            &sealed::place(KEPT, path),
            &text,
        )
    }

    /// Parses the kept keys of an object's headers; `None` if it was never re-keyed.
    pub(super) fn read(
        source: &KeySource,
        headers: &HeaderMap,
    ) -> Result<Option<Self>, CryptoError> {
        let Some(value) = respond::header(headers, KEPT) else {
            return Ok(None);
        };
        let (text, under) = open(
            value,
            source,
            Keys::object,
            &sealed::place(KEPT, &source.path()),
        )?;
        let bad = || CryptoError::bad_meta("kept keys are cut short");
        let (object, rest) = text.split_at_checked(KEY_BYTES).ok_or_else(bad)?;
        let (container, rest) = rest.split_at_checked(KEY_BYTES).ok_or_else(bad)?;
        let secret_id = match rest.split_first() {
            Some((0, [])) => None,
            Some((1, id)) => Some(String::from_utf8(id.to_vec()).map_err(|_| bad())?),
            _ => return Err(bad()),
        };
        Ok(Some(Kept {
            secret_id,
            container: key(container)?,
            object: key(object)?,
            under,
        }))
    }

    fn is_of(&self, id: &KeyId) -> bool {
        self.secret_id == id.secret_id
    }

    fn keys(&self, id: &KeyId) -> Keys {
        Keys {
            container: Some(self.container.clone()),
            object: Some(self.object.clone()),
            id: id.clone(),
            all_ids: Vec::new(),
        }
    }
}

/// The keys with which an object's headers were encrypted.
pub(super) struct ObjectKeys<'a> {
    source: &'a KeySource,
    kept: Result<Option<Kept>, CryptoError>,
}

impl<'a> ObjectKeys<'a> {
    pub(super) fn of(source: &'a KeySource, headers: &HeaderMap) -> Self {
        let kept = Kept::read(source, headers);
        if let Err(problem) = &kept {
            error!(error = %problem, path = source.path(), "the keys kept for an object are no good");
        }
        ObjectKeys { source, kept }
    }

    /// The keys named by an id. Kept keys take precedence over a root secret's, so that invalid
    /// ones are noticed early.
    pub(super) fn keys(&self, id: Option<&KeyId>) -> Result<Keys, CryptoError> {
        let kept = id.and_then(|id| Some((self.kept().filter(|kept| kept.is_of(id))?, id)));
        if let Some((kept, id)) = kept.filter(|(_, id)| id.version == VERSION) {
            return Ok(kept.keys(id));
        }
        // Ids of older versions may contain another path than the object's.
        match (self.source.keys(id), kept, &self.kept) {
            (Err(CryptoError::UnknownSecret(_)), Some((kept, id)), _) => Ok(kept.keys(id)),
            (Err(CryptoError::UnknownSecret(_)), _, Err(problem)) => Err(problem.clone()),
            (keys, _, _) => keys,
        }
    }

    pub(super) fn source(&self) -> &'a KeySource {
        self.source
    }

    pub(super) fn kept(&self) -> Option<&Kept> {
        self.kept.as_ref().ok()?.as_ref()
    }

    /// Are the keys of this id kept ones?
    pub(super) fn has_kept(&self, id: &KeyId) -> bool {
        self.kept().is_some_and(|kept| kept.is_of(id))
    }
}

/// Name and value of a container's header.
pub(super) fn seal_container(
    random: &Random,
    path: &str,
    active: &Keys,
    secret_id: &SecretId,
    key: &Key,
) -> Result<(String, String), CryptoError> {
    let name = container_header(secret_id);
    let place = sealed::place(&name, path);
    let value = seal(random, active.container()?, &active.id, &place, key.bytes())?;
    Ok((name, value))
}

/// The kept keys in a container's headers. Invalid ones are omitted.
pub(super) fn of_container(
    source: &KeySource,
    headers: &HeaderMap,
) -> BTreeMap<SecretId, KeptContainer> {
    let mut kept = BTreeMap::new();
    for (name, value) in headers {
        let Some(id) = name.as_str().strip_prefix(CONTAINER_PREFIX) else {
            continue;
        };
        let place = sealed::place(name.as_str(), &source.path());
        let read = || {
            let id = secret_id_of(id).ok_or_else(|| CryptoError::bad_meta("id of a kept key"))?;
            let value = value.to_str().unwrap_or_default();
            let (text, under) = open(value, source, Keys::container, &place)?;
            let under = under.id.secret_id;
            let key = key(&text)?;
            Ok((id, KeptContainer { key, under }))
        };
        match read() {
            Ok((id, key)) => {
                kept.insert(id, key);
            }
            Err::<_, CryptoError>(problem) => {
                error!(
                    error = %problem, container = source.path(), header = name.as_str(),
                    "a key kept for a container is no good"
                );
            }
        }
    }
    kept
}

fn container_header(secret_id: &SecretId) -> String {
    let Some(id) = secret_id else {
        return format!("{CONTAINER_PREFIX}{NO_ID}");
    };
    let hex = hex::encode(id);
    format!("{CONTAINER_PREFIX}{hex}")
}

fn secret_id_of(text: &str) -> Option<SecretId> {
    if text == NO_ID {
        return Some(None);
    }
    let digits: Option<Vec<u8>> = text
        .bytes()
        .map(|c| char::from(c).to_digit(16).map(|digit| digit as u8))
        .collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    let bytes = digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect();
    String::from_utf8(bytes).ok().map(Some)
}

/// Seals values: `<base64>; swift_meta=<crypto metadata>`.
fn seal(
    random: &Random,
    key: &Key,
    id: &KeyId,
    place: &str,
    text: &[u8],
) -> Result<String, CryptoError> {
    let nonce: [u8; sealed::NONCE_BYTES] = random.bytes();
    let how = CryptoMeta {
        cipher: Some(meta::GCM.to_owned()),
        iv: Some(nonce.to_vec()),
        key_id: Some(id.clone()),
        ..CryptoMeta::default()
    };
    let value = STANDARD.encode(sealed::seal(key, nonce, place, text)?);
    Ok(meta::append(&value, &how))
}

/// Opens sealed values; returns also the keys they were sealed with.
fn open(
    value: &str,
    source: &KeySource,
    which: impl Fn(&Keys) -> Result<&Key, CryptoError>,
    place: &str,
) -> Result<(Zeroizing<Vec<u8>>, Keys), CryptoError> {
    let (value, how) = meta::extract(value)?;
    let how = how.ok_or(CryptoError::NoMeta)?;
    let id = how.key_id.as_ref().ok_or(CryptoError::NoMeta)?;
    if how.cipher.as_deref() != Some(meta::GCM) {
        return Err(CryptoError::bad_meta("the cipher of kept keys"));
    }
    let keys = source.keys(Some(id))?;
    let sealed = STANDARD.decode(value.trim());
    let sealed = sealed.map_err(|_| CryptoError::bad_meta("kept keys are not in base64"))?;
    let nonce = how.iv.as_deref().unwrap_or_default();
    let text = sealed::open(which(&keys)?, nonce, place, &sealed)?;
    Ok((Zeroizing::new(text), keys))
}

fn key(bytes: &[u8]) -> Result<Key, CryptoError> {
    let bytes: [u8; KEY_BYTES] = bytes
        .try_into()
        .map_err(|_| CryptoError::bad_meta("a kept key must have 32 bytes"))?;
    Ok(Key::new(bytes))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ids_are_read_as_written(id in prop::option::of("\\PC{1,20}")) {
            let header = container_header(&id);
            let text = header.strip_prefix(CONTAINER_PREFIX).unwrap();
            prop_assert_eq!(secret_id_of(text), Some(id));
            prop_assert!(http::HeaderName::from_bytes(header.as_bytes()).is_ok());
        }

        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,30}") {
            let _ = secret_id_of(&text);
        }
    }
}
