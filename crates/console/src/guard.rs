//! Checks of every request: its Host, the origin of a page that changes something, and response
//! headers that keep a browser from loading, framing or sniffing content.
//!
//! To prevent DNS rebinding, only addresses, `localhost` and configured names are accepted as Host.
//! A change needs a header that a foreign page cannot send without a preflight, and an Origin, if
//! present, of this host.

use std::net::IpAddr;

use cairn_http::{Request, Response};
use http::Method;
use http::header::{
    CONTENT_SECURITY_POLICY, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};

use crate::status::Refusal;

/// Allows only this host's resources, no inline scripts and no frames.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' \
                      data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; \
                      form-action 'self'";
/// Header sent by the console's page with every request that changes something.
const OWN_HEADER: &str = "x-cairn-console";

pub(crate) struct Guard {
    hosts: Vec<String>,
}

impl Guard {
    pub(crate) fn new(hosts: Vec<String>) -> Guard {
        Guard {
            hosts: hosts.iter().map(|h| h.to_ascii_lowercase()).collect(),
        }
    }

    pub(crate) fn check(&self, request: &Request) -> Result<(), Refusal> {
        let host = header(request.headers(), HOST).unwrap_or_default();
        if !self.knows(host) {
            return Err(Refusal::unknown_host(format!(
                "Host {host:?} is not known here: use an address or localhost, or name it \
                     with --console-host"
            )));
        }
        if matches!(*request.method(), Method::GET | Method::HEAD) {
            return Ok(());
        }
        let refused = |why: &str| Err(Refusal::foreign_page(why));
        if !request.headers().contains_key(OWN_HEADER) {
            return refused("X-Cairn-Console: this header is missing; the console's page sends it");
        }
        let site = header(request.headers(), HeaderName::from_static("sec-fetch-site"));
        if site.is_some_and(|site| site != "same-origin") {
            return refused("this request comes from another site's page");
        }
        let foreign = header(request.headers(), ORIGIN)
            .is_some_and(|origin| origin.split_once("://").map(|(_, host)| host) != Some(host));
        if foreign {
            return refused("Origin: this request comes from another site's page");
        }
        Ok(())
    }

    fn knows(&self, host: &str) -> bool {
        let name = without_port(host).to_ascii_lowercase();
        let address = name.trim_start_matches('[').trim_end_matches(']');
        address.parse::<IpAddr>().is_ok() || name == "localhost" || self.hosts.contains(&name)
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !name.ends_with(':') => {
            name
        }
        _ => host,
    }
}

fn header(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// Adds the security headers that a response does not set itself.
pub(crate) fn harden(response: &mut Response) {
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
    ] {
        headers
            .entry(name)
            .or_insert(HeaderValue::from_static(value));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use cairn_http::Body;

    use super::*;

    fn verdict(method: &str, headers: &[(&str, &str)]) -> Option<u16> {
        let mut request = http::Request::builder().method(method).uri("/api/runs");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let guard = Guard::new(vec!["Lab.example".into()]);
        let request = request.body(Body::empty()).unwrap();
        guard.check(&request).err().map(|r| r.status().as_u16())
    }

    #[test]
    fn hosts() {
        for host in [
            "127.0.0.1:8081",
            "localhost:1",
            "[::1]:8081",
            "[::1]",
            "10.0.0.3",
            "lab.example:80",
            "LOCALHOST",
        ] {
            assert_eq!(verdict("GET", &[("host", host)]), None, "{host}");
        }
        for host in [
            "evil.example:8081",
            "localhost.evil.example",
            "",
            "127.0.0.1.evil.example",
        ] {
            assert_eq!(verdict("GET", &[("host", host)]), Some(421), "{host}");
        }
        assert_eq!(verdict("GET", &[]), Some(421));
    }

    #[test]
    fn changes_come_from_the_own_page() {
        let host = ("host", "localhost:8081");
        let own = ("x-cairn-console", "1");
        let origin = |o| ("origin", o);
        let good = origin("http://localhost:8081");
        assert_eq!(verdict("POST", &[host, own, good]), None);
        assert_eq!(verdict("POST", &[host, own]), None);
        assert_eq!(verdict("POST", &[host, good]), Some(403));
        for bad in ["http://localhost:9", "null", "http://evil.example"] {
            assert_eq!(
                verdict("PUT", &[host, own, origin(bad)]),
                Some(403),
                "{bad}"
            );
        }
        let site = ("sec-fetch-site", "cross-site");
        assert_eq!(verdict("DELETE", &[host, own, good, site]), Some(403));
    }
}
