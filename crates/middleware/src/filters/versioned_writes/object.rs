//! Objects in containers with versions: a write creates a version and makes the object a link to
//! it; a DELETE adds a marker to the versions.

use std::sync::Arc;

use cairn_http::params::{Params, is_true, quote_path, split_path, unquote};
use cairn_http::{Body, Context, Request, Response, respond};
use cairn_types::Timestamp;
use http::header::{
    CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderName, IF_NONE_MATCH, LOCATION, TRANSFER_ENCODING,
};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};

use super::copies::{Copies, override_content_type, written_at};
use super::object_versioning::{
    OBJECT_VERSION_ID, ObjectVersioning, SOURCE, is_enabled, versions_container,
};
use super::{DELETE_MARKER, authorize, without_condition};
use crate::api_path::{ObjectPath, set};
use crate::cause::{Cause, drain};
use crate::filters::symlink::{
    AskedBy, BACKEND_ALLOW_RESERVED, STORED_BYTES, STORED_ETAG, TARGET, TARGET_ACCOUNT,
};
use crate::header_params;
use crate::status;
use crate::trust::{LatestVersionLink, VERSIONS_SYMLINK};
use crate::version_names;
use crate::watch::{Received, count};

const X_TIMESTAMP: HeaderName = HeaderName::from_static("x-timestamp");
const CONTENT_LOCATION: HeaderName = HeaderName::from_static("content-location");
pub(super) const BACKEND_CONTENT_TYPE: HeaderName =
    HeaderName::from_static("x-backend-content-type");
const SLO_SIZE: &str = "x-object-sysmeta-slo-size";
/// Expiry applies to the link only: versions stay.
const EXPIRY: [&str; 2] = ["x-delete-at", "x-delete-after"];
/// Headers that describe the content, which a link does not have.
const NOT_OF_LINKS: [&str; 7] = [
    "etag",
    "x-if-delete-at",
    "x-object-manifest",
    "x-static-large-object",
    "x-object-sysmeta-slo-etag",
    SLO_SIZE,
    "transfer-encoding",
];

/// An object in a container with versions.
pub(super) struct Versioned<'v> {
    pub(super) filter: &'v ObjectVersioning,
    pub(super) path: ObjectPath,
    /// The container of the versions.
    pub(super) versions: String,
    pub(super) write_acl: Option<String>,
}

/// Description of the version that a link stands for.
pub(super) struct Latest {
    /// The version's name in the versions container.
    pub(super) name: String,
    pub(super) etag: String,
    pub(super) bytes: String,
    pub(super) content_type: String,
}

impl ObjectVersioning {
    pub(super) async fn object(&self, request: Request, path: ObjectPath) -> Response {
        let context = Context::of_request(&request);
        let info = self
            .info_source
            .container(&context, &path.account, &path.container)
            .await;
        let id = match version_id(&request) {
            Ok(id) => id,
            Err(refused) => return refused,
        };
        let versions = versions_container(&info);
        let enabled = is_enabled(&info);
        let versioned = versions.map(|versions| Versioned {
            filter: self,
            path,
            versions,
            write_acl: info.write_acl.clone(),
        });
        // While versioning is suspended, an object is replaced like any other.
        let request = match versioned.is_some() && (enabled || id.is_some()) {
            true => match without_condition(request, info.write_acl.as_deref()).await {
                Ok(request) => request,
                Err(refused) => return refused,
            },
            false => request,
        };
        let answer = match (id, versioned) {
            (Some(id), versioned) => {
                Box::pin(self.with_version_id(request, &id, versioned, &info)).await
            }
            (None, None) => Ok(self.next.call(request).await),
            (None, Some(versioned)) => match *request.method() {
                Method::PUT if enabled => Box::pin(versioned.put(request)).await,
                Method::DELETE if enabled => Box::pin(versioned.delete(request)).await,
                Method::PUT | Method::DELETE => Ok(self.next.call(request).await),
                Method::POST => Box::pin(versioned.post(request)).await,
                _ => Ok(Box::pin(versioned.read(request)).await),
            },
        };
        answer.unwrap_or_else(|refused| refused)
    }
}

fn version_id(request: &Request) -> Result<Option<String>, Response> {
    let Some(query) = request.uri().query().filter(|q| q.contains("version-id")) else {
        return Ok(None);
    };
    let params = Params::parse(Some(query)).map_err(|_| {
        respond::text(
            StatusCode::BAD_REQUEST,
            "\"version-id\" parameter not valid UTF-8",
        )
    })?;
    let id = params.get("version-id").filter(|id| !id.is_empty());
    Ok(id.map(str::to_owned))
}

impl Versioned<'_> {
    /// The path of a version.
    pub(super) fn version_path(&self, name: &str) -> String {
        let ObjectPath {
            version, account, ..
        } = &self.path;
        format!("/{version}/{account}/{}/{name}", self.versions)
    }

    pub(super) fn version_name(&self, version: Timestamp) -> Result<String, Response> {
        // The proxy would refuse a name with a NUL alike.
        version_names::version_name(&self.path.object, version).ok_or_else(|| {
            respond::text(
                StatusCode::PRECONDITION_FAILED,
                "Invalid UTF8 or contains NULL",
            )
        })
    }

    async fn put(&self, request: Request) -> Result<Response, Response> {
        let (mut parts, body) = request.into_parts();
        self.keep_current(&parts).await?;
        let timestamp = self.stamp(&mut parts)?;
        let latest = self.put_version(&mut parts, body, timestamp).await?;
        let path = self.version_path(&latest.name);
        let cause = Cause::of_parts(&parts);
        let is_conditional = parts.headers.contains_key(IF_NONE_MATCH);
        let linked = self.put_link(parts, latest).await?;
        if is_conditional && status::is_refused_condition(linked.status()) {
            let mut delete = cause.pre_authorized(SOURCE, Method::DELETE, &path, "")?;
            set(delete.headers_mut(), BACKEND_ALLOW_RESERVED, "true");
            drain(self.filter.next.call(delete).await).await;
        }
        Ok(linked)
    }

    async fn delete(&self, request: Request) -> Result<Response, Response> {
        let (mut parts, body) = request.into_parts();
        self.keep_current(&parts).await?;
        let timestamp = self.stamp(&mut parts)?;
        let name = self.version_name(timestamp.with_offset(0))?;
        let cause = Cause::of_parts(&parts);
        let path = self.version_path(&name);
        let mut marker = cause.pre_authorized(SOURCE, Method::PUT, &path, "")?;
        let headers = marker.headers_mut();
        set(headers, CONTENT_TYPE, DELETE_MARKER);
        set(headers, CONTENT_LENGTH, "0");
        set(headers, BACKEND_ALLOW_RESERVED, "true");
        set(headers, X_TIMESTAMP, &timestamp.internal());
        override_content_type(&mut marker);
        let marked = check(self.filter.next.call(marker).await)?;
        drain(marked).await;
        // The previous object has been saved and the marker written: now the object may be removed.
        let gone = Request::from_parts(parts, body);
        let mut response = self.filter.next.call(gone).await;
        if response.status().is_success() || response.status() == StatusCode::NOT_FOUND {
            let headers = response.headers_mut();
            tell_version(headers, &name);
            set(headers, BACKEND_CONTENT_TYPE, DELETE_MARKER);
        }
        Ok(response)
    }

    /// A POST that finds a link is forwarded to the version.
    async fn post(&self, request: Request) -> Result<Response, Response> {
        let cause = Cause::of_request(&request);
        let mut headers = request.headers().clone();
        for name in EXPIRY {
            headers.remove(name);
        }
        let response = self.filter.next.call(request).await;
        let is_link = respond::header(response.headers(), VERSIONS_SYMLINK.as_str());
        if response.status() != StatusCode::TEMPORARY_REDIRECT || !is_link.is_some_and(is_true) {
            return Ok(response);
        }
        let location = respond::header(response.headers(), LOCATION.as_str())
            .and_then(|location| unquote(location).ok())
            .and_then(|location| split_object_path(&location))
            .filter(|(account, container, name)| {
                *account == self.path.account
                    && *container == self.versions
                    && version_names::parse_version_name(name).0 == self.path.object
            });
        let Some((_, _, name)) = location else {
            return Ok(response);
        };
        drain(response).await;
        let path = self.version_path(&name);
        let mut post = cause.pre_authorized(SOURCE, Method::POST, &path, "")?;
        *post.headers_mut() = headers;
        set(post.headers_mut(), BACKEND_ALLOW_RESERVED, "true");
        Ok(self.filter.next.call(post).await)
    }

    /// GET, HEAD, OPTIONS: adds the version's id, and shows hidden names in their client form.
    async fn read(&self, request: Request) -> Response {
        let mut response = self.filter.next.call(request).await;
        let headers = response.headers_mut();
        let decoded = |name: HeaderName| {
            let text = respond::header(headers, name.as_str())?;
            unquote(text).ok()
        };
        let location = decoded(CONTENT_LOCATION)
            .and_then(|location| split_object_path(&location))
            .filter(|(account, container, _)| {
                *account == self.path.account && *container == self.versions
            });
        let target = decoded(TARGET)
            .and_then(|target| {
                let (container, name) = target.split_once('/')?;
                Some((container.to_owned(), name.to_owned()))
            })
            .filter(|(container, _)| *container == self.versions);
        set(headers, OBJECT_VERSION_ID, "null");
        let ObjectPath {
            container, object, ..
        } = &self.path;
        if let Some(id) =
            location.and_then(|(_, _, name)| version_names::parse_version_name(&name).1)
        {
            set(headers, OBJECT_VERSION_ID, &id);
            let path = quote_path(&self.path.path());
            set(
                headers,
                CONTENT_LOCATION,
                &format!("{path}?version-id={id}"),
            );
        }
        if let Some(id) = target.and_then(|(_, name)| version_names::parse_version_name(&name).1) {
            set(headers, OBJECT_VERSION_ID, &id);
            let path = quote_path(&format!("{container}/{object}"));
            set(headers, TARGET, &format!("{path}?version-id={id}"));
        }
        response
    }

    /// Saves an object from before versioning as a version, before it is overwritten.
    async fn keep_current(&self, parts: &Parts) -> Result<(), Response> {
        authorize(parts, self.write_acl.as_deref()).await?;
        let cause = Cause::of_parts(parts);
        let copies = Copies {
            next: &self.filter.next,
            cause: &cause,
            source: SOURCE,
            max_file_size: self.filter.constraints.max_file_size,
            reserved: true,
        };
        let current = copies.get(&self.path.path()).await?;
        if current.status() == StatusCode::NOT_FOUND {
            drain(current).await;
            return Ok(());
        }
        let current = check(current)?;
        if respond::header(current.headers(), VERSIONS_SYMLINK.as_str()) == Some("true") {
            drain(current).await;
            return Ok(());
        }
        let Some(written) = written_at(&current, &["x-backend-timestamp", "x-timestamp"]) else {
            return Err(status::unavailable());
        };
        let name = self.version_name(written.with_offset(0))?;
        let kept = copies.put(&self.version_path(&name), current).await?;
        if kept.status() == StatusCode::NOT_FOUND {
            return Err(no_versions_container());
        }
        drain(check(kept)?).await;
        Ok(())
    }

    /// The request's timestamp, assigned here if it has none: version and link share it.
    fn stamp(&self, parts: &mut Parts) -> Result<Timestamp, Response> {
        if let Some(text) = respond::header(&parts.headers, X_TIMESTAMP.as_str()) {
            return Timestamp::parse(text).map_err(|_| {
                let text =
                    format!("X-Timestamp should be a UNIX timestamp float value; was {text:?}");
                respond::text(StatusCode::BAD_REQUEST, text)
            });
        }
        let timestamp = self.filter.clock.unique();
        set(&mut parts.headers, X_TIMESTAMP, &timestamp.internal());
        Ok(timestamp)
    }

    /// Stores the client's upload as a version.
    async fn put_version(
        &self,
        parts: &mut Parts,
        body: Body,
        timestamp: Timestamp,
    ) -> Result<Latest, Response> {
        let name = self.version_name(timestamp.with_offset(0))?;
        let cause = Cause::of_parts(parts);
        let path = self.version_path(&name);
        let mut put = cause.pre_authorized(SOURCE, Method::PUT, &path, "")?;
        *put.headers_mut() = parts.headers.clone();
        for name in EXPIRY {
            put.headers_mut().remove(name);
        }
        // A version's name is new; the condition applies to the link.
        put.headers_mut().remove(IF_NONE_MATCH);
        set(put.headers_mut(), BACKEND_ALLOW_RESERVED, "true");
        put.extensions_mut().insert(AskedBy(cause.context.clone()));
        let announced = body.length();
        let received = Arc::new(Received::default());
        *put.body_mut() = count(body, &received);
        let response = self.filter.next.call(put).await;
        if response.status() == StatusCode::NOT_FOUND {
            return Err(no_versions_container());
        }
        let response = check(response)?;
        let text =
            |headers: &HeaderMap, name: &str| respond::header(headers, name).map(str::to_owned);
        let content_type = text(response.headers(), BACKEND_CONTENT_TYPE.as_str())
            .or_else(|| text(&parts.headers, CONTENT_TYPE.as_str()))
            .unwrap_or_else(|| "application/octet-stream".into());
        let etag = text(response.headers(), ETAG.as_str()).unwrap_or_default();
        let bytes = text(&parts.headers, SLO_SIZE)
            .filter(|size| !size.is_empty())
            .unwrap_or_else(|| announced.unwrap_or(received.bytes()).to_string());
        drain(response).await;
        Ok(Latest {
            name,
            etag,
            bytes,
            content_type: header_params::split(&content_type).0.to_owned(),
        })
    }

    /// Makes the object a link to a version.
    pub(super) async fn put_link(
        &self,
        mut parts: Parts,
        latest: Latest,
    ) -> Result<Response, Response> {
        // Slightly later than the version, if both have the same time.
        let timestamp = self.stamp(&mut parts)?;
        let timestamp = timestamp.with_offset(timestamp.offset().saturating_add(1));
        let target = quote_path(&format!("{}/{}", self.versions, latest.name));
        let headers = &mut parts.headers;
        for name in NOT_OF_LINKS {
            headers.remove(name);
        }
        headers.remove(TARGET_ACCOUNT);
        headers.remove(TRANSFER_ENCODING);
        for (name, value) in [
            (X_TIMESTAMP, timestamp.internal().as_str()),
            (STORED_ETAG, &latest.etag),
            (STORED_BYTES, &latest.bytes),
            (CONTENT_TYPE, &latest.content_type),
            (CONTENT_LENGTH, "0"),
            (TARGET, &target),
            (BACKEND_ALLOW_RESERVED, "true"),
        ] {
            set(headers, name, value);
        }
        let mut context = Context::of(&parts);
        context.source = Some(SOURCE);
        context.content_type_overridden = false;
        parts.extensions.insert(context);
        parts.extensions.insert(LatestVersionLink);
        let link = Request::from_parts(parts, Body::empty());
        let mut response = self.filter.next.call(link).await;
        set(response.headers_mut(), ETAG, &latest.etag);
        tell_version(response.headers_mut(), &latest.name);
        Ok(response)
    }
}

/// Sets `X-Object-Version-Id` from a version's name.
fn tell_version(headers: &mut HeaderMap, name: &str) {
    if let (_, Some(id)) = version_names::parse_version_name(name) {
        set(headers, OBJECT_VERSION_ID, &id);
    }
}

/// Account, container and object of a decoded path.
fn split_object_path(path: &str) -> Option<(String, String, String)> {
    match split_path(path, 4, 4, true)?[..] {
        [_, Some(account), Some(container), Some(object)] => {
            Some((account.to_owned(), container.to_owned(), object.to_owned()))
        }
        _ => None,
    }
}

/// Converts the refusal of one of the filter's own requests for the client.
pub(super) fn check(response: Response) -> Result<Response, Response> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    if status == StatusCode::NOT_FOUND {
        return Err(respond::standard(StatusCode::PRECONDITION_FAILED));
    }
    if status.is_client_error() {
        return Err(response);
    }
    // The previous object could not be saved, so it must not be overwritten.
    Err(status::unavailable())
}

pub(super) fn no_versions_container() -> Response {
    respond::text(
        StatusCode::INTERNAL_SERVER_ERROR,
        "The versions container does not exist. You may want to re-enable object versioning.",
    )
}
