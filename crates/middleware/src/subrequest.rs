//! Subrequests: requests by a filter to the rest of the pipeline on behalf of a client's: with its
//! authority, for the segments of a large object, the members of an archive, the objects of a bulk
//! delete; or with only the identification of client and origin.

use cairn_http::context::Context;
use cairn_http::params::with_path_and_query;
use cairn_http::{Body, Request, respond};
use http::header::{HOST, HeaderName, ORIGIN, REFERER, USER_AGENT};
use http::request::Parts;
use http::{HeaderMap, Method};

/// Common part of all subrequests of one client request.
#[derive(Clone)]
pub(crate) struct Subrequests {
    context: Context,
    headers: HeaderMap,
}

impl Subrequests {
    /// `source` is the requester in the log; `agent` is appended to the client's user agent.
    pub(crate) fn of(parts: &Parts, source: &'static str, agent: &str) -> Self {
        let mut context = Context::of(parts).subrequest(source);
        context.content_type_overridden = false;
        context.slo_override = false;
        context.symlink_override = false;
        let mut subrequests = Subrequests {
            context,
            headers: HeaderMap::new(),
        };
        for name in [
            HOST,
            REFERER,
            HeaderName::from_static("x-auth-token"),
            HeaderName::from_static("x-storage-token"),
        ] {
            subrequests.carry(parts, name);
        }
        let client = respond::header(&parts.headers, USER_AGENT.as_str()).unwrap_or("-");
        let agent = format!("{client} {agent}");
        respond::set(&mut subrequests.headers, USER_AGENT.as_str(), agent);
        subrequests
    }

    /// Also copies this header of the client's.
    pub(crate) fn carry(&mut self, parts: &Parts, name: HeaderName) {
        if let Some(value) = parts.headers.get(&name) {
            self.headers.insert(name, value.clone());
        }
    }

    /// A request without a body; `path` is decoded, `query` encoded. `None` if the path is too
    /// long.
    pub(crate) fn request(
        &self,
        method: Method,
        path: &str,
        query: Option<&str>,
    ) -> Option<Request> {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = method;
        *request.uri_mut() = with_path_and_query(path, query)?;
        *request.headers_mut() = self.headers.clone();
        request.extensions_mut().insert(self.context.clone());
        Some(request)
    }
}

const KEPT: [HeaderName; 3] = [HOST, ORIGIN, REFERER];

/// A request for a decoded path. `agent` is appended to the client's user agent. `None` if the path
/// is longer than a URI may be.
pub(crate) fn subrequest(
    parts: &Parts,
    method: Method,
    path: &str,
    query: Option<&str>,
    agent: &str,
    context: Context,
) -> Option<Request> {
    let mut request = Request::new(Body::empty());
    *request.method_mut() = method;
    *request.uri_mut() = with_path_and_query(path, query)?;
    for name in KEPT {
        if let Some(value) = parts.headers.get(&name) {
            request.headers_mut().insert(name, value.clone());
        }
    }
    let user_agent = respond::header(&parts.headers, USER_AGENT.as_str()).unwrap_or("");
    let user_agent = format!("{user_agent} {agent}");
    respond::set(
        request.headers_mut(),
        USER_AGENT.as_str(),
        user_agent.trim(),
    );
    request.extensions_mut().insert(context);
    Some(request)
}
