//! Filter `name_check`: refuses paths that other systems could not handle: with forbidden
//! characters, too long, or with parts that match a regular expression.
//!
//! Options (default): `forbidden_chars` (`'"` and `` `<> ``), `maximum_length` in bytes (255),
//! `forbidden_regexp` (`.` and `..` as segments; empty for none). Expressions with look-around or
//! back references are refused at start: matching takes time linear in the path's length.

use std::sync::Arc;

use cairn_formats::ini::Section;
use cairn_http::params::unquote;
use cairn_http::{Handler, Request, Service, ServiceFuture, respond};
use http::StatusCode;
use regex_lite::Regex;
use serde_json::json;

use crate::{FilterEnv, FilterError};

const FORBIDDEN_CHARS: &str = "'\"`<>";
const FORBIDDEN_REGEXP: &str = r"/\./|/\.\./|/\.$|/\.\.$";

struct NameCheck {
    next: Handler,
    forbidden_chars: String,
    maximum_length: usize,
    forbidden_regexp: Option<Regex>,
}

pub(crate) fn make(
    section: &Section,
    next: Handler,
    env: &FilterEnv,
) -> Result<Handler, FilterError> {
    let forbidden_chars = section
        .str_or("forbidden_chars", FORBIDDEN_CHARS)
        .to_owned();
    let maximum_length = section.usize_or("maximum_length", 255)?;
    let expression = section.str_or("forbidden_regexp", FORBIDDEN_REGEXP);
    let forbidden_regexp = match expression {
        "" => None,
        text => Some(Regex::new(text).map_err(|why| {
            let remedy = format!("expected a regular expression without look-around: {why}");
            section.bad("forbidden_regexp", remedy)
        })?),
    };
    env.swift_info.register(
        "name_check",
        json!({
            "forbidden_chars": forbidden_chars,
            "maximum_length": maximum_length,
            "forbidden_regexp": expression,
        }),
    );
    Ok(Arc::new(NameCheck {
        next,
        forbidden_chars,
        maximum_length,
        forbidden_regexp,
    }))
}

impl Service for NameCheck {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        // A path that is not UTF-8 is refused by a later service.
        let path = unquote(request.uri().path()).unwrap_or_default();
        match self.complaint(&path) {
            None => self.next.call(request),
            Some(complaint) => {
                let message = format!("Object/Container/Account name {complaint}");
                let refused = respond::typed(StatusCode::BAD_REQUEST, respond::HTML, message);
                Box::pin(std::future::ready(refused))
            }
        }
    }
}

impl NameCheck {
    fn complaint(&self, path: &str) -> Option<String> {
        if path.contains(|c| self.forbidden_chars.contains(c)) {
            let chars = &self.forbidden_chars;
            return Some(format!("contains forbidden chars from {chars}"));
        }
        if path.len() > self.maximum_length {
            let most = self.maximum_length;
            return Some(format!("longer than the allowed maximum {most}"));
        }
        let found = self
            .forbidden_regexp
            .as_ref()
            .filter(|r| r.is_match(path))?;
        let from = "contains a forbidden substring from regular expression";
        Some(format!("{from} {found}"))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing::{self, answers, filter, request, text};

    #[tokio::test]
    async fn checks() {
        let app = filter("name_check", &[], answers(200));
        let ask = async |path: &str| app.call(request("PUT", path, &[])).await;
        let long = format!("/v1/a/c/{}", "o".repeat(248));
        for (path, status) in [
            ("/v1/a/c/o", 200),
            ("/v1/a/c/o..", 200),
            ("/v1/a/c/.o", 200),
            ("/v1/a/c/o%22", 400),
            ("/v1/a/c/%3Co", 400),
            ("/v1/a/c/o%27", 400),
            ("/v1/a/c/o%60", 400),
            ("/v1/a/c/../o", 400),
            ("/v1/a/c/%2E/o", 400),
            ("/v1/a/c/..", 400),
            ("/v1/a/c/.", 400),
            (&long, 400),
            (&long[..255], 200),
            ("/v1/a/c/%ff", 200),
        ] {
            assert_eq!(ask(path).await.status(), status, "{path}");
        }
        assert_eq!(
            text(ask("/v1/a/%3C").await).await,
            "Object/Container/Account name contains forbidden chars from '\"`<>"
        );
    }

    #[tokio::test]
    async fn options() {
        let options = [
            ("forbidden_chars", ":"),
            ("maximum_length", "12"),
            ("forbidden_regexp", ""),
        ];
        let app = filter("name_check", &options, answers(200));
        for (path, status) in [
            ("/v1/a/c/../o", 200),
            ("/v1/a/c/o:", 400),
            ("/v1/a/c/oooooo", 400),
        ] {
            assert_eq!(
                app.call(request("PUT", path, &[])).await.status(),
                status,
                "{path}"
            );
        }
        let section = Section::from_pairs("filter:name_check", &[("forbidden_regexp", "(?!a)")]);
        let error = make(&section, answers(200), &testing::env()).map(|_| ());
        assert!(error.unwrap_err().to_string().contains("forbidden_regexp"));
    }
}
