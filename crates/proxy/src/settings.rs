//! Configuration of the proxy: `[app:proxy-server]` with Swift's option names, and the cluster.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cairn_formats::ini::{ConfError, Section};
use cairn_http::{Clock, SwiftInfo};
use cairn_peer::Rings;
use cairn_types::{Constraints, HashPath, PolicyIndex, PolicySet};
use tokio::sync::Semaphore;

/// Everything a proxy is made of, except its backends.
pub struct ProxySettings {
    /// `[app:proxy-server]` with `[DEFAULT]` below it.
    pub section: Section,
    /// Options that differ for one policy, from `[proxy-server:policy:N]`.
    pub policy_sections: BTreeMap<PolicyIndex, Section>,
    pub constraints: Arc<Constraints>,
    pub policies: Arc<PolicySet>,
    pub hash_path: HashPath,
    pub rings: Arc<Rings>,
    pub swift_info: Arc<SwiftInfo>,
    pub clock: Clock,
}

/// Maximum number of nodes that a request tries: a number, or a multiple of the replicas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NodeCount {
    Fixed(usize),
    PerReplica(usize),
}

impl NodeCount {
    pub(crate) fn read(section: &Section, option: &str) -> Result<NodeCount, ConfError> {
        let text = section.str_or(option, "2 * replicas");
        let words: Vec<&str> = text.split_whitespace().collect();
        let parsed = match words[..] {
            [n] => n.parse().ok().map(NodeCount::Fixed),
            [n, "*", "replicas"] => n.parse().ok().map(NodeCount::PerReplica),
            _ => None,
        };
        parsed.ok_or_else(|| section.bad(option, "expected a number, or a number and '* replicas'"))
    }

    pub fn for_replicas(self, replicas: usize) -> usize {
        match self {
            NodeCount::Fixed(n) => n,
            NodeCount::PerReplica(n) => n * replicas,
        }
    }
}

/// The resolved options; names, units and defaults are Swift's.
#[derive(Clone, Debug)]
pub struct ProxyOptions {
    pub node_timeout: Duration,
    /// Timeout of reads as long as another node can be tried.
    pub recoverable_node_timeout: Duration,
    pub conn_timeout: Duration,
    pub client_timeout: Duration,
    pub post_quorum_timeout: Duration,
    /// Validity of a response time for `sorting_method = timing`.
    pub timing_expiry: Duration,
    pub error_suppression_interval: Duration,
    pub error_suppression_limit: u32,
    pub recheck_container_existence: Duration,
    pub recheck_account_existence: Duration,
    /// Cache time of shards for listings, and of shards for updates; 0: not cached.
    pub recheck_listing_shard_ranges: Duration,
    pub recheck_updating_shard_ranges: Duration,
    pub skip_cache: SkipCache,
    pub allow_account_management: bool,
    pub account_autocreate: bool,
    pub max_containers_per_account: u64,
    pub max_containers_whitelist: Vec<String>,
    pub deny_host_headers: Vec<String>,
    pub cors_allow_origin: Vec<String>,
    pub cors_expose_headers: Vec<String>,
    pub strict_cors_mode: bool,
    pub allow_open_expired: bool,
    pub request_node_count: NodeCount,
    /// Names of headers in lower case.
    pub swift_owner_headers: Vec<String>,
    pub expose_info: bool,
    pub disallowed_sections: Vec<String>,
    pub admin_key: Option<String>,
    pub expiring_objects_container_divisor: u64,
    pub expiring_objects_account: String,
    /// Bodies up to this many bytes are read before the backends are called: each gets one request,
    /// and any node can be replaced by a handoff.
    pub buffered_put_bytes: u64,
    /// So are bodies up to this many bytes, of uploads without conditions, as long as there is memory for them.
    pub whole_put_bytes: u64,
    /// A majority decides on `If-Match` and `If-None-Match` of writes; otherwise they behave as in
    /// OpenStack Swift.
    pub conditional_writes: bool,
    /// Containers tell what changes in them (`?changes=`); otherwise the parameter is ignored, as in
    /// OpenStack Swift.
    pub change_feed: bool,
    /// Maximum time for which a request waits for changes.
    pub change_feed_max_wait: Duration,
    /// Maximum number of requests that wait for changes at once.
    pub change_feed_waiters: usize,
}

const OWNER_HEADERS: &str = "x-container-read, x-container-write, x-container-sync-key, \
    x-container-sync-to, x-account-meta-temp-url-key, x-account-meta-temp-url-key-2, \
    x-container-meta-temp-url-key, x-container-meta-temp-url-key-2, x-account-access-control";

impl ProxyOptions {
    /// Reads the proxy's section.
    ///
    /// # Errors
    /// `Value` for a value that is no number or duration, a percentage over 100, a divisor of 100
    /// or less, and a bad `request_node_count`.
    pub fn read(section: &Section, constraints: &Constraints) -> Result<Self, ConfError> {
        let node_timeout = section.seconds_or("node_timeout", 10.0)?;
        let divisor = section.u64_or("expiring_objects_container_divisor", 86_400)?;
        if divisor <= 100 {
            return Err(section.bad("expiring_objects_container_divisor", "must be over 100"));
        }
        let prefix = &constraints.auto_create_account_prefix;
        Ok(ProxyOptions {
            node_timeout,
            recoverable_node_timeout: section
                .seconds_or("recoverable_node_timeout", node_timeout.as_secs_f64())?,
            conn_timeout: section.seconds_or("conn_timeout", 0.5)?,
            client_timeout: section.seconds_or("client_timeout", 60.0)?,
            post_quorum_timeout: section.seconds_or("post_quorum_timeout", 0.5)?,
            timing_expiry: section.seconds_or("timing_expiry", 300.0)?,
            error_suppression_interval: section.seconds_or("error_suppression_interval", 60.0)?,
            error_suppression_limit: section.u64_or("error_suppression_limit", 10)? as u32,
            recheck_container_existence: section.seconds_or("recheck_container_existence", 60.0)?,
            recheck_account_existence: section.seconds_or("recheck_account_existence", 60.0)?,
            recheck_listing_shard_ranges: section
                .seconds_or("recheck_listing_shard_ranges", 600.0)?,
            recheck_updating_shard_ranges: section
                .seconds_or("recheck_updating_shard_ranges", 3600.0)?,
            skip_cache: SkipCache::read(section)?,
            allow_account_management: section.bool_or("allow_account_management", false),
            account_autocreate: section.bool_or("account_autocreate", false),
            max_containers_per_account: section.u64_or("max_containers_per_account", 0)?,
            max_containers_whitelist: section.list_or("max_containers_whitelist", ""),
            deny_host_headers: section.list_or("deny_host_headers", ""),
            cors_allow_origin: section.list_or("cors_allow_origin", ""),
            cors_expose_headers: section.list_or("cors_expose_headers", ""),
            strict_cors_mode: section.bool_or("strict_cors_mode", true),
            allow_open_expired: section.bool_or("allow_open_expired", false),
            request_node_count: NodeCount::read(section, "request_node_count")?,
            swift_owner_headers: section
                .list_or("swift_owner_headers", OWNER_HEADERS)
                .into_iter()
                .map(|name| name.to_ascii_lowercase())
                .collect(),
            expose_info: section.bool_or("expose_info", true),
            disallowed_sections: section.list_or(
                "disallowed_sections",
                "swift.auto_create_account_prefix, swift.valid_api_versions",
            ),
            admin_key: section
                .get("admin_key")
                .filter(|k| !k.is_empty())
                .map(str::to_owned),
            expiring_objects_container_divisor: divisor,
            expiring_objects_account: format!(
                "{prefix}{}",
                section.str_or("expiring_objects_account_name", "expiring_objects")
            ),
            buffered_put_bytes: section.u64_or("buffered_put_bytes", 65_536)?.min(1 << 20),
            whole_put_bytes: section.u64_or("whole_put_bytes", 1 << 20)?.min(1 << 20),
            conditional_writes: section.bool_or("conditional_writes", true),
            change_feed: section.bool_or("change_feed", true),
            change_feed_max_wait: change_feed_max_wait(section)?,
            change_feed_waiters: section
                .usize_or("change_feed_waiters", 1024)?
                .min(Semaphore::MAX_PERMITS),
        })
    }
}

/// Container servers wait no longer than a minute.
fn change_feed_max_wait(section: &Section) -> Result<Duration, ConfError> {
    let wait = section.seconds_or("change_feed_max_wait", 60.0)?;
    match (1..=60).contains(&wait.as_secs()) && wait.subsec_nanos() == 0 {
        true => Ok(wait),
        false => Err(section.bad("change_feed_max_wait", "expected whole seconds, 1 to 60")),
    }
}

/// Probabilities, 0 to 1, that a cached entry is ignored and requested again, so that entries are
/// refreshed occasionally before they expire for all requests at once.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SkipCache {
    pub accounts: f64,
    pub containers: f64,
    pub listing_shards: f64,
    pub updating_shards: f64,
}

impl SkipCache {
    fn read(section: &Section) -> Result<Self, ConfError> {
        let share = |option: &str| {
            let percent = section.f64_or(option, 0.0)?;
            match (0.0..=100.0).contains(&percent) {
                true => Ok(percent / 100.0),
                false => Err(section.bad(option, "expected a percentage, 0 to 100")),
            }
        };
        Ok(SkipCache {
            accounts: share("account_existence_skip_cache_pct")?,
            containers: share("container_existence_skip_cache_pct")?,
            listing_shards: share("container_listing_shard_ranges_skip_cache_pct")?,
            updating_shards: share("container_updating_shard_ranges_skip_cache_pct")?,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_questions() {
        let read = |value| {
            let option = ("container_listing_shard_ranges_skip_cache_pct", value);
            SkipCache::read(&Section::from_pairs("app:proxy-server", &[option]))
        };
        assert_eq!(read("0.1").unwrap().listing_shards, 0.001);
        assert_eq!(read("").unwrap(), SkipCache::default());
        for bad in ["-1", "101", "all"] {
            let error = read(bad).unwrap_err().to_string();
            assert!(error.contains("listing_shard_ranges_skip"), "{error}");
        }
    }

    #[test]
    fn defaults_and_errors() {
        let constraints = Constraints::default();
        let section = Section::from_pairs("app:proxy-server", &[]);
        let options = ProxyOptions::read(&section, &constraints).unwrap();
        assert_eq!(options.request_node_count.for_replicas(3), 6);
        assert_eq!(options.expiring_objects_account, ".expiring_objects");
        let section = Section::from_pairs("app:proxy-server", &[("request_node_count", "many")]);
        let error = ProxyOptions::read(&section, &constraints)
            .unwrap_err()
            .to_string();
        assert!(error.contains("request_node_count = \"many\""), "{error}");
    }
}
