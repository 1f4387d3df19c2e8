//! The plan of a rebalance: the number of replicas of a partition that each tier should hold.
//!
//! It blends three distributions. *Weighted*: by weights alone, with at most one replica per
//! device. *Wanted*: as dispersed as possible, deviating from the weights only as far as necessary.
//! *Target*: between weighted and wanted, as far as the overload allows. The plan rounds the target
//! down and up. Sums are computed in device and tier order, like Swift's, so that rounding errors
//! are the same too.

use crate::builder::tiers::{LEVELS, ROOT, TierTree};
use crate::builder::{BuilderError, RingBuilder};

/// Number of replicas per tier, indexed by tier number.
type Replicas = Vec<f64>;

/// Tolerance for rounding errors in a sum of shares.
const EPSILON: f64 = 1e-10;
/// Maximum rounds of spreading: it converges in a handful; more means hostile weights.
const ROUNDS_MAX: usize = 100_000;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct TierPlan {
    pub(super) min: f64,
    pub(super) target: f64,
    pub(super) max: f64,
}

impl RingBuilder {
    /// Number of partition replicas per unit of weight.
    pub(super) fn parts_per_weight(&self) -> Result<f64, BuilderError> {
        let weight: f64 = self.devices().map(|dev| dev.device.weight).sum();
        if weight > 0.0 {
            Ok(self.parts() as f64 * self.replicas / weight)
        } else {
            Err(BuilderError::EmptyRing)
        }
    }

    pub(super) fn replica_plan(&self, tree: &TierTree) -> Result<Vec<TierPlan>, BuilderError> {
        let target = self.target_replicas(tree)?;
        Ok(target
            .into_iter()
            .map(|target| TierPlan {
                min: (target + EPSILON).floor(),
                target,
                max: (target - EPSILON).ceil(),
            })
            .collect())
    }

    fn target_replicas(&self, tree: &TierTree) -> Result<Replicas, BuilderError> {
        let weighted = self.weighted_replicas(tree)?;
        let wanted = self.wanted_replicas(tree, &weighted)?;
        let required = self.overload_between(tree, &weighted, &wanted)?;
        if required <= 0.0 {
            return Ok(wanted);
        }
        let overload = self.overload.min(required);
        let blend =
            |(weighted, wanted): (&f64, &f64)| (wanted - weighted) / required * overload + weighted;
        let target = weighted.iter().zip(&wanted).map(blend).collect();
        self.check_sums(tree, &target)?;
        Ok(target)
    }

    /// The smallest overload with which the ring becomes as dispersed as possible.
    ///
    /// # Errors
    /// `EmptyRing` if no device has a weight above 0, `TooFewDevices` if a partition's replicas do
    /// not fit on different devices, `Plan` if the shares do not add up.
    pub fn required_overload(&self) -> Result<f64, BuilderError> {
        let tree = TierTree::new(&self.devs);
        let weighted = self.weighted_replicas(&tree)?;
        let wanted = self.wanted_replicas(&tree, &weighted)?;
        self.overload_between(&tree, &weighted, &wanted)
    }

    fn overload_between(
        &self,
        tree: &TierTree,
        weighted: &Replicas,
        wanted: &Replicas,
    ) -> Result<f64, BuilderError> {
        let mut most: f64 = 0.0;
        for dev in self.devices().filter(|dev| dev.device.weight > 0.0) {
            let tier = tree.of_device[dev.device.id as usize][3];
            most = most.max((wanted[tier] - weighted[tier]) / weighted[tier]);
        }
        Ok(most)
    }

    fn weighted_replicas(&self, tree: &TierTree) -> Result<Replicas, BuilderError> {
        let parts_per_weight = self.parts_per_weight()?;
        let parts = self.parts() as f64;
        let mut shares: Vec<(u32, f64)> = self
            .devices()
            .filter(|dev| dev.device.weight > 0.0)
            .map(|dev| {
                let share = dev.device.weight * parts_per_weight / parts;
                (dev.device.id, share.min(1.0))
            })
            .collect();
        // The excess of heavy devices (at most one replica each) is given to the others, by weight.
        for round in 0.. {
            let remaining = self.replicas - shares.iter().map(|(_, share)| share).sum::<f64>();
            if remaining < EPSILON {
                break;
            }
            let room: f64 = shares.iter().map(|(_, s)| *s).filter(|s| *s < 1.0).sum();
            if room <= 0.0 || round > ROUNDS_MAX {
                return Err(BuilderError::TooFewDevices {
                    replicas: self.replicas,
                    devices: shares.len(),
                });
            }
            let grow = remaining / room + 1.0;
            for (_, share) in shares.iter_mut().filter(|(_, share)| *share < 1.0) {
                *share = (*share * grow).min(1.0);
            }
        }
        let mut replicas = vec![0.0; tree.len()];
        for (id, share) in shares {
            replicas[ROOT] += share;
            for tier in tree.of_device[id as usize] {
                replicas[tier] += share;
            }
        }
        self.check_sums(tree, &replicas)?;
        Ok(replicas)
    }

    /// Maximum number of replicas of one partition in each tier if siblings share evenly; `bound`
    /// rounds each step.
    pub(super) fn max_replicas(&self, tree: &TierTree, bound: fn(f64) -> f64) -> Replicas {
        let mut most = vec![0.0; tree.len()];
        most[ROOT] = self.replicas;
        // Parents precede children in tier order.
        for tier in 0..tree.len() {
            let children = &tree.tiers[tier].children;
            for child in children {
                let share = bound(most[tier] / children.len() as f64);
                let is_device = tree.tiers[*child].depth == 4;
                most[*child] = if is_device { share.min(1.0) } else { share };
            }
        }
        most
    }

    fn wanted_replicas(
        &self,
        tree: &TierTree,
        weighted: &Replicas,
    ) -> Result<Replicas, BuilderError> {
        let mut devices = vec![0_u32; tree.len()];
        for dev in self.devices().filter(|dev| dev.device.weight > 0.0) {
            devices[ROOT] += 1;
            for tier in tree.of_device[dev.device.id as usize] {
                devices[tier] += 1;
            }
        }
        let spread = Spread {
            tree,
            weighted,
            dispersed: self.max_replicas(tree, |share| share),
            devices: devices.into_iter().map(f64::from).collect(),
        };
        let mut wanted = vec![0.0; tree.len()];
        wanted[ROOT] = self.replicas;
        for tier in 0..tree.len() {
            if wanted[tier] > spread.devices[tier] && tree.tiers[tier].depth < 4 {
                return Err(spread.failed(tier, "more replicas than devices"));
            }
            for (child, share) in spread.children_shares(tier, wanted[tier])? {
                wanted[child] = share;
            }
        }
        self.check_sums(tree, &wanted)?;
        Ok(wanted)
    }

    /// Asserts that every level of tiers adds up to all replicas.
    fn check_sums(&self, tree: &TierTree, replicas: &Replicas) -> Result<(), BuilderError> {
        for (depth, level) in LEVELS.iter().enumerate() {
            let tiers = tree.tiers.iter().zip(replicas);
            let sum: f64 = tiers
                .filter(|(tier, _)| tier.depth == depth)
                .map(|(_, replicas)| replicas)
                .sum();
            // Allows for one rounding error per tier: large clusters add up thousands of shares.
            if (sum - self.replicas).abs() > EPSILON * tree.len().max(1) as f64 {
                return Err(BuilderError::Plan {
                    tier: (*level).to_owned(),
                    detail: format!("{sum} replicas planned instead of {}", self.replicas),
                });
            }
        }
        Ok(())
    }
}

/// Distribution of a tier's replicas over its children.
struct Spread<'a> {
    tree: &'a TierTree,
    weighted: &'a Replicas,
    /// Even share of each tier, before rounding.
    dispersed: Replicas,
    devices: Vec<f64>,
}

impl Spread<'_> {
    fn failed(&self, tier: usize, detail: &str) -> BuilderError {
        BuilderError::Plan {
            tier: self.tree.name(tier, &[]),
            detail: detail.to_owned(),
        }
    }

    fn least(&self, tier: usize) -> f64 {
        self.dispersed[tier].floor()
    }

    fn most(&self, tier: usize) -> f64 {
        self.dispersed[tier].ceil()
    }

    /// Shares of the children by weight, but each between the even share rounded down and up, and
    /// never more than its number of devices. Repeats until nothing is left to distribute.
    fn children_shares(&self, tier: usize, all: f64) -> Result<Vec<(usize, f64)>, BuilderError> {
        let children = &self.tree.tiers[tier].children;
        let mut shares: Vec<(usize, f64)> = children.iter().map(|t| (*t, 0.0)).collect();
        if children.is_empty() {
            return Ok(shares);
        }
        let mut spread_over: Vec<usize> = (0..shares.len()).collect();
        let mut remaining = all;
        let mut device_limited = false;
        for _ in 0..ROUNDS_MAX {
            let weight: f64 = spread_over
                .iter()
                .map(|i| self.weighted[shares[*i].0])
                .sum();
            if weight <= 0.0 {
                return Err(self.failed(tier, "no child can take more replicas"));
            }
            let per_weight = remaining / weight;
            for i in &spread_over {
                let (child, share) = shares[*i];
                let mut share = share + self.weighted[child] * per_weight;
                if share < self.least(child) {
                    share = self.least(child);
                } else if share > self.most(child) && !device_limited {
                    share = self.most(child);
                }
                shares[*i].1 = share.min(self.devices[child]);
            }
            remaining = all - shares.iter().map(|(_, share)| share).sum::<f64>();
            let positions = 0..shares.len();
            let chosen = |test: &dyn Fn(usize, f64) -> bool| -> Vec<usize> {
                positions
                    .clone()
                    .filter(|i| test(shares[*i].0, shares[*i].1))
                    .collect()
            };
            if remaining < -EPSILON {
                spread_over = chosen(&|child, share| share > self.least(child));
            } else if remaining > EPSILON {
                spread_over =
                    chosen(&|child, share| self.devices[child] > share && share < self.most(child));
                if spread_over.is_empty() {
                    device_limited = true;
                    spread_over = chosen(&|child, share| share < self.devices[child]);
                }
            } else {
                return Ok(shares);
            }
        }
        Err(self.failed(tier, "the weights do not settle"))
    }
}
