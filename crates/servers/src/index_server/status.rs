//! Why an account or container server refuses: the one place that turns it into a status.

use cairn_http::{Response, respond};
use cairn_index::IndexError;
use http::{HeaderMap, StatusCode};

/// Why there is no success.
#[derive(Debug)]
pub(crate) enum Refused {
    PathNotUtf8,
    MethodNotAllowed,
    /// With the text that is answered.
    BadRequest(String),
    LimitTooHigh {
        max: usize,
    },
    NotAcceptable,
    NotFound,
    /// There was something, or facts about nothing: headers go along.
    NotFoundWith(Box<HeaderMap>),
    Conflict,
    /// The container has this policy, not the one asked for.
    OtherPolicy(i64),
    RecentlyDeleted(Box<HeaderMap>),
    /// The device's name can be none.
    NoDrive,
    /// Sharded containers are not written here.
    NoSharding,
    Index(IndexError),
}

impl From<IndexError> for Refused {
    fn from(error: IndexError) -> Self {
        match error {
            IndexError::NotFound { .. } => Refused::NotFound,
            error => Refused::Index(error),
        }
    }
}

impl Refused {
    pub(crate) fn into_response(self) -> Response {
        match self {
            Refused::PathNotUtf8 => respond::text(
                StatusCode::PRECONDITION_FAILED,
                "Invalid UTF8 or contains NULL",
            ),
            Refused::MethodNotAllowed => respond::standard(StatusCode::METHOD_NOT_ALLOWED),
            Refused::BadRequest(text) => respond::text(StatusCode::BAD_REQUEST, text),
            Refused::LimitTooHigh { max } => respond::text(
                StatusCode::PRECONDITION_FAILED,
                format!("Maximum limit is {max}"),
            ),
            Refused::NotAcceptable => respond::standard(StatusCode::NOT_ACCEPTABLE),
            Refused::NotFound => respond::standard(StatusCode::NOT_FOUND),
            Refused::NotFoundWith(headers) => {
                with_headers(respond::standard(StatusCode::NOT_FOUND), *headers)
            }
            Refused::Conflict => respond::standard(StatusCode::CONFLICT),
            Refused::OtherPolicy(index) => {
                let mut response = respond::standard(StatusCode::CONFLICT);
                let name = "X-Backend-Storage-Policy-Index";
                respond::set(response.headers_mut(), name, index.to_string());
                response
            }
            Refused::RecentlyDeleted(headers) => with_headers(
                respond::text(StatusCode::FORBIDDEN, "Recently deleted"),
                *headers,
            ),
            Refused::NoDrive => respond::standard(StatusCode::INSUFFICIENT_STORAGE),
            Refused::NoSharding => respond::standard(StatusCode::NOT_IMPLEMENTED),
            Refused::Index(error) => index_error(&error),
        }
    }
}

fn index_error(error: &IndexError) -> Response {
    let status = match error {
        IndexError::NotFound { .. } => StatusCode::NOT_FOUND,
        IndexError::Busy { .. } | IndexError::Locked { .. } | IndexError::Closed => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        IndexError::NotMounted { .. }
        | IndexError::NoSpace { .. }
        | IndexError::DriveFailed { .. } => StatusCode::INSUFFICIENT_STORAGE,
        IndexError::Metadata(refused) => {
            return respond::text(StatusCode::BAD_REQUEST, refused.to_string());
        }
        IndexError::Corrupt { .. }
        | IndexError::Quarantined { .. }
        | IndexError::MetadataText { .. }
        | IndexError::Sqlite { .. }
        | IndexError::Io { .. } => StatusCode::INTERNAL_SERVER_ERROR,
    };
    match status {
        StatusCode::NOT_FOUND => {}
        StatusCode::INTERNAL_SERVER_ERROR => tracing::error!(%error, "index request failed"),
        _ => tracing::warn!(%error, status = status.as_u16(), "index request refused"),
    }
    respond::standard(status)
}

fn with_headers(mut response: Response, headers: HeaderMap) -> Response {
    response.headers_mut().extend(headers);
    response
}
