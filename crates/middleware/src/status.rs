//! Status codes that several filters use.

use cairn_http::{Response, respond};
use http::StatusCode;

/// The refusal of a conditional write that the filter would carry out by several requests, which
/// cannot be decided atomically.
pub(crate) fn not_on_a_condition(text: &'static str) -> Response {
    respond::text(StatusCode::NOT_IMPLEMENTED, text)
}

/// Was a conditional write refused, because the condition did not hold or is not supported? After
/// other failures it is unknown whether it was carried out.
pub(crate) fn is_refused_condition(status: StatusCode) -> bool {
    [
        StatusCode::CONFLICT,
        StatusCode::PRECONDITION_FAILED,
        StatusCode::NOT_IMPLEMENTED,
    ]
    .contains(&status)
}
