//! Scope of a calibration: bounds of what was measured. Predictions outside of them are not
//! reliable.

use serde::{Deserialize, Serialize};

use crate::cache::hit_part;
use crate::cell::Cell;
use crate::cluster::{Cluster, Processes};
use crate::workload::{Operation, Workload};

/// Factors by which sizes, and by which workers and rates, may exceed the measured ones.
const SIZE_FACTOR: f64 = 4.0;
const WORKERS_FACTOR: f64 = 4.0;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scope {
    pub sizes: [f64; 2],
    pub workers: [u32; 2],
    pub replicas: [u32; 2],
    /// Measured erasure codes, such as `4+2`.
    pub erasure: Vec<String>,
    pub operations: Vec<String>,
    /// Number of storage nodes in the largest measured cluster.
    pub nodes: u32,
    /// Calls between processes, or between hosts, were measured.
    pub apart: bool,
    /// Reads from a disk were measured.
    pub reads_of_disks: bool,
    /// A cluster that lost a zone was measured.
    pub degraded: bool,
}

impl Scope {
    /// Extends the scope by a measured cell.
    pub fn add_cell(&mut self, cell: &Cell) {
        let (cluster, workload) = (&cell.cluster, &cell.workload);
        self.add(cluster, workload);
        self.degraded |= cell.lost_zone.is_some();
        let reads = workload.share(Operation::Read) > 0.0;
        self.reads_of_disks |= reads && hit_part(cluster, workload) < 1.0;
    }

    /// Extends the scope by a cluster and a workload that were measured.
    pub fn add(&mut self, cluster: &Cluster, workload: &Workload) {
        let is_new = self.operations.is_empty();
        for class in workload.classes() {
            let size = class.bytes.0;
            self.sizes[0] = if is_new {
                size
            } else {
                self.sizes[0].min(size)
            };
            self.sizes[1] = self.sizes[1].max(size);
        }
        let workers = workload.workers.unwrap_or(1);
        self.workers[0] = if is_new {
            workers
        } else {
            self.workers[0].min(workers)
        };
        self.workers[1] = self.workers[1].max(workers);
        match cluster.erasure {
            Some(e) => {
                let scheme = format!("{}+{}", e.data, e.parity);
                if !self.erasure.contains(&scheme) {
                    self.erasure.push(scheme);
                }
            }
            None => {
                let unset = self.replicas == [0, 0];
                let (replicas, low) = (cluster.replicas, self.replicas[0]);
                self.replicas[0] = if unset { replicas } else { low.min(replicas) };
                self.replicas[1] = self.replicas[1].max(replicas);
            }
        }
        for (operation, share) in workload.mix() {
            let name = operation.name().to_owned();
            if share > 0.0 && !self.operations.contains(&name) {
                self.operations.push(name);
            }
        }
        self.nodes = self.nodes.max(cluster.storage_nodes());
        self.apart |= cluster.processes == Processes::Roles || cluster.storage_nodes() > 1;
    }

    /// Reasons why a prediction would be outside; empty if it is within.
    pub fn outside(&self, cluster: &Cluster, workload: &Workload) -> Vec<String> {
        let mut reasons = Vec::new();
        for class in workload.classes() {
            let size = class.bytes;
            let [low, high] = [self.sizes[0] / SIZE_FACTOR, self.sizes[1] * SIZE_FACTOR];
            if workload.read + workload.write > 0.0 && !(low..=high).contains(&size.0) {
                let measured = self.sizes.map(|s| crate::Bytes(s).to_string());
                reasons.push(format!(
                    "objects of {size} (measured {})",
                    measured.join(" to ")
                ));
            }
        }
        if let Some(workers) = workload.workers
            && f64::from(workers) > f64::from(self.workers[1]) * WORKERS_FACTOR
        {
            reasons.push(format!(
                "{workers} workers (measured up to {})",
                self.workers[1]
            ));
        }
        for (operation, share) in workload.mix() {
            // A head reads no content, a delete writes none: their steps are those of reads and
            // writes.
            let like = match operation {
                Operation::Head => Operation::Read,
                Operation::Delete => Operation::Write,
                other => other,
            };
            if share > 0.0 && !self.operations.iter().any(|o| o == like.name()) {
                reasons.push(format!("the operation {}", operation.name()));
            }
        }
        let replicas = cluster.replicas;
        match cluster.erasure {
            Some(_) if self.erasure.is_empty() => reasons.push("erasure codes".into()),
            None if !(self.replicas[0]..=self.replicas[1].max(3)).contains(&replicas) => {
                let [low, high] = self.replicas;
                reasons.push(format!("{replicas} replicas (measured {low} to {high})"));
            }
            _ => {}
        }
        let nodes = cluster.storage_nodes();
        if (nodes > 1 || cluster.processes == Processes::Roles) && !self.apart {
            reasons.push("calls between processes".into());
        }
        if nodes > self.nodes {
            reasons.push(format!(
                "{nodes} storage nodes (measured up to {})",
                self.nodes
            ));
        }
        reasons
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::cluster::tests::HOST;
    use crate::workload::tests::SMALL;

    #[test]
    fn within_and_outside() {
        let cluster = Cluster::parse(HOST).unwrap();
        let workload = Workload::parse(SMALL).unwrap();
        let mut scope = Scope::default();
        assert!(!scope.outside(&cluster, &workload).is_empty());
        scope.add(&cluster, &workload);
        assert_eq!(scope.outside(&cluster, &workload), Vec::<String>::new());
        let mut other = workload.clone();
        other.sizes = crate::workload::Sizes::One(crate::Bytes(1e9));
        other.workers = Some(1000);
        let mut large = cluster.clone();
        large.node[0].count = 5;
        large.erasure = Some(crate::cluster::Erasure { data: 4, parity: 2 });
        let reasons = scope.outside(&large, &other).join("; ");
        for part in [
            "1 GB",
            "1000 workers",
            "erasure",
            "5 storage nodes",
            "between processes",
        ] {
            assert!(reasons.contains(part), "{reasons}");
        }
    }

    /// Hosts call each other, so that cells of several nodes have measured that.
    #[test]
    fn a_cell_of_several_nodes_without_a_zone_is_within_its_own_scope() {
        let mut cell = crate::cell::tests::example();
        cell.cluster.node[0].count = 3;
        cell.lost_zone = Some(1);
        cell.cluster.node[0].memory = crate::Bytes(0.0);
        let mut scope = Scope::default();
        scope.add_cell(&cell);
        let outside = scope.outside(&cell.cluster, &cell.workload);
        assert_eq!(outside, Vec::<String>::new());
        assert!(scope.apart && scope.degraded && scope.reads_of_disks);
    }
}
