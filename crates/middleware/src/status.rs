//! Status codes that several filters choose.

use cairn_http::{Response, respond};
use http::StatusCode;

/// Answers a write on a condition which the filter makes several requests of: these cannot be
/// decided as one.
pub(crate) fn not_on_a_condition(text: &'static str) -> Response {
    respond::text(StatusCode::NOT_IMPLEMENTED, text)
}

/// Whether a write on a condition was refused: the condition did not hold, or is not to be had. Of other
/// failures nobody knows whether it was carried out.
pub(crate) fn is_refused_condition(status: StatusCode) -> bool {
    [
        StatusCode::CONFLICT,
        StatusCode::PRECONDITION_FAILED,
        StatusCode::NOT_IMPLEMENTED,
    ]
    .contains(&status)
}
