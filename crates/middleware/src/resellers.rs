//! What the filters that decide who may do what have in common: reseller prefixes and the options
//! one prefix may have of its own, refusals, and the address a client reached this server by.

use cairn_formats::ini::{ConfError, Section};
use cairn_http::params::{quote_path, split_path};
use cairn_http::{Context, Request, Response, respond};
use http::StatusCode;
use http::header::{HOST, WWW_AUTHENTICATE};

use crate::FilterError;

/// `AUTH, SERVICE` as `AUTH_`, `SERVICE_`; two quotes, or nothing at all, are the empty prefix.
pub(crate) fn reseller_prefixes(section: &Section) -> Vec<String> {
    let mut prefixes: Vec<String> = Vec::new();
    for item in section.list_or("reseller_prefix", "AUTH") {
        let mut prefix = if item == "''" { String::new() } else { item };
        if !prefix.is_empty() && !prefix.ends_with('_') {
            prefix.push('_');
        }
        if !prefixes.contains(&prefix) {
            prefixes.push(prefix);
        }
    }
    if prefixes.is_empty() {
        prefixes.push(String::new());
    }
    prefixes
}

/// An option that one prefix may have of its own: `SERVICE_require_group`, else `require_group`.
pub(crate) fn option_of_prefix<'s>(
    section: &'s Section,
    prefix: &str,
    option: &str,
) -> Option<&'s str> {
    let own = if prefix.is_empty() { "''" } else { prefix };
    [format!("{own}{option}"), option.to_owned()]
        .iter()
        .find_map(|name| section.get(name).filter(|value| !value.is_empty()))
}

/// Which of the prefixes an account has; the empty one fits when no other does.
pub(crate) fn account_prefix<'p>(prefixes: &'p [String], account: &str) -> Option<&'p str> {
    prefixes
        .iter()
        .filter(|p| !p.is_empty())
        .find(|p| account.starts_with(p.as_str()))
        .or_else(|| prefixes.iter().find(|p| p.is_empty()))
        .map(String::as_str)
}

/// 401 for a realm: an account, or `unknown`.
pub(crate) fn unauthorized(realm: &str) -> Response {
    let mut response = respond::standard(StatusCode::UNAUTHORIZED);
    let value = format!("Swift realm=\"{}\"", quote_path(realm));
    respond::set(response.headers_mut(), WWW_AUTHENTICATE.as_str(), value);
    response
}

/// 403 to somebody, 401 to nobody.
pub(crate) fn deny(path: &str, is_known: bool) -> Response {
    if is_known {
        return respond::standard(StatusCode::FORBIDDEN);
    }
    let realm = split_path(path, 2, 3, true)
        .and_then(|parts| parts[1])
        .filter(|realm| !["v1.0", "auth"].contains(realm))
        .unwrap_or("unknown");
    unauthorized(realm)
}

/// How the client reached this server, as far as it says.
pub(crate) fn host_url(request: &Request) -> String {
    let scheme = Context::of_request(request).scheme();
    let host = respond::header(request.headers(), HOST.as_str())
        .or_else(|| request.uri().authority().map(|a| a.as_str()))
        .unwrap_or("localhost");
    let port = if scheme == "https" { ":443" } else { ":80" };
    format!("{scheme}://{}", host.strip_suffix(port).unwrap_or(host))
}

/// An error about an option whose value must not be shown.
pub(crate) fn secret_option(section: &Section, option: &str, remedy: &str) -> FilterError {
    let mut error = section.bad(option, remedy);
    if let ConfError::Value { value, .. } = &mut error {
        *value = "(not shown)".into();
    }
    error.into()
}
