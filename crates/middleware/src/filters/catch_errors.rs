//! Filter `catch_errors`, the outermost: assigns a transaction id and [`Context`] to every request,
//! converts a panic in an inner service into a 500, and detects bodies that violate their declared
//! length.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use cairn_formats::ini::Section;
use cairn_http::context::Context;
use cairn_http::params::quote_path;
use cairn_http::{Body, Clock, Handler, Request, Response, Service, ServiceFuture, respond};
use futures_util::FutureExt;
use http::header::{CONTENT_LENGTH, HeaderName, HeaderValue};
use http::{Method, StatusCode};
use tracing::{Instrument, error, info_span, warn};

use crate::random::Random;
use crate::watch::{Ending, watch};
use crate::{FilterEnv, FilterError};

struct CatchErrors {
    next: Handler,
    trans_id_suffix: String,
    clock: Clock,
    random: Random,
}

pub(crate) fn make(
    section: &Section,
    next: Handler,
    env: &FilterEnv,
) -> Result<Handler, FilterError> {
    Ok(Arc::new(CatchErrors {
        next,
        trans_id_suffix: section.str_or("trans_id_suffix", "").to_owned(),
        clock: env.clock.clone(),
        random: env.random.clone(),
    }))
}

impl Service for CatchErrors {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        Box::pin(self.guard(request))
    }
}

const X_TRANS_ID: HeaderName = HeaderName::from_static("x-trans-id");
const X_OPENSTACK_REQUEST_ID: HeaderName = HeaderName::from_static("x-openstack-request-id");

impl CatchErrors {
    async fn guard(&self, mut request: Request) -> Response {
        let extra = respond::header(request.headers(), "x-trans-id-extra");
        let id: Arc<str> = self.trans_id(extra).into();
        let context = request.extensions_mut().get_or_insert_default::<Context>();
        context.trans_id = id.clone();
        let method = request.method().clone();
        let span = info_span!("request", txid = %id);
        // The call itself is inside too: filters do some of their work before the first await.
        let call = async { self.next.call(request).await };
        let answer = AssertUnwindSafe(call).catch_unwind().instrument(span);
        let mut response = match answer.await {
            Ok(response) => watched(response, &method, &id),
            Err(panic) => {
                let what = panic
                    .downcast_ref::<&str>()
                    .copied()
                    .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
                    .unwrap_or("(no message)");
                error!(txid = %id, panic = what, "a request failed inside the server");
                respond::text(StatusCode::INTERNAL_SERVER_ERROR, "An error occurred")
            }
        };
        if let Ok(value) = HeaderValue::from_str(&id) {
            response.headers_mut().insert(X_TRANS_ID, value.clone());
            response.headers_mut().insert(X_OPENSTACK_REQUEST_ID, value);
        }
        response
    }

    /// A transaction id: `tx`, 21 random hex digits, `-`, the time in ten hex digits, and the
    /// suffix.
    fn trans_id(&self, extra: Option<&str>) -> String {
        let random = u128::from_le_bytes(self.random.bytes()) >> (128 - 21 * 4);
        let mut id = format!("tx{random:021x}-{:010x}", self.clock.now().secs());
        if !self.trans_id_suffix.is_empty() {
            id.push_str(&quote_path(&self.trans_id_suffix));
        }
        if let Some(extra) = extra.filter(|e| !e.is_empty()) {
            id.push('-');
            id.push_str(&quote_path(&extra.chars().take(32).collect::<String>()));
        }
        id
    }
}

/// Wraps the response so that its body's length is checked and a violation is logged. Bodies in
/// memory have the right length by construction.
fn watched(response: Response, method: &Method, id: &Arc<str>) -> Response {
    let status = response.status();
    let bodiless = method == Method::HEAD
        || status == StatusCode::NO_CONTENT
        || status == StatusCode::NOT_MODIFIED;
    if bodiless || response.body().as_full().is_some() {
        return response;
    }
    let announced = response
        .headers()
        .get(CONTENT_LENGTH)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.parse().ok());
    let id = id.clone();
    response.map(|body: Body| {
        watch(body, announced, move |ending, bytes| {
            if let Ending::Failed(why) = ending {
                warn!(txid = %id, bytes, %why, "a response broke off");
            }
        })
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing::{answers, env, filter, filter_in, header, recorder, request, text};
    use bytes::Bytes;
    use cairn_http::handler_fn;

    #[tokio::test]
    async fn every_answer_has_an_id() {
        let (inner, seen) = recorder(|_| respond::empty(StatusCode::OK));
        let app = filter("catch_errors", &[("trans_id_suffix", "-east")], inner);
        let mut asked = request("GET", "/v1/a", &[("x-trans-id-extra", "é/extra")]);
        let remote = "10.1.2.3:4".parse().unwrap();
        asked.extensions_mut().insert(Context {
            remote: Some(remote),
            ..Context::default()
        });
        let response = app.call(asked).await;
        let id = header(&response, "x-trans-id").unwrap();
        assert!(id.ends_with("-east-%C3%A9/extra"), "{id}");
        assert_eq!(&id[..2], "tx");
        assert!(id[2..23].bytes().all(|b| b.is_ascii_hexdigit()));
        assert_eq!(&id[23..34], format!("-{:010x}", 1_700_000_000).as_str());
        assert_eq!(header(&response, "x-openstack-request-id").unwrap(), id);
        let context = Context::of(&seen.lock().unwrap()[0].0);
        assert_eq!(
            (context.trans_id.as_ref(), context.remote),
            (id.as_str(), Some(remote))
        );
    }

    #[tokio::test]
    async fn ids_differ_and_extra_is_cut() {
        let app = filter_in(&env(), "catch_errors", &[], answers(200));
        let long = "x".repeat(1000);
        let mut ids = Vec::new();
        for _ in 0..2 {
            let response = app
                .call(request("GET", "/", &[("x-trans-id-extra", &long)]))
                .await;
            ids.push(header(&response, "x-trans-id").unwrap());
        }
        assert_ne!(ids[0], ids[1]);
        assert_eq!(ids[0].len(), 34 + 1 + 32);
    }

    #[tokio::test]
    async fn a_panic_is_a_500() {
        let inner = handler_fn(|_| async { panic!("on purpose") });
        let response = filter("catch_errors", &[], inner)
            .call(request("GET", "/", &[]))
            .await;
        assert_eq!(response.status(), 500);
        assert!(header(&response, "x-trans-id").is_some());
        assert_eq!(text(response).await, "An error occurred");
    }

    #[tokio::test]
    async fn short_and_long_bodies_are_errors() {
        for (length, fails) in [("2", true), ("3", false), ("4", true)] {
            let (inner, _) = recorder(move |_| {
                let chunks = futures_util::stream::iter([Ok(Bytes::from_static(b"abc"))]);
                let mut response = Response::new(Body::from_stream(chunks, None));
                respond::set(response.headers_mut(), "content-length", length);
                response
            });
            let app = filter("catch_errors", &[], inner);
            let response = app.call(request("GET", "/v1/a/c/o", &[])).await;
            assert_eq!(
                response.into_body().collect(10).await.is_err(),
                fails,
                "{length}"
            );
        }
    }
}
