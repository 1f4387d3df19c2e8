//! Helpers for responses: Swift's short HTML bodies for errors, header values, dates.

pub(crate) mod status;

use std::time::{Duration, UNIX_EPOCH};

use cairn_types::Timestamp;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, StatusCode};

use crate::body::Body;
use crate::service::Response;

/// Maximum number of headers that are searched linearly.
const LINEAR_SEARCH_MAX: usize = 24;

/// Swift's status codes beyond the standard ones.
pub const CLIENT_DISCONNECT: u16 = 499;
pub const RATE_LIMITED: u16 = 498;

/// Content type of Swift's error bodies.
pub const HTML: &str = "text/html; charset=UTF-8";

/// The status for a code that may be missing in `http`'s list; 500 if it is not a valid code.
pub fn status(code: u16) -> StatusCode {
    StatusCode::from_u16(code).unwrap_or(status::INVALID_CODE)
}

/// A response without a body.
pub fn empty(code: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = code;
    response
}

/// A response of plain text.
pub fn text(code: StatusCode, message: impl Into<String>) -> Response {
    typed(code, "text/plain; charset=UTF-8", message.into())
}

/// A response of a given content type, with its length.
pub fn typed(code: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response {
    let body = body.into();
    let mut response = Response::new(Body::empty());
    *response.status_mut() = code;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    if let Some(length) = body.length() {
        response.headers_mut().insert(CONTENT_LENGTH, length.into());
    }
    *response.body_mut() = body;
    response
}

/// The standard response for a code: Swift's one-paragraph HTML for errors, no body for success.
pub fn standard(code: StatusCode) -> Response {
    match explanation(code.as_u16()) {
        Some(words) => typed(code, HTML, paragraph(words)),
        None => {
            let mut response = typed(code, HTML, Body::empty());
            if code == StatusCode::NO_CONTENT || code == StatusCode::NOT_MODIFIED {
                response.headers_mut().remove(CONTENT_LENGTH);
            }
            response
        }
    }
}

/// Is the body the one that [`standard`] gives the response's code?
pub fn has_standard_body(response: &Response) -> bool {
    let words = explanation(response.status().as_u16());
    let body = response.body().as_full();
    words
        .zip(body)
        .is_some_and(|(words, body)| body == paragraph(words).as_bytes())
}

fn paragraph((title, text): (&str, &str)) -> String {
    format!("<html><h1>{title}</h1><p>{text}</p></html>")
}

/// The status line `404 Not Found`: a code and the title Swift gives it.
pub fn status_line(code: StatusCode) -> String {
    let title = match explanation(code.as_u16()) {
        Some((title, _)) => title,
        None => code.canonical_reason().unwrap_or("Unknown"),
    };
    format!("{} {title}", code.as_u16())
}

/// A code's title and explanation, each on a line; empty for codes without one.
pub fn explain(code: StatusCode) -> String {
    explanation(code.as_u16()).map_or_else(String::new, |(title, text)| format!("{title}\n{text}"))
}

/// Title and explanation of a code, if Swift sends a body for it.
fn explanation(code: u16) -> Option<(&'static str, &'static str)> {
    Some(match code {
        201 => return None,
        301 => ("Moved Permanently", "The resource has moved permanently."),
        202 => ("Accepted", "The request is accepted for processing."),
        400 => (
            "Bad Request",
            "The server could not comply with the request since it is either malformed or otherwise incorrect.",
        ),
        401 => (
            "Unauthorized",
            "This server could not verify that you are authorized to access the document you requested.",
        ),
        402 => (
            "Payment Required",
            "Access was denied for financial reasons.",
        ),
        403 => ("Forbidden", "Access was denied to this resource."),
        404 => ("Not Found", "The resource could not be found."),
        405 => (
            "Method Not Allowed",
            "The method is not allowed for this resource.",
        ),
        406 => (
            "Not Acceptable",
            "The resource is not available in a format acceptable to your browser.",
        ),
        408 => (
            "Request Timeout",
            "The server has waited too long for the request to be sent by the client.",
        ),
        409 => (
            "Conflict",
            "There was a conflict when trying to complete your request.",
        ),
        410 => ("Gone", "This resource is no longer available."),
        411 => ("Length Required", "Content-Length header required."),
        412 => (
            "Precondition Failed",
            "A precondition for this request was not met.",
        ),
        413 => (
            "Request Entity Too Large",
            "The body of your request was too large for this server.",
        ),
        414 => (
            "Request URI Too Long",
            "The request URI was too long for this server.",
        ),
        415 => (
            "Unsupported Media Type",
            "The request media type is not supported by this server.",
        ),
        416 => (
            "Requested Range Not Satisfiable",
            "The Range requested is not available.",
        ),
        417 => ("Expectation Failed", "Expectation failed."),
        422 => (
            "Unprocessable Entity",
            "Unable to process the contained instructions",
        ),
        498 => ("Rate Limited", "Too many requests; try again later."),
        499 => (
            "Client Disconnect",
            "The client was disconnected during request.",
        ),
        500 => (
            "Internal Error",
            "The server has either erred or is incapable of performing the requested operation.",
        ),
        501 => (
            "Not Implemented",
            "The requested method is not implemented by this server.",
        ),
        502 => ("Bad Gateway", "Bad gateway."),
        503 => (
            "Service Unavailable",
            "The server is currently unavailable. Please try again at a later time.",
        ),
        504 => (
            "Gateway Timeout",
            "A timeout has occurred speaking to a backend server.",
        ),
        507 => (
            "Insufficient Storage",
            "There was not enough space to save the resource.",
        ),
        529 => (
            "Too Many Backend Requests",
            "The server is incapable of performing the requested operation due to too many requests. Slow down.",
        ),
        _ => return None,
    })
}

/// A header's value as text, if it is UTF-8.
pub fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    find(headers, name).and_then(|v| std::str::from_utf8(v.as_bytes()).ok())
}

/// The first header of that name. Each request looks up dozens of headers; comparing with each of a
/// few headers is several times faster than making a `HeaderName` of the text and hashing it.
fn find<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a HeaderValue> {
    if headers.len() > LINEAR_SEARCH_MAX || name.bytes().any(|b| b.is_ascii_uppercase()) {
        return headers.get(name);
    }
    let mut all = headers.iter();
    all.find_map(|(n, value)| (n.as_str() == name).then_some(value))
}

/// A timestamp in a header, if present and valid.
pub fn header_timestamp(headers: &HeaderMap, name: &str) -> Option<Timestamp> {
    header(headers, name).and_then(|t| Timestamp::parse(t).ok())
}

/// A header value of any text; `None` if it has control characters.
pub fn value(text: impl AsRef<str>) -> Option<HeaderValue> {
    HeaderValue::from_bytes(text.as_ref().as_bytes()).ok()
}

/// Sets a header from text; no effect if its name or value cannot be sent.
pub fn set(headers: &mut HeaderMap, name: &str, text: impl AsRef<str>) {
    if let (Ok(name), Some(value)) = (HeaderName::from_bytes(name.as_bytes()), value(text)) {
        headers.insert(name, value);
    }
}

/// The `Last-Modified` of a timestamp: rounded up to the second, as in Swift.
pub fn http_date(timestamp: Timestamp) -> String {
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(timestamp.secs_ceil()))
}
