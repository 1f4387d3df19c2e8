//! Re-keying: wraps the keys of a sealed object under the active root secret, while its content
//! stays.
//!
//! A POST stores the object's and its container's key under the secret of the PUT, sealed under the
//! active one (`kept.rs`), in metadata that a POST replaces. Therefore every POST of a client
//! carries the kept keys along, and creates them if the object is under another secret. The tool's
//! POST (`order`) has the object's own time and the next offset: any later request of a client
//! wins, and then carries the kept keys.
//!
//! Rows of the container stay unchanged: the container's metadata keeps its key under each secret
//! other than the active one.
//!
//! Objects in OpenStack Swift's format are left alone: Swift could no longer read them.

use cairn_formats::crypto_meta::{self as meta, CryptoMeta, KeyId};
use cairn_http::rekey::{Reason, Rekey, Rekeyed, SecretId};
use cairn_http::{Body, Context, Request, Response, respond};
use http::header::{HeaderName, HeaderValue, USER_AGENT};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode, Uri};
use tracing::error;

use super::conditions::mac_of;
use super::decrypter::value_of;
use super::encrypter::{Encryption, Values};
use super::kept::{self, KEPT, KEPT_MAC, Kept, ObjectKeys};
use super::keys::{KeySource, Keys};
use super::status;
use super::{
    BODY_META, CryptoError, ETAG, METADATA_META, METADATA_PREFIX, ROW_ETAG, no_keys, sealed,
};
use crate::Random;
use crate::names::Names;

/// Source of these requests in the log.
const SOURCE: &str = "EA";
/// Maximum attempts for an object that clients change meanwhile.
const ATTEMPTS_MAX: usize = 10;

/// Headers of a response that are not an object's metadata, or that a POST leaves alone.
const NOT_SENT_AGAIN: [&str; 12] = [
    "accept-ranges",
    "connection",
    "content-length",
    "content-type",
    "date",
    "etag",
    "last-modified",
    "transfer-encoding",
    "x-openstack-request-id",
    "x-timestamp",
    "x-trans-id",
    "x-delete-after",
];

/// Headers of the request that state its access rights.
const PASSED_ON: [&str; 5] = [
    "x-backend-use-replication-network",
    "x-backend-allow-reserved-names",
    "x-backend-storage-policy-index",
    "x-backend-open-expired",
    "x-open-expired",
];

/// Relation of an object's keys to the active root secret.
#[derive(Debug, PartialEq, Eq)]
enum Standing {
    NotEncrypted,
    Active,
    Swifts(SecretId),
    Under(SecretId),
}

impl Encryption {
    /// Adds the kept keys to a client's POST, which would otherwise remove them.
    pub(super) async fn carry_kept(
        &self,
        parts: &mut Parts,
        is_sealed: bool,
    ) -> Result<(), Response> {
        let Some(source) = parts.extensions.get::<KeySource>().cloned() else {
            return Ok(());
        };
        if !(is_sealed || self.may_be_kept(parts, &source).await) {
            return Ok(());
        }
        let head = self.head(parts).await?;
        let is_there = match head.status() {
            status if status.is_success() => true,
            // The POST will get the same response.
            StatusCode::NOT_FOUND => false,
            status => {
                error!(path = parts.uri.path(), %status, "no keys could be read for a POST");
                return Err(status::unavailable());
            }
        };
        let made = match is_there {
            true => kept_headers(&source, head.headers(), &self.random),
            false => Ok(Vec::new()),
        };
        let made = made.map_err(|problem| {
            // Without the kept keys the object would be unreadable after this POST.
            error!(path = parts.uri.path(), error = %problem, "the keys of an object cannot be kept");
            no_keys()
        })?;
        for (name, value) in made {
            respond::set(&mut parts.headers, name, value);
        }
        Ok(())
    }

    /// May the object have been re-keyed, or be in the process? That needs several root secrets,
    /// now or earlier.
    async fn may_be_kept(&self, parts: &Parts, source: &KeySource) -> bool {
        if source.active().is_ok_and(|keys| keys.all_ids.len() > 1) {
            return true;
        }
        let Some(names) = Names::of(parts.uri.path()) else {
            return false;
        };
        let context = Context::of(parts);
        let container = names.container.unwrap_or_default();
        let info = self
            .info_source
            .container(&context, &names.account, &container)
            .await;
        let is_kept = |name: &String| name.starts_with(kept::CONTAINER_SYSMETA);
        // If the container cannot be read, the object decides.
        !info.exists() && info.status != 404 || info.sysmeta.keys().any(is_kept)
    }

    /// HEAD of the request's object or container, by its name on the servers.
    async fn head(&self, parts: &Parts) -> Result<Response, Response> {
        let head = request_like(parts, Method::HEAD).ok_or_else(no_keys)?;
        Ok(self.next.call(head).await)
    }

    /// Carries out a tool's order.
    pub(super) async fn rekey(&self, request: Request, order: Rekey, is_object: bool) -> Response {
        let (parts, _) = request.into_parts();
        let source = match KeySource::of(&parts) {
            Ok(source) => source.clone(),
            Err(problem) => return failed(&parts, &problem),
        };
        let outcome = match is_object {
            true => self.rekey_object(&parts, &source, order).await,
            false => self.rekey_container(&parts, &source, order).await,
        };
        match outcome {
            Ok(outcome) => {
                let mut response = respond::empty(StatusCode::NO_CONTENT);
                response.extensions_mut().insert(outcome);
                response
            }
            Err(refused) => refused,
        }
    }

    async fn rekey_object(
        &self,
        parts: &Parts,
        source: &KeySource,
        order: Rekey,
    ) -> Result<Rekeyed, Response> {
        let mut was_tried = false;
        for _ in 0..ATTEMPTS_MAX {
            let head = self.head(parts).await?;
            match head.status() {
                StatusCode::NOT_FOUND => return Ok(Rekeyed::Gone),
                status if status.is_success() => {}
                _ => return Err(head),
            }
            let standing = standing(source, head.headers());
            let secret = match standing.map_err(|problem| failed(parts, &problem))? {
                Standing::NotEncrypted => return Ok(Rekeyed::NotEncrypted),
                Standing::Active if was_tried => return Ok(Rekeyed::Done),
                Standing::Active => return Ok(Rekeyed::Active),
                Standing::Swifts(id) => return Ok(Rekeyed::Remains(id, Reason::SwiftsFormat)),
                Standing::Under(id) => id,
            };
            let headers = match posted(source, head.headers(), &self.random) {
                Ok(headers) => headers,
                Err(CryptoError::UnknownSecret(id)) => {
                    return Ok(Rekeyed::Remains(id, Reason::NotConfigured));
                }
                Err(problem) => return Err(failed(parts, &problem)),
            };
            if order.is_dry_run {
                return Ok(Rekeyed::Remains(secret, Reason::NotYet));
            }
            let mut post = request_like(parts, Method::POST).ok_or_else(no_keys)?;
            post.headers_mut().extend(headers);
            let answer = self.next.call(post).await;
            was_tried = true;
            match answer.status() {
                StatusCode::ACCEPTED => return Ok(Rekeyed::Done),
                // Another writer was faster: its result is read again.
                StatusCode::CONFLICT | StatusCode::NOT_FOUND | StatusCode::SERVICE_UNAVAILABLE => {}
                _ => return Err(answer),
            }
        }
        error!(
            path = parts.uri.path(),
            "an object changes all the time and was not re-keyed"
        );
        Err(status::unavailable())
    }

    async fn rekey_container(
        &self,
        parts: &Parts,
        source: &KeySource,
        order: Rekey,
    ) -> Result<Rekeyed, Response> {
        let head = self.head(parts).await?;
        match head.status() {
            StatusCode::NOT_FOUND => return Ok(Rekeyed::Gone),
            status if status.is_success() => {}
            _ => return Err(head),
        }
        let plan = container_plan(source, head.headers(), &self.random);
        let (active, mut covered, made) = plan.map_err(|problem| failed(parts, &problem))?;
        let is_changed = !made.is_empty() && !order.is_dry_run;
        if is_changed {
            let mut post = request_like(parts, Method::POST).ok_or_else(no_keys)?;
            for (id, name, value) in made {
                respond::set(post.headers_mut(), &name, value);
                covered.push(id);
            }
            let answer = self.next.call(post).await;
            if !answer.status().is_success() {
                return Err(answer);
            }
        }
        Ok(Rekeyed::Container {
            active,
            covered,
            is_changed,
        })
    }
}

fn failed(parts: &Parts, problem: &CryptoError) -> Response {
    error!(path = parts.uri.path(), error = %problem, "cannot be re-keyed");
    status::cannot_be_rekeyed(problem)
}

/// A request by the filter itself for the entity that another request names.
fn request_like(parts: &Parts, method: Method) -> Option<Request> {
    let mut request = Request::new(Body::empty());
    *request.method_mut() = method;
    *request.uri_mut() = Uri::builder()
        .path_and_query(parts.uri.path())
        .build()
        .ok()?;
    for name in PASSED_ON {
        if let Some(value) = parts.headers.get(name) {
            let name = HeaderName::from_static(name);
            request.headers_mut().insert(name, value.clone());
        }
    }
    if let Some(agent) = parts.headers.get(USER_AGENT) {
        request.headers_mut().insert(USER_AGENT, agent.clone());
    }
    if request.method() == Method::HEAD {
        let name = HeaderName::from_static("x-newest");
        request
            .headers_mut()
            .insert(name, HeaderValue::from_static("true"));
    }
    let context = Context::of(parts).pre_authorized(SOURCE);
    request.extensions_mut().insert(context);
    Some(request)
}

/// Crypto metadata of a PUT, if it encrypted the object.
fn of_put(headers: &HeaderMap) -> Result<Option<CryptoMeta>, CryptoError> {
    if let Some(text) = respond::header(headers, BODY_META) {
        return Ok(Some(CryptoMeta::load(text)?));
    }
    // For an object without content only the row's ETag may be encrypted.
    match respond::header(headers, ROW_ETAG) {
        Some(value) => Ok(meta::extract(value)?.1),
        None => Ok(None),
    }
}

fn id_of(meta: &CryptoMeta) -> Result<&KeyId, CryptoError> {
    let missing = || CryptoError::BadKeyId("there is none".into());
    meta.key_id.as_ref().ok_or_else(missing)
}

fn is_swifts(meta: &CryptoMeta) -> bool {
    meta.cipher.as_deref() == Some(meta::CTR)
}

fn standing(source: &KeySource, headers: &HeaderMap) -> Result<Standing, CryptoError> {
    let active = source.active_bound()?;
    let put = of_put(headers)?;
    let metadata = match respond::header(headers, METADATA_META) {
        Some(text) => Some(CryptoMeta::load(text)?),
        None => None,
    };
    let Some(first) = put.as_ref().or(metadata.as_ref()) else {
        return Ok(Standing::NotEncrypted);
    };
    let is_swifts = is_swifts(first);
    for meta in [&put, &metadata].into_iter().flatten() {
        let id = id_of(meta)?;
        if id.secret_id == active.id.secret_id {
            continue;
        }
        if is_swifts {
            return Ok(Standing::Swifts(id.secret_id.clone()));
        }
        let is_put = put.as_ref() == Some(meta);
        if !(is_put && is_kept(source, headers, id, &active)?) {
            return Ok(Standing::Under(id.secret_id.clone()));
        }
    }
    Ok(Standing::Active)
}

/// Are the object's keys kept under the active secret, together with the MAC?
fn is_kept(
    source: &KeySource,
    headers: &HeaderMap,
    id: &KeyId,
    active: &Keys,
) -> Result<bool, CryptoError> {
    let object_keys = ObjectKeys::of(source, headers);
    let under = object_keys.kept().map(|kept| &kept.under.id.secret_id);
    if !object_keys.has_kept(id) || under != Some(&active.id.secret_id) {
        return Ok(false);
    }
    let mac = etag_mac(source, headers, &object_keys.keys(Some(id))?, active)?;
    Ok(mac.as_deref() == respond::header(headers, KEPT_MAC))
}

/// MAC of the content's ETag under the active secret.
fn etag_mac(
    source: &KeySource,
    headers: &HeaderMap,
    keys: &Keys,
    active: &Keys,
) -> Result<Option<String>, CryptoError> {
    let Some(etag) = respond::header(headers, ETAG) else {
        return Ok(None);
    };
    let place = sealed::place(ETAG, &source.path());
    let etag = value_of(etag, keys.object()?, &place, true)?;
    Ok(Some(mac_of(
        active.object()?,
        &String::from_utf8_lossy(&etag),
    )))
}

/// Headers with the kept keys of an object whose PUT was under another secret than the active one.
fn kept_headers(
    source: &KeySource,
    headers: &HeaderMap,
    random: &Random,
) -> Result<Vec<(&'static str, String)>, CryptoError> {
    let Some(put) = of_put(headers)? else {
        return Ok(Vec::new());
    };
    let active = source.active_bound()?;
    let id = id_of(&put)?;
    if is_swifts(&put) || id.secret_id == active.id.secret_id {
        return Ok(Vec::new());
    }
    let keys = ObjectKeys::of(source, headers).keys(Some(id))?;
    let kept = Kept::seal(random, &source.path(), &active, &id.secret_id, &keys)?;
    let mac = etag_mac(source, headers, &keys, &active)?;
    let mac = mac.map(|mac| (KEPT_MAC, mac));
    Ok([(KEPT, kept)].into_iter().chain(mac).collect())
}

/// Headers of the POST that re-keys: all that a POST replaces, unchanged, the kept keys, and user
/// metadata encrypted anew.
fn posted(
    source: &KeySource,
    headers: &HeaderMap,
    random: &Random,
) -> Result<HeaderMap, CryptoError> {
    let no_time = || CryptoError::bad_meta("no time stands with the object");
    let time = respond::header_timestamp(headers, "x-backend-timestamp").ok_or_else(no_time)?;
    let offset = time.offset().checked_add(1).ok_or_else(no_time)?;
    let mut posted = HeaderMap::new();
    for (name, value) in headers {
        let text = name.as_str();
        let is_left = NOT_SENT_AGAIN.contains(&text)
            || text.starts_with("x-backend-")
            || text.starts_with("x-object-sysmeta-")
            || [KEPT, KEPT_MAC].contains(&text);
        if !is_left {
            posted.append(name, value.clone());
        }
    }
    encrypt_anew(source, headers, random, &mut posted)?;
    for (name, value) in kept_headers(source, headers, random)? {
        respond::set(&mut posted, name, value);
    }
    let time = time.with_offset(offset).internal();
    respond::set(&mut posted, "x-timestamp", time);
    Ok(posted)
}

/// Encrypts user metadata anew if it is under another secret than the active one.
fn encrypt_anew(
    source: &KeySource,
    headers: &HeaderMap,
    random: &Random,
    posted: &mut HeaderMap,
) -> Result<(), CryptoError> {
    let Some(text) = respond::header(headers, METADATA_META) else {
        return Ok(());
    };
    let before = CryptoMeta::load(text)?;
    let (id, active) = (id_of(&before)?, source.active_bound()?);
    if id.secret_id == active.id.secret_id {
        return Ok(());
    }
    let path = source.path();
    let keys = ObjectKeys::of(source, headers).keys(Some(id))?;
    let values = Values {
        random,
        path: Some(&path),
    };
    for (name, value) in headers {
        if !name.as_str().starts_with(METADATA_PREFIX) || value.is_empty() {
            continue;
        }
        let not_ascii = |_| CryptoError::bad_meta("a value of metadata is not ASCII");
        let value = value.to_str().map_err(not_ascii)?;
        let place = sealed::place(name.as_str(), &path);
        let plain = value_of(value, keys.object()?, &place, true)?;
        let (value, how) = values.encrypt(active.object()?, name.as_str(), &plain)?;
        respond::set(posted, name.as_str(), meta::append(&value, &how));
    }
    let common = CryptoMeta {
        cipher: Some(meta::GCM.to_owned()),
        key_id: Some(active.id),
        ..CryptoMeta::default()
    };
    respond::set(posted, METADATA_META, common.dump());
    Ok(())
}

/// The active secret, the secrets whose keys are kept under it, and the headers to add for others.
type ContainerPlan = (SecretId, Vec<SecretId>, Vec<(SecretId, String, String)>);

fn container_plan(
    source: &KeySource,
    headers: &HeaderMap,
    random: &Random,
) -> Result<ContainerPlan, CryptoError> {
    let active = source.active_bound()?;
    let kept = kept::of_container(source, headers);
    let mut ids: Vec<SecretId> = active
        .all_ids
        .iter()
        .map(|id| id.secret_id.clone())
        .collect();
    ids.extend(kept.keys().cloned());
    ids.sort();
    ids.dedup();
    let (mut covered, mut made) = (Vec::new(), Vec::new());
    for id in ids.into_iter().filter(|id| *id != active.id.secret_id) {
        let before = kept.get(&id);
        if before.is_some_and(|kept| kept.under == active.id.secret_id) {
            covered.push(id);
            continue;
        }
        let key = match before {
            Some(kept) => kept.key.clone(),
            None => {
                let named = KeyId {
                    secret_id: id.clone(),
                    ..active.id.clone()
                };
                source.keys(Some(&named))?.container()?.clone()
            }
        };
        let (name, value) = kept::seal_container(random, &source.path(), &active, &id, &key)?;
        made.push((id, name, value));
    }
    Ok((active.id.secret_id, covered, made))
}
