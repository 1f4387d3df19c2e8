//! Refusals of the object server, and the only place that maps failures to status codes.

use cairn_disk::{DeviceError, DiskError};
use cairn_http::respond::{self, set, standard, text};
use cairn_http::{BodyError, Response};
use cairn_types::Timestamp;
use http::StatusCode;

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

pub(super) fn with_timestamp(code: StatusCode, timestamp: Option<Timestamp>) -> Response {
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
