//! Status codes of the answers that the HTTP server makes itself.

use http::StatusCode;

use super::{standard, typed};
use crate::metrics::Metrics;
use crate::service::Response;

/// 500: a code that is none, which a server or a filter gave.
pub(super) const INVALID_CODE: StatusCode = StatusCode::INTERNAL_SERVER_ERROR;

/// 200: the metrics of this process.
pub(crate) fn metrics(text: String) -> Response {
    typed(StatusCode::OK, Metrics::CONTENT_TYPE, text)
}

/// 503: a request that got no slot.
pub(crate) fn busy() -> Response {
    standard(StatusCode::SERVICE_UNAVAILABLE)
}
