//! Versioned writes, the older mode: a container names another container, to which objects are
//! copied before they are overwritten or deleted.
//!
//! * *stack* (`X-Versions-Location`): a PUT pushes, a DELETE pops (`legacy_delete.rs`);
//! * *history* (`X-History-Location`): both push, and a DELETE adds a marker.
//!
//! The container has `X-Container-Sysmeta-Versions-Location` and `-Versions-Mode`; one from before
//! system metadata existed has `X-Versions-Location` itself. A version is named `<length of the
//! object's name, three hex digits><name>/<timestamp>`.

use std::sync::Arc;

use cairn_http::params::unquote;
use cairn_http::{
    Clock, ContainerInfo, Context, Handler, InfoSource, Request, Response, Service, ServiceFuture,
    respond,
};
use cairn_types::{Constraints, Timestamp};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, StatusCode};

use super::copies::{Copies, override_content_type, written_at};
use super::{DELETE_MARKER, authorize, without_condition};
use crate::FilterEnv;
use crate::api_path::{ApiPath, ObjectPath, names_object, refuse, set};
use crate::cause::{Cause, drain};
use crate::status;

pub(super) const SOURCE: &str = "VW";
pub(super) const VERSIONS_LOCATION: HeaderName = HeaderName::from_static("x-versions-location");
pub(super) const HISTORY_LOCATION: HeaderName = HeaderName::from_static("x-history-location");
const REMOVE: [HeaderName; 2] = [
    HeaderName::from_static("x-remove-versions-location"),
    HeaderName::from_static("x-remove-history-location"),
];
const STORED_LOCATION: HeaderName =
    HeaderName::from_static("x-container-sysmeta-versions-location");
const STORED_MODE: HeaderName = HeaderName::from_static("x-container-sysmeta-versions-mode");

pub(super) struct VersionedWrites {
    pub(super) next: Handler,
    pub(super) info_source: Arc<dyn InfoSource>,
    pub(super) constraints: Arc<Constraints>,
    clock: Clock,
    /// `allow_versioned_writes`. If unset, only containers with the oldest form of the setting have
    /// versions.
    allowed: Option<bool>,
}

impl VersionedWrites {
    pub(super) fn new(next: Handler, env: &FilterEnv, allowed: Option<bool>) -> Self {
        VersionedWrites {
            next,
            info_source: env.info_source.clone(),
            constraints: env.constraints.clone(),
            clock: env.clock.clone(),
            allowed,
        }
    }
}

impl Service for VersionedWrites {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        let method = request.method();
        let writes = method == Method::PUT || method == Method::DELETE;
        let raw = request.uri().path();
        // Reads, the majority of requests, are passed on.
        let path = if writes || !names_object(raw) {
            ApiPath::of(raw)
        } else {
            None
        };
        match path {
            Some(ApiPath {
                version,
                account,
                container: Some(container),
                object: Some(object),
            }) if writes => {
                let path = ObjectPath {
                    version,
                    account,
                    container,
                    object,
                };
                Box::pin(self.object(request, path))
            }
            Some(ApiPath {
                container: Some(_),
                object: None,
                ..
            }) if self.allowed.is_some() => Box::pin(self.container(request)),
            _ => self.next.call(request),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Stack,
    History,
}

/// An object whose versions are kept.
pub(super) struct Kept<'k> {
    pub(super) filter: &'k VersionedWrites,
    pub(super) path: ObjectPath,
    /// The container of the versions.
    pub(super) versions: String,
    pub(super) write_acl: Option<String>,
}

impl VersionedWrites {
    /// Converts the client's headers to the stored form, and back.
    async fn container(&self, mut request: Request) -> Response {
        let writes = request.method() == Method::PUT || request.method() == Method::POST;
        if let Err(refused) = self.store_location(request.headers_mut(), writes) {
            return refused;
        }
        let mut response = self.next.call(request).await;
        let headers = response.headers_mut();
        if let Some(location) = headers.get(STORED_LOCATION).filter(|v| !v.is_empty()) {
            let location = location.clone();
            let is_history = headers.get(STORED_MODE).is_some_and(|v| v == "history");
            let shown = if is_history {
                HISTORY_LOCATION
            } else {
                VERSIONS_LOCATION
            };
            headers.insert(shown, location);
        }
        response
    }

    fn store_location(&self, headers: &mut HeaderMap, writes: bool) -> Result<(), Response> {
        let empty = HeaderValue::from_static("");
        let is_empty = |headers: &HeaderMap, name: HeaderName| {
            headers.get(name).is_some_and(HeaderValue::is_empty)
        };
        if headers.contains_key(VERSIONS_LOCATION) && headers.contains_key(HISTORY_LOCATION) {
            if is_empty(headers, HISTORY_LOCATION) {
                headers.remove(HISTORY_LOCATION);
            } else if is_empty(headers, VERSIONS_LOCATION) {
                headers.remove(VERSIONS_LOCATION);
            } else {
                return Err(respond::text(
                    StatusCode::BAD_REQUEST,
                    "Only one of x-versions-location or x-history-location may be specified",
                ));
            }
        }
        let given = headers
            .get(VERSIONS_LOCATION)
            .map(|location| (location.clone(), "stack"))
            .or_else(|| Some((headers.get(HISTORY_LOCATION)?.clone(), "history")));
        let mut removes = REMOVE
            .iter()
            .any(|name| headers.get(name).is_some_and(|v| !v.is_empty()));
        if let Some((location, mode)) = given {
            if location.is_empty() {
                removes = true;
            } else if self.allowed != Some(true) && writes {
                return Err(refuse("Versioned Writes is disabled"));
            } else if location.as_bytes().contains(&b'/') {
                return Err(refuse("Container name cannot contain slashes"));
            } else {
                headers.insert(STORED_LOCATION, location);
                headers.insert(STORED_MODE, HeaderValue::from_static(mode));
                // The container's setting is in the oldest form.
                headers.insert(VERSIONS_LOCATION, empty.clone());
                removes = false;
            }
        }
        for name in REMOVE {
            headers.remove(name);
        }
        if removes {
            for name in [VERSIONS_LOCATION, STORED_LOCATION, STORED_MODE] {
                headers.insert(name, empty.clone());
            }
        }
        Ok(())
    }

    async fn object(&self, request: Request, path: ObjectPath) -> Response {
        let context = Context::of_request(&request);
        let info = self
            .info_source
            .container(&context, &path.account, &path.container)
            .await;
        let Some((versions, mode)) = self.location(&info) else {
            return self.next.call(request).await;
        };
        let request = match without_condition(request, info.write_acl.as_deref()).await {
            Ok(request) => request,
            Err(refused) => return refused,
        };
        let kept = Kept {
            filter: self,
            path,
            versions,
            write_acl: info.write_acl.clone(),
        };
        let answer = match (request.method() == Method::PUT, mode) {
            (true, _) => kept.put(request).await,
            (false, Mode::History) => kept.push_marker(request).await,
            (false, Mode::Stack) => kept.pop(request).await,
        };
        answer.unwrap_or_else(|refused| refused)
    }

    /// Container of the versions, and the mode.
    fn location(&self, info: &ContainerInfo) -> Option<(String, Mode)> {
        let filled = |text: Option<&String>| text.filter(|text| !text.is_empty()).cloned();
        let (location, allowed) = match filled(info.sysmeta.get("versions-location")) {
            Some(location) => (location, self.allowed == Some(true)),
            None => (filled(info.versions.as_ref())?, self.allowed != Some(false)),
        };
        let is_history = info
            .sysmeta
            .get("versions-mode")
            .is_some_and(|m| m == "history");
        let location = unquote(&location).ok()?;
        let versions = location.split('/').next().unwrap_or("");
        let mode = if is_history {
            Mode::History
        } else {
            Mode::Stack
        };
        (allowed && !versions.is_empty()).then(|| (versions.to_owned(), mode))
    }
}

impl Kept<'_> {
    pub(super) fn copies<'c>(&'c self, cause: &'c Cause) -> Copies<'c> {
        Copies {
            next: &self.filter.next,
            cause,
            source: SOURCE,
            max_file_size: self.filter.constraints.max_file_size,
            reserved: false,
        }
    }

    /// Prefix of the names of all versions of this object.
    pub(super) fn prefix(&self) -> String {
        let object = &self.path.object;
        format!("{:03x}{object}/", object.len())
    }

    pub(super) fn version_path(&self, name: &str) -> String {
        let ObjectPath {
            version, account, ..
        } = &self.path;
        format!("/{version}/{account}/{}/{name}", self.versions)
    }

    fn version_at(&self, time: Timestamp) -> String {
        self.version_path(&format!("{}{}", self.prefix(), time.internal()))
    }

    async fn put(&self, request: Request) -> Result<Response, Response> {
        let (parts, body) = request.into_parts();
        self.push_current(&parts).await?;
        Ok(self
            .filter
            .next
            .call(Request::from_parts(parts, body))
            .await)
    }

    async fn push_marker(&self, request: Request) -> Result<Response, Response> {
        let (parts, body) = request.into_parts();
        self.push_current(&parts).await?;
        let cause = Cause::of_parts(&parts);
        let path = self.version_at(self.filter.clock.unique());
        let mut marker = cause.pre_authorized(SOURCE, Method::PUT, &path, "")?;
        set(marker.headers_mut(), CONTENT_TYPE, DELETE_MARKER);
        set(marker.headers_mut(), CONTENT_LENGTH, "0");
        override_content_type(&mut marker);
        drain(check(self.filter.next.call(marker).await)?).await;
        Ok(self
            .filter
            .next
            .call(Request::from_parts(parts, body))
            .await)
    }

    /// Copies the current object, if there is one, to its versions.
    async fn push_current(&self, parts: &Parts) -> Result<(), Response> {
        authorize(parts, self.write_acl.as_deref()).await?;
        let cause = Cause::of_parts(parts);
        let copies = self.copies(&cause);
        let current = copies.get(&self.path.path()).await?;
        if current.status() == StatusCode::NOT_FOUND {
            drain(current).await;
            return Ok(());
        }
        let current = check(current)?;
        let Some(written) = written_at(&current, &["x-timestamp"]) else {
            return Err(status::unavailable());
        };
        let pushed = copies.put(&self.version_at(written), current).await?;
        drain(check(pushed)?).await;
        Ok(())
    }
}

/// Converts the refusal of one of the filter's own requests for the client.
pub(super) fn check(response: Response) -> Result<Response, Response> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    Err(respond::standard(if status.is_client_error() {
        // The container does not exist, or may not be used.
        StatusCode::PRECONDITION_FAILED
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }))
}
