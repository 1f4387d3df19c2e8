//! Responses of the console's API: JSON, and errors that name the field, the value and the remedy.

use cairn_http::{Body, BodyError, Request, Response, respond};
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

/// A refused request: the status and the message shown on the page.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// The form field that the error concerns.
    pub(crate) field: Option<&'static str>,
}

pub(crate) type Answer = Result<Response, Refusal>;

impl Refusal {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Refusal {
        Refusal {
            status,
            message: message.into(),
            field: None,
        }
    }

    pub(crate) fn field(field: &'static str, message: impl Into<String>) -> Refusal {
        Refusal {
            field: Some(field),
            ..Refusal::new(StatusCode::BAD_REQUEST, message)
        }
    }

    pub(crate) fn not_found(what: impl std::fmt::Display) -> Refusal {
        Refusal::new(StatusCode::NOT_FOUND, format!("{what} is not here"))
    }

    /// An internal error, which is also logged.
    pub(crate) fn internal(error: &anyhow::Error) -> Refusal {
        tracing::warn!(error = format!("{error:#}"), "the console could not answer");
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}"))
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

pub(crate) fn done() -> Response {
    respond::empty(StatusCode::NO_CONTENT)
}

pub(crate) fn no_store(response: &mut Response) {
    let value = HeaderValue::from_static("no-store");
    response.headers_mut().insert(CACHE_CONTROL, value);
}

/// Parses a JSON body of at most `limit` bytes.
pub(crate) async fn read_json<T: DeserializeOwned>(
    request: Request,
    limit: u64,
) -> Result<T, Refusal> {
    let json_type = request
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|t| t.as_bytes().starts_with(b"application/json"));
    if !json_type {
        return Err(Refusal::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "Content-Type: expected application/json",
        ));
    }
    let bytes = collect(request.into_body(), limit).await?;
    serde_json::from_slice(&bytes)
        .map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, format!("body: {error}")))
}

async fn collect(body: Body, limit: u64) -> Result<bytes::Bytes, Refusal> {
    let wait = std::time::Duration::from_secs(30);
    match tokio::time::timeout(wait, body.collect(limit)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(BodyError::TooLarge(limit))) => Err(Refusal::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("body: more than {limit} bytes"),
        )),
        Ok(Err(error)) => Err(Refusal::new(
            StatusCode::BAD_REQUEST,
            format!("body: {error}"),
        )),
        Err(_) => Err(Refusal::new(
            StatusCode::REQUEST_TIMEOUT,
            "body: not here within 30 seconds",
        )),
    }
}
