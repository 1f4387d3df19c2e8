//! URLs of stores and logins: `http://host:port/path`, without a user or a query.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::error::LoginError;

/// Encodes all characters with a meaning in a path, and keeps slashes.
const PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');

const VALUE: &AsciiSet = &PATH.add(b'/');

/// Encodes a path for the request line.
pub fn encode_path(path: &str) -> String {
    utf8_percent_encode(path, PATH).to_string()
}

/// Encodes a query's value, including slashes.
pub fn encode_value(value: &str) -> String {
    utf8_percent_encode(value, VALUE).to_string()
}

/// Parsed URL: scheme, host, port and path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreUrl {
    pub tls: bool,
    /// Host, without the brackets of an IPv6 address.
    pub host: String,
    pub port: u16,
    /// Encoded path as written in the URL. It begins with a slash or is empty, and does not end
    /// with one.
    pub path: String,
}

impl StoreUrl {
    /// Parses a URL.
    ///
    /// # Errors
    /// [`LoginError::Url`], which names the problem.
    pub fn parse(text: &str) -> Result<StoreUrl, LoginError> {
        let wrong = |reason: &str| LoginError::Url {
            url: text.to_owned(),
            reason: reason.to_owned(),
        };
        let (tls, rest) = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
            _ => return Err(wrong("expected a URL that begins with http:// or https://")),
        };
        let is_bad = |byte: u8| byte <= b' ' || byte >= 0x7f;
        if rest.bytes().any(is_bad) {
            return Err(wrong("a URL is ASCII without spaces; encode others as %XX"));
        }
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        if authority.contains('@') {
            return Err(wrong(
                "give the user by ST_USER or OS_USERNAME, not in the URL",
            ));
        }
        if path.contains(['?', '#']) {
            return Err(wrong("a store's URL has no query and no fragment"));
        }
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                let port = port.parse().ok().filter(|port| *port > 0);
                (
                    host,
                    port.ok_or_else(|| wrong("the port is no number from 1 to 65535"))?,
                )
            }
            _ => (authority, if tls { 443 } else { 80 }),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(wrong("it names no host"));
        }
        Ok(StoreUrl {
            tls,
            host: host.to_owned(),
            port,
            path: path.trim_end_matches('/').to_owned(),
        })
    }

    /// Host and port in the form of the `Host` header.
    pub fn authority(&self) -> String {
        let host = match self.host.contains(':') {
            true => format!("[{}]", self.host),
            false => self.host.clone(),
        };
        match (self.tls, self.port) {
            (false, 80) | (true, 443) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }

    /// A path of a store in this process, which has no host.
    pub fn in_process(path: &str) -> StoreUrl {
        StoreUrl {
            tls: false,
            host: String::new(),
            port: 80,
            path: path.to_owned(),
        }
    }

    /// The same server with another encoded path.
    pub fn with_path(&self, path: &str) -> StoreUrl {
        StoreUrl {
            path: path.to_owned(),
            ..self.clone()
        }
    }

    /// The URL of an encoded path below this one; a slash at its end is part of a name.
    pub fn below(&self, path: &str) -> StoreUrl {
        self.with_path(&format!("{}{path}", self.path))
    }
}

impl std::fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.path)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_parts() {
        let url = StoreUrl::parse("http://10.0.0.1:8080/v1/AUTH_test/").unwrap();
        assert_eq!((url.host.as_str(), url.port), ("10.0.0.1", 8080));
        assert_eq!(url.to_string(), "http://10.0.0.1:8080/v1/AUTH_test");
        let url = StoreUrl::parse("HTTPS://[::1]/v1").unwrap();
        assert_eq!((url.host.as_str(), url.port), ("::1", 443));
        assert_eq!(url.to_string(), "https://[::1]/v1");
        for bad in [
            "ftp://x",
            "x",
            "http://",
            "http://a b",
            "http://h:0",
            "http://u:p@h/",
            "http://h/a?b",
        ] {
            assert!(StoreUrl::parse(bad).is_err(), "{bad}");
        }
        let account = StoreUrl::parse("http://h/v1/a").unwrap();
        assert_eq!(account.below("/c/dir/").to_string(), "http://h/v1/a/c/dir/");
    }

    #[test]
    fn encodes_paths() {
        assert_eq!(encode_path("a b/ü?#%"), "a%20b/%C3%BC%3F%23%25");
        assert_eq!(encode_value("a/b"), "a%2Fb");
    }
}
