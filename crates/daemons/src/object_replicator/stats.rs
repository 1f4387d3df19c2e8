//! Statistics of a replication pass, for the log and `object.recon`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// Counts of one pass; the names in `object.recon` are Swift's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicationStats {
    /// Partitions processed.
    pub attempted: u64,
    /// Remote devices found or brought up to date.
    pub success: u64,
    /// Remote devices that failed.
    pub failure: u64,
    /// Remote devices with equal hashes.
    pub hashmatch: u64,
    /// Remote devices that were sent something.
    pub rsync: u64,
    /// Handoff partitions removed, as all primaries have them.
    pub remove: u64,
    pub suffix_count: u64,
    /// Suffixes rehashed.
    pub suffix_hash: u64,
    /// Suffixes that differed.
    pub suffix_sync: u64,
    /// Failures by address, then by device.
    pub failure_nodes: BTreeMap<String, BTreeMap<String, u64>>,
}

impl ReplicationStats {
    pub(crate) fn add_failure(&mut self, ip: &str, device: &str) {
        self.failure += 1;
        let devices = self.failure_nodes.entry(ip.to_owned()).or_default();
        *devices.entry(device.to_owned()).or_default() += 1;
    }

    /// Entries of `object.recon` after a pass of `minutes` that ended at `ended`, seconds since the
    /// epoch.
    pub(crate) fn to_recon(&self, minutes: f64, ended: f64) -> Map<String, Value> {
        let entries = json!({
            "replication_stats": {
                "attempted": self.attempted,
                "failure": self.failure,
                "hashmatch": self.hashmatch,
                "remove": self.remove,
                "rsync": self.rsync,
                "success": self.success,
                "suffix_count": self.suffix_count,
                "suffix_hash": self.suffix_hash,
                "suffix_sync": self.suffix_sync,
                "failure_nodes": self.failure_nodes,
            },
            "replication_time": minutes,
            "replication_last": ended,
            "object_replication_time": minutes,
            "object_replication_last": ended,
        });
        match entries {
            Value::Object(entries) => entries,
            _ => Map::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_by_device() {
        let mut stats = ReplicationStats::default();
        stats.add_failure("10.0.0.1", "sda");
        stats.add_failure("10.0.0.1", "sda");
        stats.add_failure("10.0.0.2", "sdb");
        let recon = stats.to_recon(1.5, 100.0);
        assert_eq!(recon["replication_stats"]["failure"], 3);
        let nodes = &recon["replication_stats"]["failure_nodes"];
        assert_eq!(
            *nodes,
            json!({"10.0.0.1": {"sda": 2}, "10.0.0.2": {"sdb": 1}})
        );
        assert_eq!(recon["object_replication_time"], 1.5);
    }
}
