//! Status codes of account and container servers: of their refusals, and of what they did.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cairn_http::{Body, Response, respond};
use cairn_index::IndexError;
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;

/// Minimum interval of log lines about a device that is down.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum devices remembered; if more are down, some are logged more often.
const DEVICES_MAX: usize = 1024;

/// Reasons for a refusal.
#[derive(Debug)]
pub(crate) enum Refused {
    PathNotUtf8,
    MethodNotAllowed,
    /// With the text of the response.
    BadRequest(String),
    LimitTooHigh {
        max: usize,
    },
    NotAcceptable,
    NotFound,
    /// 404 with headers, about a deleted or nonexistent item.
    NotFoundWith(Box<HeaderMap>),
    Conflict,
    /// The container's policy differs from the requested one.
    OtherPolicy(i64),
    RecentlyDeleted(Box<HeaderMap>),
    /// Invalid device name.
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
        _ if !DOWN.should_log(error, Instant::now()) => {}
        StatusCode::INTERNAL_SERVER_ERROR => tracing::error!(%error, "index request failed"),
        _ => tracing::warn!(%error, status = status.as_u16(), "index request refused"),
    }
    respond::standard(status)
}

/// Rate limit of log lines about devices that are unmounted or fail: every request to one is
/// refused, and one line a minute suffices.
static DOWN: DownDevices = DownDevices(Mutex::new(BTreeMap::new()));

struct DownDevices(Mutex<BTreeMap<PathBuf, Instant>>);

impl DownDevices {
    /// Whether to log an error; always, unless a device is down.
    fn should_log(&self, error: &IndexError, now: Instant) -> bool {
        match error {
            IndexError::NotMounted { path } => self.is_due(path, now),
            IndexError::DriveFailed { path, .. } => self.is_due(device_of(path), now),
            _ => true,
        }
    }

    fn is_due(&self, device: &Path, now: Instant) -> bool {
        let mut logged = self.0.lock();
        if logged
            .get(device)
            .is_some_and(|at| now < *at + LOG_INTERVAL)
        {
            return false;
        }
        if logged.len() >= DEVICES_MAX {
            logged.clear();
        }
        logged.insert(device.to_owned(), now);
        true
    }
}

/// Device of a database's path.
fn device_of(path: &Path) -> &Path {
    let is_kind = |folder: &&Path| folder.ends_with("accounts") || folder.ends_with("containers");
    let kind = path.ancestors().skip(1).find(is_kind);
    kind.and_then(Path::parent).unwrap_or(path)
}

/// 200 without content: OPTIONS.
pub(crate) fn ok() -> Response {
    respond::standard(StatusCode::OK)
}

/// 200 with JSON, which Swift reads as ASCII.
pub(crate) fn json(text: String) -> Response {
    respond::typed(StatusCode::OK, "application/json", text)
}

/// 200 with a listing, 204 if it is empty.
pub(crate) fn listing(body: Option<impl Into<Body>>) -> Response {
    match body {
        None => empty(),
        Some(body) => respond::typed(StatusCode::OK, "text/plain", body),
    }
}

/// 201: there is a database, or a row, that was not there.
pub(crate) fn created() -> Response {
    respond::standard(StatusCode::CREATED)
}

/// 202: a database that was there is changed, or rows are taken.
pub(crate) fn accepted() -> Response {
    respond::standard(StatusCode::ACCEPTED)
}

/// 204: metadata are set, or something is deleted.
pub(crate) fn done() -> Response {
    respond::standard(StatusCode::NO_CONTENT)
}

/// 204 without headers of content: HEAD, and an empty listing.
pub(crate) fn empty() -> Response {
    respond::empty(StatusCode::NO_CONTENT)
}

/// 301: a row belongs to a shard.
pub(crate) fn moved() -> Response {
    respond::standard(StatusCode::MOVED_PERMANENTLY)
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
        let told = DownDevices(Mutex::default());
        let missing = |name: &str| IndexError::NotMounted { path: name.into() };
        let start = Instant::now();
        assert!(told.should_log(&missing("sda"), start));
        assert!(!told.should_log(&missing("sda"), start + LOG_INTERVAL / 2));
        assert!(told.should_log(&missing("sdb"), start));
        assert!(told.should_log(&missing("sda"), start + LOG_INTERVAL));
        let failed = |name: &str| IndexError::DriveFailed {
            path: format!("/srv/{name}/containers/7/abc/hash/{name}.db").into(),
            reason: "disk I/O error".into(),
        };
        assert!(told.should_log(&failed("a"), start));
        assert!(!told.should_log(&failed("a"), start));
        assert!(told.should_log(&failed("b"), start));
        assert!(told.should_log(&failed("a"), start + LOG_INTERVAL));
        assert!(told.should_log(&IndexError::Closed, start));
        assert!(told.should_log(&IndexError::Closed, start));
        for number in 0..2 * DEVICES_MAX {
            assert!(told.should_log(&missing(&number.to_string()), start));
        }
    }
}
