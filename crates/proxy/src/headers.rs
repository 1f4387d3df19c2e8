//! Selection of headers: from the client's request to a backend's, and from a backend's response to
//! the client's.

use std::sync::OnceLock;

use cairn_http::{params, respond};
use cairn_types::metadata::{is_sys_or_user_meta, is_user_meta};
use cairn_types::{ServerKind, Timestamp};
use http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, DATE, ETAG, HOST, HeaderName, HeaderValue, REFERER,
    TRANSFER_ENCODING, USER_AGENT,
};
use http::{HeaderMap, HeaderMap as Headers};

use crate::request::Incoming;

/// Index of the policy of an object or container, between proxy and servers.
pub(crate) const POLICY_INDEX: &str = "x-backend-storage-policy-index";

/// Asks object servers to abort a response that does not match its ETag instead of completing it;
/// servers that will do so confirm with the same header.
pub(crate) const REFUSE_UNSOUND: &str = "x-backend-refuse-unsound";

/// Container headers that are stored unchanged.
const CONTAINER_PASS_THROUGH: [&str; 5] = [
    "x-container-read",
    "x-container-write",
    "x-container-sync-key",
    "x-container-sync-to",
    "x-versions-location",
];

const CONTAINER_REMOVE: [(&str, &str); 5] = [
    ("x-remove-container-read", "x-container-read"),
    ("x-remove-container-write", "x-container-write"),
    ("x-remove-container-sync-key", "x-container-sync-key"),
    ("x-remove-container-sync-to", "x-container-sync-to"),
    ("x-remove-versions-location", "x-versions-location"),
];

/// Headers of every backend request.
pub(crate) fn base(incoming: &Incoming) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(16);
    for (name, value) in incoming.headers() {
        if name.as_str().starts_with("x-backend-") {
            headers.append(name, value.clone());
        }
    }
    insert(&mut headers, "x-timestamp", &incoming.timestamp.internal());
    insert(&mut headers, "x-trans-id", &incoming.context.trans_id);
    headers.insert(USER_AGENT, user_agent());
    let target = without_signature(&incoming.parts.uri);
    let host = respond::header(incoming.headers(), HOST.as_str()).unwrap_or_default();
    let scheme = incoming.context.scheme();
    let referer = [incoming.method().as_str(), " ", scheme, "://", host, target].concat();
    if let Ok(value) = HeaderValue::from_str(&referer) {
        headers.insert(REFERER, value);
    }
    headers
}

/// The user agent by which backends log this process's requests.
fn user_agent() -> HeaderValue {
    static NAME: OnceLock<HeaderValue> = OnceLock::new();
    let make = || HeaderValue::from_str(&format!("proxy-server {}", std::process::id()));
    let unnamed = |_| HeaderValue::from_static("proxy-server");
    NAME.get_or_init(|| make().unwrap_or_else(unnamed)).clone()
}

/// Path and query for backends' logs. The query is left out if it has a signature, which would give
/// every reader of the log access to the object.
fn without_signature(uri: &http::Uri) -> &str {
    let whole = uri.path_and_query().map_or("", |all| all.as_str());
    let query = uri.query().unwrap_or("");
    let is_signed = ["sig", "Signature", "%"]
        .iter()
        .any(|mark| query.contains(mark));
    if is_signed { uri.path() } else { whole }
}

/// Headers of a request to an object server, or of any read: the client's own without hop-by-hop
/// ones, and [`base`].
pub(crate) fn with_all(incoming: &Incoming) -> HeaderMap {
    let mut headers = base(incoming);
    for (name, value) in incoming.headers() {
        let hop = match name.as_str() {
            "connection" | "transfer-encoding" | "content-length" | "user-agent" | "referer"
            | "date" | "host" | "expect" | "x-auth-token" | "x-storage-token"
            | "x-service-token" | "x-timestamp" | "x-trans-id" | "keep-alive" | "te"
            | "upgrade" => true,
            other => other.starts_with("x-backend-"),
        };
        if !hop {
            headers.append(name, value.clone());
        }
    }
    headers
}

/// Headers of a write to an account or container: metadata, removals, and those stored unchanged.
pub(crate) fn with_metadata(incoming: &Incoming, kind: ServerKind) -> HeaderMap {
    let mut headers = base(incoming);
    let remove_prefix = format!("x-remove-{}-meta-", kind.as_str());
    let empty = HeaderValue::from_static("");
    for name in incoming.headers().keys() {
        if let Some(rest) = name.as_str().strip_prefix(&remove_prefix) {
            let stored = format!("{}{rest}", kind.user_meta_prefix());
            if let Ok(stored) = HeaderName::from_bytes(stored.as_bytes()) {
                headers.insert(stored, empty.clone());
            }
        }
    }
    if kind == ServerKind::Container {
        for (remove, stored) in CONTAINER_REMOVE {
            if incoming.headers().contains_key(remove) {
                headers.insert(HeaderName::from_static(stored), empty.clone());
            }
        }
    }
    for (name, value) in incoming.headers() {
        let passes =
            kind == ServerKind::Container && CONTAINER_PASS_THROUGH.contains(&name.as_str());
        if passes || is_sys_or_user_meta(kind, name.as_str()) {
            headers.insert(name, value.clone());
        }
    }
    headers
}

/// Headers of a backend's response that are not the client's.
const OF_BACKEND: [HeaderName; 6] = [
    DATE,
    CONNECTION,
    TRANSFER_ENCODING,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("x-put-timestamp"),
    HeaderName::from_static("x-delete-after"),
];

/// Converts a backend's headers for the client; lengths, dates and the like are generated anew.
pub(crate) fn from_backend(backend: &Headers) -> HeaderMap {
    let mut headers = for_client(backend.clone());
    headers.remove(CONTENT_LENGTH);
    headers.remove(CONTENT_TYPE);
    headers
}

/// As [`from_backend`], of an answer whose content is passed on as it is: with its type and length.
pub(crate) fn for_client(mut headers: Headers) -> HeaderMap {
    for name in OF_BACKEND {
        headers.remove(name);
    }
    if let Some(etag) = headers.get_mut(ETAG)
        && etag.as_bytes().contains(&b'"')
    {
        let mut bare = etag.as_bytes().to_vec();
        bare.retain(|byte| *byte != b'"');
        if let Ok(bare) = HeaderValue::try_from(bare) {
            *etag = bare;
        }
    }
    headers
}

/// The timestamp by which responses of backends are compared.
pub(crate) fn source_timestamp(headers: &Headers) -> Timestamp {
    [
        "x-backend-data-timestamp",
        "x-backend-timestamp",
        "x-put-timestamp",
        "x-timestamp",
    ]
    .into_iter()
    .find_map(|name| cairn_http::respond::header_timestamp(headers, name))
    .unwrap_or(Timestamp::ZERO)
}

/// Removes headers that only the account's owner may see or set.
pub(crate) fn strip_owner_headers(headers: &mut Headers, owner_headers: &[String]) {
    for name in owner_headers {
        headers.remove(name.as_str());
    }
}

pub(crate) fn insert(headers: &mut HeaderMap, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
        headers.insert(HeaderName::from_static(name), value);
    }
}

/// Appends an item to a comma-separated header.
pub(crate) fn append_csv(headers: &mut HeaderMap, name: &'static str, item: &str) {
    let joined = match cairn_http::respond::header(headers, name) {
        Some(before) if !before.is_empty() => format!("{before},{item}"),
        _ => item.to_owned(),
    };
    insert(headers, name, &joined);
}

/// May cross-origin scripts read this metadata header by default?
pub(crate) fn is_exposed_meta(name: &str) -> bool {
    name.starts_with("x-container-meta") || is_user_meta(ServerKind::Object, name)
}

/// Does the request have `X-Newest: true`?
pub(crate) fn wants_newest(incoming: &Incoming) -> bool {
    incoming.header("x-newest").is_some_and(params::is_true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_are_told_no_signatures() {
        for (uri, told) in [
            ("/v1/a/c/o", "/v1/a/c/o"),
            ("/v1/a/c?limit=2", "/v1/a/c?limit=2"),
            ("/v1/a/c/o?temp_url_sig=abc&temp_url_expires=1", "/v1/a/c/o"),
            ("/v1/a/c/o?temp%5Furl%5Fsig=abc", "/v1/a/c/o"),
            ("/b/o?X-Amz-Signature=abc", "/b/o"),
        ] {
            let uri: http::Uri = uri.parse().unwrap_or_default();
            assert_eq!(without_signature(&uri), told);
        }
    }
}
