//! Status codes of the filters `encryption` and `keymaster`.

use cairn_http::{Response, respond};
use http::StatusCode;

/// Stored data and keys do not match: the client gets none of it.
pub(super) fn cannot_be_decrypted() -> Response {
    respond::text(StatusCode::INTERNAL_SERVER_ERROR, "Error decrypting object")
}

/// A condition or a header cannot be rewritten for the stored object.
pub(super) fn bad_request(reason: String) -> Response {
    respond::text(StatusCode::BAD_REQUEST, reason)
}

/// Servers failed during re-keying; it may be tried again.
pub(super) fn unavailable() -> Response {
    respond::standard(StatusCode::SERVICE_UNAVAILABLE)
}

/// The client's ETag does not match the bytes it sent.
pub(super) fn other_content() -> Response {
    respond::standard(StatusCode::UNPROCESSABLE_ENTITY)
}

/// An object that re-keying cannot handle, with the reason.
pub(super) fn cannot_be_rekeyed(reason: &dyn std::error::Error) -> Response {
    let text = format!("cannot be re-keyed: {reason}");
    respond::text(StatusCode::INTERNAL_SERVER_ERROR, text)
}
