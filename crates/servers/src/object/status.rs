//! Status codes of the object server: of its refusals, and of what it did.

use bytes::Bytes;
use cairn_disk::{DeviceError, DiskError};
use cairn_http::respond::{self, set, standard, text};
use cairn_http::{Body, BodyError, Response};
use cairn_peer::calls::Called;
use cairn_types::Timestamp;
use http::header::{ETAG, HeaderValue};
use http::{HeaderMap, StatusCode};

/// Reasons for a refusal.
#[derive(Debug)]
pub(super) enum Refusal {
    /// 400 with this text.
    BadRequest(String),
    /// 405
    MethodNotAllowed,
    /// 408: the upload was too slow.
    SlowUpload,
    /// 409: the existing version is as new, or newer.
    Conflict(Option<Timestamp>),
    /// 409: the write's promise is no longer held. The stored version is no evidence: a replicator
    /// may have brought the same write after another one was promised.
    PromiseLost,
    /// 411
    LengthRequired,
    /// 412
    PreconditionFailed(&'static str),
    /// 413
    TooLarge,
    /// 422: the content does not match its ETag.
    EtagMismatch,
    /// 499: the upload broke off.
    Disconnected,
    /// 500
    Failed,
    /// 503 with this text.
    Unavailable(String),
    Disk(DiskError),
}

impl From<DiskError> for Refusal {
    fn from(error: DiskError) -> Self {
        Refusal::Disk(error)
    }
}

impl From<BodyError> for Refusal {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::Timeout(_) => Refusal::SlowUpload,
            BodyError::Malformed(reason) => Refusal::BadRequest(reason),
            BodyError::TooLarge(_) => Refusal::TooLarge,
            BodyError::Disconnected | BodyError::Source(_) => Refusal::Disconnected,
        }
    }
}

/// 200 without content: OPTIONS.
pub(super) fn ok() -> Response {
    respond::empty(StatusCode::OK)
}

/// 200 with what daemons read: a session of SSYNC, a pickle of suffixes.
pub(super) fn for_daemons(body: impl Into<Body>) -> Response {
    respond::typed(StatusCode::OK, respond::HTML, body)
}

/// 200, to which an object's headers and content are added.
pub(super) fn object() -> Response {
    respond::empty(StatusCode::OK)
}

/// 201: the object is written.
pub(super) fn created() -> Response {
    standard(StatusCode::CREATED)
}

/// 201 to a call, with the object's ETag alone: whoever calls adds the other headers of its answer.
pub(super) fn created_by_call(etag: &str) -> Called {
    let mut headers = HeaderMap::with_capacity(1);
    let quoted = HeaderValue::try_from(["\"", etag, "\""].concat());
    headers.extend(quoted.ok().map(|etag| (ETAG, etag)));
    Called {
        status: StatusCode::CREATED,
        headers,
        body: Bytes::new(),
    }
}

/// 202: metadata are written.
pub(super) fn accepted() -> Response {
    standard(StatusCode::ACCEPTED)
}

/// The version before a deletion, which decides the answer.
#[derive(Clone, Copy)]
pub(super) enum Previous {
    /// 204: it is deleted.
    Deleted,
    /// 404: there was none. The tombstone is written all the same.
    Missing,
    /// 409: it is as new, or newer.
    Newer,
}

impl Previous {
    /// Content of a time, before a deletion.
    pub(super) fn of_content(before: Timestamp, deletion: Timestamp) -> Self {
        match before < deletion {
            true => Previous::Deleted,
            false => Previous::Newer,
        }
    }
}

/// The answer to DELETE; `timestamp` is the newer one of the version and the request.
pub(super) fn deleted(previous: Previous, timestamp: Timestamp) -> Response {
    let code = match previous {
        Previous::Deleted => StatusCode::NO_CONTENT,
        Previous::Missing => StatusCode::NOT_FOUND,
        Previous::Newer => StatusCode::CONFLICT,
    };
    with_timestamp(code, Some(timestamp))
}

/// Makes the answer one with ranges of the object: 206.
pub(super) fn make_partial(response: &mut Response) {
    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
}

/// Makes the answer that of a client whose copy is current: 304.
pub(super) fn make_not_modified(response: &mut Response) {
    *response.status_mut() = StatusCode::NOT_MODIFIED;
}

/// Makes the answer that of a condition that does not hold: 412.
pub(super) fn make_condition_failed(response: &mut Response) {
    *response.status_mut() = StatusCode::PRECONDITION_FAILED;
}

/// 412: the condition is that there is an object.
pub(super) fn condition_needs_object() -> Response {
    standard(StatusCode::PRECONDITION_FAILED)
}

/// 416: no range is within the object.
pub(super) fn no_such_range() -> Response {
    standard(StatusCode::RANGE_NOT_SATISFIABLE)
}

/// The response to PROMISE, which is in its headers.
pub(super) fn promise_response() -> Response {
    respond::empty(StatusCode::NO_CONTENT)
}

impl Refusal {
    /// Whether the object is missing for any reason.
    pub(super) fn is_missing(&self) -> bool {
        matches!(
            self,
            Refusal::Disk(
                DiskError::NotExist
                    | DiskError::Deleted { .. }
                    | DiskError::Expired(_)
                    | DiskError::Quarantined(_)
            )
        )
    }

    pub(super) fn into_response(self) -> Response {
        match self {
            Refusal::BadRequest(reason) => text(StatusCode::BAD_REQUEST, reason),
            Refusal::MethodNotAllowed => standard(StatusCode::METHOD_NOT_ALLOWED),
            Refusal::SlowUpload => standard(StatusCode::REQUEST_TIMEOUT),
            Refusal::Conflict(timestamp) => with_timestamp(StatusCode::CONFLICT, timestamp),
            Refusal::PromiseLost => {
                let mut response = standard(StatusCode::CONFLICT);
                set(response.headers_mut(), "x-backend-promise", "lost");
                response
            }
            Refusal::LengthRequired => text(
                StatusCode::LENGTH_REQUIRED,
                "Missing Content-Length header.",
            ),
            Refusal::PreconditionFailed("") => standard(StatusCode::PRECONDITION_FAILED),
            Refusal::PreconditionFailed(reason) => text(StatusCode::PRECONDITION_FAILED, reason),
            Refusal::TooLarge => text(StatusCode::PAYLOAD_TOO_LARGE, "Your request is too large."),
            Refusal::EtagMismatch => standard(StatusCode::UNPROCESSABLE_ENTITY),
            Refusal::Disconnected => standard(respond::status(respond::CLIENT_DISCONNECT)),
            Refusal::Failed => standard(StatusCode::INTERNAL_SERVER_ERROR),
            Refusal::Unavailable(reason) => text(StatusCode::SERVICE_UNAVAILABLE, reason),
            Refusal::Disk(error) => disk_response(error),
        }
    }
}

fn disk_response(error: DiskError) -> Response {
    match error {
        DiskError::Device(DeviceError::Unmounted(_) | DeviceError::Poisoned(_))
        | DiskError::NoSpace
        | DiskError::XattrNotSupported
        | DiskError::ReadOnly => standard(StatusCode::INSUFFICIENT_STORAGE),
        DiskError::Device(
            DeviceError::Busy(_) | DeviceError::Stopped(_) | DeviceError::NoThread(_),
        )
        | DiskError::StateChanged
        | DiskError::Unlike => standard(StatusCode::SERVICE_UNAVAILABLE),
        DiskError::NotExist | DiskError::Quarantined(_) => standard(StatusCode::NOT_FOUND),
        DiskError::Deleted { timestamp } => with_timestamp(StatusCode::NOT_FOUND, Some(timestamp)),
        DiskError::Expired(info) => with_timestamp(StatusCode::NOT_FOUND, Some(info.timestamp())),
        DiskError::BadFragment { .. } => text(StatusCode::BAD_REQUEST, error.to_string()),
        DiskError::Collision { .. } => standard(StatusCode::FORBIDDEN),
        DiskError::Io { .. } if error.is_of_device() => standard(StatusCode::INSUFFICIENT_STORAGE),
        DiskError::Io { .. } | DiskError::Unreadable(_) => {
            tracing::error!(%error, "object operation failed");
            standard(StatusCode::INTERNAL_SERVER_ERROR)
        }
    }
}

fn with_timestamp(code: StatusCode, timestamp: Option<Timestamp>) -> Response {
    let mut response = standard(code);
    if let Some(timestamp) = timestamp {
        let headers = response.headers_mut();
        set(headers, "x-backend-timestamp", timestamp.internal());
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_file_system_is_a_device_that_cannot_serve() {
        let answer = |action, errno| {
            let source = std::io::Error::from_raw_os_error(errno);
            let path = "x".to_owned();
            disk_response(DiskError::Io {
                action,
                path,
                source,
            })
            .status()
        };
        // EUCLEAN; EIO.
        assert_eq!(answer("open", 117), StatusCode::INSUFFICIENT_STORAGE);
        assert_eq!(answer("list", 5), StatusCode::INSUFFICIENT_STORAGE);
        assert_eq!(answer("read", 5), StatusCode::INTERNAL_SERVER_ERROR);
    }
}
