//! Status codes that several filters choose.

use cairn_http::{Response, respond};
use http::StatusCode;

/// Answers a write on a condition which the filter makes several requests of: these cannot be
/// decided as one.
pub(crate) fn not_on_a_condition(text: &'static str) -> Response {
    respond::text(StatusCode::NOT_IMPLEMENTED, text)
}
