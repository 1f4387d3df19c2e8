//! Cross-origin requests: the preflight, and the headers of an answer to a script elsewhere.

use std::collections::BTreeSet;

use cairn_http::{ContainerInfo, Cors, Response, respond};
use http::StatusCode;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ALLOW, HeaderMap, VARY,
};

use crate::app::Proxy;
use crate::headers;
use crate::request::Incoming;

/// What scripts may read of every answer.
const EXPOSED: [&str; 10] = [
    "cache-control",
    "content-language",
    "content-type",
    "expires",
    "last-modified",
    "pragma",
    "etag",
    "x-timestamp",
    "x-trans-id",
    "x-openstack-request-id",
];

impl Proxy {
    fn is_origin_allowed(&self, cors: &Cors, origin: &str) -> bool {
        let own = cors
            .allow_origin
            .as_deref()
            .unwrap_or("")
            .split_whitespace();
        own.chain(self.options.cors_allow_origin.iter().map(String::as_str))
            .any(|allowed| allowed == "*" || allowed == origin)
    }

    /// OPTIONS of a container or object, or of an account (which knows no CORS).
    pub(crate) async fn options(&self, incoming: &Incoming, allowed: &[&str]) -> Response {
        let mut response = respond::empty(StatusCode::OK);
        respond::set(response.headers_mut(), ALLOW.as_str(), allowed.join(", "));
        let Some(origin) = incoming.header("origin") else {
            return response;
        };
        let Some(container) = incoming.target.container() else {
            return response;
        };
        let info = self
            .container_info(&incoming.context, incoming.target.account(), container)
            .await;
        let method = incoming
            .header("access-control-request-method")
            .unwrap_or("");
        if !self.is_origin_allowed(&info.cors, origin) || !allowed.contains(&method) {
            *response.status_mut() = StatusCode::UNAUTHORIZED;
            return response;
        }
        let headers = response.headers_mut();
        allow_origin(headers, &info.cors, origin);
        if let Some(max_age) = &info.cors.max_age {
            respond::set(headers, ACCESS_CONTROL_MAX_AGE.as_str(), max_age);
        }
        respond::set(
            headers,
            ACCESS_CONTROL_ALLOW_METHODS.as_str(),
            allowed.join(", "),
        );
        let asked: BTreeSet<&str> = incoming
            .header("access-control-request-headers")
            .unwrap_or("")
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .collect();
        if !asked.is_empty() {
            let list: Vec<&str> = asked.into_iter().collect();
            respond::set(
                headers,
                ACCESS_CONTROL_ALLOW_HEADERS.as_str(),
                list.join(", "),
            );
            vary(headers, "Access-Control-Request-Headers");
        }
        response
    }

    /// Adds what a browser needs to an answer to a request with an `Origin`.
    pub(crate) fn add_cors(&self, info: &ContainerInfo, origin: &str, response: &mut Response) {
        if self.options.strict_cors_mode && !self.is_origin_allowed(&info.cors, origin) {
            return;
        }
        let headers = response.headers_mut();
        if !headers.contains_key(ACCESS_CONTROL_EXPOSE_HEADERS) {
            let mut exposed: BTreeSet<String> = EXPOSED.iter().map(|n| (*n).to_owned()).collect();
            exposed.extend(self.options.cors_expose_headers.iter().cloned());
            let meta = headers.keys().map(|name| name.as_str());
            exposed.extend(
                meta.filter(|n| headers::is_exposed_meta(n))
                    .map(str::to_owned),
            );
            let own = info.cors.expose_headers.as_deref().unwrap_or("").split(' ');
            exposed.extend(
                own.map(|n| n.trim().to_ascii_lowercase())
                    .filter(|n| !n.is_empty()),
            );
            let list: Vec<String> = exposed.into_iter().collect();
            respond::set(
                headers,
                ACCESS_CONTROL_EXPOSE_HEADERS.as_str(),
                list.join(", "),
            );
        }
        if !headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
            allow_origin(headers, &info.cors, origin);
        }
    }
}

fn allow_origin(headers: &mut HeaderMap, cors: &Cors, origin: &str) {
    if cors
        .allow_origin
        .as_deref()
        .is_some_and(|o| o.trim() == "*")
    {
        respond::set(headers, ACCESS_CONTROL_ALLOW_ORIGIN.as_str(), "*");
    } else {
        respond::set(headers, ACCESS_CONTROL_ALLOW_ORIGIN.as_str(), origin);
        vary(headers, "Origin");
    }
}

fn vary(headers: &mut HeaderMap, on: &str) {
    let joined = match respond::header(headers, VARY.as_str()) {
        Some(before) => format!("{before}, {on}"),
        None => on.to_owned(),
    };
    respond::set(headers, VARY.as_str(), joined);
}
