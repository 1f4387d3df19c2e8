//! Copies of objects in their stored form, symlinks included, with the filter's own authority: a
//! user with write but no read access still keeps what is overwritten.

use cairn_formats::conditional::parse_date;
use cairn_http::{Context, Handler, Request, Response, respond};
use cairn_types::Timestamp;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, LAST_MODIFIED};
use http::{Method, StatusCode};

use crate::api_path::set;
use crate::cause::Cause;
use crate::filters::symlink::BACKEND_ALLOW_RESERVED;
use crate::trust;
use crate::watch::with_length;

/// Headers of a GET's response that concern the response, or must not be copied.
const NOT_COPIED: [&str; 14] = [
    "accept-ranges",
    "connection",
    "content-location",
    "content-range",
    "date",
    "last-modified",
    "server",
    "transfer-encoding",
    "vary",
    "x-object-version-id",
    "x-openstack-request-id",
    "x-storage-policy",
    "x-timestamp",
    "x-trans-id",
];

pub(super) struct Copies<'c> {
    pub(super) next: &'c Handler,
    pub(super) cause: &'c Cause,
    /// Source of the requests in the log.
    pub(super) source: &'static str,
    pub(super) max_file_size: u64,
    /// Whether reserved names are accessed.
    pub(super) reserved: bool,
}

impl Copies<'_> {
    /// Reads the object at a path; 413 if it is too large to be written again.
    pub(super) async fn get(&self, path: &str) -> Result<Response, Response> {
        let mut request =
            self.cause
                .pre_authorized(self.source, Method::GET, path, "symlink=get")?;
        let newest = HeaderValue::from_static("True");
        request.headers_mut().insert("x-newest", newest);
        let response = self.next.call(request).await;
        let fits = length(&response).is_some_and(|length| length <= self.max_file_size);
        if response.status().is_success() && !fits {
            return Ok(respond::standard(StatusCode::PAYLOAD_TOO_LARGE));
        }
        Ok(response)
    }

    /// Writes the result of [`get`](Self::get) to a path.
    pub(super) async fn put(&self, path: &str, from: Response) -> Result<Response, Response> {
        let mut request = self
            .cause
            .pre_authorized(self.source, Method::PUT, path, "")?;
        let length = length(&from).unwrap_or(0);
        let (head, body) = from.into_parts();
        let headers = request.headers_mut();
        for (name, value) in &head.headers {
            let key = name.as_str();
            let is_about_answer = NOT_COPIED.contains(&key) || key.starts_with("x-backend");
            if !is_about_answer && !trust::is_mark(name) {
                headers.insert(name, value.clone());
            }
        }
        if self.reserved {
            set(headers, BACKEND_ALLOW_RESERVED, "true");
        }
        let slo_size = respond::header(headers, "x-object-sysmeta-slo-size");
        let content_type = respond::header(headers, CONTENT_TYPE.as_str()).unwrap_or("");
        if let Some(size) = slo_size.filter(|size| !size.is_empty()) {
            // The GET did not include it; listings show it as the object's size.
            let content_type = format!("{content_type}; swift_bytes={size}");
            set(headers, CONTENT_TYPE, &content_type);
            override_content_type(&mut request);
        }
        request.headers_mut().insert(CONTENT_LENGTH, length.into());
        *request.body_mut() = with_length(body, length);
        // A static link is copied without checking its target: this filter's authority is not the
        // client's.
        let mut context = Context::of_request(&request);
        context.symlink_override = true;
        request.extensions_mut().insert(context);
        Ok(self.next.call(request).await)
    }
}

/// Allows a request to have a content type with Swift's own parameters.
pub(super) fn override_content_type(request: &mut Request) {
    let mut context = Context::of_request(request);
    context.content_type_overridden = true;
    request.extensions_mut().insert(context);
}

fn length(response: &Response) -> Option<u64> {
    respond::header(response.headers(), CONTENT_LENGTH.as_str())
        .and_then(|length| length.parse().ok())
        .or_else(|| response.body().length())
}

/// Time of an object's last write, by the first of these headers present, or else by
/// `Last-Modified`.
pub(super) fn written_at(response: &Response, headers: &[&str]) -> Option<Timestamp> {
    let given = headers
        .iter()
        .find_map(|name| respond::header_timestamp(response.headers(), name));
    given.or_else(|| {
        let date = respond::header(response.headers(), LAST_MODIFIED.as_str())?;
        Some(Timestamp::from_secs(parse_date(date)?))
    })
}
