//! Statistics of a pass, by the names of Swift's replicators.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// Counts of one pass: databases, except `success` and `failure`, which count nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicationStats {
    pub attempted: u64,
    /// Nodes that have all of a database now.
    pub success: u64,
    pub failure: u64,
    /// Without changes since the last pass.
    pub no_change: u64,
    /// Equal rows, by the hash.
    pub hashmatch: u64,
    /// Sent whole to a node that had none.
    pub rsync: u64,
    /// Sent as rows.
    pub diff: u64,
    /// Databases removed here.
    pub remove: u64,
    /// Sent whole to a node that was far behind.
    pub remote_merge: u64,
    /// With more rows than one pass sends.
    pub diff_capped: u64,
    /// Left to the sharder.
    pub deferred: u64,
    /// By address, then device.
    pub failure_nodes: BTreeMap<String, BTreeMap<String, u64>>,
}

impl ReplicationStats {
    pub(super) fn failed_at(&mut self, address: &str, device: &str) {
        self.failure += 1;
        let devices = self.failure_nodes.entry(address.to_owned()).or_default();
        *devices.entry(device.to_owned()).or_default() += 1;
    }

    /// Entries for the recon cache. `start` and `now` are in seconds since the epoch.
    pub(super) fn recon_entries(&self, start: f64, now: f64) -> Map<String, Value> {
        let stats = json!({
            "attempted": self.attempted, "success": self.success, "failure": self.failure,
            "ts_repl": 0, "no_change": self.no_change, "hashmatch": self.hashmatch,
            "rsync": self.rsync, "diff": self.diff, "remove": self.remove, "empty": 0,
            "remote_merge": self.remote_merge, "start": start, "diff_capped": self.diff_capped,
            "deferred": self.deferred, "failure_nodes": self.failure_nodes,
        });
        let mut entries = Map::new();
        entries.insert("replication_stats".into(), stats);
        entries.insert("replication_time".into(), json!(now - start));
        entries.insert("replication_last".into(), json!(now));
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_monitoring_reads_them() {
        let mut stats = ReplicationStats::default();
        stats.failed_at("10.0.0.1", "sda");
        stats.failed_at("10.0.0.1", "sda");
        let entries = stats.recon_entries(5.0, 7.5);
        assert_eq!(entries["replication_time"], json!(2.5));
        let nodes = &entries["replication_stats"]["failure_nodes"];
        assert_eq!(nodes, &json!({"10.0.0.1": {"sda": 2}}));
    }
}
