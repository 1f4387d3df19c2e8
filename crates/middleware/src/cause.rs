//! Requests that a filter makes on its own because of a client's request, of which they carry only
//! the origin and the requester.

use crate::status;
use cairn_http::params::with_path_and_query;
use cairn_http::{Body, Context, Request, Response};
use http::header::{HOST, HeaderValue, REFERER, USER_AGENT};
use http::{Extensions, HeaderMap, Method};

/// Maximum bytes of an unwanted response that are read to reuse its connection.
const DRAIN_MAX_BYTES: u64 = 64 * 1024;

/// The parts kept of the client's request.
pub(crate) struct Cause {
    headers: HeaderMap,
    pub(crate) context: Context,
}

impl Cause {
    pub(crate) fn of(headers: &HeaderMap, extensions: &Extensions) -> Cause {
        let mut kept = HeaderMap::with_capacity(4);
        for name in [HOST, REFERER] {
            if let Some(value) = headers.get(&name) {
                kept.insert(name, value.clone());
            }
        }
        kept.insert(USER_AGENT, HeaderValue::from_static("Swift"));
        Cause {
            headers: kept,
            context: extensions.get::<Context>().cloned().unwrap_or_default(),
        }
    }

    pub(crate) fn of_request(request: &Request) -> Cause {
        Cause::of(request.headers(), request.extensions())
    }

    pub(crate) fn of_parts(parts: &http::request::Parts) -> Cause {
        Cause::of(&parts.headers, &parts.extensions)
    }

    /// A request with the client's authority: the proxy checks the client's permission. `path` is
    /// decoded, `query` encoded.
    pub(crate) fn for_client(
        &self,
        source: &'static str,
        method: Method,
        path: &str,
        query: &str,
    ) -> Result<Request, Response> {
        self.make(self.context.subrequest(source), method, path, query)
    }

    /// A request with the filter's authority: the client's permission was checked before, or does
    /// not matter.
    pub(crate) fn pre_authorized(
        &self,
        source: &'static str,
        method: Method,
        path: &str,
        query: &str,
    ) -> Result<Request, Response> {
        self.make(self.context.pre_authorized(source), method, path, query)
    }

    fn make(
        &self,
        context: Context,
        method: Method,
        path: &str,
        query: &str,
    ) -> Result<Request, Response> {
        let mut request = Request::new(Body::empty());
        *request.uri_mut() =
            with_path_and_query(path, Some(query)).ok_or_else(status::path_too_long)?;
        *request.method_mut() = method;
        *request.headers_mut() = self.headers.clone();
        request.extensions_mut().insert(context);
        Ok(request)
    }
}

/// Reads the rest of an unwanted response, up to a bound.
pub(crate) async fn drain(response: Response) {
    let body = response.into_body();
    if body.as_full().is_none() {
        body.drain(DRAIN_MAX_BYTES).await;
    }
}
