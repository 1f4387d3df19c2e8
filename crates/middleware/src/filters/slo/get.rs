//! GET and HEAD of a possible large object: the object is requested as a whole if it is a manifest,
//! under the large object's conditions, and its segments become the response.
//!
//! Old manifests lack the marks with ETag and size; both are then computed from the segments, and
//! conditions are evaluated here. If a response has a manifest but not all of it (HEAD of an old
//! one, a range from an object server without support for manifests), it is requested again.

use bytes::Bytes;
use cairn_formats::range::{Selection, content_range};
use cairn_http::params::{Params, is_true};
use cairn_http::{Body, Request, Response, respond};
use cairn_types::{Timestamp, hex};
use http::header::{
    CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderName, HeaderValue, RANGE,
};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use md5::{Digest, Md5};
use tracing::error;

use super::manifest::{self, Segment};
use super::walk::{Source, Walk};
use super::{Inner, SOURCE, SYSMETA_SLO_ETAG, SYSMETA_SLO_SIZE, X_STATIC_LARGE_OBJECT};
use crate::api_path::ObjectPath;
use crate::segments::{
    ReadOptions, Reading, etag_is_at, full_or_ranges, is_satisfied, selection, want_whole, wanted,
};
use crate::status;
use crate::subrequest::Subrequests;

const AGENT: &str = "SLO MultipartGET";
/// Maximum bytes of an unused response that are read to keep its connection.
const DRAIN_MAX: u64 = 64 << 10;

/// Marks of a large object in a response.
struct Marks {
    is_slo: bool,
    timestamp: Timestamp,
    manifest_etag: String,
    etag: String,
    size: Option<u64>,
}

fn is_slo(headers: &HeaderMap) -> bool {
    respond::header(headers, X_STATIC_LARGE_OBJECT.as_str()).is_some_and(is_true)
}

impl Marks {
    fn of(headers: &HeaderMap) -> Marks {
        let text = |name: &str| respond::header(headers, name).unwrap_or("");
        let timestamp = respond::header_timestamp(headers, "x-backend-timestamp");
        Marks {
            is_slo: is_slo(headers),
            timestamp: timestamp.unwrap_or(Timestamp::ZERO),
            manifest_etag: text(ETAG.as_str()).to_owned(),
            etag: text(SYSMETA_SLO_ETAG).to_owned(),
            size: text(SYSMETA_SLO_SIZE).trim().parse().ok(),
        }
    }

    fn is_legacy(&self) -> bool {
        self.etag.is_empty() || self.size.is_none()
    }
}

/// The client's request, kept to make similar requests.
struct ReadRequest {
    parts: Parts,
    path: ObjectPath,
    params: Params,
}

impl ReadRequest {
    fn is_head(&self) -> bool {
        self.parts.method == Method::HEAD
    }

    /// A copy of the request.
    fn again(&self) -> Request {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = self.parts.method.clone();
        *request.uri_mut() = self.parts.uri.clone();
        *request.version_mut() = self.parts.version;
        *request.headers_mut() = self.parts.headers.clone();
        *request.extensions_mut() = self.parts.extensions.clone();
        request
    }

    fn subrequests(&self) -> Subrequests {
        let mut requests = Subrequests::of(&self.parts, SOURCE, AGENT);
        requests.carry(&self.parts, HeaderName::from_static("x-open-expired"));
        requests
    }

    /// The part requested by `part-number`; the error is the refusal.
    fn part_number(&self) -> Result<Option<usize>, Response> {
        let bad = |text: &'static str| respond::text(StatusCode::BAD_REQUEST, text);
        let Some(text) = self.params.get("part-number") else {
            return Ok(None);
        };
        let number = text.trim().parse::<u64>().ok().filter(|n| *n > 0);
        let number = number.ok_or_else(|| bad("Part number must be an integer greater than 0"))?;
        if self.parts.headers.contains_key(RANGE) {
            return Err(bad(
                "Range requests are not supported with part number queries",
            ));
        }
        Ok(Some(usize::try_from(number).unwrap_or(usize::MAX)))
    }
}

impl Inner {
    pub(super) async fn get_or_head(&self, request: Request, path: ObjectPath) -> Response {
        let params = Params::parse(request.uri().query()).unwrap_or_default();
        let wants_manifest = params.get("multipart-manifest") == Some("get");
        let wants_raw = wants_manifest && params.get("format") == Some("raw");
        let (mut parts, _) = request.into_parts();
        if !wants_manifest {
            etag_is_at(&mut parts.headers, "X-Object-Sysmeta-Slo-Etag");
        }
        if !wants_manifest || wants_raw {
            want_whole(&mut parts.headers, "X-Static-Large-Object");
        }
        let asked = ReadRequest {
            parts,
            path,
            params,
        };
        let answer = if wants_raw {
            Box::pin(self.raw_manifest(&asked)).await
        } else if wants_manifest {
            Ok(as_json(self.next.call(asked.again()).await))
        } else {
            self.large_object(&asked).await
        };
        match answer {
            Ok(response) | Err(response) => response,
        }
    }

    async fn large_object(&self, asked: &ReadRequest) -> Result<Response, Response> {
        let answer = self.next.call(asked.again()).await;
        if !is_slo(answer.headers()) {
            return Ok(answer);
        }
        // Most objects are not manifests: the future for one is boxed.
        Box::pin(self.found(asked, answer)).await
    }

    /// The response to a request that found a large object.
    async fn found(&self, asked: &ReadRequest, mut answer: Response) -> Result<Response, Response> {
        let mut marks = Marks::of(answer.headers());
        let part_number = asked.part_number()?;
        let need = Need::of(asked, answer.status(), &marks, part_number.is_some());
        if need == Need::Again || (need == Need::Segments && !is_whole(&answer)) {
            let before = marks.timestamp;
            answer.into_body().drain(DRAIN_MAX).await;
            answer = self.fetch_manifest(asked).await;
            marks = Marks::of(answer.headers());
            if !marks.is_slo {
                return self.replaced(asked, answer, &marks, before).await;
            }
        }
        self.show(asked, answer, marks, part_number, need).await
    }

    /// Requests the manifest without the client's range and conditions.
    async fn fetch_manifest(&self, asked: &ReadRequest) -> Response {
        let (path, query) = (asked.path.path(), asked.parts.uri.query());
        match asked.subrequests().request(Method::GET, &path, query) {
            Some(request) => self.next.call(request).await,
            None => status::path_too_long(),
        }
    }

    /// The object was replaced meanwhile, by an ordinary one, which is requested as the client did.
    /// A response older than what was seen is refused.
    async fn replaced(
        &self,
        asked: &ReadRequest,
        answer: Response,
        marks: &Marks,
        before: Timestamp,
    ) -> Result<Response, Response> {
        let unavailable = status::unavailable;
        if marks.timestamp < before {
            return Err(unavailable());
        }
        if answer.status() != StatusCode::OK {
            return Ok(answer);
        }
        drop(answer);
        let answer = self.next.call(asked.again()).await;
        if Marks::of(answer.headers()).is_slo {
            return Err(unavailable());
        }
        Ok(answer)
    }

    /// Turns the response with the manifest into that of the large object.
    async fn show(
        &self,
        asked: &ReadRequest,
        manifest: Response,
        marks: Marks,
        part_number: Option<usize>,
        need: Need,
    ) -> Result<Response, Response> {
        let (head, body) = manifest.into_parts();
        let mut answer = Response::new(Body::empty());
        *answer.status_mut() = head.status;
        *answer.headers_mut() = head.headers;
        answer.headers_mut().remove(CONTENT_RANGE);
        let name = "x-manifest-etag";
        respond::set(answer.headers_mut(), name, marks.manifest_etag.clone());
        if need == Need::Nothing {
            body.drain(DRAIN_MAX).await;
            let (etag, size) = (marks.etag, marks.size.unwrap_or(0));
            return Ok(without_body(answer, &etag, size));
        }
        let json = body.collect(self.manifest_read_max()).await;
        let json = json.map_err(|error| unreadable(asked, &error.to_string()))?;
        let segments =
            manifest::segments(&json).map_err(|error| unreadable(asked, &error.to_string()))?;
        let (etag, size) = if marks.is_legacy() {
            let stored = manifest::parse(&json).unwrap_or_default();
            let lengths = segments.iter().map(Segment::length);
            let size = lengths.fold(0, u64::saturating_add);
            (manifest::etag(&stored), size)
        } else {
            (marks.etag, marks.size.unwrap_or(0))
        };
        *answer.status_mut() = StatusCode::OK;
        set_etag(answer.headers_mut(), &etag);
        answer.headers_mut().insert(CONTENT_LENGTH, size.into());
        let part = match part_number {
            None => None,
            Some(number) => {
                let headers = answer.headers_mut();
                headers.insert("x-parts-count", segments.len().into());
                let Some(range) = part_range(&segments, number) else {
                    return Ok(no_such_part(answer, size, asked.is_head()));
                };
                Some(range)
            }
        };
        if !is_satisfied(&asked.parts, &mut answer) {
            return Ok(answer);
        }
        if asked.is_head() {
            return Ok(head_of(answer, part, size));
        }
        let selection = match part {
            // No range exists in empty content.
            Some(range) if range.is_empty() => {
                status::make_partial(&mut answer);
                answer.headers_mut().insert(CONTENT_LENGTH, 0.into());
                return Ok(answer);
            }
            Some(range) => Selection::One(range),
            None => selection(&asked.parts, size),
        };
        let reading = self.reading(asked, segments, &selection, size).await?;
        let boundary = || hex::encode(self.random.bytes::<16>());
        full_or_ranges(&mut answer, &selection, reading, size, boundary);
        Ok(answer)
    }

    async fn reading(
        &self,
        asked: &ReadRequest,
        segments: Vec<Segment>,
        selection: &Selection,
        size: u64,
    ) -> Result<Reading, Response> {
        let source = Source {
            next: self.next.clone(),
            requests: asked.subrequests(),
            path: asked.path.clone(),
            manifest_max: self.manifest_read_max(),
            limited_below: self.rate_limit_under_size,
        };
        let options = ReadOptions {
            next: self.next.clone(),
            requests: asked.subrequests(),
            rate: self.rate.clone(),
            max_time: self.max_get_time,
            name: asked.path.path(),
        };
        let walk = Walk::new(source, segments, wanted(selection, size));
        Reading::start(walk, options).await
    }

    /// `multipart-manifest=get&format=raw`: the manifest in the form in which a client would PUT
    /// it, with the content type of the large object, so that a copy of it is a large object too.
    /// Conditions are of the manifest as it is stored, which `X-Manifest-Etag` tells: OpenStack Swift
    /// holds them against the form that is made here as well, so that none is ever met.
    async fn raw_manifest(&self, asked: &ReadRequest) -> Result<Response, Response> {
        let mut request = asked.again();
        // Its length is known only after it has been made.
        *request.method_mut() = Method::GET;
        let response = self.next.call(request).await;
        let is_slo = Marks::of(response.headers()).is_slo;
        if !is_slo || response.status() != StatusCode::OK {
            return Ok(if asked.is_head() {
                response.map(|_| Body::empty())
            } else {
                response
            });
        }
        let (head, body) = response.into_parts();
        let json = body.collect(self.manifest_read_max()).await;
        let json = json.map_err(|error| unreadable(asked, &error.to_string()))?;
        let raw = manifest::to_raw(&json).map_err(|error| unreadable(asked, &error.to_string()))?;
        let mut answer = Response::new(Body::empty());
        *answer.headers_mut() = head.headers;
        if !is_satisfied(&asked.parts, &mut answer) {
            return Ok(answer);
        }
        let headers = answer.headers_mut();
        respond::set(headers, ETAG.as_str(), hex::encode(Md5::digest(&raw)));
        headers.insert(CONTENT_LENGTH, raw.len().into());
        if asked.is_head() {
            return Ok(answer);
        }
        let size = raw.len() as u64;
        let selection = selection(&asked.parts, size);
        let boundary = || hex::encode(self.random.bytes::<16>());
        full_or_ranges(&mut answer, &selection, Bytes::from(raw), size, boundary);
        Ok(answer)
    }
}

/// Data needed beyond the response at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Nothing,
    /// The segments, if the response's body has all of them.
    Segments,
    /// The segments, which the response cannot have.
    Again,
}

impl Need {
    fn of(asked: &ReadRequest, status: StatusCode, marks: &Marks, by_part: bool) -> Need {
        let again = |needed: bool| if needed { Need::Again } else { Need::Nothing };
        if asked.is_head() {
            return again(marks.is_legacy() || by_part);
        }
        match status {
            // Evaluated with the large object's ETag if that was stored with the manifest;
            // otherwise the segments are needed.
            StatusCode::PRECONDITION_FAILED | StatusCode::NOT_MODIFIED => again(marks.is_legacy()),
            StatusCode::RANGE_NOT_SATISFIABLE => Need::Again,
            _ => Need::Segments,
        }
    }
}

/// Is the whole manifest in this response?
fn is_whole(answer: &Response) -> bool {
    if answer.status() != StatusCode::PARTIAL_CONTENT {
        return true;
    }
    let text = respond::header(answer.headers(), CONTENT_RANGE.as_str()).unwrap_or("");
    let whole = || {
        let (range, length) = text.strip_prefix("bytes ")?.split_once('/')?;
        let (first, last) = range.split_once('-')?;
        let (last, length) = (last.parse::<u64>().ok()?, length.parse::<u64>().ok()?);
        Some(first == "0" && last.checked_add(1) == Some(length))
    };
    whole().unwrap_or(false)
}

fn unreadable(asked: &ReadRequest, reason: &str) -> Response {
    let path = asked.path.path();
    error!(path, reason, "a manifest cannot be read");
    let text = "Unable to load SLO manifest";
    respond::text(StatusCode::INTERNAL_SERVER_ERROR, text)
}

fn set_etag(headers: &mut HeaderMap, etag: &str) {
    respond::set(headers, ETAG.as_str(), format!("\"{etag}\""));
}

/// The response without segments: for a HEAD, or a condition that does not hold, of a manifest with
/// marks.
fn without_body(mut answer: Response, etag: &str, size: u64) -> Response {
    set_etag(answer.headers_mut(), etag);
    let length = if answer.status().is_success() {
        size
    } else {
        0
    };
    answer.headers_mut().insert(CONTENT_LENGTH, length.into());
    answer
}

/// The bytes of a part, counted from 1; the end excluded.
fn part_range(segments: &[Segment], number: usize) -> Option<std::ops::Range<u64>> {
    let part = segments.get(number - 1)?;
    let before = segments[..number - 1].iter().map(Segment::length);
    let start = before.fold(0, u64::saturating_add);
    Some(start..start.saturating_add(part.length()))
}

fn no_such_part(mut answer: Response, size: u64, is_head: bool) -> Response {
    const TEXT: &str = "The requested part number is not satisfiable";
    let text = if is_head { "" } else { TEXT };
    *answer.status_mut() = StatusCode::RANGE_NOT_SATISFIABLE;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_LENGTH, text.len().into());
    respond::set(headers, CONTENT_RANGE.as_str(), format!("bytes */{size}"));
    *answer.body_mut() = Body::from(text);
    answer
}

/// HEAD of a part is 206, unlike HEAD of a range: it returns the part's length.
fn head_of(mut answer: Response, part: Option<std::ops::Range<u64>>, size: u64) -> Response {
    if let Some(part) = part {
        status::make_partial(&mut answer);
        let headers = answer.headers_mut();
        headers.insert(CONTENT_LENGTH, (part.end - part.start).into());
        respond::set(headers, CONTENT_RANGE.as_str(), content_range(&part, size));
    }
    answer
}

/// The manifest in its stored form.
fn as_json(mut response: Response) -> Response {
    let is_slo = Marks::of(response.headers()).is_slo;
    let is_multipart = respond::header(response.headers(), CONTENT_TYPE.as_str())
        .is_some_and(|t| t.starts_with("multipart/byteranges"));
    if is_slo && !is_multipart {
        let json = HeaderValue::from_static("application/json; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, json);
    }
    response
}
