//! Headers by which an HTTP proxy says that a request is not its own.

use http::HeaderMap;

/// In use by proxies of this day; one is enough.
const OF_PROXIES: [&str; 9] = [
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

/// Does a proxy pass this request on? Its connection then says nothing of the client's place.
pub(crate) fn is_forwarded(headers: &HeaderMap) -> bool {
    OF_PROXIES.iter().any(|name| headers.contains_key(*name))
}
