//! Warnings about options without the expected effect. Swift accepts any option and reads those it
//! knows; so do the servers here, but warn of near misses of known names, and of options that only
//! Swift implements.

use tracing::warn;

use crate::conf::ServerConf;
use crate::similar::did_you_mean;

/// Known options of `[DEFAULT]` and of the applications, Swift's and ours.
const KNOWN: &[&str] = &[
    "account_autocreate",
    "account_existence_skip_cache_pct",
    "admin_key",
    "allow_account_management",
    "allow_open_expired",
    "allow_versions",
    "allowed_headers",
    "allowed_sync_hosts",
    "backend_ca_file",
    "backend_cert_file",
    "backend_key_file",
    "backend_tls_name",
    "backlog",
    "bind_ip",
    "bind_port",
    "bind_timeout",
    "buffered_put_bytes",
    "cert_file",
    "client_ca_file",
    "client_chunk_size",
    "client_timeout",
    "commit_window",
    "concurrency_timeout",
    "concurrent_ec_extra_requests",
    "concurrent_gets",
    "conn_timeout",
    "container_existence_skip_cache_pct",
    "container_listing_shard_ranges_skip_cache_pct",
    "container_update_timeout",
    "container_updating_shard_ranges_skip_cache_pct",
    "cooperative_period",
    "cors_allow_origin",
    "cors_expose_headers",
    "db_preallocation",
    "db_query_logging",
    "deny_host_headers",
    "devices",
    "direct_io_from",
    "disable_fallocate",
    "disallowed_sections",
    "disk_chunk_size",
    "error_suppression_interval",
    "error_suppression_limit",
    "etag_recheck_interval",
    "etag_validate_pct",
    "eventlet_debug",
    "eventlet_tpool_num_threads",
    "expiring_objects_account_name",
    "expiring_objects_container_divisor",
    "expose_info",
    "fallocate_reserve",
    "ionice_class",
    "ionice_priority",
    "keep_cache_private",
    "keep_cache_size",
    "keep_cache_slo_manifest",
    "keep_idle",
    "keepalive_timeout",
    "key_file",
    "log_address",
    "log_anonymization_method",
    "log_anonymization_salt",
    "log_custom_handlers",
    "log_facility",
    "log_format",
    "log_handoffs",
    "log_headers",
    "log_level",
    "log_max_line_length",
    "log_name",
    "log_requests",
    "log_statsd_default_sample_rate",
    "log_statsd_host",
    "log_statsd_metric_prefix",
    "log_statsd_port",
    "log_statsd_sample_rate_factor",
    "log_udp_host",
    "log_udp_port",
    "max_clients",
    "max_containers_per_account",
    "max_containers_whitelist",
    "max_upload_time",
    "mb_per_sync",
    "metrics",
    "mount_check",
    "namespace_avg_backend_fetch_time",
    "namespace_cache_tokens_per_session",
    "network_chunk_size",
    "nice_priority",
    "node_timeout",
    "object_chunk_size",
    "post_quorum_timeout",
    "read_affinity",
    "rebalance_missing_suppression_count",
    "recheck_account_existence",
    "recheck_container_existence",
    "recheck_listing_shard_ranges",
    "recheck_updating_shard_ranges",
    "reclaim_age",
    "recoverable_node_timeout",
    "replication_concurrency",
    "replication_concurrency_per_device",
    "replication_failure_ratio",
    "replication_failure_threshold",
    "replication_lock_timeout",
    "replication_server",
    "request_node_count",
    "require_client_cert",
    "require_proxy_protocol",
    "ring_ip",
    "servers_per_port",
    "shutdown_grace",
    "slow",
    "slow_delete_log_threshold_seconds",
    "sorting_method",
    "splice",
    "stale_worker_timeout",
    "statsd_emit_legacy",
    "statsd_label_mode",
    "strict_cors_mode",
    "swift_dir",
    "swift_owner_headers",
    "timing_expiry",
    "trans_id_suffix",
    "trusted_proxies",
    "use",
    "user",
    "whole_put_bytes",
    "workers",
    "write_affinity",
    "write_affinity_handoff_delete_count",
    "write_affinity_node_count",
    "write_legacy_ec_crc",
];

/// Options in [`KNOWN`] that only Swift implements.
const WITHOUT_EFFECT: &[&str] = &[
    "ionice_class",
    "ionice_priority",
    "log_custom_handlers",
    "log_format",
    "log_max_line_length",
    "log_statsd_host",
    "namespace_cache_tokens_per_session",
    "slow",
    "write_legacy_ec_crc",
];

/// Warns of a server's options that are probably mistyped, or have no effect.
pub(crate) fn warn_of_mistyped(conf: &ServerConf) {
    for (option, value) in conf.app.iter() {
        if is_without_effect(option, value) {
            warn!(
                conf = conf.conf.file(),
                option, value, "this option changes nothing here"
            );
        }
        if let Some(hint) = hint(option) {
            warn!(
                conf = conf.conf.file(),
                option, "nothing reads this option{hint}"
            );
        }
    }
}

/// Whether Swift would act on an option that has no effect here.
fn is_without_effect(option: &str, value: &str) -> bool {
    let is_off = matches!(
        value.trim().to_ascii_lowercase().as_str(),
        "" | "0" | "0.0" | "false" | "no" | "off" | "none"
    );
    WITHOUT_EFFECT.contains(&option) && !is_off
}

fn hint(option: &str) -> Option<String> {
    if KNOWN.contains(&option) {
        return None;
    }
    Some(did_you_mean(option, KNOWN.iter().copied())).filter(|hint| !hint.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_near_misses() {
        assert_eq!(
            hint("bind_prot").as_deref(),
            Some(" (did you mean bind_port?)")
        );
        assert_eq!(hint("mount_check"), None);
        assert_eq!(hint("something_of_a_plugin"), None);
    }

    #[test]
    fn what_swift_would_have_done() {
        assert!(is_without_effect("log_statsd_host", "10.0.0.1"));
        assert!(!is_without_effect("log_statsd_host", ""));
        assert!(!is_without_effect("slow", "0"));
        assert!(!is_without_effect("bind_ip", "10.0.0.1"));
        assert!(WITHOUT_EFFECT.iter().all(|option| KNOWN.contains(option)));
    }
}
