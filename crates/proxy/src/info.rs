//! Account and container information: cached, or by HEAD from the servers; and the response to
//! `/info`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cairn_formats::hmac;
use cairn_http::params::Params;
use cairn_http::{
    AccountInfo, Body, ContainerInfo, Context, Cors, DevicePlace, InfoFuture, InfoSource,
    PolicyUsage, Response, respond,
};
use cairn_types::{PolicyIndex, PolicySet, ServerKind, StoragePolicy, Timestamp, hex};
use http::{HeaderMap, Method};
use subtle::ConstantTimeEq;

use crate::headers::POLICY_INDEX;
use crate::info_cache::KnownAccount;
use crate::request::{Incoming, Target};
use crate::state::Proxy;
use crate::status;

impl Proxy {
    pub(crate) async fn known_account(
        &self,
        context: &Context,
        account: &str,
    ) -> Arc<KnownAccount> {
        if let Some(known) = self.accounts.get(account) {
            return known;
        }
        let target = Target::Account {
            account: account.to_owned(),
        };
        let response = self.head_for_info(context, target).await;
        self.remember_account(account, response.status().as_u16(), response.headers())
    }

    /// Caches the response of an account server.
    pub(crate) fn remember_account(
        &self,
        account: &str,
        status: u16,
        headers: &HeaderMap,
    ) -> Arc<KnownAccount> {
        let stored = (200..300).contains(&status);
        let gone =
            header(headers, "x-account-status").is_some_and(|s| s.eq_ignore_ascii_case("deleted"));
        let pretended = status == 404 && !gone && self.options.account_autocreate;
        let mut info = account_info(
            if pretended { 204 } else { status },
            headers,
            &self.policies,
        );
        if gone {
            info.status = 410;
        }
        info.pretended = pretended;
        let known = Arc::new(KnownAccount {
            info: Arc::new(info),
            stored,
        });
        let keep = keep_for(status, self.options.recheck_account_existence);
        self.accounts.put(account.to_owned(), known.clone(), keep);
        known
    }

    /// Returns cached information at once; the future for that case is small.
    pub(crate) fn container_info<'a>(
        &'a self,
        context: &'a Context,
        account: &'a str,
        container: &'a str,
    ) -> InfoFuture<'a, ContainerInfo> {
        match self.containers.get(&cache_key(account, container)) {
            Some(info) => Box::pin(std::future::ready(info)),
            None => Box::pin(self.ask_for_container_info(context, account, container)),
        }
    }

    /// Asks the container servers for a policy other than the cached `known` one. Returns `None` if
    /// they have the same, or if the cached one was read or checked recently.
    pub(crate) async fn newer_policy(
        &self,
        context: &Context,
        account: &str,
        container: &str,
        known: PolicyIndex,
    ) -> Option<Arc<ContainerInfo>> {
        let lately = self.options.recheck_container_existence / 10;
        let one_only = self.policies.iter().count() < 2;
        if one_only
            || !self
                .containers
                .doubt(&cache_key(account, container), lately)
        {
            return None;
        }
        let info = self
            .ask_for_container_info(context, account, container)
            .await;
        (info.exists() && info.policy != known).then_some(info)
    }

    async fn ask_for_container_info(
        &self,
        context: &Context,
        account: &str,
        container: &str,
    ) -> Arc<ContainerInfo> {
        let internal = account.starts_with(&self.constraints.auto_create_account_prefix);
        if !internal {
            let known = self.known_account(context, account).await;
            if !known.stored {
                // Not cached separately: the account's own entry is sufficient.
                let status = if known.info.exists() {
                    404
                } else {
                    known.info.status
                };
                return Arc::new(ContainerInfo {
                    status,
                    ..ContainerInfo::default()
                });
            }
        }
        let target = Target::Container {
            account: account.to_owned(),
            container: container.to_owned(),
        };
        let response = self.head_for_info(context, target).await;
        self.remember_container(
            account,
            container,
            response.status().as_u16(),
            response.headers(),
        )
    }

    /// Caches the response of a container server.
    pub(crate) fn remember_container(
        &self,
        account: &str,
        container: &str,
        status: u16,
        headers: &HeaderMap,
    ) -> Arc<ContainerInfo> {
        let info = Arc::new(container_info(status, headers));
        let keep = keep_for(status, self.options.recheck_container_existence);
        self.containers
            .put(cache_key(account, container), info.clone(), keep);
        info
    }

    pub(crate) fn forget_account(&self, account: &str) {
        self.accounts.remove(account);
    }

    pub(crate) fn forget_container(&self, account: &str, container: &str) {
        let key = cache_key(account, container);
        self.containers.remove(&key);
        self.sharded_roots.remove(&key);
        self.listing_shards.remove(&key);
    }

    async fn head_for_info(&self, context: &Context, target: Target) -> Response {
        let context = context.pre_authorized("GET_INFO");
        let (parts, ()) = http::Request::new(()).into_parts();
        let mut incoming = Incoming {
            parts,
            body: Body::empty(),
            context,
            params: Params::default(),
            target,
            timestamp: self.clock.now(),
        };
        incoming.parts.method = Method::HEAD;
        match incoming.target.container() {
            Some(_) => self.read_index(&incoming, ServerKind::Container).await,
            None => self.read_index(&incoming, ServerKind::Account).await,
        }
    }

    /// `GET /info`, possibly signed by the admin key.
    pub(crate) fn cluster_info(&self, incoming: &Incoming) -> Response {
        if !self.options.expose_info {
            return status::hidden_info();
        }
        let param = |name| incoming.params.get(name).unwrap_or("");
        let (signature, expires) = (param("swiftinfo_sig"), param("swiftinfo_expires"));
        let admin = !signature.is_empty() || !expires.is_empty();
        if admin {
            let Some(key) = &self.options.admin_key else {
                return status::hidden_info();
            };
            let live = expires
                .parse::<u64>()
                .is_ok_and(|at| at >= self.clock.now().secs());
            let methods: &[&str] = if incoming.method() == Method::HEAD {
                &["HEAD", "GET"]
            } else {
                &["GET"]
            };
            let signed = methods.iter().any(|method| {
                let valid = info_signature(key, method, expires);
                bool::from(valid.as_bytes().ct_eq(signature.as_bytes()))
            });
            if !(live && signed) {
                return status::bad_signature();
            }
        }
        let view = self
            .swift_info
            .view(&self.options.disallowed_sections, admin);
        let mut response = status::known("application/json; charset=UTF-8", view.to_string());
        if let Some(origin) = incoming.headers().get(http::header::ORIGIN) {
            let headers = response.headers_mut();
            headers.insert(http::header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            respond::set(headers, "access-control-expose-headers", "x-trans-id");
        }
        response
    }
}

fn info_signature(key: &str, method: &str, expires: &str) -> String {
    let message = format!("{method}\n{expires}\n/info");
    hex::encode(hmac::sha1(key.as_bytes(), message.as_bytes()))
}

impl InfoSource for Proxy {
    fn account<'a>(
        &'a self,
        context: &'a Context,
        account: &'a str,
    ) -> InfoFuture<'a, AccountInfo> {
        if let Some(known) = self.accounts.get(account) {
            return Box::pin(std::future::ready(known.info.clone()));
        }
        Box::pin(async move { self.known_account(context, account).await.info.clone() })
    }

    fn container<'a>(
        &'a self,
        context: &'a Context,
        account: &'a str,
        container: &'a str,
    ) -> InfoFuture<'a, ContainerInfo> {
        self.container_info(context, account, container)
    }

    fn places(
        &self,
        account: &str,
        container: Option<&str>,
        object: Option<(&str, PolicyIndex)>,
    ) -> Option<Vec<DevicePlace>> {
        let ring = match (container, object) {
            (_, Some((_, policy))) => self.rings.object(policy)?,
            (Some(_), None) => self.rings.container(),
            (None, None) => self.rings.account(),
        };
        let object = object.map(|(name, _)| name);
        let partition = ring.partition(&self.hash_path, account, container, object);
        let place = |node: cairn_peer::Node| DevicePlace {
            host: node.host(),
            device: node.device.device.clone(),
            partition,
        };
        Some(ring.primaries(partition).into_iter().map(place).collect())
    }
}

fn cache_key(account: &str, container: &str) -> String {
    [account, "/", container].concat()
}

/// Time for which an entry is cached: existing ones as configured, missing ones a tenth of that,
/// errors not at all.
fn keep_for(status: u16, recheck: Duration) -> Duration {
    match status {
        200..300 => recheck,
        404 | 410 => recheck / 10,
        _ => Duration::ZERO,
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    respond::header(headers, name)
}

fn number(headers: &HeaderMap, name: &str) -> u64 {
    header(headers, name)
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

/// User and system metadata, with their prefixes removed from the names.
fn metadata(
    headers: &HeaderMap,
    kind: ServerKind,
) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
    let mut all = (BTreeMap::new(), BTreeMap::new());
    for (name, value) in headers {
        let Ok(value) = std::str::from_utf8(value.as_bytes()) else {
            continue;
        };
        if let Some(name) = name.as_str().strip_prefix(kind.user_meta_prefix()) {
            all.0.insert(name.to_owned(), value.to_owned());
        } else if let Some(name) = name.as_str().strip_prefix(kind.sys_meta_prefix()) {
            all.1.insert(name.to_owned(), value.to_owned());
        }
    }
    all
}

fn account_info(status: u16, headers: &HeaderMap, policies: &PolicySet) -> AccountInfo {
    let (meta, sysmeta) = metadata(headers, ServerKind::Account);
    AccountInfo {
        status,
        pretended: false,
        container_count: number(headers, "x-account-container-count"),
        object_count: number(headers, "x-account-object-count"),
        bytes: number(headers, "x-account-bytes-used"),
        policies: policies
            .iter()
            .filter_map(|p| policy_usage(headers, p))
            .collect(),
        meta,
        sysmeta,
    }
}

/// An account's usage of one policy, if its server reports it.
fn policy_usage(headers: &HeaderMap, policy: &StoragePolicy) -> Option<(PolicyIndex, PolicyUsage)> {
    let name = policy.name.to_ascii_lowercase();
    let of = |what: &str| format!("x-account-storage-policy-{name}-{what}");
    let told = |what: &str| headers.contains_key(of(what).as_str());
    let usage = PolicyUsage {
        container_count: number(headers, &of("container-count")),
        object_count: number(headers, &of("object-count")),
        bytes: number(headers, &of("bytes-used")),
    };
    told("object-count").then_some((policy.index, usage))
}

fn container_info(status: u16, headers: &HeaderMap) -> ContainerInfo {
    let (meta, sysmeta) = metadata(headers, ServerKind::Container);
    let own = |name: &str| header(headers, name).map(str::to_owned);
    ContainerInfo {
        status,
        object_count: number(headers, "x-container-object-count"),
        bytes: number(headers, "x-container-bytes-used"),
        policy: PolicyIndex(number(headers, POLICY_INDEX) as u32),
        read_acl: own("x-container-read"),
        write_acl: own("x-container-write"),
        sync_key: own("x-container-sync-key"),
        sync_to: own("x-container-sync-to"),
        versions: own("x-versions-location"),
        cors: Cors {
            allow_origin: meta.get("access-control-allow-origin").cloned(),
            expose_headers: meta.get("access-control-expose-headers").cloned(),
            max_age: meta.get("access-control-max-age").cloned(),
        },
        put_timestamp: respond::header_timestamp(headers, "x-backend-put-timestamp")
            .unwrap_or(Timestamp::ZERO),
        sharding_state: own("x-backend-sharding-state"),
        meta,
        sysmeta,
    }
}
