//! A copy with `?heartbeat=on`: 202 at once, a blank every few seconds so that no proxy between
//! closes the connection, then a report of how the copy ended.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use cairn_http::{Body, Handler, Request, Response, respond};
use cairn_types::metadata::title_case;
use futures_util::{FutureExt, stream};
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, StatusCode};
use serde_json::{Map, Value};

/// The part of the inner answer's body that is reported.
const BODY_LIMIT: u64 = 64 * 1024;

struct Copying {
    put: Pin<Box<dyn Future<Output = Response> + Send>>,
    shown: HeaderMap,
    content_type: &'static str,
    started: bool,
}

/// The 202; the copy runs while its body is read, and stops where the client goes away.
pub(super) fn respond(
    next: Handler,
    sink: Request,
    shown: HeaderMap,
    content_type: &'static str,
    every: Duration,
) -> Response {
    let put = Box::pin(async move {
        let answer = AssertUnwindSafe(next.call(sink)).catch_unwind().await;
        answer.unwrap_or_else(|_| respond::standard(StatusCode::INTERNAL_SERVER_ERROR))
    });
    let copying = Copying {
        put,
        shown,
        content_type,
        started: false,
    };
    let body = stream::unfold(Some(copying), move |copying| async move {
        let mut copying = copying?;
        if !copying.started {
            copying.started = true;
            return Some((Ok(Bytes::from_static(b" ")), Some(copying)));
        }
        match tokio::time::timeout(every, &mut copying.put).await {
            Err(_) => Some((Ok(Bytes::from_static(b" ")), Some(copying))),
            Ok(response) => {
                let report = report(response, &copying.shown, copying.content_type).await;
                Some((Ok(report.into()), None))
            }
        }
    });
    let mut response = Response::new(Body::from_stream(body, None));
    *response.status_mut() = StatusCode::ACCEPTED;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

async fn report(response: Response, shown: &HeaderMap, content_type: &str) -> String {
    let (head, body) = response.into_parts();
    let status = format!(
        "{} {}",
        head.status.as_u16(),
        head.status.canonical_reason().unwrap_or("Unknown")
    );
    let body = body.collect(BODY_LIMIT).await.unwrap_or_default();
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let mut facts: Map<String, Value> = Map::new();
    facts.insert("Response Status".into(), status.clone().into());
    facts.insert(
        "Response Body".into(),
        String::from_utf8_lossy(&body).into(),
    );
    for (name, value) in shown.iter().chain(&head.headers) {
        let key = name.as_str();
        if !key.starts_with("x-object-sysmeta-") && !key.starts_with("x-backend") {
            facts.insert(title_case(key), text(value).into());
        }
    }
    let mut errors = Vec::new();
    if !head.status.is_success() {
        let from = shown.get("x-copied-from").map(text).unwrap_or_default();
        errors.push((cairn_http::params::quote_path(&from), status));
    }
    if content_type == "application/json" {
        let errors: Vec<Value> = errors.into_iter().map(|(n, s)| vec![n, s].into()).collect();
        facts.insert("Errors".into(), errors.into());
        return Value::Object(facts).to_string();
    }
    let mut names: Vec<&String> = facts.keys().collect();
    names.sort();
    let mut out = String::new();
    for name in names {
        out.push_str(&format!(
            "{name}: {}\n",
            facts[name.as_str()].as_str().unwrap_or("")
        ));
    }
    out.push_str("Errors:\n");
    for (name, status) in errors {
        out.push_str(&format!("{name}, {status}\n"));
    }
    out
}
