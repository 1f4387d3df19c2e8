//! Reader of large objects: one segment after the other, each by a request of its own, as one body.
//!
//! The pieces to read come from a [`Listing`], of a static or dynamic large object. The first bytes
//! are fetched before the response begins, so that a segment that is missing or has changed gives a
//! 409; later it breaks off the body. The object server verifies a segment's content against its
//! MD5 while reading; here its ETag and its length are compared with the manifest.

mod answer;
mod rate;

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use cairn_formats::conditional::normalize_etag;
use cairn_formats::range::Multipart;
use cairn_http::{Body, BodyError, Handler, Response, respond};
use futures_util::stream;
use http::header::{CONTENT_LENGTH, ETAG, HeaderValue, RANGE};
use http::{Method, StatusCode};
use thiserror::Error;
use tokio::time::Instant;
use tracing::error;

pub(crate) use answer::{
    etag_is_at, full_or_ranges, is_satisfied, selection, unsatisfiable, want_whole, wanted,
};
pub(crate) use rate::RateLimit;

use crate::status;
use crate::subrequest::Subrequests;

/// Maximum bytes reported of a segment's error body.
const ERROR_BODY_MAX: u64 = 4096;
const ERROR_SHOWN_BYTES: usize = 57;

/// A range of a large object's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Bytes in the manifest itself.
    Inline(Bytes),
    Segment(Segment),
}

/// A range of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Decoded path, `/v1/account/container/object`.
    pub(crate) path: String,
    /// First and last byte, both included; without a last one, to the end.
    pub(crate) first: u64,
    pub(crate) last: Option<u64>,
    /// ETag of the whole object in the manifest.
    pub(crate) etag: Option<String>,
    pub(crate) size: Option<u64>,
    /// Counts for the rate limit.
    pub(crate) is_limited: bool,
}

impl Segment {
    fn range(&self) -> Option<String> {
        match self.last {
            None if self.first == 0 => None,
            None => Some(format!("bytes={}-", self.first)),
            Some(last) if self.first == 0 && self.size == Some(last + 1) => None,
            Some(last) => Some(format!("bytes={}-{last}", self.first)),
        }
    }
}

/// Reasons why reading a large object failed.
#[derive(Debug, Error)]
pub(crate) enum SegmentError {
    #[error("{0}")]
    Listing(String),
    #[error("got {status} ({body}) while retrieving {path}")]
    Refused {
        path: String,
        status: u16,
        body: String,
    },
    #[error(
        "object segment no longer valid: {path} etag: {etag} != {wanted_etag} or \
         {size} != {wanted_size} bytes"
    )]
    Changed {
        path: String,
        etag: String,
        wanted_etag: String,
        size: String,
        wanted_size: String,
    },
    #[error("{path} broke off: {reason}")]
    Broken { path: String, reason: String },
    #[error("the longest time for reading a large object, {0:?}, is over")]
    TooLong(Duration),
}

impl SegmentError {
    /// The response if none has begun yet.
    fn into_response(self) -> Response {
        match self {
            SegmentError::Refused { status: 500.., .. } => status::unavailable(),
            _ => status::wrong_segment(),
        }
    }
}

pub(crate) type NextPiece<'a> =
    Pin<Box<dyn Future<Output = Result<Option<Piece>, SegmentError>> + Send + 'a>>;

/// Source of the pieces to read, in order; may fetch further manifests or listings.
pub(crate) trait Listing: Send + Sync + 'static {
    fn next<'a>(&'a mut self) -> NextPiece<'a>;
}

/// Options of reading.
pub(crate) struct ReadOptions {
    pub(crate) next: Handler,
    pub(crate) requests: Subrequests,
    pub(crate) rate: RateLimit,
    pub(crate) max_time: Duration,
    /// The large object's path, for the log.
    pub(crate) name: String,
}

/// A large object being read.
pub(crate) struct Reading {
    listing: Box<dyn Listing>,
    options: ReadOptions,
    started: Instant,
    open: Option<OpenSegment>,
    /// Bytes fetched before the response began.
    peeked: Option<Bytes>,
}

struct OpenSegment {
    path: String,
    body: Body,
    /// Number of remaining bytes, if known.
    left: Option<u64>,
}

impl Reading {
    /// Fetches the first bytes; the error is the response to the client.
    pub(crate) async fn start(
        listing: impl Listing,
        options: ReadOptions,
    ) -> Result<Reading, Response> {
        let mut reading = Reading {
            listing: Box::new(listing),
            options,
            started: Instant::now(),
            open: None,
            peeked: None,
        };
        match reading.next().await {
            Ok(first) => reading.peeked = first,
            Err(failed) => {
                error!(manifest = reading.options.name, error = %failed, "a large object is broken");
                return Err(failed.into_response());
            }
        }
        Ok(reading)
    }

    /// All bytes as one body.
    pub(crate) fn into_body(self, length: Option<u64>) -> Body {
        let stream = stream::unfold(Some(self), |reading| async move {
            let mut reading = reading?;
            match reading.next().await {
                Ok(Some(chunk)) => Some((Ok(chunk), Some(reading))),
                Ok(None) => None,
                Err(failed) => Some((Err(reading.cut(failed)), None)),
            }
        });
        Body::from_stream(stream, length)
    }

    /// The bytes of several ranges, concatenated in this reading, as a multipart body.
    pub(crate) fn into_multipart(
        self,
        multipart: &Multipart,
        ranges: &[std::ops::Range<u64>],
    ) -> Body {
        let mut parts = std::collections::VecDeque::new();
        for range in ranges {
            parts.push_back(Part::Frame(multipart.head(range).into()));
            parts.push_back(Part::Content(range.end - range.start));
            parts.push_back(Part::Frame(Bytes::from_static(Multipart::TAIL)));
        }
        parts.push_back(Part::Frame(multipart.end().into()));
        let state = Some((self, parts));
        let stream = stream::unfold(state, |state| async move {
            let (mut reading, mut parts) = state?;
            let chunk = match parts.pop_front()? {
                Part::Frame(bytes) => Ok(bytes),
                Part::Content(wanted) => reading.take(wanted).await.inspect(|chunk| {
                    let left = wanted - chunk.len() as u64;
                    if left > 0 {
                        parts.push_front(Part::Content(left));
                    }
                }),
            };
            Some(match chunk {
                Ok(chunk) => (Ok(chunk), Some((reading, parts))),
                Err(failed) => (Err(reading.cut(failed)), None),
            })
        });
        Body::from_stream(stream, Some(multipart.total_length(ranges)))
    }

    fn cut(&self, failed: SegmentError) -> BodyError {
        error!(manifest = self.options.name, error = %failed, "a large object broke off");
        BodyError::Source(failed.to_string())
    }

    /// Reads up to `wanted` bytes, at least one.
    async fn take(&mut self, wanted: u64) -> Result<Bytes, SegmentError> {
        let Some(mut chunk) = self.next().await? else {
            let reason = "fewer bytes than announced".to_owned();
            let path = self.options.name.clone();
            return Err(SegmentError::Broken { path, reason });
        };
        if chunk.len() as u64 > wanted {
            self.peeked = Some(chunk.split_off(wanted as usize));
        }
        Ok(chunk)
    }

    /// The next bytes, at least one; `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, SegmentError> {
        if let Some(peeked) = self.peeked.take() {
            return Ok(Some(peeked));
        }
        if self.started.elapsed() > self.options.max_time {
            return Err(SegmentError::TooLong(self.options.max_time));
        }
        loop {
            if let Some(open) = &mut self.open {
                match open.next().await? {
                    Some(chunk) => return Ok(Some(chunk)),
                    None => self.open = None,
                }
            }
            match self.listing.next().await? {
                None => return Ok(None),
                Some(Piece::Inline(data)) if data.is_empty() => {}
                Some(Piece::Inline(data)) => return Ok(Some(data)),
                Some(Piece::Segment(segment)) => {
                    if segment.is_limited {
                        self.options.rate.wait().await;
                    }
                    self.open = Some(self.fetch(segment).await?);
                }
            }
        }
    }

    /// Requests a segment in its stored form, whatever kind of object it is, so that its ETag is
    /// that of its bytes.
    async fn fetch(&self, segment: Segment) -> Result<OpenSegment, SegmentError> {
        let path = segment.path.clone();
        let query = Some("multipart-manifest=get");
        let request = self.options.requests.request(Method::GET, &path, query);
        let Some(mut request) = request else {
            let reason = "its name is too long".to_owned();
            return Err(SegmentError::Broken { path, reason });
        };
        let range = segment.range();
        if let Some(range) = range.as_deref().and_then(respond::value) {
            request.headers_mut().insert(RANGE, range);
        }
        let response = self.options.next.call(request).await;
        if !response.status().is_success() {
            return Err(refused(path, response).await);
        }
        let length = response
            .headers()
            .get(CONTENT_LENGTH)
            .and_then(number)
            .or_else(|| response.body().length());
        check(&segment, range.is_some(), length, &response)?;
        Ok(OpenSegment {
            path,
            body: response.into_body(),
            left: length,
        })
    }
}

enum Part {
    Frame(Bytes),
    Content(u64),
}

fn number(value: &HeaderValue) -> Option<u64> {
    value.to_str().ok()?.trim().parse().ok()
}

/// Does the segment match the manifest? The length is compared too: an object with the same ETag
/// but another size indicates an attempt to amplify reads.
fn check(
    segment: &Segment,
    is_ranged: bool,
    length: Option<u64>,
    response: &Response,
) -> Result<(), SegmentError> {
    let etag = respond::header(response.headers(), ETAG.as_str()).unwrap_or("");
    let etag = normalize_etag(etag);
    let wanted_length = match (is_ranged, segment.last) {
        (false, _) => segment.size,
        (true, Some(last)) => Some(last + 1 - segment.first),
        (true, None) => None,
    };
    let etag_differs = segment.etag.as_deref().is_some_and(|e| e != etag);
    let length_differs = wanted_length.is_some() && length != wanted_length;
    let whole_for_range = is_ranged && response.status() != StatusCode::PARTIAL_CONTENT;
    if !etag_differs && !length_differs && !whole_for_range {
        return Ok(());
    }
    let show = |size: Option<u64>| size.map_or_else(|| "unknown".to_owned(), |s| s.to_string());
    Err(SegmentError::Changed {
        path: segment.path.clone(),
        etag: etag.to_owned(),
        wanted_etag: segment.etag.clone().unwrap_or_default(),
        size: show(length),
        wanted_size: show(wanted_length),
    })
}

async fn refused(path: String, response: Response) -> SegmentError {
    let status = response.status().as_u16();
    let body = response.into_body().collect(ERROR_BODY_MAX).await;
    let body = body.unwrap_or_default();
    let mut body = String::from_utf8_lossy(&body).into_owned();
    if body.chars().count() > ERROR_SHOWN_BYTES + 3 {
        body = body.chars().take(ERROR_SHOWN_BYTES).collect::<String>() + "...";
    }
    SegmentError::Refused { path, status, body }
}

impl OpenSegment {
    async fn next(&mut self) -> Result<Option<Bytes>, SegmentError> {
        let broken = |path: &str, reason: String| SegmentError::Broken {
            path: path.to_owned(),
            reason,
        };
        match self.body.next_chunk().await {
            Some(Err(error)) => Err(broken(&self.path, error.to_string())),
            Some(Ok(chunk)) => {
                if let Some(left) = &mut self.left {
                    let Some(now) = left.checked_sub(chunk.len() as u64) else {
                        return Err(broken(&self.path, "more bytes than announced".into()));
                    };
                    *left = now;
                }
                Ok(Some(chunk))
            }
            None => match self.left {
                Some(left) if left > 0 => {
                    Err(broken(&self.path, format!("{left} bytes are missing")))
                }
                _ => Ok(None),
            },
        }
    }
}

#[cfg(test)]
mod tests;
