//! Decryption of responses for objects: headers and content.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use cairn_formats::crypto_meta::{self as meta, CryptoMeta, Iv, WrappedKey, ctr_iv};
use cairn_http::{Body, Handler, Response, own_thread, respond};
use cairn_types::blocks::{self, Block};
use futures_util::stream;
use http::header::{
    ACCESS_CONTROL_EXPOSE_HEADERS, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderName, HeaderValue,
    ORIGIN, RANGE,
};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use tracing::error;

use super::cipher::{CtrStream, ctr, unwrap_key};
use super::conditions::{self, mac_of};
use super::kept::{KEPT_MAC, ObjectKeys};
use super::keys::{Key, KeySource, Keys};
use super::status;
use super::{
    BODY_META, CryptoError, METADATA_META, METADATA_PREFIX, ROW_ETAG, ROW_SIZE, multipart, no_keys,
    open, sealed,
};
use crate::segments::want_whole;

/// Maximum bytes of a chunk that is decrypted on the event loop: 256 KiB take 0.1 ms.
const INLINE_MAX_BYTES: usize = 256 << 10;

/// Properties of the request that the decryption of its response depends on.
pub(super) struct RequestContext {
    source: Option<KeySource>,
    /// For a range request, a copy to repeat it for sealed segments.
    again: Option<Parts>,
    is_get: bool,
    /// Conditions are compared with the MAC stored by re-keying, if there is one.
    is_by_kept: bool,
    has_origin: bool,
    path: String,
}

/// Reasons why a response cannot be decrypted.
pub(super) enum Trouble {
    Crypto(CryptoError),
    /// Conditions were compared with a MAC, stored by re-keying, that is not the object's. They can
    /// be compared with the one stored with its content, under this key.
    OtherMac(Key),
}

impl From<CryptoError> for Trouble {
    fn from(error: CryptoError) -> Self {
        Trouble::Crypto(error)
    }
}

impl RequestContext {
    /// For a range request, makes the servers return sealed content as a whole, since they do not
    /// know the segments of a range.
    pub(super) fn of(parts: &mut Parts) -> Self {
        let is_ranged = parts.method == Method::GET && parts.headers.contains_key(RANGE);
        let again = is_ranged.then(|| parts.clone());
        if is_ranged {
            want_whole(&mut parts.headers, "X-Object-Sysmeta-Crypto-Sealed");
        }
        RequestContext {
            again,
            source: parts.extensions.get::<KeySource>().cloned(),
            is_get: parts.method == Method::GET,
            is_by_kept: conditions::is_by_kept(parts),
            has_origin: parts.headers.contains_key(ORIGIN),
            path: parts.uri.path().to_owned(),
        }
    }
}

/// Encryption of an object's content.
#[derive(Clone)]
enum Content {
    Ctr { key: Key, iv: Iv },
    Sealed(Key),
}

impl Content {
    fn cipher(&self) -> &'static str {
        match self {
            Content::Ctr { .. } => meta::CTR,
            Content::Sealed(_) => meta::GCM_SEGMENTS,
        }
    }
}

/// Crypto metadata found in a response's headers.
struct Found {
    content: Option<Content>,
    /// The content's keys are re-wrapped ones.
    is_kept: bool,
    put_keys: Keys,
    post_keys: Keys,
}

pub(super) async fn decrypted(
    asked: RequestContext,
    next: &Handler,
    response: Response,
) -> Result<Response, Trouble> {
    let status = response.status();
    let is_about_object = status.is_success()
        || status == StatusCode::NOT_MODIFIED
        || status == StatusCode::PRECONDITION_FAILED;
    let Some(source) = asked.source.as_ref() else {
        error!(path = asked.path, error = %CryptoError::NoKeymaster, "cannot decrypt");
        return Ok(no_keys());
    };
    let (mut parts, body) = response.into_parts();
    let version = open::Version::of(&parts.headers);
    let keys = ObjectKeys::of(source, &parts.headers);
    let found = found(&keys, &parts.headers, is_about_object)?;
    let mac = parts.headers.get(KEPT_MAC).cloned();
    let etag = decrypt_headers(&mut parts.headers, source, &keys, &found, asked.has_origin)?;
    if asked.is_by_kept && is_about_object {
        let holds = match (&mac, &etag, keys.kept()) {
            (None, _, _) => !found.is_kept,
            (Some(mac), Some(etag), Some(kept)) => *mac == mac_of(kept.under.object()?, etag),
            (Some(_), _, _) => false,
        };
        if !holds {
            return Err(Trouble::OtherMac(found.put_keys.object()?.clone()));
        }
    }
    let mut response = Response::from_parts(parts, body);
    if let Some(content) = found.content.filter(|_| status.is_success()) {
        let name = HeaderName::from_static("x-backend-crypto-cipher");
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(content.cipher()));
        match content {
            Content::Sealed(key) if asked.is_get => {
                return Ok(open::opened(response, key, asked.again, version, next).await);
            }
            Content::Sealed(_) => open::show_length(&mut response),
            Content::Ctr { key, iv } if asked.is_get => {
                return Ok(decrypt_body(response, key, iv));
            }
            Content::Ctr { .. } => {}
        }
    }
    Ok(response)
}

fn found(
    object_keys: &ObjectKeys<'_>,
    headers: &HeaderMap,
    is_about_object: bool,
) -> Result<Found, CryptoError> {
    let meta = |name| match respond::header(headers, name).filter(|_| is_about_object) {
        Some(text) => CryptoMeta::load(text).map(Some),
        None => Ok(None),
    };
    let (put, post) = (meta(BODY_META)?, meta(METADATA_META)?);
    let id_of = |meta: &Option<CryptoMeta>| meta.as_ref().and_then(|meta| meta.key_id.clone());
    let put_id = id_of(&put);
    let put_keys = object_keys.keys(put_id.as_ref())?;
    let post_keys = object_keys.keys(id_of(&post).as_ref())?;
    let content = match &put {
        None => None,
        Some(meta) => {
            let wrapped = meta.body_key.as_ref();
            let wrapped = wrapped.ok_or_else(|| CryptoError::bad_meta("body_key is missing"))?;
            Some(content(meta, wrapped, &put_keys, object_keys.source())?)
        }
    };
    Ok(Found {
        content,
        is_kept: put_id.is_some_and(|id| object_keys.has_kept(&id)),
        put_keys,
        post_keys,
    })
}

fn content(
    meta: &CryptoMeta,
    wrapped: &WrappedKey,
    keys: &Keys,
    source: &KeySource,
) -> Result<Content, CryptoError> {
    if meta.cipher.as_deref() == Some(meta::GCM_SEGMENTS) {
        let place = sealed::place(BODY_META, &source.path());
        let key = sealed::open_key(keys.object()?, &wrapped.iv, &place, &wrapped.key)?;
        return Ok(Content::Sealed(key));
    }
    let iv = meta.ctr_iv()?;
    let key_iv = ctr_iv(&wrapped.iv)?;
    let key = unwrap_key(keys.object()?, &key_iv, &wrapped.key)?;
    Ok(Content::Ctr { key, iv })
}

/// Decrypts a value that is followed by crypto metadata; another one is returned unchanged.
pub(super) fn value_of(
    value: &str,
    key: &Key,
    place: &str,
    is_required: bool,
) -> Result<Vec<u8>, CryptoError> {
    match meta::extract(value)? {
        (first, Some(meta)) => decrypt_value(first, key, &meta, place),
        (_, None) if is_required => Err(CryptoError::NoMeta),
        (_, None) => Ok(value.as_bytes().to_vec()),
    }
}

/// `place` is the context that a sealed value is bound to.
pub(super) fn decrypt_value(
    value: &str,
    key: &Key,
    meta: &CryptoMeta,
    place: &str,
) -> Result<Vec<u8>, CryptoError> {
    let bytes = STANDARD.decode(value.trim());
    let bytes = bytes.map_err(|_| CryptoError::bad_meta("a value is not in base64"))?;
    if meta.cipher.as_deref() == Some(meta::GCM) {
        return sealed::open(key, meta.iv.as_deref().unwrap_or_default(), place, &bytes);
    }
    Ok(ctr(key, &meta.ctr_iv()?, &bytes))
}

/// Replaces headers by their decrypted values, and removes those that only object servers need.
/// Returns the ETag, if it was encrypted.
fn decrypt_headers(
    headers: &mut HeaderMap,
    source: &KeySource,
    object_keys: &ObjectKeys<'_>,
    found: &Found,
    has_origin: bool,
) -> Result<Option<String>, CryptoError> {
    let path = source.path();
    let place = |name: &str| sealed::place(name, &path);
    let mut shown: Vec<(HeaderName, Vec<u8>)> = Vec::new();
    let text = |name: &str| respond::header(headers, name).filter(|text| !text.is_empty());
    let mut plain_etag = None;
    if let Some(etag) = text(super::ETAG) {
        let key = found.put_keys.object()?;
        let etag = value_of(etag, key, &place(super::ETAG), true)?;
        plain_etag = Some(String::from_utf8_lossy(&etag).into_owned());
        shown.push((ETAG, etag));
    }
    if let Some(etag) = text(ROW_ETAG) {
        // For an object without content, only this states the key.
        let id = meta::extract(etag)?.1.and_then(|meta| meta.key_id);
        let keys = object_keys.keys(id.as_ref())?;
        let etag = value_of(etag, keys.container()?, &place(ROW_ETAG), false)?;
        shown.push((HeaderName::from_static(ROW_ETAG), etag));
    }
    let mut exposed = Vec::new();
    for (name, value) in headers.iter() {
        let Some(short) = name.as_str().strip_prefix(METADATA_PREFIX) else {
            continue;
        };
        let place = place(name.as_str());
        let name = format!("x-object-meta-{short}");
        let (Ok(value), Ok(name)) = (value.to_str(), HeaderName::from_bytes(name.as_bytes()))
        else {
            return Err(CryptoError::bad_meta("a value of metadata is not ASCII"));
        };
        if !value.is_empty() {
            exposed.push(name.to_string());
            let key = found.post_keys.object()?;
            shown.push((name, value_of(value, key, &place, true)?));
        }
    }
    for (name, value) in shown {
        let value = HeaderValue::from_bytes(&value);
        let value = value.map_err(|_| CryptoError::bad_meta("a value that no header can have"))?;
        headers.insert(name, value);
    }
    if matches!(found.content, Some(Content::Sealed(_))) {
        headers.remove(ROW_SIZE);
    }
    let hidden: Vec<HeaderName> = headers
        .keys()
        .filter(|name| is_ours(name))
        .cloned()
        .collect();
    for name in hidden {
        headers.remove(name);
    }
    expose(headers, &exposed, has_origin);
    Ok(plain_etag)
}

fn is_ours(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("x-object-sysmeta-crypto-")
        || name.starts_with("x-object-transient-sysmeta-crypto-")
}

/// Adds headers to those exposed to browsers: the proxy did not know these.
fn expose(headers: &mut HeaderMap, names: &[String], has_origin: bool) {
    let before = respond::header(headers, ACCESS_CONTROL_EXPOSE_HEADERS.as_str());
    let list = match before {
        _ if names.is_empty() => return,
        Some(before) => format!("{before}, {}", names.join(", ")),
        None if has_origin => names.join(", "),
        None => return,
    };
    respond::set(headers, ACCESS_CONTROL_EXPOSE_HEADERS.as_str(), list);
}

fn decrypt_body(response: Response, key: Key, iv: Iv) -> Response {
    let (parts, body) = response.into_parts();
    let content_type = respond::header(&parts.headers, CONTENT_TYPE.as_str()).unwrap_or("");
    if parts.status == StatusCode::PARTIAL_CONTENT
        && content_type.starts_with(multipart::CONTENT_TYPE)
    {
        let boundary = multipart::boundary_of(content_type);
        let Some(parser) = boundary.map(multipart::Ranges::new) else {
            error!("ranges without a boundary");
            return status::cannot_be_decrypted();
        };
        let body = multipart::decrypted(body, parser, key, iv);
        return Response::from_parts(parts, body);
    }
    let range = respond::header(&parts.headers, CONTENT_RANGE.as_str());
    let offset = match range.map(multipart::first_byte) {
        None => 0,
        Some(Some(offset)) => offset,
        Some(None) => {
            error!("a range that cannot be read");
            return status::cannot_be_decrypted();
        }
    };
    let stream = CtrStream::new(&key, &iv, offset);
    Response::from_parts(parts, plain(body, stream))
}

/// The body, decrypted as it is read.
fn plain(body: Body, stream: CtrStream) -> Body {
    let length = body.length();
    let chunks = stream::unfold((body, Some(stream)), |(mut body, stream)| async move {
        let mut stream = stream?;
        let chunk = match body.next_chunk().await? {
            Ok(chunk) => chunk,
            Err(error) => return Some((Err(error), (body, None))),
        };
        if chunk.len() <= INLINE_MAX_BYTES {
            let bytes = plain_chunk(chunk, &mut stream);
            return Some((Ok(bytes), (body, Some(stream))));
        }
        let decrypted = own_thread::blocking(move || {
            let bytes = plain_chunk(chunk, &mut stream);
            (bytes, stream)
        });
        match decrypted.await {
            Some((bytes, stream)) => Some((Ok(bytes), (body, Some(stream)))),
            None => {
                let error = cairn_http::BodyError::Source("decryption failed".into());
                Some((Err(error), (body, None)))
            }
        }
    });
    Body::from_stream(chunks, length)
}

/// The chunk, decrypted: in place, or into another block if it is one, which is shared.
fn plain_chunk(chunk: Bytes, stream: &mut CtrStream) -> Bytes {
    if chunk.len() == blocks::SIZE
        && !chunk.is_unique()
        && let Ok(mut block) = Block::take_to_read()
    {
        stream.apply_into(&chunk, block.spare());
        block.advance(blocks::SIZE);
        return block.into_bytes();
    }
    let mut bytes = owned(chunk);
    stream.apply(&mut bytes);
    bytes.freeze()
}

/// The chunk as mutable bytes, copied only if it is shared.
pub(super) fn owned(chunk: Bytes) -> BytesMut {
    chunk
        .try_into_mut()
        .unwrap_or_else(|shared| BytesMut::from(&shared[..]))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::keys::KEY_BYTES;
    use super::*;

    /// Chunks as a device reads them: whole blocks, which are shared, and a short one.
    #[test]
    fn blocks_and_other_chunks_are_decrypted_alike() {
        let content: Vec<u8> = (0..2 * blocks::SIZE as u32 + 5)
            .map(|i| (i / 3) as u8)
            .collect();
        let (key, iv) = (Key::new([7; KEY_BYTES]), [9; 16]);
        let encrypted = Bytes::from(ctr(&key, &iv, &content));
        let mut stream = CtrStream::new(&key, &iv, 0);
        let mut opened = Vec::new();
        for number in 0..3 {
            let mut rest = encrypted.slice(number * blocks::SIZE..);
            let mut block = Block::take_to_read().unwrap();
            block.fill_from(&mut rest);
            let chunk = block.into_bytes();
            let before = chunk.clone();
            opened.extend_from_slice(&plain_chunk(chunk, &mut stream));
            assert!(
                before == encrypted[number * blocks::SIZE..][..before.len()],
                "others share it"
            );
        }
        assert!(opened == content);
    }
}
