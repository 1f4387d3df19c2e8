//! Answers of the console's API, and the only place that chooses their status codes: JSON, and
//! refusals that name the field, the value and the remedy.

use cairn_http::{Body, Response, respond};
use http::header::{CACHE_CONTROL, HeaderValue};
use http::{Method, StatusCode};
use serde::Serialize;
use serde_json::json;

/// A refused request: the status and the message shown on the page.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    message: String,
    /// The form field that the error concerns.
    pub(crate) field: Option<&'static str>,
}

pub(crate) type Answer = Result<Response, Refusal>;

impl Refusal {
    fn new(status: StatusCode, message: impl Into<String>) -> Refusal {
        Refusal {
            status,
            message: message.into(),
            field: None,
        }
    }

    fn about(field: &'static str, status: StatusCode, message: impl Into<String>) -> Refusal {
        Refusal {
            field: Some(field),
            ..Refusal::new(status, message)
        }
    }

    /// 400: a field of a form.
    pub(crate) fn field(field: &'static str, message: impl Into<String>) -> Refusal {
        Refusal::about(field, StatusCode::BAD_REQUEST, message)
    }

    /// 400: a path or a body.
    pub(crate) fn malformed(message: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, message)
    }

    /// 401: no session.
    pub(crate) fn not_signed_in() -> Refusal {
        Refusal::about("session", StatusCode::UNAUTHORIZED, "sign in first")
    }

    /// 401: a session without a user of the store.
    pub(crate) fn no_store_user() -> Refusal {
        let words = "sign in to the store first";
        Refusal::about("store", StatusCode::UNAUTHORIZED, words)
    }

    /// 403: the password is another.
    pub(crate) fn wrong_password() -> Refusal {
        let words = "This is not the console's password.";
        Refusal::about("password", StatusCode::FORBIDDEN, words)
    }

    /// 403: the store does not take the user's key.
    pub(crate) fn wrong_key(message: String) -> Refusal {
        Refusal::about("key", StatusCode::FORBIDDEN, message)
    }

    /// 403: the request comes from another site's page.
    pub(crate) fn foreign_page(message: &str) -> Refusal {
        Refusal::new(StatusCode::FORBIDDEN, message)
    }

    /// 403: a path outside of the user's account.
    pub(crate) fn outside_account(account: &str) -> Refusal {
        let words = format!("path: only {account} is open to this user here");
        Refusal::new(StatusCode::FORBIDDEN, words)
    }

    /// 403: a workload that uses local files which runs may not use.
    pub(crate) fn no_local_access(message: String) -> Refusal {
        Refusal::about("text", StatusCode::FORBIDDEN, message)
    }

    pub(crate) fn not_found(what: impl std::fmt::Display) -> Refusal {
        Refusal::new(StatusCode::NOT_FOUND, format!("{what} is not here"))
    }

    /// 405
    pub(crate) fn not_offered(method: &Method) -> Refusal {
        let words = format!("{method} is not offered here");
        Refusal::new(StatusCode::METHOD_NOT_ALLOWED, words)
    }

    /// 408: a body.
    pub(crate) fn too_slow() -> Refusal {
        let words = "body: not here within 30 seconds";
        Refusal::new(StatusCode::REQUEST_TIMEOUT, words)
    }

    /// 409: the run is in another state.
    pub(crate) fn conflict(message: &str) -> Refusal {
        Refusal::new(StatusCode::CONFLICT, message)
    }

    /// 413: a body of more than `limit` bytes.
    pub(crate) fn too_large(limit: u64) -> Refusal {
        let words = format!("body: more than {limit} bytes");
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, words)
    }

    /// 415: a body.
    pub(crate) fn not_json() -> Refusal {
        let words = "Content-Type: expected application/json";
        Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, words)
    }

    /// 421: the request is for another host.
    pub(crate) fn unknown_host(message: String) -> Refusal {
        Refusal::new(StatusCode::MISDIRECTED_REQUEST, message)
    }

    /// 422: runs that cannot be compared.
    pub(crate) fn not_comparable(error: impl std::fmt::Display) -> Refusal {
        Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string())
    }

    /// 429: wrong passwords.
    pub(crate) fn too_many_tries(seconds: u64) -> Refusal {
        let words = format!("Too many wrong passwords: try again in {seconds} seconds.");
        Refusal::about("password", StatusCode::TOO_MANY_REQUESTS, words)
    }

    /// An internal error, which is also logged.
    pub(crate) fn internal(error: &anyhow::Error) -> Refusal {
        tracing::warn!(error = format!("{error:#}"), "the console could not answer");
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}"))
    }

    /// 502: the store's sign-in failed.
    pub(crate) fn store_failed(message: String) -> Refusal {
        Refusal::new(StatusCode::BAD_GATEWAY, message)
    }

    /// 503: no more runs may wait.
    pub(crate) fn queue_full(max: usize) -> Refusal {
        let words = format!("{max} runs are waiting already: cancel some, or come back later");
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, words)
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// Is it the refusal of a secret, which counts as a failed try?
    pub(crate) fn is_forbidden(&self) -> bool {
        self.status == StatusCode::FORBIDDEN
    }

    pub(crate) fn response(&self) -> Response {
        let body = json!({"error": self.message, "field": self.field});
        json_with(self.status, &body)
    }
}

pub(crate) fn json(value: &impl Serialize) -> Response {
    json_with(StatusCode::OK, value)
}

fn json_with(status: StatusCode, value: &impl Serialize) -> Response {
    // All serialised values have string keys, so this cannot fail.
    let text = serde_json::to_vec(value).unwrap_or_default();
    let mut response = respond::typed(status, "application/json", text);
    no_store(&mut response);
    response
}

/// 200 with a file, an archive or a stream of events.
pub(crate) fn content(content_type: &'static str, body: impl Into<Body>) -> Response {
    respond::typed(StatusCode::OK, content_type, body)
}

/// 204
pub(crate) fn done() -> Response {
    respond::empty(StatusCode::NO_CONTENT)
}

/// 304: the browser has this version.
pub(crate) fn not_modified() -> Response {
    respond::empty(StatusCode::NOT_MODIFIED)
}

pub(crate) fn no_store(response: &mut Response) {
    let value = HeaderValue::from_static("no-store");
    response.headers_mut().insert(CACHE_CONTROL, value);
}
