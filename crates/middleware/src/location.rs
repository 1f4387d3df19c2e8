//! Rewriting of `Location` and `Content-Location` in responses to requests that a filter forwarded
//! under another host or path: to the form that the client would use.

use cairn_http::{Response, respond};
use http::header::{CONTENT_LOCATION, LOCATION};

/// Replaces `rewritten` by `requested` in an absolute URL, after its scheme (a host) or its
/// authority (a path).
pub(crate) enum Rewritten<'a> {
    Host {
        requested: &'a str,
        rewritten: &'a str,
    },
    Path {
        requested: &'a str,
        rewritten: &'a str,
    },
}

impl Rewritten<'_> {
    pub(crate) fn undo(&self, response: &mut Response) {
        for name in [LOCATION, CONTENT_LOCATION] {
            let original = respond::header(response.headers(), name.as_str())
                .and_then(|value| self.original(value));
            if let Some(original) = original {
                respond::set(response.headers_mut(), name.as_str(), original);
            }
        }
    }

    fn original(&self, url: &str) -> Option<String> {
        let (scheme, rest) = url.split_once("://")?;
        if scheme != "http" && scheme != "https" {
            return None;
        }
        let cut = rest.find('/').unwrap_or(rest.len());
        let (authority, path) = rest.split_at(cut);
        match self {
            Rewritten::Host {
                requested,
                rewritten,
            } => (authority == *rewritten).then(|| format!("{scheme}://{requested}{path}")),
            Rewritten::Path {
                requested,
                rewritten,
            } => {
                let after = path.strip_prefix(rewritten)?;
                Some(format!("{scheme}://{authority}{requested}{after}"))
            }
        }
    }
}

/// The storage domains of a conf, each with a leading dot.
pub(crate) fn domains(section: &cairn_formats::ini::Section) -> Vec<String> {
    let domains = section.list_or("storage_domain", "example.com");
    let dotted = |domain: String| match domain.starts_with('.') {
        true => domain,
        false => format!(".{domain}"),
    };
    domains.into_iter().map(dotted).collect()
}

/// Splits a `Host` into name and port.
pub(crate) fn host_and_port(host: &str) -> (&str, Option<&str>) {
    match host.rsplit_once(':') {
        // The last colon of an IPv6 address does not begin a port.
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (host, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undoes() {
        let host = Rewritten::Host {
            requested: "mine.org:80",
            rewritten: "a.example.com:80",
        };
        let path = Rewritten::Path {
            requested: "/o",
            rewritten: "/v1/AUTH_a/c/o",
        };
        for (way, url, original) in [
            (
                &host,
                "http://a.example.com:80/x",
                Some("http://mine.org:80/x"),
            ),
            (
                &host,
                "https://a.example.com:80",
                Some("https://mine.org:80"),
            ),
            (&host, "http://a.example.com/x", None),
            (&host, "ftp://a.example.com:80/x", None),
            (&path, "http://h/v1/AUTH_a/c/o/", Some("http://h/o/")),
            (&path, "http://h/v1/AUTH_a/c/p", None),
            (&path, "/v1/AUTH_a/c/o/", None),
        ] {
            assert_eq!(way.original(url).as_deref(), original, "{url}");
        }
        assert_eq!(host_and_port("a:80"), ("a", Some("80")));
        assert_eq!(host_and_port("[::1]"), ("[::1]", None));
        assert_eq!(host_and_port("[::1]:80"), ("[::1]", Some("80")));
    }
}
