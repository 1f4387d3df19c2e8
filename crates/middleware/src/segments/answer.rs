//! Conditions and ranges of the client's request, applied to a response that a filter has generated
//! itself, as an object server does for ordinary objects.

use bytes::Bytes;
use cairn_formats::conditional::{Conditions, parse_date};
use cairn_formats::range::{
    Multipart, Selection, content_range, content_range_unsatisfied, select,
};
use cairn_http::{Body, Response, respond};
use http::header::{
    CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH,
    IF_UNMODIFIED_SINCE, LAST_MODIFIED, RANGE,
};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::Reading;
use crate::status;

const WANT_WHOLE: HeaderName =
    HeaderName::from_static("x-backend-ignore-range-if-metadata-present");
const ETAG_IS_AT: HeaderName = HeaderName::from_static("x-backend-etag-is-at");

/// Tells object servers to return objects with this metadata as a whole, whatever the `Range`.
pub(crate) fn want_whole(headers: &mut HeaderMap, metadata: &str) {
    append(headers, &WANT_WHOLE, metadata);
}

/// Tells object servers to use this metadata, if present, as the ETag for conditions.
pub(crate) fn etag_is_at(headers: &mut HeaderMap, metadata: &str) {
    append(headers, &ETAG_IS_AT, metadata);
}

fn append(headers: &mut HeaderMap, name: &HeaderName, item: &str) {
    let before = headers.get(name).map_or(&b""[..], |v| v.as_bytes());
    let list = match before {
        b"" => HeaderValue::from_str(item),
        before => HeaderValue::from_bytes(&[before, b",", item.as_bytes()].concat()),
    };
    if let Ok(list) = list {
        headers.insert(name, list);
    }
}

/// The status required by the request's conditions, 304 or 412. `answer` has the headers that they
/// apply to.
fn conditional(request: &Parts, answer: &HeaderMap) -> Option<StatusCode> {
    let asked = |name: &http::HeaderName| respond::header(&request.headers, name.as_str());
    let conditions = Conditions {
        if_match: asked(&IF_MATCH),
        if_none_match: asked(&IF_NONE_MATCH),
        if_modified_since: asked(&IF_MODIFIED_SINCE),
        if_unmodified_since: asked(&IF_UNMODIFIED_SINCE),
    };
    if conditions.is_empty() {
        return None;
    }
    let alternates = respond::header(&request.headers, "x-backend-etag-is-at").unwrap_or("");
    let etag = alternates
        .split(',')
        .filter_map(|name| respond::header(answer, &name.trim().to_ascii_lowercase()))
        .find(|etag| !etag.is_empty())
        .or_else(|| respond::header(answer, ETAG.as_str()));
    let modified = respond::header(answer, LAST_MODIFIED.as_str()).and_then(parse_date);
    status::of_verdict(conditions.check(etag, modified))
}

/// Do the request's conditions hold? If not, the response is changed to 304 or 412.
pub(crate) fn is_satisfied(request: &Parts, answer: &mut Response) -> bool {
    let Some(status) = conditional(request, answer.headers()) else {
        return true;
    };
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_LENGTH, 0.into());
    *answer.body_mut() = Body::empty();
    false
}

/// Source of the selected bytes of a response.
pub(crate) enum Content {
    /// In memory: all of the content.
    Memory(Bytes),
    /// To be read: exactly the selected bytes.
    Reading(Box<Reading>),
}

impl From<Bytes> for Content {
    fn from(bytes: Bytes) -> Self {
        Content::Memory(bytes)
    }
}

impl From<Reading> for Content {
    fn from(reading: Reading) -> Self {
        Content::Reading(Box::new(reading))
    }
}

/// Completes a response of content with `size` bytes: whole, one range, several, or 416. `boundary`
/// must not occur in the content.
pub(crate) fn full_or_ranges(
    answer: &mut Response,
    selection: &Selection,
    content: impl Into<Content>,
    size: u64,
    boundary: impl FnOnce() -> String,
) {
    answer.headers_mut().remove(CONTENT_RANGE);
    match selection {
        Selection::Whole => {
            answer.headers_mut().insert(CONTENT_LENGTH, size.into());
            *answer.body_mut() = match content.into() {
                Content::Memory(bytes) => Body::full(bytes),
                Content::Reading(reading) => reading.into_body(Some(size)),
            };
        }
        Selection::One(range) => {
            status::make_partial(answer);
            let length = range.end - range.start;
            let headers = answer.headers_mut();
            headers.insert(CONTENT_LENGTH, length.into());
            respond::set(headers, CONTENT_RANGE.as_str(), content_range(range, size));
            *answer.body_mut() = match content.into() {
                Content::Memory(bytes) => {
                    Body::full(bytes.slice(range.start as usize..range.end as usize))
                }
                Content::Reading(reading) => reading.into_body(Some(length)),
            };
        }
        Selection::Several(ranges) => {
            status::make_partial(answer);
            let headers = answer.headers_mut();
            let content_type = headers.get(CONTENT_TYPE).map(|v| v.as_bytes().to_vec());
            let multipart = Multipart::new(boundary(), &content_type.unwrap_or_default(), size);
            respond::set(headers, CONTENT_TYPE.as_str(), multipart.content_type());
            headers.insert(CONTENT_LENGTH, multipart.total_length(ranges).into());
            *answer.body_mut() = match content.into() {
                Content::Memory(bytes) => in_memory(&multipart, ranges, &bytes),
                Content::Reading(reading) => reading.into_multipart(&multipart, ranges),
            };
        }
        Selection::Unsatisfiable => unsatisfiable(answer, Some(size)),
    }
}

fn in_memory(multipart: &Multipart, ranges: &[std::ops::Range<u64>], bytes: &Bytes) -> Body {
    let mut all = Vec::new();
    for range in ranges {
        all.extend_from_slice(&multipart.head(range));
        all.extend_from_slice(&bytes[range.start as usize..range.end as usize]);
        all.extend_from_slice(Multipart::TAIL);
    }
    all.extend_from_slice(&multipart.end());
    Body::full(all)
}

/// Changes the response to a 416; its other headers stay.
pub(crate) fn unsatisfiable(answer: &mut Response, size: Option<u64>) {
    let (parts, body) = status::no_such_range().into_parts();
    *answer.status_mut() = parts.status;
    let headers = answer.headers_mut();
    headers.extend(parts.headers);
    if let Some(size) = size {
        let value = content_range_unsatisfied(size);
        respond::set(headers, CONTENT_RANGE.as_str(), value);
    }
    *answer.body_mut() = body;
}

/// The part of content of this size that the request selects.
pub(crate) fn selection(request: &Parts, size: u64) -> Selection {
    select(respond::header(&request.headers, RANGE.as_str()), size)
}

/// The ranges to read for a selection, ends excluded.
pub(crate) fn wanted(selection: &Selection, size: u64) -> Vec<std::ops::Range<u64>> {
    match selection {
        Selection::Whole => std::iter::once(0..size).collect(),
        Selection::One(range) => vec![range.clone()],
        Selection::Several(ranges) => ranges.clone(),
        Selection::Unsatisfiable => Vec::new(),
    }
}
