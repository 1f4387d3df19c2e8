//! Responses in Keystone's format: JSON, and errors as `{"error": {…}}`. All status codes of this
//! service are chosen here.

use cairn_http::{Request, Response, respond};
use http::StatusCode;
use http::header::WWW_AUTHENTICATE;
use serde_json::{Value, json};

/// Maximum bytes of a request's body.
const BODY_MAX_BYTES: u64 = 112 * 1024;

/// Reasons why a request is refused.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The body is invalid; the text describes what is expected.
    Bad(String),
    TooLarge,
    /// Wrong name or password, or no valid token.
    Unauthorized(&'static str),
    Forbidden(&'static str),
    NotFound(String),
    MethodNotAllowed,
    Busy(&'static str),
    /// Too many failed logins; the seconds to wait.
    HeldBack(u64),
}

pub(super) type Answer = Result<Response, Refusal>;

pub(super) const NO_TOKEN: Refusal =
    Refusal::Unauthorized("The request you have made requires authentication.");

impl Refusal {
    fn parts(self) -> (StatusCode, String) {
        match self {
            Refusal::Bad(why) => (StatusCode::BAD_REQUEST, why),
            Refusal::TooLarge => (
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("Request is too large: at most {BODY_MAX_BYTES} bytes."),
            ),
            Refusal::Unauthorized(why) => (StatusCode::UNAUTHORIZED, why.to_owned()),
            Refusal::Forbidden(why) => (StatusCode::FORBIDDEN, why.to_owned()),
            Refusal::NotFound(what) => {
                let what: String = what.chars().take(200).collect();
                (StatusCode::NOT_FOUND, format!("Could not find {what}."))
            }
            Refusal::MethodNotAllowed => (
                StatusCode::METHOD_NOT_ALLOWED,
                "The method is not allowed for this resource.".to_owned(),
            ),
            Refusal::HeldBack(wait) => (
                StatusCode::TOO_MANY_REQUESTS,
                format!("Too many wrong passwords: try again in {wait} seconds."),
            ),
            Refusal::Busy(why) => (StatusCode::SERVICE_UNAVAILABLE, why.to_owned()),
        }
    }

    pub(super) fn into_response(self, host: &str) -> Response {
        let retry_after = match self {
            Refusal::HeldBack(wait) => Some(wait),
            Refusal::Busy(_) => Some(5),
            _ => None,
        };
        let (status, message) = self.parts();
        let title = status.canonical_reason().unwrap_or("Error");
        let body = json!({ "error": {
            "code": status.as_u16(),
            "title": title,
            "message": message,
        }});
        let mut response = of(status, &body);
        if let Some(wait) = retry_after {
            respond::set(response.headers_mut(), "retry-after", wait.to_string());
        }
        if status == StatusCode::UNAUTHORIZED {
            let value = format!("Keystone uri=\"{host}/v3\"");
            respond::set(response.headers_mut(), WWW_AUTHENTICATE.as_str(), value);
        }
        response
    }
}

fn of(status: StatusCode, body: &Value) -> Response {
    let mut response = respond::typed(status, "application/json", body.to_string());
    respond::set(response.headers_mut(), "vary", "X-Auth-Token");
    response
}

pub(super) fn ok(body: &Value) -> Response {
    of(StatusCode::OK, body)
}

pub(super) fn created(body: &Value) -> Response {
    of(StatusCode::CREATED, body)
}

/// Several representations to choose from.
pub(super) fn choices(body: &Value) -> Response {
    of(StatusCode::MULTIPLE_CHOICES, body)
}

/// Done, with nothing to say.
pub(super) fn no_content() -> Response {
    respond::empty(StatusCode::NO_CONTENT)
}

/// Parses the request's body as JSON.
pub(super) async fn json_of(request: Request) -> Result<Value, Refusal> {
    if request
        .body()
        .length()
        .is_some_and(|length| length > BODY_MAX_BYTES)
    {
        return Err(Refusal::TooLarge);
    }
    let body = request.into_body().collect(BODY_MAX_BYTES).await;
    let body = body.map_err(|error| match error {
        cairn_http::BodyError::TooLarge(_) => Refusal::TooLarge,
        error => Refusal::Bad(format!("The body could not be read: {error}.")),
    })?;
    serde_json::from_slice(&body)
        .map_err(|_| Refusal::Bad("The body is not JSON: send a JSON object.".into()))
}
