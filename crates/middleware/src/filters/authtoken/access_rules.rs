//! Access rules of application credentials, which restrict a token to certain requests: each names
//! a service, a method and a path pattern.
//!
//! In a pattern, `{name}` and `*` match one segment, `**` any number.

use cairn_http::Request;
use cairn_http::params::unquote;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tracing::warn;

use super::server::Described;

/// Characters that are percent-encoded in a path as keystonemiddleware compares it.
const PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b':')
    .remove(b'@');

/// Do the token's rules, if any, allow this request?
pub(super) fn allow(
    described: &Described,
    service_type: Option<&str>,
    request: &Request,
    has_service_token: bool,
) -> bool {
    let Some(rules) = &described.access_rules else {
        return true;
    };
    let Some(service_type) = service_type else {
        warn!("a token has access rules, and authtoken has no service_type to apply them by");
        return false;
    };
    let services = described.catalog.as_ref().and_then(Value::as_array);
    let is_known = services
        .into_iter()
        .flatten()
        .any(|service| service["type"] == service_type);
    if !is_known {
        warn!(
            service_type,
            "authtoken's service_type is not in the token's catalog"
        );
        return false;
    }
    // All later filters treat encoded slashes as slashes: therefore patterns are matched against
    // the decoded path in its normal encoding, not in the client's.
    let Ok(path) = unquote(request.uri().path()) else {
        return false;
    };
    let path = utf8_percent_encode(&path, PATH).to_string();
    has_service_token
        || rules.iter().any(|rule| {
            rule["service"] == service_type
                && rule["method"] == request.method().as_str()
                && rule["path"]
                    .as_str()
                    .is_some_and(|pattern| matches(pattern, &path))
        })
}

/// Matches in time bounded by the product of the lengths: each position of the pattern is tried at
/// each position of the path.
fn matches(pattern: &str, path: &str) -> bool {
    let tokens = tokens(pattern);
    let path = path.as_bytes();
    // Lengths of the path that the tokens so far can match.
    let mut reached = vec![false; path.len() + 1];
    reached[0] = true;
    for token in tokens {
        let mut next = vec![false; path.len() + 1];
        for from in (0..=path.len()).filter(|at| reached[*at]) {
            match token {
                Token::Literal(byte) => {
                    if path.get(from) == Some(&byte) {
                        next[from + 1] = true;
                    }
                }
                Token::Segment => {
                    for at in from..path.len() {
                        if path[at] == b'/' {
                            break;
                        }
                        next[at + 1] = true;
                    }
                }
                Token::Anything => {
                    next[from..].fill(true);
                    break;
                }
            }
        }
        reached = next;
    }
    reached[path.len()]
}

enum Token {
    Literal(u8),
    /// One or more bytes other than slashes.
    Segment,
    Anything,
}

fn tokens(pattern: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = pattern.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        match first {
            b'{' => {
                if let Some(end) = after.iter().position(|b| *b == b'}') {
                    rest = &after[end + 1..];
                    tokens.push(Token::Segment);
                }
            }
            b'*' if after.first() == Some(&b'*') => {
                rest = &after[1..];
                tokens.push(Token::Anything);
            }
            b'*' => tokens.push(Token::Segment),
            byte => tokens.push(Token::Literal(byte)),
        }
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, path, expected) in [
            ("/v1/**", "/v1/AUTH_a/c/o", true),
            ("/v1/**", "/v2/AUTH_a", false),
            ("/v1/*", "/v1/AUTH_a", true),
            ("/v1/*", "/v1/AUTH_a/c", false),
            ("/v1/*", "/v1/", false),
            ("/v1/{account}/c", "/v1/AUTH_a/c", true),
            ("/v1/{account}/c", "/v1/AUTH_a/d", false),
            ("/v1/AUTH_a", "/v1/AUTH_a", true),
            ("/v1/AUTH_a", "/v1/AUTH_ab", false),
            ("/**/o", "/v1/a/c/o", true),
            ("", "/", false),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_pattern_ends(pattern in "[/*{}a-c]{0,60}", path in "[/a-c]{0,60}") {
            matches(&pattern, &path);
            assert!(matches("**", &path));
            assert!(matches(&path, &path));
        }
    }
}
