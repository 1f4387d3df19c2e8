//! Filter `container_sync`: authorizes requests of other clusters in a realm, signed with the
//! realm's key and the container's own, and lists realms and clusters in `/info`.

use std::sync::Arc;
use std::time::Duration;

use cairn_formats::ini::Section;
use cairn_formats::sync_realms::{Realms, Signed};
use cairn_http::params::{is_true, quote_path, split_path, unquote};
use cairn_http::{
    Context, Followed, Handler, Request, Response, Service, ServiceFuture, SwiftInfo, respond,
};
use http::header::{HeaderName, WWW_AUTHENTICATE};
use http::{Method, StatusCode};
use serde_json::{Map, Value, json};
use subtle::ConstantTimeEq;
use tracing::error;

use crate::scope::Scope;
use crate::{FilterEnv, FilterError};

/// Headers that name a source or destination of a copy. Clusters never send them, and the signature
/// does not cover them.
const POINTERS: [&str; 4] = [
    "x-copy-from",
    "x-copy-from-account",
    "destination",
    "destination-account",
];
const X_TIMESTAMP: HeaderName = HeaderName::from_static("x-timestamp");
const INBOUND_TIMESTAMP: HeaderName = HeaderName::from_static("x-backend-inbound-x-timestamp");
/// Interval of checks of the realms' file.
const CHECK_INTERVAL: Duration = Duration::from_secs(300);

struct ContainerSync {
    next: Handler,
    env: FilterEnv,
    realms: Arc<Followed<Realms>>,
    /// Targets may be URLs, not only clusters of realms.
    allow_full_urls: bool,
    /// This cluster's realm and name.
    current: Option<(String, String)>,
}

pub(crate) fn make(
    section: &Section,
    next: Handler,
    env: &FilterEnv,
) -> Result<Handler, FilterError> {
    let swift_dir = section.str_or("swift_dir", "/etc/swift");
    let path = std::path::Path::new(swift_dir).join("container-sync-realms.conf");
    let parse = |file: &str, text: &str| Realms::parse(file, text).map_err(|e| e.to_string());
    let current = match section.get("current").map(|c| c.trim_matches('/')) {
        None | Some("") => None,
        Some(current) => match current.split_once('/') {
            Some((realm, cluster)) if !cluster.contains('/') => {
                Some((realm.to_uppercase(), cluster.to_uppercase()))
            }
            _ => return Err(section.bad("current", "expected //REALM/CLUSTER").into()),
        },
    };
    let sync = ContainerSync {
        next,
        env: env.clone(),
        realms: Followed::new(path, CHECK_INTERVAL, parse),
        allow_full_urls: is_true(section.str_or("allow_full_urls", "true")),
        current,
    };
    sync.register(&env.swift_info, &sync.realms.look());
    Ok(Arc::new(sync))
}

impl Service for ContainerSync {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        Box::pin(self.answer(request))
    }
}

/// The target of a request.
struct Target {
    account: String,
    container: String,
    has_object: bool,
}

impl Target {
    fn of(path: &str) -> Option<Target> {
        let path = unquote(path).ok()?;
        let parts = split_path(&path, 3, 4, true)?;
        Some(Target {
            account: parts[1]?.to_owned(),
            container: parts[2]?.to_owned(),
            has_object: parts[3].is_some(),
        })
    }
}

impl ContainerSync {
    fn register(&self, info: &SwiftInfo, realms: &Realms) {
        let mut shown: Map<String, Value> = Map::new();
        for (name, realm) in realms.iter().filter(|(_, r)| !r.clusters.is_empty()) {
            let is_here = |cluster: &str| {
                let current = self.current.as_ref();
                current.is_some_and(|(realm, here)| realm == name && here == cluster)
            };
            let clusters = realm.clusters.keys().map(|cluster| match is_here(cluster) {
                true => (cluster.clone(), json!({ "current": true })),
                false => (cluster.clone(), json!({})),
            });
            let clusters: Map<String, Value> = clusters.collect();
            shown.insert(name.to_owned(), json!({ "clusters": clusters }));
        }
        if let Some((realm, cluster)) = &self.current
            && shown
                .get(realm)
                .is_none_or(|r| r["clusters"].get(cluster).is_none())
        {
            error!(
                realm,
                cluster, "container_sync's current cluster is in no realm"
            );
        }
        info.register("container_sync", json!({ "realms": shown }));
    }

    async fn answer(&self, request: Request) -> Response {
        if request.uri().path() == "/info" {
            self.register(&self.env.swift_info, &*self.realms.get().await);
            return self.next.call(request).await;
        }
        match self.check(request).await {
            Ok(request) => self.next.call(request).await,
            Err(refused) => refused,
        }
    }

    async fn check(&self, mut request: Request) -> Result<Request, Response> {
        let header = |name: &str| respond::header(request.headers(), name);
        let sync_to = header("x-container-sync-to");
        let auth = header("x-container-sync-auth").map(str::to_owned);
        if sync_to.is_none() && auth.is_none() {
            return Ok(request);
        }
        let Some(target) = Target::of(request.uri().path()) else {
            return Ok(request);
        };
        let context = Context::of_request(&request);
        let source = &self.env.info_source;
        let info = source
            .container(&context, &target.account, &target.container)
            .await;
        let bad = |text: &str| Err(respond::text(StatusCode::BAD_REQUEST, text));
        let sets = [Method::PUT, Method::POST].contains(request.method()) && !target.has_object;
        if let Some(sync_to) = sync_to.filter(|to| !to.is_empty()) {
            let versions = info.sysmeta.get("versions-container");
            if sets && versions.is_some_and(|v| !v.is_empty()) {
                return bad(
                    "Cannot configure container sync on a container with object versioning \
                     configured.",
                );
            }
            if !self.allow_full_urls && !sync_to.starts_with("//") {
                return bad(
                    "Full URLs are not allowed for X-Container-Sync-To values. Only realm values \
                     of the format //realm/cluster/account/container are allowed.\n",
                );
            }
        }
        let Some(auth) = auth else {
            return Ok(request);
        };
        let note = self
            .verify(&mut request, &auth, info.sync_key.as_deref())
            .await;
        context.notes.add(note);
        if note != VALID {
            return Err(unauthorized(&target.account));
        }
        let headers = request.headers();
        if let Some(name) = POINTERS.iter().find(|name| headers.contains_key(**name)) {
            return bad(&format!("{name} is not allowed in container sync.\n"));
        }
        let scope = Scope::container(&target.account, &target.container);
        request.extensions_mut().insert(Context {
            authorized: true,
            // The container's key gives access to that container only.
            authorizer: Some(Arc::new(scope)),
            // Synced data is stored unchanged, and may arrive before what it refers to.
            slo_override: true,
            symlink_override: true,
            ..context
        });
        Ok(request)
    }

    /// Verifies the signature; returns a description for the log.
    async fn verify(
        &self,
        request: &mut Request,
        auth: &str,
        user_key: Option<&str>,
    ) -> &'static str {
        let words: Vec<&str> = auth.split_whitespace().collect();
        let [realm, nonce, signature] = words[..] else {
            return "cs:not-3-args";
        };
        let realms = self.realms.get().await;
        let realm = realms.get(realm);
        let Some((realm, key)) = realm.and_then(|r| Some((r, r.key.as_ref()?))) else {
            return "cs:no-local-realm-key";
        };
        let Some(user_key) = user_key.filter(|key| !key.is_empty()) else {
            return "cs:no-local-user-key";
        };
        // The gatekeeper has set it aside.
        if let Some(time) = request.headers_mut().remove(INBOUND_TIMESTAMP) {
            request.headers_mut().insert(X_TIMESTAMP, time);
        }
        let path = unquote(request.uri().path()).unwrap_or_default();
        let signed = Signed {
            method: request.method().as_str(),
            path: &quote_path(&path),
            timestamp: respond::header(request.headers(), "x-timestamp").unwrap_or("0"),
            nonce,
            user_key,
        };
        let keys = [Some(key), realm.key2.as_ref()];
        let is_signed = keys.into_iter().flatten().any(|key| {
            let expected = signed.signature(key);
            bool::from(expected.as_bytes().ct_eq(signature.as_bytes()))
        });
        if is_signed { VALID } else { "cs:invalid-sig" }
    }
}

const VALID: &str = "cs:valid";

fn unauthorized(account: &str) -> Response {
    let mut refused = respond::text(
        StatusCode::UNAUTHORIZED,
        "X-Container-Sync-Auth header not valid; contact cluster operator for support.",
    );
    let realm = quote_path(account);
    respond::set(
        refused.headers_mut(),
        WWW_AUTHENTICATE.as_str(),
        format!("SwiftContainerSync realm=\"{realm}\""),
    );
    refused
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
