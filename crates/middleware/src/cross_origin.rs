//! CORS for logins: preflight requests, and the headers that let a page of another origin read a
//! login's response.
//!
//! A login has no container whose owner could decide, so the proxy's `cors_allow_origin` decides.
//! Without it every origin may log in: a login needs a key that the page must provide, browsers add
//! no credentials (`Access-Control-Allow-Credentials` is never sent), and a token does not give
//! access to a container that does not allow the page's origin.

use std::sync::Arc;

use crate::status;
use cairn_formats::ini::Section;
use cairn_http::{Request, Response, respond};
use http::Method;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD,
    ALLOW, HeaderName, HeaderValue, ORIGIN, VARY,
};

/// Headers of a login's response that scripts may read, besides the default ones.
const EXPOSED: &str = "x-auth-token, x-auth-token-expires, x-storage-token, x-storage-url, \
                       x-subject-token, x-trans-id, x-openstack-request-id, retry-after, \
                       www-authenticate";

/// Origins whose pages may log in.
#[derive(Clone, Debug, Default)]
pub struct CrossOrigin(Arc<Settings>);

#[derive(Debug, Default)]
struct Settings {
    /// Allowed origins; empty: all.
    origins: Vec<String>,
    exposed: Vec<String>,
}

impl CrossOrigin {
    /// Reads the options of a proxy's `[app:…]` section.
    pub fn read(app: &Section) -> CrossOrigin {
        CrossOrigin(Arc::new(Settings {
            origins: app.list_or("cors_allow_origin", ""),
            exposed: app.list_or("cors_expose_headers", ""),
        }))
    }

    /// The response to OPTIONS; `None` for other methods. `methods` are those that the resource
    /// supports.
    pub fn options(&self, request: &Request, methods: &[&str]) -> Option<Response> {
        if request.method() != Method::OPTIONS {
            return None;
        }
        let asked = request.headers();
        let mut response = status::ok();
        let offered = methods.join(", ");
        respond::set(response.headers_mut(), ALLOW.as_str(), &offered);
        let Some(origin) = asked.get(ORIGIN) else {
            return Some(response);
        };
        let method = respond::header(asked, ACCESS_CONTROL_REQUEST_METHOD.as_str()).unwrap_or("");
        if !self.allows(origin) || !methods.contains(&method) {
            status::deny_origin(&mut response);
            return Some(response);
        }
        self.name_origin(origin, &mut response);
        let headers = response.headers_mut();
        respond::set(headers, ACCESS_CONTROL_ALLOW_METHODS.as_str(), &offered);
        if let Some(names) = asked.get(ACCESS_CONTROL_REQUEST_HEADERS) {
            headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
            vary(&mut response, ACCESS_CONTROL_REQUEST_HEADERS);
        }
        Some(response)
    }

    /// Adds headers to a response, errors included, so that a page of this origin may read it.
    pub fn show(&self, origin: Option<&HeaderValue>, response: &mut Response) {
        let Some(origin) = origin.filter(|origin| self.allows(origin)) else {
            return;
        };
        self.name_origin(origin, response);
        let mut exposed = EXPOSED.to_owned();
        for name in &self.0.exposed {
            exposed.push_str(", ");
            exposed.push_str(name);
        }
        let headers = response.headers_mut();
        respond::set(headers, ACCESS_CONTROL_EXPOSE_HEADERS.as_str(), exposed);
    }

    fn allows_all(&self) -> bool {
        let origins = &self.0.origins;
        origins.is_empty() || origins.iter().any(|origin| origin == "*")
    }

    fn allows(&self, origin: &HeaderValue) -> bool {
        let named = |allowed: &String| allowed.as_bytes() == origin.as_bytes();
        self.allows_all() || self.0.origins.iter().any(named)
    }

    fn name_origin(&self, origin: &HeaderValue, response: &mut Response) {
        let value = match self.allows_all() {
            true => HeaderValue::from_static("*"),
            false => {
                vary(response, ORIGIN);
                origin.clone()
            }
        };
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, value);
    }
}

fn vary(response: &mut Response, on: HeaderName) {
    let on = HeaderValue::from(on);
    response.headers_mut().append(VARY, on);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use cairn_http::Body;

    use http::StatusCode;

    use super::*;

    const METHODS: [&str; 2] = ["GET", "OPTIONS"];

    fn of(origins: &str) -> CrossOrigin {
        let pairs = [
            ("cors_allow_origin", origins),
            ("cors_expose_headers", "x-of-ours"),
        ];
        CrossOrigin::read(&Section::from_pairs("app:proxy-server", &pairs))
    }

    fn preflight(origins: &str, headers: &[(&str, &str)]) -> (u16, Vec<Option<String>>) {
        let mut request = http::Request::options("/auth/v1.0");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).unwrap();
        let response = of(origins).options(&request, &METHODS).unwrap();
        let told = [
            "access-control-allow-origin",
            "access-control-allow-methods",
            "access-control-allow-headers",
        ];
        let header = |name| respond::header(response.headers(), name).map(str::to_owned);
        assert_eq!(header("allow").as_deref(), Some("GET, OPTIONS"));
        assert_eq!(header("access-control-allow-credentials"), None);
        (response.status().as_u16(), told.map(header).to_vec())
    }

    #[test]
    fn preflights() {
        let nothing = vec![None; 3];
        let page = [
            ("origin", "https://app.example"),
            ("access-control-request-method", "GET"),
            ("access-control-request-headers", "x-auth-key,x-auth-user"),
        ];
        let allowed = |origin: &str| {
            let told = [origin, "GET, OPTIONS", "x-auth-key,x-auth-user"];
            (200, told.map(|text| Some(text.to_owned())).to_vec())
        };
        assert_eq!(preflight("", &page), allowed("*"));
        assert_eq!(preflight("https://other, *", &page), allowed("*"));
        let named = "https://other, https://app.example";
        assert_eq!(preflight(named, &page), allowed("https://app.example"));
        assert_eq!(preflight("https://other", &page), (401, nothing.clone()));
        assert_eq!(preflight("", &page[..1]), (401, nothing.clone()));
        assert_eq!(preflight("", &[]), (200, nothing));
    }

    #[test]
    fn answers() {
        let origin = HeaderValue::from_static("https://app.example");
        for (origins, asks, allowed, vary) in [
            ("", true, Some("*"), None),
            ("", false, None, None),
            ("https://other", true, None, None),
            (
                "https://app.example",
                true,
                Some("https://app.example"),
                Some("origin"),
            ),
        ] {
            let mut response = respond::empty(StatusCode::UNAUTHORIZED);
            of(origins).show(asks.then_some(&origin), &mut response);
            let header = |name| respond::header(response.headers(), name);
            assert_eq!(header("access-control-allow-origin"), allowed, "{origins}");
            assert_eq!(header("vary"), vary);
            let exposed = header("access-control-expose-headers");
            assert_eq!(exposed.is_some(), allowed.is_some());
            assert!(exposed.is_none_or(|names| names.ends_with(", x-of-ours")));
        }
    }
}
