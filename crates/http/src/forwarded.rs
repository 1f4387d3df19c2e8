//! Detection of requests that an HTTP proxy forwards, by the headers it adds.

use http::HeaderMap;

/// Headers that proxies add; one is enough.
const PROXY_HEADERS: [&str; 9] = [
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-forwarded-server",
    "x-real-ip",
    "x-cluster-client-ip",
];

/// Was this request forwarded by a proxy? The connection's address is then not the client's.
pub(crate) fn is_forwarded(headers: &HeaderMap) -> bool {
    PROXY_HEADERS.iter().any(|name| headers.contains_key(*name))
}
