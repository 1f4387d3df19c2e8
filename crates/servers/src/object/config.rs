//! Options of the object server, with Swift's names and defaults.

use std::sync::Arc;
use std::time::Duration;

use cairn_http::Clock;
use cairn_types::{Constraints, HashPath, PolicySet};

use crate::rows::LocalRows;

/// `[app:object-server]`, and the parts of swift.conf it needs.
#[derive(Clone)]
pub struct ObjectServerConfig {
    pub hash_path: HashPath,
    pub policies: PolicySet,
    pub constraints: Constraints,
    pub clock: Clock,
    /// Timeout of a container server's response to an update.
    pub node_timeout: Duration,
    /// Maximum wait of a request for its container updates before it is answered.
    pub container_update_timeout: Duration,
    /// Timeout for the next chunk of an upload.
    pub client_timeout: Duration,
    /// Timeout of a whole upload.
    pub max_upload_time: Duration,
    /// Bytes per read from disk.
    pub disk_chunk_size: usize,
    /// Bytes of an upload per write to disk.
    pub network_chunk_size: usize,
    /// Headers stored with an object beside its metadata; lower case.
    pub allowed_headers: Vec<String>,
    /// Period of the expirer's queue in seconds: expiry times within it share containers.
    pub expiring_objects_container_divisor: u64,
    /// The account of the expirer's queue, without the prefix of internal accounts.
    pub expiring_objects_account_name: String,
    /// Maximum concurrent SSYNC requests; more are refused. 0 is unlimited.
    pub replication_concurrency: usize,
    /// Maximum concurrent SSYNC requests per device; more wait for `replication_lock_timeout`. 0 is
    /// unlimited. Swift's default is 1, as its disks have no priorities; here clients precede
    /// replication anyway.
    pub replication_concurrency_per_device: usize,
    pub replication_lock_timeout: Duration,
    /// Failed updates from which an SSYNC request is aborted, if `replication_failure_ratio`
    /// (failed to successful) is exceeded as well.
    pub replication_failure_threshold: usize,
    pub replication_failure_ratio: f64,
    /// Time after the start during which no promises are given: those of the previous process may
    /// still be in use.
    pub promise_grace: Duration,
    /// Databases of this process that take rows without a request.
    pub local_rows: Arc<LocalRows>,
}

impl ObjectServerConfig {
    pub fn new(hash_path: HashPath, policies: PolicySet) -> Self {
        ObjectServerConfig {
            hash_path,
            policies,
            constraints: Constraints::default(),
            clock: Clock::system(),
            node_timeout: Duration::from_secs(3),
            container_update_timeout: Duration::from_secs(1),
            client_timeout: Duration::from_secs(60),
            max_upload_time: Duration::from_secs(86_400),
            disk_chunk_size: 128 << 10,
            network_chunk_size: 128 << 10,
            allowed_headers: Self::parse_allowed_headers(
                "content-disposition, content-encoding, x-delete-at, x-object-manifest, \
                 x-static-large-object, cache-control, content-language, expires, x-robots-tag",
            ),
            expiring_objects_container_divisor: 86_400,
            expiring_objects_account_name: "expiring_objects".into(),
            replication_concurrency: 4,
            replication_concurrency_per_device: 4,
            replication_lock_timeout: Duration::from_secs(15),
            replication_failure_threshold: 100,
            replication_failure_ratio: 1.0,
            promise_grace: Duration::from_secs(5),
            local_rows: Arc::default(),
        }
    }

    /// Parses the option's comma-separated names; headers that a PUT sets itself are dropped.
    pub fn parse_allowed_headers(text: &str) -> Vec<String> {
        let names = text.split(',').map(|name| name.trim().to_ascii_lowercase());
        names
            .filter(|n| !n.is_empty() && !["content-length", "deleted", "etag"].contains(&&**n))
            .collect()
    }

    pub(super) fn is_allowed_header(&self, lower_case: &str) -> bool {
        self.allowed_headers.iter().any(|name| name == lower_case)
    }
}
