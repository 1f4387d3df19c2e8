//! State of a proxy server: its options, rings, backends and caches; and the decisions that all of its
//! controllers take by it.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_formats::ini::ConfError;
use cairn_formats::shard::Namespace;
use cairn_http::params::Params;
use cairn_http::{Body, Clock, ContainerInfo, Response, SwiftInfo, respond};
use cairn_peer::{Backends, ErrorLimiter, Rings};
use cairn_types::{Constraints, HashPath, PolicyIndex, PolicySet};
use http::Method;
use http::header::ALLOW;
use serde_json::json;
use tokio::sync::Semaphore;

use crate::affinity::{Affinities, Timings};
use crate::erasure::Erasure;
use crate::info_cache::{InfoCache, KnownAccount, RootListing};
use crate::request::{Incoming, Target};
use crate::settings::{ProxyOptions, ProxySettings};
use crate::status;
use crate::whole_body::WholeBodies;

/// The proxy server of a cluster.
pub struct Proxy {
    pub(crate) options: ProxyOptions,
    pub(crate) affinities: Affinities,
    pub(crate) timings: Arc<Timings>,
    pub(crate) constraints: Arc<Constraints>,
    pub(crate) policies: Arc<PolicySet>,
    /// Erasure coding of each erasure-coded policy.
    pub(crate) erasures: BTreeMap<PolicyIndex, Arc<Erasure>>,
    pub(crate) hash_path: HashPath,
    pub(crate) rings: Arc<Rings>,
    pub(crate) backends: Arc<Backends>,
    pub(crate) limiter: Arc<ErrorLimiter>,
    pub(crate) swift_info: Arc<SwiftInfo>,
    pub(crate) clock: Clock,
    pub(crate) accounts: InfoCache<String, KnownAccount>,
    pub(crate) containers: InfoCache<String, ContainerInfo>,
    /// Cached listings of root containers: their headers and shards.
    pub(crate) sharded_roots: InfoCache<String, RootListing>,
    pub(crate) listing_shards: InfoCache<String, Vec<Namespace>>,
    pub(crate) updating_shards: InfoCache<String, Vec<Namespace>>,
    /// Places of requests for changes that wait.
    pub(crate) feed_waits: Semaphore,
    /// Memory for the bodies of uploads that are read whole.
    pub(crate) whole_bodies: WholeBodies,
}

impl Proxy {
    /// Makes a proxy of its settings.
    ///
    /// # Errors
    /// As [`ProxyOptions::read`]; `Value` also for a bad sorting method or affinity.
    pub fn new(settings: ProxySettings, backends: Arc<Backends>) -> Result<Arc<Self>, ConfError> {
        let options = ProxyOptions::read(&settings.section, &settings.constraints)?;
        let affinities = Affinities::read(&settings.section, &settings.policy_sections)?;
        let limiter = ErrorLimiter::new(
            options.error_suppression_interval,
            options.error_suppression_limit,
        )
        .with_reach(Arc::clone(backends.reach()));
        let skip = options.skip_cache;
        let proxy = Proxy {
            timings: Arc::new(Timings::new(options.timing_expiry)),
            feed_waits: Semaphore::new(options.change_feed_waiters),
            whole_bodies: WholeBodies::default(),
            affinities,
            options,
            constraints: settings.constraints,
            erasures: Erasure::of_policies(&settings.policies),
            policies: settings.policies,
            hash_path: settings.hash_path,
            rings: settings.rings,
            backends,
            limiter: Arc::new(limiter),
            swift_info: settings.swift_info,
            clock: settings.clock,
            accounts: InfoCache::new(skip.accounts),
            containers: InfoCache::new(skip.containers),
            sharded_roots: InfoCache::new(skip.containers),
            listing_shards: InfoCache::new(skip.listing_shards),
            updating_shards: InfoCache::new(skip.updating_shards),
        };
        proxy.register_info();
        Ok(Arc::new(proxy))
    }

    fn register_info(&self) {
        let policies: Vec<_> = self
            .policies
            .iter()
            .filter(|policy| !policy.deprecated)
            .map(|policy| {
                let mut names = vec![policy.name.clone()];
                names.extend(policy.aliases.iter().cloned());
                let mut entry = json!({"name": policy.name, "aliases": names.join(", ")});
                if policy.is_default {
                    entry["default"] = json!(true);
                }
                entry
            })
            .collect();
        let (c, o) = (&self.constraints, &self.options);
        if o.conditional_writes {
            let replicated = self.policies.iter();
            let replicated = replicated.filter(|policy| !self.erasures.contains_key(&policy.index));
            let names: Vec<&str> = replicated.map(|policy| &*policy.name).collect();
            self.swift_info.register(
                "conditional_writes",
                json!({
                    "methods": ["PUT", "POST", "DELETE"],
                    "conditions": ["If-Match", "If-None-Match"],
                    "policies": names,
                    // A link that follows its target has the target as its ETag.
                    "links": true,
                    // Conditions of a copy of a manifest are of its X-Manifest-Etag.
                    "manifests": true,
                }),
            );
        }
        if o.change_feed {
            let info = self.change_feed_info();
            self.swift_info.register("change_feed", info);
        }
        self.swift_info.register(
            "swift",
            json!({
                "version": env!("CARGO_PKG_VERSION"),
                "strict_cors_mode": o.strict_cors_mode,
                "policies": policies,
                "allow_account_management": o.allow_account_management,
                "account_autocreate": o.account_autocreate,
                "allow_open_expired": o.allow_open_expired,
                "max_file_size": c.max_file_size,
                "max_meta_name_length": c.max_meta_name_length,
                "max_meta_value_length": c.max_meta_value_length,
                "max_meta_count": c.max_meta_count,
                "max_meta_overall_size": c.max_meta_overall_size,
                "max_header_size": c.max_header_size,
                "max_request_line": c.max_request_line,
                "max_object_name_length": c.max_object_name_length,
                "container_listing_limit": c.container_listing_limit,
                "account_listing_limit": c.account_listing_limit,
                "max_account_name_length": c.max_account_name_length,
                "max_container_name_length": c.max_container_name_length,
                "valid_api_versions": c.valid_api_versions,
                "extra_header_count": c.extra_header_count,
                "auto_create_account_prefix": c.auto_create_account_prefix,
            }),
        );
    }

    /// A request by the proxy itself on behalf of a client.
    pub(crate) fn subrequest(
        &self,
        incoming: &Incoming,
        target: Target,
        params: Params,
    ) -> Incoming {
        let (mut parts, ()) = http::Request::new(()).into_parts();
        parts.method = Method::GET;
        parts.headers = incoming.headers().clone();
        Incoming {
            parts,
            body: Body::empty(),
            context: incoming.context.pre_authorized("SH"),
            params,
            target,
            timestamp: incoming.timestamp,
        }
    }

    /// The methods that a path has.
    pub(crate) fn allowed_methods(&self, target: &Target) -> Vec<&'static str> {
        match target {
            Target::Info => vec!["GET", "HEAD", "OPTIONS"],
            Target::Account { .. } if self.options.allow_account_management => {
                vec!["DELETE", "GET", "HEAD", "OPTIONS", "POST", "PUT"]
            }
            Target::Account { .. } => vec!["GET", "HEAD", "OPTIONS", "POST"],
            Target::Container { .. } | Target::Object { .. } => {
                vec!["DELETE", "GET", "HEAD", "OPTIONS", "POST", "PUT"]
            }
        }
    }

    pub(crate) fn not_allowed(&self, target: &Target) -> Response {
        let mut response = status::not_allowed();
        let allowed = self.allowed_methods(target).join(", ");
        respond::set(response.headers_mut(), ALLOW.as_str(), allowed);
        response
    }

    /// Calls the request's authorizer for an ACL; the error is the denial.
    pub(crate) async fn authorize(
        &self,
        incoming: &mut Incoming,
        acl: Option<&str>,
    ) -> Result<(), Response> {
        let granted = incoming.context.authorize(&incoming.parts, acl).await?;
        incoming.context.owner |= granted.owner;
        Ok(())
    }
}
