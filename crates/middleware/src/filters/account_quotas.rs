//! Filter `account_quotas`: refuses uploads that would exceed an account's quota, in bytes and
//! objects, in all and per storage policy. Only resellers set quotas, and are exempt from them; the
//! owner can read them.
//!
//! Headers: `X-Account-Quota-Bytes`, `X-Account-Quota-Count`, each also with `-Policy-<name>`;
//! stored as system metadata, with policies by their index. `X-Account-Meta-Quota-Bytes` is the old
//! name of the first. An account's usage is known with a delay, and an upload of unknown length
//! counts as 0 bytes: the next one is refused.

use std::sync::Arc;

use cairn_formats::ini::Section;
use cairn_http::context::{Authorize, AuthorizeFuture, Context};
use cairn_http::{
    AccountInfo, Handler, InfoSource, PolicyUsage, Request, Response, Service, ServiceFuture,
    respond,
};
use cairn_types::{PolicySet, StoragePolicy};
use http::header::{CONTENT_LENGTH, HeaderName};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use serde_json::json;

use crate::names::Names;
use crate::{FilterEnv, FilterError};

const TYPES: [&str; 2] = ["quota-bytes", "quota-count"];

struct AccountQuotas {
    next: Handler,
    info_source: Arc<dyn InfoSource>,
    policies: Arc<PolicySet>,
}

pub(crate) fn make(_: &Section, next: Handler, env: &FilterEnv) -> Result<Handler, FilterError> {
    env.swift_info.register("account_quotas", json!({}));
    Ok(Arc::new(AccountQuotas {
        next,
        info_source: env.info_source.clone(),
        policies: env.policies.clone(),
    }))
}

impl Service for AccountQuotas {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        // An account's path has no third slash, or only one at its end.
        let below = request.uri().path().splitn(4, '/').nth(3).unwrap_or("");
        if !below.is_empty() && request.method() != Method::PUT {
            return self.next.call(request);
        }
        match Names::of(request.uri().path()) {
            None => self.next.call(request),
            Some(names) if names.container.is_none() => Box::pin(self.account(request)),
            Some(names) if names.object.is_some() && request.method() == Method::PUT => {
                Box::pin(self.object_put(request, names))
            }
            Some(_) => self.next.call(request),
        }
    }
}

/// Header name `x-account-quota-bytes` for an account, `…-policy-<name>` for one of its policies.
fn public_name(kind: &str, policy: Option<&StoragePolicy>) -> String {
    let policy = policy.map_or_else(String::new, |p| format!("-policy-{}", p.name));
    format!("x-account-{kind}{policy}").to_ascii_lowercase()
}

fn stored_key(kind: &str, policy: Option<&StoragePolicy>) -> String {
    let policy = policy.map_or_else(String::new, |p| format!("-policy-{}", p.index));
    format!("{kind}{policy}")
}

fn stored_name(kind: &str, policy: Option<&StoragePolicy>) -> String {
    format!("x-account-sysmeta-{}", stored_key(kind, policy))
}

impl AccountQuotas {
    /// All possible quotas: their kind, and their policy.
    fn quotas(&self) -> impl Iterator<Item = (&'static str, Option<&StoragePolicy>)> {
        TYPES.into_iter().flat_map(|kind| {
            let policies = self.policies.iter().map(Some);
            std::iter::once(None)
                .chain(policies)
                .map(move |policy| (kind, policy))
        })
    }

    async fn account(&self, mut request: Request) -> Response {
        if request.method() == Method::POST || request.method() == Method::PUT {
            let is_reseller = Context::of_request(&request).reseller;
            if let Err(refused) = self.translate(request.headers_mut(), is_reseller) {
                return refused;
            }
        }
        let mut response = self.next.call(request).await;
        for (kind, policy) in self.quotas() {
            let stored = stored_name(kind, policy);
            let value = response.headers().get(stored.as_str()).cloned();
            let shown = HeaderName::from_bytes(public_name(kind, policy).as_bytes());
            if let (Some(value), Ok(shown)) = (value.filter(|v| !v.is_empty()), shown) {
                response.headers_mut().insert(shown, value);
            }
        }
        response
    }

    /// Converts quota headers into stored system metadata, if the client may set them.
    fn translate(&self, headers: &mut HeaderMap, is_reseller: bool) -> Result<(), Response> {
        for (old, new) in [
            ("x-account-meta-quota-bytes", "x-account-quota-bytes"),
            (
                "x-remove-account-meta-quota-bytes",
                "x-remove-account-quota-bytes",
            ),
        ] {
            let is_set = headers.get(new).is_some_and(|v| !v.is_empty());
            if let (Some(value), false) = (headers.get(old).cloned(), is_set) {
                headers.insert(new, value);
            }
        }
        let mut changes = Vec::new();
        for (kind, policy) in self.quotas() {
            let name = public_name(kind, policy);
            let remove = name.replacen("x-", "x-remove-", 1);
            let value = if headers.get(remove.as_str()).is_some_and(|v| !v.is_empty()) {
                Some(HeaderValue::from_static(""))
            } else {
                headers.get(name.as_str()).cloned()
            };
            let Some(value) = value else { continue };
            if !is_reseller {
                return Err(respond::standard(StatusCode::FORBIDDEN));
            }
            if !value.as_bytes().iter().all(u8::is_ascii_digit) {
                return Err(respond::standard(StatusCode::BAD_REQUEST));
            }
            if policy.is_some() {
                headers.remove(name.as_str());
            }
            changes.push((stored_name(kind, policy), value));
        }
        for (name, value) in changes {
            if let Ok(name) = HeaderName::from_bytes(name.as_bytes()) {
                headers.insert(name, value);
            }
        }
        Ok(())
    }

    async fn object_put(&self, mut request: Request, names: Names) -> Response {
        let context = Context::of_request(&request);
        if context.reseller {
            return self.next.call(request).await;
        }
        let length = respond::header(request.headers(), CONTENT_LENGTH.as_str())
            .and_then(|text| text.parse().ok())
            .unwrap_or(0);
        let Some(message) = self.exceeded(&context, &names, length).await else {
            return self.next.call(request).await;
        };
        // A client without write access must get its denial, which does not reveal usage: the
        // response waits until the container's ACL has been evaluated.
        match context.authorizer.clone() {
            None => too_large(message),
            Some(inner) => {
                let context = Context {
                    authorizer: Some(Arc::new(ThenTooLarge { inner, message })),
                    ..context
                };
                request.extensions_mut().insert(context);
                self.next.call(request).await
            }
        }
    }

    /// The message for the quota that `length` further bytes would exceed.
    async fn exceeded(
        &self,
        context: &Context,
        names: &Names,
        length: u64,
    ) -> Option<&'static str> {
        let account = self.info_source.account(context, &names.account).await;
        let in_all = PolicyUsage {
            bytes: account.bytes,
            object_count: account.object_count,
            ..PolicyUsage::default()
        };
        if is_exceeded(&account, None, in_all, length) {
            return Some("Upload exceeds quota.");
        }
        // Most accounts have no quota by policy: their containers need not be looked up.
        if !account.sysmeta.keys().any(|key| key.contains("-policy-")) {
            return None;
        }
        let container = self
            .info_source
            .container(context, &names.account, names.container.as_deref()?)
            .await;
        let policy = self.policies.by_index(container.policy)?;
        let usage = account.policies.get(&policy.index).copied();
        is_exceeded(&account, Some(policy), usage.unwrap_or_default(), length)
            .then_some("Upload exceeds policy quota.")
    }
}

fn is_exceeded(
    account: &AccountInfo,
    policy: Option<&StoragePolicy>,
    usage: PolicyUsage,
    length: u64,
) -> bool {
    let [bytes, count] = TYPES.map(|kind| {
        let key = stored_key(kind, policy);
        let old = || (key == TYPES[0]).then(|| account.meta.get(&key)).flatten();
        let text = account.sysmeta.get(&key).or_else(old)?;
        text.trim().parse::<u64>().ok()
    });
    bytes.is_some_and(|quota| usage.bytes.saturating_add(length) > quota)
        || count.is_some_and(|quota| usage.object_count.saturating_add(1) > quota)
}

fn too_large(message: &'static str) -> Response {
    respond::typed(StatusCode::PAYLOAD_TOO_LARGE, respond::HTML, message)
}

/// An authorizer that lets the inner one deny, and refuses requests that it grants.
struct ThenTooLarge {
    inner: Arc<dyn Authorize>,
    message: &'static str,
}

impl Authorize for ThenTooLarge {
    fn authorize<'a>(&'a self, request: &'a Parts, acl: Option<&'a str>) -> AuthorizeFuture<'a> {
        Box::pin(async move {
            self.inner.authorize(request, acl).await?;
            Err(too_large(self.message))
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing::{self, OneOfEach, Seen, filter_in, header, recorder, request};
    use cairn_http::context::Granted;
    use cairn_types::{PolicyIndex, PolicyKind};

    struct Everybody(bool);

    impl Authorize for Everybody {
        fn authorize<'a>(&'a self, _: &'a Parts, _: Option<&'a str>) -> AuthorizeFuture<'a> {
            let denied = || respond::standard(StatusCode::FORBIDDEN);
            let result = self.0.then(Granted::default).ok_or_else(denied);
            Box::pin(std::future::ready(result))
        }
    }

    fn policy(index: u32, name: &str) -> StoragePolicy {
        StoragePolicy {
            index: PolicyIndex(index),
            name: name.into(),
            aliases: Vec::new(),
            is_default: index == 0,
            deprecated: false,
            kind: PolicyKind::Replication,
        }
    }

    /// An account of 1000 bytes in 10 objects, of which 400 bytes in 4 objects have policy 1.
    fn app(quotas: &[(&str, &str)]) -> (Handler, Seen) {
        let mut account = AccountInfo {
            status: 204,
            bytes: 1000,
            object_count: 10,
            ..AccountInfo::default()
        };
        let usage = PolicyUsage {
            container_count: 1,
            object_count: 4,
            bytes: 400,
        };
        account.policies.insert(PolicyIndex(1), usage);
        for (name, value) in quotas {
            let map = match name.strip_prefix("meta-") {
                Some(_) => &mut account.meta,
                None => &mut account.sysmeta,
            };
            map.insert(name.trim_start_matches("meta-").into(), (*value).into());
        }
        let mut env = testing::env();
        let policies = vec![policy(0, "gold"), policy(1, "Silver")];
        env.policies = Arc::new(PolicySet::new(policies).unwrap());
        let container = cairn_http::ContainerInfo {
            policy: PolicyIndex(1),
            ..cairn_http::ContainerInfo::default()
        };
        env.info_source = Arc::new(OneOfEach {
            account: Arc::new(account),
            container: Arc::new(container),
        });
        let (inner, seen) = recorder(|parts| {
            let mut response = respond::empty(StatusCode::NO_CONTENT);
            for (name, value) in &parts.headers {
                response.headers_mut().insert(name, value.clone());
            }
            response
        });
        (filter_in(&env, "account_quotas", &[], inner), seen)
    }

    async fn put(quotas: &[(&str, &str)], length: &str) -> u16 {
        let (app, _) = app(quotas);
        let asked = request("PUT", "/v1/a/c/o", &[("content-length", length)]);
        app.call(asked).await.status().as_u16()
    }

    #[tokio::test]
    async fn uploads_within_and_beyond() {
        for (quota, value, length, status) in [
            ("other", "0", "1", 204),
            ("quota-bytes", "1000", "0", 204),
            ("quota-bytes", "1000", "1", 413),
            ("quota-bytes", "0", "0", 413),
            ("quota-bytes", "nonsense", "99", 204),
            ("meta-quota-bytes", "1001", "2", 413),
            ("meta-quota-count", "1", "2", 204),
            ("quota-count", "10", "0", 413),
            ("quota-count", "11", "0", 204),
            ("quota-bytes-policy-1", "410", "10", 204),
            ("quota-bytes-policy-1", "410", "11", 413),
            ("quota-bytes-policy-0", "1", "11", 204),
            ("quota-count-policy-1", "4", "0", 413),
            ("quota-count-policy-1", "5", "0", 204),
        ] {
            assert_eq!(
                put(&[(quota, value)], length).await,
                status,
                "{quota} {value}"
            );
        }
        // The stored quota takes precedence over the old name.
        let both = [("meta-quota-bytes", "5000"), ("quota-bytes", "1000")];
        assert_eq!(put(&both, "1").await, 413);
    }

    #[tokio::test]
    async fn who_is_told() {
        let (app, seen) = app(&[("quota-bytes", "1")]);
        let mut asked = request("PUT", "/v1/a/c/o", &[]);
        asked.extensions_mut().insert(Context {
            reseller: true,
            ..Context::default()
        });
        assert_eq!(app.call(asked).await.status(), 204);
        for (may_write, status) in [(true, 413), (false, 403)] {
            let mut asked = request("PUT", "/v1/a/c/o", &[]);
            asked.extensions_mut().insert(Context {
                authorizer: Some(Arc::new(Everybody(may_write))),
                ..Context::default()
            });
            assert_eq!(app.call(asked).await.status(), 204);
            let (parts, _) = seen.lock().unwrap().pop().unwrap();
            let decided = Context::of(&parts).authorize(&parts, None).await;
            assert_eq!(decided.unwrap_err().status(), status);
        }
        for (method, path) in [
            ("POST", "/v1/a/c/o"),
            ("PUT", "/v1/a/c"),
            ("DELETE", "/v1/a/c/o"),
        ] {
            assert_eq!(app.call(request(method, path, &[])).await.status(), 204);
        }
    }

    #[tokio::test]
    async fn resellers_set_what_owners_see() {
        for (sent, value, stored) in [
            (
                "x-account-quota-bytes",
                "10",
                "x-account-sysmeta-quota-bytes",
            ),
            (
                "x-account-meta-quota-bytes",
                "10",
                "x-account-sysmeta-quota-bytes",
            ),
            (
                "x-account-quota-count",
                "10",
                "x-account-sysmeta-quota-count",
            ),
            (
                "X-Account-Quota-Bytes-Policy-SILVER",
                "10",
                "x-account-sysmeta-quota-bytes-policy-1",
            ),
            (
                "x-account-quota-count-policy-gold",
                "10",
                "x-account-sysmeta-quota-count-policy-0",
            ),
            (
                "x-remove-account-quota-bytes",
                "x",
                "x-account-sysmeta-quota-bytes",
            ),
            (
                "x-remove-account-meta-quota-bytes",
                "x",
                "x-account-sysmeta-quota-bytes",
            ),
        ] {
            let (app, _) = app(&[]);
            let asked = request("POST", "/v1/a", &[(sent, value)]);
            assert_eq!(app.call(asked).await.status(), 403, "{sent}");
            let mut asked = request("POST", "/v1/a", &[(sent, value)]);
            asked.extensions_mut().insert(Context {
                reseller: true,
                ..Context::default()
            });
            let answer = app.call(asked).await;
            let expected = if value == "x" { "" } else { value };
            assert_eq!(header(&answer, stored).as_deref(), Some(expected), "{sent}");
            if value == "10" {
                let shown = stored
                    .replace("sysmeta-", "")
                    .replace("policy-1", "policy-silver")
                    .replace("policy-0", "policy-gold");
                assert_eq!(header(&answer, &shown).as_deref(), Some("10"), "{sent}");
                let mut asked = request("PUT", "/v1/a", &[(sent, "-1")]);
                asked.extensions_mut().insert(Context {
                    reseller: true,
                    ..Context::default()
                });
                assert_eq!(app.call(asked).await.status(), 400, "{sent}");
            }
        }
    }
}
