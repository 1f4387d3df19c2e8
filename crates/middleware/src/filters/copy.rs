//! Filter `copy`, server-side copy: `COPY` with `Destination`, and `PUT` with `X-Copy-From`. The
//! source is read by a GET with the client's authority, and its body streams into the PUT; the
//! proxy authorizes both, each with its own container's ACL.
//!
//! Besides the data, all headers of the source's response are copied, except those that describe
//! the transfer or the manifest; the request's own headers take precedence. With `X-Fresh-Metadata:
//! true` only system metadata is copied. Metadata that makes a symlink trusted is never copied
//! (`trust.rs`).

mod heartbeat;

use std::sync::Arc;
use std::time::Duration;

use cairn_formats::ini::Section;
use cairn_http::context::Context;
use cairn_http::params::{Params, is_true, quote_path, with_path_and_query};
use cairn_http::{Body, Handler, Request, Response, Service, ServiceFuture, respond};
use cairn_types::metadata::{is_object_transient_sysmeta, is_sys_meta, is_sys_or_user_meta};
use cairn_types::{Constraints, ServerKind};
use http::header::{
    ACCEPT, ACCESS_CONTROL_ALLOW_METHODS, ALLOW, CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderName,
    HeaderValue, IF_MATCH, IF_NONE_MATCH, LAST_MODIFIED, TRANSFER_ENCODING,
};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};

use crate::accept::best_match;
use crate::api_path::{ObjectPath, account_header, path_header, refuse, set};
use crate::status;
use crate::trust;
use crate::watch::with_length;
use crate::{FilterEnv, FilterError};

const SOURCE: &str = "SSC";
const UPDATE_OVERRIDE_PREFIX: &str = "x-object-sysmeta-container-update-override-";

const DESTINATION: HeaderName = HeaderName::from_static("destination");
const DESTINATION_ACCOUNT: HeaderName = HeaderName::from_static("destination-account");
const X_COPY_FROM: HeaderName = HeaderName::from_static("x-copy-from");
const X_COPY_FROM_ACCOUNT: HeaderName = HeaderName::from_static("x-copy-from-account");
const X_NEWEST: HeaderName = HeaderName::from_static("x-newest");
const X_OBJECT_MANIFEST: HeaderName = HeaderName::from_static("x-object-manifest");
const X_STATIC_LARGE_OBJECT: HeaderName = HeaderName::from_static("x-static-large-object");

/// Headers of the source's response that are not copied: they describe the transfer, or are copied
/// only under conditions.
const NOT_COPIED: [&str; 16] = [
    "accept-ranges",
    "connection",
    "content-length",
    "content-range",
    "content-type",
    "date",
    "etag",
    "last-modified",
    "transfer-encoding",
    "vary",
    "x-object-manifest",
    "x-openstack-request-id",
    "x-static-large-object",
    "x-timestamp",
    "x-trans-id",
    "server",
];

struct Copy {
    next: Handler,
    constraints: Arc<Constraints>,
    yield_frequency: Duration,
}

pub(crate) fn make(
    section: &Section,
    next: Handler,
    env: &FilterEnv,
) -> Result<Handler, FilterError> {
    Ok(Arc::new(Copy {
        next,
        constraints: env.constraints.clone(),
        yield_frequency: Duration::from_secs(section.u64_or("yield_frequency", 10)?),
    }))
}

impl Service for Copy {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        let method = request.method();
        let asks_copy = method.as_str() == "COPY";
        let copies = asks_copy
            || (method == Method::PUT
                && request
                    .headers()
                    .get(X_COPY_FROM)
                    .is_some_and(|v| !v.is_empty()));
        if !copies && method != Method::OPTIONS {
            return self.next.call(request);
        }
        let Some(target) = ObjectPath::of(request.uri().path()) else {
            return self.next.call(request);
        };
        if method == Method::OPTIONS {
            return Box::pin(self.options(request));
        }
        Box::pin(async move {
            let (mut parts, _) = request.into_parts();
            let target = if asks_copy {
                match copy_to_put(&mut parts, target) {
                    Ok(target) => target,
                    Err(response) => return response,
                }
            } else {
                target
            };
            match self.put(parts, target).await {
                Ok(response) | Err(response) => response,
            }
        })
    }
}

/// Converts `COPY source` with `Destination` into the equivalent `PUT destination` with
/// `X-Copy-From`.
fn copy_to_put(parts: &mut Parts, source: ObjectPath) -> Result<ObjectPath, Response> {
    if parts.headers.get(DESTINATION).is_none_or(|v| v.is_empty()) {
        return Err(refuse("Destination header required"));
    }
    let mut target = source.clone();
    if let Some(account) = parts.headers.remove(DESTINATION_ACCOUNT) {
        target.account = account_header(&account)?;
        set(
            &mut parts.headers,
            X_COPY_FROM_ACCOUNT,
            &quote_path(&source.account),
        );
    }
    (target.container, target.object) = path_header(
        parts,
        &DESTINATION,
        "Destination header must be of the form <container name>/<object name>",
    )?;
    parts.method = Method::PUT;
    let from = format!("/{}/{}", source.container, source.object);
    set(&mut parts.headers, X_COPY_FROM, &quote_path(&from));
    parts.headers.remove(DESTINATION);
    parts.headers.remove(TRANSFER_ENCODING);
    parts
        .headers
        .insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    Ok(target)
}

impl Copy {
    async fn options(&self, request: Request) -> Response {
        let mut response = self.next.call(request).await;
        if response.status().is_success() {
            for name in [ALLOW, ACCESS_CONTROL_ALLOW_METHODS] {
                let with_copy = respond::header(response.headers(), name.as_str())
                    .filter(|v| !v.contains("COPY"))
                    .map(|v| format!("{v}, COPY"));
                if let Some(value) = with_copy {
                    set(response.headers_mut(), name, &value);
                }
            }
        }
        response
    }

    /// Carries out the PUT of a copy; a response that ends it early is the error.
    async fn put(&self, parts: Parts, target: ObjectPath) -> Result<Response, Response> {
        let length = respond::header(&parts.headers, CONTENT_LENGTH.as_str()).map(str::trim);
        if length.is_some_and(|l| l.parse() != Ok(0u64)) {
            let message = "Copy requests require a zero byte body";
            return Err(respond::text(StatusCode::BAD_REQUEST, message));
        }
        let params = Params::parse(parts.uri.query()).map_err(|_| {
            respond::text(
                StatusCode::PRECONDITION_FAILED,
                "Invalid UTF8 or contains NULL",
            )
        })?;
        let source = source_of(&parts, &target)?;
        let answer = self.get_source(&parts, &source, &params).await?;
        let (sink, shown) = sink_request(parts, &target, &params, &source, answer)?;
        if params.get("heartbeat").is_some_and(is_true) {
            let accept = respond::header(sink.headers(), ACCEPT.as_str());
            let offers = ["text/plain", "application/json"];
            let content_type = best_match(accept, &offers)
                .ok()
                .flatten()
                .unwrap_or(offers[0]);
            return Ok(heartbeat::respond(
                self.next.clone(),
                sink,
                shown,
                content_type,
                self.yield_frequency,
            )
            .await);
        }
        let mut response = self.next.call(sink).await;
        if response.status().is_success() {
            for (name, value) in &shown {
                response.headers_mut().append(name, value.clone());
            }
        }
        Ok(response)
    }

    async fn get_source(
        &self,
        parts: &Parts,
        source: &ObjectPath,
        params: &Params,
    ) -> Result<Response, Response> {
        let mut params = params.clone();
        if params.get("multipart-manifest") == Some("get") {
            // A static manifest in its stored form, not in its client form.
            params.set("format", "raw");
        }
        let mut get = Request::new(Body::empty());
        *get.uri_mut() = uri(&source.path(), &params)?;
        *get.headers_mut() = parts.headers.clone();
        for name in [
            CONTENT_LENGTH,
            TRANSFER_ENCODING,
            X_COPY_FROM,
            X_COPY_FROM_ACCOUNT,
            HeaderName::from_static("x-backend-storage-policy-index"),
        ] {
            get.headers_mut().remove(name);
        }
        get.headers_mut()
            .insert(X_NEWEST, HeaderValue::from_static("true"));
        get.extensions_mut()
            .insert(Context::of(parts).subrequest(SOURCE));
        let response = self.next.call(get).await;
        if response.status().as_u16() >= 300 {
            return Err(response);
        }
        match source_length(&response) {
            // No length: a large object of more segments than one listing; refused like one that
            // exceeds the maximum size.
            Some(length) if length <= self.constraints.max_file_size => Ok(response),
            _ => Err(respond::standard(StatusCode::PAYLOAD_TOO_LARGE)),
        }
    }
}

fn source_length(response: &Response) -> Option<u64> {
    respond::header(response.headers(), CONTENT_LENGTH.as_str())
        .and_then(|l| l.parse().ok())
        .or_else(|| response.body().length())
}

fn uri(path: &str, params: &Params) -> Result<http::Uri, Response> {
    with_path_and_query(path, Some(&params.encode())).ok_or_else(status::path_too_long)
}

fn source_of(parts: &Parts, target: &ObjectPath) -> Result<ObjectPath, Response> {
    let account = match parts
        .headers
        .get(X_COPY_FROM_ACCOUNT)
        .filter(|v| !v.is_empty())
    {
        Some(value) => account_header(value)?,
        None => target.account.clone(),
    };
    let (container, object) = path_header(
        parts,
        &X_COPY_FROM,
        "X-Copy-From header must be of the form <container name>/<object name>",
    )?;
    Ok(ObjectPath {
        version: target.version.clone(),
        account,
        container,
        object,
    })
}

/// The PUT that receives the source, and the headers to add to its response.
fn sink_request(
    parts: Parts,
    target: &ObjectPath,
    params: &Params,
    source: &ObjectPath,
    answer: Response,
) -> Result<(Request, HeaderMap), Response> {
    let asked = &parts.headers;
    let from = answer.headers();
    let is_fresh = respond::header(asked, "x-fresh-metadata").is_some_and(is_true);
    let raw_manifest = params.get("multipart-manifest") == Some("get");
    let is_slo = from.contains_key(X_STATIC_LARGE_OBJECT);
    let is_dlo = from.contains_key(X_OBJECT_MANIFEST);

    let mut headers = HeaderMap::with_capacity(asked.len() + from.len());
    for (name, value) in from {
        let key = name.as_str();
        let copied = if is_fresh {
            is_sys_meta(ServerKind::Object, key)
        } else {
            !NOT_COPIED.contains(&key) && !key.starts_with("x-backend")
        };
        if copied && !trust::is_mark(name) {
            headers.insert(name, value.clone());
        }
    }
    for (name, value) in asked {
        // The conditions applied to the source.
        if *name != IF_MATCH && *name != IF_NONE_MATCH {
            headers.insert(name, value.clone());
        }
    }

    let mut sink_params = params.clone();
    sink_params.remove("version-id");
    if raw_manifest && is_slo {
        sink_params.set("multipart-manifest", "put");
    }
    if raw_manifest && is_dlo {
        sink_params.remove("multipart-manifest");
        if let Some(manifest) = from.get(X_OBJECT_MANIFEST) {
            headers.insert(X_OBJECT_MANIFEST, manifest.clone());
        }
    }

    // The source's ETag makes the PUT verify the data. It is omitted if it is not the MD5 of these
    // bytes: for ranges and large objects.
    if answer.status() == StatusCode::OK && !is_slo && (!is_dlo || raw_manifest) {
        headers.remove(ETAG);
        if let Some(etag) = respond::header(from, ETAG.as_str()) {
            set(&mut headers, ETAG, &etag.replace('"', ""));
        }
    } else {
        let overrides: Vec<HeaderName> = headers
            .keys()
            .filter(|n| n.as_str().starts_with(UPDATE_OVERRIDE_PREFIX))
            .cloned()
            .collect();
        for name in overrides {
            headers.remove(name);
        }
    }
    headers.remove(X_COPY_FROM);
    headers.remove(X_COPY_FROM_ACCOUNT);
    headers.remove(TRANSFER_ENCODING);
    if asked.get(CONTENT_TYPE).is_none_or(|v| v.is_empty()) {
        headers.remove(CONTENT_TYPE);
        if let Some(content_type) = from.get(CONTENT_TYPE) {
            headers.insert(CONTENT_TYPE, content_type.clone());
        }
    }
    let length = source_length(&answer).unwrap_or(0);
    headers.insert(CONTENT_LENGTH, length.into());
    let shown = shown_headers(source, from, &headers);

    let mut sink = Request::new(with_length(answer.into_body(), length));
    *sink.method_mut() = Method::PUT;
    *sink.uri_mut() = uri(&target.path(), &sink_params)?;
    *sink.version_mut() = parts.version;
    *sink.headers_mut() = headers;
    let mut context = Context::of(&parts).subrequest(SOURCE);
    if parts.uri.path() != sink.uri().path() {
        context
            .original_path
            .get_or_insert_with(|| parts.uri.path().into());
    }
    *sink.extensions_mut() = parts.extensions;
    sink.extensions_mut().insert(context);
    Ok((sink, shown))
}

/// Headers that describe the source, and the metadata the object got.
fn shown_headers(source: &ObjectPath, from: &HeaderMap, sink: &HeaderMap) -> HeaderMap {
    let mut shown = HeaderMap::new();
    let path = format!("{}/{}", source.container, source.object);
    let name = HeaderName::from_static;
    set(
        &mut shown,
        name("x-copied-from-account"),
        &quote_path(&source.account),
    );
    set(&mut shown, name("x-copied-from"), &quote_path(&path));
    if let Some(value) = from.get(LAST_MODIFIED) {
        shown.insert(name("x-copied-from-last-modified"), value.clone());
    }
    if let Some(value) = from.get("x-object-version-id") {
        shown.insert(name("x-copied-from-version-id"), value.clone());
    }
    for (key, value) in sink {
        if is_sys_or_user_meta(ServerKind::Object, key.as_str())
            || is_object_transient_sysmeta(key.as_str())
            || key.as_str() == "x-delete-at"
        {
            shown.insert(key, value.clone());
        }
    }
    shown
}

#[cfg(test)]
mod tests;
