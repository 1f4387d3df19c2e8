//! Creation of symlinks: validates the target and stores it as system metadata.

use cairn_http::params::{is_true, quote, quote_path, unquote};
use cairn_http::{Context, Request, Response, respond};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};

use super::{
    BACKEND_ALLOW_RESERVED, SOURCE, STORED_ACCOUNT, STORED_BYTES, STORED_ETAG, STORED_TARGET,
    Symlink, TARGET, TARGET_ACCOUNT, TARGET_BYTES, TARGET_ETAG, Walk,
};
use crate::api_path::{ObjectPath, account_header, path_header, refuse, set};
use crate::cause::{Cause, drain};
use crate::status;
use crate::trust::{self, LatestVersionLink};

const MD5_OF_NOTHING: &str = "d41d8cd98f00b204e9800998ecf8427e";
/// Hash in the container's row, instead of the object's own ETag.
const ROW_HASH: HeaderName =
    HeaderName::from_static("x-object-sysmeta-container-update-override-etag");
const SLO_ETAG: &str = "x-object-sysmeta-slo-etag";
const SLO_SIZE: &str = "x-object-sysmeta-slo-size";
const BAD_TARGET: &str =
    "X-Symlink-Target header must be of the form <container name>/<object name>";

/// Context in the extensions of a PUT that a filter makes with its own authority for a client: a
/// static link's target is checked with this authority.
#[derive(Clone)]
pub(crate) struct AskedBy(pub(crate) Context);

/// Removes the marks of a trusted link, unless the filter that makes such links requested them.
/// Daemons, which request reserved names themselves, move objects with all their metadata.
pub(super) fn without_marks(mut request: Request) -> Request {
    let is_version_link = request.extensions_mut().remove::<LatestVersionLink>();
    if !Context::of_request(&request).allow_reserved {
        trust::strip(request.headers_mut());
    }
    if is_version_link.is_some() {
        trust::mark(request.headers_mut());
    }
    request
}

impl Symlink {
    pub(super) async fn put(&self, request: Request) -> Response {
        match self.checked_put(request).await {
            Ok(request) => self.next.call(request).await,
            Err(refused) => refused,
        }
    }

    async fn checked_put(&self, request: Request) -> Result<Request, Response> {
        let (mut parts, mut body) = request.into_parts();
        let Some(link) = ObjectPath::of(parts.uri.path()) else {
            // The encoded slash did not make this an object's path.
            return Ok(Request::from_parts(parts, body));
        };
        refuse_content(&parts.headers, &mut body).await?;
        let (target, etag) = read_headers(&mut parts, &link)?;
        match etag {
            Some(etag) if Context::of(&parts).symlink_override => {
                set(&mut parts.headers, STORED_ETAG, &etag);
                if let Some(bytes) = parts.headers.remove(TARGET_BYTES) {
                    parts.headers.insert(STORED_BYTES, bytes);
                }
            }
            Some(etag) => self.check_target(&mut parts, &target, etag).await?,
            None => {}
        }
        for (given, stored) in [(TARGET, STORED_TARGET), (TARGET_ACCOUNT, STORED_ACCOUNT)] {
            if let Some(value) = parts.headers.remove(given) {
                parts.headers.insert(stored, value);
            }
        }
        let hash = row_hash(&parts.headers);
        set(&mut parts.headers, ROW_HASH, &hash);
        Ok(Request::from_parts(parts, body))
    }

    /// Checks that a static link's target exists and has that ETag.
    async fn check_target(
        &self,
        parts: &mut Parts,
        target: &ObjectPath,
        etag: String,
    ) -> Result<(), Response> {
        let path = target.path();
        let mut cause = Cause::of_parts(parts);
        let asked_by = parts.extensions.get::<AskedBy>().cloned();
        let reserved = respond::header(&parts.headers, BACKEND_ALLOW_RESERVED.as_str());
        let reserved = asked_by.is_none() && reserved.is_some_and(is_true);
        if let Some(AskedBy(context)) = asked_by {
            cause.context = context;
        }
        let mut head = cause.for_client(SOURCE, Method::HEAD, &path, "")?;
        if reserved {
            set(head.headers_mut(), BACKEND_ALLOW_RESERVED, "true");
        }
        let walk = Walk {
            steps: 0,
            all_steps: 0,
            at: Some(quote_path(&path)),
            expected: Some(etag.clone()),
            follows_dynamic: false,
        };
        let response = self.walk(head, walk).await;
        let found = response.headers().clone();
        let status = response.status();
        if status == StatusCode::CONFLICT {
            return Err(response);
        }
        drain(response).await;
        if status == StatusCode::NOT_FOUND {
            let mut refused =
                respond::text(StatusCode::CONFLICT, "X-Symlink-Target does not exist");
            if let Some(at) = found.get("content-location") {
                refused.headers_mut().insert("content-location", at.clone());
            }
            return Err(refused);
        }
        if !status.is_success() {
            return Err(respond::standard(status));
        }
        take_over(&mut parts.headers, &found, &etag);
        Ok(())
    }
}

async fn refuse_content(headers: &HeaderMap, body: &mut cairn_http::Body) -> Result<(), Response> {
    let refusal = || {
        respond::text(
            StatusCode::BAD_REQUEST,
            "Symlink requests require a zero byte body",
        )
    };
    match respond::header(headers, CONTENT_LENGTH.as_str()) {
        Some(length) if length.trim().parse() == Ok(0u64) => Ok(()),
        Some(_) => Err(refusal()),
        None => match body.next_chunk().await {
            None => Ok(()),
            Some(Ok(_)) => Err(refusal()),
            Some(Err(error)) => Err(status::broken_body(&error)),
        },
    }
}

/// The target, and its expected ETag. The headers are normalised to their stored form.
fn read_headers(
    parts: &mut Parts,
    link: &ObjectPath,
) -> Result<(ObjectPath, Option<String>), Response> {
    let has_slash = respond::header(&parts.headers, TARGET.as_str())
        .and_then(|value| unquote(value).ok())
        .is_some_and(|value| value.starts_with('/'));
    if has_slash {
        return Err(refuse(BAD_TARGET));
    }
    let (container, object) = path_header(parts, &TARGET, BAD_TARGET)?;
    let quoted = quote_path(&format!("{container}/{object}"));
    set(&mut parts.headers, TARGET, &quoted);
    let account = match parts.headers.get(TARGET_ACCOUNT) {
        None => link.account.clone(),
        Some(value) => {
            let account = account_header(value)?;
            set(&mut parts.headers, TARGET_ACCOUNT, &quote(&account));
            account
        }
    };
    let target = ObjectPath {
        version: "v1".into(),
        account,
        container,
        object,
    };
    let bad = |text: String| respond::text(StatusCode::BAD_REQUEST, text);
    let is_itself = target.account == link.account
        && target.container == link.container
        && target.object == link.object;
    if is_itself {
        return Err(bad("Symlink cannot target itself".into()));
    }
    let etag = respond::header(&parts.headers, TARGET_ETAG.as_str())
        .map(|etag| unquoted(etag).to_owned())
        .filter(|etag| !etag.is_empty());
    // It becomes a parameter of the row's hash.
    if etag.as_ref().is_some_and(|e| e.contains([';', '"', '\\'])) {
        return Err(bad("Bad X-Symlink-Target-Etag format".into()));
    }
    let has_type = parts
        .headers
        .get(CONTENT_TYPE)
        .is_some_and(|v| !v.is_empty());
    if etag.is_none() && !has_type {
        set(&mut parts.headers, CONTENT_TYPE, "application/symlink");
    }
    Ok((target, etag))
}

/// An ETag without surrounding quotes.
fn unquoted(etag: &str) -> &str {
    etag.strip_prefix('"')
        .and_then(|etag| etag.strip_suffix('"'))
        .unwrap_or(etag)
}

/// Copies the target's size, type, and parameters of its row to a static link.
fn take_over(headers: &mut HeaderMap, found: &HeaderMap, etag: &str) {
    let of_target = |name: &str| respond::header(found, name);
    if !headers.contains_key(ROW_HASH) {
        let notes = of_target(ROW_HASH.as_str())
            .and_then(|hash| hash.split_once(';'))
            .map(|(_, notes)| format!(";{notes}"))
            .or_else(|| of_target(SLO_ETAG).map(|etag| format!("; slo_etag={etag}")));
        if let Some(notes) = notes {
            set(headers, ROW_HASH, &format!("{MD5_OF_NOTHING}{notes}"));
        } else if let Some(hash) = of_target(ROW_HASH.as_str())
            && !hash.is_empty()
        {
            set(headers, ROW_HASH, MD5_OF_NOTHING);
        }
    }
    let bytes = of_target(SLO_SIZE)
        .or_else(|| of_target(CONTENT_LENGTH.as_str()))
        .unwrap_or("0");
    set(headers, STORED_BYTES, bytes);
    set(headers, STORED_ETAG, etag);
    let has_type = headers.get(CONTENT_TYPE).is_some_and(|v| !v.is_empty());
    if let (false, Some(content_type)) = (has_type, found.get(CONTENT_TYPE)) {
        headers.insert(CONTENT_TYPE, content_type.clone());
    }
}

/// The hash of empty content, with the link's parameters for listings.
fn row_hash(headers: &HeaderMap) -> String {
    let text = |name: HeaderName| respond::header(headers, name.as_str());
    let mut hash = text(ROW_HASH).unwrap_or(MD5_OF_NOTHING).to_owned();
    for (param, name) in [
        ("symlink_target", STORED_TARGET),
        ("symlink_target_account", STORED_ACCOUNT),
        ("symlink_target_etag", STORED_ETAG),
    ] {
        if let Some(value) = text(name) {
            hash.push_str(&format!("; {param}={value}"));
        }
    }
    if text(STORED_ETAG).is_some() {
        let bytes = text(STORED_BYTES).unwrap_or("0");
        hash.push_str(&format!("; symlink_target_bytes={bytes}"));
    }
    hash
}
