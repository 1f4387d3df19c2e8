//! Status codes of the refusals of a node, in front of its servers.

use cairn_http::{Response, respond};
use http::StatusCode;
use http::header::{CONNECTION, HeaderValue};

/// Parts of a request's head that may be too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TooLong {
    /// 414
    RequestLine,
    /// 400
    Header,
}

/// Refuses a request and closes the connection, as Swift does: data after such a head is not
/// trusted.
pub(crate) fn head_too_long(part: TooLong) -> Response {
    let mut response = respond::standard(match part {
        TooLong::RequestLine => StatusCode::URI_TOO_LONG,
        TooLong::Header => StatusCode::BAD_REQUEST,
    });
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// 405: a request of replication to a server that is for clients.
pub(crate) fn not_for_clients() -> Response {
    respond::standard(StatusCode::METHOD_NOT_ALLOWED)
}
