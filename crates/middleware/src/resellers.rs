//! Common parts of the authorization filters: reseller prefixes and options per prefix, denials,
//! and the address by which a client reached this server.

use cairn_formats::ini::{ConfError, Section};
use cairn_http::params::{quote_path, split_path};
use cairn_http::{Context, Request, Response, respond};
use http::header::{HOST, WWW_AUTHENTICATE};

use crate::FilterError;
use crate::status;

/// Parses `AUTH, SERVICE` as `AUTH_`, `SERVICE_`; two quotes, or an empty list, are the empty
/// prefix.
pub fn reseller_prefixes(section: &Section) -> Vec<String> {
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

/// An option that may be set per prefix: `SERVICE_require_group`, else `require_group`.
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

/// The prefix of an account; the empty one matches if no other does.
pub(crate) fn account_prefix<'p>(prefixes: &'p [String], account: &str) -> Option<&'p str> {
    prefixes
        .iter()
        .filter(|p| !p.is_empty())
        .find(|p| account.starts_with(p.as_str()))
        .or_else(|| prefixes.iter().find(|p| p.is_empty()))
        .map(String::as_str)
}

/// A 401 for a realm: an account, or `unknown`.
pub(crate) fn unauthorized(realm: &str) -> Response {
    let mut response = status::unauthorized();
    let value = format!("Swift realm=\"{}\"", quote_path(realm));
    respond::set(response.headers_mut(), WWW_AUTHENTICATE.as_str(), value);
    response
}

/// The denial: 403 for an authenticated user, 401 for an anonymous one.
pub(crate) fn deny(path: &str, is_known: bool) -> Response {
    if is_known {
        return status::forbidden();
    }
    let realm = split_path(path, 2, 3, true)
        .and_then(|parts| parts[1])
        .filter(|realm| !["v1.0", "auth"].contains(realm))
        .unwrap_or("unknown");
    unauthorized(realm)
}

/// The URL by which the client reached this server, from its headers.
pub fn host_url(request: &Request) -> String {
    let scheme = Context::of_request(request).scheme();
    let host = respond::header(request.headers(), HOST.as_str())
        .or_else(|| request.uri().authority().map(|a| a.as_str()))
        .unwrap_or("localhost");
    let port = if scheme == "https" { ":443" } else { ":80" };
    format!("{scheme}://{}", host.strip_suffix(port).unwrap_or(host))
}

/// An error about an option whose value must not be shown.
pub fn secret_option(section: &Section, option: &str, remedy: &str) -> FilterError {
    let mut error = section.bad(option, remedy);
    if let ConfError::Value { value, .. } = &mut error {
        *value = "(not shown)".into();
    }
    error.into()
}
