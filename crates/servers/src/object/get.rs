//! GET and HEAD: an object's metadata, and its content or ranges of it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_disk::engine::Content;
use cairn_disk::{ObjectInfo, OpenObject, OpenOptions};
use cairn_formats::conditional::{Conditions, Verdict};
use cairn_formats::range::{
    Multipart, Selection, content_range, content_range_unsatisfied, select,
};
use cairn_http::respond::{header, set};
use cairn_http::{Body, Response};
use cairn_types::Timestamp;
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE};
use http::request::Parts;

use super::body::{multipart_body, range_body};
use super::fragments::preferred;
use super::headers::{flag, opens_expired, show};
use super::status::Refusal;
use super::target::{Target, timestamp_or_now};
use super::{Inner, status};

/// Maximum size in bytes of objects that are read in the job that opens them.
const INLINE_MAX_BYTES: u64 = 64 << 10;

/// Request header of proxies that fail over to another replica if this one's content does not match
/// its ETag; the response then states that the content is verified before its last chunk. Other
/// clients get corrupt content once, as from Swift's object server, and must verify it themselves.
const REFUSE_UNSOUND: &str = "x-backend-refuse-unsound";

/// A read, by a request or a call.
pub(super) struct Asked<'a> {
    pub(super) headers: &'a HeaderMap,
    pub(super) target: Target,
    pub(super) now: Timestamp,
}

impl Inner {
    pub(super) async fn get(self: &Arc<Self>, parts: &Parts) -> Result<Response, Refusal> {
        let refuses = flag(&parts.headers, REFUSE_UNSOUND);
        self.get_asked(self.asked(parts)?, refuses).await
    }

    pub(super) async fn head(self: &Arc<Self>, parts: &Parts) -> Result<Response, Refusal> {
        self.head_asked(self.asked(parts)?).await
    }

    fn asked<'a>(&self, parts: &'a Parts) -> Result<Asked<'a>, Refusal> {
        Ok(Asked {
            headers: &parts.headers,
            target: self.target(parts)?,
            now: timestamp_or_now(parts, self)?,
        })
    }

    /// `refuses`: content that does not match its ETag is not sent to its end.
    pub(super) async fn get_asked(
        self: &Arc<Self>,
        asked: Asked<'_>,
        refuses: bool,
    ) -> Result<Response, Refusal> {
        let (headers, target) = (asked.headers, &asked.target);
        let conditions = conditions(headers);
        let limit = if refuses { INLINE_MAX_BYTES } else { 1 };
        let mut open = match self.open(&asked, limit).await {
            Ok(open) => open,
            Err(refusal) => return missing(refusal, &conditions),
        };
        open.content = match open.content {
            Content::Stored(stored) if !refuses => Content::Stored(stored.given_unsound()),
            content => content,
        };
        let mut response = status::object();
        show(response.headers_mut(), &open.info, &self.config);
        if !apply(&conditions, headers, &open.info, &mut response) {
            return Ok(response);
        }
        if refuses && open.is_checked {
            set(response.headers_mut(), REFUSE_UNSOUND, "true");
        }
        let range = header(headers, "range");
        let range = range.filter(|_| !ignores_range(headers, &open.info));
        match select(range, open.info.size) {
            Selection::Whole => {
                let all = 0..open.info.size;
                *response.body_mut() = range_body(self, target, &open.info, open.content, all);
            }
            Selection::One(range) => self.one_range(&mut response, target, open, range),
            Selection::Several(ranges) => {
                self.several_ranges(&mut response, target, open, &ranges);
            }
            Selection::Unsatisfiable => unsatisfiable(&mut response, open.info.size),
        }
        Ok(response)
    }

    pub(super) async fn head_asked(
        self: &Arc<Self>,
        asked: Asked<'_>,
    ) -> Result<Response, Refusal> {
        let conditions = conditions(asked.headers);
        let open = match self.open(&asked, 0).await {
            Ok(open) => open,
            Err(refusal) => {
                // The head alone.
                return missing(refusal, &conditions).map(|r| r.map(|_| Body::empty()));
            }
        };
        let mut response = status::object();
        show(response.headers_mut(), &open.info, &self.config);
        apply(&conditions, asked.headers, &open.info, &mut response);
        Ok(response)
    }

    async fn open(&self, asked: &Asked<'_>, inline_limit: u64) -> Result<OpenObject, Refusal> {
        let target = &asked.target;
        let options = OpenOptions {
            now: asked.now,
            open_expired: opens_expired(asked.headers),
            inline_limit,
            fragment: preferred(asked.headers)?,
        };
        Ok(target.open(options).await?)
    }

    fn one_range(
        self: &Arc<Self>,
        response: &mut Response,
        target: &Target,
        open: OpenObject,
        range: Range<u64>,
    ) {
        status::make_partial(response);
        let headers = response.headers_mut();
        set(
            headers,
            CONTENT_RANGE.as_str(),
            content_range(&range, open.info.size),
        );
        headers.insert(CONTENT_LENGTH, (range.end - range.start).into());
        *response.body_mut() = range_body(self, target, &open.info, open.content, range);
    }

    fn several_ranges(
        self: &Arc<Self>,
        response: &mut Response,
        target: &Target,
        open: OpenObject,
        ranges: &[Range<u64>],
    ) {
        status::make_partial(response);
        let headers = response.headers_mut();
        let content_type = headers.get(CONTENT_TYPE).map(|v| v.as_bytes().to_vec());
        let content_type = content_type.unwrap_or_default();
        let multipart = Multipart::new(boundary(&open.info), &content_type, open.info.size);
        set(headers, CONTENT_TYPE.as_str(), multipart.content_type());
        headers.insert(CONTENT_LENGTH, multipart.total_length(ranges).into());
        let body = multipart_body(self, target, &open.info, open.content, ranges, &multipart);
        *response.body_mut() = body;
    }
}

/// Thirty-two hex digits, different for each response.
fn boundary(info: &ObjectInfo) -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    let spread = (count ^ info.size).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("{:016x}{spread:016x}", info.data_timestamp.ticks())
}

fn conditions(headers: &HeaderMap) -> Conditions<'_> {
    Conditions {
        if_match: header(headers, "if-match"),
        if_none_match: header(headers, "if-none-match"),
        if_modified_since: header(headers, "if-modified-since"),
        if_unmodified_since: header(headers, "if-unmodified-since"),
    }
}

/// The response for a missing object: 412, not 404, with `If-Match: *`.
fn missing(refusal: Refusal, conditions: &Conditions<'_>) -> Result<Response, Refusal> {
    if refusal.is_missing() && conditions.check_missing() == Verdict::PreconditionFailed {
        let not_found = refusal.into_response();
        let mut response = status::condition_needs_object();
        if let Some(timestamp) = not_found.headers().get("x-backend-timestamp") {
            let headers = response.headers_mut();
            headers.insert("x-backend-timestamp", timestamp.clone());
        }
        return Ok(response);
    }
    Err(refusal)
}

/// Changes the response to 304 or 412 if the conditions require it; true if it is unchanged.
fn apply(
    conditions: &Conditions<'_>,
    headers: &HeaderMap,
    info: &ObjectInfo,
    response: &mut Response,
) -> bool {
    if conditions.is_empty() {
        return true;
    }
    let etag = alternate_etag(headers, info).unwrap_or(info.etag());
    match conditions.check(Some(etag), Some(info.timestamp().secs_ceil())) {
        Verdict::Proceed => return true,
        Verdict::NotModified => status::make_not_modified(response),
        Verdict::PreconditionFailed => status::make_condition_failed(response),
    }
    response.headers_mut().insert(CONTENT_LENGTH, 0.into());
    false
}

/// The first existing metadata item named in `X-Backend-Etag-Is-At`: the clients' ETag of an
/// encrypted object.
pub(super) fn alternate_etag<'a>(headers: &HeaderMap, info: &'a ObjectInfo) -> Option<&'a str> {
    let names = header(headers, "x-backend-etag-is-at")?;
    let mut names = names.split(',').map(str::trim);
    let value = names.find_map(|name| info.metadata.get_ignore_case(name))?;
    std::str::from_utf8(value).ok()
}

/// Whether the range must be ignored: middleware needs certain objects (manifests) whole.
fn ignores_range(headers: &HeaderMap, info: &ObjectInfo) -> bool {
    let names = header(headers, "x-backend-ignore-range-if-metadata-present");
    names.is_some_and(|names| {
        let mut names = names.split(',').map(str::trim);
        names.any(|name| !name.is_empty() && info.metadata.get_ignore_case(name).is_some())
    })
}

fn unsatisfiable(response: &mut Response, size: u64) {
    let error = status::no_such_range();
    let (parts, body) = error.into_parts();
    *response.status_mut() = parts.status;
    let headers = response.headers_mut();
    set(
        headers,
        CONTENT_RANGE.as_str(),
        content_range_unsatisfied(size),
    );
    headers.insert(CONTENT_LENGTH, body.length().unwrap_or(0).into());
    *response.body_mut() = body;
}
