//! Paths of the public API, decoded for filters: of a request, and in headers that name another
//! account, container or object. A malformed header gets 412.

use crate::status;
use cairn_http::params::{split_path, unquote, unquoted};
use cairn_http::{Response, respond};
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use http::request::Parts;

/// The decoded path of an account, or of something below one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiPath {
    pub(crate) version: String,
    pub(crate) account: String,
    pub(crate) container: Option<String>,
    pub(crate) object: Option<String>,
}

impl ApiPath {
    pub(crate) fn of(raw: &str) -> Option<ApiPath> {
        let path = unquoted(raw).ok()?;
        let parts = split_path(&path, 2, 4, true)?;
        let own = |part: Option<&str>| part.map(str::to_owned);
        if parts[2].is_none() && parts[3].is_some() {
            return None;
        }
        Some(ApiPath {
            version: own(parts[0])?,
            account: own(parts[1])?,
            container: own(parts[2]),
            object: own(parts[3]),
        })
    }
}

/// The decoded path of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectPath {
    pub(crate) version: String,
    pub(crate) account: String,
    pub(crate) container: String,
    pub(crate) object: String,
}

impl ObjectPath {
    pub(crate) fn of(raw: &str) -> Option<ObjectPath> {
        let path = ApiPath::of(raw)?;
        Some(ObjectPath {
            version: path.version,
            account: path.account,
            container: path.container?,
            object: path.object?,
        })
    }

    pub(crate) fn path(&self) -> String {
        format!(
            "/{}/{}/{}/{}",
            self.version, self.account, self.container, self.object
        )
    }

    /// The path of another object in the same account, named `/container/object`.
    pub(crate) fn sibling(&self, name: &str) -> String {
        let name = name.trim_start_matches('/');
        format!("/{}/{}/{name}", self.version, self.account)
    }
}

/// Is this encoded path that of an object? Most paths need not be decoded for that.
pub(crate) fn names_object(raw: &str) -> bool {
    let mut slashes = raw.bytes().enumerate().filter(|(_, byte)| *byte == b'/');
    if slashes.nth(3).is_some_and(|(at, _)| at + 1 < raw.len()) {
        return true;
    }
    // An encoded slash can only add segments.
    (raw.contains("%2F") || raw.contains("%2f"))
        && ApiPath::of(raw).is_some_and(|path| path.object.is_some())
}

pub(crate) fn refuse(message: &'static str) -> Response {
    status::bad_path(message)
}

/// Container and object of a header such as `Destination`, with or without a leading slash.
pub(crate) fn path_header(
    parts: &Parts,
    name: &HeaderName,
    message: &'static str,
) -> Result<(String, String), Response> {
    let value = respond::header(&parts.headers, name.as_str())
        .and_then(|v| unquote(v).ok())
        .ok_or_else(|| refuse(message))?;
    let path = if value.starts_with('/') {
        value
    } else {
        format!("/{value}")
    };
    match split_path(&path, 2, 2, true).as_deref() {
        Some([Some(container), Some(object)]) => {
            Ok(((*container).to_owned(), (*object).to_owned()))
        }
        _ => Err(refuse(message)),
    }
}

pub(crate) fn account_header(value: &HeaderValue) -> Result<String, Response> {
    let name = std::str::from_utf8(value.as_bytes())
        .ok()
        .and_then(|v| unquote(v).ok())
        .ok_or_else(|| refuse("Account name must be valid UTF-8"))?;
    if name.is_empty() {
        return Err(refuse("Account name cannot be empty"));
    }
    if name.contains('/') {
        return Err(refuse("Account name cannot contain slashes"));
    }
    Ok(name)
}

/// Sets a header; no effect for text that cannot be sent.
pub(crate) fn set(headers: &mut HeaderMap, name: HeaderName, text: &str) {
    if let Some(value) = respond::value(text) {
        headers.insert(name, value);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        let path = ApiPath::of("/v1/a%20b/c/o%2Fp").unwrap();
        assert_eq!(path.account, "a b");
        assert_eq!(path.object.as_deref(), Some("o/p"));
        assert_eq!(ApiPath::of("/v1/a/c/").unwrap().object, None);
        assert_eq!(ApiPath::of("/v1/a").unwrap().container, None);
        assert_eq!(ApiPath::of("/v1/a//o"), None);
        assert_eq!(ApiPath::of("/info"), None);
        assert_eq!(
            ObjectPath::of("/v1/a/c/o/").unwrap().path(),
            "/v1/a/c/o/".to_owned()
        );
        assert!(names_object("/v1/a/c/o") && names_object("/v1/a%2Fc/o"));
        assert!(!names_object("/v1/a/c/") && !names_object("/v1/a/c"));
        assert!(!names_object("/v1/a%2fc"));
    }
}
