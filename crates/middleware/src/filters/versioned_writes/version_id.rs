//! Requests with `?version-id=`: for one version of an object, or (`null`) for the object itself if
//! it is not a version. Also available while versioning is suspended.

use cairn_http::params::{split_path, unquote, with_path_and_query};
use cairn_http::{Body, ContainerInfo, Context, Request, Response, respond};
use cairn_types::Timestamp;
use http::header::{
    CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderName, HeaderValue, TRANSFER_ENCODING,
};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};

use super::object::{BACKEND_CONTENT_TYPE, Latest, Versioned, check, no_versions_container};
use super::object_versioning::{OBJECT_VERSION_ID, ObjectVersioning, SOURCE};
use super::{DELETE_MARKER, authorize};
use crate::api_path::set;
use crate::cause::{Cause, drain};
use crate::filters::symlink::{BACKEND_ALLOW_RESERVED, TARGET};
use crate::status;
use crate::trust::VERSIONS_SYMLINK;
use crate::version_names;

const CURRENT_VERSION_ID: HeaderName = HeaderName::from_static("x-object-current-version-id");

fn bad_request(message: &'static str) -> Response {
    respond::text(StatusCode::BAD_REQUEST, message)
}

fn parse(id: &str) -> Result<Timestamp, Response> {
    Timestamp::parse(id).map_err(|_| bad_request("Invalid version parameter"))
}

impl ObjectVersioning {
    pub(super) async fn with_version_id(
        &self,
        request: Request,
        id: &str,
        versioned: Option<Versioned<'_>>,
        info: &ContainerInfo,
    ) -> Result<Response, Response> {
        if request.method() == Method::POST {
            return Err(bad_request("POST to a specific version is not allowed"));
        }
        if id == "null" {
            return match *request.method() {
                Method::PUT => Err(bad_request("Invalid version parameter")),
                Method::GET | Method::HEAD => Ok(self.read_null(request).await),
                _ => Ok(self.next.call(request).await),
            };
        }
        let request = authorized(request, info).await?;
        let Some(versioned) = versioned else {
            return Err(bad_request(
                "version-aware operations require that the container is versioned",
            ));
        };
        let version = parse(id)?;
        match *request.method() {
            Method::OPTIONS => Ok(self.next.call(request).await),
            Method::DELETE => versioned.delete_version(request, id, version).await,
            Method::PUT => versioned.restore(request, version).await,
            _ => versioned.read_version(request, id, version).await,
        }
    }

    /// Reads the object, unless it stands for a version with an id.
    async fn read_null(&self, request: Request) -> Response {
        let mut response = self.next.call(request).await;
        if !response.status().is_success() {
            return response;
        }
        let location = respond::header(response.headers(), "content-location");
        let is_version = location
            .and_then(|location| unquote(location).ok())
            .is_some_and(|location| location.contains(&version_names::versions_container_prefix()));
        if is_version {
            return respond::standard(StatusCode::NOT_FOUND);
        }
        set(response.headers_mut(), OBJECT_VERSION_ID, "null");
        response
    }
}

/// The request, if the client is authorized for the object. Results of requests with the filter's
/// authority, and the existence of versions, would otherwise be visible in the response.
async fn authorized(request: Request, info: &ContainerInfo) -> Result<Request, Response> {
    let (parts, body) = request.into_parts();
    let acl = match parts.method {
        // Handled as without an id: the proxy applies the container's CORS rules.
        Method::OPTIONS => return Ok(Request::from_parts(parts, body)),
        Method::GET | Method::HEAD => &info.read_acl,
        _ => &info.write_acl,
    };
    authorize(&parts, acl.as_deref()).await?;
    Ok(Request::from_parts(parts, body))
}

impl Versioned<'_> {
    async fn read_version(
        &self,
        request: Request,
        id: &str,
        version: Timestamp,
    ) -> Result<Response, Response> {
        let (parts, _) = request.into_parts();
        let path = self.version_path(&self.version_name(version)?);
        let request = instead(&parts, &path, parts.uri.query())?;
        let mut response = self.filter.next.call(request).await;
        if response.status().is_success() {
            set(response.headers_mut(), OBJECT_VERSION_ID, id);
        }
        let text = |name: &HeaderName| respond::header(response.headers(), name.as_str());
        let content_type = text(&BACKEND_CONTENT_TYPE).or_else(|| text(&CONTENT_TYPE));
        if content_type == Some(DELETE_MARKER) {
            drain(response).await;
            let mut not_found = respond::standard(StatusCode::NOT_FOUND);
            set(not_found.headers_mut(), OBJECT_VERSION_ID, id);
            set(not_found.headers_mut(), CONTENT_TYPE, DELETE_MARKER);
            return Err(not_found);
        }
        Ok(response)
    }

    /// Makes an older version the latest.
    async fn restore(&self, request: Request, version: Timestamp) -> Result<Response, Response> {
        let (parts, mut body) = request.into_parts();
        refuse_content(&parts.headers, &mut body).await?;
        let name = self.version_name(version)?;
        let cause = Cause::of_parts(&parts);
        let path = self.version_path(&name);
        let mut head = cause.pre_authorized(SOURCE, Method::HEAD, &path, "symlink=get")?;
        set(head.headers_mut(), BACKEND_ALLOW_RESERVED, "true");
        let found = self.filter.next.call(head).await;
        if found.status() == StatusCode::NOT_FOUND {
            drain(found).await;
            return Err(self.no_such_version(&cause.context).await);
        }
        let found = check(found)?;
        let text = |name: HeaderName| {
            let text = respond::header(found.headers(), name.as_str());
            text.unwrap_or_default().to_owned()
        };
        let latest = Latest {
            name,
            etag: text(ETAG),
            bytes: text(CONTENT_LENGTH),
            content_type: text(CONTENT_TYPE),
        };
        drain(found).await;
        self.put_link(parts, latest).await
    }

    async fn no_such_version(&self, context: &Context) -> Response {
        let info_source = &self.filter.info_source;
        let info = info_source
            .container(context, &self.path.account, &self.versions)
            .await;
        if info.exists() {
            respond::text(
                StatusCode::NOT_FOUND,
                "The specified version does not exist",
            )
        } else {
            no_versions_container()
        }
    }

    /// Removes a version, and the link if it is the latest.
    async fn delete_version(
        &self,
        request: Request,
        id: &str,
        version: Timestamp,
    ) -> Result<Response, Response> {
        let (parts, _) = request.into_parts();
        let latest = self.latest(&parts).await?;
        let name = self.version_name(version)?;
        let mut current = latest
            .as_deref()
            .and_then(|l| version_names::parse_version_name(l).1);
        if latest.as_deref() == Some(&*name) {
            // The link is removed first: otherwise it would have no target.
            let link = instead(&parts, &self.path.path(), None)?;
            drain(check(self.filter.next.call(link).await)?).await;
            current = None;
        }
        let path = self.version_path(&name);
        let gone = instead(&parts, &path, parts.uri.query())?;
        let mut response = self.filter.next.call(gone).await;
        let headers = response.headers_mut();
        set(headers, OBJECT_VERSION_ID, id);
        set(
            headers,
            CURRENT_VERSION_ID,
            current.as_deref().unwrap_or("null"),
        );
        Ok(response)
    }

    /// The name of the version that the object stands for now, if any.
    async fn latest(&self, parts: &Parts) -> Result<Option<String>, Response> {
        let cause = Cause::of_parts(parts);
        let path = self.path.path();
        let mut head = cause.pre_authorized(SOURCE, Method::HEAD, &path, "symlink=get")?;
        let newest = HeaderValue::from_static("True");
        head.headers_mut().insert("x-newest", newest);
        let found = self.filter.next.call(head).await;
        if found.status() == StatusCode::NOT_FOUND {
            drain(found).await;
            return Ok(None);
        }
        let found = check(found)?;
        let text = |name: HeaderName| respond::header(found.headers(), name.as_str());
        let latest = text(TARGET)
            .filter(|_| text(VERSIONS_SYMLINK) == Some("true"))
            .and_then(|target| unquote(target).ok())
            .and_then(|target| {
                let target = format!("/{target}");
                match split_path(&target, 2, 2, true)?[..] {
                    [Some(container), Some(name)] if container == self.versions => {
                        Some(name.to_owned())
                    }
                    _ => None,
                }
            });
        drain(found).await;
        Ok(latest)
    }
}

async fn refuse_content(headers: &HeaderMap, body: &mut Body) -> Result<(), Response> {
    let refusal = || bad_request("PUT version-id requests require a zero byte body");
    if headers.contains_key(TRANSFER_ENCODING) {
        return match body.next_chunk().await {
            None => Ok(()),
            Some(Ok(_)) => Err(refusal()),
            Some(Err(error)) => Err(status::broken_body(&error)),
        };
    }
    match respond::header(headers, CONTENT_LENGTH.as_str()) {
        None => Err(respond::standard(StatusCode::LENGTH_REQUIRED)),
        Some(length) if length.trim().parse() == Ok(0u64) => Ok(()),
        Some(_) => Err(refusal()),
    }
}

/// The client's request, without content, for another path, with the client's authority.
fn instead(parts: &Parts, path: &str, query: Option<&str>) -> Result<Request, Response> {
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = with_path_and_query(path, query).ok_or_else(status::path_too_long)?;
    *request.method_mut() = parts.method.clone();
    *request.headers_mut() = parts.headers.clone();
    set(request.headers_mut(), BACKEND_ALLOW_RESERVED, "true");
    let mut context = Context::of(parts);
    context
        .original_path
        .get_or_insert_with(|| parts.uri.path().into());
    request.extensions_mut().insert(context);
    Ok(request)
}
