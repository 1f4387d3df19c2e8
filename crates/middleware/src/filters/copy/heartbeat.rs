//! Copy with `?heartbeat=on`: responds 202 at once, sends beats, then a report of the outcome.

use std::time::Duration;

use cairn_http::{Handler, Request, Response, respond};
use cairn_types::metadata::title_case;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, StatusCode};

use crate::heartbeat::{self, Beats};
use crate::report::Report;

/// Maximum bytes of the inner response's body in the report.
const BODY_MAX_BYTES: u64 = 64 * 1024;

/// The response with 202; the copy runs while its body is read, and stops if the client
/// disconnects.
pub(super) async fn respond(
    next: Handler,
    sink: Request,
    shown: HeaderMap,
    content_type: &'static str,
    every: Duration,
) -> Response {
    let beats = Beats {
        every,
        first: " ",
        at_once: true,
        separator: "",
    };
    let copy = async move {
        let response = next.call(sink).await;
        report(response, &shown).await.render(content_type, "copy")
    };
    let mut response = Response::new(heartbeat::body(copy, beats).await);
    *response.status_mut() = StatusCode::ACCEPTED;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

async fn report(response: Response, shown: &HeaderMap) -> Report {
    let (head, body) = response.into_parts();
    let status = respond::status_line(head.status);
    let body = body.collect(BODY_MAX_BYTES).await.unwrap_or_default();
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let mut report = Report::default();
    report.set("Response Status", status.clone());
    report.set("Response Body", String::from_utf8_lossy(&body).into_owned());
    for (name, value) in shown.iter().chain(&head.headers) {
        let key = name.as_str();
        if !key.starts_with("x-object-sysmeta-") && !key.starts_with("x-backend") {
            report.set(title_case(key), text(value));
        }
    }
    if !head.status.is_success() {
        let from = shown.get("x-copied-from").map(text).unwrap_or_default();
        let from = cairn_http::params::quote_path(&from);
        report.errors.push((from, status));
    }
    report
}
