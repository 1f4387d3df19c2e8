//! Internal client: requests to a proxy's pipeline in this process, without authentication and with
//! access to reserved names; servers are reached over the replication network. Server errors are
//! retried.
//!
//! It is `cairn_client` over a pipeline, with what daemons of Swift add to each request.

use std::time::Duration;

use bytes::Bytes;
use cairn_client::{Accepts, Call, Options, Payload, Retries, RetryCauses, StoreUrl, Transport};
use cairn_http::context::Context;
use cairn_http::params::{quote, quote_path};
use cairn_http::rekey::{Rekey, Rekeyed};
use cairn_http::{Body, Handler, Response};
use http::header::{HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use http::{Method, StatusCode};
use serde_json::Value;

/// Reasons why a response is unusable.
pub use cairn_client::ClientError as InternalClientError;

/// Maximum listing: 10,000 names of at most a few kilobytes each.
const LISTING_MAX_BYTES: u64 = 128 << 20;
/// Maximum bytes read of other responses, whose bodies are ignored.
const RESPONSE_MAX_BYTES: u64 = 64 << 10;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(300);
/// Timeout of an upload, however large and slow.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(86_400);

/// A pipeline that ends in a proxy, without filters for clients.
#[derive(Clone)]
pub struct InternalClient {
    transport: Transport,
    agent: &'static str,
}

impl InternalClient {
    /// Creates a client; `tries` is the maximum attempts of each request.
    pub fn new(pipeline: Handler, agent: &'static str, tries: u32) -> InternalClient {
        let options = Options {
            answer_timeout: REQUEST_TIMEOUT,
            stall_timeout: REQUEST_TIMEOUT,
            // The pauses of Swift's daemons.
            retries: Retries {
                attempts: tries.max(1),
                pause_min: Duration::from_secs(2),
                pause_max: Duration::from_secs(64),
                has_jitter: false,
                causes: RetryCauses::ServerErrors,
            },
            ..Options::default()
        };
        let context = Context {
            allow_reserved: true,
            ..Context::default()
        };
        InternalClient {
            transport: Transport::in_process(pipeline, context, &options),
            agent,
        }
    }

    /// Sends a request; `path` is decoded. Accepts 2xx and `also`; discards the body.
    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, String)],
        also: &[StatusCode],
    ) -> Result<(StatusCode, HeaderMap), InternalClientError> {
        let mut call = self.prepare(method, headers)?;
        call.accepts = Accepts::Also(also);
        let answer = self.fetch(path, call, RESPONSE_MAX_BYTES).await?;
        let (head, _) = answer.into_parts();
        Ok((head.status, head.headers))
    }

    /// One page of a listing after `marker`; empty at its end, or if there is none.
    pub(crate) async fn page(
        &self,
        path: &str,
        marker: &str,
        also: &[StatusCode],
    ) -> Result<Vec<Value>, InternalClientError> {
        let query = format!("format=json&marker={}", quote(marker));
        self.rows(path, &query, also).await
    }

    /// Opens an object for reading. Accepts 2xx and 4xx; the body of a 4xx is meaningless.
    pub(crate) async fn open(
        &self,
        path: &str,
        query: Option<&str>,
        headers: &[(&'static str, String)],
    ) -> Result<Response, InternalClientError> {
        let query = query.map_or(String::new(), |query| format!("?{query}"));
        let mut call = self.prepare(Method::GET, headers)?;
        call.query = &query;
        call.accepts = Accepts::If(|answer| !answer.status().is_server_error());
        self.transport.call(&at(path), &mut call).await
    }

    /// Uploads an object in one attempt, as its body cannot be read again. Accepts 2xx.
    pub(crate) async fn upload(
        &self,
        path: &str,
        headers: HeaderMap,
        body: Body,
    ) -> Result<StatusCode, InternalClientError> {
        let mut call = self.prepare(Method::PUT, &[])?;
        call.headers.extend(headers);
        call.payload = Payload::Stream(body);
        call.timeout = Some(UPLOAD_TIMEOUT);
        let answer = self.transport.call(&at(path), &mut call).await?;
        Ok(answer.status())
    }

    /// Re-keys an object or a container through the filter `encryption`.
    pub(crate) async fn rekey(
        &self,
        path: &str,
        order: Rekey,
    ) -> Result<Rekeyed, InternalClientError> {
        let mut call = self.prepare(Method::POST, &[])?;
        call.extensions.insert(order);
        call.accepts = Accepts::If(|answer| {
            answer.status().is_success() || answer.extensions().get::<Rekeyed>().is_some()
        });
        let mut answer = self.transport.call(&at(path), &mut call).await?;
        let outcome = answer.extensions_mut().remove::<Rekeyed>();
        outcome.ok_or_else(|| unusable(Method::POST, path, "no filter encryption answered"))
    }

    /// Sends a GET; returns headers and body.
    pub(crate) async fn get(
        &self,
        path: &str,
        query: &str,
        headers: &[(&'static str, String)],
    ) -> Result<(HeaderMap, Bytes), InternalClientError> {
        let query = format!("?{query}");
        let mut call = self.prepare(Method::GET, headers)?;
        call.query = &query;
        let answer = self.fetch(path, call, LISTING_MAX_BYTES).await?;
        let (head, body) = answer.into_parts();
        Ok((head.headers, body))
    }

    /// Updates a container with rows, as JSON, in one request. Accepts 2xx.
    pub(crate) async fn update(
        &self,
        path: &str,
        headers: &[(&'static str, String)],
        rows: Bytes,
    ) -> Result<(), InternalClientError> {
        let method = Method::from_bytes(b"UPDATE").unwrap_or_default();
        let mut call = self.prepare(method, headers)?;
        call.payload = rows.into();
        self.fetch(path, call, RESPONSE_MAX_BYTES).await?;
        Ok(())
    }

    /// The rows of a JSON listing with this query; none if the status is in `also`.
    pub(crate) async fn rows(
        &self,
        path: &str,
        query: &str,
        also: &[StatusCode],
    ) -> Result<Vec<Value>, InternalClientError> {
        let query = format!("?{query}");
        let mut call = self.prepare(Method::GET, &[])?;
        call.query = &query;
        call.accepts = Accepts::Also(also);
        let answer = self.fetch(path, call, LISTING_MAX_BYTES).await?;
        if answer.status() != StatusCode::OK {
            return Ok(Vec::new());
        }
        serde_json::from_slice(answer.body())
            .map_err(|_| unusable(Method::GET, path, "no listing in JSON"))
    }

    async fn fetch(
        &self,
        path: &str,
        mut call: Call<'_>,
        limit: u64,
    ) -> Result<http::Response<Bytes>, InternalClientError> {
        self.transport.fetch(&at(path), &mut call, limit).await
    }

    fn prepare(
        &self,
        method: Method,
        headers: &[(&'static str, String)],
    ) -> Result<Call<'static>, InternalClientError> {
        let mut call = Call::new(method);
        for (name, value) in headers {
            let value = HeaderValue::from_str(value)
                .map_err(|_| InternalClientError::Invalid(format!("{name}: {value:?}")))?;
            call.headers.insert(HeaderName::from_static(name), value);
        }
        call.headers
            .insert(USER_AGENT, HeaderValue::from_static(self.agent));
        for name in [
            "x-backend-allow-reserved-names",
            "x-backend-use-replication-network",
        ] {
            call.headers.insert(
                HeaderName::from_static(name),
                HeaderValue::from_static("true"),
            );
        }
        Ok(call)
    }
}

/// The URL of a decoded path.
fn at(path: &str) -> StoreUrl {
    StoreUrl::in_process(&quote_path(path))
}

fn unusable(method: Method, path: &str, problem: &str) -> InternalClientError {
    InternalClientError::Protocol {
        method,
        path: path.to_owned(),
        reason: problem.to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use cairn_http::{Request, handler_fn, respond};
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn server_errors_are_retried_with_the_pauses_of_swifts_daemons() {
        let seen = Arc::new(AtomicU32::new(0));
        let number = seen.clone();
        let pipeline = handler_fn(move |request: Request| {
            assert_eq!(request.uri(), "/v1/a/c%20d/o/?format=json&marker=x%2F");
            assert!(Context::of_request(&request).allow_reserved);
            for (name, value) in [
                ("user-agent", "agent"),
                ("x-backend-allow-reserved-names", "true"),
                ("x-backend-use-replication-network", "true"),
            ] {
                assert_eq!(request.headers()[name], value);
            }
            let answer = match number.fetch_add(1, Ordering::Relaxed) {
                0 => respond::empty(StatusCode::NOT_IMPLEMENTED),
                1 => respond::empty(StatusCode::SERVICE_UNAVAILABLE),
                2 => respond::text(StatusCode::OK, r#"[{"name":"n"}]"#),
                3 => respond::empty(StatusCode::NOT_FOUND),
                _ => respond::empty(StatusCode::TOO_MANY_REQUESTS),
            };
            async move { answer }
        });
        let client = InternalClient::new(pipeline, "agent", 3);
        let start = Instant::now();
        let page = || client.page("/v1/a/c d/o/", "x/", &[StatusCode::NOT_FOUND]);
        assert_eq!(page().await.unwrap()[0]["name"], "n");
        assert_eq!(start.elapsed().as_secs(), 2 + 4);
        assert!(page().await.unwrap().is_empty(), "there is none");
        let error = page().await.unwrap_err();
        assert_eq!(error.status(), Some(StatusCode::TOO_MANY_REQUESTS));
        assert_eq!(seen.load(Ordering::Relaxed), 5);
    }
}
