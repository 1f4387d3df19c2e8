//! Quality of a placement: balance (devices against their weight), dispersion (replicas against
//! failure domains), and validity of the table.

use crate::builder::rebalance::TierCounts;
use crate::builder::tiers::{ROOT, TierTree};
use crate::builder::{BuilderDevice, BuilderError, RingBuilder};

/// Balance reported for a device that should hold nothing but does.
pub const BALANCE_MAX: f64 = 999.99;

/// Tiers where replicas of one partition share a failure domain unnecessarily.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DispersionReport {
    pub worst_tier: Option<String>,
    /// Percentage of excess replicas in the worst tier.
    pub max_dispersion: f64,
    /// All tiers with partitions, parents first.
    pub tiers: Vec<TierDispersion>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TierDispersion {
    pub name: String,
    /// Maximum number of replicas of a partition that the tier should hold.
    pub max_replicas: u64,
    /// Number of partition replicas that the tier holds.
    pub placed_parts: u64,
    pub dispersion: f64,
    /// At index n, the number of partitions with n replicas in this tier.
    pub replicas: Vec<u64>,
}

/// For each tier, the number of partitions with 0, 1, 2, … replicas in it.
struct DispersionGraph {
    tree: TierTree,
    /// Indexed by tier; empty for tiers without partitions.
    counts: Vec<Vec<u64>>,
    /// Number of excess replicas, each counted once, at the tier where that is worst.
    at_risk: f64,
}

impl RingBuilder {
    fn device_balance(&self, dev: &BuilderDevice, parts_per_weight: f64) -> f64 {
        if dev.device.weight > 0.0 {
            100.0 * dev.parts as f64 / (dev.device.weight * parts_per_weight) - 100.0
        } else if dev.parts > 0 {
            BALANCE_MAX
        } else {
            0.0
        }
    }

    /// Deviation from the weight by device id, in percent.
    ///
    /// # Errors
    /// `EmptyRing` if no device has a weight above 0.
    pub fn balance_per_device(&self) -> Result<Vec<f64>, BuilderError> {
        let parts_per_weight = self.parts_per_weight()?;
        let balance = |dev: &Option<BuilderDevice>| {
            dev.as_ref()
                .map_or(0.0, |dev| self.device_balance(dev, parts_per_weight))
        };
        Ok(self.devs.iter().map(balance).collect())
    }

    /// The balance of the worst device.
    ///
    /// # Errors
    /// `EmptyRing` if no device has a weight above 0.
    pub fn balance(&self) -> Result<f64, BuilderError> {
        let per_device = self.balance_per_device()?;
        Ok(per_device.into_iter().map(f64::abs).fold(0.0, f64::max))
    }

    fn dispersion_graph(&self) -> Result<DispersionGraph, BuilderError> {
        let table = self.table.as_deref().ok_or(BuilderError::NotBalanced)?;
        let tree = TierTree::new(&self.devs);
        let allowed = self.max_replicas(&tree, f64::ceil);
        let replicas = self.replicas.ceil() as usize;
        let mut counts: Vec<Vec<u64>> = vec![Vec::new(); tree.len()];
        let mut here = TierCounts::new(tree.len());
        let mut tiers: Vec<usize> = Vec::new();
        let mut at_risk = 0.0;
        for part in 0..self.parts() as usize {
            here.clear();
            tiers.clear();
            for id in table.iter().filter_map(|row| row.get(part)) {
                let Some(of_device) = tree.of_device.get(*id as usize) else {
                    continue;
                };
                here.add(*of_device);
                tiers.extend(of_device);
            }
            tiers.sort_unstable();
            tiers.dedup();
            let mut risk = [0.0_f64; 5];
            for tier in tiers.iter().copied().filter(|tier| *tier != ROOT) {
                let count = here.of(tier);
                let row = &mut counts[tier];
                if row.is_empty() {
                    *row = vec![0; replicas + 1];
                    row[0] = self.parts();
                }
                row[0] -= 1;
                row[(count as usize).min(replicas)] += 1;
                risk[tree.tiers[tier].depth] += (count - allowed[tier]).max(0.0);
            }
            at_risk += risk.into_iter().fold(0.0, f64::max);
        }
        Ok(DispersionGraph {
            tree,
            counts,
            at_risk,
        })
    }

    /// Recomputes the dispersion; increments the version, as in Swift.
    ///
    /// # Errors
    /// `NotBalanced` before the first rebalance.
    pub fn update_dispersion(&mut self) -> Result<(), BuilderError> {
        let at_risk = self.dispersion_graph()?.at_risk;
        self.dispersion = Some(100.0 * at_risk / (self.parts() as f64 * self.replicas));
        self.version += 1;
        Ok(())
    }

    /// Reports the tiers whose names `filter` accepts.
    ///
    /// # Errors
    /// `NotBalanced` before the first rebalance.
    pub fn dispersion_report(
        &self,
        filter: impl Fn(&str) -> bool,
    ) -> Result<DispersionReport, BuilderError> {
        let graph = self.dispersion_graph()?;
        let allowed = self.max_replicas(&graph.tree, f64::ceil);
        let mut report = DispersionReport::default();
        for (tier, replicas) in graph.counts.into_iter().enumerate() {
            let name = graph.tree.name(tier, &self.devs);
            if replicas.is_empty() || !filter(&name) {
                continue;
            }
            let max_replicas = allowed[tier] as u64;
            let weigh =
                |(count, parts): (usize, &u64)| (count as u64).saturating_sub(max_replicas) * parts;
            let at_risk: u64 = replicas.iter().enumerate().map(weigh).sum();
            let placed: u64 = replicas.iter().enumerate().map(|(n, p)| n as u64 * p).sum();
            let dispersion = 100.0 * at_risk as f64 / placed.max(1) as f64;
            if dispersion > report.max_dispersion {
                report.max_dispersion = dispersion;
                report.worst_tier = Some(name.clone());
            }
            report.tiers.push(TierDispersion {
                name,
                max_replicas,
                placed_parts: placed,
                dispersion,
                replicas,
            });
        }
        Ok(report)
    }

    /// Checks that every replica is assigned, that no device has a partition twice, and that the
    /// devices' counts are right.
    ///
    /// # Errors
    /// `NotBalanced` before the first rebalance; `Accounting`, `ShortReplica`, `Unallocated` or
    /// `DuplicateAssignment` for the first rule that is broken.
    pub fn validate(&self) -> Result<(), BuilderError> {
        let table = self.table.as_deref().ok_or(BuilderError::NotBalanced)?;
        let on_devices = self.devices().map(|dev| dev.parts).sum();
        let in_table = table.iter().map(|row| row.len() as u64).sum();
        if on_devices != in_table {
            return Err(BuilderError::Accounting {
                on_devices,
                in_table,
            });
        }
        let whole = self.replicas.ceil() as usize;
        for (replica, row) in table.iter().enumerate() {
            if (row.len() as u64) < self.parts() && replica + 1 < whole {
                return Err(BuilderError::ShortReplica {
                    replica,
                    found: row.len(),
                    expected: self.parts(),
                });
            }
        }
        for part in 0..self.parts() as usize {
            let mut ids = Vec::with_capacity(table.len());
            for (replica, row) in table.iter().enumerate() {
                let Some(id) = row.get(part) else { continue };
                if self.device(*id).is_none() {
                    return Err(BuilderError::Unallocated { part, replica });
                }
                if ids.contains(id) {
                    ids.push(*id);
                    return Err(BuilderError::DuplicateAssignment { part, ids });
                }
                ids.push(*id);
            }
        }
        Ok(())
    }
}
