//! Errors of calls to a store, with the information whether the store may have carried out the
//! request.

use std::time::Duration;

use http::{Method, StatusCode};
use thiserror::Error;

/// A failed call. Cheap to clone, for all that wait for one call.
#[derive(Clone, Debug, Error)]
pub enum ClientError {
    /// No connection after all attempts: the request was not sent.
    #[error("{method} {path}: cannot connect to {host}: {reason}")]
    Connect {
        method: Method,
        path: String,
        host: String,
        reason: String,
    },
    /// The connection broke, or a response was cut short. The request may have been carried out.
    #[error("{method} {path}: the connection to {host} broke: {reason}")]
    Broken {
        method: Method,
        path: String,
        host: String,
        reason: String,
    },
    /// No response in time. The request may have been carried out.
    #[error("{method} {path}: no answer from {host} within {after:?}")]
    Timeout {
        method: Method,
        path: String,
        host: String,
        after: Duration,
    },
    /// A response with an error status.
    #[error("{method} {path}: the store answered {status}{}", Reason(reason))]
    Status {
        method: Method,
        path: String,
        status: StatusCode,
        /// The first line of its body.
        reason: String,
    },
    /// An invalid response.
    #[error("{method} {path}: {reason}")]
    Protocol {
        method: Method,
        path: String,
        reason: String,
    },
    /// A name, header or range that no request can carry.
    #[error("{0}")]
    Invalid(String),
    /// The trusted certificates cannot be read.
    #[error("TLS: {0}")]
    Tls(String),
    #[error(transparent)]
    Login(#[from] LoginError),
}

struct Reason<'a>(&'a str);

impl std::fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            "" => Ok(()),
            reason => write!(f, " ({reason})"),
        }
    }
}

impl ClientError {
    /// The status of an error response.
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            ClientError::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    pub fn is_not_found(&self) -> bool {
        self.status() == Some(StatusCode::NOT_FOUND)
    }

    /// Did a condition of the request (`If-Match`, `If-None-Match`) not hold?
    pub fn is_condition(&self) -> bool {
        self.status() == Some(StatusCode::PRECONDITION_FAILED)
    }

    /// May the store have carried out the request, or still do so, so that only a read can tell?
    ///
    /// This includes every 503: stores that evaluate conditions at commit state in its text that
    /// the outcome is unknown; others, and proxies in front of them, do not.
    pub fn is_in_doubt(&self) -> bool {
        match self {
            ClientError::Broken { .. } | ClientError::Timeout { .. } => true,
            ClientError::Status { status, .. } => {
                matches!(status.as_u16(), 500 | 502 | 503 | 504)
            }
            ClientError::Protocol { .. } => true,
            ClientError::Connect { .. }
            | ClientError::Invalid(_)
            | ClientError::Tls(_)
            | ClientError::Login(_) => false,
        }
    }

    /// May the same request succeed later, since the store was unreachable, slow, or busy?
    pub fn is_passing(&self) -> bool {
        match self {
            ClientError::Connect { .. }
            | ClientError::Broken { .. }
            | ClientError::Timeout { .. } => true,
            ClientError::Status { status, .. } => is_passing(*status),
            ClientError::Protocol { .. } | ClientError::Invalid(_) | ClientError::Tls(_) => false,
            ClientError::Login(LoginError::Status { status, .. }) => is_passing(*status),
            ClientError::Login(error) => matches!(error, LoginError::Unreachable { .. }),
        }
    }
}

/// Outcome of a write that was not acknowledged, as its sender needs to know it.
#[derive(Clone, Debug, Error)]
pub enum WriteError {
    /// It did not take place: the condition did not hold (412), or other writers prevented it
    /// (409).
    #[error(transparent)]
    Lost(ClientError),
    /// It may have taken place.
    #[error(transparent)]
    InDoubt(ClientError),
    /// It did not take place.
    #[error(transparent)]
    Failed(ClientError),
}

impl WriteError {
    /// The underlying error of the call.
    pub fn into_inner(self) -> ClientError {
        match self {
            WriteError::Lost(error) | WriteError::InDoubt(error) | WriteError::Failed(error) => {
                error
            }
        }
    }
}

impl From<ClientError> for WriteError {
    fn from(error: ClientError) -> WriteError {
        match error.status() {
            Some(StatusCode::PRECONDITION_FAILED | StatusCode::CONFLICT) => WriteError::Lost(error),
            _ if error.is_in_doubt() => WriteError::InDoubt(error),
            _ => WriteError::Failed(error),
        }
    }
}

/// 498 is the status of rate limits. 507, a store without free space, is not included: waiting does
/// not help.
fn is_passing(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 429 | 498 | 500 | 502 | 503 | 504)
}

/// Reasons why a login failed.
#[derive(Clone, Debug, Error)]
pub enum LoginError {
    #[error(
        "no login: set ST_AUTH, ST_USER and ST_KEY; or OS_AUTH_URL, OS_USERNAME, OS_PASSWORD and \
         OS_PROJECT_NAME; or OS_STORAGE_URL and OS_AUTH_TOKEN"
    )]
    None,
    #[error("{variable}: not set, and needed beside {beside}")]
    Missing {
        variable: &'static str,
        beside: &'static str,
    },
    #[error("{variable}={value:?}: {reason}")]
    Variable {
        variable: &'static str,
        value: String,
        reason: &'static str,
    },
    #[error("{url:?}: {reason}")]
    Url { url: String, reason: String },
    #[error("the login at {url} cannot be reached: {reason}")]
    Unreachable { url: String, reason: String },
    #[error("the login at {url} refused user {user:?} ({status})")]
    Refused {
        url: String,
        user: String,
        status: StatusCode,
    },
    #[error("the login at {url} answered {status}")]
    Status { url: String, status: StatusCode },
    #[error("the login at {url} answered what no login does: {reason}")]
    NotALogin { url: String, reason: String },
    /// The trusted certificates cannot be read.
    #[error("TLS: {0}")]
    Tls(String),
}
