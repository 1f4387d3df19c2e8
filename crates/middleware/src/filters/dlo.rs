//! Filter `dlo`, dynamic large objects: an object with `X-Object-Manifest: container/prefix` is
//! read as the concatenation of all objects whose names have that prefix, in the order of their
//! names.
//!
//! Its length and ETag are known if one page of the listing contains all segments. Otherwise the
//! response has no length, and a range is honoured only if the first page is sufficient for it.

mod listing;

use std::sync::Arc;
use std::time::Duration;

use cairn_formats::conditional::normalize_etag;
use cairn_formats::ini::Section;
use cairn_formats::range::{ByteRanges, Selection};
use cairn_http::params::{Params, unquote};
use cairn_http::{Body, Handler, Request, Response, Service, ServiceFuture, respond};
use cairn_types::{Constraints, hex};
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderName, RANGE};
use http::request::Parts;
use http::{Method, StatusCode};
use md5::{Digest, Md5};

use crate::api_path::ObjectPath;
use crate::segments::{
    RateLimit, ReadOptions, Reading, full_or_ranges, is_satisfied, unsatisfiable, want_whole,
};
use crate::subrequest::Subrequests;
use crate::{FilterEnv, FilterError};
use listing::{Pages, SegmentListing, SegmentRow};

const X_OBJECT_MANIFEST: HeaderName = HeaderName::from_static("x-object-manifest");
/// Maximum bytes of a manifest's own body that are read in order to reuse the connection.
const MANIFEST_BODY_MAX: u64 = 1024;

struct Dlo {
    next: Handler,
    constraints: Arc<Constraints>,
    rate: RateLimit,
    max_time: Duration,
}

pub(crate) fn make(
    section: &Section,
    next: Handler,
    env: &FilterEnv,
) -> Result<Handler, FilterError> {
    Ok(Arc::new(Dlo {
        next,
        constraints: env.constraints.clone(),
        rate: RateLimit::read(section)?,
        max_time: Duration::from_secs(section.u64_or("max_get_time", 86_400)?),
    }))
}

impl Service for Dlo {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        let method = request.method();
        if method == Method::PUT && request.headers().contains_key(X_OBJECT_MANIFEST) {
            if let Err(refused) = check_manifest(&request) {
                return Box::pin(async { refused });
            }
        } else if (method == Method::GET || method == Method::HEAD)
            && !asks_for_manifest(&request)
            && let Some(path) = ObjectPath::of(request.uri().path())
        {
            return Box::pin(self.read(request, path));
        }
        self.next.call(request)
    }
}

fn asks_for_manifest(request: &Request) -> bool {
    request.uri().query().is_some_and(|query| {
        Params::parse(Some(query)).is_ok_and(|p| p.get("multipart-manifest") == Some("get"))
    })
}

/// Checks the `X-Object-Manifest` of a PUT: a container and a prefix of names.
fn check_manifest(request: &Request) -> Result<(), Response> {
    if ObjectPath::of(request.uri().path()).is_none() {
        return Ok(());
    }
    let value = respond::header(request.headers(), X_OBJECT_MANIFEST.as_str()).unwrap_or("");
    let is_valid = value.split_once('/').is_some_and(|(container, prefix)| {
        !container.is_empty()
            && !prefix.is_empty()
            && !prefix.starts_with('/')
            && !value.contains(['?', '&'])
    });
    if is_valid {
        return Ok(());
    }
    let text = "X-Object-Manifest must be in the format container/prefix";
    Err(respond::text(StatusCode::BAD_REQUEST, text))
}

impl Dlo {
    async fn read(&self, mut request: Request, path: ObjectPath) -> Response {
        want_whole(request.headers_mut(), "X-Object-Manifest");
        let (parts, body) = request.into_parts();
        let mut inner = Request::new(body);
        *inner.method_mut() = parts.method.clone();
        *inner.uri_mut() = parts.uri.clone();
        *inner.version_mut() = parts.version;
        *inner.headers_mut() = parts.headers.clone();
        *inner.extensions_mut() = parts.extensions.clone();
        let response = self.next.call(inner).await;
        let Some(manifest) = manifest_of(&response) else {
            return response;
        };
        // Most objects are not manifests: the future for one is boxed.
        match Box::pin(self.replaced(&parts, &path, &manifest, response)).await {
            Ok(response) | Err(response) => response,
        }
    }

    /// The response to a request that found a manifest.
    async fn replaced(
        &self,
        parts: &Parts,
        path: &ObjectPath,
        manifest: &str,
        found: Response,
    ) -> Result<Response, Response> {
        let (head, body) = found.into_parts();
        body.drain(MANIFEST_BODY_MAX).await;
        let mut answer = Response::new(Body::empty());
        *answer.headers_mut() = head.headers;
        self.large_object(parts, path, manifest, answer).await
    }

    /// The response with all segments; `answer` has the manifest's headers.
    async fn large_object(
        &self,
        parts: &Parts,
        path: &ObjectPath,
        manifest: &str,
        mut answer: Response,
    ) -> Result<Response, Response> {
        let (container, prefix) = manifest.split_once('/').unwrap_or((manifest, ""));
        let mut requests = Subrequests::of(parts, "DLO", "DLO MultipartGET");
        let pages = Pages {
            next: self.next.clone(),
            requests: requests.clone(),
            container: format!("/{}/{}/{container}", path.version, path.account),
            prefix: prefix.to_owned(),
            page: self.constraints.container_listing_limit,
        };
        let is_head = parts.method == Method::HEAD;
        let first = pages.get("").await.map_err(|refused| {
            if is_head {
                refused.map(|_| Body::empty())
            } else {
                refused
            }
        })?;
        let is_complete = first.len() < pages.page;
        let size: u64 = first.iter().map(|s| s.bytes).fold(0, u64::saturating_add);
        let selection = self.selection(parts, size, is_complete);

        for name in [CONTENT_LENGTH, CONTENT_RANGE] {
            answer.headers_mut().remove(name);
        }
        if is_complete {
            let etag = format!("\"{}\"", etag_of(&first));
            respond::set(answer.headers_mut(), ETAG.as_str(), etag);
        }
        if selection == Selection::Unsatisfiable {
            answer.headers_mut().remove(ETAG);
            unsatisfiable(&mut answer, is_complete.then_some(size));
            return Ok(answer);
        }
        if !is_satisfied(parts, &mut answer) {
            return Ok(answer);
        }
        if is_head {
            if is_complete {
                answer.headers_mut().insert(CONTENT_LENGTH, size.into());
            }
            return Ok(answer);
        }
        let range = match &selection {
            Selection::One(range) => Some(range.clone()),
            _ => None,
        };
        let listing = SegmentListing::new(pages, first, range);
        requests.carry(parts, HeaderName::from_static("x-open-expired"));
        let options = ReadOptions {
            next: self.next.clone(),
            requests,
            rate: self.rate.clone(),
            max_time: self.max_time,
            name: path.path(),
        };
        let reading = Reading::start(listing, options).await?;
        if is_complete || matches!(selection, Selection::One(_)) {
            full_or_ranges(&mut answer, &selection, reading, size, String::new);
        } else {
            *answer.body_mut() = reading.into_body(None);
        }
        Ok(answer)
    }

    /// Part of the segments on the first page that the client gets. Several ranges are not
    /// honoured, nor one that this page alone cannot decide.
    fn selection(&self, parts: &Parts, size: u64, is_complete: bool) -> Selection {
        let Some(text) = respond::header(&parts.headers, RANGE.as_str()) else {
            return Selection::Whole;
        };
        if parts.method == Method::HEAD || text.contains(',') {
            return Selection::Whole;
        }
        let Some(ranges) = ByteRanges::parse(text) else {
            return Selection::Whole;
        };
        let mut found = ranges.for_length(size);
        if !is_complete {
            // Applied to infinite content: does the range end on this page?
            let endless = ranges.for_length(u64::MAX);
            if endless.first().is_none_or(|range| range.end >= size) {
                return Selection::Whole;
            }
        }
        match found.pop() {
            None => Selection::Unsatisfiable,
            Some(_) if size == 0 => Selection::Whole,
            Some(range) => Selection::One(range),
        }
    }
}

/// The `X-Object-Manifest` of a response, decoded.
fn manifest_of(response: &Response) -> Option<String> {
    let value = response.headers().get(X_OBJECT_MANIFEST)?;
    let text = std::str::from_utf8(value.as_bytes()).ok()?;
    unquote(text).ok()
}

/// MD5 of the segments' ETags.
fn etag_of(segments: &[SegmentRow]) -> String {
    let mut digest = Md5::new();
    for segment in segments {
        digest.update(normalize_etag(&segment.hash));
    }
    hex::encode(digest.finalize())
}

#[cfg(test)]
mod tests;
