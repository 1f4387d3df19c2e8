//! Query strings and paths: decoding, encoding, splitting. Bytes that are not UTF-8 are an error,
//! to which the caller responds 412 (paths) or 400/412 (parameters), as Swift does.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Characters that Python's `urllib.parse.quote` does not encode, with `/`.
const PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// The bytes are not UTF-8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not valid UTF-8")]
pub struct NotUtf8;

/// Percent-encodes a path, keeping its slashes.
pub fn quote_path(path: &str) -> String {
    utf8_percent_encode(path, PATH).to_string()
}

/// Percent-encodes a name or value, slashes too.
pub fn quote(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

/// Percent-decodes a path or value.
///
/// # Errors
/// Bytes that are not UTF-8.
pub fn unquote(text: &str) -> Result<String, NotUtf8> {
    unquoted(text).map(Cow::into_owned)
}

/// Percent-decodes a path or value, which is borrowed where nothing in it is encoded.
///
/// # Errors
/// Bytes that are not UTF-8.
pub fn unquoted(text: &str) -> Result<Cow<'_, str>, NotUtf8> {
    // Most paths have nothing to decode, and each request asks half a dozen times.
    match text.as_bytes().contains(&b'%') {
        false => Ok(Cow::Borrowed(text)),
        true => percent_decode_str(text).decode_utf8().map_err(|_| NotUtf8),
    }
}

/// A query string's parameters in order, decoded; `+` is a space. At most 1,000 are read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Params(Vec<(String, String)>);

impl Params {
    /// Parses a query string; `None` is an empty one.
    ///
    /// # Errors
    /// A name or value that is not UTF-8.
    pub fn parse(query: Option<&str>) -> Result<Self, NotUtf8> {
        let mut all = Vec::new();
        for pair in query
            .unwrap_or("")
            .split('&')
            .filter(|p| !p.is_empty())
            .take(1000)
        {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            all.push((
                unquote(&name.replace('+', " "))?,
                unquote(&value.replace('+', " "))?,
            ));
        }
        Ok(Params(all))
    }

    /// The last value of that name, as in Swift's dictionary of parameters.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .rev()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v.as_str())
    }

    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Replaces all values of that name by one.
    pub fn set(&mut self, name: &str, value: impl Into<String>) {
        self.remove(name);
        self.0.push((name.to_owned(), value.into()));
    }

    pub fn remove(&mut self, name: &str) {
        self.0.retain(|(n, _)| n != name);
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(n, v)| (n.as_str(), v.as_str()))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Encodes as a query string, without the `?`.
    pub fn encode(&self) -> String {
        self.0
            .iter()
            .map(|(n, v)| format!("{}={}", quote(n), quote(v)))
            .collect::<Vec<_>>()
            .join("&")
    }
}

/// Is this one of Swift's texts for true?
pub fn is_true(text: &str) -> bool {
    ["true", "1", "yes", "on", "t", "y"]
        .iter()
        .any(|w| text.trim().eq_ignore_ascii_case(w))
}

/// A URI with its path replaced by the decoded text `path`, and its query kept.
pub fn with_path(uri: &http::Uri, path: &str) -> Option<http::Uri> {
    with_path_and_query(path, uri.query())
}

/// A URI of a decoded path and an encoded query.
pub fn with_path_and_query(path: &str, query: Option<&str>) -> Option<http::Uri> {
    let mut text = quote_path(path);
    if let Some(query) = query.filter(|q| !q.is_empty()) {
        text.push('?');
        text.push_str(query);
    }
    text.parse().ok()
}

/// Splits a decoded path into at least `min` and at most `max` segments; with `rest` the last
/// segment takes the remainder, slashes included. A leading `/` is required; the first `min`
/// segments must not be empty, later empty ones are `None`. (`split_path` upstream.)
pub fn split_path(path: &str, min: usize, max: usize, rest: bool) -> Option<Segments<'_>> {
    let body = path.strip_prefix('/')?;
    let mut segments = Segments {
        all: [None; SEGMENTS_MAX],
        len: max.min(SEGMENTS_MAX),
    };
    let most = if rest { max } else { max + 1 };
    let mut count = 0;
    // By its bytes, which for segments of a few is several times as quick as `str::splitn`.
    let slashes = body.bytes().enumerate().filter(|(_, byte)| *byte == b'/');
    let ends = slashes.map(|(at, _)| at).take(most.saturating_sub(1));
    let mut from = 0;
    for end in ends.chain([body.len()]).take(most) {
        let segment = &body[from..end];
        from = end + 1;
        count += 1;
        if count <= max {
            *segments.all.get_mut(count - 1)? = Some(segment).filter(|s| !s.is_empty());
        } else if !segment.is_empty() {
            // One segment too many is allowed if it is empty: a trailing slash.
            return None;
        }
    }
    let has_all = count >= min && segments.iter().take(min).all(Option::is_some);
    has_all.then_some(segments)
}

/// Maximum number of segments that a path is split into.
const SEGMENTS_MAX: usize = 5;

/// The segments of a path; dereferences to a slice of as many as were asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Segments<'p> {
    all: [Option<&'p str>; SEGMENTS_MAX],
    len: usize,
}

impl<'p> std::ops::Deref for Segments<'p> {
    type Target = [Option<&'p str>];

    fn deref(&self) -> &Self::Target {
        &self.all[..self.len]
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn splits_as_upstream() {
        let split = |path, min, max, rest| {
            let segments = split_path(path, min, max, rest);
            segments.map(|segments| segments.to_vec())
        };
        assert_eq!(split("/a", 1, 1, false), Some(vec![Some("a")]));
        assert_eq!(split("/a/", 1, 1, false), Some(vec![Some("a")]));
        assert_eq!(split("/a/c", 1, 1, false), None);
        assert_eq!(split("/a/c", 2, 2, false), Some(vec![Some("a"), Some("c")]));
        assert_eq!(
            split("/a/c/", 2, 2, false),
            Some(vec![Some("a"), Some("c")])
        );
        assert_eq!(
            split("/a/c/o/r", 2, 3, true),
            Some(vec![Some("a"), Some("c"), Some("o/r")])
        );
        assert_eq!(
            split("/a/c//r", 1, 3, true),
            Some(vec![Some("a"), Some("c"), Some("/r")])
        );
        assert_eq!(split("/a", 1, 3, true), Some(vec![Some("a"), None, None]));
        assert_eq!(split("//c", 1, 3, true), None);
        assert_eq!(split("/", 1, 1, false), None);
        assert_eq!(split("a", 1, 1, false), None);
        assert_eq!(
            split("/a/c/", 1, 3, true),
            Some(vec![Some("a"), Some("c"), None])
        );
    }

    #[test]
    fn params() {
        let params = Params::parse(Some("a=1&b=%C3%A9+x&a=2&c")).unwrap();
        assert_eq!(params.get("a"), Some("2"));
        assert_eq!(params.get("b"), Some("é x"));
        assert_eq!(params.get("c"), Some(""));
        assert!(Params::parse(Some("a=%ff")).is_err());
        assert_eq!(params.encode(), "a=1&b=%C3%A9%20x&a=2&c=");
    }
}
