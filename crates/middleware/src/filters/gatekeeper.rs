//! Filter `gatekeeper`: keeps internal headers inside. A client can neither send nor see system
//! metadata and `X-Backend-*`. Every filter that trusts such headers relies on this one being
//! before it.

use std::sync::Arc;

use cairn_formats::ini::Section;
use cairn_http::context::Context;
use cairn_http::params::is_true;
use cairn_http::{Handler, Request, Response, Service, ServiceFuture, respond};
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use tracing::debug;

use crate::{FilterEnv, FilterError};

/// Is this lower-case header internal, so that it must not pass in either direction?
fn is_internal(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("x-") else {
        return false;
    };
    if rest.starts_with("backend") {
        return true;
    }
    if let Some(rest) = rest.strip_prefix("object-") {
        return rest.starts_with("sysmeta-") || rest.starts_with("transient-sysmeta-");
    }
    // Besides system metadata: update headers from before X-Backend ones existed.
    if let Some(rest) = rest.strip_prefix("account-") {
        return rest.starts_with("sysmeta-") || matches!(rest, "host" | "device" | "partition");
    }
    if let Some(rest) = rest.strip_prefix("container-") {
        return rest.starts_with("sysmeta-")
            || matches!(rest, "host" | "device" | "partition" | "root-db-state");
    }
    if let Some(rest) = rest.strip_prefix("delete-at-") {
        return matches!(rest, "host" | "device" | "partition" | "container");
    }
    false
}

fn strip(headers: &mut HeaderMap, of: &'static str) {
    // An empty collection needs no allocation.
    let internal: Vec<HeaderName> = headers
        .keys()
        .filter(|n| is_internal(n.as_str()))
        .cloned()
        .collect();
    if internal.is_empty() {
        return;
    }
    debug!(of, removed = ?internal, "removed internal headers");
    for name in internal {
        headers.remove(name);
    }
}

struct Gatekeeper {
    next: Handler,
    shunt_inbound_x_timestamp: bool,
    allow_reserved_names_header: bool,
}

pub(crate) fn make(
    section: &Section,
    next: Handler,
    _: &FilterEnv,
) -> Result<Handler, FilterError> {
    Ok(Arc::new(Gatekeeper {
        next,
        shunt_inbound_x_timestamp: section.bool_or("shunt_inbound_x_timestamp", true),
        allow_reserved_names_header: section.bool_or("allow_reserved_names_header", false),
    }))
}

impl Service for Gatekeeper {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        Box::pin(self.guard(request))
    }
}

const X_TIMESTAMP: HeaderName = HeaderName::from_static("x-timestamp");
const INBOUND_TIMESTAMP: HeaderName = HeaderName::from_static("x-backend-inbound-x-timestamp");
const ALLOW_RESERVED: HeaderName = HeaderName::from_static("x-allow-reserved-names");
const BACKEND_ALLOW_RESERVED: HeaderName =
    HeaderName::from_static("x-backend-allow-reserved-names");

impl Gatekeeper {
    async fn guard(&self, mut request: Request) -> Response {
        strip(request.headers_mut(), "request");
        if self.shunt_inbound_x_timestamp
            && let Some(timestamp) = request.headers_mut().remove(X_TIMESTAMP)
        {
            request.headers_mut().insert(INBOUND_TIMESTAMP, timestamp);
        }
        if self.allow_reserved_names_header
            && let Some(allow) = request.headers_mut().remove(ALLOW_RESERVED)
        {
            self.allow_reserved(&mut request, allow);
        }
        let mut response = self.next.call(request).await;
        strip(response.headers_mut(), "response");
        response
    }

    fn allow_reserved(&self, request: &mut Request, allow: HeaderValue) {
        request.headers_mut().insert(BACKEND_ALLOW_RESERVED, allow);
        let allowed = respond::header(request.headers(), BACKEND_ALLOW_RESERVED.as_str())
            .is_some_and(is_true);
        let mut context = Context::of_request(request);
        context.allow_reserved = allowed;
        request.extensions_mut().insert(context);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing::{filter, header, recorder, request};
    use http::StatusCode;

    const INTERNAL: [&str; 13] = [
        "x-account-sysmeta-a",
        "X-Container-Sysmeta-a",
        "x-object-sysmeta-a",
        "x-object-transient-sysmeta-a",
        "x-backend-replication",
        "x-backend",
        "x-account-host",
        "x-container-device",
        "x-container-partition",
        "x-container-root-db-state",
        "x-delete-at-container",
        "x-delete-at-host",
        "x-backendish",
    ];
    const PUBLIC: [&str; 8] = [
        "x-account-meta-host",
        "x-container-meta-a",
        "x-object-meta-sysmeta-a",
        "x-container-hosts",
        "x-container-sync-to",
        "x-delete-at",
        "x-delete-at-hosts",
        "content-type",
    ];

    #[tokio::test]
    async fn strips_both_ways() {
        let (inner, seen) = recorder(|_| {
            let mut response = respond::empty(StatusCode::OK);
            for name in INTERNAL.iter().chain(&PUBLIC) {
                respond::set(response.headers_mut(), &name.to_lowercase(), "v");
            }
            response
        });
        let app = filter("gatekeeper", &[], inner);
        let headers: Vec<_> = INTERNAL.iter().chain(&PUBLIC).map(|n| (*n, "v")).collect();
        let response = app.call(request("PUT", "/v1/a/c/o", &headers)).await;
        let seen = seen.lock().unwrap();
        for name in INTERNAL {
            assert!(!seen[0].0.headers.contains_key(name), "{name}");
            assert_eq!(header(&response, name), None, "{name}");
        }
        for name in PUBLIC {
            assert!(seen[0].0.headers.contains_key(name), "{name}");
            assert!(header(&response, name).is_some(), "{name}");
        }
    }

    #[tokio::test]
    async fn shunts_timestamps() {
        for (options, kept, shunted) in [
            (&[][..], None, Some("123")),
            (
                &[("shunt_inbound_x_timestamp", "false")][..],
                Some("123"),
                None,
            ),
        ] {
            let (inner, seen) = recorder(|_| respond::empty(StatusCode::OK));
            let app = filter("gatekeeper", options, inner);
            let headers = [
                ("x-timestamp", "123"),
                ("x-backend-inbound-x-timestamp", "9"),
            ];
            app.call(request("PUT", "/v1/a/c/o", &headers)).await;
            let seen = seen.lock().unwrap();
            let got = |name| respond::header(&seen[0].0.headers, name);
            assert_eq!(got("x-timestamp"), kept);
            assert_eq!(got("x-backend-inbound-x-timestamp"), shunted);
        }
    }

    #[tokio::test]
    async fn reserved_names_need_the_option() {
        for (options, allowed) in [
            (&[][..], false),
            (&[("allow_reserved_names_header", "true")][..], true),
        ] {
            let (inner, seen) = recorder(|_| respond::empty(StatusCode::OK));
            let app = filter("gatekeeper", options, inner);
            app.call(request(
                "GET",
                "/v1/a",
                &[("x-allow-reserved-names", "true")],
            ))
            .await;
            let seen = seen.lock().unwrap();
            assert_eq!(Context::of(&seen[0].0).allow_reserved, allowed);
            assert_eq!(
                seen[0].0.headers.contains_key(&BACKEND_ALLOW_RESERVED),
                allowed
            );
        }
    }
}
