//! Responses with sealed content: opened segment by segment, each verified before any of it is
//! passed on. A range is read as the segments that contain it, by separate requests.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use cairn_formats::range::{Multipart, Selection};
use cairn_http::{Body, BodyError, Handler, Request, Response, own_thread, respond};
use futures_util::{StreamExt, stream};
use http::header::{
    CONTENT_LENGTH, CONTENT_TYPE, ETAG, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH,
    IF_UNMODIFIED_SINCE, RANGE,
};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode};
use tracing::error;

use super::BODY_META;
use super::keys::Key;
use super::sealed::{SEALED_SEGMENT_BYTES, SEGMENT_BYTES, Segments, opened_length};
use super::status;
use crate::segments::{full_or_ranges, selection, unsatisfiable};

/// Maximum sealed size of content whose ranges are cut from the whole.
const IN_MEMORY_MAX: u64 = 1 << 20;
const WANT_WHOLE: &str = "x-backend-ignore-range-if-metadata-present";

/// Identity of a version of the content: responses with equal ones describe the same content.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Version {
    etag: Option<HeaderValue>,
    meta: Option<HeaderValue>,
}

impl Version {
    /// Taken from headers as they came from a server.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        Version {
            etag: headers.get(ETAG).cloned(),
            meta: headers.get(BODY_META).cloned(),
        }
    }
}

/// State of one object's sealed content.
#[derive(Clone)]
struct Sealed {
    key: Key,
    segments: u64,
    size: u64,
}

fn sealed_bytes(headers: &HeaderMap) -> Option<u64> {
    respond::header(headers, CONTENT_LENGTH.as_str())?
        .trim()
        .parse()
        .ok()
}

/// Sets the length of the opened content.
pub(super) fn show_length(response: &mut Response) {
    let length = sealed_bytes(response.headers()).and_then(opened_length);
    if let Some((_, plain)) = length {
        response.headers_mut().insert(CONTENT_LENGTH, plain.into());
    }
}

/// The response to a GET. `again` is the request, if it is for ranges.
pub(super) async fn opened(
    mut response: Response,
    key: Key,
    again: Option<Parts>,
    version: Version,
    next: &Handler,
) -> Response {
    let length = sealed_bytes(response.headers());
    let Some((length, (segments, size))) =
        length.and_then(|length| Some((length, opened_length(length)?)))
    else {
        error!(?length, "sealed content has a length that none has");
        return status::cannot_be_decrypted();
    };
    if response.status() != StatusCode::OK {
        error!("an object server cut a range out of sealed content");
        return status::cannot_be_decrypted();
    }
    let sealed = Sealed {
        key,
        segments,
        size,
    };
    let again = again.filter(|parts| !is_wanted_whole(parts, response.headers()));
    let selection = match &again {
        Some(parts) => selection(parts, size),
        None => Selection::Whole,
    };
    let (Some(again), Selection::One(_) | Selection::Several(_)) = (again, &selection) else {
        if let Selection::Unsatisfiable = selection {
            unsatisfiable(&mut response, Some(size));
            return response;
        }
        let body = std::mem::take(response.body_mut());
        let opened = sealed.body(body, 0, segments, 0..size);
        response.headers_mut().insert(CONTENT_LENGTH, size.into());
        return with_first(response, opened).await;
    };
    if length <= IN_MEMORY_MAX {
        let body = std::mem::take(response.body_mut());
        let opened = sealed.body(body, 0, segments, 0..size);
        return match opened.collect(IN_MEMORY_MAX).await {
            Ok(content) => {
                full_or_ranges(&mut response, &selection, content, size, boundary);
                response
            }
            Err(problem) => refused(&problem),
        };
    }
    let reader = Reader {
        sealed,
        again,
        version,
        next: next.clone(),
    };
    ranges(response, reader, selection).await
}

/// Does another filter want objects with certain metadata as a whole, whatever the range?
fn is_wanted_whole(request: &Parts, headers: &HeaderMap) -> bool {
    let names = respond::header(&request.headers, WANT_WHOLE).unwrap_or("");
    let mut names = names
        .split(',')
        .map(|name| name.trim().to_ascii_lowercase());
    names.any(|name| !name.is_empty() && headers.contains_key(name.as_str()))
}

fn refused(problem: &BodyError) -> Response {
    error!(%problem, "sealed content cannot be opened");
    status::cannot_be_decrypted()
}

/// The response, if its first piece can be opened: content whose beginning was changed is refused
/// before the response begins.
async fn with_first(mut response: Response, mut body: Body) -> Response {
    let length = body.length();
    match body.next_chunk().await {
        Some(Err(problem)) => refused(&problem),
        None => response,
        Some(Ok(first)) => {
            let rest = stream::unfold(body, |mut body| async move {
                body.next_chunk().await.map(|chunk| (chunk, body))
            });
            let all = stream::once(async { Ok(first) }).chain(rest);
            let length = length.or_else(|| sealed_bytes(response.headers()));
            *response.body_mut() = Body::from_stream(all, length);
            response
        }
    }
}

fn boundary() -> String {
    format!("{:016x}{:016x}", own_thread::random(), own_thread::random())
}

/// Reads ranges of one object.
#[derive(Clone)]
struct Reader {
    sealed: Sealed,
    again: Parts,
    version: Version,
    next: Handler,
}

async fn ranges(mut response: Response, reader: Reader, selection: Selection) -> Response {
    // Its body is not read: the connection is dropped.
    let size = reader.sealed.size;
    *response.body_mut() = Body::empty();
    match selection {
        Selection::One(range) => match reader.read(range.clone()).await {
            Ok(body) => {
                crate::status::make_partial(&mut response);
                let length = range.end - range.start;
                let headers = response.headers_mut();
                headers.insert(CONTENT_LENGTH, length.into());
                let text = cairn_formats::range::content_range(&range, size);
                respond::set(headers, "content-range", text);
                with_first(response, body).await
            }
            Err(problem) => refused(&problem),
        },
        Selection::Several(ranges) => {
            crate::status::make_partial(&mut response);
            let headers = response.headers_mut();
            let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], |v| v.as_bytes());
            let multipart = Multipart::new(boundary(), kind, size);
            respond::set(headers, CONTENT_TYPE.as_str(), multipart.content_type());
            let length = multipart.total_length(&ranges);
            headers.insert(CONTENT_LENGTH, length.into());
            let body = reader.several(&multipart, ranges, length);
            with_first(response, body).await
        }
        _ => response,
    }
}

impl Reader {
    /// Reads a range of the content.
    async fn read(&self, range: Range<u64>) -> Result<Body, BodyError> {
        let segment = SEGMENT_BYTES as u64;
        let (first, end) = (range.start / segment, range.end.div_ceil(segment));
        let sealed = SEALED_SEGMENT_BYTES as u64;
        let mut parts = self.again.clone();
        for name in [
            IF_MATCH,
            IF_NONE_MATCH,
            IF_MODIFIED_SINCE,
            IF_UNMODIFIED_SINCE,
        ] {
            parts.headers.remove(name);
        }
        let bytes = format!("bytes={}-{}", first * sealed, end * sealed - 1);
        respond::set(&mut parts.headers, RANGE.as_str(), bytes);
        let answer = self
            .next
            .call(Request::from_parts(parts, Body::empty()))
            .await;
        let is_it = answer.status() == StatusCode::PARTIAL_CONTENT
            && Version::of(answer.headers()) == self.version;
        if !is_it {
            let problem = format!("its segments were not found again: {}", answer.status());
            return Err(BodyError::Source(problem));
        }
        Ok(self.sealed.body(answer.into_body(), first, end, range))
    }

    /// Several ranges one after the other, with their heads.
    fn several(&self, multipart: &Multipart, ranges: Vec<Range<u64>>, length: u64) -> Body {
        let reader = self.clone();
        let parts: Vec<(Vec<u8>, Range<u64>)> = ranges
            .into_iter()
            .map(|range| (multipart.head(&range), range))
            .collect();
        let parts = stream::iter(parts).then(move |(head, range)| {
            let reader = reader.clone();
            async move {
                let content = match reader.read(range).await {
                    Ok(body) => body,
                    Err(problem) => Body::from_stream(stream::once(async { Err(problem) }), None),
                };
                let content = stream::unfold(content, |mut body| async move {
                    body.next_chunk().await.map(|chunk| (chunk, body))
                });
                let head = stream::once(async { Ok(Bytes::from(head)) });
                let tail = stream::once(async { Ok(Bytes::from_static(Multipart::TAIL)) });
                head.chain(content).chain(tail)
            }
        });
        let end = Bytes::from(multipart.end());
        let all = parts.flatten().chain(stream::once(async { Ok(end) }));
        Body::from_stream(all, Some(length))
    }
}

/// Segments being received.
struct Opening {
    body: Body,
    held: BytesMut,
    segments: Segments,
    number: u64,
    /// Number of the segment after the last one to come.
    end: u64,
    /// Number of segments of the object.
    count: u64,
    /// The requested range of the content.
    range: Range<u64>,
}

impl Sealed {
    /// A range of the content, from a body with the segments from `first` to before `end`.
    fn body(&self, body: Body, first: u64, end: u64, range: Range<u64>) -> Body {
        let Ok(segments) = Segments::new(&self.key) else {
            let failed = Err(BodyError::Source("no key".into()));
            return Body::from_stream(stream::once(async { failed }), None);
        };
        let length = range.end - range.start;
        let opening = Opening {
            body,
            held: BytesMut::new(),
            segments,
            number: first,
            end,
            count: self.segments,
            range,
        };
        let pieces = stream::unfold(Some(opening), |opening| async move {
            let mut opening = opening?;
            match opening.next().await? {
                Ok(piece) => Some((Ok(piece), Some(opening))),
                Err(problem) => Some((Err(problem), None)),
            }
        });
        Body::from_stream(pieces, Some(length))
    }
}

impl Opening {
    /// The requested part of the next segment.
    async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        if self.number == self.end {
            // All segments have arrived; excess data is an error.
            return match self.body.next_chunk().await {
                Some(Ok(_)) => Some(Err(changed("there is more than there was"))),
                Some(Err(error)) => Some(Err(error)),
                None if self.held.is_empty() => None,
                None => Some(Err(changed("there is more than there was"))),
            };
        }
        let is_last = self.number + 1 == self.count;
        while self.held.len() < SEALED_SEGMENT_BYTES {
            match self.body.next_chunk().await {
                Some(Ok(chunk)) => self.held.extend_from_slice(&chunk),
                Some(Err(error)) => return Some(Err(error)),
                None if is_last && !self.held.is_empty() => break,
                None => return Some(Err(BodyError::Disconnected)),
            }
        }
        let length = self.held.len().min(SEALED_SEGMENT_BYTES);
        let mut segment = self.held.split_to(length);
        match self.segments.open(self.number, is_last, &mut segment) {
            Ok(plain) => segment.truncate(plain),
            Err(problem) => return Some(Err(changed(&problem.to_string()))),
        }
        let begins = self.number * SEGMENT_BYTES as u64;
        self.number += 1;
        let from = self
            .range
            .start
            .saturating_sub(begins)
            .min(segment.len() as u64);
        let to = self
            .range
            .end
            .saturating_sub(begins)
            .min(segment.len() as u64);
        let segment = segment.freeze();
        Some(Ok(segment.slice(from as usize..to.max(from) as usize)))
    }
}

fn changed(what: &str) -> BodyError {
    error!("sealed content was changed: {what}");
    BodyError::Source(format!("sealed content was changed: {what}"))
}
