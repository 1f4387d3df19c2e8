//! Filter `encryption`: encrypts what goes to the object servers, converts conditions into a form
//! that they can evaluate, and passes responses through `decrypter.rs` and `listing.rs`.
//!
//! With `disable_encryption` nothing new is encrypted, and encrypted data stays readable.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cairn_formats::conditional::normalize_etag;
use cairn_formats::crypto_meta::{self as meta, CryptoMeta, Iv};
use cairn_formats::ini::Section;
use cairn_http::rekey::Rekey;
use cairn_http::{
    Context, Footers, Handler, InfoSource, Request, Response, Service, ServiceFuture, Trailer,
    limits, respond,
};
use cairn_types::metadata::is_user_meta;
use cairn_types::{Constraints, ObjectHash, PolicyIndex, ServerKind};
use http::header::{CONTENT_LENGTH, ETAG, HeaderName, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Method};
use md5::{Digest, Md5};
use serde_json::json;
use tracing::error;

use super::cipher::ctr;
use super::conditions::{self, mac_of};
use super::decrypter::Trouble;
use super::keys::{Key, KeySource, Keys};
use super::sealed;
use super::status;
use super::upload::{Done, Protection, Upload};
use super::{
    BODY_META, CryptoError, METADATA_META, METADATA_PREFIX, ROW_ETAG, ROW_SIZE, SEALED_MARK,
    decrypter, listing, no_keys,
};
use crate::names::Names;
use crate::{FilterEnv, FilterError, Random};

const MD5_OF_NOTHING: &str = "d41d8cd98f00b204e9800998ecf8427e";

pub(super) struct Encryption {
    pub(super) next: Handler,
    constraints: Arc<Constraints>,
    pub(super) random: Random,
    is_disabled: bool,
    sealing: Sealing,
    pub(super) info_source: Arc<dyn InfoSource>,
}

/// Policies whose objects are sealed, so that changes are detected.
#[derive(Debug, PartialEq, Eq)]
enum Sealing {
    None,
    All,
    Of(Vec<PolicyIndex>),
}

impl Sealing {
    fn read(section: &Section, env: &FilterEnv) -> Result<Self, FilterError> {
        let names = section.list_or("authenticated_policies", "");
        if !section.bool_or("authenticated", false) {
            if names.is_empty() {
                return Ok(Sealing::None);
            }
            let remedy = "is set, and authenticated is not: set authenticated = true too";
            return Err(section.bad("authenticated_policies", remedy).into());
        }
        let index = |name: &String| {
            let by_name = env.policies.by_name(name);
            let policy = by_name.or_else(|| {
                let index = name.parse().ok().map(PolicyIndex)?;
                env.policies.by_index(index)
            });
            let unknown = || section.bad("authenticated_policies", format!("no policy {name:?}"));
            policy.map(|policy| policy.index).ok_or_else(unknown)
        };
        if names.is_empty() {
            return Ok(Sealing::All);
        }
        let policies: Result<Vec<_>, _> = names.iter().map(index).collect();
        Ok(Sealing::Of(policies?))
    }
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
        sealing: Sealing::read(section, env)?,
        info_source: env.info_source.clone(),
    }))
}

impl Service for Encryption {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        let method = request.method();
        let is_read = method == Method::GET || method == Method::HEAD;
        let is_write = [Method::PUT, Method::POST, Method::DELETE].contains(method);
        if !(is_read || is_write) {
            return self.next.call(request);
        }
        let Some(names) = Names::of(request.uri().path()) else {
            return self.next.call(request);
        };
        let (is_object, is_api) = (names.object.is_some(), names.is_api(&self.constraints));
        let order = request.extensions().get::<Rekey>().copied();
        if let (Some(order), Some(_)) = (order, &names.container) {
            return Box::pin(self.rekey(request, order, is_object));
        }
        match (names.container, method.as_str()) {
            (Some(_), "PUT") if is_object && !self.is_disabled => Box::pin(self.put(request)),
            (Some(_), "POST") if is_object => Box::pin(self.post(request)),
            (Some(_), "PUT" | "DELETE") if is_object => Box::pin(self.on_condition(request)),
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
        let is_sealed = self.seals(&request).await;
        match self.encrypted_put(request, is_sealed) {
            Ok((request, upload)) => {
                let response = self.next.call(request).await;
                with_plain_etag(response, &upload)
            }
            Err(refused) => refused,
        }
    }

    /// Is the object, or will it be, in a policy whose objects are sealed?
    async fn seals(&self, request: &Request) -> bool {
        let policies = match &self.sealing {
            Sealing::None => return false,
            Sealing::All => return true,
            Sealing::Of(policies) => policies,
        };
        let Some(names) = Names::of(request.uri().path()) else {
            return false;
        };
        let context = Context::of_request(request);
        let container = names.container.unwrap_or_default();
        let info = self
            .info_source
            .container(&context, &names.account, &container);
        policies.contains(&info.await.policy)
    }

    fn encrypted_put(
        &self,
        request: Request,
        is_sealed: bool,
    ) -> Result<(Request, Upload), Response> {
        let (mut parts, body) = request.into_parts();
        conditions::mask(&mut parts, None)?;
        let keys = self.prepared(&mut parts, is_sealed)?;
        let object = keys.object().cloned().map_err(|_| no_keys())?;
        let protection = match is_sealed {
            true => Protection::Sealed(object, keys.id.path.clone()),
            false => Protection::Ctr(object),
        };
        let upload = Upload::new(self.random.clone(), protection);
        if is_sealed {
            announce_sealed(&mut parts.headers);
        }
        let client_etag = parts.headers.remove(ETAG);
        let client_etag = client_etag.and_then(|etag| {
            etag.to_str()
                .ok()
                .map(|etag| normalize_etag(etag).to_owned())
        });
        let conclusion = Conclusion {
            upload: upload.clone(),
            keys,
            is_sealed,
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
        let is_sealed = !self.is_disabled && self.seals(&request).await;
        let (mut parts, body) = request.into_parts();
        if let Err(refused) = conditions::mask(&mut parts, None) {
            return refused;
        }
        if !self.is_disabled
            && let Err(refused) = self.prepared(&mut parts, is_sealed)
        {
            return refused;
        }
        if let Err(refused) = self.carry_kept(&mut parts, is_sealed).await {
            return refused;
        }
        self.next.call(Request::from_parts(parts, body)).await
    }

    /// A write that is not encrypted: its conditions may apply to an object that is.
    async fn on_condition(&self, request: Request) -> Response {
        let (mut parts, body) = request.into_parts();
        match conditions::mask(&mut parts, None) {
            Ok(()) => self.next.call(Request::from_parts(parts, body)).await,
            Err(refused) => refused,
        }
    }

    /// Validates the user metadata, which is impossible once encrypted, and encrypts it.
    fn prepared(&self, parts: &mut Parts, is_sealed: bool) -> Result<Keys, Response> {
        limits::check_metadata(&parts.headers, ServerKind::Object, &self.constraints)
            .map_err(status::bad_request)?;
        let active = match is_sealed {
            true => KeySource::active_bound,
            false => KeySource::active,
        };
        let keys = KeySource::of(parts).and_then(active);
        let keys = keys.map_err(|error| {
            error!(%error, "no keys to encrypt with");
            no_keys()
        })?;
        let sealer = Values {
            random: &self.random,
            path: is_sealed.then_some(keys.id.path.as_str()),
        };
        encrypt_metadata(&mut parts.headers, &keys, &sealer).map_err(|_| no_keys())?;
        Ok(keys)
    }

    async fn read(&self, request: Request) -> Response {
        let (parts, mut body) = request.into_parts();
        let mut kept: Option<Key> = None;
        let mut is_newest = parts.headers.contains_key("x-newest");
        loop {
            let mut wanted = parts.clone();
            if is_newest {
                respond::set(&mut wanted.headers, "x-newest", "true");
            }
            if let Err(refused) = conditions::mask(&mut wanted, kept.as_ref()) {
                return refused;
            }
            let asked = decrypter::RequestContext::of(&mut wanted);
            let request = Request::from_parts(wanted, std::mem::take(&mut body));
            let response = self.next.call(request).await;
            let problem = match decrypter::decrypted(asked, &self.next, response).await {
                Ok(response) => return response,
                Err(Trouble::OtherMac(key)) if kept.is_none() => {
                    kept = Some(key);
                    continue;
                }
                // A replica that has missed a POST may lack keys that another has since re-keying.
                Err(Trouble::Crypto(CryptoError::UnknownSecret(_))) if !is_newest => {
                    is_newest = true;
                    continue;
                }
                Err(Trouble::OtherMac(_)) => CryptoError::Tampered,
                Err(Trouble::Crypto(problem)) => problem,
            };
            let path = parts.uri.path();
            error!(path, error = %problem, "an object cannot be decrypted");
            return status::cannot_be_decrypted();
        }
    }

    async fn list(&self, request: Request, account: String, container: String) -> Response {
        let source = request.extensions().get::<KeySource>().cloned();
        let response = self.next.call(request).await;
        listing::decrypted(response, source, account, container).await
    }
}

/// Encrypts values, in Swift's format or sealed.
pub(super) struct Values<'a> {
    pub(super) random: &'a Random,
    /// Path of the object, to which sealed values are bound; `None` if they are not sealed.
    pub(super) path: Option<&'a str>,
}

impl Values<'_> {
    /// Encrypts a value under a random IV; returns it with its crypto metadata.
    pub(super) fn encrypt(
        &self,
        key: &Key,
        name: &str,
        value: &[u8],
    ) -> Result<(String, CryptoMeta), CryptoError> {
        let Some(path) = self.path else {
            let iv: Iv = self.random.bytes();
            return Ok((STANDARD.encode(ctr(key, &iv, value)), CryptoMeta::ctr(&iv)));
        };
        let nonce: [u8; sealed::NONCE_BYTES] = self.random.bytes();
        let sealed = sealed::seal(key, nonce, &sealed::place(name, path), value)?;
        let meta = CryptoMeta {
            cipher: Some(meta::GCM.to_owned()),
            iv: Some(nonce.to_vec()),
            ..CryptoMeta::default()
        };
        Ok((STANDARD.encode(sealed), meta))
    }
}

/// Declares the length of the sealed content to the servers.
fn announce_sealed(headers: &mut HeaderMap) {
    let length = respond::header(headers, CONTENT_LENGTH.as_str());
    if let Some(length) = length.and_then(|text| text.trim().parse().ok()) {
        headers.insert(CONTENT_LENGTH, sealed::sealed_length(length).into());
    }
}

/// Replaces `X-Object-Meta-…` by headers that object servers treat as transient system metadata,
/// which a POST replaces.
fn encrypt_metadata(
    headers: &mut HeaderMap,
    keys: &Keys,
    values: &Values<'_>,
) -> Result<(), CryptoError> {
    let names: Vec<HeaderName> = headers
        .keys()
        .filter(|name| is_user_meta(ServerKind::Object, name.as_str()))
        .cloned()
        .collect();
    let mut cipher = None;
    for name in names {
        let all: Vec<&[u8]> = headers
            .get_all(&name)
            .iter()
            .map(|v| v.as_bytes())
            .collect();
        let value = all.join(&b","[..]);
        if value.is_empty() {
            continue;
        }
        let short = &name.as_str()[ServerKind::Object.user_meta_prefix().len()..];
        let stored = format!("{METADATA_PREFIX}{short}");
        let (encrypted, meta) = values.encrypt(keys.object()?, &stored, &value)?;
        respond::set(headers, &stored, meta::append(&encrypted, &meta));
        headers.remove(&name);
        cipher = meta.cipher;
    }
    if cipher.is_some() {
        let common = CryptoMeta {
            cipher,
            key_id: Some(keys.id.clone()),
            ..CryptoMeta::default()
        };
        respond::set(headers, METADATA_META, common.dump());
    }
    Ok(())
}

/// Computation of the footers when the content has passed.
struct Conclusion {
    upload: Upload,
    keys: Keys,
    is_sealed: bool,
    random: Random,
    /// ETag of the content that the client sent.
    client_etag: Option<String>,
    /// ETag that another filter wants in the container's row.
    row_etag: Option<String>,
}

impl Conclusion {
    fn values(&self) -> Values<'_> {
        Values {
            random: &self.random,
            path: self.is_sealed.then_some(self.keys.id.path.as_str()),
        }
    }

    fn trailer(&self) -> Result<Trailer, Response> {
        let mut headers = HeaderMap::new();
        let done = self.upload.done();
        let plain_etag = done.as_ref().map(|done| ObjectHash(done.plain_md5).hex());
        match (&done, &plain_etag) {
            (Some(done), Some(plain_etag)) => self.describe(&mut headers, done, plain_etag)?,
            // There was no content: nothing to encrypt, and the server checks the ETag.
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
            let encrypted = self.values().encrypt(key, ROW_ETAG, etag.as_bytes());
            let (value, mut meta) = encrypted.map_err(|_| no_keys())?;
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
            return Err(status::other_content());
        }
        let key = self.keys.object().map_err(|_| no_keys())?;
        let cipher_etag = ObjectHash(done.cipher_md5).hex();
        respond::set(headers, ETAG.as_str(), cipher_etag);
        let encrypted = self
            .values()
            .encrypt(key, super::ETAG, plain_etag.as_bytes());
        let (value, meta) = encrypted.map_err(|_| no_keys())?;
        respond::set(headers, super::ETAG, meta::append(&value, &meta));
        let body = CryptoMeta {
            key_id: Some(self.keys.id.clone()),
            ..done.meta.clone()
        };
        respond::set(headers, BODY_META, body.dump());
        respond::set(headers, super::ETAG_MAC, mac_of(key, plain_etag));
        if self.is_sealed {
            respond::set(headers, SEALED_MARK, "yes");
            respond::set(headers, ROW_SIZE, done.plain_length.to_string());
        }
        Ok(())
    }
}

/// The response with the ETag of the client's content, if the servers' is that of the ciphertext.
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
