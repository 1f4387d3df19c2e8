//! The few parts of an `http://` or `https://` URL that a client needs.

use super::TargetError;

/// Scheme, authority and path; no query, no user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Url {
    pub(crate) tls: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Starts with a slash, or is empty; has none at its end.
    pub(crate) path: String,
}

impl Url {
    pub(crate) fn parse(text: &str) -> Result<Self, TargetError> {
        let wrong = |why: &str| TargetError::Setting {
            key: "URL".into(),
            value: text.to_owned(),
            why: why.to_owned(),
        };
        let (tls, rest) = if let Some(rest) = text.strip_prefix("http://") {
            (false, rest)
        } else if let Some(rest) = text.strip_prefix("https://") {
            (true, rest)
        } else {
            return Err(wrong("it must begin with http:// or https://"));
        };
        if rest
            .bytes()
            .any(|byte| byte <= b' ' || byte == 0x7f || byte >= 0x80)
        {
            return Err(wrong("it holds spaces or other characters no URL may hold"));
        }
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        if authority.contains('@') {
            return Err(wrong("give user and key apart from the URL"));
        }
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (
                host,
                port.parse()
                    .map_err(|_| wrong("the port is not a number up to 65535"))?,
            ),
            _ => (authority, if tls { 443 } else { 80 }),
        };
        if host.is_empty() {
            return Err(wrong("it names no host"));
        }
        let path = path
            .split(['?', '#'])
            .next()
            .unwrap_or("")
            .trim_end_matches('/');
        Ok(Self {
            tls,
            host: host.to_owned(),
            port,
            path: path.to_owned(),
        })
    }

    /// For the `Host` header.
    pub(crate) fn authority(&self) -> String {
        match (self.tls, self.port) {
            (false, 80) | (true, 443) => self.host.clone(),
            _ => format!("{}:{}", self.host, self.port),
        }
    }
}

impl std::fmt::Display for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts() {
        let url = Url::parse("http://10.0.0.1:8080/auth/v1.0/").unwrap();
        assert_eq!(
            (url.host.as_str(), url.port, url.path.as_str()),
            ("10.0.0.1", 8080, "/auth/v1.0")
        );
        assert_eq!(url.to_string(), "http://10.0.0.1:8080/auth/v1.0");
        let url = Url::parse("https://[::1]/v1").unwrap();
        assert_eq!((url.host.as_str(), url.port), ("[::1]", 443));
        for bad in [
            "ftp://x",
            "http://",
            "http://a b",
            "http://h:99999",
            "http://u:p@h/",
        ] {
            assert!(Url::parse(bad).is_err(), "{bad}");
        }
    }
}
