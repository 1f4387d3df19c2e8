//! Options of the object server, with Swift's names and defaults.

use std::time::Duration;

use cairn_http::Clock;
use cairn_types::{Constraints, HashPath, PolicySet};

/// `[app:object-server]`, and what it needs of swift.conf.
#[derive(Clone)]
pub struct ObjectServerConfig {
    pub hash_path: HashPath,
    pub policies: PolicySet,
    pub constraints: Constraints,
    pub clock: Clock,
    /// For a container server's answer to an update.
    pub node_timeout: Duration,
    /// How long a request waits for its container updates before it answers without them.
    pub container_update_timeout: Duration,
    /// For the next piece of an upload.
    pub client_timeout: Duration,
    /// For a whole upload.
    pub max_upload_time: Duration,
    /// Bytes of one read from disk.
    pub disk_chunk_size: usize,
    /// Bytes of an upload that go to disk at once.
    pub network_chunk_size: usize,
    /// Headers kept with an object beside its metadata; lower case.
    pub allowed_headers: Vec<String>,
    /// Seconds that share containers of the expirer's queue.
    pub expiring_objects_container_divisor: u64,
    /// The account of the expirer's queue, without the prefix of internal accounts.
    pub expiring_objects_account_name: String,
    /// SSYNC requests served at once; more are refused. 0: no limit.
    pub replication_concurrency: usize,
    /// Of those, on one device; more wait for `replication_lock_timeout`. 0: no limit. Swift's default
    /// is one, as its disks know no better; here clients go first anyway.
    pub replication_concurrency_per_device: usize,
    pub replication_lock_timeout: Duration,
    /// An SSYNC request with so many failed updates, and more than `replication_failure_ratio`
    /// for each that did not fail, is given up.
    pub replication_failure_threshold: usize,
    pub replication_failure_ratio: f64,
    /// After its start a server gives no promises for so long: those of the process before may be
    /// held still, and written under.
    pub promise_grace: Duration,
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
        }
    }

    /// The option's value: names between commas. Those that a PUT sets are never taken.
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
