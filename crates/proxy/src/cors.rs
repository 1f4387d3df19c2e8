//! CORS: the preflight request, and the headers of responses to cross-origin scripts.

use std::collections::BTreeSet;

use cairn_http::{ContainerInfo, Cors, Response, respond};
use cairn_types::header_name;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ALLOW, HeaderMap, VARY,
};

use crate::headers;
use crate::request::Incoming;
use crate::settings::ProxyOptions;
use crate::state::Proxy;
use crate::status;

/// Headers that scripts may read in every response.
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
    /// OPTIONS of a container or object, or of an account (which has no CORS settings).
    pub(crate) async fn options(&self, incoming: &Incoming, allowed: &[&str]) -> Response {
        let (headers, target) = (incoming.headers(), &incoming.target);
        let (Some(_), Some(container)) = (incoming.header("origin"), target.container()) else {
            return plain_options(allowed);
        };
        let info = self
            .container_info(&incoming.context, target.account(), container)
            .await;
        preflight(&self.options, &info.cors, headers, allowed)
    }

    /// Adds the CORS headers to the response to a request with an `Origin`.
    pub(crate) fn add_cors(&self, info: &ContainerInfo, origin: &str, response: &mut Response) {
        expose(&self.options, &info.cors, origin, response.headers_mut());
    }
}

fn plain_options(allowed: &[&str]) -> Response {
    let mut response = status::ok();
    respond::set(response.headers_mut(), ALLOW.as_str(), allowed.join(", "));
    response
}

fn is_origin_allowed(options: &ProxyOptions, cors: &Cors, origin: &str) -> bool {
    let own = cors
        .allow_origin
        .as_deref()
        .unwrap_or("")
        .split_whitespace();
    own.chain(options.cors_allow_origin.iter().map(String::as_str))
        .any(|allowed| allowed == "*" || allowed == origin)
}

/// The response to a preflight request.
fn preflight(options: &ProxyOptions, cors: &Cors, asked: &HeaderMap, allowed: &[&str]) -> Response {
    let mut response = plain_options(allowed);
    let text = |name| respond::header(asked, name).unwrap_or("");
    let origin = text("origin");
    let method = text("access-control-request-method");
    if !is_origin_allowed(options, cors, origin) || !allowed.contains(&method) {
        status::deny_origin(&mut response);
        return response;
    }
    let headers = response.headers_mut();
    allow_origin(headers, cors, origin);
    if let Some(max_age) = &cors.max_age {
        respond::set(headers, ACCESS_CONTROL_MAX_AGE.as_str(), max_age);
    }
    respond::set(
        headers,
        ACCESS_CONTROL_ALLOW_METHODS.as_str(),
        allowed.join(", "),
    );
    let names: BTreeSet<&str> = text("access-control-request-headers")
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .collect();
    if !names.is_empty() {
        let list: Vec<&str> = names.into_iter().collect();
        respond::set(
            headers,
            ACCESS_CONTROL_ALLOW_HEADERS.as_str(),
            list.join(", "),
        );
        vary(headers, "Access-Control-Request-Headers");
    }
    response
}

fn expose(options: &ProxyOptions, cors: &Cors, origin: &str, headers: &mut HeaderMap) {
    if options.strict_cors_mode && !is_origin_allowed(options, cors, origin) {
        return;
    }
    if !headers.contains_key(ACCESS_CONTROL_EXPOSE_HEADERS) {
        let mut exposed: BTreeSet<String> = EXPOSED.iter().map(|n| (*n).to_owned()).collect();
        exposed.extend(options.cors_expose_headers.iter().cloned());
        let meta = headers.keys().map(|name| name.as_str());
        exposed.extend(
            meta.filter(|n| headers::is_exposed_meta(n))
                .map(|n| String::from_utf8_lossy(&header_name::unescape(n)).into_owned()),
        );
        let own = cors.expose_headers.as_deref().unwrap_or("").split(' ');
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
        allow_origin(headers, cors, origin);
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use cairn_formats::ini::Section;
    use cairn_types::Constraints;

    const METHODS: [&str; 6] = ["DELETE", "GET", "HEAD", "OPTIONS", "POST", "PUT"];

    fn options(pairs: &[(&str, &str)]) -> ProxyOptions {
        let section = Section::from_pairs("app:proxy-server", pairs);
        ProxyOptions::read(&section, &Constraints::default()).unwrap()
    }

    fn cors(allow_origin: &str, expose_headers: &str, max_age: &str) -> Cors {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Cors {
            allow_origin: some(allow_origin),
            expose_headers: some(expose_headers),
            max_age: some(max_age),
        }
    }

    fn asked(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            respond::set(&mut headers, name, value);
        }
        headers
    }

    fn get<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
        respond::header(headers, name)
    }

    #[test]
    fn preflights() {
        let two = "http://foo.bar:8080 https://foo.bar";
        let get_method = ("access-control-request-method", "GET");
        for (own, everywhere, origin, method, answer) in [
            ("", "", "http://foo.com", "GET", None),
            (two, "", "https://foo.bar", "GET", Some("https://foo.bar")),
            (two, "", "https://foo.bar", "", None),
            (two, "", "https://foo.bar", "BREW", None),
            (two, "", "http://foo.com", "GET", None),
            (
                two,
                "http://foo.com",
                "http://foo.com",
                "PUT",
                Some("http://foo.com"),
            ),
            ("", "*", "http://foo.com", "PUT", Some("http://foo.com")),
            ("*", "", "http://foo.com", "HEAD", Some("*")),
        ] {
            let options = options(&[("cors_allow_origin", everywhere)]);
            let headers = [("origin", origin), (get_method.0, method)];
            let response = preflight(&options, &cors(own, "", "999"), &asked(&headers), &METHODS);
            let headers = response.headers();
            assert_eq!(
                get(headers, "access-control-allow-origin"),
                answer,
                "{own} {origin}"
            );
            assert_eq!(response.status() == 200, answer.is_some());
            let max_age = answer.map(|_| "999");
            assert_eq!(get(headers, "access-control-max-age"), max_age);
            let vary = answer.filter(|a| *a != "*").map(|_| "Origin");
            assert_eq!(get(headers, "vary"), vary);
            let all = "DELETE, GET, HEAD, OPTIONS, POST, PUT";
            assert_eq!(get(headers, "allow"), Some(all));
            assert_eq!(
                get(headers, "access-control-allow-methods"),
                answer.map(|_| all)
            );
        }
    }

    #[test]
    fn preflights_allow_the_headers_asked_for() {
        let headers = asked(&[
            ("origin", "http://a"),
            ("access-control-request-method", "GET"),
            ("access-control-request-headers", "x-b , x-a,, x-b"),
        ]);
        let response = preflight(&options(&[]), &cors("http://a", "", ""), &headers, &METHODS);
        let headers = response.headers();
        assert_eq!(
            get(headers, "access-control-allow-headers"),
            Some("x-a, x-b")
        );
        assert_eq!(
            get(headers, "vary"),
            Some("Origin, Access-Control-Request-Headers")
        );
        assert_eq!(get(headers, "access-control-max-age"), None);
    }

    /// The allowed origin, and the exposed headers beyond the default ones, of a response with some
    /// metadata.
    fn exposed(
        pairs: &[(&str, &str)],
        cors: &Cors,
        answer: &[(&str, &str)],
    ) -> (Option<String>, Vec<String>, Option<String>) {
        let mut headers = asked(answer);
        expose(&options(pairs), cors, "http://foo.bar", &mut headers);
        let own = |name| get(&headers, name).map(str::to_owned);
        let list = own("access-control-expose-headers").unwrap_or_default();
        let list = list.split(", ").map(str::to_owned);
        let unusual = list.filter(|n| !n.is_empty() && !EXPOSED.contains(&n.as_str()));
        (
            own("access-control-allow-origin"),
            unusual.collect(),
            own("vary"),
        )
    }

    #[test]
    fn answers_to_scripts() {
        let answer = [("x-object-meta-color", "red"), ("x-super-secret", "hush")];
        let color = || vec!["x-object-meta-color".to_owned()];
        let origin = || Some("http://foo.bar".to_owned());
        let vary = || Some("Origin".to_owned());
        let loose = [("strict_cors_mode", "no")];
        let nothing = (None, Vec::new(), None);
        assert_eq!(
            exposed(&[], &cors("http://not.foo.bar", "", ""), &answer),
            nothing
        );
        assert_eq!(exposed(&[], &cors("", "", ""), &answer), nothing);
        for (pairs, own) in [
            (&loose[..], "http://not.foo.bar"),
            (&loose, ""),
            (&[], "http://other http://foo.bar"),
            (&[("cors_allow_origin", " http://x, http://foo.bar ")], ""),
        ] {
            let found = exposed(pairs, &cors(own, "", ""), &answer);
            assert_eq!(found, (origin(), color(), vary()), "{own}");
        }
        let found = exposed(&[], &cors("*", "", ""), &answer);
        assert_eq!(found, (Some("*".into()), color(), None));
        let vary_accept = [("vary", "Accept")];
        let found = exposed(&[], &cors("http://foo.bar", "", ""), &vary_accept);
        assert_eq!(found.2.as_deref(), Some("Accept, Origin"));
    }

    #[test]
    fn headers_that_users_and_operators_expose() {
        let pairs = [("cors_expose_headers", " x-custom-operator,, ")];
        let cors = cors("http://foo.bar", "X-Custom-User  Etag", "");
        let answer = [("x-container-meta-a", "1"), ("x-custom-operator", "2")];
        let (_, list, _) = exposed(&pairs, &cors, &answer);
        assert_eq!(
            list,
            ["x-container-meta-a", "x-custom-operator", "x-custom-user"]
        );
    }

    #[test]
    fn an_objects_own_headers_stay() {
        let answer = [
            ("access-control-allow-origin", "http://obj.origin"),
            ("access-control-expose-headers", "x-only"),
        ];
        let found = exposed(&[], &cors("http://foo.bar", "", ""), &answer);
        let expected = (
            Some("http://obj.origin".into()),
            vec!["x-only".into()],
            None,
        );
        assert_eq!(found, expected);
    }
}
