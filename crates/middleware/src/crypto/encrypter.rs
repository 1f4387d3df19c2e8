//! The filter `encryption`: what goes to the object servers is encrypted here, conditions are made
//! ones that they can check, and answers go through `decrypter.rs` and `listing.rs`.
//!
//! With `disable_encryption` nothing more is encrypted, and what was can still be read.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cairn_formats::conditional::{EntityTags, normalize_etag};
use cairn_formats::crypto_meta::{self as meta, CryptoMeta, Iv};
use cairn_formats::ini::Section;
use cairn_http::{
    Footers, Handler, Request, Response, Service, ServiceFuture, Trailer, limits, respond,
};
use cairn_types::metadata::is_user_meta;
use cairn_types::{Constraints, ObjectHash, ServerKind};
use http::header::{ETAG, HeaderName, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use md5::{Digest, Md5};
use serde_json::json;
use tracing::error;

use super::cipher::ctr;
use super::keys::{Key, KeySource, Keys};
use super::upload::{Done, Upload};
use super::{
    BODY_META, CryptoError, METADATA_META, METADATA_PREFIX, ROW_ETAG, decrypter, listing, no_keys,
};
use crate::names::Names;
use crate::segments::etag_is_at;
use crate::{FilterEnv, FilterError, Random};

const MD5_OF_NOTHING: &str = "d41d8cd98f00b204e9800998ecf8427e";
/// The most MACs that one condition is made into: they must fit into the head of a request.
const MACS_MAX: usize = 256;

struct Encryption {
    next: Handler,
    constraints: Arc<Constraints>,
    random: Random,
    is_disabled: bool,
}

pub(crate) fn make(
    section: &Section,
    next: Handler,
    env: &FilterEnv,
) -> Result<Handler, FilterError> {
    let is_disabled = section.bool_or("disable_encryption", false);
    let info = json!({ "enabled": !is_disabled });
    env.swift_info.register_admin("encryption", info);
    Ok(Arc::new(Encryption {
        next,
        constraints: env.constraints.clone(),
        random: env.random.clone(),
        is_disabled,
    }))
}

impl Service for Encryption {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        let method = request.method();
        let is_write = method == Method::PUT || method == Method::POST;
        let is_read = method == Method::GET || method == Method::HEAD;
        if !(is_read || is_write && !self.is_disabled) {
            return self.next.call(request);
        }
        let Some(names) = Names::of(request.uri().path()) else {
            return self.next.call(request);
        };
        let (is_object, is_api) = (names.object.is_some(), names.is_api(&self.constraints));
        match (names.container, method.as_str()) {
            (Some(_), "PUT") if is_object => Box::pin(self.put(request)),
            (Some(_), "POST") if is_object => Box::pin(self.post(request)),
            (Some(_), "GET" | "HEAD") if is_object => Box::pin(self.read(request)),
            (Some(container), "GET") if is_api => {
                Box::pin(self.list(request, names.account, container))
            }
            _ => self.next.call(request),
        }
    }
}

impl Encryption {
    async fn put(&self, request: Request) -> Response {
        match self.encrypted_put(request) {
            Ok((request, upload)) => {
                let response = self.next.call(request).await;
                with_plain_etag(response, &upload)
            }
            Err(refused) => refused,
        }
    }

    fn encrypted_put(&self, request: Request) -> Result<(Request, Upload), Response> {
        let (mut parts, body) = request.into_parts();
        let keys = self.prepared(&mut parts)?;
        let object = keys.object().cloned().map_err(|_| no_keys())?;
        let upload = Upload::new(self.random.clone(), object);
        let client_etag = parts.headers.remove(ETAG);
        let client_etag = client_etag.and_then(|etag| {
            etag.to_str()
                .ok()
                .map(|etag| normalize_etag(etag).to_owned())
        });
        let conclusion = Conclusion {
            upload: upload.clone(),
            keys,
            random: self.random.clone(),
            client_etag,
            row_etag: respond::header(&parts.headers, ROW_ETAG).map(str::to_owned),
        };
        parts
            .extensions
            .insert(Footers::new(move || conclusion.trailer()));
        let body = upload.encrypted(body);
        Ok((Request::from_parts(parts, body), upload))
    }

    async fn post(&self, request: Request) -> Response {
        let (mut parts, body) = request.into_parts();
        match self.prepared(&mut parts) {
            Ok(_) => self.next.call(Request::from_parts(parts, body)).await,
            Err(refused) => refused,
        }
    }

    /// Checks the user's metadata, as nobody can afterwards, and encrypts it.
    fn prepared(&self, parts: &mut Parts) -> Result<Keys, Response> {
        limits::check_metadata(&parts.headers, ServerKind::Object, &self.constraints)
            .map_err(|reason| respond::text(StatusCode::BAD_REQUEST, reason))?;
        let keys = KeySource::of(parts).and_then(KeySource::active);
        let keys = keys.map_err(|error| {
            error!(%error, "no keys to encrypt with");
            no_keys()
        })?;
        encrypt_metadata(&mut parts.headers, &keys, &self.random).map_err(|_| no_keys())?;
        Ok(keys)
    }

    async fn read(&self, request: Request) -> Response {
        let (mut parts, body) = request.into_parts();
        if let Err(refused) = mask_conditions(&mut parts) {
            return refused;
        }
        let asked = decrypter::Asked::of(&parts);
        let response = self.next.call(Request::from_parts(parts, body)).await;
        decrypter::decrypted(asked, response).await
    }

    async fn list(&self, request: Request, account: String, container: String) -> Response {
        let source = request.extensions().get::<KeySource>().cloned();
        let response = self.next.call(request).await;
        listing::decrypted(response, source, account, container).await
    }
}

/// A value encrypted under a random IV, and how.
pub(super) fn encrypt_value(random: &Random, key: &Key, value: &[u8]) -> (String, CryptoMeta) {
    let iv: Iv = random.bytes();
    (STANDARD.encode(ctr(key, &iv, value)), CryptoMeta::ctr(&iv))
}

/// Replaces `X-Object-Meta-…` by what object servers take for system metadata that a POST
/// replaces.
fn encrypt_metadata(
    headers: &mut HeaderMap,
    keys: &Keys,
    random: &Random,
) -> Result<(), CryptoError> {
    let names: Vec<HeaderName> = headers
        .keys()
        .filter(|name| is_user_meta(ServerKind::Object, name.as_str()))
        .cloned()
        .collect();
    let mut is_any = false;
    for name in names {
        let values: Vec<&[u8]> = headers
            .get_all(&name)
            .iter()
            .map(|v| v.as_bytes())
            .collect();
        let value = values.join(&b","[..]);
        if value.is_empty() {
            continue;
        }
        let (encrypted, meta) = encrypt_value(random, keys.object()?, &value);
        let short = &name.as_str()[ServerKind::Object.user_meta_prefix().len()..];
        let stored = format!("{METADATA_PREFIX}{short}");
        respond::set(headers, &stored, meta::append(&encrypted, &meta));
        headers.remove(&name);
        is_any = true;
    }
    if is_any {
        let common = CryptoMeta {
            cipher: Some(meta::CTR.to_owned()),
            key_id: Some(keys.id.clone()),
            ..CryptoMeta::default()
        };
        respond::set(headers, METADATA_META, common.dump());
    }
    Ok(())
}

/// What an object server compares instead of an ETag, which it never sees.
fn mac_of(key: &Key, etag: &str) -> String {
    STANDARD.encode(key.mac(etag.as_bytes()))
}

/// Adds to each ETag of a condition its MACs under all root secrets. It stays itself too: the
/// object may not be encrypted.
fn mask_conditions(parts: &mut Parts) -> Result<(), Response> {
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
            if tags.len() > MACS_MAX {
                let reason = format!("Too many ETags in {name}");
                return Err(respond::text(StatusCode::BAD_REQUEST, reason));
            }
        }
        respond::set(&mut parts.headers, name.as_str(), tags.join(", "));
    }
    if is_any {
        etag_is_at(&mut parts.headers, "X-Object-Sysmeta-Crypto-Etag-Mac");
    }
    Ok(())
}

/// What is left to do when the content has passed.
struct Conclusion {
    upload: Upload,
    keys: Keys,
    random: Random,
    /// Of the content as the client has it.
    client_etag: Option<String>,
    /// What another filter wants the container's row to have.
    row_etag: Option<String>,
}

impl Conclusion {
    fn trailer(&self) -> Result<Trailer, Response> {
        let mut headers = HeaderMap::new();
        let done = self.upload.done();
        let plain_etag = done.as_ref().map(|done| ObjectHash(done.plain_md5).hex());
        match (&done, &plain_etag) {
            (Some(done), Some(plain_etag)) => self.describe(&mut headers, done, plain_etag)?,
            // Nothing came: there is nothing to encrypt, and the server checks what it has.
            _ => {
                if let Some(etag) = &self.client_etag {
                    respond::set(&mut headers, ETAG.as_str(), etag);
                }
            }
        }
        let row_etag = self.row_etag.as_deref().or(plain_etag.as_deref());
        if let Some(etag) = row_etag
            && !etag.is_empty()
            && (etag != MD5_OF_NOTHING || plain_etag.is_some())
        {
            let key = self.keys.container().map_err(|_| no_keys())?;
            let (value, mut meta) = encrypt_value(&self.random, key, etag.as_bytes());
            meta.key_id = Some(self.keys.id.clone());
            respond::set(&mut headers, ROW_ETAG, meta::append(&value, &meta));
        }
        let (md5, length) = match &done {
            Some(done) => (done.cipher_md5, done.length),
            None => (Md5::digest([]).into(), 0),
        };
        Ok(Trailer {
            headers,
            md5,
            length,
        })
    }

    fn describe(
        &self,
        headers: &mut HeaderMap,
        done: &Done,
        plain_etag: &str,
    ) -> Result<(), Response> {
        let client_etag = self.client_etag.as_deref().filter(|etag| !etag.is_empty());
        if client_etag.is_some_and(|etag| etag != plain_etag) {
            return Err(respond::standard(StatusCode::UNPROCESSABLE_ENTITY));
        }
        let key = self.keys.object().map_err(|_| no_keys())?;
        let cipher_etag = ObjectHash(done.cipher_md5).hex();
        respond::set(headers, ETAG.as_str(), cipher_etag);
        let (value, meta) = encrypt_value(&self.random, key, plain_etag.as_bytes());
        respond::set(headers, super::ETAG, meta::append(&value, &meta));
        let body = CryptoMeta {
            key_id: Some(self.keys.id.clone()),
            ..done.meta.clone()
        };
        respond::set(headers, BODY_META, body.dump());
        respond::set(headers, super::ETAG_MAC, mac_of(key, plain_etag));
        Ok(())
    }
}

/// An answer with the ETag of what the client sent, where the servers' is that of the ciphertext.
fn with_plain_etag(mut response: Response, upload: &Upload) -> Response {
    if response.status().is_success()
        && let Some(done) = upload.done()
        && let Some(etag) = respond::header(response.headers(), ETAG.as_str())
        && normalize_etag(etag) == ObjectHash(done.cipher_md5).hex()
        && let Ok(plain) = HeaderValue::from_str(&ObjectHash(done.plain_md5).hex())
    {
        response.headers_mut().insert(ETAG, plain);
    }
    response
}
