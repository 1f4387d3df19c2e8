//! The status codes of all answers that the proxy makes itself: one function for each reason, and
//! no other file of this crate chooses a code. Statuses that servers answered are passed on by
//! `write.rs` and `read.rs`.

use cairn_http::{Body, BodyError, Response, respond};
use http::StatusCode;

/// 200 without a body: OPTIONS, and heads that others fill.
pub(crate) fn ok() -> Response {
    respond::empty(StatusCode::OK)
}

/// 200 with what the proxy itself knows.
pub(crate) fn known(content_type: &'static str, body: impl Into<Body>) -> Response {
    respond::typed(StatusCode::OK, content_type, body)
}

/// 204: the empty account that HEAD shows before it is made.
pub(crate) fn known_to_be_empty(content_type: &'static str) -> Response {
    respond::typed(StatusCode::NO_CONTENT, content_type, "")
}

/// 200: the whole object.
pub(crate) fn whole(body: Body) -> Response {
    with_body(StatusCode::OK, body)
}

/// 206: ranges of the object.
pub(crate) fn part(body: Body) -> Response {
    with_body(StatusCode::PARTIAL_CONTENT, body)
}

/// Makes the answer of a container that listed its shards one with a listing: 200. A status without
/// content would suppress it.
pub(crate) fn make_listing(response: &mut Response) {
    *response.status_mut() = StatusCode::OK;
}

/// 202: a write that was accepted but has no effect, as something newer is stored. As in OpenStack
/// Swift.
pub(crate) fn overtaken() -> Response {
    respond::standard(StatusCode::ACCEPTED)
}

/// 400 with the reason.
pub(crate) fn malformed(reason: impl Into<String>) -> Response {
    respond::text(StatusCode::BAD_REQUEST, reason)
}

/// 400: the name of an account or a container is too long. Swift's is HTML.
pub(crate) fn name_too_long(reason: String) -> Response {
    respond::typed(StatusCode::BAD_REQUEST, respond::HTML, reason)
}

/// 400: the first segment of the path is no version of the API.
pub(crate) fn unknown_version() -> Response {
    respond::standard(StatusCode::BAD_REQUEST)
}

/// 400: a DELETE of an account with a query, which is for a middleware that is not there.
pub(crate) fn stray_query() -> Response {
    respond::standard(StatusCode::BAD_REQUEST)
}

/// 401: a signature of `/info` that is not valid, or no longer.
pub(crate) fn bad_signature() -> Response {
    respond::standard(StatusCode::UNAUTHORIZED)
}

/// Makes the answer to a preflight request a refusal: 401.
pub(crate) fn deny_origin(response: &mut Response) {
    *response.status_mut() = StatusCode::UNAUTHORIZED;
}

/// 403: the host is one of `deny_host_headers`.
pub(crate) fn denied_host() -> Response {
    respond::text(StatusCode::FORBIDDEN, "Invalid host header")
}

/// 403: `/info` is not shown, or not what the administrator may see.
pub(crate) fn hidden_info() -> Response {
    respond::standard(StatusCode::FORBIDDEN)
}

/// 403: the account has as many containers as it may.
pub(crate) fn too_many_containers(most: u64) -> Response {
    let text = format!("Reached container limit of {most}");
    respond::text(StatusCode::FORBIDDEN, text)
}

/// 404: the path names nothing that there could be.
pub(crate) fn no_such_path() -> Response {
    respond::standard(StatusCode::NOT_FOUND)
}

pub(crate) fn no_such_account() -> Response {
    respond::standard(StatusCode::NOT_FOUND)
}

pub(crate) fn no_such_container() -> Response {
    respond::standard(StatusCode::NOT_FOUND)
}

pub(crate) fn no_such_object() -> Response {
    respond::standard(StatusCode::NOT_FOUND)
}

/// 404: the ring has no device for the partition.
pub(crate) fn no_devices() -> Response {
    respond::standard(StatusCode::NOT_FOUND)
}

pub(crate) fn not_allowed() -> Response {
    respond::standard(StatusCode::METHOD_NOT_ALLOWED)
}

/// An upload that did not arrive completely, and the code: 408, 413 or 499.
pub(crate) fn broken_upload(error: &BodyError) -> (Response, u16) {
    let code = match error {
        BodyError::Timeout(_) => 408,
        BodyError::TooLarge(_) => 413,
        BodyError::Disconnected | BodyError::Malformed(_) | BodyError::Source(_) => {
            respond::CLIENT_DISCONNECT
        }
    };
    (respond::standard(respond::status(code)), code)
}

/// 409: other conditional writes of the object are under way.
pub(crate) fn contended() -> Response {
    let text = "Other conditional writes of this object are under way: read it and try again";
    respond::text(StatusCode::CONFLICT, text)
}

/// 410: the account was deleted.
pub(crate) fn deleted_account() -> Response {
    respond::standard(StatusCode::GONE)
}

/// 411: an upload that is neither chunked nor says its length.
pub(crate) fn unknown_length() -> Response {
    respond::text(
        StatusCode::LENGTH_REQUIRED,
        "Missing Content-Length header.",
    )
}

/// 412: the condition of a request does not hold.
pub(crate) fn condition_fails() -> Response {
    respond::standard(StatusCode::PRECONDITION_FAILED)
}

/// 412: the path is no path of the API.
pub(crate) fn bad_path(reason: &'static str) -> Response {
    respond::text(StatusCode::PRECONDITION_FAILED, reason)
}

/// 412: a listing is to be longer than listings may be.
pub(crate) fn long_listing(most: usize) -> Response {
    let text = format!("Maximum limit is {most}");
    respond::text(StatusCode::PRECONDITION_FAILED, text)
}

/// 413: the object is larger than objects may be.
pub(crate) fn too_large() -> Response {
    respond::text(StatusCode::PAYLOAD_TOO_LARGE, "Your request is too large.")
}

/// 416: the object has nothing of the range.
pub(crate) fn no_such_range() -> Response {
    respond::standard(StatusCode::RANGE_NOT_SATISFIABLE)
}

/// 422: the content is not that of the given ETag.
pub(crate) fn other_etag() -> Response {
    respond::standard(StatusCode::UNPROCESSABLE_ENTITY)
}

/// 500: the servers stored contents with different ETags.
pub(crate) fn servers_differ() -> Response {
    respond::standard(StatusCode::INTERNAL_SERVER_ERROR)
}

/// 500: a filter replaced a body that another one had to see whole.
pub(crate) fn replaced_body() -> Response {
    respond::standard(StatusCode::INTERNAL_SERVER_ERROR)
}

/// 500: stored metadata lacks what is needed to serve the object.
pub(crate) fn bad_metadata() -> Response {
    respond::standard(StatusCode::INTERNAL_SERVER_ERROR)
}

/// 501 with what is not supported.
pub(crate) fn unsupported(what: impl Into<String>) -> Response {
    respond::text(StatusCode::NOT_IMPLEMENTED, what)
}

/// 503: no quorum of servers agrees.
pub(crate) fn no_quorum() -> Response {
    respond::standard(StatusCode::SERVICE_UNAVAILABLE)
}

/// 503: too few servers take an upload for a quorum.
pub(crate) fn too_few_servers() -> Response {
    respond::standard(StatusCode::SERVICE_UNAVAILABLE)
}

/// 503: no server answers with what is needed, such as the container's policy.
pub(crate) fn unavailable() -> Response {
    respond::standard(StatusCode::SERVICE_UNAVAILABLE)
}

/// 503 with the reason, for a write whose outcome is open or that may be tried again.
pub(crate) fn try_again(reason: &'static str) -> Response {
    respond::text(StatusCode::SERVICE_UNAVAILABLE, reason)
}

/// The refusal of a server, as this proxy's own; `None` if its code is none.
pub(crate) fn refused_by_server(code: u16) -> Option<Response> {
    StatusCode::from_u16(code).ok().map(respond::standard)
}

fn with_body(status: StatusCode, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn uploads_that_do_not_arrive() {
        let code = |error: BodyError| {
            let (response, code) = broken_upload(&error);
            assert_eq!(response.status().as_u16(), code);
            code
        };
        assert_eq!(code(BodyError::Timeout(Duration::from_secs(1))), 408);
        assert_eq!(code(BodyError::TooLarge(1)), 413);
        assert_eq!(code(BodyError::Disconnected), 499);
    }

    #[test]
    fn what_servers_say_is_passed_on_if_it_is_a_status() {
        let said = |code| refused_by_server(code).map(|response| response.status().as_u16());
        assert_eq!([said(422), said(99)], [Some(422), None]);
    }
}
