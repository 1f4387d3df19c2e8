//! A request in the form that controllers use: path decoded and split, parameters parsed, context
//! extracted.

use std::sync::Arc;

use cairn_http::params::{self, Params};
use cairn_http::{Body, Clock, Context, Request, Response, respond};
use cairn_peer::LoadedRing;
use cairn_types::{Constraints, Timestamp};
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderMap, Method};

use crate::status;

/// The entity that a path names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Info,
    Account {
        account: String,
    },
    Container {
        account: String,
        container: String,
    },
    Object {
        account: String,
        container: String,
        object: String,
    },
}

impl Target {
    pub(crate) fn account(&self) -> &str {
        match self {
            Target::Info => "",
            Target::Account { account }
            | Target::Container { account, .. }
            | Target::Object { account, .. } => account,
        }
    }

    pub(crate) fn container(&self) -> Option<&str> {
        match self {
            Target::Container { container, .. } | Target::Object { container, .. } => {
                Some(container)
            }
            _ => None,
        }
    }

    /// The decoded path for backends, `/account/container/object`.
    pub(crate) fn entity_path(&self) -> String {
        match self {
            Target::Info => "/info".into(),
            Target::Account { account } => format!("/{account}"),
            Target::Container { account, container } => format!("/{account}/{container}"),
            Target::Object {
                account,
                container,
                object,
            } => ["/", account, "/", container, "/", object].concat(),
        }
    }
}

/// A request in progress in the proxy.
pub(crate) struct Incoming {
    pub(crate) parts: Parts,
    pub(crate) body: Body,
    pub(crate) context: Context,
    pub(crate) params: Params,
    pub(crate) target: Target,
    /// The request's timestamp: the client's, if the pipeline lets it pass, or the current time.
    pub(crate) timestamp: Timestamp,
}

impl Incoming {
    pub(crate) fn method(&self) -> &Method {
        &self.parts.method
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        &self.parts.headers
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        respond::header(&self.parts.headers, name)
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        self.header(name).is_some_and(params::is_true)
    }

    /// The ring with nodes addressed for this request: a daemon's requests use the replication
    /// network.
    pub(crate) fn network_of(&self, ring: Arc<LoadedRing>) -> Arc<LoadedRing> {
        network_of(ring, &self.parts.headers)
    }
}

/// The rules that a request's head is parsed by.
pub(crate) struct Rules<'a> {
    pub(crate) constraints: &'a Constraints,
    /// Hosts that are refused (`deny_host_headers`).
    pub(crate) denied_hosts: &'a [String],
    /// Gives a request its timestamp.
    pub(crate) clock: &'a Clock,
}

impl Rules<'_> {
    /// Parses the parts common to all requests: path, parameters, timestamp. The error is the response.
    pub(crate) fn parse(&self, request: Request) -> Result<Incoming, Response> {
        let (mut parts, body) = request.into_parts();
        let context = Context::of(&parts);
        let allow_reserved = context.allow_reserved
            || respond::header(&parts.headers, "x-backend-allow-reserved-names")
                .is_some_and(params::is_true);
        if parts.headers.contains_key(TRANSFER_ENCODING) {
            // With both headers present the encoding takes precedence, and no backend may interpret
            // the request otherwise.
            parts.headers.remove(CONTENT_LENGTH);
        }
        if let Some(token) = parts.headers.get("x-storage-token").cloned() {
            parts.headers.entry("x-auth-token").or_insert(token);
        }
        let target = parse_target(parts.uri.path(), self.constraints, allow_reserved)?;
        if self.is_host_denied(&parts.headers) {
            return Err(status::denied_host());
        }
        let params = Params::parse(parts.uri.query())
            .map_err(|_| status::malformed("query parameters: not valid UTF-8"))?;
        let timestamp = match respond::header(&parts.headers, "x-timestamp") {
            None => self.clock.unique(),
            Some(text) => Timestamp::parse(text).map_err(|_| {
                let text =
                    format!("X-Timestamp should be a UNIX timestamp float value; was {text:?}");
                status::malformed(text)
            })?,
        };
        Ok(Incoming {
            parts,
            body,
            context,
            params,
            target,
            timestamp,
        })
    }

    fn is_host_denied(&self, headers: &HeaderMap) -> bool {
        let host = respond::header(headers, "host").unwrap_or("");
        let host = host.split(':').next().unwrap_or("");
        self.denied_hosts.iter().any(|denied| denied == host)
    }
}

/// The ring with nodes addressed for a request with these headers.
pub(crate) fn network_of(ring: Arc<LoadedRing>, headers: &HeaderMap) -> Arc<LoadedRing> {
    let asked = respond::header(headers, "x-backend-use-replication-network");
    match asked.is_some_and(params::is_true) {
        true => ring.over_replication(),
        false => ring,
    }
}

/// Parses the path; the error is the response.
pub(crate) fn parse_target(
    raw_path: &str,
    constraints: &Constraints,
    allow_reserved: bool,
) -> Result<Target, Response> {
    let bad_text = || status::bad_path("Invalid UTF8 or contains NULL");
    let path = params::unquote(raw_path).map_err(|_| bad_text())?;
    if path.contains('\0') && !allow_reserved {
        return Err(bad_text());
    }
    if path == "/info" {
        return Ok(Target::Info);
    }
    let segments = params::split_path(&path, 1, 4, true).ok_or_else(status::no_such_path)?;
    let version = segments[0].unwrap_or("");
    let (account, container, object) = (segments[1], segments[2], segments[3]);
    if account.is_some() && !constraints.valid_api_versions.iter().any(|v| v == version) {
        return Err(status::unknown_version());
    }
    let own = |text: &str| text.to_owned();
    let target = match (account, container, object) {
        (Some(a), Some(c), Some(o)) => Target::Object {
            account: own(a),
            container: own(c),
            object: own(o),
        },
        (Some(a), Some(c), None) => Target::Container {
            account: own(a),
            container: own(c),
        },
        (Some(a), None, None) => Target::Account { account: own(a) },
        (None, None, None) => {
            return Err(status::bad_path("Bad URL"));
        }
        // An empty segment in the middle. Swift's proxy alone would respond 412, but the middleware
        // of its default pipeline responds 404 before that.
        _ => return Err(status::no_such_path()),
    };
    check_reserved(&target)?;
    Ok(target)
}

/// A name with a NUL must begin with one, and below a reserved name all names must be reserved.
fn check_reserved(target: &Target) -> Result<(), Response> {
    let bad = |what: &str| {
        Err(status::malformed(format!(
            "Invalid reserved-namespace {what}"
        )))
    };
    let mixed = |name: &str| name.contains('\0') && !name.starts_with('\0');
    if mixed(target.account()) {
        return bad("account");
    }
    let Some(container) = target.container() else {
        return Ok(());
    };
    if mixed(container) {
        return bad("container");
    }
    if let Target::Object {
        account, object, ..
    } = target
    {
        let below = container.starts_with('\0') && !account.starts_with('.');
        if mixed(object) || (below && !object.starts_with('\0')) {
            return bad("object");
        }
        if !container.starts_with('\0') && object.starts_with('\0') && !account.starts_with('.') {
            return bad("object");
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parse(path: &str) -> Result<Target, u16> {
        parse_target(path, &Constraints::default(), false).map_err(|r| r.status().as_u16())
    }

    #[test]
    fn targets() {
        assert_eq!(
            parse("/v1/AUTH_a/c/o%2Fp/q"),
            Ok(Target::Object {
                account: "AUTH_a".into(),
                container: "c".into(),
                object: "o/p/q".into()
            })
        );
        assert_eq!(
            parse("/v1/a"),
            Ok(Target::Account {
                account: "a".into()
            })
        );
        assert_eq!(
            parse("/v1/a/"),
            Ok(Target::Account {
                account: "a".into()
            })
        );
        assert!(matches!(parse("/v1/a/c/"), Ok(Target::Container { .. })));
        assert_eq!(parse("/info"), Ok(Target::Info));
    }

    #[test]
    fn refusals() {
        assert_eq!(parse("/v1/a/%ff"), Err(412));
        assert_eq!(parse("/v1/a/c%00"), Err(412));
        assert_eq!(parse("/v2/a/c"), Err(400));
        assert_eq!(parse("/v1"), Err(412));
        assert_eq!(parse("/v1/a//o"), Err(404));
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_path_is_a_target_or_refused(path in "/(v1|info|v1.0)?(/([a-z%0-9é]|%[0-9A-F]{2}){0,8}){0,5}|.{0,60}") {
            if let Ok(target) = parse_target(&path, &Constraints::default(), false) {
                prop_assert!(!target.entity_path().contains('\0'));
            }
        }
    }
}
