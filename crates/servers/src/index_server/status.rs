//! Why an account or container server refuses: the one place that turns it into a status.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cairn_http::{Response, respond};
use cairn_index::IndexError;
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;

/// From one line about a device that is down to the next.
const TOLD_EVERY: Duration = Duration::from_secs(60);
/// Devices remembered; with more than these down, some are told about more often.
const TOLD_MAX: usize = 1024;

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
        IndexError::BadRow { reason } => {
            return respond::text(StatusCode::BAD_REQUEST, reason.clone());
        }
        IndexError::Corrupt { .. }
        | IndexError::Quarantined { .. }
        | IndexError::MetadataText { .. }
        | IndexError::Sqlite { .. }
        | IndexError::Io { .. } => StatusCode::INTERNAL_SERVER_ERROR,
    };
    match status {
        StatusCode::NOT_FOUND => {}
        _ if !DOWN.is_news(error, Instant::now()) => {}
        StatusCode::INTERNAL_SERVER_ERROR => tracing::error!(%error, "index request failed"),
        _ => tracing::warn!(%error, status = status.as_u16(), "index request refused"),
    }
    respond::standard(status)
}

/// Devices that are not mounted or fail, and when that was told last: every request to one is
/// refused, and one line a minute says it all.
static DOWN: Told = Told(Mutex::new(BTreeMap::new()));

struct Told(Mutex<BTreeMap<PathBuf, Instant>>);

impl Told {
    /// Should this error be logged? Others than of a device that is down always.
    fn is_news(&self, error: &IndexError, now: Instant) -> bool {
        match error {
            IndexError::NotMounted { path } => self.is_due(path, now),
            IndexError::DriveFailed { path, .. } => self.is_due(device_of(path), now),
            _ => true,
        }
    }

    fn is_due(&self, device: &Path, now: Instant) -> bool {
        let mut told = self.0.lock();
        if told.get(device).is_some_and(|at| now < *at + TOLD_EVERY) {
            return false;
        }
        if told.len() >= TOLD_MAX {
            told.clear();
        }
        told.insert(device.to_owned(), now);
        true
    }
}

/// The device that a database is on.
fn device_of(path: &Path) -> &Path {
    let is_kind = |folder: &&Path| folder.ends_with("accounts") || folder.ends_with("containers");
    let kind = path.ancestors().skip(1).find(is_kind);
    kind.and_then(Path::parent).unwrap_or(path)
}

fn with_headers(mut response: Response, headers: HeaderMap) -> Response {
    response.headers_mut().extend(headers);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_device_is_told_once_a_minute() {
        let told = Told(Mutex::default());
        let missing = |name: &str| IndexError::NotMounted { path: name.into() };
        let start = Instant::now();
        assert!(told.is_news(&missing("sda"), start));
        assert!(!told.is_news(&missing("sda"), start + TOLD_EVERY / 2));
        assert!(told.is_news(&missing("sdb"), start));
        assert!(told.is_news(&missing("sda"), start + TOLD_EVERY));
        let failed = |name: &str| IndexError::DriveFailed {
            path: format!("/srv/{name}/containers/7/abc/hash/{name}.db").into(),
            reason: "disk I/O error".into(),
        };
        assert!(told.is_news(&failed("a"), start));
        assert!(!told.is_news(&failed("a"), start));
        assert!(told.is_news(&failed("b"), start));
        assert!(told.is_news(&failed("a"), start + TOLD_EVERY));
        assert!(told.is_news(&IndexError::Closed, start));
        assert!(told.is_news(&IndexError::Closed, start));
        for number in 0..2 * TOLD_MAX {
            assert!(told.is_news(&missing(&number.to_string()), start));
        }
    }
}
