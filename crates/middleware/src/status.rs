//! Status codes that several filters answer with, for one reason. A code that only one filter
//! answers with is chosen in the filter's own files, which are a service of their own.

use cairn_formats::conditional::Verdict;
use cairn_http::{BodyError, Response, respond};
use http::StatusCode;

/// 200 without content: OPTIONS.
pub(crate) fn ok() -> Response {
    respond::empty(StatusCode::OK)
}

/// Makes the answer one with ranges of the content: 206.
pub(crate) fn make_partial(response: &mut Response) {
    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
}

/// The status of a conditional request: 304 or 412, or `None` where its conditions hold.
pub(crate) fn of_verdict(verdict: Verdict) -> Option<StatusCode> {
    match verdict {
        Verdict::Proceed => None,
        Verdict::NotModified => Some(StatusCode::NOT_MODIFIED),
        Verdict::PreconditionFailed => Some(StatusCode::PRECONDITION_FAILED),
    }
}

/// 401: nobody has signed in.
pub(crate) fn unauthorized() -> Response {
    respond::standard(StatusCode::UNAUTHORIZED)
}

/// Makes the answer to a preflight request a refusal: 401.
pub(crate) fn deny_origin(response: &mut Response) {
    *response.status_mut() = StatusCode::UNAUTHORIZED;
}

/// 403: the one who has signed in may not.
pub(crate) fn forbidden() -> Response {
    respond::standard(StatusCode::FORBIDDEN)
}

/// 408 or 499: a body that did not arrive completely.
pub(crate) fn broken_body(error: &BodyError) -> Response {
    respond::standard(broken_body_code(error))
}

pub(crate) fn broken_body_code(error: &BodyError) -> StatusCode {
    match error {
        BodyError::Timeout(_) => StatusCode::REQUEST_TIMEOUT,
        _ => respond::status(respond::CLIENT_DISCONNECT),
    }
}

/// 409: a segment of a large object is missing, or another than the manifest says.
pub(crate) fn wrong_segment() -> Response {
    respond::standard(StatusCode::CONFLICT)
}

/// 412: a path or a name in a header.
pub(crate) fn bad_path(message: &'static str) -> Response {
    respond::text(StatusCode::PRECONDITION_FAILED, message)
}

/// 414: the path of a request that a filter makes has no form in which it could be sent.
pub(crate) fn path_too_long() -> Response {
    respond::standard(StatusCode::URI_TOO_LONG)
}

/// 416: no range is within the content.
pub(crate) fn no_such_range() -> Response {
    respond::standard(StatusCode::RANGE_NOT_SATISFIABLE)
}

/// 503: the store failed, or answered a filter's own request with less than it needs.
pub(crate) fn unavailable() -> Response {
    respond::standard(StatusCode::SERVICE_UNAVAILABLE)
}

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
